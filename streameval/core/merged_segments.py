"""Totals: the figures over all values of some dimensions, or of all of them (rule 38).

Users overlap: one who was in two segments is one user of their total, with one rate and one cap. So
sums by user are merged by user when figures are made, and sums by cluster of users add up. Windows
and checkpoints hold segments alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

import numpy as np
import numpy.typing as npt

from streameval.base.arrays import Ints
from streameval.base.limits import ALL, CLUSTERS, OTHER
from streameval.core.windows.cells import Cells
from streameval.core.windows.tables import runs, starts

Segment = tuple[str, ...]


def totals_of(segment: Segment) -> list[Segment]:
    """Return the totals that a segment counts in: none with fewer than two dimensions."""
    return [_merged(segment, whole) for whole in _choices(len(segment))]


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


def _merged(segment: Segment, whole: Sequence[bool]) -> Segment:
    return tuple(ALL if each else value for value, each in zip(segment, whole, strict=True))


class Merge:
    """The way from segments to the totals over the same dimensions.

    `names` has the totals by number.
    """

    def __init__(self, cells: Cells, segments: Sequence[Segment], whole: Sequence[bool]) -> None:
        totals = [_merged(segment, whole) for segment in segments]
        index = {name: number for number, name in enumerate(dict.fromkeys(totals))}
        self.names = list(index)
        self._numbers = np.array([index[name] for name in totals], np.int64)
        self._heads = self._heads_of(cells)

    def number(self, segments: Ints) -> Ints:
        """Return the numbers of the totals that segments count in."""
        found: Ints = self._numbers[segments]
        return found

    def users(self, cells: npt.NDArray[np.intp]) -> tuple[npt.NDArray[np.intp], Ints]:
        """Return a cell for each user and total that `cells` belong to, and the index of each's.

        The cells stand in the order in which the users came.
        """
        heads = self._heads[cells]
        held = np.zeros(len(self._heads), np.bool_)
        held[heads] = True
        return np.flatnonzero(held), np.cumsum(held)[heads] - 1

    def clusters(self, there: Ints) -> Clusters:
        """Return the way from keys (segment * 256 + cluster) to the keys of totals."""
        return Clusters(self.number(there // CLUSTERS) * CLUSTERS + there % CLUSTERS)

    def _heads_of(self, cells: Cells) -> npt.NDArray[np.intp]:
        """Return by cell the first one of the same user and total."""
        of_cell, _ = cells.arrays()
        totals = self._numbers[of_cell].astype(np.min_scalar_type(len(self.names)))
        firsts = cells.firsts()
        order = np.argsort(totals, kind="stable")
        heads = np.empty(len(order), np.intp)
        first_here = np.empty(len(order), np.intp)
        for run in runs(totals[order]):
            mine = order[run]
            # Of several cells of one user the last one assigned, which is the first one, stays.
            first_here[firsts[mine[::-1]]] = mine[::-1]
            heads[mine] = first_here[firsts[mine]]
        return heads


class Clusters:
    """Sums by (segment, cluster) added up to sums of totals; `there` are their keys, rising."""

    def __init__(self, keys: Ints) -> None:
        self._order = np.argsort(keys, kind="stable")
        ordered = keys[self._order]
        self._begins = starts(ordered)
        self.there: Ints = ordered[self._begins]

    def added(self, sums: Ints) -> Ints:
        """Return sums whose last axis goes by key as sums of the totals."""
        found: Ints = np.add.reduceat(sums[..., self._order], self._begins, axis=-1)
        return found


def merges_of(cells: Cells, segments: Sequence[Segment]) -> list[Merge]:
    """Return the merges for all totals; `segments` are the names by number of a segment."""
    dimensions = len(segments[0]) if segments else 0
    return [Merge(cells, segments, whole) for whole in _choices(dimensions)]
