"""Normalised discounted cumulative gain at k: gains count less the further down they stand.

`DCG = sum of gain / log2(rank + 1)` over relevant items at rank <= k; `ndcg = DCG / ideal`, the
ideal being the DCG of the list's relevant gains in falling order. Gains come as they count: the
exponential variant, 2^g - 1, is a transformation of gains that `Scorer` makes before.

The logarithms come from a table made by `math.log2`: numpy's own may differ in the last bit with
the width of the processor's vectors.
"""

from __future__ import annotations

import math

import numpy as np

from streameval.core.limits import MAX_RANK
from streameval.core.metrics.lists import Lists, Metric, Scores, ratio

# By rank; the entry for 0 (no rank) only ever divides a gain of 0.
_LOG2 = np.array([1.0] + [math.log2(rank + 1) for rank in range(1, MAX_RANK + 1)])


def score(lists: Lists, k: int) -> Scores:
    """Return DCG / ideal DCG for each list."""
    return ratio(_dcg(lists, k), _ideal(lists, k))


def _dcg(lists: Lists, k: int) -> Scores:
    counted = lists.within(k)
    discounts = _LOG2[np.where(counted, lists.ranks, 0)]
    discounted = np.where(counted, lists.gains, 0.0) / discounts
    total = np.zeros(len(lists.relevant))
    for column in range(discounted.shape[1]):
        total += discounted[:, column]
    return total


def _ideal(lists: Lists, k: int) -> Scores:
    best = -np.sort(-lists.gains, axis=1)
    total = np.zeros(len(lists.relevant))
    for column in range(min(k, best.shape[1])):
        total += best[:, column] / _LOG2[column + 1]
    return total


METRIC = Metric(
    name="ndcg",
    formula="Mean over slates of the sum of gain / log2(rank + 1) at rank <= k, "
    "divided by that of the ideal order",
    source="trec_eval ndcg_cut",
    score=score,
)
