"""The interface of aggregates, and their common parts: rows, views of sums, standard errors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from streameval.base.arrays import Ints
from streameval.base.limits import CLUSTERS, MIN_OBSERVED
from streameval.core.definition import Definition
from streameval.core.windows.cells import Cells
from streameval.core.windows.tables import (
    CellTotals,
    SegmentTotals,
    SparseTotals,
    Table,
    TimedTable,
    Totals,
)

FigureRow = dict[str, Any]


@dataclass(slots=True)
class Rows:
    """Rows that were booked and not yet summed up: parallel lists, the first with times (ms)."""

    times: list[int]

    @classmethod
    def empty(cls) -> Self:
        """Return no rows."""
        return cls(*([] for _ in fields(cls)))

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.times)

    def timed(self, table: Table) -> TimedTable:
        """Return a table of these rows with their times."""
        return TimedTable(np.array(self.times, np.int64), table)


class Active(NamedTuple):
    """The cells that a window shows, and their (segment, cluster) as one number each.

    `cells` have an impression or a slate, `keys` (parallel) are their segment * 256 + cluster,
    `there` the keys that occur, rising, `columns` (parallel to `cells`) the index of each key in
    `there`. `with_impression` (parallel) tells which have an impression.
    """

    cells: npt.NDArray[np.intp]
    keys: Ints
    there: Ints
    columns: Ints
    with_impression: npt.NDArray[np.bool_]

    @classmethod
    def of(
        cls, cells: Ints, keys: Ints, there: Ints, with_impression: npt.NDArray[np.bool_]
    ) -> Self:
        """Return the cells with the index of each one's key."""
        columns = np.zeros(int(there.max(initial=-1)) + 1, np.int64)
        columns[there] = np.arange(len(there))
        return cls(cells, keys, there, columns[keys], with_impression)

    def sums(self, values: Ints) -> Ints:
        """Return the sums of `values` (parallel to `cells`) by key, int64 (keys that are there)."""
        sums = np.zeros(len(self.there), np.int64)
        np.add.at(sums, self.columns, values)
        return sums


@dataclass(slots=True)
class SegmentView:
    """The sums of one window, basis and segment, as figures need them.

    `users` with an impression; `means` and `squares` by index of the kind: the mean of the users'
    positive rates, and the sum of squared deviations from it; `by_cluster` by name of the
    aggregate, int64 (rows, 256); `plain` by name, of aggregates without clusters, int64 (rows,).
    `effective`, int64 (rows, 256), as in `nowcast`.
    """

    users: int
    means: Sequence[float]
    squares: Sequence[float]
    by_cluster: Mapping[str, Ints]
    plain: Mapping[str, Ints]
    effective: Ints

    @property
    def impressions(self) -> Ints:
        """Impressions by cluster."""
        impressions: Ints = self.by_cluster["counts"][0]
        return impressions

    @property
    def slates(self) -> Ints:
        """Slates with a request by cluster."""
        slates: Ints = self.by_cluster["counts"][1]
        return slates

    def expected(self, row: int, whole: Ints) -> Ints | None:
        """Return a row of `effective`, None where too little of `whole` has come to tell (R33)."""
        found: Ints = self.effective[row]
        total = int(found.sum())
        return found if total and total >= MIN_OBSERVED * int(whole.sum()) else None


class Aggregate(ABC):
    """One kind of sum that windows hold, under a definition.

    `name` stands in checkpoints, `section` is the part of `replay`'s document that its figures
    belong to, `columns` counts the values of a row.
    """

    name: ClassVar[str]
    section: ClassVar[str]
    dtype: ClassVar[str] = "<i4"
    columns: int

    def __init__(self, definition: Definition) -> None:
        self.definition = definition

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
    def figures(self, segment: SegmentView) -> Iterable[FigureRow]:
        """Yield the rows of figures of one segment."""

    def nowcast(self, segment: SegmentView) -> Iterable[FigureRow]:  # noqa: ARG002
        """Yield the same rows as a nowcast of one live segment, where there is one."""
        return ()


