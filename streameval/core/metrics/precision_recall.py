"""Shares of relevant items among the first k: precision, recall, hits, and means of both."""

from __future__ import annotations

import numpy as np

from streameval.core.metrics.entry import Entry
from streameval.core.metrics.inputs import Number
from streameval.core.metrics.lists import (
    NO_RELEVANT,
    Lists,
    MeanMetric,
    Metric,
    Scores,
    Windowed,
    ratio,
)


def precision(lists: Lists, k: int) -> Scores:
    """Return hits / k for each list.

    Precision at k: the share of the first k ranks that holds relevant items.

    `precision = hits / k`. A list shorter than k is divided by k all the same (trec_eval, ranx,
    ir_measures, RecTools); dividing by its length would reward showing less.
    """
    return lists.hits(k) / float(k)


PRECISION = Metric(
    name="precision",
    formula="Mean over slates of relevant items at rank <= k divided by k",
    source="trec_eval P",
    convention="divided by k, also for a list shorter than k",
    undefined=NO_RELEVANT,
    cutoff="required",
    score=precision,
    windowed=Windowed(1, "len({near})::DOUBLE / {k}"),
)


def recall(lists: Lists, k: int) -> Scores:
    """Return hits / R for each list.

    Recall at k: the share of the relevant items that stands at the first k ranks.

    `recall = hits / R`, R being all relevant items of the list, also where R > k (dividing by
    min(R, k) is another figure, "capped recall").
    """
    return ratio(lists.hits(k), lists.relevant)


RECALL = Metric(
    name="recall",
    formula="Mean over slates of relevant items at rank <= k divided by all relevant items",
    source="trec_eval recall",
    convention="divided by all relevant items, also where there are more than k",
    undefined=NO_RELEVANT,
    cutoff="optional",
    score=recall,
    windowed=Windowed(2, "len({near})::DOUBLE / len({relevant})"),
)


def recall_capped(lists: Lists, k: int) -> Scores:
    """Return hits / min(R, k) for each list.

    Capped recall at k: the share of relevant items at the first k ranks, of at most k.

    `hits / min(R, k)`: 1 for a list whose first k are all relevant, which recall cannot reach when
    R is above k.
    """
    return ratio(lists.hits(k), np.minimum(lists.relevant, k))


RECALL_CAPPED = Metric(
    name="recall_capped",
    formula="Mean over lists of relevant items at rank <= k divided by the smaller of k and all "
    "relevant items",
    source="BEIR recall_cap",
    convention="divided by min(R, k)",
    undefined=NO_RELEVANT,
    cutoff="required",
    score=recall_capped,
)


def hit_rate(lists: Lists, k: int) -> Scores:
    """Return 1 or 0 for each list.

    Hit rate at k: the share of lists that show something relevant early.

    `hit = 1` when a relevant item stands at rank <= k, else 0.
    """
    return lists.within(k)[:, 0].astype(float)


HIT_RATE = Metric(
    name="hit_rate",
    formula="Share of slates with a relevant item at rank <= k",
    source="trec_eval success",
    convention="binary, however many are relevant",
    undefined=NO_RELEVANT,
    cutoff="optional",
    score=hit_rate,
    windowed=Windowed(6, "(len({near}) > 0)::INTEGER::DOUBLE"),
)


def r_precision(lists: Lists, k: int) -> Scores:  # noqa: ARG001 (the cutoff is each list's own R)
    """Return hits at rank <= R / R for each list.

    R-precision: precision at R, where a perfect list has 1 and precision equals recall.
    """
    hits = ((lists.ranks >= 1) & (lists.ranks <= lists.relevant[:, None])).sum(axis=1)
    return ratio(hits, lists.relevant)


R_PRECISION = Metric(
    name="r_precision",
    formula="Mean over lists of relevant items at rank <= R divided by R, R being all relevant "
    "items",
    source="trec_eval Rprec",
    convention="the cutoff is each list's R",
    undefined=NO_RELEVANT,
    cutoff="none",
    score=r_precision,
)


def f1_user(lists: Lists, k: int) -> Scores:
    """Return 2 hits / (k + R) for each list.

    F1 at k, list by list: the harmonic mean of a list's precision and recall, then averaged.

    `2PR / (P + R)` is `2 hits / (k + R)`, one division. `f1_mean` takes the means first.
    """
    return ratio(2 * lists.hits(k), k + lists.relevant)


F1_USER = Metric(
    name="f1_user",
    formula="Mean over lists of the harmonic mean of precision and recall at k",
    source="ranx f1, RecTools F1Beta",
    convention="harmonic mean within each list",
    undefined=NO_RELEVANT,
    cutoff="required",
    score=f1_user,
)


def harmonic_mean(mean_precision: float, mean_recall: float) -> float:
    """Return 2PR / (P + R), 0 where both are 0."""
    total = mean_precision + mean_recall
    return 2.0 * mean_precision * mean_recall / total if total > 0 else 0.0


F1_MEAN = MeanMetric(
    name="f1_mean",
    formula="Harmonic mean of mean precision and mean recall at k",
    source="Bobadilla et al. 2013; Evidently FBetaTopK with beta 1 and no_feedback_users, for "
    "lists of k items",
    convention="means over lists first, then the harmonic mean",
    undefined="0 where both means are 0",
    cutoff="required",
    parts=(PRECISION, RECALL),
    combine=harmonic_mean,
)


BETA = Number(
    name="beta",
    meaning="how many times recall counts as much as precision in f_beta_user",
    default=2.0,  # the usual choice beside 1 (van Rijsbergen's F2)
    above=0.0,
)


def f_beta_user(lists: Lists, k: int, beta: float = BETA.default) -> Scores:
    """Return (1 + beta²) hits / (beta² R + k) for each list.

    F-beta at k, list by list: the weighted harmonic mean of precision and recall, then averaged.

    `(1 + b²) PR / (b² P + R)` is `(1 + b²) hits / (b² R + k)`, one division. A beta above 1 makes
    recall count more, one below 1 precision; with 1 it is `f1_user`.
    """
    square = np.float64(beta * beta)
    return ratio((1.0 + square) * lists.hits(k), square * lists.relevant + k)


F_BETA_USER = Metric(
    name="f_beta_user",
    formula="Mean over lists of (1 + beta²) PR / (beta² P + R), P and R being precision and recall "
    "at k",
    source="van Rijsbergen 1979; scikit-learn fbeta_score; RecTools F1Beta",
    convention="beta {beta:g}; harmonic mean within each list",
    undefined=NO_RELEVANT,
    cutoff="required",
    parameters=(BETA,),
    score=f_beta_user,
)

METRICS: tuple[Entry, ...] = (
    PRECISION,
    RECALL,
    HIT_RATE,
    RECALL_CAPPED,
    F1_USER,
    F1_MEAN,
    F_BETA_USER,
    R_PRECISION,
)
