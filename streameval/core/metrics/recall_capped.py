"""Capped recall at k: the share of relevant items at the first k ranks, of at most k.

`hits / min(R, k)`: 1 for a list whose first k are all relevant, which recall cannot reach when R
is above k.
"""

from __future__ import annotations

import numpy as np

from streameval.core.metrics.lists import NO_RELEVANT, Lists, Metric, Scores, ratio


def score(lists: Lists, k: int) -> Scores:
    """Return hits / min(R, k) for each list."""
    return ratio(lists.hits(k), np.minimum(lists.relevant, k))


METRIC = Metric(
    name="recall_capped",
    formula="Mean over lists of relevant items at rank <= k divided by the smaller of k and all "
    "relevant items",
    source="BEIR recall_cap",
    convention="divided by min(R, k)",
    undefined=NO_RELEVANT,
    cutoff="required",
    score=score,
)
