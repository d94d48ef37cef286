"""The frame of a schema registry, which names the schema that wrote a value.

It is a zero byte and the four bytes of an id, or a one and the sixteen bytes of a GUID. It stands
before the value, or in a header of the record.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

# Bytes of a frame, by its first one.
_FRAMES: Final = {0: 5, 1: 17}


class Unframed(bytes):
    """A value whose `frame` stands in a header of its record."""

    frame: bytes

    @classmethod
    def of(cls, value: bytes, frame: bytes) -> Unframed:
        """Stand for a value."""
        made = cls(value)
        made.frame = frame
        return made


def with_frame(value: bytes | None) -> bytes | None:
    """Return a value behind the frame that a header of its record may have."""
    return value.frame + value if isinstance(value, Unframed) else value


def framed_id(value: bytes) -> str | None:
    """Return the id or GUID of the schema in a frame; None without one."""
    size = _FRAMES.get(value[0]) if value else None
    if size is None or len(value) < size:
        return None
    return str(UUID(bytes=value[1:size]) if value[0] else int.from_bytes(value[1:size], "big"))


def body_of(value: bytes) -> bytes:
    """Return a framed value without its frame."""
    return value[_FRAMES[value[0]] :]
