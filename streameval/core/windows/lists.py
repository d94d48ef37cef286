"""Health of the lists: empty and short lists, fallbacks, abandonment, ranks, latency.

Only slates with a request count. A row says how a list changed from one shape to another: None
stands for a list that does not count yet, or no longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Final, NamedTuple

import numpy as np

from streameval.base.arrays import Ints
from streameval.base.limits import MILLI
from streameval.core.definition import Definition
from streameval.core.list_shapes import SINGLE_RANKS, ListShape, by_rank, slots_of
from streameval.core.windows.aggregate import (
    ClusterAggregate,
    FigureRows,
    Rows,
    SegmentAggregate,
    View,
    means,
    totals,
)
from streameval.core.windows.tables import Cells, Table, TimedTable

DEEPER: Final = f"{SINGLE_RANKS + 1}+"
"""The `rank` of all impressions beyond the single ranks."""

# The columns of `Lists`.
_EMPTY, _SHORT, _FALLBACK, _WITH_POSITIVE, _HITS, _RANK_SUM, _TOP = range(7)
_COUNTS: Final = (
    *("slates", "empty_slates", "short_slates", "fallback_slates", "abandoned_slates"),
    *("slates_with_latency", "positive_items"),
)
_OF_SLATES: Final = ("empty_rate", "short_rate", "fallback_rate", "abandonment_rate")
_OF_POSITIVES: Final = ("mean_rank_of_positives", "top3_share")


class Shapes(NamedTuple):
    """Shapes that lists had before and after they changed: `distinct` ones, and arrays over all.

    `numbers` are indices of `distinct`. `signs` are -1 for a shape of before. `times` (ms) and
    `cells` are of the lists.
    """

    distinct: Sequence[ListShape | None]
    numbers: Ints
    signs: Ints
    times: Ints
    cells: Ints

    def spread(
        self, columns: int, rows_of: Callable[[ListShape], Sequence[Sequence[int]]]
    ) -> tuple[Ints, Ints]:
        """Return `rows_of` all shapes, int64 (`columns`, rows).

        Before that, for each row the index of its shape in the arrays.
        """
        rows = [() if shape is None else rows_of(shape) for shape in self.distinct]
        counts = np.array(list(map(len, rows)), np.int64)
        each = counts[self.numbers]
        owners = np.repeat(np.arange(len(each)), each)
        at = np.arange(len(owners)) + (counts.cumsum()[self.numbers] - each.cumsum())[owners]
        found = np.array(list(chain.from_iterable(rows)), np.int64).reshape(-1, columns)
        return owners, found[at].T


@dataclass(slots=True)
class ListRows(Rows):
    """Lists that changed, by cell: None is a list that does not count yet, or no longer."""

    cells: list[int]
    before: list[ListShape | None]
    after: list[ListShape | None]
    _shapes: Shapes | None = field(default=None, init=False)

    def add(self, time: int, cell: int, before: ListShape | None, after: ListShape | None) -> None:
        """Add a list whose shape changed."""
        self.times.append(time)
        self.cells.append(cell)
        self.before.append(before)
        self.after.append(after)

    def shapes(self) -> Shapes:
        """Return all shapes. Few differ: most lists have the ranks 1 to n and no positive."""
        if self._shapes is None:
            known = [at for at, shape in enumerate(self.before) if shape is not None]
            shapes = [*self.after, *(self.before[at] for at in known)]
            index = {shape: number for number, shape in enumerate(dict.fromkeys(shapes))}
            numbers = np.fromiter(map(index.__getitem__, shapes), np.int64, len(shapes))
            lists = np.concatenate((np.arange(len(self)), np.array(known, np.int64)))
            signs = np.where(np.arange(len(lists)) < len(self), 1, -1)
            times, cells = np.array((self.times, self.cells), np.int64)[:, lists]
            self._shapes = Shapes(list(index), numbers, signs, times, cells)
        return self._shapes


class Lists(ClusterAggregate):
    """Counts of empty, short and fallback lists, and of the ranks of positive items."""

    name = "lists"
    section = "lists"
    optional = "lists"
    columns = 7

    def rows(self) -> ListRows:
        """Return an empty buffer of rows."""
        return ListRows.empty()

    def table(self, rows: ListRows, cells: Cells) -> TimedTable:
        """Return the rows as a table, with their times. Most lists add nothing to it."""
        shapes = rows.shapes()
        owners, worths = shapes.spread(
            self.columns, lambda shape: () if shape.worth is None else (shape.worth,)
        )
        keys = self.keys(shapes.cells[owners], cells)
        values = np.ascontiguousarray((shapes.signs[owners] * worths).astype(np.int32))
        return TimedTable(shapes.times[owners], Table(keys, values))

    def figures(self, view: View) -> Iterable[FigureRows]:
        """Yield one row."""
        sums, slates = view.by_cluster[self.name], view.slates
        hits, abandoned = sums[_HITS], slates - sums[_WITH_POSITIVE]
        measured, latency = view.by_cluster[Latencies.name]
        of_slates = np.stack((sums[_EMPTY], sums[_SHORT], sums[_FALLBACK], abandoned))
        counts = dict(zip(_COUNTS, (slates, *of_slates, measured, hits), strict=True))
        yield [
            {**dict(zip(counts, each, strict=True)), **rates, **ranks, **latencies}
            for each, rates, ranks, latencies in zip(
                zip(*map(totals, counts.values()), strict=True),
                means(_OF_SLATES, of_slates, slates),
                means(_OF_POSITIVES, sums[[_RANK_SUM, _TOP]], hits),
                means(("latency_ms_mean",), latency[np.newaxis], measured, MILLI),
                strict=True,
            )
        ]


@dataclass(slots=True)
class LatencyRows(Rows):
    """Lists with a latency, by cell: their number, and the sum of latencies (us)."""

    cells: list[int]
    counts: list[int]
    latencies: list[int]

    def add(self, time: int, cell: int, before: int, after: int) -> None:
        """Add a change of `Slate.extras`, whose latency is us + 1: the 1 tells it from none."""
        known, latency = before >> 1, after >> 1
        if known != latency:
            count = (latency > 0) - (known > 0)
            self.times.append(time)
            self.cells.append(cell)
            self.counts.append(count)
            self.latencies.append(latency - known - count)

    def begun(self) -> Iterator[tuple[int, int]]:
        """Yield the cell and the latency of lists that had none before."""
        for cell, count, latency in zip(self.cells, self.counts, self.latencies, strict=True):
            if count > 0:
                yield cell, latency


class Latencies(ClusterAggregate):
    """Latencies of lists: their number and their sum (us). `Lists` has the figure."""

    name = "latencies"
    section = "lists"
    optional = "lists"
    dtype = "<i8"
    columns = 2

    def rows(self) -> LatencyRows:
        """Return an empty buffer of rows."""
        return LatencyRows.empty()

    def table(self, rows: LatencyRows, cells: Cells) -> TimedTable:
        """Return the rows as a table, with their times."""
        values = np.array((rows.counts, rows.latencies), np.int64)
        return rows.timed(Table(self.keys(rows.cells, cells), values))

    def figures(self, view: View) -> Iterable[FigureRows]:  # noqa: ARG002
        """Yield nothing: the mean stands in the row of `Lists`."""
        return ()


class Ranks(SegmentAggregate):
    """Impressions and positives by rank and segment, in the slots of `list_shapes`."""

    name = "ranks"
    section = "ranks"
    optional = "lists"
    reads_rows_of = "lists"

    def __init__(self, definition: Definition) -> None:
        super().__init__(definition)
        self.width = slots_of(len(definition.kinds))

    def rows(self) -> ListRows:
        """Return an empty buffer of rows."""
        return ListRows.empty()

    def table(self, rows: ListRows, cells: Cells) -> TimedTable:
        """Return the rows as a table, with their times."""
        shapes = rows.shapes()
        owners, (slots, counts) = shapes.spread(2, attrgetter("slots"))
        counts = shapes.signs[owners] * counts
        times, among = shapes.times[owners], shapes.cells[owners]
        return self.summed(cells, times, among, slots, counts[np.newaxis])

    def figures(self, view: View) -> Iterator[FigureRows]:
        """Yield a row for each kind and rank with an impression."""
        impressions, *positives = by_rank(view.plain[self.name])
        for kind, counts in zip(self.definition.kinds, positives, strict=True):
            for index in np.flatnonzero(impressions.any(axis=1)).tolist():
                rank = index + 1 if index < SINGLE_RANKS else DEEPER
                columns = zip(impressions[index].tolist(), counts[index].tolist(), strict=True)
                yield [
                    {"feedback": kind, "rank": rank, "impressions": shown, "positives": count}
                    if shown
                    else None
                    for shown, count in columns
                ]
