"""From sums to figures: the rows that `replay` prints and `/metrics` shows.

Sums of partitions with disjoint users add up exactly: counts, sums by cluster and nano-units are
integers, means over users carry their number and squared deviations (Chan's formula). A figure is
divided once, at the end. An undefined figure stays None and never becomes 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from streameval.base.arrays import Ints
from streameval.base.limits import CLUSTERS, OTHER
from streameval.core.definition import Definition
from streameval.core.windows.aggregates import AGGREGATES, Active, Aggregate, SegmentView
from streameval.core.windows.panes import Basis, Windows, WindowState
from streameval.core.windows.tables import CellTotals

BASES = ("live", "matured")
Segment = tuple[str, ...]
Row = dict[str, Any]


@dataclass(slots=True)
class SegmentSums:
    """The sums of one window, basis and segment.

    By kind: `rate_means` (over users) and `rate_squares` (sums of squared deviations from the
    mean). `clusters` (n,) has the clusters of its users, rising. `by_cluster`, int64 (rows, n), has
    a column for each cluster: the rows of all aggregates, one aggregate after another.
    `mature_impressions` counts the live impressions that can no longer change.
    """

    users: int
    rate_means: list[float]
    rate_squares: list[float]
    clusters: Ints
    by_cluster: Ints
    mature_impressions: int = 0

    def add(self, other: SegmentSums) -> None:
        """Add the sums of disjoint users."""
        users = self.users + other.users
        for kind, mean in enumerate(other.rate_means):
            apart = mean - self.rate_means[kind]
            if users:
                self.rate_means[kind] += apart * other.users / users
                self.rate_squares[kind] += apart * apart * self.users * other.users / users
            self.rate_squares[kind] += other.rate_squares[kind]
        self.users = users
        clusters = np.union1d(self.clusters, other.clusters)
        by_cluster = np.zeros((len(self.by_cluster), len(clusters)), np.int64)
        for part in (self, other):
            by_cluster[:, np.searchsorted(clusters, part.clusters)] += part.by_cluster
        self.clusters, self.by_cluster = clusters, by_cluster
        self.mature_impressions += other.mature_impressions

    def spread(self, aggregates: Sequence[Aggregate]) -> SegmentView:
        """Return the sums with a place for each cluster there can be, by aggregate."""
        spread = np.zeros((len(self.by_cluster), CLUSTERS), np.int64)
        spread[:, self.clusters] = self.by_cluster
        ends = list(accumulate(aggregate.cluster_rows for aggregate in aggregates))
        parts = np.split(spread, ends[:-1])
        by_cluster = {a.name: part for a, part in zip(aggregates, parts, strict=True)}
        return SegmentView(self.users, self.rate_means, self.rate_squares, by_cluster)


Sums = dict[tuple[int, str], dict[Segment, SegmentSums]]
"""By (index of the window, basis), then by segment, if it has an impression in the window."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Sorted rows by section: `rates`, `ranking`, `maturity`, and those of other aggregates."""

    sections: dict[str, list[Row]]

    @property
    def rates(self) -> list[Row]:
        """Rows by kind of feedback (docs/metrics.md)."""
        return self.sections["rates"]

    @property
    def ranking(self) -> list[Row]:
        """Rows by cutoff."""
        return self.sections["ranking"]

    @property
    def maturity(self) -> list[Row]:
        """The share of live impressions that can no longer change."""
        return self.sections["maturity"]


def sums_of(windows: Windows, segments: list[Segment]) -> Sums:
    """Return the sums of one partition at its reading time."""
    sums: Sums = {}
    for index, state in enumerate(windows.states):
        for name, basis in zip(BASES, (state.live, state.matured), strict=True):
            sums[index, name] = _basis_sums(windows, basis, segments)
        for segment, found in _mature_impressions(windows, state, segments).items():
            sums[index, "live"][segment].mature_impressions = found
    return sums


def _mature_impressions(
    windows: Windows, state: WindowState, segments: list[Segment]
) -> dict[Segment, int]:
    """Return the impressions in a live window that can no longer change, by segment."""
    mature = np.zeros(len(segments), np.int64)
    of_cell, _ = windows.cells.arrays()
    for pane in state.both():
        for counts in pane.tables[0]:
            np.add.at(mature, of_cell[counts.keys], counts.values[0])
    return {s: found for s, found in zip(segments, mature.tolist(), strict=True) if found}


