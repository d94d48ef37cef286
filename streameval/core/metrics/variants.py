"""Variants of other metrics, as some documents and libraries write them: one table of them.

Each has a name of its own, so that a figure of such a document can be computed as it is written.
What they lack is said where the metric that they vary stands.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from streameval.core.metrics.beyond_accuracy import ItemCounts, catalogue_coverage
from streameval.core.metrics.discounted_gain import dcg, dcg_binary
from streameval.core.metrics.entry import Entry, UnitMetric, UnitSums
from streameval.core.metrics.inputs import ITEMS
from streameval.core.metrics.lists import NO_RELEVANT, Lists, Metric, Scores, ratio
from streameval.core.metrics.score_health import LabelledScores, strict_pairs


def _precision_over_length(lists: Lists, k: int) -> Scores:
    assert lists.length is not None, "the length of the lists is asked for"
    return ratio(lists.hits(k), np.minimum(lists.length, k))


def _ndcg_over_k(lists: Lists, k: int) -> Scores:
    return dcg_binary(lists, k) / float(k)


def _dcg_ln(lists: Lists, k: int) -> Scores:
    # log2(x) is ln(x) / ln(2).
    return dcg(lists, k) / math.log(2)


def _mrr_plus_one(lists: Lists, k: int) -> Scores:
    counted = lists.within(k)[:, 0]
    return np.where(counted, 1.0 / (1.0 + lists.ranks[:, 0]), 0.0)


def _auc_strict(items: LabelledScores, k: int) -> UnitSums:  # noqa: ARG001 (over the whole list)
    right, pairs = strict_pairs(items)
    return ratio(right, pairs), (pairs > 0).astype(np.int64)


def _percent(counts: ItemCounts, k: int) -> tuple[float | None, int]:
    share, items = catalogue_coverage(counts, k)
    return None if share is None else 100.0 * share, items


_LIST: Final[dict[str, Any]] = {"undefined": NO_RELEVANT, "cutoff": "optional"}
_BINARY_DCG: Final = "the sum of 1 / log2(rank + 1) over relevant items at rank <= k"

METRICS: tuple[Entry, ...] = (
    Metric(
        name="precision_over_length",
        formula="Mean over lists of relevant items at rank <= k divided by the smaller of k and "
        "the length of the list",
        source="Gorse's code, Precision; recmetrics recommender_precision (k is the length, each "
        "list rounded to 4 digits); Evidently PrecisionTopK with no_feedback_users",
        convention="a list shorter than k is divided by its length; an empty list counts 0",
        undefined=NO_RELEVANT,
        cutoff="required",
        score=_precision_over_length,
    ),
    Metric(
        name="ndcg_over_k",
        formula=f"Mean over lists of {_BINARY_DCG}, divided by k",
        source="Gorse's older documentation, where it is called NDCG",
        convention="binary gains, divided by k and not by an ideal: below 1 beyond k = 1",
        undefined=NO_RELEVANT,
        cutoff="required",
        score=_ndcg_over_k,
    ),
    Metric(
        **_LIST,
        name="ndcg_sum",
        formula=f"Mean over lists of {_BINARY_DCG}",
        source="Gorse's documentation, where it is called NDCG",
        convention="another name of dcg_binary",
        is_share=False,
        score=dcg_binary,
    ),
    Metric(
        **_LIST,
        name="dcg_ln",
        formula="Mean over lists of the sum of gain / ln(rank + 1) over relevant items at rank <= "
        "k",
        source="recommenders ndcg_at_k, its sum before it is divided (score_type raw, discfun_type "
        "loge)",
        convention="linear gains, natural logarithm, not divided by an ideal; divided by one, the "
        "base of the logarithm drops out",
        is_share=False,
        graded=True,
        score=_dcg_ln,
    ),
    Metric(
        **_LIST,
        name="mrr_plus_one",
        formula="Mean over lists of 1 / (1 + rank) of the first relevant item at rank <= k, else 0",
        source="the formula of a widely read blog post, taken with ranks from 1",
        convention="1/2 at the top; with ranks from 0 the same formula is mrr",
        score=_mrr_plus_one,
    ),
    UnitMetric(
        input_kind="labelled_scores",
        name="auc_strict",
        formula="Mean over lists of the share of pairs of a relevant and another item of the list "
        "in which the relevant one scores higher, a tie counting 0",
        source="Gorse's code, AUC, within each list",
        convention="lists count the same; a scorer that ties all items has 0",
        undefined="left out: a list in which all or none of the items are relevant, or one has no "
        "score",
        cutoff="none",
        is_share=True,
        own=False,
        score=_auc_strict,
    ),
    Entry(
        input_kind="item_counts",
        name="catalogue_coverage_percent",
        formula="100 times the distinct items at rank <= k of all lists divided by the size of the "
        "catalogue",
        source="recmetrics prediction_coverage, which rounds it to 2 digits",
        convention="catalogue_coverage in per cent",
        undefined="refused where an item is shown that the catalogue does not have",
        cutoff="optional",
        needs=(ITEMS,),
        score=_percent,
    ),
)
"""The rows of these metrics; `auc_pairs_strict` stands beside `auc_pairs`."""
