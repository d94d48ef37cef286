"""From sums to figures: the rows that `replay` prints and `/metrics` shows.

Sums of partitions with disjoint users add up exactly: counts, sums by cluster and nano-units are
integers, means over users carry their number and squared deviations (Chan's formula). A figure is
divided once, at the end. What is undefined is None, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streameval.base.arrays import Ints
from streameval.base.limits import CLUSTERS, NANO, OTHER
from streameval.core.definition import Definition
from streameval.core.metrics import RANKING
from streameval.core.windows.panes import Cells, WindowState

BASES = ("live", "matured")
Segment = tuple[str, ...]
Row = dict[str, Any]


class ByCluster(NamedTuple):
    """Sums with a place for each cluster, int64 (256,), (kinds, 256) or (1 + columns, 256)."""

    impressions: Ints
    slates: Ints
    positives: Ints
    scores: Ints


@dataclass(slots=True)
class SegmentSums:
    """The sums of one window, basis and segment.

    By kind: `rate_means` and `rate_squares` (mean over users, and the sum of squared deviations
    from it). `clusters` (n,) are those of its users, rising, and `by_cluster`, int64 (rows, n), has
    a column for each: rows of impressions, slates, positives of each kind, slates with a positive,
    and each column of scores in nano-units. `mature_impressions`: of live, those that can no
    longer change.
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

    def spread(self) -> ByCluster:
        """The sums with a place for each cluster there can be."""
        spread = np.zeros((len(self.by_cluster), CLUSTERS), np.int64)
        spread[:, self.clusters] = self.by_cluster
        return ByCluster(spread[0], spread[1], *np.split(spread[2:], [len(self.rate_means)]))


Sums = dict[tuple[int, str], dict[Segment, SegmentSums]]
"""By (index of the window, basis), then by segment: those with an impression in the window."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Rows of `rates`, `ranking` and `maturity`, sorted; what they mean stands in DESIGN."""

    rates: list[Row]
    ranking: list[Row]
    maturity: list[Row]


def sums_of(states: list[WindowState], cells: Cells, segments: list[Segment]) -> Sums:
    """The sums of one partition at its reading time."""
    sums: Sums = {}
    for index, state in enumerate(states):
        for name, basis in zip(BASES, (state.live, state.matured), strict=True):
            sums[index, name] = _basis_sums(basis.totals, cells, segments)
        mature = np.zeros(len(segments), np.int64)
        of_cell, _ = cells.arrays()
        for pane in state.both():
            for counts in pane.counts:
                np.add.at(mature, of_cell[counts.cells], counts.impressions)
        for segment, found in zip(segments, mature.tolist(), strict=True):
            if found:
                sums[index, "live"][segment].mature_impressions = found
    return sums


def _basis_sums(totals: Any, cells: Cells, segments: list[Segment]) -> dict[Segment, SegmentSums]:
    of_cell, cluster_of_cell = cells.arrays()
    active = np.flatnonzero(totals.impressions[: len(cells)])
    of_segment = of_cell[active]
    impressions = totals.impressions[active]
    slates = totals.slates[active]
    positives = [values[active] for values in totals.positives]
    keys = of_segment * CLUSTERS + cluster_of_cell[active]
    there = np.flatnonzero(np.bincount(keys))
    # Float sums of integers are exact below 2**53, and bincount is the fast one.
    counted = [
        np.bincount(keys, weights=values)[there].astype(np.int64)
        for values in (impressions, slates, *positives)
    ]
    # Whatever has a score was shown, so its cluster is there.
    by_cluster = np.concatenate((np.array(counted), totals.scores.of(there).T))
    rates = [values / impressions for values in positives]
    answer: dict[Segment, SegmentSums] = {}
    for index, chosen in _members(of_segment):
        means, squares = [], []
        for rate in rates:
            mine = rate[chosen]
            mean = float(mine.mean())
            means.append(mean)
            squares.append(float(np.square(mine - mean).sum()))
        first = index * CLUSTERS
        part = slice(*np.searchsorted(there, (first, first + CLUSTERS)).tolist())
        answer[segments[index]] = SegmentSums(
            users=len(mine) if rates else int(np.count_nonzero(of_segment == index)),
            rate_means=means,
            rate_squares=squares,
            clusters=there[part] - first,
            by_cluster=by_cluster[:, part],
        )
    return answer


