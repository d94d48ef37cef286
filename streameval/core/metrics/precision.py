"""Precision at k: the share of the first k ranks that holds relevant items.

`precision = hits / k`. A list shorter than k is divided by k all the same (trec_eval, ranx,
ir_measures, RecTools); dividing by its length would reward showing less.
"""

from __future__ import annotations

from streameval.core.metrics.lists import NO_RELEVANT, Lists, Metric, Scores


def score(lists: Lists, k: int) -> Scores:
    """Return hits / k for each list."""
    return lists.hits(k) / float(k)


METRIC = Metric(
    name="precision",
    formula="Mean over slates of relevant items at rank <= k divided by k",
    source="trec_eval P",
    convention="divided by k, also for a list shorter than k",
    undefined=NO_RELEVANT,
    cutoff="required",
    score=score,
)
