"""Aggregates: the sums of a window, one class for each kind.

An aggregate says how its rows are booked (`rows`), by which key they add up (`table`, `totals`) and
which figures come of the sums (`figures`). Panes, checkpoints, renumbering and merging over
partitions treat all aggregates alike. `AGGREGATES` lists them in the order of their sums.

To add one, write its class here or beside, add it to `AGGREGATES`, and its section to
`core.metrics.means`. The ledger books all `WorthRows`; other rows need a line there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from streameval.base.arrays import Ints
from streameval.base.limits import MICRO
from streameval.core.definition import Definition
from streameval.core.windows.aggregate import (
    Aggregate,
    CellAggregate,
    FigureRow,
    FigureRows,
    Rows,
    View,
    means,
    totals,
)
from streameval.core.windows.delays import Delays, ScoreDelays
from streameval.core.windows.lists import Latencies, Lists, Ranks
from streameval.core.windows.scores import Scores
from streameval.core.windows.tables import Cells, Table, TimedTable
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

    def figures(self, view: View) -> Iterable[FigureRows]:  # noqa: ARG002
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

    def figures(self, view: View) -> Iterable[FigureRows]:
        """Yield a row for each kind; none where only empty slates were shown."""
        known = [shown > 0 for shown in totals(view.impressions)]
        users = view.users.tolist()
        for kind in range(self.width):
            rates = [
                {
                    "positive_rate": mean,
                    "positive_rate_stderr": math.sqrt(square / (count - 1) / count)
                    if count > 1
                    else None,
                }
                for mean, square, count in zip(
                    view.means[kind].tolist(), view.squares[kind].tolist(), users, strict=True
                )
            ]
            yield self._rows(view, kind, known, rates, view.impressions, 1)

    def nowcast(self, view: View) -> Iterable[FigureRows]:
        """Yield a row for each kind; a mean over users has no nowcast."""
        for kind in range(self.width):
            effective, known = view.expected(kind, view.impressions)
            rates = [{"positive_rate": None, "positive_rate_stderr": None}] * len(known)
            yield self._rows(view, kind, known, rates, effective, MICRO)

    def _rows(  # noqa: PLR0917
        self,
        view: View,
        kind: int,
        known: Sequence[bool],
        rates: Sequence[FigureRow],
        impressions: Ints,
        per: int,
    ) -> FigureRows:
        positives = view.by_cluster[self.name][kind]
        name = "positives_per_impression"
        return [
            {
                "feedback": self.definition.kinds[kind],
                "users": users,
                "impressions": shown,
                "positives": count,
                **rate,
                **found,
            }
            if there
            else None
            for there, users, shown, count, rate, found in zip(
                known,
                view.users.tolist(),
                totals(view.impressions),
                totals(positives),
                rates,
                means((name,), positives[np.newaxis], impressions, per=per),
                strict=True,
            )
        ]


AGGREGATES: Final[tuple[type[Aggregate], ...]] = (
    Counts,
    Positives,
    Scores,
    Values,
    Lists,
    Latencies,
    Ranks,
    Delays,
    ScoreDelays,
)
