"""Precision or recall at each relevant item that was shown, averaged: MAP in its conventions."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from streameval.core.metrics.entry import Entry
from streameval.core.metrics.lists import (
    NO_RELEVANT,
    Lists,
    Metric,
    Scores,
    Windowed,
    add_columns,
    ratio,
)


def precision_at_hits(lists: Lists, k: int) -> Scores:
    """Return the sum of hits so far / rank over relevant items at rank <= k."""
    counted = lists.within(k)
    # Ranks rise, so the item in a column is hit number column + 1.
    hits = np.arange(1.0, counted.shape[1] + 1)
    return add_columns(np.where(counted, hits / np.where(counted, lists.ranks, 1), 0.0))


def average_precision(lists: Lists, k: int) -> Scores:
    """Return the average precision of each list.

    Average precision at k (`map` once averaged): precision at each relevant item that was shown.

    `AP = sum over relevant items at rank <= k of (hits so far / rank), divided by R`. Dividing by
    min(R, k) or by k are other figures: `map_capped`, `map_over_k`.
    """
    return ratio(precision_at_hits(lists, k), lists.relevant)


MAP = Metric(
    name="map",
    formula="Mean over slates of the sum of precision at each relevant item at rank <= k, "
    "divided by all relevant items",
    source="trec_eval map_cut",
    convention="divided by all relevant items, also those beyond k or not in the list",
    undefined=NO_RELEVANT,
    cutoff="optional",
    score=average_precision,
    windowed=Windowed(
        4, "list_sum(list_transform({near}, lambda x, i: i::DOUBLE / x.rank)) / len({relevant})"
    ),
)


def map_capped(lists: Lists, k: int) -> Scores:
    """Return the sum of precision at hits / min(R, k) for each list.

    Average precision at k, divided by min(R, k): 1 for a list whose first k are relevant.
    """
    return ratio(precision_at_hits(lists, k), np.minimum(lists.relevant, k))


MAP_CAPPED = Metric(
    name="map_capped",
    formula="Mean over lists of the sum of precision at each relevant item at rank <= k, divided "
    "by the smaller of k and all relevant items",
    source="recommenders map_at_k",
    convention="divided by min(R, k)",
    undefined=NO_RELEVANT,
    cutoff="required",
    score=map_capped,
)


def map_over_k(lists: Lists, k: int) -> Scores:
    """Return the sum of precision at hits / k for each list.

    Average precision at k, always divided by k: below 1 where R is below k.
    """
    return precision_at_hits(lists, k) / float(k)


MAP_OVER_K = Metric(
    name="map_over_k",
    formula="Mean over lists of the sum of precision at each relevant item at rank <= k, divided "
    "by k",
    source="RecTools MAP with divide_by_k",
    convention="divided by k",
    undefined=NO_RELEVANT,
    cutoff="required",
    score=map_over_k,
)


@lru_cache(maxsize=32)
def _worth(k: int) -> Scores:
    """Return the share of a hit by its rank from 0 to k: 1/rank + … + 1/k."""
    # Terms are added one by one, the smallest first.
    sums = np.cumsum(1.0 / np.arange(k, 0, -1))[::-1]
    return np.concatenate(([0.0], sums))


def map_blog(lists: Lists, k: int) -> Scores:
    """Return the mean of precision at 1 to k for each list.

    Average precision as blogs write it: the mean of precision at 1, 2, …, k, relevant or not.

    `(1/k) sum over i = 1..k of P@i`, without the indicator that the item at i is relevant. A hit at
    rank r counts in P@i for each i from r to k, so it adds `1/r + … + 1/k`, which is the harmonic
    number of k less the harmonic number of r - 1. It rewards early hits but differs from average
    precision: one relevant item on top of k = 2 gives (1 + 1/2) / 2 = 0.75.
    """
    return add_columns(_worth(k)[np.where(lists.within(k), lists.ranks, 0)]) / float(k)


MAP_BLOG = Metric(
    name="map_blog",
    formula="Mean over lists of the mean of precision at 1, 2, up to k, whether the item there "
    "is relevant or not",
    source="the formula of a widely read blog post",
    convention="no relevance indicator, divided by k",
    undefined=NO_RELEVANT,
    cutoff="required",
    score=map_blog,
)


def mar(lists: Lists, k: int) -> Scores:
    """Return the average recall of each list.

    Average recall at k (`mar` once averaged): recall at each relevant item that was shown.

    `AR = sum over relevant items at rank <= k of (hits so far / R), divided by R`. With h hits the
    sum is `h(h + 1) / (2R)`, so their ranks do not count beyond the cutoff. The MAR of recmetrics
    divides hits by the rank and is average precision: `map`.
    """
    hits = lists.hits(k)
    return ratio(hits * (hits + 1), 2 * lists.relevant * lists.relevant)


MAR = Metric(
    name="mar",
    formula="Mean over slates of the sum of recall at each relevant item at rank <= k, "
    "divided by all relevant items",
    source="Evidently MAR with no_feedback_users, for lists of k items and labels of listed items",
    convention="recall after each hit, divided by all relevant items; recmetrics' mark is map",
    undefined=NO_RELEVANT,
    cutoff="optional",
    score=mar,
)

METRICS: tuple[Entry, ...] = (
    MAP,
    MAR,
    MAP_CAPPED,
    MAP_OVER_K,
    MAP_BLOG,
)
