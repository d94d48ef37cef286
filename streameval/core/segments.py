"""Segments: the values of the dimensions, numbered and bounded."""

from __future__ import annotations

from collections.abc import Sequence

from streameval.base.limits import OTHER
from streameval.core.events import Labels, label_values
from streameval.core.marks import NEVER


class Segments:
    """The table of segments: values of the dimensions to an index. Beyond the bound: `__other__`.

    An event may need a new segment when `limit` segments have an index. Segments last shown more
    than `span` (ms) before the event then lose their index: nothing can change or show them any
    more. Only events and their order decide this. An index is used again after the next `release`,
    because rows that were not flushed may still hold it.

    `known` holds the results of `of` by the labels of an event, except `__other__` and labels
    beyond a bound: the hot path looks there first. `values` and `newest` (the newest ts) are by
    index; `newest` is `NEVER` where the index is free. `other` is the index of `__other__`, which
    keeps it; `NEVER` before it has one. An event has labels of `labels` fields, the dimensions
    first.
    """

    def __init__(self, dimensions: tuple[str, ...], limit: int, span: int, labels: int) -> None:
        self.dimensions = dimensions
        self.limit = limit
        self.span = span
        self.values: list[tuple[str, ...]] = []
        self.newest: list[int] = []
        self.overflowed = 0
        self.other = NEVER
        self.leaving: list[int] = []
        self.known: dict[Labels, int] = {}
        self._labels = labels
        self._rest = (OTHER,) * len(dimensions)
        self._index: dict[tuple[str, ...], int] = {}
        self._free: list[int] = []
        self._oldest = NEVER  # no segment with an index was last shown before

    def of(self, labels: Labels, ts: int) -> int:
        """Return the index of the segment shown at `ts`; appearance in the log gives the order."""
        index = self.known.get(labels)
        if index is None:
            index = self._found(labels, ts)
        if ts > self.newest[index]:  # noqa: PLR1730  # a call takes several times as long
            self.newest[index] = ts
        return index

    def release(self) -> None:
        """Let the indices of retired segments be used again: nothing holds them any more."""
        for index in self.leaving:
            self.newest[index] = NEVER
        self._free += self.leaving
        self.leaving = []

    def state(self) -> tuple[list[tuple[str, ...]], list[int], int]:
        """Return the table as a checkpoint holds it."""
        assert not self.leaving, "a flush releases them"
        return self.values, self.newest, self.overflowed

    def restore(self, values: Sequence[tuple[str, ...]], newest: Sequence[int]) -> None:
        """Fill the empty table as it was stored."""
        self.values += values
        self.newest += newest
        for index, ts in enumerate(newest):
            if ts == NEVER:
                self._free.append(index)
            else:
                self._index[values[index]] = index
        if self.dimensions:
            self.other = self._index.get(self._rest, NEVER)

    def _found(self, labels: Labels, ts: int) -> int:
        values = label_values(labels, self._labels)[: len(self.dimensions)]
        index = self._index.get(values)
        if index is None:
            if values != self._rest and self._full() and not self._retire(ts - self.span):
                self.overflowed += 1
                return self._other(ts)
            index = self._enter(values, ts)
        if len(self.known) < 4 * self.limit:
            self.known[labels] = index
        return index

    def _full(self) -> bool:
        return len(self._index) - (self._rest in self._index) >= self.limit

    def _retire(self, before: int) -> bool:
        """Remove the segments that were last shown before a time from the table."""
        if before <= self._oldest:
            return False
        newest = {v: self.newest[index] for v, index in self._index.items() if v != self._rest}
        old = [values for values, ts in newest.items() if ts < before]
        self.leaving += [self._index.pop(values) for values in old]
        self._oldest = min((ts for ts in newest.values() if ts >= before), default=before)
        if old:
            self.known.clear()
        return bool(old)

    def _enter(self, values: tuple[str, ...], ts: int) -> int:
        if self._free:
            index = self._free.pop()
            self.values[index], self.newest[index] = values, ts
        else:
            index = len(self.values)
            self.values.append(values)
            self.newest.append(ts)
        self._index[values] = index
        if values == self._rest and self.dimensions:
            self.other = index
        self._oldest = min(self._oldest, ts)
        return index

    def _other(self, ts: int) -> int:
        return self._enter(self._rest, ts) if self.other == NEVER else self.other
