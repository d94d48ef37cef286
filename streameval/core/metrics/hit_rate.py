"""Hit rate at k: the share of lists that show something relevant early.

`hit = 1` when a relevant item stands at rank <= k, else 0.
"""

from __future__ import annotations

from streameval.core.metrics.lists import NO_RELEVANT, Lists, Metric, Scores


def score(lists: Lists, k: int) -> Scores:
    """Return 1 or 0 for each list."""
    return lists.within(k)[:, 0].astype(float)


METRIC = Metric(
    name="hit_rate",
    formula="Share of slates with a relevant item at rank <= k",
    source="trec_eval success",
    convention="binary, however many are relevant",
    undefined=NO_RELEVANT,
    cutoff="optional",
    score=score,
)
