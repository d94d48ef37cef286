"""The plain data that the rest of the service exchanges with Kafka."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from streameval.core.events import Rejection


class Records(NamedTuple):
    """Consecutive records of one partition: parallel sequences, and the offset to read next."""

    partition: int
    offsets: Sequence[int]
    timestamps: Sequence[int]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    next_offset: int
    size: int = 0  # bytes in the log, unpacked


class DeadLetter(NamedTuple):
    """A record that was rejected, and why."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    rejection: Rejection


class Listener(Protocol):
    """Whoever wants to know which partitions come and go."""

    async def revoked(self, partitions: Sequence[int]) -> None:
        """Finish with `partitions`; the next owner may begin when this returns."""

    async def assigned(self, partitions: Sequence[int]) -> None:
        """Begin with `partitions`; nothing is read of them before `seek` and `resume`."""

    async def unpacking(self, partition: int, first: int, last: int) -> str:
        """A large batch is about to be unpacked; the answer says why it must not be, if so."""

    async def unpacked(self, partition: int) -> None:
        """The large batch of `partition` could not be read, and no longer takes memory."""
