"""DCG at k, not normalised, with exponential gains."""

from __future__ import annotations

from streameval.core.metrics.discount import discounted, exponential
from streameval.core.metrics.lists import NO_RELEVANT, Lists, Metric, Scores


def score(lists: Lists, k: int) -> Scores:
    """Return the DCG of each list."""
    return discounted(lists, exponential(lists.gains), k)


METRIC = Metric(
    name="dcg_exp",
    formula="Mean over lists of the sum of (2^gain - 1) / log2(rank + 1) over relevant items at "
    "rank <= k",
    source="ranx dcg_burges",
    convention="exponential gains, not divided by an ideal",
    undefined=NO_RELEVANT,
    cutoff="optional",
    score=score,
    graded=True,
    is_share=False,
)
