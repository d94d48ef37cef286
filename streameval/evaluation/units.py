"""Units other than ranked lists with labels (users, queries, lists of items), in batches.

Their data lies in tables. DuckDB puts the rows of a unit side by side and hands them over in
bounded memory, and no unit is divided.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic

import numpy as np

from streameval.base.arrays import Floats, Ints
from streameval.core.metrics.entry import Data
from streameval.core.windows.tables import checksum_of
from streameval.evaluation.answer import Segment
from streameval.evaluation.batches import ROWS
from streameval.evaluation.readers.outcomes import segments_of
from streameval.evaluation.sums import Column
from streameval.files.table_scans import quote

BY: Final = "by "
"""The prefix of the columns of `--by`, so that they hide no other column."""


@dataclass(frozen=True, slots=True)
class UnitBatch(Generic[Data]):
    """n units with the data of their metrics; `sums.Units` describes the other fields."""

    data: Data
    checksums: Ints
    segments: Ints
    names: Sequence[Segment]
    ids: Sequence[str] | None = None
    users: Sequence[str] | None = None
    tied: tuple[int, int] = (0, 0)

    def sums(self, columns: Sequence[Column]) -> tuple[Floats, Ints]:
        """Return x and y of each unit, shape (n, columns)."""
        found = [metric.score(self.data, k) for metric, k in columns]
        return np.column_stack([x for x, _ in found]), np.column_stack([y for _, y in found])


def batch_of(
    data: Data,
    users: Sequence[str],
    segments: Sequence[Segment],
    ids: Sequence[str],
    tied: tuple[int, int] = (0, 0),
) -> UnitBatch[Data]:
    """Make a batch of units with their users, their values of `--by`, and their names."""
    numbers, names = segments_of(segments)
    checksums = np.array([checksum_of(user) for user in users], np.int64)
    return UnitBatch(data, checksums, numbers, names, ids, users, tied)


def dimensions(by: Sequence[str]) -> str:
    """Return the columns of `--by` as SQL selects them, each after a comma."""
    return "".join(f", {quote(BY + name)}" for name in by)


def group(
    connection: Any, query: str, width: int
) -> Iterator[tuple[list[tuple[Any, ...]], list[int]]]:
    """Yield rows of a query with the index of each new key; the rows of a key stay together.

    The key is the first `width` columns, which the query is in order of.
    """
    connection.execute(query)
    held: list[tuple[Any, ...]] = []
    while rows := connection.fetchmany(ROWS):
        key = (held or rows)[-1 if held else 0][:width]
        starts = []
        for number, row in enumerate(rows):
            if row[:width] != key:
                key = row[:width]
                starts.append(number)
        if not starts:
            held += rows
            continue
        last = starts.pop()
        before = len(held)
        yield held + rows[:last], [0, *(before + start for start in starts)]
        held = rows[last:]
    if held:
        yield held, [0]
