"""Scores of slates: the sums of every ranking metric at every cutoff."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from streameval.base.arrays import Ints
from streameval.base.limits import MICRO, NANO
from streameval.core.definition import Definition
from streameval.core.metrics import RANKING, RelevantItems, Scorer
from streameval.core.slate import NO_FEEDBACK, Relevance
from streameval.core.windows.aggregate import (
    ClusterAggregate,
    FigureRow,
    FigureRows,
    View,
    WorthRows,
    means,
    totals,
)
from streameval.core.windows.tables import Cells, Table, TimedTable

UNFOLLOWED: Final = -1
"""The bucket of a score of which nobody follows how it came."""


@dataclass(slots=True)
class ScoreRows(WorthRows):
    """Relevant items to score (sign 1) or to retract (-1), by the cell of their user.

    `buckets` of delay tell when the score of a slate changed: its rows of one bucket add up to the
    change, and all of its rows to its score.
    """

    cells: list[int]
    items: list[RelevantItems]
    signs: list[int]
    buckets: list[int]
    _changes: Ints | None = field(default=None, init=False)

    def add(self, time: int, cell: int, items: RelevantItems, sign: int, bucket: int) -> None:
        """Add relevant items."""
        self.times.append(time)
        self.cells.append(cell)
        self.items.append(items)
        self.signs.append(sign)
        self.buckets.append(bucket)

    def change(self, time: int, cell: int, before: Relevance, after: Relevance) -> None:
        """Add a slate, if it changed: mostly its score came as before, and goes on."""
        if after.relevant == before.relevant and after.arrivals == before.arrivals:
            return
        if before.relevant is None and len(after.arrivals) == 1:  # of most, the first
            assert after.relevant is not None, "it has arrived"
            self.add(time, cell, after.relevant, 1, after.arrivals[0][0])
            return
        known = before.arrivals
        goes_on = known and after.arrivals[: len(known)] == known
        if goes_on and after.arrivals[len(known)][0] > known[-1][0]:
            self._add_steps(time, cell, before.relevant, _steps(after, len(known), before), 1)
        else:
            self._add_steps(time, cell, None, _steps(before), -1)
            self._add_steps(time, cell, None, _steps(after), 1)

    def _add_steps(
        self,
        time: int,
        cell: int,
        earlier: RelevantItems | None,
        steps: Iterable[tuple[int, RelevantItems]],
        sign: int,
    ) -> None:
        for bucket, items in steps:
            if earlier is not None:
                self.add(time, cell, earlier, -sign, bucket)
            self.add(time, cell, items, sign, bucket)
            earlier = items

    def changes(self, scorer: Scorer) -> Ints:
        """Return the scores of all rows times their signs, int64 (rows, columns of the scorer)."""
        if self._changes is None:
            signs = np.array(self.signs, np.int64)[:, np.newaxis]
            self._changes = signs * scorer.score(self.items)
        return self._changes


def _steps(
    judged: Relevance, first: int = 0, before: Relevance = NO_FEEDBACK
) -> list[tuple[int, RelevantItems]]:
    """Return the buckets in which the score of a slate changed, with the items relevant by then.

    Only the changes from arrival number `first` on, where the slate was worth `before` until then.
    """
    relevant, arrivals = judged.relevant, judged.arrivals
    if relevant is None:
        return []
    if not arrivals:
        return [(UNFOLLOWED, relevant)]
    steps: list[tuple[int, RelevantItems]] = []
    current, last = arrivals[first][0], arrivals[-1][0]
    if current != last:
        gains = dict(zip(*(before.relevant or ((), ())), strict=True))
        for bucket, rank, gain in arrivals[first:]:
            if bucket != current:
                ranks = tuple(sorted(gains))
                steps.append((current, (ranks, tuple(map(gains.__getitem__, ranks)))))
                current = bucket
            gains[rank] = max(gain, gains.get(rank, 0.0))
    return [*steps, (last, relevant)]


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
        scores = np.concatenate((signs, rows.changes(self._scorer)), axis=1)
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
