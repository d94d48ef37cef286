"""One of three brokers down: two serve, so nobody is unready, and no lease nor record is lost."""

import asyncio

import pytest
import servers
import service
from scene import Scene

from streameval.core.events import Rejection
from streameval.kafka.consumer import KafkaEventLog
from streameval.kafka.records import DeadLetter

pytestmark = pytest.mark.servers

REPLICATED = {"replicas": 3, "min.insync.replicas": "2"}
RECORDS, SECONDS = 2_000, 8  # sent while a broker is down: several probes


def in_sync(node):
    """Whether all replicas have all records, by what this node knows."""
    topics = service.administer(node.port, lambda admin: admin.describe_topics())
    partitions = [partition for topic in topics for partition in topic["partitions"]]
    return all(set(of["isr"]) == set(of["replicas"]) for of in partitions)


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
        said = []
        for node in kafka.nodes:
            sending = it.producing(RECORDS, SECONDS)
            it.wait_for_progress()
            node.kill()
            while not sending.done():
                said += unready(workers)
            sending.result()
            it.read_all()
            node.start()
            # With the next one two would be down, which nobody promises to stand.
            service.wait_for(lambda of=node: in_sync(of), 90, "all replicas are in sync")
        it.verify()
        assert not [why for why in said if "Kafka" in why], said
        logged = "".join(worker.logged() for worker in workers)
        lost = [line for line in logged.splitlines() if "leads no longer" in line]
        assert [line for line in lost if not line.endswith("stopping")] == []
        # At the end the other one may take over from a leader that stops first.
        assert "leads the group now" in logged
        assert asyncio.run(Listener(kafka.address, it.topic, "r3").fetches_from()) == {3}


def test_a_topic_of_dead_letters_made_while_a_broker_is_down_has_all_its_replicas():
    """With two it would stop for `min.insync.replicas` when one of these two goes down."""
    with servers.kafka_cluster() as kafka:
        topic = servers.unique()
        service.create_topic(kafka.port, topic, 1, **REPLICATED)
        kafka.nodes[0].kill()

        def known_to_be_down():
            about = service.administer(kafka.port, lambda admin: admin.describe_cluster())
            return len(about["brokers"]) == 2

        service.wait_for(known_to_be_down, 60, "two brokers are left")

        async def write():
            log = KafkaEventLog(
                {"bootstrap_servers": kafka.address}, topic, "group", f"{topic}.bad"
            )
            letter = DeadLetter(0, 0, 0, b"k", b"v", Rejection("malformed", "no JSON"))
            assert await log.write_dead_letters([letter]) == 0
            await log.close(5)

        asyncio.run(write())
        described = service.administer(
            kafka.port, lambda admin: admin.describe_topics([f"{topic}.bad"])
        )
        assert sorted(described[0]["partitions"][0]["replicas"]) == [1, 2, 3]
