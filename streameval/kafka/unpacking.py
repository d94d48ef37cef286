"""The budget of bytes within which batches of Kafka become records; all partitions share it.

8 KB of Zstandard may become 256 MiB, a batch of 1 MB may hold a million records, and a record a
million headers. So a batch is bounded before it takes memory:

1. A batch is unpacked into the *scratch* space, which is short. If it holds few bytes and few
   records, aiokafka makes all of its records at once. Nearly all batches end here.
2. A batch of more records, or of so many bytes that a value may be too large, is *split* by the
   lengths of its records. The parts are as small as a batch in step 1 and are handed out one by
   one. Meanwhile the bytes of the batch are *held*, and counted.
3. A batch that does not fit the scratch space is *large*. There is room for one of these, the
   *arena*, and partitions take turns. A large batch is announced before it is unpacked, so that a
   worker that dies of it has left a note.
4. A batch that does not fit the arena cannot be read.

The budget is shared in 32nds: 14 for the arena, 1 for the scratch space, 2 for held batches, 2 for
fetches (three times: in the socket's buffer, in the response, and while they wait to be unpacked),
4 for records that wait to be applied (see `worker_loop`). The rest is for the objects of one part:
1 MiB of headers becomes 32 MB.
"""

from __future__ import annotations

import mmap
from collections.abc import Generator
from typing import Any, Final, NamedTuple

import cramjam
from aiokafka.errors import CorruptRecordException, UnsupportedCodecError

from streameval.base.limits import MAX_EVENT_BYTES, MIN_READ_MEMORY, READ_MEMORY
from streameval.kafka.aiokafka_internals import DefaultRecordBatch, set_legacy_codecs
from streameval.kafka.batch_format import (
    ATTRIBUTES,
    CODEC,
    COUNT,
    CRC,
    FORMAT,
    INT32,
    MAGIC,
    RECORDS,
    SHORTEST,
    UINT32,
    large_record,
    legacy_rows,
    whole_records,
)
from streameval.kafka.codecs import UNPACK_INTO, bounded_decoder, space, too_large
from streameval.kafka.records import UNIT, BatchLocation

# Records of which aiokafka makes objects at once: some units, of 250 bytes each.
AT_ONCE: Final = 8 * UNIT
# Units skipped in a batch begun before, until others get their turn: some 30 ms.
SKIPPED_UNITS: Final = 32

assert MIN_READ_MEMORY // 32 >= MAX_EVENT_BYTES, "the scratch space holds every event"


Parts = Generator[list[Any], None, None]
"""The records of a batch, part by part. An empty part says that it is another's turn for now."""


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
        """First offset and checksum, which tell it from another batch at the same location."""
        return self.location.first, UINT32.unpack_from(self.raw, CRC)[0]

    def part(self, source: Any, start: int, end: int, most: int) -> tuple[list[Any], int]:
        """Make the next records, `most` at most, of those in `source[start:end]`; also their end.

        They take `MAX_EVENT_BYTES` at most, but for a single record that is larger.
        """
        bound = min(end, start + MAX_EVENT_BYTES)
        at, count = whole_records(source, start, bound, min(self.unit, most))
        if not count:
            row, at = large_record(source, start, end, self.raw)
            return [row], at
        header = bytearray(self.raw[:RECORDS])
        header[ATTRIBUTES] &= ~CODEC
        INT32.pack_into(header, COUNT, count)
        return list(DefaultRecordBatch(bytes(header) + bytes(source[start:at]))), at


