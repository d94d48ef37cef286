"""Aggregates: the sums of a window, one class for each kind.

An aggregate says how its rows are booked (`rows`), by which key they add up (`table`, `totals`) and
which figures come of the sums (`figures`). Panes, checkpoints, renumbering and merging over
partitions treat all aggregates alike. `AGGREGATES` lists them in the order of their sums.

To add one, write its class here or beside, book its rows in `core.ledger`, and add it to
`AGGREGATES`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from streameval.base.arrays import Ints
from streameval.base.limits import CLUSTERS, NANO
from streameval.core.definition import Definition
from streameval.core.metrics import RANKING, RelevantItems, Scorer
from streameval.core.windows.cells import Cells
from streameval.core.windows.tables import CellTotals, SparseTotals, Table, Totals

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


class Active(NamedTuple):
    """The cells that a window shows, and their (segment, cluster) as one number each.

    `cells` have an impression, `keys` (parallel) are their segment * 256 + cluster, `there`
    the keys that occur, rising.
    """

    cells: npt.NDArray[np.intp]
    keys: Ints
    there: Ints


@dataclass(slots=True)
class SegmentView:
    """The sums of one window, basis and segment, as figures need them.

    `users` with an impression; `means` and `squares` by index of the kind: the mean of the users'
    positive rates, and the sum of squared deviations from it; `by_cluster` by name of the
    aggregate, int64 (rows, 256).
    """

    users: int
    means: Sequence[float]
    squares: Sequence[float]
    by_cluster: Mapping[str, Ints]

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
    def table(self, rows: Any, cells: Cells) -> Table:
        """Return the rows as a table."""

    @abstractmethod
    def totals(self) -> Totals:
        """Return sums of nothing."""

    @abstractmethod
    def cells_of(self, table: Table) -> npt.NDArray[Any]:
        """Return the cells that a table refers to."""

    @abstractmethod
    def recoded(self, table: Table, numbers: npt.NDArray[Any]) -> Table:
        """Return a table with other numbers of its cells: `numbers` by cell."""

    @property
    @abstractmethod
    def cluster_rows(self) -> int:
        """The number of sums by cluster."""

    @abstractmethod
    def cluster_sums(self, totals: Any, active: Active) -> Ints:
        """Return the sums by (segment, cluster), int64 (`cluster_rows`, keys that are there)."""

    @abstractmethod
    def figures(self, segment: SegmentView) -> Iterable[FigureRow]:
        """Yield the rows of figures of one segment."""


class CellAggregate(Aggregate):
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
                np.bincount(active.keys, weights=totals.of(column, position)[active.cells])[
                    active.there
                ].astype(np.int64)
                for column in range(self.columns)
                for position in range(self.width)
            ]
        ).reshape(self.cluster_rows, -1)


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

    def table(self, rows: CountRows, cells: Cells) -> Table:  # noqa: ARG002
        """Return the rows as a table."""
        values = np.array((rows.impressions, rows.slates), np.int32)
        return Table(np.array(rows.cells, np.int32), values)

    def figures(self, segment: SegmentView) -> Iterable[FigureRow]:  # noqa: ARG002
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

    def table(self, rows: PositiveRows, cells: Cells) -> Table:  # noqa: ARG002
        """Return the rows as a table."""
        keys = np.array(rows.cells, np.int64) * self.width + np.array(rows.kinds, np.int64)
        return Table(keys.astype(np.int32), np.array((rows.counts,), np.int32))

    def figures(self, segment: SegmentView) -> Iterable[FigureRow]:
        """Yield a row for each kind."""
        impressions = int(segment.impressions.sum())
        for index, kind in enumerate(self.definition.kinds):
            by_cluster = segment.by_cluster[self.name][index]
            positives = int(by_cluster.sum())
            stderr = None
            if segment.users > 1:
                stderr = math.sqrt(segment.squares[index] / (segment.users - 1) / segment.users)
            yield {
                "feedback": kind,
                "users": segment.users,
                "impressions": impressions,
                "positives": positives,
                "positive_rate": segment.means[index],
                "positive_rate_stderr": stderr,
                "positives_per_impression": positives / impressions,
                "positives_per_impression_stderr": ratio_stderr(by_cluster, segment.impressions),
            }


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


class Scores(Aggregate):
    """Scores of slates by (segment, cluster): no figure needs them by user.

    The key is segment * 256 + cluster. Column 0 counts slates with a positive, the others are sums
    of nano-units, a column for each metric and cutoff.
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

    def table(self, rows: ScoreRows, cells: Cells) -> Table:
        """Return the rows as a table."""
        segments, clusters = cells.arrays()
        scored = np.array(rows.cells, np.int64)
        keys = (segments[scored] * CLUSTERS + clusters[scored]).astype(np.int32)
        signs = np.array(rows.signs, np.int64)[:, np.newaxis]
        scores = np.concatenate((signs, signs * self._scorer.score(rows.items)), axis=1)
        return Table(keys, np.ascontiguousarray(scores.T))

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
        """Return the sums by (segment, cluster): a slate with a score was shown, so it is there."""
        return totals.of(active.there).T

    def figures(self, segment: SegmentView) -> Iterable[FigureRow]:
        """Yield a row for each cutoff."""
        scores = segment.by_cluster[self.name]
        slates = int(segment.slates.sum())
        with_positive = int(scores[0].sum())
        by_cutoff = iter(scores[1:])
        for k in self.definition.ks:
            row: FigureRow = {"k": k, "slates": slates, "slates_with_positive": with_positive}
            for metric, nanos in zip(RANKING, by_cutoff, strict=False):
                stderr = ratio_stderr(nanos, segment.slates)
                row[metric.name] = int(nanos.sum()) / (slates * NANO) if slates else None
                row[f"{metric.name}_stderr"] = None if stderr is None else stderr / NANO
            yield row


AGGREGATES: Final[tuple[type[Aggregate], ...]] = (Counts, Positives, Scores)


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
