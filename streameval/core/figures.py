"""From sums to figures: the rows that `replay` prints and `/metrics` shows.

Sums of partitions with disjoint users add up exactly: counts, sums by cluster and nano-units are
integers, means over users carry their number and squared deviations (Chan's formula). A figure is
divided once, at the end. An undefined figure stays None and never becomes 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from streameval.base.arrays import Ints
from streameval.base.limits import CLUSTERS, MAX_RANK
from streameval.core.definition import Definition
from streameval.core.merged_segments import (
    beyond_bound,
    by_generality,
    is_total,
    merges_of,
    with_totals,
)
from streameval.core.nowcast import ArrivalCurves, YoungPanes
from streameval.core.windows.aggregate import (
    Aggregate,
    ClusteredAggregate,
    SegmentView,
)
from streameval.core.windows.aggregates import AGGREGATES
from streameval.core.windows.lists import DEEPER
from streameval.core.windows.panes import Windows
from streameval.core.windows.reading import Reading, read
from streameval.core.windows.tables import CellTotals, runs

BASES = ("live", "matured")
Segment = tuple[str, ...]
Row = dict[str, Any]


@dataclass(slots=True)
class SegmentSums:
    """The sums of one window, basis and segment.

    By kind: `rate_means` (over users) and `rate_squares` (sums of squared deviations from the
    mean). `clusters` (n,) has the clusters of its users, rising. `by_cluster`, int64 (rows, n), has
    a column for each cluster: the rows of all clustered aggregates, one aggregate after another.
    `plain` has the counts of each aggregate without clusters, int64 (slots,). Of a live window,
    `effective`, int64 (rows, n), has the effective counts (see `nowcast`), and `mature_impressions`
    counts the impressions that can no longer change.
    """

    users: int
    rate_means: list[float]
    rate_squares: list[float]
    clusters: Ints
    by_cluster: Ints
    plain: dict[str, Ints]
    effective: Ints
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
        parts = [(part, np.searchsorted(clusters, part.clusters)) for part in (self, other)]
        by_cluster = np.zeros((len(self.by_cluster), len(clusters)), np.int64)
        effective = np.zeros((len(self.effective), len(clusters)), np.int64)
        for part, columns in parts:
            by_cluster[:, columns] += part.by_cluster
            effective[:, columns] += part.effective
        self.clusters, self.by_cluster, self.effective = clusters, by_cluster, effective
        self.plain = {name: counts + other.plain[name] for name, counts in self.plain.items()}
        self.mature_impressions += other.mature_impressions

    def spread(self, aggregates: Sequence[Aggregate]) -> SegmentView:
        """Return the sums with a place for each cluster there can be, by aggregate."""
        spread = np.zeros((len(self.by_cluster), CLUSTERS), np.int64)
        spread[:, self.clusters] = self.by_cluster
        effective = np.zeros((len(self.effective), CLUSTERS), np.int64)
        effective[:, self.clusters] = self.effective
        clustered = [one for one in aggregates if isinstance(one, ClusteredAggregate)]
        ends = list(accumulate(aggregate.cluster_rows for aggregate in clustered))
        parts = np.split(spread, ends[:-1])
        by_cluster = {a.name: part for a, part in zip(clustered, parts, strict=True)}
        means, squares = self.rate_means, self.rate_squares
        return SegmentView(self.users, means, squares, by_cluster, self.plain, effective)


Sums = dict[tuple[int, str], dict[Segment, SegmentSums]]
"""By (index of the window, basis), then by segment or total that has a slate in it."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Sorted rows by section: the section of each aggregate, and `maturity`."""

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
    def values(self) -> list[Row]:
        """Rows by kind of feedback that has values."""
        return self.sections["values"]

    @property
    def lists(self) -> list[Row]:
        """One row a window, basis and segment."""
        return self.sections["lists"]

    @property
    def ranks(self) -> list[Row]:
        """Rows by kind of feedback and rank."""
        return self.sections["ranks"]

    @property
    def nowcast(self) -> list[Row]:
        """The share of the expected positives that has come, by kind of feedback."""
        return self.sections["nowcast"]

    @property
    def maturity(self) -> list[Row]:
        """The share of live impressions that can no longer change."""
        return self.sections["maturity"]


def sums_of(windows: Windows, segments: list[Segment], curves: ArrivalCurves) -> Sums:
    """Return the sums of one partition at its reading time; `curves` are for its nowcasts."""
    sums: Sums = {}
    merges = merges_of(windows.cells, segments)
    for index, state in enumerate(windows.states):
        live, matured = (read(windows, basis, segments) for basis in (state.live, state.matured))
        young = YoungPanes.of(windows, state, live.active)
        found = sums[index, "live"] = _live_sums(live, young, curves)
        settled = sums[index, "matured"] = _sums(matured)
        for merge in merges:
            clusters = merge.clusters(live.active.there)
            merged = live.merged(windows, merge, clusters)
            found |= _live_sums(merged, young.merged(clusters), curves)
            clusters = merge.clusters(matured.active.there)
            settled |= _sums(matured.merged(windows, merge, clusters))
    return sums


