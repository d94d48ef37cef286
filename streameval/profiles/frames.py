"""The frame of a schema registry, which names the schema that wrote a value.

It is a zero byte and the four bytes of an id, or a one and the sixteen bytes of a GUID. It stands
before the value, or in a header of the record. AWS Glue's is a three, a byte that says how the rest
is packed (0: not, 5: zlib), and a GUID.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from streameval.base.limits import MAX_EVENT_BYTES

Headers = Sequence[tuple[str, bytes | None]]
"""The headers of a record; a name may come several times."""
SCHEMA_HEADER: Final = "__value_schema_id"
"""The header in which producers may put the frame of a value (Confluent's serialisers)."""
# Bytes of a frame, by its first one.
_FRAMES: Final = {0: 5, 1: 17, 3: 18}
_GUID: Final = 16
_GLUE: Final = (b"\x03\x00", b"\x03\x05")


class RecordValue(bytes):
    """A value that knows the key and the headers of its record."""

    key: bytes | None
    headers: Headers

    @classmethod
    def of(cls, value: bytes, key: bytes | None, headers: Headers) -> RecordValue:
        """Stand for a value."""
        made = cls(value)
        made.key, made.headers = key, headers
        return made


def with_frame(value: bytes | None) -> bytes | None:
    """Return a value behind the frame that a header of its record may have."""
    if not isinstance(value, RecordValue):
        return value
    return (dict(value.headers).get(SCHEMA_HEADER) or b"") + value


def framed_id(value: bytes) -> str | None:
    """Return the id or GUID of the schema in a frame; None without one."""
    size = _FRAMES.get(value[0]) if value else None
    if size is None or len(value) < size or (value[0] == _GLUE[0][0] and not is_glue(value)):
        return None
    if value[0]:
        return str(UUID(bytes=value[size - _GUID : size]))
    return str(int.from_bytes(value[1:size], "big"))


def is_glue(value: bytes) -> bool:
    """Whether a value begins as AWS Glue's frame does."""
    return value.startswith(_GLUE)


def body_of(value: bytes) -> bytes:
    """Return a framed value without its frame, unpacked. Raises ValueError, and `zlib.error`."""
    body = value[_FRAMES[value[0]] :]
    if not value.startswith(_GLUE[1]):
        return body
    unpacking = zlib.decompressobj()
    body = unpacking.decompress(body, MAX_EVENT_BYTES)
    if unpacking.unconsumed_tail:
        raise ValueError(f"unpacked it has more than {MAX_EVENT_BYTES:,} bytes")
    return body
