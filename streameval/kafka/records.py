"""The plain data that the rest of the service exchanges with Kafka."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

from aiokafka import TopicPartition

from streameval.core.events import Rejection
from streameval.profiles.frames import Unframed

UNIT = 1_000
"""Records handed out together, at most."""
SCHEMA_HEADER: Final = "__value_schema_id"
"""The header in which producers may put the frame of a value (Confluent's serialisers)."""


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


def value_of(record: Any) -> bytes | None:
    """Return the value of a record of aiokafka; it knows the frame that a header may have."""
    value: bytes | None = record.value
    for name, frame in record.headers:
        if name == SCHEMA_HEADER and frame and value.__class__ is bytes:
            return Unframed.of(value, frame)
    return value


def cut(text: bytes, size: int) -> bytes:
    """Return the first bytes of a key or value, which still knows its frame."""
    head = text[:size]
    return Unframed.of(head, text.frame) if isinstance(text, Unframed) else head


def schema_header(value: bytes | None) -> list[tuple[str, bytes]]:
    """Return the header with the frame of a value, if there was one."""
    return [(SCHEMA_HEADER, value.frame)] if isinstance(value, Unframed) else []


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
