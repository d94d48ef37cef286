"""Ranked lists in batches, whatever the file was, and how to score them.

Of a list only its relevant items are kept, one after another in flat arrays. Scoring pads them to
matrices, lists of about the same number of relevant items together: a list with 300 of them does
not make 16,000 others 300 wide. A score does not depend on which lists share its matrix
(`core.metrics.lists`), and a figure does not depend on the batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from streameval.base.arrays import Floats, Ints
from streameval.core.metrics import Lists, Metric, Scores

Advance: TypeAlias = Callable[[int], None]
"""Told how many bytes of the files have been read since the last call."""

ROWS: Final = 16_384
"""Lists in a batch: their matrices stay in the processor's cache."""


@dataclass(frozen=True, slots=True)
class Batch:
    """n ranked lists and their relevant items, which lie flat, list after list.

    `relevant` (n,): how many relevant items a list has; `ranks` (their sum,): 1-based and rising
    within a list, then 0 for items that the list does not have; `gains` (> 0) and `score_ranks` (as
    `core.metrics.Lists` has them) alongside. `length` (n,): items shown. `checksums` (n,): the
    CRC-32 of the list's user; `segments` (n,): the index in `names` of its values of `--by`.
    `ids` and `users`: the lists' names and their users, where they were asked for. `tied`: how many
    lists have equal scores, whose order a rule decided, and how many were put in order by score at
    all.
    """

    relevant: Ints
    ranks: Ints
    gains: Floats
    score_ranks: Floats
    length: Ints
    checksums: Ints
    segments: Ints
    names: Sequence[tuple[str, ...]]
    ids: Sequence[str] | None = None
    users: Sequence[str] | None = None
    tied: tuple[int, int] = (0, 0)

    def lists(self) -> Iterator[tuple[Ints, Lists]]:
        """The lists as matrices, by width 1, 2, 4, 8, …: (indices of the lists, lists)."""
        starts = np.cumsum(self.relevant) - self.relevant
        # Without relevant items a list is as wide as with one: padding.
        bits = np.ceil(np.log2(np.maximum(self.relevant, 1))).astype(np.int64)
        for bit in np.unique(bits):
            rows = np.flatnonzero(bits == bit)
            relevant = self.relevant[rows]
            columns = np.arange(max(int(relevant.max()), 1))
            there = columns < relevant[:, None]
            flat = np.where(there, starts[rows, None] + columns, 0)
            yield (
                rows,
                Lists(
                    ranks=_take(self.ranks, flat, there),
                    gains=_take(self.gains, flat, there),
                    relevant=relevant,
                    length=self.length[rows],
                    score_ranks=_take(self.score_ranks, flat, there),
                ),
            )

    def scores(self, columns: Sequence[tuple[Metric, int]]) -> Scores:
        """A score for each list and (metric, k), shape (n, columns); NaN where undefined."""
        answer = np.empty((len(self.relevant), len(columns)))
        for rows, lists in self.lists():
            for number, (metric, k) in enumerate(columns):
                answer[rows, number] = metric.score(lists, k)
        return answer

    def sums(self, columns: Sequence[tuple[Metric, int]]) -> tuple[Scores, Ints]:
        """Each list's score and 1, shape (n, columns); both 0 where it is undefined."""
        scores = self.scores(columns)
        defined = ~np.isnan(scores)
        return np.where(defined, scores, 0.0), defined.astype(np.int64)


def _take(values: npt.NDArray[Any], flat: Ints, there: npt.NDArray[np.bool_]) -> Any:
    if not values.size:
        return np.zeros(flat.shape, values.dtype)
    return np.where(there, values[flat], values.dtype.type(0))
