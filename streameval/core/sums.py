"""The sums that figures are made of: of one partition, and of several together.

Sums of partitions with disjoint users add up exactly: counts, sums by cluster and nano-units are
integers, means over users carry their number and squared deviations (Chan's formula).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np

from streameval.base.arrays import Floats, Ints
from streameval.base.limits import CLUSTERS
from streameval.core.merged_segments import Grouping, Segment, WithTotals
from streameval.core.nowcast import ArrivalCurves, YoungPanes
from streameval.core.windows.aggregate import Aggregate, ClusteredAggregate, View
from streameval.core.windows.panes import Basis, Windows
from streameval.core.windows.reading import read
from streameval.core.windows.tables import runs


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
