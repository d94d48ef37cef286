"""Values of feedback: revenue, watch time. Sums by user, because a cap holds for each user."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from streameval.base.arrays import Ints
from streameval.base.limits import MICRO
from streameval.base.scaled import scale
from streameval.core.definition import Definition
from streameval.core.slate import Relevance
from streameval.core.windows.aggregate import (
    Active,
    CellAggregate,
    FigureRow,
    FigureRows,
    View,
    WorthRows,
    totals,
)
from streameval.core.windows.tables import Cells, Table, TimedTable
from streameval.stats.cluster_sums import stderrs

# A value in 10**-6 has 60 bits: as two halves, billions of the largest add up in 64.
HALF: Final = 30
LOW: Final = (1 << HALF) - 1
# Floats have 53 bits: below, a few are left for the differences from a mean.
_EXACT_BITS: Final = 44


@dataclass(slots=True)
class ValueRows(WorthRows):
    """Values (10**-6) by cell and index of the kind; negative where they are retracted."""

    cells: list[int]
    kinds: list[int]
    micros: list[int]

    def add(self, time: int, cell: int, kind: int, micro: int) -> None:
        """Add a value of one kind."""
        self.times.append(time)
        self.cells.append(cell)
        self.kinds.append(kind)
        self.micros.append(micro)

    def change(self, time: int, cell: int, before: Relevance, after: Relevance) -> None:
        """Add a slate, if its values changed."""
        if before.values != after.values:
            for kind, micro in before.values:
                self.add(time, cell, kind, -micro)
            for kind, micro in after.values:
                self.add(time, cell, kind, micro)


class Values(CellAggregate):
    """The values of each kind that has some, plain and with each user's sum capped.

    A sum is two numbers, `high * 2**30 + low`. By cluster there are the users with an impression,
    and for each kind the plain sum and the sum of the capped.
    """

    name = "values"
    section = "values"
    dtype = "<i8"
    columns = 2
    by_user = True  # it counts users, and the cap is for a user
    by_worth = False  # amounts hardly repeat: experiments add them one by one

    def __init__(self, definition: Definition) -> None:
        super().__init__(definition)
        self._kinds = [i for i, one in enumerate(definition.positives) if one.value != "none"]
        self._index = {kind: index for index, kind in enumerate(self._kinds)}
        self.width = max(1, len(self._kinds))

    @property
    def wanted(self) -> bool:
        """Whether a kind has values."""
        return bool(self._kinds)

    def rows(self) -> ValueRows:
        """Return an empty buffer of rows."""
        return ValueRows.empty()

    def table(self, rows: ValueRows, cells: Cells) -> TimedTable:  # noqa: ARG002
        """Return the rows as a table, with their times."""
        kinds = np.array([self._index[kind] for kind in rows.kinds], np.int64)
        keys = np.array(rows.cells, np.int64) * self.width + kinds
        # Many reactions to one impression may add up to more than 64 bits.
        halves = np.array(
            ([micro >> HALF for micro in rows.micros], [micro & LOW for micro in rows.micros]),
            np.int64,
        )
        return rows.timed(Table(keys.astype(np.int32), halves))

    @property
    def cluster_rows(self) -> int:
        """The number of sums by cluster."""
        return 1 + 4 * len(self._kinds)

    def cluster_sums(self, by_user: Ints, active: Active) -> Ints:
        """Return the sums by key, int64 (`cluster_rows`, keys that are there)."""
        parts = [active.sums(active.with_impression.astype(np.int64))]
        for index, kind in enumerate(self._kinds):
            high, low = by_user[:, index]
            high, low = high + (low >> HALF), low & LOW
            parts += [active.sums(high), active.sums(low)]
            cap = self.definition.positives[kind].cap
            if cap is not None:
                top, rest = divmod(scale(cap, MICRO), 1 << HALF)
                above = (high > top) | ((high == top) & (low > rest))
                high, low = np.where(above, top, high), np.where(above, rest, low)
            parts += [active.sums(high), active.sums(low)]
        return np.array(parts)

    def figures(self, view: View) -> Iterable[FigureRows]:
        """Yield a row for each kind with values."""
        users = view.by_cluster[self.name][0]
        units = {"user": users, "slate": view.slates, "impression": view.impressions}
        for index in range(len(self._kinds)):
            yield self._rows(view, index, units, 1)

    def nowcast(self, view: View) -> Iterable[FigureRows]:
        """Yield a row for each kind with values; a mean over users has no nowcast."""
        kinds = len(self.definition.kinds)
        nobody = np.zeros_like(view.slates)
        for index, kind in enumerate(self._kinds):
            impressions, known = view.expected(kind, view.impressions)
            slates, _ = view.expected(kinds + kind, view.slates)
            units = {"user": nobody, "slate": slates, "impression": impressions}
            rows = self._rows(view, index, units, MICRO)
            yield [row if there else None for row, there in zip(rows, known, strict=True)]

    def _rows(self, view: View, index: int, units: Mapping[str, Ints], per: int) -> list[FigureRow]:
        """Return the rows of a kind; `units` to divide by, in 1/`per` each."""
        users, *sums = view.by_cluster[self.name]
        high, low, capped_high, capped_low = sums[4 * index : 4 * index + 4]
        positives = view.by_cluster["positives"][self._kinds[index]]
        counts = (users, view.slates, view.impressions, positives)
        rows: list[FigureRow] = [
            {
                "feedback": self.definition.kinds[self._kinds[index]],
                "users": users,
                "slates": slates,
                "impressions": impressions,
                "positives": positive,
                "value": value / MICRO,
            }
            for users, slates, impressions, positive, value in zip(
                *map(totals, counts), exact_sums(high, low), strict=True
            )
        ]
        sums_and_numbers = exact_sums(capped_high, capped_low), join_halves(capped_high, capped_low)
        for unit, count in units.items():
            _add_means(rows, f"value_per_{unit}", *sums_and_numbers, count, per)
        _add_means(rows, "value_per_positive", *sums_and_numbers, positives, 1)
        return rows


def _add_means(  # noqa: PLR0917
    rows: Sequence[FigureRow],
    name: str,
    sums: Sequence[int],
    by_cluster: Ints,
    count: Ints,
    per: int,
) -> None:
    """Add the mean of values with its standard error to each row; `count` is in 1/`per`."""
    columns = zip(rows, sums, totals(count), stderrs(by_cluster, count), strict=True)
    for row, found, among, stderr in columns:
        row[name] = found * per / (among * MICRO) if among else None
        row[f"{name}_stderr"] = None if stderr is None else stderr * per / MICRO


def exact_sums(high: Ints, low: Ints) -> list[int]:
    """Return the sums over clusters of numbers in two halves."""
    return [(h << HALF) + rest for h, rest in zip(totals(high), totals(low), strict=True)]


def join_halves(high: Ints, low: Ints) -> Ints:
    """Return numbers in two halves: as int64, or as integers of Python, which have no bound."""
    small = int(np.abs(high).max(initial=0)) < 1 << (_EXACT_BITS - HALF)
    found: Ints = (high.astype(np.int64 if small else object) << HALF) + low
    return found
