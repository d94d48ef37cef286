"""The choice between the two record sources, and the plain one on a broken batch; no server."""

import asyncio
import logging
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import CorruptRecordException, NotLeaderForPartitionError

import streameval
from streameval.base.limits import MAX_DEAD_LETTER_BYTES, MAX_EVENT_BYTES
from streameval.kafka import aiokafka_internals, record_source
from streameval.kafka.fast_source import FastSource
from streameval.kafka.plain_source import PlainSource

PARTITION, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
PRIVATE = re.compile(
    r"(from|import) aiokafka\.(client|cluster|conn|consumer|protocol|record|producer)\b"
    r"|\b(consumer|client|producer|admin)\._[a-z]"
)


class Consumer:
    """Records 0 to 99 of two partitions, in batches of 10; no batch in `bad` can be unpacked."""

    def __init__(self, bad=()):
        self.bad, self.positions = set(bad), {PARTITION: 0, OTHER: 0}

    def assignment(self):
        return set(self.positions)

    def paused(self):
        return set()

    async def position(self, topic_partition):
        return self.positions[topic_partition]

    async def getmany(self, topic_partition, *, timeout_ms=0, max_records=None):
        if topic_partition not in self.positions:
            return {}
        at = self.positions[topic_partition]
        end = min(at + max_records, 100)
        for offset in range(at, end):
            if topic_partition == PARTITION and offset // 10 in self.bad:
                raise CorruptRecordException("Invalid CRC")
        self.positions[topic_partition] = end
        found = [
            SimpleNamespace(offset=offset, timestamp=offset, key=b"k", value=b"v", headers=())
            for offset in range(at, end)
        ]
        return {topic_partition: found} if found else {}


def read(source, turns):
    """Read `turns` times, as the event log does after an error; the offsets by partition."""
    handed_out = {PARTITION: [], OTHER: []}
    consumer = source._consumer

    async def scenario():
        for _ in range(turns):
            try:
                found = await source.read(0, 200)
            except CorruptRecordException:
                for topic_partition, offsets in handed_out.items():
                    consumer.positions[topic_partition] = len(offsets)
                continue
            for topic_partition, parts in found.items():
                for part in parts:
                    handed_out[topic_partition] += part.offsets
        return handed_out

    return asyncio.run(scenario())


def test_the_plain_source_hands_out_all_records_before_an_unreadable_batch_and_names_it():
    source = PlainSource(Consumer(bad=[4]), {}, "t")
    handed_out = read(source, 20)
    assert handed_out == {PARTITION: list(range(40)), OTHER: list(range(100))}
    assert source.unreadable == {
        PARTITION: "offset 40 ([Error 2] CorruptRecordException: Invalid CRC)"
    }


def test_a_batch_that_was_unreadable_once_costs_no_speed_for_long():
    consumer = Consumer(bad=[4])
    source = PlainSource(consumer, {}, "t")
    read(source, 2)
    consumer.bad = set()
    assert source._suspects
    assert read(source, 10)[PARTITION] == list(range(100))
    assert not source._suspects


def test_another_error_of_aiokafka_is_raised_and_suspects_no_batch():
    consumer = Consumer()

    async def getmany(*_, **__):
        raise NotLeaderForPartitionError

    consumer.getmany = getmany
    source = PlainSource(consumer, {}, "t")
    with pytest.raises(NotLeaderForPartitionError):
        asyncio.run(source.read(0, 100))
    assert not source._suspects


def test_the_plain_source_keeps_the_beginning_of_a_value_that_is_too_large():
    consumer = Consumer()

    async def getmany(topic_partition, **_):
        text = b"x" * (MAX_EVENT_BYTES + 1)
        large = SimpleNamespace(offset=3, timestamp=5, key=b"k", value=text, headers=())
        return {topic_partition: [large]}

    consumer.getmany = getmany
    found = asyncio.run(PlainSource(consumer, {}, "t").read(0, 100))
    (value,) = found[PARTITION][0].values
    assert (value.size, len(value.head)) == (MAX_EVENT_BYTES + 1, MAX_DEAD_LETTER_BYTES)
    assert found[PARTITION][0].size == MAX_EVENT_BYTES + 2


@pytest.mark.parametrize("whole", [False, True])
def test_values_of_the_plain_source_know_their_records_where_that_is_asked(whole):
    found = asyncio.run(PlainSource(Consumer(), {}, "t", whole=whole).read(0, 10))
    value = found[PARTITION][0].values[0]
    assert value == b"v"
    assert getattr(value, "key", None) == (b"k" if whole else None)


@pytest.fixture
def warned(caplog):
    record_source._warn.cache_clear()
    caplog.set_level(logging.WARNING)
    yield caplog
    record_source._warn.cache_clear()


def test_an_aiokafka_that_lacks_a_private_part_is_read_the_plain_way_and_says_so_once(warned):
    async def scenario():
        return [record_source.open_source(Consumer(), {}, "t") for _ in range(2)]

    assert all(isinstance(source, PlainSource) for source in asyncio.run(scenario()))
    (line,) = warned.messages
    assert "(_client.cluster._bootstrap_brokers)" in line
    assert "several times slower" in line


@pytest.mark.parametrize("module", ["aiokafka.consumer.fetcher", "aiokafka.protocol.fetch"])
def test_an_aiokafka_without_a_private_module_is_read_the_plain_way(module, warned, monkeypatch):
    """In a process of its own it would be the first import; here it is made to fail."""
    for name in [name for name in sys.modules if name.startswith("streameval.kafka.")]:
        if name.endswith(("aiokafka_internals", "fast_source")):
            monkeypatch.delitem(sys.modules, name)
            monkeypatch.delattr(sys.modules["streameval.kafka"], name.rpartition(".")[2])
    monkeypatch.setitem(sys.modules, module, None)
    assert isinstance(record_source.open_source(Consumer(), {}, "t"), PlainSource)
    assert module in warned.messages[0]


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (aiokafka_internals.PartitionRecords, "_contains_abort_marker"),
        (aiokafka_internals.PartitionRecords, "__init__"),
    ],
)
def test_a_part_that_another_version_may_lack_is_found_lacking(owner, name, monkeypatch):
    async def scenario():
        consumer = started()
        assert aiokafka_internals.lacking(consumer) == ""
        if name == "__init__":
            monkeypatch.setattr(owner, name, object.__init__)
        else:
            monkeypatch.delattr(owner, name)
        assert aiokafka_internals.lacking(consumer)

    asyncio.run(scenario())


def started():
    """A consumer as far as its attributes go, without a server."""
    consumer = AIOKafkaConsumer()
    consumer._fetcher = SimpleNamespace(
        _client=None,
        _fetch_max_bytes=1,
        _fetch_task=None,
        _get_actions_per_node=None,
        _max_partition_fetch_bytes=1,
        _records={},
    )
    consumer._closed = True
    return consumer


def test_only_one_file_touches_private_parts_of_aiokafka():
    """Ruff's SLF001 holds this for attributes of all names, where no comment says otherwise."""
    found = [
        f"{path.name}: {line.strip()}"
        for path in Path(streameval.__file__).parent.rglob("*.py")
        for line in path.read_text().splitlines()
        if PRIVATE.search(line) and path.name != "aiokafka_internals.py"
    ]
    assert found == []
    assert FastSource.__module__ == "streameval.kafka.fast_source"
