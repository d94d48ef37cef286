"""Values of feedback: revenue, watch time. Sums by user, because a cap holds for each user."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np

from streameval.base.arrays import Ints
from streameval.base.limits import MICRO
from streameval.base.scaled import scaled
from streameval.core.definition import Definition
from streameval.core.windows.aggregate import (
    Active,
    CellAggregate,
    FigureRow,
    Rows,
    SegmentView,
    ratio_stderr,
)
from streameval.core.windows.cells import Cells
from streameval.core.windows.tables import CellTotals, Table, TimedTable

# A value in 10**-6 has 60 bits: as two halves, billions of the largest add up in 64.
HALF: Final = 30
LOW: Final = (1 << HALF) - 1
# Floats have 53 bits: below, a few are left for the differences from a mean.
_EXACT_BITS: Final = 44


@dataclass(slots=True)
class ValueRows(Rows):
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


class Values(CellAggregate):
    """The values of each kind that has some, plain and with each user's sum cut at the cap.

    A sum is two numbers, `high * 2**30 + low`. By cluster there are the users with an impression,
    and for each kind the plain sum and the sum of the capped.
    """

    name = "values"
    section = "values"
    dtype = "<i8"
    columns = 2
    by_user = True  # the cap is for the user

    def __init__(self, definition: Definition) -> None:
        super().__init__(definition)
        self._kinds = [i for i, one in enumerate(definition.positives) if one.value != "none"]
        self._index = {kind: index for index, kind in enumerate(self._kinds)}
        self.width = max(1, len(self._kinds))

    def rows(self) -> ValueRows:
        """Return an empty buffer of rows."""
        return ValueRows.empty()

    def table(self, rows: ValueRows, cells: Cells) -> TimedTable:  # noqa: ARG002
        """Return the rows as a table, with their times."""
        kinds = np.array([self._index[kind] for kind in rows.kinds], np.int64)
        keys = np.array(rows.cells, np.int64) * self.width + kinds
        micros = np.array(rows.micros, np.int64)
        halves = np.array((micros >> HALF, micros & LOW))
        return rows.timed(Table(keys.astype(np.int32), halves))

    @property
    def cluster_rows(self) -> int:
        """The number of sums by cluster."""
        return 1 + 4 * len(self._kinds)

    def cluster_sums(self, totals: CellTotals, active: Active) -> Ints:
        """Return the sums by (segment, cluster), int64 (`cluster_rows`, keys that are there)."""
        parts = [active.sums(active.with_impression.astype(np.int64))]
        for index, kind in enumerate(self._kinds):
            low = totals.of(1, index)[active.cells]
            high = totals.of(0, index)[active.cells] + (low >> HALF)
            low &= LOW
            parts += [active.sums(high), active.sums(low)]
            cap = self.definition.positives[kind].cap
            if cap is not None:
                top, rest = divmod(scaled(cap, MICRO), 1 << HALF)
                above = (high > top) | ((high == top) & (low > rest))
                high, low = np.where(above, top, high), np.where(above, rest, low)
            parts += [active.sums(high), active.sums(low)]
        return np.array(parts)

    def figures(self, segment: SegmentView) -> Iterable[FigureRow]:
        """Yield a row for each kind with values."""
        users = segment.by_cluster[self.name][0]
        units = {"user": users, "slate": segment.slates, "impression": segment.impressions}
        for index in range(len(self._kinds)):
            yield self._row(segment, index, units, 1)

    def nowcast(self, segment: SegmentView) -> Iterable[FigureRow]:
        """Yield a row for each kind with values; a mean over users has no nowcast."""
        kinds = len(self.definition.kinds)
        for index, kind in enumerate(self._kinds):
            impressions = segment.expected(kind, segment.impressions)
            if impressions is not None:
                slates = segment.expected(kinds + kind, segment.slates)
                units = {"user": None, "slate": slates, "impression": impressions}
                yield self._row(segment, index, units, MICRO)

    def _row(
        self, segment: SegmentView, index: int, units: Mapping[str, Ints | None], per: int
    ) -> FigureRow:
        """Return a row; `units` to divide by, in 1/`per` each, None where the mean is unknown."""
        users, *sums = segment.by_cluster[self.name]
        high, low, capped_high, capped_low = sums[4 * index : 4 * index + 4]
        positives = segment.by_cluster["positives"][self._kinds[index]]
        row: FigureRow = {
            "feedback": self.definition.kinds[self._kinds[index]],
            "users": int(users.sum()),
            "slates": int(segment.slates.sum()),
            "impressions": int(segment.impressions.sum()),
            "positives": int(positives.sum()),
            "value": exact_sum(high, low) / MICRO,
        }
        total = exact_sum(capped_high, capped_low)
        by_cluster = joined(capped_high, capped_low)
        for unit, count in units.items():
            row |= _mean(f"value_per_{unit}", total, by_cluster, count, per)
        return row | _mean("value_per_positive", total, by_cluster, positives, 1)


def _mean(
    name: str, total: int, by_cluster: Sequence[int], count: Ints | None, per: int
) -> FigureRow:
    """Return the mean of values with its standard error; `count` is in units of 1/`per`."""
    among = 0 if count is None else int(count.sum())
    stderr = None if count is None else value_stderr(by_cluster, count)
    return {
        name: total * per / (among * MICRO) if among else None,
        f"{name}_stderr": None if stderr is None else stderr * per / MICRO,
    }


def exact_sum(high: Ints, low: Ints) -> int:
    """Return the sum of numbers in two halves."""
    return sum(joined(high, low))


def joined(high: Ints, low: Ints) -> list[int]:
    """Return numbers in two halves as integers of Python, which have no bound."""
    return [(h << HALF) + rest for h, rest in zip(high.tolist(), low.tolist(), strict=True)]


def value_stderr(numerators: Sequence[int], denominators: Ints) -> float | None:
    """Return `ratio_stderr`, also where the numerators are beyond the integers of a float."""
    if max(map(abs, numerators)) < 1 << _EXACT_BITS:
        return ratio_stderr(np.array(numerators, np.int64), denominators)
    counts = denominators.tolist()
    present = sum(count != 0 for count in counts)
    if present < 2:
        return None
    total, among = sum(numerators), sum(counts)
    squares = sum((x * among - total * y) ** 2 for x, y in zip(numerators, counts, strict=True))
    return math.sqrt(Fraction(present * squares, (present - 1) * among**4))
