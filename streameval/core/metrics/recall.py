"""Recall at k: the share of the relevant items that stands at the first k ranks.

`recall = hits / R`, R being all relevant items of the list, also where R > k (dividing by
min(R, k) is another figure, "capped recall").
"""

from __future__ import annotations

from streameval.core.metrics.lists import NO_RELEVANT, Lists, Metric, Scores, ratio


def score(lists: Lists, k: int) -> Scores:
    """Return hits / R for each list."""
    return ratio(lists.hits(k), lists.relevant)


METRIC = Metric(
    name="recall",
    formula="Mean over slates of relevant items at rank <= k divided by all relevant items",
    source="trec_eval recall",
    convention="divided by all relevant items, also where there are more than k",
    undefined=NO_RELEVANT,
    cutoff="optional",
    score=score,
)