class ClusteredAggregate(Aggregate):
    """An aggregate with sums by (segment, cluster of users), for standard errors.

    Sums of segments add up to the sums of their total, but not where the aggregate is `by_user`.
    """

    by_user: ClassVar[bool] = False

    @property
    @abstractmethod
    def cluster_rows(self) -> int:
        """The number of sums by cluster."""

    @abstractmethod
    def cluster_sums(self, totals: Any, active: Active) -> Ints:
        """Return the sums by (segment, cluster), int64 (`cluster_rows`, keys that are there)."""


class CellAggregate(ClusteredAggregate):
    """An aggregate whose rows belong to a cell, with `width` positions for each cell."""

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

    def cluster_sums(self, totals: CellTotals, active: Active) -> Ints:
        """Return the sums by (segment, cluster), int64 (`cluster_rows`, keys that are there)."""
        # Float sums of integers are exact below 2**53, and bincount is the fast one.
        return np.array(
            [
                np.bincount(
                    active.columns,
                    weights=totals.of(column, position)[active.cells],
                    minlength=len(active.there),
                ).astype(np.int64)
                for column in range(self.columns)
                for position in range(self.width)
            ]
        ).reshape(self.cluster_rows, -1)


class ClusterAggregate(ClusteredAggregate):
    """An aggregate whose rows belong to (segment, cluster): no figure needs them by user.

    The key is segment * 256 + cluster.
    """

    @staticmethod
    def keys(scored: Sequence[int], cells: Cells) -> npt.NDArray[np.int32]:
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

    def cluster_sums(self, totals: SparseTotals, active: Active) -> Ints:
        """Return the sums by (segment, cluster): a user with a row was shown something."""
        return totals.of(active.there).T


class SegmentAggregate(Aggregate):
    """An aggregate of counts by segment alone, with `width` slots for each segment."""

    columns = 1
    width: int

    def __init__(self, definition: Definition) -> None:
        super().__init__(definition)
        self._together = math.gcd(*(window.slide for window in definition.windows))

    def counted(self, times: Ints, keys: Ints, counts: Ints) -> TimedTable:
        """Return counts by key as a table with times: one row for all that no window tells apart.

        The arrays are parallel; keys are segment * `width` + slot.
        """
        moments = times // self._together
        earliest = int(moments.min()) if len(moments) else 0
        span = int(keys.max(initial=0)) + 1
        found, group = np.unique((moments - earliest) * span + keys, return_inverse=True)
        sums = np.zeros(len(found), np.int64)
        np.add.at(sums, group, counts)
        table = Table((found % span).astype(np.int32), sums[np.newaxis].astype(np.int32))
        return TimedTable((found // span + earliest) * self._together, table)

    def totals(self) -> SegmentTotals:
        """Return sums of nothing."""
        return SegmentTotals(self.width)

    def cells_of(self, table: Table) -> npt.NDArray[Any]:  # noqa: ARG002
        """Return no cells: its rows belong to segments."""
        return np.empty(0, np.int32)

    def recoded(self, table: Table, numbers: npt.NDArray[Any]) -> Table:  # noqa: ARG002
        """Return the table as it is."""
        return table


def ratio_stderr(numerators: Ints, denominators: Ints) -> float | None:
    """Return the standard error of Σx/Σy from sums by cluster, int64 (256,) each.

    Delta method with clusters as units (docs/uncertainty.md): n non-empty clusters, d = x - R*y,
    sqrt(n/(n-1) * Σd²) / Σy. None below two clusters.
    """
    count = int(np.count_nonzero(denominators))
    if count < 2:
        return None
    total = int(denominators.sum())
    apart = numerators - int(numerators.sum()) / total * denominators
    return math.sqrt(count / (count - 1) * float(np.square(apart).sum())) / total


def mean(
    name: str, numerators: Ints, denominators: Ints, unit: int = 1, *, per: int = 1
) -> FigureRow:
    """Return Σx/Σy with its standard error, by name: x in units of 1/`unit`, y of 1/`per`."""
    among = int(denominators.sum())
    stderr = ratio_stderr(numerators, denominators)
    return {
        name: int(numerators.sum()) * per / (among * unit) if among else None,
        f"{name}_stderr": None if stderr is None else stderr * per / unit,
    }
