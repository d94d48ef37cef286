"""Batches of Kafka become records within a budget of bytes, which all partitions share.

8 KB of Zstandard may become 256 MiB, a batch of 1 MB may hold a million records, and a record a
million headers. So what a batch takes is bounded before it is taken:

1. A batch is unpacked into the *scratch* space, which is short. If it holds few bytes and few
   records, aiokafka makes all of its records at once. Nearly all batches end here.
2. One of more records, or of so many bytes that a value may be too large, is *split* by the lengths
   of its records into parts that are as small as in step 1, and handed out part by part. Meanwhile
   its bytes are *held*, and counted.
3. One that does not fit the scratch space is *large*. There is room for one of these, the *arena*,
   and partitions take turns. It is announced before it is unpacked, so that a worker that dies of
   it has left a note.
4. One that does not fit the arena cannot be read.

Shares of the budget, in 32nds: 14 the arena, 1 the scratch space, 2 what is held, 2 what is fetched
(three times: in the socket's buffer, in the answer, in what waits to be unpacked), 4 what waits to
be applied (see `worker_loop`). The rest is for the objects of one part: 1 MiB of
headers becomes 32 MB.
"""

from __future__ import annotations

import mmap
import struct
import sys
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final, NamedTuple

import cramjam
from aiokafka.errors import CorruptRecordException, UnsupportedCodecError
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.legacy_records import LegacyRecordBatch

from streameval.base.limits import (
    MAX_DEAD_LETTER_BYTES,
    MAX_EVENT_BYTES,
    MIN_READ_MEMORY,
    READ_MEMORY,
)
from streameval.core.events import TooLarge

# Bytes of the shortest record: seven numbers of a byte, its length among them.
_SHORTEST: Final = 7

UNIT: Final = 1_000
"""Records handed out together, at most."""

# Records of which aiokafka makes objects at once: some units, of 250 bytes each.
AT_ONCE: Final = 8 * UNIT
# Units skipped in a batch begun before, until others get their turn: some 30 ms.
SKIPPED_UNITS: Final = 32

# Where the fields of a batch are (format 2); its records begin at `RECORDS`.
_LENGTH, _MAGIC, _CRC, _ATTRIBUTES, _FIRST_TIME, _LAST_TIME = 8, 16, 17, 22, 27, 35
_COUNT, RECORDS = 57, 61
FORMAT: Final = 2  # of batches, since Kafka 0.11
_CODEC, _APPEND_TIME = 0x07, 0x08
_INT32, _UINT32, _INT64 = struct.Struct(">i"), struct.Struct(">I"), struct.Struct(">q")
LONGEST_NUMBER: Final = 63  # bits
_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = 16

assert MIN_READ_MEMORY // 32 >= MAX_EVENT_BYTES, "the scratch space holds every event"


Parts = Generator[list[Any], None, None]
"""The records of a batch, part by part; an empty part: it is another's turn for now."""


class BatchLocation(NamedTuple):
    """A batch in the log: its partition, and the offsets from its first to its last record."""

    partition: Any  # aiokafka's TopicPartition
    first: int
    last: int


