"""Two of three brokers dead: what cannot be read is said by partition, wherever somebody looks."""

import asyncio
import time

import pytest
import servers
import service
from scene import Scene
from test_broker_down import REPLICATED

from streameval.cli.doctor import examine, exit_code

pytestmark = pytest.mark.servers
# Kafka may take 15 s for an election, and a probe comes every two seconds.
FOUND_SECONDS = 45


def test_two_of_three_brokers_dead_are_said_by_partition_and_lose_nothing():
    with (
        servers.kafka_cluster() as kafka,
        Scene(
            kafka,
            servers.shared_redis(),
            partitions=3,
            topic_config=REPLICATED,
            settings={"kafka": kafka.address},
        ) as it,
    ):
        worker = it.worker()
        service.wait_for(lambda: worker.page("/readyz"), 90, "it is ready")
        it.produce(1_000)
        it.read_all()
        for node in kafka.nodes[1:]:
            node.kill()
        began = time.monotonic()
        # That nobody takes dead letters may be found first.
        found = lambda: "partition" in service.refused(worker, "/readyz")  # noqa: E731
        service.wait_for(found, FOUND_SECONDS, "it is found")
        said = service.refused(worker, "/readyz")
        print(f"/readyz 503 after {time.monotonic() - began:.1f} s: {said}")
        # The log has it with the next probe.
        told = lambda: said.strip() in " ".join(worker.logged().split())  # noqa: E731
        service.wait_for(told, 20, "the log says so too")
        assert worker.metrics()["streameval_ready", frozenset()] == 0
        page = worker.page("/")
        assert "partitions" in page
        lags = {
            dict(labels)["partition"]: value
            for (name, labels), value in worker.metrics().items()
            if name == "streameval_lag"
        }
        assert len(lags) < 3, "nobody knows the lag of a partition that nobody serves"
        began = time.monotonic()
        findings = asyncio.run(examine(worker.config))
        print(f"doctor after {time.monotonic() - began:.1f} s: {findings[-1]}")
        assert exit_code(findings) == 3
        for node in kafka.nodes[1:]:
            node.start()
        service.wait_for(lambda: worker.page("/readyz"), 90, "it is ready again")
        it.produce(500)
        it.read_all()
        it.verify()
