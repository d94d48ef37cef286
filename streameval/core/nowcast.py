"""Nowcasts: live sums divided by the part of the feedback that has come by now (rules 30 to 33).

Of impressions of some age only a share F of their positives has come yet. `ArrivalCurves` has F
from the delays of final slates, by kind and segment. Effective impressions are the impressions of
each live pane times F at its age. Positives divided by effective impressions estimate the rate to
come. Effective counts are integers of 10**-6: they add over partitions that took the same delays.

The score of a slate changes as its feedback comes. The F of a ranking metric is the sum of the
scores that final slates had at an age, divided by the sum of their final ones.

The rows of effective counts: impressions by index of the kind, then slates with a request by index
of the kind, then such slates by metric and k. A row without a curve is 0.

`PastNowcasts` holds those of the past against the matured figures: how far one may be trusted.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from streameval.base.arrays import Ints
from streameval.base.limits import CLUSTERS, DELAY_BUCKETS, MICRO, MIN_DELAYS, MIN_SEGMENT_DELAYS
from streameval.core.definition import Definition, Window
from streameval.core.delays import ArrivalCurve, delay_edges
from streameval.core.merged_segments import Grouping, totals_of
from streameval.core.metrics import MEAN_SECTIONS, RANKING
from streameval.core.windows.aggregates import AGGREGATES
from streameval.core.windows.delays import Delays, ScoreDelays
from streameval.core.windows.panes import Windows, WindowState

DelaysBySegment = Mapping[tuple[str, ...], Ints]
"""Delays of final slates by segment, int64 (groups, `DELAY_BUCKETS`).

