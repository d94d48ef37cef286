"""Delays of positives by segment: all that a nowcast knows of when feedback comes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from streameval.base.limits import DELAY_BUCKETS, MICRO
from streameval.core.definition import Definition
from streameval.core.delays import slots_of
from streameval.core.metrics import Scorer
from streameval.core.slate import Relevance
from streameval.core.windows.aggregate import FigureRows, SegmentAggregate, View, WorthRows, totals
from streameval.core.windows.scores import UNFOLLOWED, ScoreRows
from streameval.core.windows.tables import Cells, TimedTable


@dataclass(slots=True)
class DelayRows(WorthRows):
    """Delays by cell: slots of `core.delays`, with a count of 1, or -1 where they are retracted."""

    cells: list[int]
    slots: list[int]
    counts: list[int]

    def change(self, time: int, cell: int, before: Relevance, after: Relevance) -> None:
        """Add a slate, if it changed: mostly it has the delays of before and one more."""
        gone, come = before.delays, after.delays
        if gone == come:
            return
        known = len(gone)
        if come[:known] == gone:
            gone, come = (), come[known:]
        for slots, count in ((gone, -1), (come, 1)):
            for slot in slots:
                self.times.append(time)
                self.cells.append(cell)
                self.slots.append(slot)
                self.counts.append(count)


class Delays(SegmentAggregate):
    """Counts of delays by kind and bucket, and of slates by the delay of their first relevant item.

    The matured basis counts final slates, and nowcasts are made of it.
    """

    name = "delays"
    section = "nowcast"
    optional = "nowcast"
    has_figures = False

    def __init__(self, definition: Definition) -> None:
        super().__init__(definition)
        self.width = slots_of(len(definition.kinds))

    def rows(self) -> DelayRows:
        """Return an empty buffer of rows."""
        return DelayRows.empty()

    def table(self, rows: DelayRows, cells: Cells) -> TimedTable:
        """Return the rows as a table, with their times."""
        columns = (rows.times, rows.cells, rows.slots, rows.counts)
        times, among, slots, counts = np.array(columns, np.int64)
        return self.summed(cells, times, among, slots, counts[np.newaxis])

    def figures(self, view: View) -> Iterable[FigureRows]:  # noqa: ARG002
        """Yield nothing: only a nowcast knows which share has come in so far."""
        return ()

    def nowcast(self, view: View) -> Iterable[FigureRows]:
        """Yield the share of the expected positives that has come, by kind."""
        impressions = totals(view.impressions)
        for effective, kind in zip(view.effective, self.definition.kinds, strict=False):
            come = zip(totals(effective), impressions, strict=True)
            yield [
                {"feedback": kind, "observed_ratio": found / (whole * MICRO)} if found else None
                for found, whole in come
            ]


class ScoreDelays(SegmentAggregate):
    """Sums of the changes of slates' scores, by the bucket of delay in which they changed.

    The columns follow the `Scorer` (nano-units). The buckets up to an age add up to the scores that
    slates had at that age.
    """

    name = "score_delays"
    section = "nowcast"
    optional = "nowcast"
    dtype = "<i8"
    width = DELAY_BUCKETS
    reads_rows_of = "scores"
    has_figures = False

    def __init__(self, definition: Definition) -> None:
        self._scorer = Scorer(definition.ks, definition.ndcg_gain)
        self.columns = len(self._scorer.columns)
        super().__init__(definition)

    def rows(self) -> ScoreRows:
        """Return an empty buffer of rows."""
        return ScoreRows.empty()

    def table(self, rows: ScoreRows, cells: Cells) -> TimedTable:
        """Return the scores that are followed as a table, with their times."""
        times, among, buckets = np.array((rows.times, rows.cells, rows.buckets), np.int64)
        followed = np.flatnonzero(buckets != UNFOLLOWED)
        times, among, buckets = times[followed], among[followed], buckets[followed]
        return self.summed(cells, times, among, buckets, rows.changes(self._scorer)[followed].T)

    def figures(self, view: View) -> Iterable[FigureRows]:  # noqa: ARG002
        """Yield nothing: nowcasts of `Scores` are made of it."""
        return ()