class Row(NamedTuple):
    """A record too large for aiokafka's own; the fields that we need have its names."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


class _Split(NamedTuple):
    """A batch to split: its records, from the offset `first` on, by `unit` at most."""

    location: BatchLocation
    raw: memoryview
    codec: int
    records: int
    first: int
    unit: int

    @property
    def identity(self) -> tuple[int, int]:
        """What tells it from another batch at the same location: its first offset and checksum."""
        return self.location.first, _UINT32.unpack_from(self.raw, _CRC)[0]


class Memory:
    """The budget of one consumer: `total` bytes.

    `fetch` is its share for one fetch, of all partitions. `asked` is the large batch that waits to
    be allowed: `allow` it or `refuse` it.
    """

    def __init__(self, total: int = READ_MEMORY) -> None:
        self.total = total
        self.largest = total // 32 * 14
        self.fetch = total // 16
        self._free = total // 16
        # A batch as it would stand in a fetch if it had come unpacked: header, then records.
        self._scratch = memoryview(_space(RECORDS + total // 32))
        self._scratch_records = self._scratch[RECORDS:]
        self._scratch_uses = 0
        self._arena = _space(self.largest)
        self._turns: list[Any] = []  # partitions that wait for the arena; the first one has it
        self._allowed: BatchLocation | None = None
        self._refused: tuple[BatchLocation, str] | None = None
        self.asked: BatchLocation | None = None
        self.size = 0  # of what `records` answered last, or handed out last (bytes, unpacked)
        # What is known not to fit, by partition: the batch (its first offset, checksum) and why.
        self._hopeless: dict[Any, tuple[tuple[int, int], str]] = {}
        # How far a batch was handed out that was split, by partition: the batch, the offset to go
        # on with, bytes and records before it. After a pause it is unpacked anew.
        self._reached: dict[Any, tuple[tuple[int, int], int, int, int]] = {}

    @property
    def in_use(self) -> int:
        """Bytes that batches take while they are handed out."""
        held = self.total // 16 - self._free
        return held + (0 if self._allowed is None else self.largest)

    def records(
        self, partition: Any, raw: memoryview, batch: Any, first: int, unit: int
    ) -> list[Any] | Parts:
        """The records of a batch, `raw` to the last byte: all of them, or part by part.

        A part may be empty: then it is another's turn. No part has more than `unit` records or,
        but for one that has a single record, `MAX_EVENT_BYTES`; records before the offset `first`
        may be missing. Raises what codecs raise, `ValueError`, `CorruptRecordException`.
        """
        if raw[_MAGIC] < FORMAT:
            rows = _legacy(raw)
            self.size = sum(len(row.value or b"") for row in rows)
            return rows
        codec = raw[_ATTRIBUTES] & _CODEC
        size = self._unpack(codec, raw) if codec else len(raw) - RECORDS
        # (Fewer bytes cannot hold too many records, nor too large ones.)
        if size is None or size > min(AT_ONCE * _SHORTEST, MAX_EVENT_BYTES):
            count = _INT32.unpack_from(raw, _COUNT)[0]
            if size is None or size > MAX_EVENT_BYTES or count > AT_ONCE:
                location = BatchLocation(partition, batch.base_offset, batch.next_offset - 1)
                return self._split(_Split(location, raw, codec, count, first, unit), size)
        self.size = size
        if not codec:
            return list(batch)
        scratch = self._scratch
        scratch[:RECORDS] = raw[:RECORDS]
        scratch[_ATTRIBUTES] -= codec
        return list(DefaultRecordBatch(scratch[: RECORDS + size]))

    def _unpack(self, codec: int, raw: memoryview) -> int | None:
        """Unpack into the scratch space; the size, None where it does not fit or is damaged."""
        self._scratch_uses += 1
        try:
            return _INTO[codec](raw[RECORDS:], self._scratch_records)
        except cramjam.DecompressionError:
            return None
        except KeyError:
            raise UnsupportedCodecError(f"unknown compression {codec}") from None

    def _split(self, split: _Split, size: int | None) -> Parts:
        """Hand out a batch in parts, from where its bytes can stay meanwhile."""
        if not split.codec:
            return self._units(split, split.raw, RECORDS, len(split.raw))
        if size is None:
            return self._large(split)
        return self._held(split, size, self._scratch_uses)

    def _held(self, split: _Split, size: int, scratch_use: int) -> Parts:
        """Hand out a batch of `size` bytes that was unpacked into the scratch space."""
        while self._free < size:
            yield []
        self._free -= size
        try:
            if scratch_use != self._scratch_uses:  # another's by now
                self._unpack(split.codec, split.raw)
            yield from self._units(split, bytes(self._scratch_records[:size]), 0, size)
        finally:
            self._free += size

    def _large(self, split: _Split) -> Parts:
        """Hand out a batch that does not fit the scratch space, when it is its turn."""
        location, partition = split.location, split.location.partition
        known = self._hopeless.get(partition)
        if known is not None and known[0] == split.identity:
            raise ValueError(known[1])
        self._turns.append(partition)
        try:
            while self._allowed != location:
                if self._refused is not None and self._refused[0] == location:
                    raise ValueError(self._refused[1])
                if self._turns[0] == partition:
                    self.asked = location
                yield []
            try:
                size = _INTO[split.codec](split.raw[RECORDS:], self._arena)
            except cramjam.DecompressionError as error:
                limit = self.largest >> 20
                why = f"damaged, or larger than {limit} MiB unpacked: {error}"
                self._hopeless[partition] = split.identity, why
                raise ValueError(why) from error
            yield from self._units(split, self._arena, 0, size)
        finally:
            self._turns.remove(partition)
            if self.asked == location:
                self.asked = None
            if self._refused is not None and self._refused[0] == location:
                self._refused = None
            if self._allowed == location:
                self._allowed = None
                self._arena.madvise(mmap.MADV_DONTNEED)

    def _units(self, split: _Split, source: Any, begin: int, end: int) -> Parts:
        """The records of a batch, which stand unpacked in `source[begin:end]`."""
        header = bytearray(split.raw[:RECORDS])
        header[_ATTRIBUTES] &= ~_CODEC
        partition, count, first, unit = (
            split.location.partition,
            split.records,
            split.first,
            split.unit,
        )
        at, seen, skipped = begin, 0, 0
        before = self._reached.get(partition)
        if before is not None and before[0] == split.identity and before[1] <= first:
            at, seen = begin + before[2], before[3]
        while seen < count:
            start, rows = at, []
            bound = min(end, start + MAX_EVENT_BYTES)
            for taken in range(min(unit, count - seen)):  # noqa: B007 - a part may end earlier
                # Lengths of one and two bytes here: a call takes longer than all of the rest.
                length, body = source[at], at + 1
                if length > 0x7F:
                    length, body = length & 0x7F | source[body] << 7, body + 1
                if length > 0x3FFF or length & 1:
                    length, body = _varint(source, at)
                else:
                    length >>= 1
                after = body + length
                if after > bound or length < 0:
                    break
                at = after
            else:
                taken = min(unit, count - seen)
            if not taken:
                if length < 0 or after > end:
                    raise CorruptRecordException(f"a record of {length} bytes in {end - begin}")
                rows, taken, at = [_large_record(source, body, split.raw)], 1, after
            if not rows:
                _INT32.pack_into(header, _COUNT, taken)
                rows = list(DefaultRecordBatch(bytes(header) + bytes(source[start:at])))
            seen += taken
            self.size = min(at - start, MAX_EVENT_BYTES)
            if rows[-1].offset >= first:
                yield rows
            else:
                skipped += 1
                if skipped % SKIPPED_UNITS == 0:
                    yield []
            self._reached[partition] = (split.identity, rows[-1].offset + 1, at - begin, seen)
        self._reached.pop(partition, None)
        if at != end:
            raise CorruptRecordException(f"{end - at} bytes after all records")

    def allow(self, location: BatchLocation) -> None:
        """Let `location` be unpacked into the arena, if it is still its turn."""
        if self.asked == location:
            self.asked, self._allowed = None, location

    def refuse(self, location: BatchLocation, why: str) -> None:
        """Leave `location` alone this time; whoever reads it hears `why`."""
        if self.asked == location:
            self.asked, self._refused = None, (location, why)


def batches(data: bytes) -> Iterator[memoryview]:
    """The whole batches in an answer to a fetch; the last one may be cut off, and is left out."""
    view, at = memoryview(data), 0
    size, length_at = len(data), _INT32.unpack_from
    while at + _MAGIC < size:
        end = at + _LENGTH + 4 + length_at(data, at + _LENGTH)[0]
        if end > size:
            return
        if end < at + RECORDS and (end <= at + _MAGIC or data[at + _MAGIC] >= FORMAT):
            raise CorruptRecordException(f"a batch of {end - at} bytes")
        yield view[at:end]
        at = end


def opened(raw: memoryview) -> Any:
    """Open the batch of these bytes; nothing is unpacked."""
    magic = raw[_MAGIC]
    return DefaultRecordBatch(raw) if magic >= FORMAT else LegacyRecordBatch(raw, magic)


def _legacy(raw: memoryview) -> list[Any]:
    """The records of a batch in Kafka's first formats, which no broker writes any more."""
    rows = list(LegacyRecordBatch(raw, raw[_MAGIC]))
    for at, row in enumerate(rows):
        if row.value is not None and len(row.value) > MAX_EVENT_BYTES:
            large = TooLarge.of(len(row.value), row.value[:MAX_DEAD_LETTER_BYTES])
            rows[at] = Row(row.offset, row.timestamp, row.key, large)
    return rows


