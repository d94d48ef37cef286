"""Records of Kafka by column: what aiokafka has fetched, without an object for each record.

aiokafka makes a `ConsumerRecord` of eleven fields for each record and hands them out one by one:
1.0 of the 1.6 us that a record costs on its way to us. We need four fields, a slice at a time.

There is no public way to fetched batches, so this file stands on private things of aiokafka 0.14
(its version is pinned, the tests of the reader go through all of this):

1. The fetcher keeps what came of a partition in `_records`, as a `FetchResult`, whose
   `_partition_records` is an iterator with `next_fetch_offset`. `read_record_lists` has the
   iterators of one consumer replaced as they are stored; positions, seeks, pauses and rebalances
   stay aiokafka's.
2. The fetcher finds the class of an answer's bytes by its name, `MemoryRecords`; ours keeps them.
3. `_fetch_max_bytes` and `_max_partition_fetch_bytes` are read before each fetch.
4. `_get_actions_per_node` says which fetches are to be sent; while enough is fetched, ours says
   none. What is handed out, or forgotten, wakes the fetcher.
5. A `FetchResult` that ends is deleted from `_records`. One that only waits for room puts itself
   back there (`Fetched.__delitem__`), so nothing is fetched twice.

How batches become records within a budget of memory stands in `unpacking`. A batch that cannot be
read is set aside in `Fetched.unreadable`; what comes before it is handed out, so that it alone need
be skipped.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Generator
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaConsumer
from aiokafka.consumer import fetcher as aiokafka_fetcher
from aiokafka.consumer.fetcher import READ_COMMITTED, FetchResult, PartitionRecords
from aiokafka.errors import CorruptRecordException
from aiokafka.record.memory_records import MemoryRecords

from streameval.base.limits import MAX_EVENT_BYTES, READ_MEMORY
from streameval.kafka.unpacking import UNIT, Memory, batches, bound_legacy_codecs, opened

# Bytes of one partition in a fetch, at most and at least: beyond, others wait for long; below, a
# batch rarely fits (a broker then sends it in a fetch where it comes first).
PARTITION_BYTES: Final = (4 << 20, 64 << 10)


class RecordLists(NamedTuple):
    """Consecutive records of one partition, at least one: parallel lists.

    `size` is how many bytes they had in the log, unpacked.
    """

    offsets: list[int]
    timestamps: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    size: int


def read_record_lists(consumer: AIOKafkaConsumer, memory: int = READ_MEMORY) -> Fetched:
    """Have `getmany` of a consumer that was just started hand out `RecordLists` for records.

    Its `max_records` then counts `RecordLists`; `unit` is how many records each may hold.
    All that it has read and not handed out takes at most `memory` bytes.
    """
    fetcher = consumer._fetcher  # noqa: SLF001 - see above
    assert not fetcher._records, "nothing is fetched before there is a subscription"  # noqa: SLF001 - see above
    fetched = Fetched(Memory(memory), fetcher)
    fetcher._records = fetched  # noqa: SLF001 - see above
    fetched.divide(1, 1)
    fetcher._get_actions_per_node = fetched.restrained(fetcher._get_actions_per_node)  # noqa: SLF001 - see above
    aiokafka_fetcher.MemoryRecords = _KeptRecords
    bound_legacy_codecs(memory // 32)
    return fetched


class Fetched(OrderedDict[Any, Any]):
    """What a consumer has fetched and not handed out, by partition.

    `unreadable` says, by partition, which batch could not be unpacked and why; whoever reads it
    clears it.
    """

    unit = UNIT

    def __init__(self, memory: Memory, fetcher: Any = None) -> None:
        super().__init__()
        self.memory = memory
        self.unreadable: dict[Any, str] = {}
        self._fetcher = fetcher
        self._open: dict[Any, _ListedRecords] = {}

    def divide(self, partitions: int, brokers: int) -> None:
        """Share what fetches may bring among so many partitions, and brokers asked at a time."""
        most, least = PARTITION_BYTES
        share = self.memory.fetch // max(1, partitions)
        self._fetcher._fetch_max_bytes = self.memory.fetch // max(1, brokers)  # noqa: SLF001 - see above
        self._fetcher._max_partition_fetch_bytes = min(most, max(least, share))  # noqa: SLF001 - see above

    @property
    def size(self) -> int:
        """Bytes that were fetched and are not all handed out."""
        return sum(len(records.data) for records in self._open.values())

    def restrained(self, actions: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], Any]:
        """Have the fetcher ask for no more while its share of the memory is taken.

        A broker sends at least one batch, whatever its size, and each partition may hold one.
        """

        def restrained(assignment: Any) -> tuple[Any, ...]:
            if self.size >= self.memory.fetch:
                self._forget_paused(assignment)
            requests, *others = actions(assignment)
            return [] if self.size >= self.memory.fetch else requests, *others

        return restrained

    def _forget_paused(self, assignment: Any) -> None:
        """Leave what is paused to be fetched again when it goes on: others wait for its room."""
        for topic_partition in list(self._open):
            if topic_partition in assignment.tps and assignment.state_value(topic_partition).paused:
                del self[topic_partition]

    def __setitem__(self, topic_partition: Any, result: Any) -> None:
        """Store what came of a partition; errors are stored too, and stay as they are."""
        self._close(topic_partition)
        if isinstance(result, FetchResult):
            records = _ListedRecords(self, result._partition_records)  # noqa: SLF001 - see above
            result._partition_records = self._open[topic_partition] = records  # noqa: SLF001 - see above
        super().__setitem__(topic_partition, result)

    def __delitem__(self, topic_partition: Any) -> None:
        """Forget what came of a partition, unless it only waits for room."""
        records = self._open.get(topic_partition)
        if records is not None and records.interrupted:
            records.interrupted = False
            self[topic_partition]._partition_records = records  # noqa: SLF001 - see above
            return
        self._close(topic_partition)
        super().__delitem__(topic_partition)

    def clear(self) -> None:
        """Forget everything, as after a rebalance."""
        for topic_partition in list(self._open):
            self._close(topic_partition)
        super().clear()

    def _close(self, topic_partition: Any) -> None:
        """Give back the memory of a partition's batch; an iterator in a cycle would keep it."""
        records = self._open.pop(topic_partition, None)
        if records is not None:
            records.close()


