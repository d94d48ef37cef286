"""Ranked lists in batches, whatever the file was, and how to score them.

Of a list only its relevant items are kept, one after another in flat arrays. Scoring pads them to
matrices, lists of about the same number of relevant items together: a list with 300 of them does
not make 16,000 others 300 wide. A score does not depend on which lists share its matrix
(`core.metrics.lists`), and a figure does not depend on the batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from streameval.base.arrays import Flags, Floats, Ints, distinct
from streameval.core.metrics import Lists, Metric, Scores

Advance: TypeAlias = Callable[[int], None]
"""Told how many bytes of the files have been read since the last call."""

ROWS: Final = 16_384
"""Lists in a batch: their matrices stay in the processor's cache."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Labels of irrelevant items: `core.metrics.Lists` has the fields, which lie flat here.

    `irrelevant` (n,) is by list, the others are alongside the relevant items.
    """

    irrelevant: Ints
    irrelevant_above: Ints
    unjudged_above: Ints


def judged_of(gains: Floats, starts: Ints, where: Ints, level: float | None) -> Judged:
    """Count the labels of irrelevant items in lists, and above their items `where`.

    `gains` holds the gains of all items in order of rank, and list by list: `starts` (n + 1,) has
    where each begins. NaN is an item without a label, and a gain below 0 one that was pooled and
    never judged.
    """
    irrelevant = irrelevant_by(gains, level)
    return Judged(
        irrelevant=counts_of(irrelevant, starts),
        irrelevant_above=_above(irrelevant, starts, where),
        unjudged_above=_above(gains < 0, starts, where),
    )


def irrelevant_by(gains: Floats, level: float | None) -> Flags:
    """Tell which labels call an item irrelevant: those below `level`, or 0 without one."""
    below: Flags = gains <= 0 if level is None else gains < level
    return below & (gains >= 0)


def counts_of(flags: Flags, starts: Ints) -> Ints:
    """Return how many of the items of each list have a flag; lists begin at `starts` (n + 1,)."""
    before = np.concatenate(([0], np.cumsum(flags)))
    return before[starts[1:]] - before[starts[:-1]]


def _above(flags: Flags, starts: Ints, where: Ints) -> Ints:
    """Return how many items with a flag stand above the items `where`, each in its list."""
    before = np.concatenate(([0], np.cumsum(flags)))
    first = starts[np.searchsorted(starts, where, "right") - 1]
    return before[where] - before[first]


@dataclass(frozen=True, slots=True)
class Batch:
    """n ranked lists and their relevant items, which lie flat, list after list.

    `relevant` (n,): how many relevant items a list has; `ranks` (their sum,): 1-based and rising
    within a list, then 0 for items that the list does not have; `gains` (> 0) and `score_ranks` (as
    `core.metrics.Lists` has them) alongside. `length` (n,): items shown. `checksums` (n,): the
    CRC-32 of the list's user; `segments` (n,): the index in `names` of its values of `--by`.
    `ids` and `users`: the lists' names and their users, where they were asked for. `tied`: how many
    lists have equal scores, whose order a rule decided, and how many were put in order by score at
    all. Metrics that do not go by gains take an item as relevant from the gain `level` on. `judged`
    is there where it was asked for, and counts items below that level as irrelevant.
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
    level: float | None = None
    judged: Judged | None = None

    def lists(self) -> Iterator[tuple[Ints, Lists]]:
        """The lists as matrices, by width 1, 2, 4, 8, …: (indices of the lists, lists)."""
        starts = np.cumsum(self.relevant) - self.relevant
        # Without relevant items a list is as wide as with one: padding.
        bits = np.ceil(np.log2(np.maximum(self.relevant, 1))).astype(np.int64)
        for bit in distinct(bits):
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
                    **self._judged(rows, flat, there),
                ),
            )

    def _judged(self, rows: Ints, flat: Ints, there: npt.NDArray[np.bool_]) -> dict[str, Any]:
        if self.judged is None:
            return {}
        return {
            "irrelevant": self.judged.irrelevant[rows],
            "irrelevant_above": _take(self.judged.irrelevant_above, flat, there),
            "unjudged_above": _take(self.judged.unjudged_above, flat, there),
        }

    def _from_level(self) -> Batch:
        """Return the lists with only the items that are relevant from `level` on."""
        if self.level is None:
            return self
        kept = self.gains >= self.level
        before = np.concatenate(([0], np.cumsum(kept)))
        ends = np.cumsum(self.relevant)
        judged = self.judged and replace(
            self.judged,
            irrelevant_above=self.judged.irrelevant_above[kept],
            unjudged_above=self.judged.unjudged_above[kept],
        )
        return replace(
            self,
            relevant=before[ends] - before[ends - self.relevant],
            ranks=self.ranks[kept],
            gains=self.gains[kept],
            score_ranks=self.score_ranks[kept],
            judged=judged,
        )

    def scores(self, columns: Sequence[tuple[Metric, int]]) -> Scores:
        """A score for each list and (metric, k), shape (n, columns); NaN where undefined."""
        answer = np.empty((len(self.relevant), len(columns)))
        numbered = list(enumerate(columns))
        graded = [one for one in numbered if one[1][0].graded or self.level is None]
        others = [one for one in numbered if one not in graded]
        for batch, chosen in ((self, graded), (self._from_level(), others)):
            for rows, lists in batch.lists() if chosen else ():
                for number, (metric, k) in chosen:
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
