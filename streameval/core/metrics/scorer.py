"""Scores of slates for the stream: all metrics at all cutoffs, in exact integers.

Also the rule that turns the items of a slate into ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from streameval.base.limits import MAX_MEMOISED_RANKS, MAX_MEMOISED_ROWS, SCORE_SLICE
from streameval.core.metrics.catalogue import RANKING
from streameval.core.metrics.discounted_gain import NDCG, NDCG_EXP
from streameval.core.metrics.lists import Lists, RelevantItems, nano


class Scorer:
    """A scorer of relevant items at every k of `ks`, which remembers the scores.

    `columns` names the columns of a score, (metric, k): all metrics of the first k in the order
    of `RANKING`, then all of the next. With `ndcg_gain` exponential, the column `ndcg` holds the
    metric `ndcg_exp`.

    Slates repeat: few positives at few ranks. Memory is bounded by rows and by ranks, and emptied
    as a whole. A forgotten row is scored again, to the same bits.
    """

    def __init__(self, ks: Sequence[int], ndcg_gain: Literal["linear", "exponential"]) -> None:
        self.columns = [(metric.name, k) for k in ks for metric in RANKING]
        self._ks = tuple(ks)
        self._metrics = [
            NDCG_EXP if metric is NDCG and ndcg_gain == "exponential" else metric
            for metric in RANKING
        ]
        self._index: dict[RelevantItems, int] = {}
        self._ranks = 0
        self._scores = np.zeros((MAX_MEMOISED_ROWS, len(self.columns)), dtype=np.int64)

    def score(self, rows: Sequence[RelevantItems]) -> npt.NDArray[np.int64]:
        """Return nano-units, shape (rows, columns), each from 0 to NANO."""
        scores = np.empty((len(rows), len(self.columns)), dtype=np.int64)
        for start in range(0, len(rows), SCORE_SLICE):
            part = rows[start : start + SCORE_SLICE]
            try:
                indices = self._indices(part)
            except KeyError:
                self._remember(part)
                indices = self._indices(part)
            scores[start : start + SCORE_SLICE] = self._scores[indices]
        return scores

    def _indices(self, rows: Sequence[RelevantItems]) -> npt.NDArray[np.intp]:
        return np.fromiter(map(self._index.__getitem__, rows), np.intp, len(rows))

    def _remember(self, rows: Sequence[RelevantItems]) -> None:
        """Score the rows that are not in memory."""
        if len(self._index) + len(rows) > MAX_MEMOISED_ROWS or self._ranks > MAX_MEMOISED_RANKS:
            self._index.clear()
            self._ranks = 0
        fresh = [row for row in dict.fromkeys(rows) if row not in self._index]
        if not fresh:
            return
        start = len(self._index)
        self._scores[start : start + len(fresh)] = self._compute(fresh)
        for index, row in enumerate(fresh, start=start):
            self._index[row] = index
            self._ranks += len(row[0])

    def _compute(self, rows: Sequence[RelevantItems]) -> npt.NDArray[np.int64]:
        lists = Lists.of(rows)
        scores = [nano(metric.score(lists, k)) for k in self._ks for metric in self._metrics]
        return np.stack(scores, axis=1)


def order_ranks(items: Iterable[tuple[str, int | None, int]]) -> dict[str, int]:
    """Rank the items of a slate, which come as (item_id, position, ts); the best rank is first.

    Items are ordered by position (none counts as 0), then `ts`, then `item_id`; the rank is
    `max(position or 0, previous rank + 1)`, so ranks strictly rise and gaps stay.
    """
    ranks: dict[str, int] = {}
    rank = 0
    for position, _, item_id in sorted(
        (position or 0, ts, item_id) for item_id, position, ts in items
    ):
        rank = max(position, rank + 1)
        ranks[item_id] = rank
    return ranks
