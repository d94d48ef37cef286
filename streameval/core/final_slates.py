"""Consumers of final slates: each slate that can no longer change reaches them exactly once.

A slate is final once its time is before wm - H (rule 4 of `attribution`). Its worth is then added
to sums that only grow, and nothing is ever retracted. After `Partition.finalizing` the sums are
those of exactly the slates before wm - H, with the watermark of the last flush. They are part of
the checkpoint, so a slate counts once however often the state is restored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from streameval.base.arrays import Ints
from streameval.base.limits import CLUSTERS
from streameval.core.ledger import Rows
from streameval.core.segments import Segments
from streameval.core.slate import Slate
from streameval.core.windows.aggregates import Active, Aggregate
from streameval.core.windows.cells import Cells

SegmentValues = tuple[str, ...]


class FinalConsumer(Protocol):
    """A consumer of final slates; `name` stands in checkpoints."""

    name: str

    def add(self, slates: Sequence[Slate]) -> None:
        """Take in slates that became final, each exactly once."""

    def state(self) -> Any:
        """Return its sums as plain values for a checkpoint."""

    def restore(self, stored: Any) -> None:
        """Take its sums from a checkpoint; None where the checkpoint has none of this name."""


class FinalSums:
    """The sums of all aggregates over final slates, by segment and cluster of users.

    `by_segment` maps the values of the dimensions to int64 (rows, 256): the rows of all aggregates,
    one aggregate after another, as in `figures.SegmentSums`. All are integers, so the sums of
    partitions add in any order.
    """

    name = "sums"

    def __init__(self, segments: Segments, aggregates: Sequence[Aggregate]) -> None:
        self.by_segment: dict[SegmentValues, Ints] = {}
        self._segments = segments
        self._aggregates = aggregates
        self._rows = sum(aggregate.cluster_rows for aggregate in aggregates)

    def add(self, slates: Sequence[Slate]) -> None:
        """Add the booked worth of slates."""
        if not slates:
            return
        cells = Cells()
        rows = Rows(*(aggregate.rows() for aggregate in self._aggregates))
        for slate in slates:
            _book(slate, cells.of(slate.user, slate.segment), rows)
        segments, clusters = cells.arrays()
        keys = segments * CLUSTERS + clusters
        active = Active(np.arange(len(cells)), keys, np.unique(keys))
        sums = np.concatenate(
            [self._sums(index, rows, cells, active) for index in range(len(rows))]
        )
        for column, key in enumerate(active.there.tolist()):
            segment, cluster = divmod(key, CLUSTERS)
            self._of(self._segments.values[segment])[:, cluster] += sums[:, column]

    def state(self) -> dict[str, list[Any]]:
        """Return the sums as plain values for a checkpoint."""
        return {
            "segments": list(self.by_segment),
            "sums": [sums.astype("<i8").tobytes() for sums in self.by_segment.values()],
        }

    def restore(self, stored: Mapping[str, Any] | None) -> None:
        """Take the sums from a checkpoint."""
        for values, sums in zip(stored["segments"], stored["sums"], strict=True) if stored else ():
            self._of(tuple(values))[:] = np.frombuffer(sums, "<i8").reshape(self._rows, CLUSTERS)

    def _sums(self, index: int, rows: Rows, cells: Cells, active: Active) -> Ints:
        aggregate = self._aggregates[index]
        totals = aggregate.totals()
        totals.fit(len(cells))
        totals.add(aggregate.table(rows[index], cells), 1)
        return aggregate.cluster_sums(totals, active)

    def _of(self, values: SegmentValues) -> Ints:
        sums = self.by_segment.get(values)
        if sums is None:
            sums = self.by_segment[values] = np.zeros((self._rows, CLUSTERS), np.int64)
        return sums


def _book(slate: Slate, cell: int, rows: Rows) -> None:
    """Book all that a slate is worth."""
    positives, relevant, _ = slate.booked
    is_slate = 0 if slate.request is None else 1
    rows.counts.add(slate.time, cell, slate.booked_impressions, is_slate)
    for kind, count in enumerate(positives or ()):
        if count:
            rows.positives.add(slate.time, cell, kind, count)
    if relevant is not None:
        rows.scores.add(slate.time, cell, relevant, 1)
