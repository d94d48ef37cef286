"""The layout of Kafka's batches, and of records that are walked without objects."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from aiokafka.errors import CorruptRecordException

from streameval.base.limits import MAX_DEAD_LETTER_BYTES, MAX_EVENT_BYTES
from streameval.core.events import TooLarge
from streameval.kafka.aiokafka_internals import DefaultRecordBatch, LegacyRecordBatch

# Positions of fields in a batch of format 2. Its records begin at `RECORDS`.
_LENGTH, MAGIC, CRC, ATTRIBUTES, _FIRST_TIME, _LAST_TIME, COUNT = 8, 16, 17, 22, 27, 35, 57
RECORDS: Final = 61
FORMAT: Final = 2  # since Kafka 0.11
# Of the attributes.
CODEC, _APPEND_TIME, _TRANSACTIONAL, _CONTROL = 0x07, 0x08, 0x10, 0x20
INT32, UINT32, _INT64 = struct.Struct(">i"), struct.Struct(">I"), struct.Struct(">q")
LONGEST_NUMBER: Final = 63  # bits
# Bytes of the shortest record: seven numbers of a byte, its length among them.
SHORTEST: Final = 7


class Row(NamedTuple):
    """A record too large for aiokafka's own; the fields that we need have its names."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()


def batches(data: bytes) -> Iterator[memoryview]:
    """Yield the whole batches in the response to a fetch; it may break off in the last one."""
    view, at = memoryview(data), 0
    size, length_at = len(data), INT32.unpack_from
    while at + MAGIC < size:
        end = at + _LENGTH + 4 + length_at(data, at + _LENGTH)[0]
        if end > size:
            return
        if end < at + RECORDS and (end <= at + MAGIC or data[at + MAGIC] >= FORMAT):
            raise CorruptRecordException(f"a batch of {end - at} bytes")
        yield view[at:end]
        at = end


def open_batch(raw: memoryview) -> Any:
    """Open the batch of these bytes; nothing is unpacked."""
    magic = raw[MAGIC]
    return DefaultRecordBatch(raw) if magic >= FORMAT else LegacyRecordBatch(raw, magic)


def is_transactional(raw: memoryview) -> bool:
    """Whether a batch belongs to a transaction, or is the marker of one."""
    return raw[MAGIC] >= FORMAT and bool(raw[ATTRIBUTES] & (_TRANSACTIONAL | _CONTROL))


def legacy_rows(raw: memoryview) -> list[Any]:
    """Return the records of a batch in one of Kafka's first formats, which nobody writes now."""
    rows = list(LegacyRecordBatch(raw, raw[MAGIC]))
    for at, row in enumerate(rows):
        if row.value is not None and len(row.value) > MAX_EVENT_BYTES:
            large = TooLarge.of(len(row.value), row.value[:MAX_DEAD_LETTER_BYTES])
            rows[at] = Row(row.offset, row.timestamp, row.key, large)
    return rows


def whole_records(source: Any, at: int, end: int, most: int) -> tuple[int, int]:
    """Find the records from `at` that lie before `end`, `most` at most: their end and count."""
    for count in range(most):
        # Lengths of one and two bytes here: a call takes longer than all of the rest.
        length, body = source[at], at + 1
        if length > 0x7F:
            length, body = length & 0x7F | source[body] << 7, body + 1
        if length > 0x3FFF or length & 1:
            length, body = _varint(source, at)
        else:
            length >>= 1
        after = body + length
        if after > end or length < 0:
            return at, count
        at = after
    return at, most


def large_record(source: Any, at: int, end: int, raw: memoryview) -> tuple[Row, int]:
    """Read one record of a batch `raw` that is unpacked in `source[at:end]`; also where it ends.

    Nobody looks at its headers, and its key is kept in part.
    """
    length, at = _varint(source, at)
    after = at + length
    if length < 0 or after > end:
        raise CorruptRecordException(f"a record of {length} bytes in {end - at}")
    at += 1  # attributes; records have none
    behind, at = _varint(source, at)
    delta, at = _varint(source, at)
    if raw[ATTRIBUTES] & _APPEND_TIME:
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
    return Row(_INT64.unpack_from(raw, 0)[0] + delta, timestamp, key, value), after


def _varint(source: Any, at: int) -> tuple[int, int]:
    """Read a signed number of Kafka at `at`; also return where it ends."""
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
