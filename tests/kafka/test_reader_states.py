"""The reader between two connections; no server is needed."""

import asyncio
from types import SimpleNamespace

from aiokafka import TopicPartition

from streameval.kafka import consumer
from streameval.kafka.consumer import KafkaEventLog


class Listener:
    def __init__(self):
        self.lost = []

    async def revoked(self, partitions):
        self.lost += partitions

    async def assigned(self, partitions):
        """Nothing is restored here."""


def opened(partitions, monkeypatch):
    """A reader with an assignment of `partitions`, of which the first is read already."""
    reader = KafkaEventLog({"bootstrap_servers": "localhost:1"}, "t", "g", "t.dead")
    places = [TopicPartition("t", number) for number in partitions]
    reader._consumer = SimpleNamespace(assignment=lambda: set(places))
    reader._positions = {places[0]: 7}
    reader._listener = Listener()

    async def nothing(*_):
        reader._consumer = None

    monkeypatch.setattr(reader, "close", nothing)
    monkeypatch.setattr(reader, "start", nothing)
    return reader


def test_a_broken_client_takes_away_also_what_was_still_being_restored(monkeypatch):
    reader = opened([0, 1], monkeypatch)
    asyncio.run(reader._rejoin())
    assert sorted(reader._listener.lost) == [0, 1]


def test_calls_of_a_listener_that_come_after_the_connection_have_no_effect(monkeypatch):
    """A restore or a fence may end while the reader joins anew."""
    reader = opened([0, 1], monkeypatch)
    asyncio.run(reader._rejoin())
    reader.seek(1, 5)
    reader.pause(1)
    reader.resume(1)
    assert reader._positions == {}


def test_a_group_that_assigns_nothing_for_long_is_told(monkeypatch):
    """As while its coordinator is away. Nobody reads then, so no leader is found to be silent."""
    monkeypatch.setattr(consumer, "SILENCE_SECONDS", 0.05)
    reader = opened([0, 1], monkeypatch)
    places = [TopicPartition("t", number) for number in (0, 1)]

    async def scenario():
        assert reader.trouble == ""
        await reader.revoked(places)
        assert reader.trouble == "", "a rebalance takes its time"
        await asyncio.sleep(0.03)
        await reader.revoked([])
        await asyncio.sleep(0.03)
        assert "does not say which partitions are this worker's" in reader.trouble
        await reader.assigned([])
        assert reader.trouble == "", "a surplus worker has none"

    asyncio.run(scenario())