def _live_sums(
    reading: Reading, young: YoungPanes, curves: ArrivalCurves
) -> dict[Segment, SegmentSums]:
    """Return the sums of live panes, with the sums still to come."""
    sums = _sums(reading)
    for number, part in reading.parts():
        segment = reading.names[number]
        found = sums[segment]
        found.effective = young.effective(curves, segment, part, found.by_cluster[:2])
        young_impressions = int(young.counts[0][:, part].sum())
        found.mature_impressions = int(found.by_cluster[0].sum()) - young_impressions
    return sums


def _sums(reading: Reading) -> dict[Segment, SegmentSums]:
    counts, positives, *_ = reading.totals
    assert isinstance(counts, CellTotals)
    assert isinstance(positives, CellTotals)
    active = reading.active
    # A user with nothing but empty slates has no rate.
    shown, of_segment = active.cells, active.keys // CLUSTERS
    if not active.with_impression.all():
        shown, of_segment = shown[active.with_impression], of_segment[active.with_impression]
    impressions = counts.of(0)[shown]
    rates = [positives.of(0, kind)[shown] / impressions for kind in range(positives.width)]
    members = dict(_members(of_segment))
    by_cluster = np.concatenate(list(reading.by_cluster.values()))
    found: dict[Segment, SegmentSums] = {}
    nobody = np.empty(0, np.intp)
    for row, (number, part) in enumerate(reading.parts()):
        users = members.get(number, nobody)
        means, squares = [0.0] * len(rates), [0.0] * len(rates)
        for kind, rate in enumerate(rates if len(users) else ()):
            mine = rate[users]
            means[kind] = mean = float(mine.mean())
            squares[kind] = float(np.square(mine - mean).sum())
        found[reading.names[number]] = SegmentSums(
            users=len(users),
            rate_means=means,
            rate_squares=squares,
            clusters=active.there[part] - number * CLUSTERS,
            by_cluster=by_cluster[:, part],
            plain={name: counts[row] for name, counts in reading.plain.items()},
            effective=np.zeros((0, part.stop - part.start), np.int64),
        )
    return found


def _members(of_segment: Ints) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
    """Yield each segment with its cells, in their order."""
    narrow = of_segment.astype(np.min_scalar_type(int(of_segment.max(initial=0))))
    order = np.argsort(narrow, kind="stable")  # of 16 bits: several times as fast
    ordered = of_segment[order]
    for run in runs(ordered):
        yield int(ordered[run.start]), order[run]


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

    A segment that has left all windows makes room for another. A total takes no place: it is shown
    where one of its segments is.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._met: set[Segment] = set()
        self._shown: set[Segment] = set()

    def keep(self, present: set[Segment]) -> None:
        """Give up segments that have left all windows, once `limit` segments are shown."""
        if len(self._met) >= self._limit:
            self._met &= present
            self._shown = with_totals(self._met)

    def __call__(self, segment: Segment) -> Segment:
        """Return the segment itself, or `__other__` in each dimension that is not `__all__`."""
        if segment in self._shown:
            return segment
        rest = beyond_bound(segment)
        if is_total(segment) or segment == rest or len(self._met) >= self._limit:
            return rest
        self._met.add(segment)
        self._shown |= with_totals([segment])
        return segment


def figures(definition: Definition, sums: Sums) -> Figures:
    """Return the rows of all windows, bases and segments that have an impression."""
    aggregates = [aggregate(definition) for aggregate in AGGREGATES]
    in_order = (one.section for one in AGGREGATES if one.section != "maturity")
    names = [*dict.fromkeys(in_order), "maturity"]
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
                    sections[aggregate.section] += [
                        {"window": window, "basis": "nowcast", **labels, **row}
                        for row in aggregate.nowcast(view)
                    ]
            impressions = int(view.impressions.sum())
            if basis == "live" and impressions:
                share = found.mature_impressions / impressions
                sections["maturity"].append({"window": window, **labels, "maturity": share})

    def by_labels(row: Row) -> tuple[Any, ...]:
        labels = by_generality(tuple(row[name] for name in definition.dimensions))
        key = row.get("feedback", row.get("k", ""))
        rank = row.get("rank", 0)
        return (
            row["window"],
            row.get("basis", ""),
            labels,
            key,
            MAX_RANK if rank == DEEPER else rank,
        )

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
