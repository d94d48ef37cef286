"""DCG at k, not normalised, with every relevant item worth the same: called NDCG by some pages."""

from __future__ import annotations

from streameval.core.metrics.discount import binary, discounted
from streameval.core.metrics.lists import NO_RELEVANT, Lists, Metric, Scores


def score(lists: Lists, k: int) -> Scores:
    """Return the DCG of each list."""
    return discounted(lists, binary(lists.gains), k)


METRIC = Metric(
    name="dcg_binary",
    formula="Mean over lists of the sum of 1 / log2(rank + 1) over relevant items at rank <= k",
    source="Gorse's documentation, where it is called NDCG",
    convention="binary gains, not divided by an ideal",
    undefined=NO_RELEVANT,
    cutoff="optional",
    score=score,
    is_share=False,
)
