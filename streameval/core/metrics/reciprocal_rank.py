"""Reciprocal rank at k (`mrr` once averaged): how far down the first relevant item stands.

`RR = 1 / rank` of the first relevant item at rank <= k, ranks counted from 1; 0 without one.
"""

from __future__ import annotations

import numpy as np

from streameval.core.metrics.lists import NO_RELEVANT, Lists, Metric, Scores


def score(lists: Lists, k: int) -> Scores:
    """Return 1 / rank of the first relevant item of each list."""
    first = lists.ranks[:, 0]
    counted = lists.within(k)[:, 0]
    return np.where(counted, 1.0 / np.where(counted, first, 1), 0.0)


METRIC = Metric(
    name="mrr",
    formula="Mean over slates of 1 / rank of the first relevant item at rank <= k, else 0",
    source="trec_eval recip_rank, with a cutoff",
    convention="ranks from 1; an item below k does not count",
    undefined=NO_RELEVANT,
    cutoff="optional",
    score=score,
)
