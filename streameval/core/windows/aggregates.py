"""Aggregates: the sums of a window, one class for each kind.

An aggregate says how its rows are booked (`rows`), by which key they add up (`table`, `totals`) and
which figures come of the sums (`figures`). Panes, checkpoints, renumbering and merging over
partitions treat all aggregates alike. `AGGREGATES` lists them in the order of their sums.

To add one, write its class here or beside, book its rows in `core.ledger`, and add it to
`AGGREGATES`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from streameval.base.arrays import Ints
from streameval.base.limits import MICRO, NANO
from streameval.core.definition import Definition
from streameval.core.metrics import RANKING, RelevantItems, Scorer
from streameval.core.windows.aggregate import (
    Aggregate,
    CellAggregate,
    ClusterAggregate,
    FigureRow,
    Rows,
    SegmentView,
    mean,
)
from streameval.core.windows.cells import Cells
from streameval.core.windows.delays import Delays
from streameval.core.windows.lists import Latencies, Lists, Ranks
from streameval.core.windows.tables import Table, TimedTable
from streameval.core.windows.values import Values


@dataclass(slots=True)
class CountRows(Rows):
    """Impressions and slates by cell; negative where they are retracted."""

    cells: list[int]
    impressions: list[int]
    slates: list[int]

    def add(self, time: int, cell: int, impressions: int, slates: int) -> None:
        """Add impressions and slates."""
        self.times.append(time)
        self.cells.append(cell)
        self.impressions.append(impressions)
        self.slates.append(slates)


class Counts(CellAggregate):
    """Impressions, and slates with a request. Every other aggregate divides by one of them."""

    name = "counts"
    section = "maturity"
    columns = 2

    def rows(self) -> CountRows:
        """Return an empty buffer of rows."""
        return CountRows.empty()

    def table(self, rows: CountRows, cells: Cells) -> TimedTable:  # noqa: ARG002
        """Return the rows as a table, with their times."""
        values = np.array((rows.impressions, rows.slates), np.int32)
        return rows.timed(Table(np.array(rows.cells, np.int32), values))

    def figures(self, segment: SegmentView) -> Iterable[FigureRow]:  # noqa: ARG002
        """Yield nothing: counts stand in the rows of the others."""
        return ()


@dataclass(slots=True)
class PositiveRows(Rows):
    """Positives by cell and index of the kind; negative where they are retracted."""

    cells: list[int]
    kinds: list[int]
    counts: list[int]

    def add(self, time: int, cell: int, kind: int, count: int) -> None:
        """Add positives of one kind."""
        self.times.append(time)
        self.cells.append(cell)
        self.kinds.append(kind)
        self.counts.append(count)


class Positives(CellAggregate):
    """Positives of each kind, and the rates that come of them."""

    name = "positives"
    section = "rates"
    columns = 1

    def __init__(self, definition: Definition) -> None:
        super().__init__(definition)
        self.width = len(definition.kinds)

    def rows(self) -> PositiveRows:
        """Return an empty buffer of rows."""
        return PositiveRows.empty()

    def table(self, rows: PositiveRows, cells: Cells) -> TimedTable:  # noqa: ARG002
        """Return the rows as a table, with their times."""
        keys = np.array(rows.cells, np.int64) * self.width + np.array(rows.kinds, np.int64)
        return rows.timed(Table(keys.astype(np.int32), np.array((rows.counts,), np.int32)))

    def figures(self, segment: SegmentView) -> Iterable[FigureRow]:
        """Yield a row for each kind; none where only empty slates were shown."""
        if not segment.impressions.sum():
            return
        for index in range(self.width):
            stderr = None
            if segment.users > 1:
                stderr = math.sqrt(segment.squares[index] / (segment.users - 1) / segment.users)
            rate = {"positive_rate": segment.means[index], "positive_rate_stderr": stderr}
            yield self._row(segment, index, rate, segment.impressions, 1)

    def nowcast(self, segment: SegmentView) -> Iterable[FigureRow]:
        """Yield a row for each kind; a mean over users has no nowcast."""
        for index in range(self.width):
            effective = segment.expected(index, segment.impressions)
            if effective is not None:
                rate = {"positive_rate": None, "positive_rate_stderr": None}
                yield self._row(segment, index, rate, effective, MICRO)

    def _row(
        self, segment: SegmentView, kind: int, rate: FigureRow, impressions: Ints, per: int
    ) -> FigureRow:
        by_cluster = segment.by_cluster[self.name][kind]
        return {
            "feedback": self.definition.kinds[kind],
            "users": segment.users,
            "impressions": int(segment.impressions.sum()),
            "positives": int(by_cluster.sum()),
            **rate,
            **mean("positives_per_impression", by_cluster, impressions, per=per),
        }


@dataclass(slots=True)
class ScoreRows(Rows):
    """Slates to score (sign 1) or to retract (-1), with the cell of their user."""

    cells: list[int]
    items: list[RelevantItems]
    signs: list[int]

    def add(self, time: int, cell: int, items: RelevantItems, sign: int) -> None:
        """Add a slate with its relevant items."""
        self.times.append(time)
        self.cells.append(cell)
        self.items.append(items)
        self.signs.append(sign)


class Scores(ClusterAggregate):
    """Scores of slates. Column 0 counts slates with a positive.

    The other columns are sums of nano-units, one for each metric and cutoff.
    """

    name = "scores"
    section = "ranking"
    dtype = "<i8"

    def __init__(self, definition: Definition) -> None:
        super().__init__(definition)
        self._scorer = Scorer(definition.ks, definition.ndcg_gain)
        self.columns = 1 + len(self._scorer.columns)

    def rows(self) -> ScoreRows:
        """Return an empty buffer of rows."""
        return ScoreRows.empty()

    def table(self, rows: ScoreRows, cells: Cells) -> TimedTable:
        """Return the rows as a table, with their times."""
        signs = np.array(rows.signs, np.int64)[:, np.newaxis]
        scores = np.concatenate((signs, signs * self._scorer.score(rows.items)), axis=1)
        return rows.timed(Table(self.keys(rows.cells, cells), np.ascontiguousarray(scores.T)))

    def figures(self, segment: SegmentView) -> Iterable[FigureRow]:
        """Yield a row for each cutoff."""
        return self._by_cutoff(segment, segment.slates, 1)

    def nowcast(self, segment: SegmentView) -> Iterable[FigureRow]:
        """Yield a row for each cutoff."""
        effective = segment.expected(2 * len(self.definition.kinds), segment.slates)
        return () if effective is None else self._by_cutoff(segment, effective, MICRO)

    def _by_cutoff(self, segment: SegmentView, slates: Ints, per: int) -> Iterable[FigureRow]:
        """Yield the rows with means over `slates`, which are in units of 1/`per`."""
        scores = segment.by_cluster[self.name]
        by_cutoff = iter(scores[1:])
        for k in self.definition.ks:
            row: FigureRow = {
                "k": k,
                "slates": int(segment.slates.sum()),
                "slates_with_positive": int(scores[0].sum()),
            }
            for metric, nanos in zip(RANKING, by_cutoff, strict=False):
                row |= mean(metric.name, nanos, slates, NANO, per=per)
            yield row


AGGREGATES: Final[tuple[type[Aggregate], ...]] = (
    Counts,
    Positives,
    Scores,
    Values,
    Lists,
    Latencies,
    Ranks,
    Delays,
)
