"""F1 at k, list by list: the harmonic mean of a list's precision and recall, then averaged.

`2PR / (P + R)` is `2 hits / (k + R)`, one division. `f1_mean` takes the means first.
"""

from __future__ import annotations

from streameval.core.metrics.lists import NO_RELEVANT, Lists, Metric, Scores, ratio


def score(lists: Lists, k: int) -> Scores:
    """Return 2 hits / (k + R) for each list."""
    return ratio(2 * lists.hits(k), k + lists.relevant)


METRIC = Metric(
    name="f1_user",
    formula="Mean over lists of the harmonic mean of precision and recall at k",
    source="ranx f1, RecTools F1Beta",
    convention="harmonic mean within each list",
    undefined=NO_RELEVANT,
    cutoff="required",
    score=score,
)
