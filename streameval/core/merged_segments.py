"""Totals: the figures over all values of some dimensions, or of all of them (rule 38).

Users overlap: one who was in two segments is one user of their total, with one rate and one cap. So
sums by user are merged by user when figures are made, and sums by cluster of users add up. Windows
and checkpoints hold segments alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streameval.base.arrays import Ints
from streameval.base.limits import ALL, CLUSTERS, OTHER
from streameval.core.windows.tables import Cells, runs

Segment = tuple[str, ...]


def totals_of(segment: Segment) -> list[Segment]:
    """Return the totals that a segment counts in: none with fewer than two dimensions."""
    return [_merge(segment, whole) for whole in _choices(len(segment))]


def is_total(segment: Segment) -> bool:
    """Return whether it is a total."""
    return ALL in segment


def with_totals(segments: Iterable[Segment]) -> set[Segment]:
    """Return the segments and all totals that they count in."""
    kept = set(segments)
    return kept.union(*map(totals_of, kept))


def beyond_bound(segment: Segment) -> Segment:
    """Return what stands for a segment or a total that is not shown: `__other__`, or its total."""
    return tuple(value if value == ALL else OTHER for value in segment)


def by_generality(segment: Segment) -> tuple[int, tuple[bool, ...], Segment]:
    """Return the key by which segments are shown: totals first, those over most dimensions."""
    whole = tuple(value == ALL for value in segment)
    return len(segment) - sum(whole), whole, segment


def _choices(dimensions: int) -> list[tuple[bool, ...]]:
    """Return which dimensions are `__all__`, for each total of a segment."""
    return list(product((False, True), repeat=dimensions))[1:] if dimensions > 1 else []


def _merge(segment: Segment, whole: Sequence[bool]) -> Segment:
    return tuple(ALL if each else value for value, each in zip(segment, whole, strict=True))


class WithTotals:
    """The segments and all their totals, numbered: first the segments, then each choice of totals.

    A choice says which dimensions are `__all__`. `names` are by number, and `firsts` has the number
    at which the segments and each choice begin. Arrays of two dimensions have a row for a choice.
    """

    def __init__(self, cells: Cells, segments: Sequence[Segment]) -> None:
        self.names = list(segments)
        self.firsts = [0]
        self._of_cell, _ = cells.arrays()
        choices = _choices(len(segments[0]) if segments else 0)
        self._totals = np.zeros((len(choices), len(segments)), np.int64)
        self._heads = np.zeros((len(choices), len(cells)), np.int32)
        for row, whole in enumerate(choices):
            totals = [_merge(segment, whole) for segment in segments]
            index = {name: number for number, name in enumerate(dict.fromkeys(totals))}
            of_segment = np.array([index[name] for name in totals], np.int64)
            self.firsts.append(len(self.names))
            self._totals[row] = of_segment + len(self.names)
            self._heads[row] = _heads(cells, of_segment)
            self.names += index

    def numbers(self, segments: Ints) -> Ints:
        """Return the numbers that segments count in, int64 (1 + choices, segments)."""
        return np.concatenate((segments[np.newaxis], self._totals[:, segments]))

    def users(self, cells: npt.NDArray[np.intp]) -> Iterator[Users]:
        """Yield the users whom `cells` belong to: by segment, then by total of each choice.

        One choice at a time, because users take memory.
        """
        yield Users(self._of_cell[cells], cells, None)
        for totals, heads in zip(self._totals, self._heads, strict=True):
            held = np.zeros(len(heads), np.bool_)
            held[heads[cells]] = True
            firsts = np.flatnonzero(held)
            index = (np.cumsum(held) - 1)[heads[cells]]
            yield Users(totals[self._of_cell[firsts]], firsts, index)

    def keys(self, segment_keys: Ints) -> tuple[Ints, Grouping]:
        """Return the keys of segments and totals, and the way from segments to all of them.

        A key is the number of a segment or total * 256 + the cluster. Both arrays rise.
        """
        found = self._totals[:, segment_keys // CLUSTERS] * CLUSTERS + segment_keys % CLUSTERS
        totals, into = np.unique(found.ravel(), return_inverse=True)
        keys = np.concatenate((segment_keys, totals))
        return keys, Grouping(into.reshape(found.shape) + len(segment_keys), len(keys))


class Users(NamedTuple):
    """Users of segments, or of one choice of totals: of each the number, and its first cell.

    The users of a segment or total stand in the order in which they came. `of_cell` has the user of
    each of the cells that they were made of; None: each cell is a user.
    """

    numbers: Ints
    cells: npt.NDArray[np.intp]
    of_cell: Ints | None

    def sums(self, values: Ints) -> Ints:
        """Return sums by user of values whose last axis goes by cell."""
        if self.of_cell is None:
            return values
        found = np.zeros((*values.shape[:-1], len(self.cells)), np.int64)
        for at in np.ndindex(values.shape[:-1]):
            # `add.at` is several times faster where index and values have one dimension.
            np.add.at(found[at], self.of_cell, values[at])
        return found


class Grouping:
    """Adds up sums of segments to sums of totals, and returns both: `size` in all.

    `totals` (choices, numbers) has the index of each one's total.
    """

    def __init__(self, totals: Ints, size: int) -> None:
        self._totals, self._size = totals, size

    def sums(self, values: Ints) -> Ints:
        """Return sums along the last axis: of the segments first, then of the totals."""
        choices, count = self._totals.shape
        if not choices:
            return values
        found = np.zeros((*values.shape[:-1], self._size), np.int64)
        found[..., :count] = values
        for at in np.ndindex(values.shape[:-1]):
            for totals in self._totals:
                np.add.at(found[at], totals, values[at])
        return found


def _heads(cells: Cells, totals_of_segments: Ints) -> npt.NDArray[np.intp]:
    """Return by cell the first one of the same user and total."""
    of_cell, _ = cells.arrays()
    totals = totals_of_segments[of_cell]
    totals = totals.astype(np.min_scalar_type(int(totals.max(initial=0))))
    firsts = cells.firsts()
    order = np.argsort(totals, kind="stable")
    heads = np.empty(len(order), np.intp)
    first_here = np.empty(len(order), np.intp)
    for run in runs(totals[order]):
        mine = order[run]
        # In reverse: the first cell of a user is assigned last, and stays.
        first_here[firsts[mine[::-1]]] = mine[::-1]
        heads[mine] = first_here[firsts[mine]]
    return heads