def _basis_sums(
    windows: Windows, basis: Basis, segments: list[Segment]
) -> dict[Segment, SegmentSums]:
    of_cell, cluster_of_cell = windows.cells.arrays()
    counts, positives, *_ = basis.totals
    assert isinstance(counts, CellTotals)
    assert isinstance(positives, CellTotals)
    cells = np.flatnonzero(counts.of(0)[: len(windows.cells)])
    of_segment = of_cell[cells]
    keys = of_segment * CLUSTERS + cluster_of_cell[cells]
    active = Active(cells, keys, np.flatnonzero(np.bincount(keys)))
    by_cluster = np.concatenate(
        [
            aggregate.cluster_sums(totals, active)
            for aggregate, totals in zip(windows.aggregates, basis.totals, strict=True)
        ]
    )
    impressions = counts.of(0)[cells]
    rates = [positives.of(0, kind)[cells] / impressions for kind in range(positives.width)]
    found: dict[Segment, SegmentSums] = {}
    for index, chosen in _members(of_segment):
        means, squares = [], []
        for rate in rates:
            mine = rate[chosen]
            mean = float(mine.mean())
            means.append(mean)
            squares.append(float(np.square(mine - mean).sum()))
        first = index * CLUSTERS
        part = slice(*np.searchsorted(active.there, (first, first + CLUSTERS)).tolist())
        found[segments[index]] = SegmentSums(
            users=int(np.count_nonzero(of_segment == index)),
            rate_means=means,
            rate_squares=squares,
            clusters=active.there[part] - first,
            by_cluster=by_cluster[:, part],
        )
    return found


def _members(of_segment: Ints) -> Iterable[tuple[int, npt.NDArray[Any] | slice]]:
    """Yield each segment with its cells; numpy adds a contiguous run pairwise."""
    found = np.unique(of_segment)
    if len(found) == 0:
        return
    if len(found) == 1:
        yield int(found[0]), slice(None)
        return
    order = np.argsort(of_segment, kind="stable")
    starts = np.searchsorted(of_segment[order], found)
    yield from zip(found.tolist(), np.split(order, starts[1:]), strict=True)


def merge(many: Iterable[Sums], shown: Callable[[Segment], Segment] = lambda s: s) -> Sums:
    """Return the sums of several partitions (disjoint users).

    `shown` maps a segment to the segment that takes its sums. It bounds the union of the
    partitions' segments: each partition bounds only its own.
    """
    merged: Sums = {}
    for sums in many:
        for key, segments in sums.items():
            into = merged.setdefault(key, {})
            for segment, found in segments.items():
                name = shown(segment)
                if name in into:
                    into[name].add(found)
                else:
                    into[name] = found
    return merged


class ShownSegments:
    """The segments that a worker shows: the first `limit` it met, the rest is `__other__`.

    A segment that has left all windows makes room for another.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._met: set[Segment] = set()

    def keep(self, present: set[Segment]) -> None:
        """Give up segments that have left all windows, once `limit` segments are shown."""
        if len(self._met) >= self._limit:
            self._met &= present

    def __call__(self, segment: Segment) -> Segment:
        """Return the segment itself, or `__other__` in each dimension."""
        if segment in self._met:
            return segment
        rest = (OTHER,) * len(segment)
        if segment == rest or len(self._met) >= self._limit:
            return rest
        self._met.add(segment)
        return segment


def figures(definition: Definition, sums: Sums) -> Figures:
    """Return the rows of all windows, bases and segments that have an impression."""
    aggregates = [aggregate(definition) for aggregate in AGGREGATES]
    names = [*(one.section for one in AGGREGATES if one.section != "maturity"), "maturity"]
    sections: dict[str, list[Row]] = {name: [] for name in names}
    for (index, basis), segments in sums.items():
        window = definition.windows[index].name
        for segment, found in segments.items():
            labels = dict(zip(definition.dimensions, segment, strict=True))
            view = found.spread(aggregates)
            for aggregate in aggregates:
                sections[aggregate.section] += [
                    {"window": window, "basis": basis, **labels, **row}
                    for row in aggregate.figures(view)
                ]
            if basis == "live":
                share = found.mature_impressions / int(view.impressions.sum())
                sections["maturity"].append({"window": window, **labels, "maturity": share})

    def by_labels(row: Row) -> tuple[Any, ...]:
        labels = tuple(row[name] for name in definition.dimensions)
        return row["window"], row.get("basis", ""), labels, row.get("feedback", row.get("k", ""))

    return Figures({name: sorted(rows, key=by_labels) for name, rows in sections.items()})


def document(
    definition: Definition,
    sums: Sums,
    watermark: int | None,
    events: Mapping[str, Any],
    users: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the document of `streameval replay` (docs/metrics.md)."""
    found = figures(definition, sums)
    printed: dict[str, Any] = {
        "watermark": watermark,
        "events": dict(events),
        **found.sections,
    }
    if users is not None:
        printed["users"] = dict(users)
    return printed
