"""Average precision as blogs write it: the mean of precision at 1, 2, …, k, relevant or not.

`(1/k) sum over i = 1..k of P@i`, without the indicator that the item at i is relevant. A hit at
rank r counts in P@i for each i from r to k, so it adds `1/r + … + 1/k`, which is the harmonic
number of k less the harmonic number of r - 1. It rewards early hits but differs from average
precision: one relevant item on top of k = 2 gives (1 + 1/2) / 2 = 0.75.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from streameval.core.metrics.lists import NO_RELEVANT, Lists, Metric, Scores, add_columns


@lru_cache(maxsize=32)
def _worth(k: int) -> Scores:
    """Return the share of a hit by its rank from 0 to k: 1/rank + … + 1/k."""
    # Terms are added one by one, the smallest first.
    sums = np.cumsum(1.0 / np.arange(k, 0, -1))[::-1]
    return np.concatenate(([0.0], sums))


def score(lists: Lists, k: int) -> Scores:
    """Return the mean of precision at 1 to k for each list."""
    return add_columns(_worth(k)[np.where(lists.within(k), lists.ranks, 0)]) / float(k)


METRIC = Metric(
    name="map_blog",
    formula="Mean over lists of the mean of precision at 1, 2, up to k, whether the item there "
    "is relevant or not",
    source="the formula of a widely read blog post",
    convention="no relevance indicator, divided by k",
    undefined=NO_RELEVANT,
    cutoff="required",
    score=score,
)
