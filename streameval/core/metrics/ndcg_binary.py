"""NDCG at k with every relevant item worth the same; the ideal has min(R, k) of them on top."""

from __future__ import annotations

from streameval.core.metrics.discount import binary, discounted, ideal_dcg
from streameval.core.metrics.lists import NO_RELEVANT, Lists, Metric, Scores, ratio


def score(lists: Lists, k: int) -> Scores:
    """Return DCG / ideal DCG of binary gains for each list."""
    gains = binary(lists.gains)
    return ratio(discounted(lists, gains, k), ideal_dcg(gains, k))


METRIC = Metric(
    name="ndcg_binary",
    formula="Mean over lists of the sum of 1 / log2(rank + 1) over relevant items at rank <= k, "
    "divided by the same sum of the smaller of k and R relevant items on top",
    source="recommenders ndcg_at_k; Gorse's code, for lists of k items",
    convention="binary gains, ideal over min(R, k)",
    undefined=NO_RELEVANT,
    cutoff="optional",
    score=score,
)
