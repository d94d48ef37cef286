"""Notes in the store about large batches, so that workers do not die of one for ever.

A note is written before the batch is unpacked. It goes when the batch is committed or given up, or
when the partition goes. The note of a worker that died stays and is counted by the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final

from streameval.base.retry import persist

if TYPE_CHECKING:
    from streameval.worker.ports import StateStore

log = logging.getLogger(__name__)

# A batch that this many workers died of is left alone for an hour.
MOST_DEATHS: Final = 2


class LargeBatches:
    """The notes of one worker: by partition, the offset after its large batch."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._ends: dict[int, int] = {}

    @property
    def noted(self) -> Collection[int]:
        """The partitions that have a note."""
        return self._ends.keys()

    async def note(self, partition: int, first: int, last: int) -> str:
        """Note a batch before it is unpacked; return why it must not be, if workers died of it.

        Raises `RefusedError`.
        """
        if self._ends.get(partition) == last + 1:  # our own note: it was paused, and goes on
            return ""
        deaths = await persist(lambda: self._store.note_batch(partition, first, MOST_DEATHS))
        if deaths >= MOST_DEATHS:
            return (
                f"{deaths} workers ended while they had it unpacked: it is left alone for an hour;"
                " give workers more memory, or lower read_memory"
            )
        if deaths:
            log.error(
                "partition %d: a worker ended while it had the batch at offsets %d to %d"
                " unpacked; trying it once more",
                partition,
                first,
                last,
            )
        self._ends[partition] = last + 1
        return ""

    def is_past(self, partition: int, offset: int) -> bool:
        """Whether the large batch of a partition lies before `offset`."""
        return offset >= self._ends[partition]

    def drop(self, partitions: Iterable[int]) -> list[int]:
        """Drop notes; return the partitions whose note the store may still have."""
        return [number for number in partitions if self._ends.pop(number, None) is not None]
