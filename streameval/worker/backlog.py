"""Records of one partition that were read and wait to be applied, in slices."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence

from streameval.base.limits import APPLY_SLICE
from streameval.kafka.records import Records


class Backlog:
    """A queue of slices, in the order of the log."""

    def __init__(self) -> None:
        self._slices: deque[Records] = deque()

    def __bool__(self) -> bool:
        """Whether records wait."""
        return bool(self._slices)

    @property
    def records(self) -> int:
        """How many records wait."""
        return sum(len(records.offsets) for records in self._slices)

    @property
    def size(self) -> int:
        """How many bytes they have."""
        return sum(records.size for records in self._slices)

    @property
    def next_values(self) -> Sequence[bytes | None]:
        """The values of the next slice."""
        return self._slices[0].values

    def add(self, records: Records, applied: int) -> None:
        """Queue records just read; `applied`: all before this offset are applied."""
        expected = self._slices[-1].next_offset if self._slices else applied
        if records.next_offset <= expected:
            return
        if records.offsets and records.offsets[0] < expected:
            # Read before a seek: some of these records are applied already.
            records = _slice(records, bisect_left(records.offsets, expected))
        # Slices free the memory of applied records for the next ones.
        size = len(records.offsets)
        for start in range(0, max(1, size), APPLY_SLICE):
            self._slices.append(_slice(records, start, start + APPLY_SLICE))

    def take(self) -> Records:
        """Return the next slice."""
        return self._slices.popleft()

    def split(self, records: Records, offset: int) -> Records:
        """Return what a slice just taken has before `offset`; the rest is the next slice."""
        end = bisect_left(records.offsets, offset)
        self._slices.appendleft(_slice(records, end))
        return _slice(records, 0, end)

    def clear(self) -> None:
        """Forget all."""
        self._slices.clear()


def overlap(runs: Iterable[tuple[int, int]], begin: int, end: int) -> int:
    """Count the offsets of these runs that lie between `begin` and `end`."""
    return sum(max(0, min(last, end) - max(first, begin)) for first, last in runs)


def _slice(records: Records, start: int, end: int | None = None) -> Records:
    """Take `records` from index `start` up to `end`; reading goes on after them."""
    size = len(records.offsets)
    end = size if end is None else min(end, size)
    part = slice(start, end)
    return Records(
        records.partition,
        records.offsets[part],
        records.timestamps[part],
        records.keys[part],
        records.values[part],
        records.offsets[end] if end < size else records.next_offset,
        records.size * max(0, end - start) // max(1, size),
        records.missing,
    )
