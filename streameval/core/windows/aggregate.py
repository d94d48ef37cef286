"""The interface of aggregates, and their common parts: rows, views of sums, standard errors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from streameval.base.arrays import Floats, Ints
from streameval.base.limits import CLUSTERS, MIN_OBSERVED
from streameval.core.definition import Definition
from streameval.core.slate import Relevance
from streameval.core.windows.tables import (
    Cells,
    CellTotals,
    SegmentTotals,
    SparseTotals,
    Table,
    TimedTable,
    Totals,
    starts,
)
from streameval.stats.cluster_sums import stderrs

FigureRow = dict[str, Any]
FigureRows = Sequence[FigureRow | None]
"""A row for each segment, None where it has none."""


@dataclass(slots=True)
class Rows:
    """Rows that were booked and not yet summed up: parallel lists, the first with times (ms)."""

    times: list[int]

    @classmethod
    def empty(cls) -> Self:
        """Return no rows."""
        return cls(*([] for each in fields(cls) if each.init))

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.times)

    def timed(self, table: Table) -> TimedTable:
        """Return a table of these rows with their times."""
        return TimedTable(np.array(self.times, np.int64), table)


class WorthRows(Rows, ABC):
    """Rows that come of the worth of slates alone: the ledger hands them every change of it."""

    __slots__ = ()

    @abstractmethod
    def change(self, time: int, cell: int, before: Relevance, after: Relevance) -> None:
        """Add what changes with the worth of a slate."""


class Active(NamedTuple):
    """The users that a window shows, each once in a segment or total, and their clusters.

    `there` are the keys that occur, rising: the number of a segment or total * 256 + a cluster.
    `columns` (users,) has the index of each one's key in `there`. `with_impression` (users,) tells
    who has an impression: the others have a slate.
    """

    there: Ints
    columns: Ints
    with_impression: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, keys: Ints, there: Ints, with_impression: npt.NDArray[np.bool_]) -> Self:
        """Return the users with the index of each one's key."""
        columns = np.zeros(int(there.max(initial=-1)) + 1, np.int64)
        columns[there] = np.arange(len(there))
        return cls(there, columns[keys], with_impression)

    def sums(self, values: Ints) -> Ints:
        """Return the sums of `values` (by user) by key, int64 (keys that are there)."""
        sums = np.zeros(len(self.there), np.int64)
        np.add.at(sums, self.columns, values)
        return sums


@dataclass(slots=True)
class View:
    """The sums of some segments in one window and basis, as figures need them.

    `names` has the segments. `users` (segments,) have an impression. By kind and segment, float64
    (kinds, segments): `means` of the users' positive rates, and `squares`, the sums of squared
    deviations from them. `by_cluster`, int64 (rows, segments, 256), by name of the aggregate, and
    `plain`, int64 (rows, segments), of the aggregates without clusters. `effective`, int64 (rows,
    segments, 256), is as in `nowcast`. `mature_impressions` (segments,) can no longer change.
    """

    names: Sequence[tuple[str, ...]]
    users: Ints
    means: Floats
    squares: Floats
    by_cluster: Mapping[str, Ints]
    plain: Mapping[str, Ints]
    effective: Ints
    mature_impressions: Ints

    @property
    def impressions(self) -> Ints:
        """Impressions, int64 (segments, 256)."""
        impressions: Ints = self.by_cluster["counts"][0]
        return impressions

    @property
    def slates(self) -> Ints:
        """Slates with a request, int64 (segments, 256)."""
        slates: Ints = self.by_cluster["counts"][1]
        return slates

    def expected(self, row: int, whole: Ints) -> tuple[Ints, list[bool]]:
        """Return a row of `effective`, and the segments in which enough of `whole` has come (R33).

        It is 0 in the others.
        """
        come = zip(totals(self.effective[row]), totals(whole), strict=True)
        known = [found > 0 and found >= MIN_OBSERVED * total for found, total in come]
        return np.where(np.array(known)[:, np.newaxis], self.effective[row], 0), known


class Aggregate(ABC):
    """One kind of sum that windows hold, under a definition.

    `name` stands in checkpoints, `section` is the part of `replay`'s document that its figures
    belong to, `columns` counts the values of a row. Windows hold one that is `optional` only if the
    definition has figures of this name.
    It `reads_rows_of` another one, where both sum up the same rows.
    """

    name: ClassVar[str]
    section: ClassVar[str]
    optional: ClassVar[str] = ""
    reads_rows_of: ClassVar[str] = ""
    dtype: ClassVar[str] = "<i4"
    columns: int

    def __init__(self, definition: Definition) -> None:
        self.definition = definition

    @property
    def wanted(self) -> bool:
        """Whether the definition has its figures."""
        return not self.optional or self.optional in self.definition.figures

    @abstractmethod
    def rows(self) -> Any:
        """Return an empty buffer of rows."""

    @abstractmethod
    def table(self, rows: Any, cells: Cells) -> TimedTable:
        """Return the rows as a table, with their times."""

    @abstractmethod
    def totals(self) -> Totals:
        """Return sums of nothing."""

    @abstractmethod
    def cells_of(self, table: Table) -> npt.NDArray[Any]:
        """Return the cells that a table refers to."""

    @abstractmethod
    def recoded(self, table: Table, numbers: npt.NDArray[Any]) -> Table:
        """Return a table with other numbers of its cells: `numbers` by cell."""

    @abstractmethod
    def figures(self, view: View) -> Iterable[FigureRows]:
        """Yield the rows of figures, each with the figures of all segments."""

    def nowcast(self, view: View) -> Iterable[FigureRows]:  # noqa: ARG002
        """Yield the same rows as a nowcast of live segments, where there is one."""
        return ()


