"""Records of Kafka by column: what aiokafka has fetched, without an object for each record.

aiokafka makes a `ConsumerRecord` of eleven fields for each record and hands them out one by one:
1.0 of the 1.6 us that a record costs on its way to us. We need four fields, a slice at a time.

There is no public way to fetched batches, so this file stands on four private things of aiokafka
0.14 (its version is pinned, the tests of the reader go through all of this): the fetcher keeps what
came of a partition in `_records`, as a `FetchResult`, whose `_partition_records` is an iterator
with `next_fetch_offset`; and the module of a batch's class calls its codecs by name. `read_columns`
has the iterators of one consumer replaced as they are stored; positions, seeks, pauses and
rebalances stay aiokafka's.

A batch is unpacked whole, and 8 KB of Zstandard may become 256 MiB: `_bound_codecs` sets a limit. A
batch beyond it, or damaged, is set aside in `Fetched.unreadable`; what comes before it is handed
out, so that it alone need be skipped.
"""

from __future__ import annotations

import functools
import mmap
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import cramjam
from aiokafka import AIOKafkaConsumer
from aiokafka.consumer.fetcher import READ_COMMITTED, FetchResult, PartitionRecords
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch

UNIT: Final = 1_000
"""Records handed out together, at most."""

LARGEST_BATCH: Final = 128 << 20
"""Bytes of a batch, unpacked: a hundred times what brokers take packed (1 MiB), and what fits."""

# Bytes of unpacked batches whose memory is kept for the next one.
KEPT_SPACE: Final = 8 << 20


class Columns(NamedTuple):
    """Consecutive records of one partition, at least one: parallel lists."""

    offsets: list[int]
    timestamps: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]


def read_columns(consumer: AIOKafkaConsumer) -> Fetched:
    """Have `getmany` of a consumer that was just started hand out `Columns` for records.

    Its `max_records` then counts `Columns`; the answer's `unit` is how many records each may hold.
    """
    fetcher = consumer._fetcher  # noqa: SLF001 - see above
    assert not fetcher._records, "nothing is fetched before there is a subscription"  # noqa: SLF001 - see above
    fetched = Fetched()
    fetcher._records = fetched  # noqa: SLF001 - see above
    _bound_codecs()
    return fetched


class Fetched(OrderedDict[Any, Any]):
    """What a consumer has fetched and not handed out, by partition.

    `unreadable` says, by partition, which batch could not be unpacked and why; whoever reads it
    clears it.
    """

    unit = UNIT

    def __init__(self) -> None:
        super().__init__()
        self.unreadable: dict[Any, str] = {}

    def __setitem__(self, place: Any, result: Any) -> None:
        """Store what came of a partition; errors are stored too, and stay as they are."""
        if isinstance(result, FetchResult):
            result._partition_records = _ColumnRecords(self, result._partition_records)  # noqa: SLF001 - see above
        super().__setitem__(place, result)


class _ColumnRecords(PartitionRecords):  # type: ignore[misc]  # it has no types
    """The records of one fetch of a partition, as `Columns`."""

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
        self._fetched = fetched

    def _unpack_records(self) -> Iterator[Columns]:
        """Small batches together, large ones in parts; ends before one that cannot be read.

        `next_fetch_offset` follows what is handed out; beyond the last batch it is the batch's
        own, which also counts records that are gone (compaction, aborted transactions).
        """
        first = beyond = self.next_fetch_offset
        rows: list[Any] = []
        while self._records.has_next():
            batch = self._records.next_batch()
            try:
                if self._readable(batch):
                    unpacked = list(batch)
                    if unpacked and unpacked[0].offset < first:
                        unpacked = [row for row in unpacked if row.offset >= first]
                    rows += unpacked
            except Exception as error:  # noqa: BLE001 - any codec's error too
                self._fetched.unreadable[self._tp] = (
                    # (Batches of Kafka's first formats do not say where they begin.)
                    f"offsets {getattr(batch, 'base_offset', beyond)} to {batch.next_offset - 1}"
                    f" ({str(error) or repr(error)})"
                )
                break
            beyond = batch.next_offset
            while len(rows) > self._fetched.unit:
                unit = self._fetched.unit
                handed_out, rows = rows[:unit], rows[unit:]
                self.next_fetch_offset = rows[0].offset
                yield _columns(handed_out)
        self.next_fetch_offset = beyond
        if rows:
            yield _columns(rows)

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


def _columns(rows: list[Any]) -> Columns:
    return Columns(
        [row.offset for row in rows],
        [row.timestamp for row in rows],
        [row.key for row in rows],
        [row.value for row in rows],
    )


@functools.cache
def _bound_codecs() -> None:
    """Have aiokafka unpack no batch beyond `LARGEST_BATCH`.

    Snappy needs no limit: it packs no better than 1 to 21.
    """
    # Pages that nobody writes to take no memory.
    space = mmap.mmap(-1, LARGEST_BATCH, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    codecs = sys.modules[DefaultRecordBatch.__module__]
    for name in ("gzip", "lz4", "zstd"):
        assert hasattr(codecs, f"{name}_decode"), "see the top of this file"
        setattr(codecs, f"{name}_decode", _bounded(getattr(cramjam, name).decompress_into, space))


def _bounded(into: Callable[[Any, Any], int], space: mmap.mmap) -> Callable[[Any], bytes]:
    """A decoder by way of `space`; raises `ValueError` where that is too small."""

    def decode(packed: Any) -> bytes:
        size = len(space)
        try:
            size = into(packed, space)
            return space[:size]
        except cramjam.DecompressionError as error:
            limit = len(space) >> 20
            raise ValueError(f"damaged, or larger than {limit} MiB unpacked: {error}") from error
        finally:
            if size > KEPT_SPACE:
                space.madvise(mmap.MADV_DONTNEED)

    return decode
