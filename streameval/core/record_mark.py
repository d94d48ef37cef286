"""The mark of the last record that was applied: it reveals a log that was set back.

A log that lost its end (an unclean leader election, a disk restored from a copy) and grew again
holds other records below the stored offset, under the same topic id. The store keeps the offset and
a checksum of the last record beside the offset; the next worker compares them with the log.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from zlib import crc32

from streameval.core.events import TooLarge

NO_RECORD: Final = -1
"""A checksum that no record has: it stands for an absent record."""


class RecordMark(NamedTuple):
    """A record's offset, and a checksum over its timestamp, key and value."""

    offset: int
    checksum: int

    def __str__(self) -> str:
        """Write the mark as the store keeps it."""
        return f"{self.offset}:{self.checksum:08x}"


def mark(offset: int, timestamp: int, key: bytes | None, value: bytes | None) -> RecordMark:
    """Return the mark of one record as it is handed out; `timestamp` in ms."""
    # The length of the key marks its end; -1 stands for no key.
    head = b"%d %d " % (timestamp, -1 if key is None else len(key))
    body = crc32(key or b"", crc32(head))
    if isinstance(value, TooLarge):
        return RecordMark(offset, crc32(value.head, crc32(b"%d" % value.size, body)))
    return RecordMark(offset, body if value is None else crc32(value, body))


def parse(text: str) -> RecordMark:
    """Read the text that `str` of a mark wrote."""
    offset, _, checksum = text.partition(":")
    return RecordMark(int(offset), int(checksum, 16))