class _KeptRecords(MemoryRecords):  # type: ignore[misc]  # aiokafka calls it final
    """The bytes of a partition in an answer; `data` are all of them."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.data = data


class _ListedRecords(PartitionRecords):  # type: ignore[misc]  # it has no types
    """The records of one fetch of a partition, as `RecordLists`.

    `interrupted`: iteration ended because it is another's turn, and goes on later.
    """

    next_fetch_offset: int

    def __init__(self, fetched: Fetched, plain: PartitionRecords) -> None:
        super().__init__(
            plain._tp,  # noqa: SLF001 - see above
            plain._records,  # noqa: SLF001 - see above
            plain._aborted_transactions,  # noqa: SLF001 - see above
            plain.next_fetch_offset,
            None,
            None,
            plain._check_crcs,  # noqa: SLF001 - see above
            plain._isolation_level,  # noqa: SLF001 - see above
        )
        self._records_iterator: Generator[RecordLists | None, None, None] | None
        self._fetched = fetched
        self.interrupted = False

    def __next__(self) -> RecordLists:
        """Hand out the next ones; ends also where nothing can be handed out for now."""
        lists: RecordLists | None = super().__next__()
        if lists is None:
            self.interrupted = True
            raise StopIteration
        return lists

    @property
    def data(self) -> bytes:
        """What the broker sent."""
        data: bytes = self._records.data
        return data

    def close(self) -> None:
        """Give back what the batch being read takes."""
        if self._records_iterator is not None:
            self._records_iterator.close()
            self._records_iterator = None

    def _unpack_records(self) -> Generator[RecordLists | None, None, None]:
        """Small batches together, large ones in parts; ends before one that cannot be read.

        None where nothing can be handed out for now. `next_fetch_offset` follows what is handed
        out; beyond the last batch it is the batch's own, which also counts records that are gone
        (compaction, aborted transactions).
        """
        first = beyond = self.next_fetch_offset
        memory, unit = self._fetched.memory, self._fetched.unit
        rows: list[Any] = []
        size = 0
        batch: Any = None
        try:
            for raw in batches(self._records.data):
                batch = opened(raw)
                if not self._readable(batch):
                    beyond, batch = batch.next_offset, None
                    continue
                found = memory.records(self._tp, raw, batch, first, unit)
                if isinstance(found, list):
                    if found and found[0].offset < first:
                        found = [row for row in found if row.offset >= first]
                    rows += found
                    size += memory.size
                    beyond, batch = batch.next_offset, None
                    while len(rows) > unit:
                        handed_out, rows = rows[:unit], rows[unit:]
                        part = size * unit // (unit + len(rows))
                        size -= part
                        self.next_fetch_offset = rows[0].offset
                        yield _record_lists(handed_out, part)
                    if size <= MAX_EVENT_BYTES:
                        continue
                if rows:
                    self.next_fetch_offset = beyond
                    yield _record_lists(rows, size)
                    rows = []
                size = 0
                if isinstance(found, list):
                    continue
                with contextlib.closing(found) as bits:
                    for bit in bits:
                        kept = bit
                        if bit and bit[0].offset < first:
                            kept = [row for row in bit if row.offset >= first]
                        if kept:
                            self.next_fetch_offset = beyond = kept[-1].offset + 1
                        yield _record_lists(kept, memory.size) if kept else None
                beyond, batch = batch.next_offset, None
        except Exception as error:  # noqa: BLE001 - any codec's error too
            why = str(error) or repr(error)
            self._fetched.unreadable[self._tp] = f"{_named(batch, beyond)} ({why})"
        self.next_fetch_offset = beyond
        if rows:
            yield _record_lists(rows, size)

    def _readable(self, batch: Any) -> bool:
        """Whether the batch holds records for us: no marker, not of an aborted transaction.

        Raises `CorruptRecordException`.
        """
        if self._check_crcs and not batch.validate_crc():
            raise CorruptRecordException(f"Invalid CRC - {self._tp}")
        if self._isolation_level == READ_COMMITTED and batch.producer_id is not None:
            self._consume_aborted_up_to(batch.base_offset)
            if batch.is_control_batch and self._contains_abort_marker(batch):
                self._aborted_producers.discard(batch.producer_id)
            if batch.is_transactional and batch.producer_id in self._aborted_producers:
                return False
        return not batch.is_control_batch


def _record_lists(rows: list[Any], size: int) -> RecordLists:
    return RecordLists(
        [row.offset for row in rows],
        [row.timestamp for row in rows],
        [row.key for row in rows],
        [row.value for row in rows],
        size,
    )


def _named(batch: Any, beyond: int) -> str:
    """The offsets of a batch that cannot be read, which comes after `beyond`."""
    if batch is None:
        return f"offset {beyond}"
    # (Batches of Kafka's first formats do not say where they begin.)
    return f"offsets {getattr(batch, 'base_offset', beyond)} to {batch.next_offset - 1}"
