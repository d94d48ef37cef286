"""Average recall at k (`mar` once averaged): recall at each relevant item that was shown.

`AR = sum over relevant items at rank <= k of (hits so far / R), divided by R`. With h hits the sum
is `h(h + 1) / (2R)`, so their ranks do not count beyond the cutoff. The MAR of recmetrics divides
hits by the rank and is average precision: `map`.
"""

from __future__ import annotations

from streameval.core.metrics.lists import NO_RELEVANT, Lists, Metric, Scores, ratio


def score(lists: Lists, k: int) -> Scores:
    """Return the average recall of each list."""
    hits = lists.hits(k)
    return ratio(hits * (hits + 1), 2 * lists.relevant * lists.relevant)


METRIC = Metric(
    name="mar",
    formula="Mean over slates of the sum of recall at each relevant item at rank <= k, "
    "divided by all relevant items",
    source="Evidently MAR with no_feedback_users, for lists of k items and labels of listed items",
    convention="recall after each hit, divided by all relevant items; recmetrics' mark is map",
    undefined=NO_RELEVANT,
    cutoff="optional",
    score=score,
)
