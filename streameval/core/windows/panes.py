"""Sliding windows over panes of event time: running integer sums, live and matured.

Rules of this file (W size, S slide, H = A + L, T the reading time, wm the watermark):

1. Pane p covers [p*S, (p+1)*S). Live: the W/S panes ending with the one that holds T. Matured: the
   W/S panes that end at or before T - H.
2. A pane is a log of rows, by aggregate; a row adds to the sums of its key, or retracts from them.
3. Each basis keeps the sums of its panes. A row is added where its pane is in the window. A pane is
   added when it enters and subtracted when it leaves. All are integers: nothing drifts.
4. A pane whose end is at or before wm - H cannot change: its rows are summed up once. It is dropped
   when it has left the matured window by the watermark (T is never behind it).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from streameval.base.arrays import Ints
from streameval.core.definition import Definition, Window
from streameval.core.windows.aggregate import Aggregate
from streameval.core.windows.aggregates import AGGREGATES
from streameval.core.windows.tables import Cells, Table, TimedTable, Totals, runs, sum_by_key

SMALLEST_RENUMBERING: Final = 4096
# Tables of one aggregate in a pane, beyond which they are summed up: a pane of 15 minutes gets one
# with each flush, and each is an object.
MAX_PIECES: Final = 64


@dataclass(slots=True)
class Pane:
    """The rows of one pane by aggregate, which do not change any more once it is `settled`."""

    tables: list[list[Table]] = field(default_factory=lambda: [[] for _ in AGGREGATES])
    settled: bool = False

    @property
    def pieces(self) -> int:
        """The number of tables of one aggregate, at most."""
        return max(map(len, self.tables))

    @property
    def rows(self) -> int:
        """The length of its longest table."""
        return max((len(table.keys) for tables in self.tables for table in tables), default=0)

    def part(self, start: int, end: int) -> Pane:
        """Return the rows `start` to `end` of each table, views of them."""
        chosen = slice(start, end)
        return Pane(
            [
                [table.picked(chosen) for table in tables if len(table.keys) > start]
                for tables in self.tables
            ],
            settled=self.settled,
        )


def sum_up(panes: Sequence[Pane]) -> None:
    """Sum up the rows of the same key in each pane: all panes in one go."""
    for index in range(len(AGGREGATES)):
        found = sum_by_key([pane.tables[index] for pane in panes])
        for pane, tables in zip(panes, found, strict=True):
            pane.tables[index] = tables


class Basis:
    """One basis of a window: the range of its panes (inclusive) and their sums by aggregate.

    `changes` counts the changes of the sums.
    """

    def __init__(self, totals: list[Totals]) -> None:
        self.totals = totals
        self.first = 0
        self.last = -1
        self.changes = 0

    def add(self, index: int, table: Table, sign: int = 1) -> None:
        """Add rows of an aggregate to its sums, or retract them where `sign` is -1."""
        self.totals[index].add(table, sign)
        self.changes += 1

    def move(self, panes: dict[int, Pane], first: int, last: int) -> None:
        """Slide to panes `first`..`last`: retract panes that leave, add panes that enter."""
        if (first, last) == (self.first, self.last):
            return
        leaving, entering = [], []
        for number, pane in panes.items():
            was = self.first <= number <= self.last
            now = first <= number <= last
            if was and not now:
                leaving.append(pane)
            elif now and not was:
                entering.append(pane)
        for moved, sign in ((leaving, -1), (entering, 1)):
            for index in range(len(self.totals)):
                tables = [table for pane in moved for table in pane.tables[index]]
                if tables:
                    self.add(index, Table.joined(tables), sign)
        self.first, self.last = first, last


class WindowState:
    """The panes and both bases of one window of one partition."""

    def __init__(self, window: Window, horizon: int, aggregates: Sequence[Aggregate]) -> None:
        self.window = window
        self.horizon = horizon
        self.panes: dict[int, Pane] = {}
        self.live = Basis([aggregate.totals() for aggregate in aggregates])
        self.matured = Basis([aggregate.totals() for aggregate in aggregates])
        self.last_settled: int | None = None

    def last_matured(self, time: int) -> int:
        """Return the last pane that ends at or before `time` - H."""
        return (time - self.horizon) // self.window.slide - 1

    @property
    def totals(self) -> list[Totals]:
        """The sums of both bases."""
        return [*self.live.totals, *self.matured.totals]

    def fit(self, cells: int) -> None:
        """Make room in both bases."""
        for totals in self.totals:
            totals.fit(cells)

    def add(self, rows: Sequence[TimedTable]) -> None:
        """Spread rows, with their times, over the panes and the sums that hold them.

        Rows of panes settled already are left out: that happens only while a checkpoint is
        restored, whose settled panes were written whole.
        """
        grown: dict[int, Pane] = {}
        for index, (times, table) in enumerate(rows):
            for number, part in self._spread(index, times, table):
                pane = self.panes.get(number)
                if pane is None:
                    pane = self.panes[number] = Pane()
                grown[number] = pane
                pane.tables[index].append(part)
        sum_up([pane for pane in grown.values() if pane.pieces > MAX_PIECES])

    def _spread(self, index: int, times: Ints, table: Table) -> Iterator[tuple[int, Table]]:
        """Add a table to the sums, and yield the number of each pane with its part of the rows."""
        if not len(times):
            return
        numbers = times // self.window.slide
        order = np.argsort(numbers, kind="stable")
        numbers = numbers[order]
        table = table.picked(order)
        if self.last_settled is not None and numbers[0] <= self.last_settled:
            fresh = slice(np.searchsorted(numbers, self.last_settled + 1), None)
            numbers, table = numbers[fresh], table.picked(fresh)
        for basis in (self.live, self.matured):
            held = slice(*np.searchsorted(numbers, (basis.first, basis.last + 1)).tolist())
            if held.start < held.stop:
                basis.add(index, table.picked(held))
        for run in runs(numbers):
            yield int(numbers[run.start]), table.taken(run)

    def read_at(self, time: int) -> None:
        """Move both bases to the reading time T (ms), which never goes back."""
        panes = self.window.panes
        last = time // self.window.slide
        self.live.move(self.panes, last - panes + 1, last)
        last = self.last_matured(time)
        self.matured.move(self.panes, last - panes + 1, last)

    def settle(self, watermark: int) -> list[int]:
        """Sum up the panes that can no longer change, drop panes out of every window.

        Returns the numbers of the panes settled now, in order. Call after `read_at`.
        """
        last = self.last_matured(watermark)
        oldest = last - self.window.panes + 1
        if self.last_settled is not None and last <= self.last_settled:
            return []
        settled = sorted(n for n, p in self.panes.items() if oldest <= n <= last and not p.settled)
        sum_up([self.panes[number] for number in settled])
        for number in settled:
            self.panes[number].settled = True
        for number in [n for n in self.panes if n < oldest]:
            del self.panes[number]
        self.last_settled = last
        return settled


class Windows:
    """All windows of one partition.

    With `journal`, `unsaved` takes (index of the window, number) of panes that settle: the next
    checkpoint writes them.
    """

    def __init__(
        self,
        definition: Definition,
        cells: Cells,
        aggregates: Sequence[Aggregate],
        *,
        journal: bool,
    ) -> None:
        self.cells = cells
        self.aggregates = aggregates
        self.states = [
            WindowState(window, definition.horizon, self.aggregates)
            for window in definition.windows
        ]
        self.reading_time: int | None = None
        self.unsaved: list[tuple[int, int]] = []
        self._journal = journal
        self._renumber_at = SMALLEST_RENUMBERING

    @property
    def crowded(self) -> bool:
        """Whether it is time for `renumbering` the cells."""
        return len(self.cells) > self._renumber_at

    def fitting(self) -> Iterator[None]:
        """Make room for all cells in bounded steps, before `add` or `read_at` would at once."""
        for state in self.states:
            for totals in state.totals:
                totals.fit(len(self.cells))
                yield

    def add(self, flushes: Sequence[Sequence[TimedTable]]) -> None:
        """Add the rows of some flushes: of each a table for each aggregate."""
        tables = [TimedTable.joined(parts) for parts in zip(*flushes, strict=True)]
        for state in self.states:
            state.fit(len(self.cells))
            state.add(tables)

    def read_at(self, time: int) -> None:
        """Move T on to `time` (ms), never back."""
        self.reading_time = max(time, self.reading_time or 0)
        for state in self.states:
            state.fit(len(self.cells))
            state.read_at(self.reading_time)

    def settle(self, watermark: int) -> None:
        """Sum up the panes that can no longer change. Call after `read_at`."""
        for index, state in enumerate(self.states):
            settled = state.settle(watermark)
            if self._journal:
                self.unsaved += [(index, number) for number in settled]

    def renumbering(self) -> Iterator[None]:
        """Drop the cells that no pane holds any more, if they are most, in bounded steps.

        Their sums are zero in every basis, because panes alone make the sums. Add no rows until the
        end; the windows may be read meanwhile.
        """
        used = np.zeros(len(self.cells), np.bool_)
        for pane in self._panes():
            for aggregate, tables in zip(self.aggregates, pane.tables, strict=True):
                for table in tables:
                    used[aggregate.cells_of(table)] = True
            yield
        kept = np.flatnonzero(used)
        if 2 * len(kept) <= len(self.cells):
            cells = yield from self.cells.picked(kept)
            self._number_anew(kept)
            self.cells.exchange(cells)
            yield from cells.emptying()
        self._renumber_at = max(SMALLEST_RENUMBERING, 2 * len(self.cells))

    def _panes(self) -> list[Pane]:
        return [pane for state in self.states for pane in state.panes.values()]

    def _number_anew(self, kept: Ints) -> None:
        """Give the cells of the index array `kept` their new numbers, in that order."""
        numbers = np.full(len(self.cells), -1, np.int32)
        numbers[kept] = np.arange(len(kept), dtype=np.int32)
        for pane in self._panes():
            pane.tables = [
                [aggregate.recoded(table, numbers) for table in tables]
                for aggregate, tables in zip(self.aggregates, pane.tables, strict=True)
            ]
        for state in self.states:
            for totals in state.totals:
                totals.keep(kept)
