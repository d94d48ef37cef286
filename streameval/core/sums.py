"""The sums that figures are made of: of one partition at a time T, and of several together.

Sums of partitions with disjoint users add up exactly: counts, sums by cluster and nano-units are
integers, means over users carry their number and squared deviations (Chan's formula).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from streameval.base.arrays import Floats, Ints, distinct
from streameval.base.limits import CLUSTERS
from streameval.core.merged_segments import Grouping, Segment, Users, WithTotals
from streameval.core.nowcast import ArrivalCurves, YoungPanes
from streameval.core.windows.aggregate import (
    Active,
    Aggregate,
    CellAggregate,
    ClusteredAggregate,
    SegmentAggregate,
    View,
)
from streameval.core.windows.panes import Basis, Windows
from streameval.core.windows.tables import CellTotals, SegmentTotals, SparseTotals, Totals, runs


@dataclass(frozen=True, slots=True)
class Reading:
    """The sums of a basis, by segment that has a cell in it and by total.

    `present` numbers these segments and totals, rising. `users` (present,), and `rate_means` and
    `rate_squares`, float64 (kinds, present), are as in `BasisSums`. `keys` are a number * 256 + a
    cluster that has a user in it, rising. `by_cluster`, int64 (rows, keys), has the rows of all
    clustered aggregates, one aggregate after another. `plain`, int64 (slots, present), has the
    counts of each aggregate that has figures and no clusters. `grouping` leads from `segment_keys`
    to the keys of segments and totals.
    """

    present: Ints
    users: Ints
    rate_means: Floats
    rate_squares: Floats
    keys: Ints
    by_cluster: Ints
    plain: Mapping[str, Ints]
    segment_keys: Ints
    grouping: Grouping


def read(windows: Windows, basis: Basis, numbered: WithTotals) -> Reading:
    """Return the sums of a basis."""
    of_cell, cluster_of_cell = windows.cells.arrays()
    named = list(zip(windows.aggregates, basis.totals, strict=True))
    counts, positives, *_ = basis.totals
    assert isinstance(counts, CellTotals)
    assert isinstance(positives, CellTotals)
    cells = np.flatnonzero((counts.of(0) | counts.of(1))[: len(windows.cells)])
    impressions, positive = counts.of(0)[cells], positives.of_cells(cells)[0]
    of_each = of_cell[cells] * CLUSTERS + cluster_of_cell[cells]
    segment_keys = np.flatnonzero(np.bincount(of_each))
    keys, grouping = numbered.keys(segment_keys)
    segments = distinct(segment_keys // CLUSTERS)
    present = distinct(numbered.numbers(segments))
    by_cell = Active.of(of_each, segment_keys, impressions > 0)
    by_cluster: list[list[Ints]] = []
    by_user = []
    for aggregate, totals in named:
        if isinstance(aggregate, CellAggregate) and isinstance(totals, CellTotals):
            sums = totals.of_cells(cells)
            if aggregate.by_user:
                by_cluster.append([])
                by_user.append((aggregate, sums, by_cluster[-1]))
            else:
                by_cluster.append([grouping.sums(aggregate.cluster_sums(sums, by_cell))])
        elif isinstance(totals, SparseTotals):
            by_cluster.append([grouping.sums(totals.of(segment_keys).T)])
    rates = _Rates(present, len(positive))
    ends = np.searchsorted(keys, np.array([*numbered.firsts[1:], len(numbered.names)]) * CLUSTERS)
    for users, keys_of_users in zip(numbered.users(cells), np.split(keys, ends[:-1]), strict=True):
        shown = users.sums(impressions)
        rates.add(users, shown, users.sums(positive))
        of_user = users.numbers * CLUSTERS + cluster_of_cell[users.cells]
        active = Active.of(of_user, keys_of_users, shown > 0)
        for aggregate, sums, parts in by_user:
            parts.append(aggregate.cluster_sums(users.sums(sums), active))
    counted_in = np.searchsorted(present, numbered.numbers(segments)).T
    plain = {
        aggregate.name: _plain(totals, segments, counted_in, len(present))
        for aggregate, totals in named
        if isinstance(aggregate, SegmentAggregate) and aggregate.has_figures
    }
    return Reading(
        present,
        rates.users,
        rates.means,
        rates.squares,
        keys,
        np.concatenate([np.concatenate(parts, axis=1) for parts in by_cluster]),
        plain,
        segment_keys,
        grouping,
    )


def _plain(totals: Totals, segments: Ints, counted_in: Ints, present: int) -> Ints:
    """Return the counts of segments, added to each place of `present` that they count in."""
    assert isinstance(totals, SegmentTotals)
    found = np.zeros((totals.width, present), np.int64)
    for segment, columns in zip(segments.tolist(), counted_in, strict=True):
        found[:, columns] += totals.of(segment)[0, :, np.newaxis]
    return found


class _Rates:
    """Users and the means of their rates, by number of the segment or total in `present`."""

    def __init__(self, present: Ints, kinds: int) -> None:
        self._present = present
        self.users = np.zeros(len(present), np.int64)
        self.means = np.zeros((kinds, len(present)))
        self.squares = np.zeros((kinds, len(present)))

    def add(self, users: Users, impressions: Ints, positives: Ints) -> None:
        """Add the users of other segments or totals than before."""
        numbers = users.numbers
        if not impressions.all():
            # A user with nothing but empty slates has no rate.
            some = impressions > 0
            numbers, impressions, positives = numbers[some], impressions[some], positives[:, some]
        rates = positives / impressions
        for number, members in _members(numbers):
            index = np.searchsorted(self._present, number)
            mine = rates.take(members, axis=1)
            self.users[index] = len(members)
            self.means[:, index] = means = mine.mean(axis=1)
            self.squares[:, index] = np.square(mine - means[:, np.newaxis]).sum(axis=1)


def _members(numbers: Ints) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
    """Yield each number with the indices at which it stands."""
    narrow = numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))
    order = np.argsort(narrow, kind="stable")  # of 16 bits: several times as fast
    ordered = numbers[order]
    for run in runs(ordered):
        yield int(ordered[run.start]), order[run]


@dataclass(slots=True)
class BasisSums:
    """The sums of one window and basis, of the segments and totals `names` that have a slate in it.

    `users` (names,). By kind and name, float64 (kinds, names): `rate_means` over users, and
    `rate_squares`, the sums of squared deviations from the mean. `keys` (n,), rising, are the index
    of the name * 256 + the cluster, where a cluster has a user. `by_cluster`, int64 (rows, n), has
    the rows of all clustered aggregates, one aggregate after another. `plain`, int64 (slots,
    names), has the counts of each aggregate without clusters. Of a live window, `effective`, int64
    (rows, n), has the effective counts (see `nowcast`), and `mature_impressions` (names,) counts
    the impressions that can no longer change.
    """

    names: list[Segment]
    users: Ints
    rate_means: Floats
    rate_squares: Floats
    keys: Ints
    by_cluster: Ints
    plain: Mapping[str, Ints]
    effective: Ints
    mature_impressions: Ints

    @classmethod
    def like(cls, other: BasisSums, names: Sequence[Segment], keys: Ints) -> BasisSums:
        """Return sums of nothing, with the rows of `other`."""
        size = len(names)
        return cls(
            list(names),
            np.zeros(size, np.int64),
            np.zeros((len(other.rate_means), size)),
            np.zeros((len(other.rate_means), size)),
            keys,
            np.zeros((len(other.by_cluster), len(keys)), np.int64),
            {name: np.zeros((len(found), size), np.int64) for name, found in other.plain.items()},
            np.zeros((len(other.effective), len(keys)), np.int64),
            np.zeros(size, np.int64),
        )

    @property
    def impressions(self) -> Ints:
        """Impressions by name."""
        found = np.bincount(
            self.keys // CLUSTERS, weights=self.by_cluster[0], minlength=len(self.names)
        )
        return found.astype(np.int64)

    def add(self, other: BasisSums, rows: Ints, names: Ints, keys: Ints) -> None:
        """Add the sums of disjoint users: the `rows` of names of `other` to the rows `names` here.

        `keys` has the index here of each key there; neither a name nor a key is added to twice.
        """
        users, more = self.users[names], other.users[rows]
        whole = np.maximum(users + more, 1)
        means, squares = other.rate_means[:, rows], other.rate_squares[:, rows]
        apart = means - self.rate_means[:, names]
        self.rate_squares[:, names] += apart * apart * users * more / whole
        self.rate_squares[:, names] += squares
        joined = self.rate_means[:, names] + apart * more / whole
        self.rate_means[:, names] = np.where(users == 0, means, joined)
        self.users[names] += more
        self.mature_impressions[names] += other.mature_impressions[rows]
        for name, counts in self.plain.items():
            counts[:, names] += other.plain[name][:, rows]
        same = np.array_equal(keys, np.arange(self.by_cluster.shape[1]))
        if same and len(rows) == len(other.names):  # several times as fast
            self.by_cluster += other.by_cluster
            self.effective += other.effective
            return
        chosen = np.isin(other.keys // CLUSTERS, rows)
        self.by_cluster[:, keys[chosen]] += other.by_cluster[:, chosen]
        self.effective[:, keys[chosen]] += other.effective[:, chosen]

    def views(self, aggregates: Sequence[Aggregate], size: int) -> Iterator[View]:
        """Yield the sums of `size` names each, with a place for each cluster there can be."""
        clustered = [one for one in aggregates if isinstance(one, ClusteredAggregate)]
        ends = list(accumulate(aggregate.cluster_rows for aggregate in clustered))
        for first in range(0, len(self.names), size):
            some = slice(first, first + size)
            columns = slice(*np.searchsorted(self.keys, (first * CLUSTERS, some.stop * CLUSTERS)))
            positions = self.keys[columns] - first * CLUSTERS
            names = self.names[some]

            def spread(
                sums: Ints,
                positions: Ints = positions,
                columns: slice = columns,
                count: int = len(names),
            ) -> Ints:
                found = np.zeros((len(sums), count * CLUSTERS), np.int64)
                found[:, positions] = sums[:, columns]
                return found.reshape(len(sums), count, CLUSTERS)

            parts = np.split(spread(self.by_cluster), ends[:-1])
            yield View(
                names,
                self.users[some],
                self.rate_means[:, some],
                self.rate_squares[:, some],
                {one.name: part for one, part in zip(clustered, parts, strict=True)},
                {name: counts[:, some] for name, counts in self.plain.items()},
                spread(self.effective),
                self.mature_impressions[some],
            )


Sums = dict[tuple[int, str], BasisSums]
"""By (index of the window, basis)."""


# Sums of a basis larger than this are read again: 2 MB, some 25 segments and totals.
MAX_KEPT_SUMS: Final = 1 << 18


class _Known(NamedTuple):
    """The last reading of a basis, after so many `changes`; the rest is as in `Reading`."""

    changes: int
    sums: BasisSums
    segment_keys: Ints
    grouping: Grouping


class SumsReader:
    """Reads the sums of one partition; `segments` are the names by number.

    A basis that has not changed since the last reading is not read again, unless its sums are too
    large to keep: a matured window changes little but when a pane enters or leaves it.
    """

    def __init__(self, windows: Windows, segments: list[Segment]) -> None:
        self._windows, self._segments = windows, segments
        self._names: list[Segment] = []
        self._known: dict[tuple[int, str], _Known] = {}

    def read(self, curves: ArrivalCurves) -> Sums:
        """Return the sums at the windows' reading time; `curves` are for nowcasts."""
        if self._names != self._segments:
            self._names, self._known = list(self._segments), {}
        numbered: WithTotals | None = None
        sums: Sums = {}
        for index, state in enumerate(self._windows.states):
            for name, basis in (("live", state.live), ("matured", state.matured)):
                known = self._known.pop((index, name), None)
                if known is None or known.changes != basis.changes:
                    numbered = numbered or WithTotals(self._windows.cells, self._segments)
                    known = _read(self._windows, basis, numbered)
                if known.sums.by_cluster.size <= MAX_KEPT_SUMS:
                    self._known[index, name] = known
                sums[index, name] = known.sums
                if name == "live":
                    young = YoungPanes.of(self._windows, state, known.segment_keys, known.grouping)
                    sums[index, name] = _with_expected(known.sums, young, curves)
        return sums


