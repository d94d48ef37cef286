"""Figures for labels that cover only some items: bpref and inferred average precision.

Other metrics count an item without a label as irrelevant. `bpref` leaves it out and looks only at
items that somebody judged: how many irrelevant ones stand above each relevant one. `inf_ap`
estimates average precision where only a sample of a pool of items was judged. Labels with a gain
below 0 are items of the pool that nobody judged, as in TREC.
"""

from __future__ import annotations

import numpy as np

from streameval.core.metrics.lists import NO_RELEVANT, Lists, Metric, Scores, add_columns, ratio

# trec_eval's INFAP_EPSILON: the precision of no judged item above is 1/2.
_EPSILON = 0.00001


def _bpref(lists: Lists, k: int) -> Scores:  # noqa: ARG001 (over the whole list)
    assert lists.irrelevant is not None, "bpref needs labels of irrelevant items"
    assert lists.irrelevant_above is not None, "bpref needs labels of irrelevant items"
    relevant = lists.relevant[:, None]
    above = np.minimum(lists.irrelevant_above, relevant)
    most = np.maximum(np.minimum(lists.irrelevant[:, None], relevant), 1)
    return ratio(add_columns(np.where(lists.ranks >= 1, 1.0 - above / most, 0.0)), lists.relevant)


def _inf_ap(lists: Lists, k: int) -> Scores:  # noqa: ARG001 (over the whole list)
    assert lists.irrelevant_above is not None, "inf_ap needs labels of irrelevant items"
    assert lists.unjudged_above is not None, "inf_ap needs labels of items that nobody judged"
    hits = np.arange(lists.ranks.shape[1])
    judged = hits + lists.irrelevant_above
    ranks = np.maximum(lists.ranks, 1)
    above = (judged + lists.unjudged_above) / np.maximum(ranks - 1, 1)
    precision = (hits + _EPSILON) / (judged + 2 * _EPSILON)
    expected = 1.0 / ranks + (ranks - 1) / ranks * above * precision
    return ratio(add_columns(np.where(lists.ranks >= 1, expected, 0.0)), lists.relevant)


METRICS = (
    Metric(
        name="bpref",
        formula="Mean over lists of the sum over relevant items of 1 - min(irrelevant items above, "
        "R) / min(irrelevant items, R), divided by R, all relevant items",
        source="Buckley and Voorhees 2004; trec_eval bpref",
        convention="only items with a label count; 1 for a relevant item with no irrelevant one "
        "above",
        undefined=NO_RELEVANT,
        cutoff="none",
        by_judged=True,
        score=_bpref,
    ),
    Metric(
        name="inf_ap",
        formula="Mean over lists of the sum over relevant items of the expected precision at their "
        "rank, divided by all relevant items",
        source="Yilmaz and Aslam 2006; trec_eval infAP",
        convention="items of the pool that nobody judged (a gain below 0) are relevant as often as "
        "the judged ones above; items without a label are not relevant",
        undefined=NO_RELEVANT,
        cutoff="none",
        by_judged=True,
        score=_inf_ap,
    ),
)
"""The rows of these metrics."""
