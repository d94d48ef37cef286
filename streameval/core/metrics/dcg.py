"""DCG at k, not normalised: linear gains, so it has the scale of the gains."""

from __future__ import annotations

from streameval.core.metrics.discount import discounted
from streameval.core.metrics.lists import NO_RELEVANT, Lists, Metric, Scores


def score(lists: Lists, k: int) -> Scores:
    """Return the DCG of each list."""
    return discounted(lists, lists.gains, k)


METRIC = Metric(
    name="dcg",
    formula="Mean over lists of the sum of gain / log2(rank + 1) over relevant items at rank <= k",
    source="Bobadilla et al. 2013; scikit-learn dcg_score",
    convention="linear gains, not divided by an ideal",
    undefined=NO_RELEVANT,
    cutoff="optional",
    score=score,
    graded=True,
    is_share=False,
)