The groups are the kinds by index and the slates, which are counted, and the scores by metric and k.
"""


def delays_of(windows: Windows, segments: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], Ints]:
    """Return the delays of the matured basis of the longest window."""
    longest = max(windows.states, key=lambda state: state.window.size)
    parts: list[Any] = [
        longest.matured.totals[AGGREGATES.index(part)] for part in (Delays, ScoreDelays)
    ]
    found = (
        (segment, np.concatenate([part.of(index).reshape(-1, DELAY_BUCKETS) for part in parts]))
        for index, segment in enumerate(segments)
    )
    return add_delays({segment: delays} for segment, delays in found if delays.any())


def add_delays(many: Iterable[DelaysBySegment]) -> dict[tuple[str, ...], Ints]:
    """Return the delays of several partitions together."""
    whole: dict[tuple[str, ...], Ints] = {}
    for delays in many:
        for segment, counts in delays.items():
            whole[segment] = whole[segment] + counts if segment in whole else counts
    return whole


class ArrivalCurves:
    """F by segment or total: of the kinds by index, then of each metric and k.

    `many` are the delays of partitions: their nowcasts add up where all take the same curves.
    """

    def __init__(self, definition: Definition, many: Iterable[DelaysBySegment]) -> None:
        delays = add_delays(many)
        self._edges = delay_edges(definition.attribution_window)
        self.kinds = len(definition.kinds)
        self._delays = add_delays(
            {name: counts}
            for segment, counts in delays.items()
            for name in (segment, *totals_of(segment))
        )
        groups = self.kinds + 1 + len(definition.ks) * len(RANKING)
        everywhere = sum(delays.values(), np.zeros((groups, DELAY_BUCKETS), np.int64))
        self._everywhere = self._curves(everywhere, MIN_DELAYS)
        self.rows = self.kinds + len(self._everywhere)  # of effective counts
        self._known: dict[tuple[str, ...], list[ArrivalCurve | None]] = {}

    def of(self, segment: tuple[str, ...]) -> list[ArrivalCurve | None]:
        """Return the curves of a segment or total: its own, else the common ones.

        None stands where there are too few delays, or all scores are 0.
        """
        found = self._known.get(segment)
        if found is None:
            found, own = self._everywhere, self._delays.get(segment)
            if own is not None:
                mine = self._curves(own, MIN_SEGMENT_DELAYS)
                found = [one or other for one, other in zip(mine, found, strict=True)]
            self._known[segment] = found
        return found

    def _curves(self, delays: Ints, least: int) -> list[ArrivalCurve | None]:
        kinds, (slates, *scores) = delays[: self.kinds], delays[self.kinds :]
        known = [(counts, counts.sum() >= least) for counts in kinds]
        known += [(sums, slates.sum() >= least and sums.sum() > 0) for sums in scores]
        return [
            ArrivalCurve(self._edges, group.tolist()) if enough else None for group, enough in known
        ]


@dataclass(frozen=True, slots=True)
class YoungPanes:
    """The live panes that can still change at T, with the amounts they count by (segment, cluster).

    `moments` has the ages x of their borders (ms), falling: a slate shown at t has x = T + 1 - t,
    and its feedback up to T has delays below x. `counts`, int64 (2, panes, keys),
    are impressions and slates.
    """

    moments: list[int]
    counts: Ints
    _missing: dict[ArrivalCurve | None, Sequence[int]]

    @classmethod
    def of(
        cls, windows: Windows, state: WindowState, segment_keys: Ints, grouping: Grouping
    ) -> Self:
        """Return the young panes of a window; keys and grouping are as in `Reading`."""
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
        shape = (len(numbers), len(segment_keys))
        counts = np.zeros((2, *shape), np.int64)
        missing: dict[ArrivalCurve | None, Sequence[int]] = {None: [0] * len(numbers)}
        if not tables or not counts.size:
            return cls(moments, grouping.sums(counts), missing)
        column = _columns(windows, segment_keys)
        sizes = [len(table.keys) for _, table in tables]
        rows = np.repeat([index for index, _ in tables], sizes) * shape[1]
        rows += column[np.concatenate([table.keys for _, table in tables])]
        for counted in (0, 1):
            values = np.concatenate([table.values[counted] for _, table in tables])
            # Float sums of integers are exact below 2**53, and bincount is the fast one.
            sums = np.bincount(rows, weights=values, minlength=shape[0] * shape[1])
            counts[counted] = sums.astype(np.int64).reshape(shape)
        return cls(moments, grouping.sums(counts), missing)

    def effective(
        self, curves: Sequence[ArrivalCurve | None], kinds: int, part: slice, live: Ints
    ) -> Ints:
        """Return the rows of effective counts of one segment, int64 (rows, n).

        `part` of the keys belongs to it, and its `curves`: first one for each of the `kinds`.
        `live`, int64 (2, n), are impressions and slates of all live panes.
        """
        for curve in curves:
            if curve is not None and curve not in self._missing:
                self._missing[curve] = curve.missing(self.moments)
        # The share still to come, 10**-6, by curve and pane.
        to_come = np.array([self._missing[curve] for curve in curves], np.int64)
        impressions, slates = self.counts[:, :, part]
        found = np.concatenate(
            (
                MICRO * live[0] - to_come[:kinds] @ impressions,
                MICRO * live[1] - to_come @ slates,
            )
        )
        known = np.array([curve is not None for curve in curves])
        found[~np.concatenate((known[:kinds], known))] = 0
        return found


def _columns(windows: Windows, keys: Ints) -> Ints:
    """Return the index in `keys` by cell.

    A cell that is not there has only rows that cancel within each pane, so any index will do.
    """
    of_cell, cluster_of_cell = windows.cells.arrays()
    of_cells = of_cell * CLUSTERS + cluster_of_cell
    columns = np.zeros(int(max(of_cells.max(), keys[-1])) + 1, np.int64)
    columns[keys] = np.arange(len(keys))
    found: Ints = columns[of_cells]
    return found


# Nowcasts that wait for their end, of each window: one a minute with the default horizon.
_KEPT: Final = 32

# No list has a nowcast.
_FIGURES: Final = {
    section.name: [mean.name for mean in section.means]
    for section in MEAN_SECTIONS
    if section.name != "lists"
}
_Sections = Mapping[str, Sequence[Mapping[str, Any]]]
_Key = tuple[Any, ...]


class PastNowcasts:
    """Nowcasts that have not matured yet, and the last error of each figure that has nowcasts.

    A nowcast at T covers the panes up to the one that holds T. They are the matured window once
    that pane can no longer change, about H later.
    """

    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        self._labels = ("window", *definition.dimensions, "feedback", "k")
        windows = [window.name for window in definition.windows]
        # Panes that have the same figures share their keys, which are larger than the figures.
        self._keys: dict[str, tuple[_Key, ...]] = dict.fromkeys(windows, ())
        self._waiting: dict[str, dict[int, tuple[tuple[_Key, ...], array[float]]]] = {
            window: {} for window in windows
        }
        self._errors: dict[str, dict[_Key, float]] = {}

    def note(self, reading_time: int, sections: _Sections) -> None:
        """Keep the nowcasts at T (ms), and compare those whose panes are the matured ones now."""
        for window in self._definition.windows:
            self._note(window, reading_time, sections)

    def errors(self) -> list[dict[str, Any]]:
        """Return rows with `error_ratio`: (nowcast - matured) / matured, of the last comparison.

        Each has a `feedback` or a `k`, as its `metric` needs; the other is empty.
        """
        return [
            {**dict(zip((*self._labels, "metric"), key, strict=True)), "error_ratio": error}
            for found in self._errors.values()
            for key, error in found.items()
        ]

    def _note(self, window: Window, time: int, sections: _Sections) -> None:
        waiting = self._waiting[window.name]
        horizon, pane = self._definition.horizon, time // window.slide
        if pane % max(1, horizon // (_KEPT * window.slide)) == 0:
            nowcasts = self._of(sections, window, "nowcast")
            if (keys := tuple(nowcasts)) != self._keys[window.name]:
                self._keys[window.name] = keys
            waiting[pane] = self._keys[window.name], array("d", nowcasts.values())
        matured_pane = (time - horizon) // window.slide - 1
        if matured_pane in waiting:
            matured = self._of(sections, window, "matured")
            self._errors[window.name] = {
                key: (value - matured[key]) / matured[key]
                for key, value in zip(*waiting[matured_pane], strict=True)
                if matured.get(key)
            }
        for past in [number for number in waiting if number <= matured_pane]:
            del waiting[past]

    def _of(self, sections: _Sections, window: Window, basis: str) -> dict[_Key, float]:
        """Return the figures of a window, without those that are undefined."""
        wanted = window.name, basis
        return {
            (*labels, name): row[name]
            for section, names in _FIGURES.items()
            for row in sections[section]
            if (row["window"], row["basis"]) == wanted
            for labels in [[row.get(label, "") for label in self._labels]]
            for name in names
            if row[name] is not None
        }
