"""Aggregates: the sums of a window, one class for each kind.

An aggregate says how its rows are booked (`rows`), by which key they add up (`table`, `totals`) and
which figures come of the sums (`figures`). Panes, checkpoints, renumbering and merging over
partitions treat all aggregates alike. `AGGREGATES` lists them in the order of their sums.

To add one, write its class here or beside, book its rows in `core.ledger`, and add it to
`AGGREGATES`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
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
    FigureRows,
    Rows,
    View,
    means,
    totals,
)
from streameval.core.windows.cells import Cells
from streameval.core.windows.delays import Delays, ScoreDelays
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

    def figures(self, view: View) -> Iterable[FigureRows]:
        """Yield a row for each cutoff."""
        names = [metric.name for metric in RANKING]
        for k, sums in self._by_cutoff(view):
            yield self._rows(view, k, means(names, sums, view.slates, NANO))

    def nowcast(self, view: View) -> Iterable[FigureRows]:
        """Yield a row for each cutoff, where one of its metrics has a nowcast."""
        row = 2 * len(self.definition.kinds)
        for k, sums in self._by_cutoff(view):
            found: list[FigureRow] = [{} for _ in view.names]
            there = [False] * len(view.names)
            for metric, scores in zip(RANKING, sums, strict=True):
                slates, known = view.expected(row, view.slates)
                row += 1
                there = [one or other for one, other in zip(there, known, strict=True)]
                mean = means((metric.name,), scores[np.newaxis], slates, NANO, per=MICRO)
                found = [before | more for before, more in zip(found, mean, strict=True)]
            rows = self._rows(view, k, found)
            yield [one if is_there else None for one, is_there in zip(rows, there, strict=True)]

    def _by_cutoff(self, view: View) -> Iterable[tuple[int, Ints]]:
        """Yield each k with its sums of scores, int64 (metrics, segments, 256)."""
        sums = np.split(view.by_cluster[self.name][1:], len(self.definition.ks))
        return zip(self.definition.ks, sums, strict=True)

    def _rows(self, view: View, k: int, found: Iterable[FigureRow]) -> list[FigureRow]:
        with_positive = view.by_cluster[self.name][0]
        columns = zip(totals(view.slates), totals(with_positive), found, strict=True)
        return [
            {"k": k, "slates": count, "slates_with_positive": positive, **means_of_k}
            for count, positive, means_of_k in columns
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