class ClusteredAggregate(Aggregate):
    """An aggregate with sums by (segment, cluster of users), for standard errors.

    `by_worth`: experiments have its rows under names (`experiments.metrics`), and remember what
    slates of equal worth add to them.
    """

    by_worth: ClassVar[bool] = True

    @property
    @abstractmethod
    def cluster_rows(self) -> int:
        """The number of sums by cluster."""


class CellAggregate(ClusteredAggregate):
    """An aggregate whose rows belong to a cell, with `width` positions for each cell.

    Sums of segments add up to the sums of their total, but not where the aggregate is `by_user`:
    there one who is in two segments is one user of their total.
    """

    by_user: ClassVar[bool] = False

    width: int = 1

    def totals(self) -> CellTotals:
        """Return sums of nothing."""
        return CellTotals(self.columns, self.width)

    def cells_of(self, table: Table) -> npt.NDArray[Any]:
        """Return the cells that a table refers to."""
        return table.keys if self.width == 1 else table.keys // self.width

    def recoded(self, table: Table, numbers: npt.NDArray[Any]) -> Table:
        """Return a table with other numbers of its cells: `numbers` by cell."""
        keys = numbers[self.cells_of(table)] * self.width + table.keys % self.width
        return Table(keys.astype(np.int32), table.values)

    @property
    def cluster_rows(self) -> int:
        """The number of sums by cluster."""
        return self.columns * self.width

    def cluster_sums(self, by_user: Ints, active: Active) -> Ints:
        """Return the sums by key, int64 (`cluster_rows`, keys that are there).

        `by_user`, int64 (columns, width, users), has the sums of each user in `active`.
        """
        # Float sums of integers are exact below 2**53, and bincount is the fast one.
        found = [
            np.bincount(active.columns, weights=sums, minlength=len(active.there))
            for sums in by_user.reshape(self.cluster_rows, -1)
        ]
        return np.array(found).astype(np.int64)


class ClusterAggregate(ClusteredAggregate):
    """An aggregate whose rows belong to (segment, cluster): no figure needs them by user.

    The key is segment * 256 + cluster.
    """

    @staticmethod
    def keys(scored: Sequence[int] | Ints, cells: Cells) -> npt.NDArray[np.int32]:
        """Return the keys of rows that belong to these cells."""
        segments, clusters = cells.arrays()
        index = np.array(scored, np.int64)
        return (segments[index] * CLUSTERS + clusters[index]).astype(np.int32)

    def totals(self) -> SparseTotals:
        """Return sums of nothing."""
        return SparseTotals(self.columns)

    def cells_of(self, table: Table) -> npt.NDArray[Any]:  # noqa: ARG002
        """Return no cells: its rows belong to clusters."""
        return np.empty(0, np.int32)

    def recoded(self, table: Table, numbers: npt.NDArray[Any]) -> Table:  # noqa: ARG002
        """Return the table as it is."""
        return table

    @property
    def cluster_rows(self) -> int:
        """The number of sums by cluster."""
        return self.columns


class SegmentAggregate(Aggregate):
    """An aggregate of sums by segment alone, with `width` slots for each segment.

    Views hold the sums of those that have `figures`.
    """

    columns = 1
    width: int
    has_figures: ClassVar[bool] = True

    def __init__(self, definition: Definition) -> None:
        super().__init__(definition)
        self._together = math.gcd(*(window.slide for window in definition.windows))

    def summed(
        self, cells: Cells, times: Ints, among: Ints, slots: Ints, values: Ints
    ) -> TimedTable:
        """Return sums by slot as a table with times: one row for all that no window tells apart.

        `values` are int64 (columns, rows); times (ms), numbers of cells and slots are (rows,).
        """
        segments, _ = cells.arrays()
        keys = segments[among] * self.width + slots
        moments = times // self._together
        earliest = int(moments.min()) if len(moments) else 0
        span = int(keys.max(initial=0)) + 1
        rows = (moments - earliest) * span + keys
        order = np.argsort(rows, kind="stable")
        rows = rows[order]
        first = starts(rows)
        found = rows[first]
        sums = np.add.reduceat(values[:, order], first, axis=1)
        table = Table((found % span).astype(np.int32), sums.astype(self.dtype))
        return TimedTable((found // span + earliest) * self._together, table)

    def totals(self) -> SegmentTotals:
        """Return sums of nothing."""
        return SegmentTotals(self.columns, self.width)

    def cells_of(self, table: Table) -> npt.NDArray[Any]:  # noqa: ARG002
        """Return no cells: its rows belong to segments."""
        return np.empty(0, np.int32)

    def recoded(self, table: Table, numbers: npt.NDArray[Any]) -> Table:  # noqa: ARG002
        """Return the table as it is."""
        return table


def totals(by_cluster: Ints) -> list[int]:
    """Return the sums over clusters, by segment: of int64 (segments, 256)."""
    found: list[int] = by_cluster.sum(axis=-1).tolist()
    return found


def means(
    names: Sequence[str], numerators: Ints, denominators: Ints, unit: int = 1, *, per: int = 1
) -> list[FigureRow]:
    """Return each Σx/Σy with its standard error by name, for each segment.

    x, int64 (names, segments, 256), is in units of 1/`unit`, y, int64 (segments, 256), of 1/`per`.
    """
    rows: list[FigureRow] = [{} for _ in denominators]
    among = totals(denominators)
    for name, sums in zip(names, numerators, strict=True):
        columns = zip(rows, totals(sums), among, stderrs(sums, denominators), strict=True)
        for row, found, total, stderr in columns:
            row[name] = found * per / (total * unit) if total else None
            row[f"{name}_stderr"] = None if stderr is None else stderr * per / unit
    return rows
