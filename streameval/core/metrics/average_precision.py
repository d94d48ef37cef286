"""Average precision at k (`map` once averaged): precision at each relevant item that was shown.

`AP = sum over relevant items at rank <= k of (hits so far / rank), divided by R`. Dividing by
min(R, k) or by k are other figures: `map_capped`, `map_over_k`.
"""

from __future__ import annotations

import numpy as np

from streameval.core.metrics.lists import NO_RELEVANT, Lists, Metric, Scores, add_columns, ratio


def precision_at_hits(lists: Lists, k: int) -> Scores:
    """Return the sum of hits so far / rank over relevant items at rank <= k."""
    counted = lists.within(k)
    # Ranks rise, so the item in a column is hit number column + 1.
    hits = np.arange(1.0, counted.shape[1] + 1)
    return add_columns(np.where(counted, hits / np.where(counted, lists.ranks, 1), 0.0))


def score(lists: Lists, k: int) -> Scores:
    """Return the average precision of each list."""
    return ratio(precision_at_hits(lists, k), lists.relevant)


METRIC = Metric(
    name="map",
    formula="Mean over slates of the sum of precision at each relevant item at rank <= k, "
    "divided by all relevant items",
    source="trec_eval map_cut",
    convention="divided by all relevant items, also those beyond k or not in the list",
    undefined=NO_RELEVANT,
    cutoff="optional",
    score=score,
)
