"""The worth of single slates to an experiment: what each adds to sums, extremes and first lists."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import numpy as np

from streameval.base.arrays import Floats, Ints, distinct
from streameval.base.limits import CLUSTERS
from streameval.core.definition import Definition
from streameval.core.experiments.first_lists import FirstList
from streameval.core.experiments.metrics import row_names
from streameval.core.experiments.slate_figures import SlateFigures, widen
from streameval.core.ledger import Rows
from streameval.core.list_shapes import ListShapes
from streameval.core.slate import NO_FEEDBACK, Slate
from streameval.core.windows.aggregate import Active, Aggregate, CellAggregate, ClusteredAggregate
from streameval.core.windows.cells import Cells, cluster_of
from streameval.core.windows.tables import CellTotals, SparseTotals, Totals, starts
from streameval.core.windows.values import HALF, LOW

# Worths of slates that are remembered, some 400 bytes each: most slates have one of a few.
_MOST_WORTHS: Final = 4_096

Worth = tuple[int, bool, Any, Any, int]
"""The inputs of a slate's sums, beside its values and its latency."""


class Worths:
    """The rows that slates add to the sums, by the aggregates of the windows.

    Slates repeat, so the columns of slates seen before are remembered. Values and latencies, which
    hardly repeat, are added one by one.
    """

    def __init__(self, definition: Definition, aggregates: Sequence[Aggregate]) -> None:
        names = row_names(definition)
        self.rows = len(names)
        self._names = names
        self._aggregates = [
            aggregate
            for aggregate in aggregates
            if isinstance(aggregate, ClusteredAggregate) and aggregate.by_worth
        ]
        self._latencies = names.index("slates_with_latency")
        self._slates, self._abandoned = names.index("slates"), names.index("abandoned_slates")
        kinds = definition.valued_kinds
        self._first_half = self.rows - 2 * len(kinds)
        self._halves = {
            definition.kinds.index(kind): self._first_half + 2 * number
            for number, kind in enumerate(kinds)
        }
        ends = accumulate(aggregate.cluster_rows for aggregate in self._aggregates)
        assert max(ends) == self._first_half, "each row has a name"
        self._index: dict[Worth, int] = {}
        self._columns = np.zeros((_MOST_WORTHS, self._first_half), np.int64)
        self._values: dict[int, tuple[int, ...]] = {}
        self._figures = SlateFigures(definition)
        self._shapes = ListShapes(definition)

    def add(self, slates: Sequence[Slate], sums: Ints) -> Floats:
        """Add slates to `sums`, int64 (rows, 256).

        Returns the smallest and the largest figure of a single slate, as `ArmSums` has them.
        """
        extremes = []
        for start in range(0, len(slates), _MOST_WORTHS):
            part = slates[start : start + _MOST_WORTHS]
            index = self._index_of(part)
            clusters = np.array([cluster_of(slate.user) for slate in part])
            order = np.argsort(clusters, kind="stable")
            begins = starts(clusters[order])
            found = np.add.reduceat(self._columns[index[order]], begins, axis=0)
            sums[: self._first_half, clusters[order][begins]] += found.T
            amounts = self._add_amounts(part, clusters, sums)
            kinds = distinct(index)
            repeated = np.searchsorted(kinds, index)
            extremes.append(self._figures.extremes(self._columns[kinds], repeated, amounts))
        return functools.reduce(widen, extremes)

    def first_lists(self, slates: Sequence[Slate]) -> list[FirstList]:
        """Return the first list that each slate would be."""
        found: list[FirstList] = []
        for start in range(0, len(slates), _MOST_WORTHS):
            part = slates[start : start + _MOST_WORTHS]
            for slate, number in zip(part, self._index_of(part).tolist(), strict=True):
                values = self._values.get(number)
                if values is None:
                    values = self._figures.values_of_first(self._columns[number].tolist())
                    self._values[number] = values
                found.append((slate.time, values))
        return found

    def _add_amounts(
        self, slates: Sequence[Slate], clusters: Ints, sums: Ints
    ) -> dict[str, Floats]:
        """Add latencies and values; return those of each slate, by name of the row."""
        # A latency is stored as us + 1, times 2.
        extras = [0 if slate.request is None else slate.extras >> 1 for slate in slates]
        latencies = np.array(extras, np.int64)
        measured = latencies > 0
        np.add.at(sums[self._latencies], clusters[measured], 1)
        np.add.at(sums[self._latencies + 1], clusters[measured], latencies[measured] - 1)
        values: dict[int, Floats] = {row: np.zeros(len(slates)) for row in self._halves.values()}
        for number, (slate, cluster) in enumerate(zip(slates, clusters.tolist(), strict=True)):
            for kind, micro in slate.booked.values:
                row = self._halves[kind]
                values[row][number] = micro
                low = int(sums[row + 1, cluster]) + (micro & LOW)
                # The lower half stays below 2**30: equal sums have equal bits.
                sums[row, cluster] += (micro >> HALF) + (low >> HALF)
                sums[row + 1, cluster] = low & LOW
        return {
            "slates_with_latency": measured.astype(np.float64),
            "latency": (latencies - 1).astype(np.float64),
            **{self._names[row]: amounts for row, amounts in values.items()},
        }

    def carry(self, sums: Ints) -> None:
        """Bring the lower halves of values below 2**30, where they are sums of two."""
        for row in self._halves.values():
            sums[row] += sums[row + 1] >> HALF
            sums[row + 1] &= LOW

    def _index_of(self, slates: Sequence[Slate]) -> Ints:
        """Return where `_columns` has the rows of each slate, without values and latencies."""
        worths = [_worth(slate) for slate in slates]
        known = self._index
        fresh = {w: slate for w, slate in zip(worths, slates, strict=True) if w not in known}
        if len(known) + len(fresh) > _MOST_WORTHS:
            known.clear()
            self._values.clear()
            fresh = dict(zip(worths, slates, strict=True))
        if fresh:
            first = len(known)
            self._columns[first : first + len(fresh)] = self._computed(list(fresh.values()))
            known |= {worth: first + number for number, worth in enumerate(fresh)}
        return np.array([known[worth] for worth in worths])

    def _computed(self, slates: Sequence[Slate]) -> Ints:
        cells = Cells()
        rows = Rows(self._aggregates)
        for number, slate in enumerate(slates):
            self._book(slate, cells.of("", number), rows)
        segments, clusters = cells.arrays()
        keys = segments * CLUSTERS + clusters
        active = Active(keys, np.arange(len(keys)), np.ones(len(keys), np.bool_))
        columns = np.concatenate(
            [
                _sums(aggregate, _totals(aggregate, buffer, cells), active)
                for aggregate, buffer in zip(self._aggregates, rows.buffers, strict=True)
            ]
        )
        # The windows count lists with a positive.
        columns[self._abandoned] = columns[self._slates] - columns[self._abandoned]
        return columns.T

    def _book(self, slate: Slate, cell: int, rows: Rows) -> None:
        """Book the worth of a slate, without values and latency."""
        size, booked = slate.booked_impressions, slate.booked
        has_request = slate.request is not None
        rows.counts.add(slate.time, cell, size, int(has_request))
        for kind, count in enumerate(booked.positives or ()):
            if count:
                rows.positives.add(slate.time, cell, kind, count)
        for change in rows.changes:
            change(slate.time, cell, NO_FEEDBACK, booked)
        if has_request:
            # No row depends on the ranks of the others, and windows may hold no lists.
            fallback = slate.extras & 1
            shape = self._shapes.of(size, None, fallback=fallback, hits=booked.hits)
            rows.lists.add(slate.time, cell, None, shape)


def _worth(slate: Slate) -> Worth:
    booked, has_request = slate.booked, slate.request is not None
    fallback = slate.extras & 1 if has_request else 0
    return slate.booked_impressions, has_request, booked.positives, booked.hits, fallback


def _totals(aggregate: Aggregate, rows: Any, cells: Cells) -> Totals:
    totals = aggregate.totals()
    totals.fit(len(cells))
    totals.add(aggregate.table(rows, cells).table, 1)
    return totals


def _sums(aggregate: ClusteredAggregate, totals: Totals, active: Active) -> Ints:
    """Return the sums of slates, each of which is a user of a segment of its own."""
    if isinstance(aggregate, CellAggregate) and isinstance(totals, CellTotals):
        return aggregate.cluster_sums(totals.of_cells(active.columns), active)
    assert isinstance(totals, SparseTotals)
    return totals.of(active.there).T
