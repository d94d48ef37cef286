"""Average precision at k, always divided by k: below 1 where R is below k."""

from __future__ import annotations

from streameval.core.metrics.average_precision import precision_at_hits
from streameval.core.metrics.lists import NO_RELEVANT, Lists, Metric, Scores


def score(lists: Lists, k: int) -> Scores:
    """Return the sum of precision at hits / k for each list."""
    return precision_at_hits(lists, k) / float(k)


METRIC = Metric(
    name="map_over_k",
    formula="Mean over lists of the sum of precision at each relevant item at rank <= k, divided "
    "by k",
    source="RecTools MAP with divide_by_k",
    convention="divided by k",
    undefined=NO_RELEVANT,
    cutoff="required",
    score=score,
)
