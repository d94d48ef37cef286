"""Rows of integers that are computed once for each key: slates repeat."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

import numpy as np

from streameval.base.arrays import Ints
from streameval.base.limits import MAX_REMEMBERED
from streameval.core.windows.tables import with_room

K = TypeVar("K", bound=Hashable)


class RowMemory(Generic[K]):
    """The rows of keys: none, one or several each.

    `compute` returns for some keys how many rows each has, and all rows, int64 (rows, `columns`).
    Memory is bounded by keys and by rows, and emptied as a whole: a forgotten key is computed
    again.
    """

    def __init__(
        self, columns: int, compute: Callable[[Sequence[K]], tuple[Sequence[int], Ints]]
    ) -> None:
        self._compute = compute
        self._numbers: dict[K, int] = {}
        # By number of the key: where its rows begin, and where they end. Both arrays have room.
        self._spans = np.zeros((0, 2), np.int64)
        self._rows = np.zeros((0, columns), np.int64)
        self._size = 0

    def of(self, keys: Sequence[K]) -> tuple[Ints, Ints]:
        """Return the rows of all keys in order: for each the index of its key, and a copy of it."""
        try:
            numbers = self._find(keys)
        except KeyError:
            self._remember(keys)
            numbers = self._find(keys)
        begins, ends = self._spans[numbers].T
        counts = ends - begins
        owners = np.repeat(np.arange(len(keys)), counts)
        shifts = np.repeat(ends - counts.cumsum(), counts)
        return owners, self._rows[np.arange(len(owners)) + shifts]

    def _find(self, keys: Sequence[K]) -> Ints:
        return np.fromiter(map(self._numbers.__getitem__, keys), np.int64, len(keys))

    def _remember(self, keys: Sequence[K]) -> None:
        """Compute the keys that are not known."""
        fresh = self._unknown(keys)
        if max(len(self._numbers) + len(fresh), self._size) > MAX_REMEMBERED:
            self._numbers, self._size = {}, 0
            self._spans, self._rows = self._spans[:0], self._rows[:0]
            fresh = self._unknown(keys)
        counts, rows = self._compute(fresh)
        ends = self._size + np.cumsum(counts, dtype=np.int64)
        spans = np.stack((ends - counts, ends), axis=1)
        first = len(self._numbers)
        self._spans = _with(self._spans, first, spans)
        self._rows = _with(self._rows, self._size, rows)
        self._size += len(rows)
        self._numbers |= {key: first + number for number, key in enumerate(fresh)}

    def _unknown(self, keys: Sequence[K]) -> list[K]:
        return list(dict.fromkeys(key for key in keys if key not in self._numbers))


def _with(array: Ints, start: int, rows: Ints) -> Ints:
    """Return the array with these rows at `start`: the same one, or one that is twice as long."""
    end = start + len(rows)
    if end > len(array):
        array = with_room(array, 2 * end)
    array[start:end] = rows
    return array