class Memory:
    """The budget of one consumer: `total` bytes.

    `fetch` is its share for one fetch of all partitions. `asked` is the large batch that waits
    until you `allow` or `refuse` it.
    """

    def __init__(self, total: int = READ_MEMORY) -> None:
        self.total = total
        self.largest = total // 32 * 14
        self.fetch = total // 16
        self._free = total // 16
        # A batch as it would stand in a fetch if it had come unpacked: header, then records.
        self._scratch = memoryview(space(RECORDS + total // 32))
        self._scratch_records = self._scratch[RECORDS:]
        self._scratch_uses = 0
        self._arena = space(self.largest)
        self._turns: list[Any] = []  # partitions that wait for the arena; the first one has it
        self._allowed: BatchLocation | None = None
        self._refused: tuple[BatchLocation, str] | None = None
        self.asked: BatchLocation | None = None
        self.size = 0  # bytes, unpacked, of the records returned or handed out last
        # Batches that are known not to fit, by partition: identity and reason.
        self._hopeless: dict[Any, tuple[tuple[int, int], str]] = {}
        # How far a split batch was handed out, by partition: its identity, the offset to go on
        # with, bytes and records before it. After a pause it is unpacked anew.
        self._reached: dict[Any, tuple[tuple[int, int], int, int, int]] = {}

    def records(
        self, partition: Any, raw: memoryview, batch: Any, first: int, unit: int
    ) -> list[Any] | Parts:
        """Return the records of a batch, `raw` to the last byte: all of them, or part by part.

        A part may be empty: then it is another's turn. No part has more than `unit` records or,
        but for one that has a single record, `MAX_EVENT_BYTES`. Records before the offset `first`
        may be missing. Raises the errors of codecs, `ValueError`, `CorruptRecordException`.
        """
        if raw[MAGIC] < FORMAT:
            rows = legacy_rows(raw)
            self.size = sum(len(row.value or b"") for row in rows)
            return rows
        codec = raw[ATTRIBUTES] & CODEC
        size = self._unpack(codec, raw) if codec else len(raw) - RECORDS
        # (Fewer bytes cannot hold too many records, nor too large ones.)
        if size is None or size > min(AT_ONCE * SHORTEST, MAX_EVENT_BYTES):
            count = INT32.unpack_from(raw, COUNT)[0]
            if size is None or size > MAX_EVENT_BYTES or count > AT_ONCE:
                location = BatchLocation(partition, batch.base_offset, batch.next_offset - 1)
                return self._split(_Split(location, raw, codec, count, first, unit), size)
        self.size = size
        if not codec:
            return list(batch)
        scratch = self._scratch
        scratch[:RECORDS] = raw[:RECORDS]
        scratch[ATTRIBUTES] -= codec
        return list(DefaultRecordBatch(scratch[: RECORDS + size]))

    def _unpack(self, codec: int, raw: memoryview) -> int | None:
        """Unpack into the scratch space; the size, None where it does not fit or is damaged."""
        self._scratch_uses += 1
        try:
            return UNPACK_INTO[codec](raw[RECORDS:], self._scratch_records)
        except cramjam.DecompressionError:
            return None
        except KeyError:
            raise UnsupportedCodecError(f"unknown compression {codec}") from None

    def _split(self, split: _Split, size: int | None) -> Parts:
        """Hand out a batch in parts, from a buffer where its bytes can stay meanwhile."""
        if not split.codec:
            return self._parts(split, split.raw, RECORDS, len(split.raw))
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
            yield from self._parts(split, bytes(self._scratch_records[:size]), 0, size)
        finally:
            self._free += size

    def _large(self, split: _Split) -> Parts:
        """Hand out a batch that does not fit the scratch space, when it is its turn."""
        location, partition = split.location, split.location.topic_partition
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
                size = UNPACK_INTO[split.codec](split.raw[RECORDS:], self._arena)
            except cramjam.DecompressionError as error:
                why = too_large(self.largest, error)
                self._hopeless[partition] = split.identity, str(why)
                raise why from error
            yield from self._parts(split, self._arena, 0, size)
        finally:
            self._end_turn(location)

    def _end_turn(self, location: BatchLocation) -> None:
        self._turns.remove(location.topic_partition)
        if self.asked == location:
            self.asked = None
        if self._refused is not None and self._refused[0] == location:
            self._refused = None
        if self._allowed == location:
            self._allowed = None
            self._arena.madvise(mmap.MADV_DONTNEED)

    def _parts(self, split: _Split, source: Any, begin: int, end: int) -> Parts:
        """Hand out the records of a batch, which stand unpacked in `source[begin:end]`."""
        partition, first = split.location.topic_partition, split.first
        at, seen, skipped = begin, 0, 0
        before = self._reached.get(partition)
        if before is not None and before[0] == split.identity and before[1] <= first:
            at, seen = begin + before[2], before[3]
        while seen < split.records:
            start = at
            rows, at = split.part(source, start, end, split.records - seen)
            seen += len(rows)
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
        """Let the batch at `location` be unpacked into the arena, if it is still its turn."""
        if self.asked == location:
            self.asked, self._allowed = None, location

    def refuse(self, location: BatchLocation, why: str) -> None:
        """Leave the batch at `location` alone this time; its reader hears `why`."""
        if self.asked == location:
            self.asked, self._refused = None, (location, why)


def bound_legacy_codecs(size: int) -> None:
    """Have aiokafka unpack no batch of Kafka's first formats beyond `size` bytes."""
    set_legacy_codecs({number: bounded_decoder(number, size) for number in (1, 2, 3)})
