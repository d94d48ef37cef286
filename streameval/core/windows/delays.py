"""Delays of positives by segment: all that a nowcast knows of when feedback comes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from streameval.base.arrays import Ints
from streameval.base.limits import MICRO
from streameval.core.definition import Definition
from streameval.core.delays import slots_of
from streameval.core.windows.aggregate import FigureRows, Rows, SegmentAggregate, View, totals
from streameval.core.windows.cells import Cells
from streameval.core.windows.tables import TimedTable


@dataclass(slots=True)
class DelayRows(Rows):
    """Slates whose delays changed, by cell: the slots before and after."""

    cells: list[int]
    before: list[Sequence[int]]
    after: list[Sequence[int]]

    def add(self, time: int, cell: int, before: Sequence[int], after: Sequence[int]) -> None:
        """Add a slate, if its delays changed."""
        if before != after:
            self.times.append(time)
            self.cells.append(cell)
            self.before.append(before)
            self.after.append(after)


class Delays(SegmentAggregate):
    """Counts of delays by kind and bucket, and of slates by the delay of their first relevant item.

    The matured basis counts final slates, and nowcasts are made of it.
    """

    name = "delays"
    section = "nowcast"

    def __init__(self, definition: Definition) -> None:
        super().__init__(definition)
        self.width = slots_of(len(definition.kinds))

    def rows(self) -> DelayRows:
        """Return an empty buffer of rows."""
        return DelayRows.empty()

    def table(self, rows: DelayRows, cells: Cells) -> TimedTable:
        """Return counts by slot as a table, with their times."""
        segments, _ = cells.arrays()
        first = segments[np.array(rows.cells, np.int64)] * self.width
        times = np.array(rows.times, np.int64)
        parts = [_slots(changed) for changed in (rows.before, rows.after)]
        index = np.concatenate([of_row for of_row, _ in parts])
        keys = first[index] + np.concatenate([slots for _, slots in parts])
        signs = np.repeat((-1, 1), [len(slots) for _, slots in parts])
        return self.counted(times[index], keys, signs)

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


def _slots(changed: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Return all slots, parallel to the row of each."""
    sizes = np.fromiter(map(len, changed), np.int64, len(changed))
    return np.repeat(np.arange(len(changed)), sizes), np.fromiter(
        chain.from_iterable(changed), np.int64
    )
