"""Nowcasts: live sums divided by the part of the feedback that has come by now (rules 30 to 33).

Of impressions of some age only a share F of their positives has come yet. `ArrivalCurves` has F
from the delays of final slates, by kind and segment. Effective impressions are the impressions of
each live pane times F at its age. Positives divided by effective impressions estimate the rate to
come. Effective counts are integers of 10**-6: they add over partitions that took the same delays.

The rows of effective counts: impressions by index of the kind, then slates with a request by index
of the kind, then such slates by the curve of first relevant items. A row without a curve is 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from streameval.base.arrays import Ints
from streameval.base.limits import (
    CLUSTERS,
    DELAY_BUCKETS,
    MICRO,
    MIN_DELAYS,
    MIN_SEGMENT_DELAYS,
)
from streameval.core.definition import Definition
from streameval.core.delays import ArrivalCurve, delay_edges
from streameval.core.merged_segments import Clusters, totals_of
from streameval.core.windows.aggregate import Active
from streameval.core.windows.aggregates import AGGREGATES
from streameval.core.windows.delays import Delays
from streameval.core.windows.panes import Windows, WindowState

DelaysBySegment = Mapping[tuple[str, ...], Ints]
"""Counts of delays of final slates by segment, int64 (slots,), in the slots of `core.delays`."""


def delays_of(windows: Windows, segments: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], Ints]:
    """Return the delays of the matured basis of the longest window."""
    longest = max(windows.states, key=lambda state: state.window.size)
    totals: Any = longest.matured.totals[AGGREGATES.index(Delays)]
    found = ((segment, totals.of(index)) for index, segment in enumerate(segments))
    return added({segment: counts} for segment, counts in found if counts.any())


def added(many: Iterable[DelaysBySegment]) -> dict[tuple[str, ...], Ints]:
    """Return the delays of several partitions together."""
    whole: dict[tuple[str, ...], Ints] = {}
    for delays in many:
        for segment, counts in delays.items():
            whole[segment] = whole[segment] + counts if segment in whole else counts
    return whole


class ArrivalCurves:
    """F by segment and group of slots: the kinds by index, and last the slates."""

    def __init__(self, definition: Definition, delays: DelaysBySegment) -> None:
        self._edges = delay_edges(definition.attribution_window)
        self.groups = len(definition.kinds) + 1
        totals = added(
            {total: counts} for segment, counts in delays.items() for total in totals_of(segment)
        )
        own = {**delays, **totals}
        self._delays = {segment: self._grouped(counts) for segment, counts in own.items()}
        everywhere = sum(delays.values(), np.zeros(self.groups * DELAY_BUCKETS, np.int64))
        self._everywhere = [self._curve(counts, MIN_DELAYS) for counts in self._grouped(everywhere)]

    def of(self, segment: tuple[str, ...], group: int) -> ArrivalCurve | None:
        """Return the segment's own curve, else the one of all segments; None: too few delays."""
        own = self._delays.get(segment)
        curve = None if own is None else self._curve(own[group], MIN_SEGMENT_DELAYS)
        return curve or self._everywhere[group]

    def _grouped(self, counts: Ints) -> Ints:
        return counts.reshape(self.groups, DELAY_BUCKETS)

    def _curve(self, counts: Ints, least: int) -> ArrivalCurve | None:
        return None if counts.sum() < least else ArrivalCurve(self._edges, counts.tolist())


@dataclass(frozen=True, slots=True)
class YoungPanes:
    """The live panes that can still change at T, with the amounts they count by (segment, cluster).

    `moments` has the ages x of their borders (ms), falling: a slate shown at t has x = T + 1 - t,
    and its feedback up to T has delays below x. `counts`, int64 (2, panes, keys that are there),
    are impressions and slates.
    """

    moments: list[int]
    counts: Ints

    @classmethod
    def of(cls, windows: Windows, state: WindowState, active: Active) -> Self:
        """Return the young panes of a window."""
        assert windows.reading_time is not None, "the windows were read"
        now = windows.reading_time + 1
        slide = state.window.slide
        first = max(state.matured.last + 1, state.live.first)
        numbers = range(first, state.live.last + 1)
        moments = [now - number * slide for number in numbers] + [0]
        if numbers:
            moments[-1] = max(0, now - numbers.stop * slide)
        panes = [(n - first, pane.tables[0]) for n, pane in state.panes.items() if n in numbers]
        tables = [(index, table) for index, found in panes for table in found]
        shape = (len(numbers), len(active.there))
        counts = np.zeros((2, *shape), np.int64)
        if not tables or not counts.size:
            return cls(moments, counts)
        column = _columns(windows, active)
        sizes = [len(table.keys) for _, table in tables]
        rows = np.repeat([index for index, _ in tables], sizes) * shape[1]
        rows += column[np.concatenate([table.keys for _, table in tables])]
        for counted in (0, 1):
            values = np.concatenate([table.values[counted] for _, table in tables])
            # Float sums of integers are exact below 2**53, and bincount is the fast one.
            sums = np.bincount(rows, weights=values, minlength=shape[0] * shape[1])
            counts[counted] = sums.astype(np.int64).reshape(shape)
        return cls(moments, counts)

    def merged(self, clusters: Clusters) -> YoungPanes:
        """Return the counts of totals."""
        return YoungPanes(self.moments, clusters.added(self.counts))

    def effective(
        self, curves: ArrivalCurves, segment: tuple[str, ...], part: slice, live: Ints
    ) -> Ints:
        """Return the rows of effective counts of one segment, int64 (rows, n).

        `part` of the keys belongs to it; `live`, int64 (2, n), are impressions and slates of all
        live panes.
        """
        groups = curves.groups
        missing = [self._missing(curves.of(segment, group)) for group in range(groups)]
        rows = [(0, group) for group in range(groups - 1)] + [(1, group) for group in range(groups)]
        found = np.zeros((len(rows), live.shape[1]), np.int64)
        for row, (counted, group) in enumerate(rows):
            to_come = missing[group]
            if to_come is not None:
                found[row] = MICRO * live[counted] - to_come @ self.counts[counted][:, part]
        return found

    def _missing(self, curve: ArrivalCurve | None) -> Ints | None:
        """Return the share still to come by pane, int64 (panes,), in 10**-6."""
        return None if curve is None else np.array(curve.missing(self.moments), np.int64)


def _columns(windows: Windows, active: Active) -> Ints:
    """Return the index in `active.there` by cell.

    A cell that is not there has only rows that cancel within each pane, so any index will do.
    """
    of_cell, cluster_of_cell = windows.cells.arrays()
    keys = of_cell * CLUSTERS + cluster_of_cell
    columns = np.zeros(int(max(keys.max(), active.there[-1])) + 1, np.int64)
    columns[active.there] = np.arange(len(active.there))
    found: Ints = columns[keys]
    return found