def bound_legacy_codecs(size: int) -> None:
    """Have aiokafka unpack no batch of Kafka's first formats beyond `size` bytes.

    They are found by name in the module of these batches.
    """
    codecs = sys.modules[LegacyRecordBatch.__module__]
    for number, name in ((1, "gzip"), (2, "snappy"), (3, "lz4")):
        assert hasattr(codecs, f"{name}_decode"), "see `columns`"
        setattr(codecs, f"{name}_decode", _bounded(_INTO[number], size))


def _bounded(into: Callable[[Any, Any], int], size: int) -> Callable[[Any], bytes]:
    """A decoder of at most `size` bytes; raises `ValueError` beyond."""

    def decode(packed: Any) -> bytes:
        space = _space(size)
        try:
            return space[: into(packed, space)]
        except cramjam.DecompressionError as error:
            limit = size >> 20
            raise ValueError(f"damaged, or larger than {limit} MiB unpacked: {error}") from error

    return decode


def _space(size: int) -> mmap.mmap:
    """Memory of which only the pages that are written to take any."""
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _snappy_into(packed: Any, space: Any) -> int:
    """Unpack Snappy, plain or in the blocks that clients in Java write."""
    packed = memoryview(packed)
    if packed[: len(_XERIAL)] != _XERIAL:
        return cramjam.snappy.decompress_raw_into(packed, space)
    space, size, at = memoryview(space), 0, _XERIAL_HEADER
    while at < len(packed):
        end = at + 4 + _INT32.unpack_from(packed, at)[0]
        if not at + 4 <= end <= len(packed):
            raise CorruptRecordException(f"a block of Snappy ends at {end} of {len(packed)}")
        size += cramjam.snappy.decompress_raw_into(packed[at + 4 : end], space[size:])
        at = end
    return size


