"""Average precision at k (`map` once averaged): precision at each relevant item that was shown.

`AP = sum over relevant items at rank <= k of (hits so far / rank), divided by R`. Dividing by
min(R, k) or by k are other figures (recommenders; an option of RecTools).
"""

from __future__ import annotations

import numpy as np

from streameval.core.metrics.lists import Lists, Metric, Scores, ratio


def score(lists: Lists, k: int) -> Scores:
    """Return the average precision of each list."""
    counted = lists.within(k)
    total = np.zeros(len(lists.relevant))
    for column in range(counted.shape[1]):
        # Ranks rise, so the item in this column is hit number column + 1.
        ranks = np.where(counted[:, column], lists.ranks[:, column], 1)
        total += np.where(counted[:, column], (column + 1) / ranks, 0.0)
    return ratio(total, lists.relevant)


METRIC = Metric(
    name="map",
    formula="Mean over slates of the sum of precision at each relevant item at rank <= k, "
    "divided by all relevant items",
    source="trec_eval map_cut",
    score=score,
)
