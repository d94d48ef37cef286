"""One of three brokers down: two serve, so nobody is unready, and no lease nor record is lost."""

import asyncio

import pytest
import servers
import service
from scene import Scene

from streameval.kafka.consumer import KafkaEventLog

pytestmark = pytest.mark.servers

REPLICATED = {"replicas": 3, "min.insync.replicas": "2"}
RECORDS = 1_000  # of what is read while a broker is down: some seconds, so several probes


def unready(workers):
    """What `/readyz` of each says, where it is not ready."""
    return [why for worker in workers if (why := service.refused(worker, "/readyz"))]


class Listener:
    """Reads all it gets from its first record on."""

    def __init__(self, address, topic, rack):
        self.reader = KafkaEventLog(
            {"bootstrap_servers": address}, topic, "racks", "dead", rack=rack
        )

    async def assigned(self, partitions):
        for number in partitions:
            self.reader.seek(number, 0)
            self.reader.resume(number)

    async def revoked(self, _):
        """Nothing is kept."""

    async def fetches_from(self):
        """The nodes it fetches all partitions from, once it has heard of replicas in its rack."""
        await self.reader.start(self)
        preferred = self.reader._consumer._fetcher._preferred_read_replica
        while not preferred:
            await self.reader.poll(0.1, 100)
        await self.reader.close(5)
        return {node for node, _ in preferred.values()}


def test_each_of_three_brokers_is_killed_in_turn_and_nobody_notices():
    """Workers fetch from followers in their racks; a partition that moves is no reason."""
    with (
        servers.kafka_cluster() as kafka,
        Scene(
            kafka,
            servers.shared_redis(),
            partitions=3,
            topic_config=REPLICATED,
            settings={"kafka": kafka.address, "session_timeout": "20s"},
        ) as it,
    ):
        workers = [it.worker(kafka_rack=f"r{number}") for number in (1, 2)]
        for worker in workers:
            service.wait_for(lambda of=worker: of.page("/readyz"), 90, "it is ready")
        sending = it.producing(3 * RECORDS + 2_000, seconds=20)
        said = []
        for node in kafka.nodes:
            it.wait_for_progress()
            node.kill()
            before = it.committed()
            while it.committed() < before + RECORDS and not sending.done():
                said += unready(workers)
            node.start()
        sending.result()
        it.verify()
        assert not [why for why in said if "Kafka" in why], said
        logged = "".join(worker.logged() for worker in workers)
        lost = [line for line in logged.splitlines() if "leads no longer" in line]
        assert [line for line in lost if not line.endswith("stopping")] == []
        # At the end the other one may take over from a leader that stops first.
        assert "leads the group now" in logged
        assert asyncio.run(Listener(kafka.address, it.topic, "r3").fetches_from()) == {3}