# What unpacks into a buffer, by Kafka's number, and answers how many bytes it took there.
_INTO: Final[dict[int, Callable[[Any, Any], int]]] = {
    1: cramjam.gzip.decompress_into,
    2: _snappy_into,
    3: cramjam.lz4.decompress_into,
    4: cramjam.zstd.decompress_into,
}


def _varint(source: Any, at: int) -> tuple[int, int]:
    """A signed number of Kafka at `at`, and where it ends."""
    number = shift = 0
    while True:
        byte = source[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return (number >> 1) ^ -(number & 1), at
        shift += 7
        if shift > LONGEST_NUMBER:
            raise CorruptRecordException("a number without an end")


def _large_record(source: Any, at: int, raw: memoryview) -> Row:
    """One record of a batch `raw`: its headers are not looked at, its key is kept in part."""
    at += 1  # attributes, of which there are none
    behind, at = _varint(source, at)
    delta, at = _varint(source, at)
    if raw[_ATTRIBUTES] & _APPEND_TIME:
        timestamp = _INT64.unpack_from(raw, _LAST_TIME)[0]
    else:
        timestamp = _INT64.unpack_from(raw, _FIRST_TIME)[0] + behind
    key: bytes | None = None
    value: bytes | None = None
    length, at = _varint(source, at)
    if length >= 0:
        key = bytes(source[at : at + min(length, MAX_DEAD_LETTER_BYTES)])
        at += length
    length, at = _varint(source, at)
    if length > MAX_EVENT_BYTES:
        value = TooLarge.of(length, bytes(source[at : at + MAX_DEAD_LETTER_BYTES]))
    elif length >= 0:
        value = bytes(source[at : at + length])
    return Row(_INT64.unpack_from(raw, 0)[0] + delta, timestamp, key, value)