def _members(of_segment: Ints) -> Iterable[tuple[int, npt.NDArray[Any] | slice]]:
    """Each segment with its cells; sums over a contiguous run are numpy's pairwise ones."""
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
    """The sums of several partitions (disjoint users).

    `shown` says under which segment to add one up: the tables of partitions are bounded, their
    union is bounded by it.
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

    One that has left all windows loses its place where places are short.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._met: set[Segment] = set()

    def keep(self, present: set[Segment]) -> None:
        """Where all places are taken, give back those of segments that are in no window."""
        if len(self._met) >= self._limit:
            self._met &= present

    def __call__(self, segment: Segment) -> Segment:
        """The segment itself, or `__other__` in each dimension."""
        if segment in self._met:
            return segment
        rest = (OTHER,) * len(segment)
        if segment == rest or len(self._met) >= self._limit:
            return rest
        self._met.add(segment)
        return segment


def figures(definition: Definition, sums: Sums) -> Figures:
    """The rows of all windows, bases and segments that have an impression."""
    rates: list[Row] = []
    ranking: list[Row] = []
    maturity: list[Row] = []
    columns = [(k, metric.name) for k in definition.ks for metric in RANKING]
    for (index, basis), segments in sums.items():
        window = definition.windows[index].name
        for segment, found in segments.items():
            labels = dict(zip(definition.dimensions, segment, strict=True))
            place: Row = {"window": window, "basis": basis, **labels}
            by_cluster = found.spread()
            rates += _rates(definition, place, found, by_cluster)
            ranking += _ranking(definition, columns, place, by_cluster)
            if basis == "live":
                impressions = int(by_cluster.impressions.sum())
                share = found.mature_impressions / impressions
                maturity.append({"window": window, **labels, "maturity": share})
    names = definition.dimensions

    def by_labels(row: Row) -> tuple[Any, ...]:
        labels = tuple(row[name] for name in names)
        return row["window"], row.get("basis", ""), labels, row.get("feedback", row.get("k", ""))

    return Figures(
        sorted(rates, key=by_labels),
        sorted(ranking, key=by_labels),
        sorted(maturity, key=by_labels),
    )


def _rates(
    definition: Definition, place: Row, found: SegmentSums, by_cluster: ByCluster
) -> Iterable[Row]:
    impressions = int(by_cluster.impressions.sum())
    for index, kind in enumerate(definition.kinds):
        positives = int(by_cluster.positives[index].sum())
        stderr = None
        if found.users > 1:
            stderr = math.sqrt(found.rate_squares[index] / (found.users - 1) / found.users)
        yield place | {
            "feedback": kind,
            "users": found.users,
            "impressions": impressions,
            "positives": positives,
            "positive_rate": found.rate_means[index],
            "positive_rate_stderr": stderr,
            "positives_per_impression": positives / impressions,
            "positives_per_impression_stderr": ratio_stderr(
                by_cluster.positives[index], by_cluster.impressions
            ),
        }


def _ranking(
    definition: Definition, columns: list[tuple[int, str]], place: Row, found: ByCluster
) -> Iterable[Row]:
    slates = int(found.slates.sum())
    with_positive = int(found.scores[0].sum())
    for k in definition.ks:
        row = place | {"k": k, "slates": slates, "slates_with_positive": with_positive}
        for column, (at, name) in enumerate(columns, start=1):
            if at == k:
                nanos = found.scores[column]
                stderr = ratio_stderr(nanos, found.slates)
                row[name] = int(nanos.sum()) / (slates * NANO) if slates else None
                row[f"{name}_stderr"] = None if stderr is None else stderr / NANO
        yield row


def ratio_stderr(numerators: Ints, denominators: Ints) -> float | None:
    """The standard error of Σx/Σy from sums by cluster, int64 (256,) each.

    Delta method with clusters as units (DESIGN, section 2): n non-empty clusters, d = x - R*y,
    sqrt(n/(n-1) * Σd²) / Σy. None below two clusters.
    """
    count = int(np.count_nonzero(denominators))
    if count < 2:
        return None
    total = int(denominators.sum())
    apart = numerators - int(numerators.sum()) / total * denominators
    return math.sqrt(count / (count - 1) * float(np.square(apart).sum())) / total


def document(
    definition: Definition,
    sums: Sums,
    watermark: int | None,
    events: Mapping[str, Any],
    users: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What `streameval replay` prints (DESIGN, section 7)."""
    found = figures(definition, sums)
    answer: dict[str, Any] = {
        "watermark": watermark,
        "events": dict(events),
        "rates": found.rates,
        "ranking": found.ranking,
        "maturity": found.maturity,
    }
    if users is not None:
        answer["users"] = dict(users)
    return answer
