"""Fetched records as parallel lists, without an object for each record.

`aiokafka_internals` says how this replaces the iterators of aiokafka, `unpacking` how batches
become records within a budget of memory. A batch that cannot be read is set aside in
`Fetched.unreadable`. Records before it are handed out, so that only this batch need be skipped.

Offsets without a record are told where the log has lost it. Brokers hand out the markers of
transactions and what was aborted, and compaction keeps the bounds of batches that it thins out. A
batch that is gone as a whole may have been a marker where a log has transactions: it is not told.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final

from aiokafka import AIOKafkaConsumer

from streameval.base.limits import MAX_EVENT_BYTES, READ_MEMORY
from streameval.kafka.aiokafka_internals import (
    FetchedPartition,
    FetchResult,
    FetchTap,
    records_of,
    set_records,
)
from streameval.kafka.batch_format import batches, is_transactional, open_batch
from streameval.kafka.records import UNIT, RecordLists, value_of
from streameval.kafka.unpacking import Memory, Parts, bound_legacy_codecs

# Bytes of one partition in a fetch, at most and at least. With more, others wait for long. With
# less, a batch rarely fits, and a broker then sends it in a fetch where it comes first.
PARTITION_BYTES: Final = (4 << 20, 64 << 10)


def read_record_lists(
    consumer: AIOKafkaConsumer, memory: int = READ_MEMORY, *, whole: bool = False
) -> Fetched:
    """Have `getmany` of a consumer that was just started hand out `RecordLists` for records.

    Its `max_records` then counts `RecordLists`, and `unit` bounds the records in each. Everything
    that was read and is not handed out takes at most `memory` bytes. `whole` is that of `value_of`.
    """
    tap = FetchTap(consumer)
    fetched = Fetched(Memory(memory), tap, whole=whole)
    tap.install(fetched, fetched.restrained)
    fetched.share(1)
    bound_legacy_codecs(memory // 32)
    return fetched


class Fetched(OrderedDict[Any, Any]):
    """The fetches of a consumer that are not all handed out, by partition.

    `unreadable` says, by partition, which batch could not be unpacked and why. Its reader clears
    it.
    """

    unit = UNIT

    def __init__(self, memory: Memory, tap: FetchTap | None = None, *, whole: bool = False) -> None:
        super().__init__()
        self.whole = whole
        self.memory = memory
        self.unreadable: dict[Any, str] = {}
        self.transactional: set[Any] = set()  # partitions where transactions were seen
        self._tap = tap
        self._open: dict[Any, ListedRecords] = {}

    def share(self, partitions: int) -> None:
        """Share the memory for fetches among so many partitions."""
        assert self._tap is not None, "a consumer fetches"
        most, least = PARTITION_BYTES
        fair = self.memory.fetch // max(1, partitions)
        self._tap.set_fetch_bytes(self.memory.fetch, min(most, max(least, fair)))

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
        """Drop fetches of paused partitions: others wait for the memory, and these come again."""
        for topic_partition in list(self._open):
            if topic_partition in assignment.tps and assignment.state_value(topic_partition).paused:
                del self[topic_partition]

    def __setitem__(self, topic_partition: Any, result: Any) -> None:
        """Store the result of a partition; the fetcher stores errors too, and they stay."""
        self._close(topic_partition)
        if isinstance(result, FetchResult):
            self._open[topic_partition] = records = ListedRecords(self, records_of(result))
            set_records(result, records)
        super().__setitem__(topic_partition, result)

    def __delitem__(self, topic_partition: Any) -> None:
        """Forget the result of a partition, unless it only waits for memory."""
        records = self._open.get(topic_partition)
        if records is not None and records.interrupted:
            records.interrupted = False
            set_records(self[topic_partition], records)
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


class ListedRecords(FetchedPartition):
    """The records of one fetch of a partition, as `RecordLists`.

    With `interrupted`, iteration ended because it is another partition's turn. It goes on later.
    """

    def __init__(self, fetched: Fetched, plain: Any) -> None:
        super().__init__(plain)
        self._fetched = fetched
        self.interrupted = False

    def __next__(self) -> RecordLists:
        """Hand out the next lists; end also where nothing can be handed out for now."""
        lists: RecordLists | None = super().__next__()
        if lists is None:
            self.interrupted = True
            raise StopIteration
        return lists

    def unpack(self) -> Generator[RecordLists | None, None, None]:
        """Yield small batches together and large ones in parts; end before an unreadable one.

        None stands for "nothing for now". Beyond the last batch `next_fetch_offset` is the batch's
        own, which also counts records that are gone (compaction, aborted transactions).
        """
        memory, unit, topic_partition = (
            self._fetched.memory,
            self._fetched.unit,
            self.topic_partition,
        )
        first, transactional = self.next_fetch_offset, self._fetched.transactional
        gathered = _Gathered(first, unit, whole=self._fetched.whole)
        batch: Any = None
        try:
            for raw in batches(self.data):
                batch = open_batch(raw)
                holds_records = self.holds_records(batch)
                if is_transactional(raw):
                    transactional.add(topic_partition)
                if topic_partition in transactional:
                    gathered.go_on(getattr(batch, "base_offset", 0))
                found = holds_records and memory.records(topic_partition, raw, batch, first, unit)
                if isinstance(found, list):
                    if gathered.add(found, memory.size, batch.next_offset):
                        for lists, beyond in gathered.due():
                            self.next_fetch_offset = beyond
                            yield lists
                else:
                    if found:
                        yield from self._parts(found, gathered)
                        gathered.wanted([], batch.next_offset)
                    gathered.go_on(batch.next_offset)
                batch = None
        except Exception as error:  # noqa: BLE001 - any codec's error too
            why = str(error) or repr(error)
            named = _name_offsets(batch, gathered.beyond)
            self._fetched.unreadable[topic_partition] = f"{named} ({why})"
        self.next_fetch_offset = gathered.beyond
        if gathered.rows or gathered.missing:
            yield gathered.take()

    def _parts(
        self, parts: Parts, gathered: _Gathered
    ) -> Generator[RecordLists | None, None, None]:
        """Yield the parts of a large batch, after the small batches before it."""
        if gathered.rows:
            self.next_fetch_offset = gathered.beyond
            yield gathered.take()
        with contextlib.closing(parts):
            for part in parts:
                rows = gathered.wanted(part, part[-1].offset + 1) if part else []
                if rows:
                    gathered.rows, gathered.size = rows, self._fetched.memory.size
                    self.next_fetch_offset = gathered.beyond
                yield gathered.take() if rows else None


class _Gathered:
    """Records of small batches until they fill a unit; `beyond` is the offset after them.

    `missing` are the runs of offsets among them that have no record.
    """

    __slots__ = ("_first", "_unit", "_whole", "beyond", "missing", "rows", "size")

    def __init__(self, first: int, unit: int, *, whole: bool) -> None:
        self.rows: list[Any] = []
        self.missing: list[tuple[int, int]] = []
        self.size = 0
        self.beyond = self._first = first
        self._unit = unit
        self._whole = whole

    def go_on(self, offset: int) -> None:
        """Go on at `offset`; nothing is missing before it."""
        self.beyond = max(self.beyond, offset)

    def wanted(self, rows: list[Any], beyond: int) -> list[Any]:
        """Return the records from the offset on that was asked for; note what they lack."""
        if rows and rows[0].offset < self._first:
            rows = [row for row in rows if row.offset >= self._first]
        if len(rows) < beyond - self.beyond:
            at = self.beyond
            for offset in [*(row.offset for row in rows), beyond]:
                if at < offset:
                    self.missing.append((at, offset))
                at = offset + 1
        self.go_on(beyond)
        return rows

    def add(self, rows: list[Any], size: int, beyond: int) -> bool:
        """Add a batch of `size` bytes that ends before the offset `beyond`; whether some is due."""
        self.rows += self.wanted(rows, beyond)
        self.size += size
        return len(self.rows) > self._unit or self.size > MAX_EVENT_BYTES

    def due(self) -> Iterator[tuple[RecordLists, int]]:
        """Yield full units, and all of it where it is large, each with the offset to go on at."""
        unit = self._unit
        while len(self.rows) > unit:
            later, self.rows = self.rows[unit:], self.rows[:unit]
            size = self.size * len(later) // (unit + len(later))
            self.size -= size
            end = later[0].offset
            at = bisect_left(self.missing, (end,))
            missing, self.missing = self.missing[at:], self.missing[:at]
            yield self.take(), end
            self.rows, self.size, self.missing = later, size, missing
        if self.size > MAX_EVENT_BYTES and self.rows:
            yield self.take(), self.beyond

    def take(self) -> RecordLists:
        """Return everything gathered, and begin anew."""
        rows, size, missing, whole = self.rows, self.size, self.missing, self._whole
        self.rows, self.size, self.missing = [], 0, []
        return RecordLists(
            [row.offset for row in rows],
            [row.timestamp for row in rows],
            [row.key for row in rows],
            [value_of(row, whole=whole) if row.headers or whole else row.value for row in rows],
            size,
            missing,
        )


def _name_offsets(batch: Any, beyond: int) -> str:
    """Name the offsets of an unreadable batch, which comes after `beyond`."""
    if batch is None:
        return f"offset {beyond}"
    # (Batches of Kafka's first formats do not say where they begin.)
    return f"offsets {getattr(batch, 'base_offset', beyond)} to {batch.next_offset - 1}"
