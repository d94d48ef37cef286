"""Normalised discounted cumulative gain at k: gains count less the further down they stand.

`DCG = sum of gain / log2(rank + 1)` over relevant items at rank <= k; `ndcg = DCG / ideal`, the
ideal being the DCG of the list's relevant gains in falling order. Gains come as they count: for
the exponential variant of the stream, 2^g - 1, `Scorer` transforms them before.
"""

from __future__ import annotations

from streameval.core.metrics.discount import discounted, ideal_dcg
from streameval.core.metrics.lists import NO_RELEVANT, Lists, Metric, Scores, ratio


def score(lists: Lists, k: int) -> Scores:
    """Return DCG / ideal DCG for each list."""
    return ratio(discounted(lists, lists.gains, k), ideal_dcg(lists.gains, k))


METRIC = Metric(
    name="ndcg",
    formula="Mean over slates of the sum of gain / log2(rank + 1) at rank <= k, "
    "divided by the same sum of the ideal order",
    source="trec_eval ndcg_cut",
    convention="linear gains, logarithm to base 2, ideal order of all relevant items, up to k",
    undefined=NO_RELEVANT,
    cutoff="optional",
    score=score,
    graded=True,
)
