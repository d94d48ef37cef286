"""The worth of single slates to an experiment: what each adds to sums, extremes and first lists."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

import numpy as np

from streameval.base.arrays import Floats, Ints, distinct
from streameval.base.limits import CLUSTERS
from streameval.core.definition import Definition
from streameval.core.experiments.first_lists import FirstValues, first_rows, first_share
from streameval.core.experiments.metrics import USERS, metrics_of, row_names
from streameval.core.ledger import Rows
from streameval.core.list_shapes import ListShapes
from streameval.core.slate import NO_FEEDBACK, Slate
from streameval.core.windows.aggregate import Active, Aggregate, CellAggregate, ClusteredAggregate
from streameval.core.windows.tables import (
    Cells,
    CellTotals,
    SparseTotals,
    Totals,
    cluster_of,
    starts,
)
from streameval.core.windows.values import HALF, LOW


class SlateFigures:
    """The figures of a slate, from its rows: each metric, with the slate as the only one.

    Values and latencies are not among the columns of a slate, and are its *amounts*.
    """

    def __init__(self, definition: Definition) -> None:
        self._rows = {name: number for number, name in enumerate(row_names(definition))}
        self._metrics = list(metrics_of(definition).values())
        amounts = {
            "latency",
            *(f"value_high{{feedback={kind}}}" for kind in definition.valued_kinds),
        }
        by_amount = [one.numerator[0] in amounts for one in self._metrics]
        self._by_amount = np.flatnonzero(by_amount).tolist()
        self._by_columns = np.flatnonzero(~np.array(by_amount)).tolist()
        plain = [self._metrics[number] for number in self._by_columns]
        self._above = [self._rows[one.numerator[0]] for one in plain]
        self._below = [self._rows[one.denominator] for one in plain]
        self._units = np.array([one.unit for one in plain], np.int64)
        self._shares = [one for one in self._metrics if one.is_share]
        _, *rows = first_rows(definition)
        self._denominators = rows[: -len(self._shares)]

    def extremes(
        self, columns: Ints, repeated: Sequence[int] | Ints, amounts: Mapping[str, Floats]
    ) -> Floats:
        """Return the smallest and the largest figures of slates, float64 (2, metrics).

        `columns`, int64 (kinds, rows), are of each kind of slate, and `repeated` tells the kind of
        each slate. `amounts`, float64 (slates,), are by name of the row. NaN: no slate has it.
        """
        found = np.full((2, len(self._metrics)), np.nan)
        figures = _ratios(columns[:, self._above], columns[:, self._below] * self._units)
        found[:, self._by_columns] = _ends(figures)
        users = np.ones(len(repeated))
        for number in self._by_amount:
            metric = self._metrics[number]
            if metric.denominator == USERS:
                below = users
            elif metric.denominator in amounts:
                below = amounts[metric.denominator]
            else:
                below = columns[repeated, self._rows[metric.denominator]].astype(np.float64)
            found[:, number] = _ends(_ratios(amounts[metric.numerator[0]], below * metric.unit))
        return found

    def values_of_first(self, columns: Sequence[int]) -> FirstValues:
        """Return the values of a slate as a first list, from its rows."""
        rows = self._rows
        there = [int(columns[rows[name]] > 0) for name in self._denominators]
        shares = [
            first_share(one, columns[rows[one.numerator[0]]], columns[rows[one.denominator]])
            for one in self._shares
        ]
        return (*there, *(share or 0 for share in shares))


def widen(one: Floats, other: Floats) -> Floats:
    """Return the smaller of the first values and the larger of the second; NaN is no value."""
    return np.array([np.fmin(one[0], other[0]), np.fmax(one[1], other[1])])


def _ratios(above: Ints | Floats, below: Ints | Floats) -> Floats:
    found = np.full(above.shape, np.nan)
    np.divide(above, below, out=found, where=below > 0)
    return found


def _ends(figures: Floats) -> Floats:
    """Return the smallest and the largest figure of slates, the first axis."""
    return np.array([np.fmin.reduce(figures), np.fmax.reduce(figures)])


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
        self._values: list[FirstValues] = []
        self._figures = SlateFigures(definition)
        self._shapes = ListShapes(definition)

    def add(self, slates: Sequence[Slate], sums: Ints) -> tuple[Floats, list[FirstValues]]:
        """Add slates to `sums`, int64 (rows, 256).

        Returns the smallest and the largest figure of a single slate, as `ArmSums` has them, and
        the values of each slate as a first list.
        """
        extremes: list[Floats] = []
        values: list[FirstValues] = []
        for start in range(0, len(slates), _MOST_WORTHS):
            part = slates[start : start + _MOST_WORTHS]
            index = self._index_of(part)
            values += [self._values[number] for number in index.tolist()]
            clusters = np.array([cluster_of(slate.user) for slate in part])
            order = np.argsort(clusters, kind="stable")
            begins = starts(clusters[order])
            found = np.add.reduceat(self._columns[index[order]], begins, axis=0)
            sums[: self._first_half, clusters[order][begins]] += found.T
            amounts = self._add_amounts(part, clusters, sums)
            kinds = distinct(index)
            repeated = np.searchsorted(kinds, index)
            extremes.append(self._figures.extremes(self._columns[kinds], repeated, amounts))
        return functools.reduce(widen, extremes), values

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
            columns = self._computed(list(fresh.values()))
            self._columns[first : first + len(fresh)] = columns
            self._values += map(self._figures.values_of_first, columns.tolist())
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
