"""The plain data that the rest of the service exchanges with Kafka."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from aiokafka import TopicPartition

from streameval.base.limits import DEAD_LETTER_OVERHEAD
from streameval.core.events import Rejection
from streameval.profiles.frames import SCHEMA_HEADER, Headers, RecordValue

UNIT = 1_000
"""Records handed out together, at most."""


class Records(NamedTuple):
    """Consecutive records of one partition: parallel sequences, and the offset to read next.

    `missing` are as in `RecordLists`; some may lie beyond these records.
    """

    partition: int
    offsets: Sequence[int]
    timestamps: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    next_offset: int
    size: int = 0  # bytes in the log, unpacked
    missing: Sequence[tuple[int, int]] = ()


class RecordLists(NamedTuple):
    """Consecutive records of one partition as parallel lists.

    `size` counts their bytes in the log, unpacked. `missing` are the runs of offsets, each up to
    and without its end, whose records the log has lost. There is a record, or a run.
    """

    offsets: list[int]
    timestamps: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    size: int
    missing: Sequence[tuple[int, int]] = ()

    @property
    def first(self) -> int:
        """The first offset of these records and runs."""
        return min([*self.offsets[:1], *(begin for begin, _ in self.missing[:1])])

    @property
    def beyond(self) -> int:
        """The offset after these records and runs."""
        return max([*(at + 1 for at in self.offsets[-1:]), *(end for _, end in self.missing[-1:])])


def value_of(record: Any, *, whole: bool = False) -> bytes | None:
    """Return the value of a record of aiokafka.

    It is a `RecordValue` if it is to be `whole`, or if a header has its frame.
    """
    value: bytes | None = record.value
    if value.__class__ is not bytes:
        return value
    if whole or any(name == SCHEMA_HEADER and frame for name, frame in record.headers):
        return RecordValue.of(value, record.key, record.headers)
    return value


def cut(text: bytes, size: int) -> bytes:
    """Return the first bytes of a key or value, which still knows its record."""
    if isinstance(text, RecordValue):
        return RecordValue.of(text[:size], text.key, text.headers)
    return text[:size]


def headers_of(value: bytes | None) -> Headers:
    """Return the headers of the record of a value that knows them."""
    return value.headers if isinstance(value, RecordValue) else ()


class BatchLocation(NamedTuple):
    """A batch in the log: its partition, and the offsets from its first to its last record."""

    topic_partition: TopicPartition
    first: int
    last: int


class LogIdentity(NamedTuple):
    """The marks that tell one log from another; ids are "" where the broker does not tell them."""

    cluster_id: str
    topic_id: str  # as kafka-topics.sh prints it
    partitions: int
    leaderless: frozenset[int] = frozenset()  # partitions that no broker serves


class DeadLetter(NamedTuple):
    """A record that was rejected, and why."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    rejection: Rejection

    @property
    def size(self) -> int:
        """The bytes of key, value and headers, and the overhead of a dead letter."""
        headers = sum(len(name) + len(value or b"") for name, value in headers_of(self.value))
        return DEAD_LETTER_OVERHEAD + len(self.key or b"") + len(self.value or b"") + headers


class Listener(Protocol):
    """The part of the worker that hears which partitions come and go."""

    async def revoked(self, partitions: Sequence[int]) -> None:
        """Finish with `partitions`; the next owner may begin when this returns."""

    async def assigned(self, partitions: Sequence[int]) -> None:
        """Begin with `partitions`; nothing is read of them before `seek` and `resume`."""

    async def unpacking(self, partition: int, first: int, last: int) -> str:
        """Hear that a large batch is about to be unpacked; return why it must not be, or ""."""

    async def unpacked(self, partition: int) -> None:
        """Hear that the large batch of `partition` cannot be read and takes no memory any more."""
