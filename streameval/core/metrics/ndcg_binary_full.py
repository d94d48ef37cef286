"""NDCG at k with binary gains against k relevant items, however few there are: below 1 if R < k."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from streameval.core.metrics.discount import binary, discounted
from streameval.core.metrics.lists import NO_RELEVANT, Lists, Metric, Scores


@lru_cache(maxsize=32)
def _full(k: int) -> float:
    """Return the DCG of k relevant items."""
    return math.fsum(1.0 / math.log2(rank + 1) for rank in range(1, k + 1))


def score(lists: Lists, k: int) -> Scores:
    """Return binary DCG / the DCG of k relevant items for each list."""
    # Columns are added one by one, the ideal exactly: a full list may end a bit above 1.
    return np.minimum(discounted(lists, binary(lists.gains), k) / _full(k), 1.0)


METRIC = Metric(
    name="ndcg_binary_full",
    formula="Mean over lists of the sum of 1 / log2(rank + 1) over relevant items at rank <= k, "
    "divided by the same sum of k relevant items",
    source="RecTools NDCG, its default",
    convention="binary gains, ideal over k",
    undefined=NO_RELEVANT,
    cutoff="required",
    score=score,
)