def _read(windows: Windows, basis: Basis, numbered: WithTotals) -> _Known:
    found = read(windows, basis, numbered)
    numbers = found.keys // CLUSTERS
    sums = BasisSums(
        [numbered.names[number] for number in found.present.tolist()],
        found.users,
        found.rate_means,
        found.rate_squares,
        np.searchsorted(found.present, numbers) * CLUSTERS + found.keys % CLUSTERS,
        found.by_cluster,
        found.plain,
        np.zeros((0, len(numbers)), np.int64),
        np.zeros(len(found.present), np.int64),
    )
    return _Known(basis.changes, sums, found.segment_keys, found.grouping)


def _with_expected(sums: BasisSums, young: YoungPanes, curves: ArrivalCurves) -> BasisSums:
    """Return sums of live panes with the feedback that is still to come."""
    parts = runs(sums.keys // CLUSTERS)
    live = sums.by_cluster[:2]
    effective = [
        young.effective(curves.of(name), curves.kinds, part, live[:, part])
        for name, part in zip(sums.names, parts, strict=True)
    ]
    rows = curves.rows
    mature = live[0] - young.counts[0].sum(axis=0)
    begins = [part.start for part in parts]
    return replace(
        sums,
        effective=np.concatenate(effective or [np.zeros((rows, 0), np.int64)], axis=1),
        mature_impressions=np.add.reduceat(mature, begins) if parts else mature,
    )


def merge(many: Iterable[Sums], shown: Callable[[Segment], Segment] = lambda s: s) -> Sums:
    """Return the sums of several partitions (disjoint users).

    `shown` maps a segment to the segment that takes its sums. It bounds the union of the
    partitions' segments: each partition bounds only its own.
    """
    parts: dict[tuple[int, str], list[BasisSums]] = {}
    for sums in many:
        for key, found in sums.items():
            parts.setdefault(key, []).append(found)
    return {key: merge_disjoint(found, shown) for key, found in parts.items()}


def merge_disjoint(parts: Sequence[BasisSums], shown: Callable[[Segment], Segment]) -> BasisSums:
    """Return the sums of disjoint users together, at least one; `shown` is as for `merge`."""
    index: dict[Segment, int] = {}
    numbers = [
        np.array([index.setdefault(shown(name), len(index)) for name in part.names], np.int64)
        for part in parts
    ]
    keys = [
        of_name[part.keys // CLUSTERS] * CLUSTERS + part.keys % CLUSTERS
        for part, of_name in zip(parts, numbers, strict=True)
    ]
    all_keys = np.flatnonzero(np.bincount(np.concatenate(keys)))
    columns = np.zeros(len(index) * CLUSTERS, np.int64)
    columns[all_keys] = np.arange(len(all_keys))
    whole = BasisSums.like(parts[0], list(index), all_keys)
    for part, of_name, of_key in zip(parts, numbers, keys, strict=True):
        for rows in _apart(of_name):
            whole.add(part, rows, of_name[rows], columns[of_key])
    return whole


def _apart(numbers: Ints) -> Iterator[Ints]:
    """Yield all indices, in groups in which no number repeats."""
    left = np.arange(len(numbers))
    while len(left):
        _, first = np.unique(numbers[left], return_index=True)
        chosen = np.sort(first)
        yield left[chosen]
        left = np.delete(left, chosen)
