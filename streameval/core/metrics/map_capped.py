"""Average precision at k, divided by min(R, k): 1 for a list whose first k are relevant."""

from __future__ import annotations

import numpy as np

from streameval.core.metrics.average_precision import precision_at_hits
from streameval.core.metrics.lists import NO_RELEVANT, Lists, Metric, Scores, ratio


def score(lists: Lists, k: int) -> Scores:
    """Return the sum of precision at hits / min(R, k) for each list."""
    return ratio(precision_at_hits(lists, k), np.minimum(lists.relevant, k))


METRIC = Metric(
    name="map_capped",
    formula="Mean over lists of the sum of precision at each relevant item at rank <= k, divided "
    "by the smaller of k and all relevant items",
    source="recommenders map_at_k",
    convention="divided by min(R, k)",
    undefined=NO_RELEVANT,
    cutoff="required",
    score=score,
)
