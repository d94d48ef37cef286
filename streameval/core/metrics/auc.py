"""AUC of a list: how often a relevant item of it scores above one that is not, ties counting 1/2.

Only the items of the list count. Let h relevant items be among its N items, and let P be the sum of
their ranks by score (1 is the best; ties share the mean of their ranks). Then
`AUC = 1 - (P - h(h + 1)/2) / (h (N - h))`: P less its smallest value counts the pairs in the wrong
order. The scores decide also where stored positions decide the rank. A list without any score is
taken by its order (docs/evaluate.md says for which lists).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from streameval.core.metrics.lists import Lists, Metric, Scores, add_columns


def ranks_by_score(scores: Scores, starts: npt.NDArray[np.int64]) -> Scores:
    """Rank the items of each list by score, as `Lists.score_ranks` has it, shape (items,).

    Lists begin at `starts` (n + 1,); an item without a score is NaN.
    """
    count = len(scores)
    owner = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    order = np.lexsort((-scores, owner))
    # Runs of equal scores of a list share the mean of their ranks.
    changes = (np.diff(owner[order], prepend=-1) != 0) | (np.diff(scores[order], prepend=0) != 0)
    firsts = np.flatnonzero(changes)
    lasts = np.append(firsts[1:], count) - 1
    run = np.cumsum(changes) - 1
    ranks = np.empty(count)
    ranks[order] = (firsts + lasts)[run] / 2 + 1 - starts[:-1][owner[order]]
    unknown = np.zeros(len(starts) - 1, np.bool_)
    unknown[owner[np.isnan(scores)]] = True
    ranks[unknown[owner]] = np.nan
    return ranks


def score(lists: Lists, k: int) -> Scores:  # noqa: ARG001 (over the whole list)
    """Return the AUC of each list; NaN where one class is missing, or a score."""
    assert lists.length is not None, "auc needs all items of a list"
    assert lists.score_ranks is not None, "auc needs all items of a list"
    hits = (lists.ranks >= 1).sum(axis=1)
    pairs = hits * (lists.length - hits)
    # Ranks by score are multiples of 1/2 far below 2^52: their sums are exact.
    wrong = add_columns(lists.score_ranks) - hits * (hits + 1) / 2
    auc = np.full(len(hits), np.nan)
    np.divide(pairs - wrong, pairs, out=auc, where=pairs > 0)
    return auc


METRIC = Metric(
    name="auc",
    formula="Mean over lists of the share of pairs of a relevant and another item of the list in "
    "which the relevant one scores higher, a tie counting 1/2",
    source="scikit-learn roc_auc_score",
    convention="over the items of the list; ties count 1/2",
    undefined="left out and counted where all or none of the items are relevant, or one has no "
    "score",
    cutoff="none",
    by_score=True,
    score=score,
)
