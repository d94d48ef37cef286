"""What identifies the last record that was applied, so that a log that was set back is noticed.

A log that lost its end (an unclean leader election, a disk restored from a copy) and grew again
holds other records below the stored offset, under the same topic id. The store keeps the offset and
a checksum of the last record beside the offset; whoever goes on compares them with the log.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from zlib import crc32

from streameval.core.events import TooLarge

NO_RECORD: Final = -1
"""The checksum of what is no record, which none has."""


class RecordMark(NamedTuple):
    """A record's offset, and a checksum over its timestamp, key and value."""

    offset: int
    checksum: int

    def __str__(self) -> str:
        """Write it as the store keeps it."""
        return f"{self.offset}:{self.checksum:08x}"


def mark(offset: int, timestamp: int, key: bytes | None, value: bytes | None) -> RecordMark:
    """Return the mark of one record as it is handed out; `timestamp` in ms."""
    # The length of the key says where it ends, -1 stands for none.
    head = b"%d %d " % (timestamp, -1 if key is None else len(key))
    body = crc32(key or b"", crc32(head))
    if isinstance(value, TooLarge):
        return RecordMark(offset, crc32(value.head, crc32(b"%d" % value.size, body)))
    return RecordMark(offset, body if value is None else crc32(value, body))


def parse(text: str) -> RecordMark:
    """Read what `str` of a mark wrote."""
    offset, _, checksum = text.partition(":")
    return RecordMark(int(offset), int(checksum, 16))
