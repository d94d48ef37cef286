"""NDCG at k with exponential gains, 2^g - 1: the best grades outweigh the rest."""

from __future__ import annotations

from streameval.core.metrics.discount import discounted, exponential, ideal_dcg
from streameval.core.metrics.lists import NO_RELEVANT, Lists, Metric, Scores, ratio


def score(lists: Lists, k: int) -> Scores:
    """Return DCG / ideal DCG of 2^gain - 1 for each list."""
    gains = exponential(lists.gains)
    return ratio(discounted(lists, gains, k), ideal_dcg(gains, k))


METRIC = Metric(
    name="ndcg_exp",
    formula="Mean over lists of the sum of (2^gain - 1) / log2(rank + 1) at rank <= k, divided "
    "by the same sum of the ideal order",
    source="Burges et al. 2005; ranx ndcg_burges, gdeval",
    convention="exponential gains, ideal order of all relevant items, up to k",
    undefined=NO_RELEVANT,
    cutoff="optional",
    score=score,
    graded=True,
)
