"""The sums of one basis at its reading time, by segment or by total."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from streameval.base.arrays import Ints
from streameval.base.limits import CLUSTERS
from streameval.core.merged_segments import Clusters, Merge, Segment
from streameval.core.windows.aggregate import (
    Active,
    Aggregate,
    ClusteredAggregate,
    SegmentAggregate,
)
from streameval.core.windows.panes import Basis, Windows
from streameval.core.windows.tables import CellTotals, SegmentTotals, Totals, runs


@dataclass(frozen=True, slots=True)
class Reading:
    """The sums of a basis, of the segments or totals that have a cell in it.

    `names` has all segments by number. `totals` are parallel to `aggregates`. `by_cluster`, int64
    (rows, keys that are there), has the rows of each clustered aggregate by its name. `plain`,
    int64 (present segments, slots), has the counts of each aggregate without clusters.
    """

    names: Sequence[Segment]
    aggregates: Sequence[Aggregate]
    totals: Sequence[Totals]
    active: Active
    by_cluster: Mapping[str, Ints]
    plain: Mapping[str, Ints]

    @property
    def present(self) -> Ints:
        """The numbers of the segments that are present, rising."""
        return np.unique(self.active.there // CLUSTERS)

    def parts(self) -> Iterator[tuple[int, slice]]:
        """Yield the number of each segment that is present, with its part of the keys."""
        of_key = self.active.there // CLUSTERS
        for run in runs(of_key):
            yield int(of_key[run.start]), run

    def merged(self, windows: Windows, merge: Merge, clusters: Clusters) -> Reading:
        """Return the sums of the totals; `clusters` leads to them from the keys that are there."""
        heads, into = merge.users(self.active.cells)
        totals = [
            one.merged(self.active.cells, into, len(heads)) if isinstance(one, CellTotals) else one
            for one in self.totals
        ]
        of_cell, cluster_of_cell = windows.cells.arrays()
        keys = merge.number(of_cell[heads]) * CLUSTERS + cluster_of_cell[heads]
        active = _active(np.arange(len(heads)), keys, clusters.there, totals[0])
        by_cluster = {
            aggregate.name: aggregate.cluster_sums(one, active)
            if isinstance(one, CellTotals) and aggregate.by_user
            else clusters.added(self.by_cluster[aggregate.name])
            for aggregate, one in zip(self.aggregates, totals, strict=True)
            if isinstance(aggregate, ClusteredAggregate)
        }
        present, number = np.unique(merge.number(self.present), return_inverse=True)
        plain = {}
        for name, counts in self.plain.items():
            plain[name] = np.zeros((len(present), counts.shape[1]), np.int64)
            np.add.at(plain[name], number, counts)
        return Reading(merge.names, self.aggregates, totals, active, by_cluster, plain)


def read(windows: Windows, basis: Basis, segments: Sequence[Segment]) -> Reading:
    """Return the sums of a basis; `segments` are the names by number."""
    of_cell, cluster_of_cell = windows.cells.arrays()
    counts = basis.totals[0]
    assert isinstance(counts, CellTotals)
    cells = np.flatnonzero((counts.of(0) | counts.of(1))[: len(windows.cells)])
    keys = of_cell[cells] * CLUSTERS + cluster_of_cell[cells]
    active = _active(cells, keys, np.flatnonzero(np.bincount(keys)), counts)
    named = list(zip(windows.aggregates, basis.totals, strict=True))
    by_cluster = {
        aggregate.name: aggregate.cluster_sums(totals, active)
        for aggregate, totals in named
        if isinstance(aggregate, ClusteredAggregate)
    }
    present = np.unique(active.there // CLUSTERS).tolist()
    plain = {
        aggregate.name: np.array([totals.of(number) for number in present], np.int64).reshape(
            len(present), totals.width
        )
        for aggregate, totals in named
        if isinstance(aggregate, SegmentAggregate) and isinstance(totals, SegmentTotals)
    }
    return Reading(segments, windows.aggregates, basis.totals, active, by_cluster, plain)


def _active(cells: Ints, keys: Ints, there: Ints, counts: Totals) -> Active:
    assert isinstance(counts, CellTotals)
    return Active.of(cells, keys, there, counts.of(0)[cells] > 0)
