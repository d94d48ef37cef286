"""Health of the lists: empty and short lists, fallbacks, abandonment, ranks, latency.

Only slates with a request count. A row says how a list changed from one shape to another: None
stands for a list that does not count yet, or no longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np

from streameval.base.limits import MILLI
from streameval.core.definition import Definition
from streameval.core.list_shapes import DEEPER_SLOT, SINGLE_RANKS, ListShape, slots_of
from streameval.core.windows.aggregate import (
    ClusterAggregate,
    FigureRow,
    Rows,
    SegmentAggregate,
    SegmentView,
    mean,
)
from streameval.core.windows.cells import Cells
from streameval.core.windows.tables import Table, TimedTable

DEEPER: Final = f"{SINGLE_RANKS + 1}+"
"""The `rank` of all impressions beyond the single ranks."""

# The columns of `Lists`.
_EMPTY, _SHORT, _FALLBACK, _WITH_POSITIVE, _HITS, _RANK_SUM, _TOP = range(7)


@dataclass(slots=True)
class ListRows(Rows):
    """Lists that changed, by cell: the shape before and after."""

    cells: list[int]
    before: list[ListShape | None]
    after: list[ListShape | None]

    def add(self, time: int, cell: int, before: ListShape | None, after: ListShape | None) -> None:
        """Add the change of a list."""
        self.times.append(time)
        self.cells.append(cell)
        self.before.append(before)
        self.after.append(after)

    def sides(self) -> tuple[tuple[list[ListShape | None], int], ...]:
        """Return the shapes to retract, and the shapes to add, with their signs."""
        return (self.before, -1), (self.after, 1)


class Lists(ClusterAggregate):
    """Counts of empty, short and fallback lists, and of the ranks of positive items."""

    name = "lists"
    section = "lists"
    columns = 7

    def rows(self) -> ListRows:
        """Return an empty buffer of rows."""
        return ListRows.empty()

    def table(self, rows: ListRows, cells: Cells) -> TimedTable:
        """Return the rows as a table, with their times. Most lists add nothing to it."""
        chosen: list[int] = []
        values: list[Sequence[int]] = []
        for shapes, sign in rows.sides():
            for index, shape in enumerate(shapes):
                if shape is not None and shape.worth is not None:
                    chosen.append(index)
                    values.append([sign * count for count in shape.worth])
        picked = np.array(chosen, np.intp)
        keys = self.keys([rows.cells[index] for index in chosen], cells)
        columns = np.array(values, np.int32).reshape(-1, self.columns).T
        table = Table(keys, np.ascontiguousarray(columns))
        return TimedTable(np.array(rows.times, np.int64)[picked], table)

    def figures(self, segment: SegmentView) -> Iterable[FigureRow]:
        """Yield one row."""
        sums = segment.by_cluster[self.name]
        slates, hits = segment.slates, sums[_HITS]
        abandoned = slates - sums[_WITH_POSITIVE]
        measured, latency = segment.by_cluster[Latencies.name]
        yield {
            "slates": int(slates.sum()),
            "empty_slates": int(sums[_EMPTY].sum()),
            "short_slates": int(sums[_SHORT].sum()),
            "fallback_slates": int(sums[_FALLBACK].sum()),
            "abandoned_slates": int(abandoned.sum()),
            "slates_with_latency": int(measured.sum()),
            "positive_items": int(hits.sum()),
            **mean("empty_rate", sums[_EMPTY], slates),
            **mean("short_rate", sums[_SHORT], slates),
            **mean("fallback_rate", sums[_FALLBACK], slates),
            **mean("abandonment_rate", abandoned, slates),
            **mean("mean_rank_of_positives", sums[_RANK_SUM], hits),
            **mean("top3_share", sums[_TOP], hits),
            **mean("latency_ms_mean", latency, measured, MILLI),
        }


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
    dtype = "<i8"
    columns = 2

    def rows(self) -> LatencyRows:
        """Return an empty buffer of rows."""
        return LatencyRows.empty()

    def table(self, rows: LatencyRows, cells: Cells) -> TimedTable:
        """Return the rows as a table, with their times."""
        values = np.array((rows.counts, rows.latencies), np.int64)
        return rows.timed(Table(self.keys(rows.cells, cells), values))

    def figures(self, segment: SegmentView) -> Iterable[FigureRow]:  # noqa: ARG002
        """Yield nothing: the mean stands in the row of `Lists`."""
        return ()


class Ranks(SegmentAggregate):
    """Impressions and positives by rank and segment, in the slots of `list_shapes`."""

    name = "ranks"
    section = "ranks"

    def __init__(self, definition: Definition) -> None:
        super().__init__(definition)
        self.width = slots_of(len(definition.kinds))

    def rows(self) -> ListRows:
        """Return an empty buffer of rows."""
        return ListRows.empty()

    def table(self, rows: ListRows, cells: Cells) -> TimedTable:
        """Return counts by slot as a table, with their times."""
        parts = [_slots(shapes, sign) for shapes, sign in rows.sides()]
        index, slots, counts = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        segments, _ = cells.arrays()
        keys = segments[np.array(rows.cells, np.int64)[index]] * self.width + slots
        return self.counted(np.array(rows.times, np.int64)[index], keys, counts)

    def figures(self, segment: SegmentView) -> Iterator[FigureRow]:
        """Yield a row for each kind and rank with an impression."""
        lengths, by_rank, *positives = np.split(
            segment.plain[self.name], range(SINGLE_RANKS, self.width, SINGLE_RANKS + 1)
        )
        impressions = by_rank.copy()
        impressions[:SINGLE_RANKS] += lengths[::-1].cumsum()[::-1]
        for kind, counts in zip(self.definition.kinds, positives, strict=True):
            for index in np.flatnonzero(impressions).tolist():
                yield {
                    "feedback": kind,
                    "rank": index + 1 if index < SINGLE_RANKS else DEEPER,
                    "impressions": int(impressions[index]),
                    "positives": int(counts[index]),
                }


def _slots(shapes: Sequence[ListShape | None], sign: int) -> tuple[Any, Any, Any]:
    """Return counts of slots: parallel arrays of the row, the slot and the count."""
    slots = [() if shape is None else shape.slots for shape in shapes]
    deeper = [
        (index, shape.deeper)
        for index, shape in enumerate(shapes)
        if shape is not None and shape.deeper
    ]
    flat = np.fromiter(chain.from_iterable(slots), np.int64)
    single = np.repeat(np.arange(len(slots)), np.fromiter(map(len, slots), np.int64, len(slots)))
    beyond = np.array(deeper, np.int64).reshape(-1, 2)
    return (
        np.concatenate((single, beyond[:, 0])),
        np.concatenate((flat, np.full(len(beyond), DEEPER_SLOT))),
        sign * np.concatenate((np.ones(len(flat), np.int64), beyond[:, 1])),
    )
