"""The catalogue: every metric in its one order, which help, docs, rows and Prometheus follow."""

from __future__ import annotations

from streameval.core.metrics import (
    auc,
    average_precision,
    beyond_accuracy,
    curve,
    daily_positive_rate,
    dcg,
    dcg_binary,
    dcg_exp,
    f1_mean,
    f1_user,
    f_beta_user,
    half_life,
    hit_rate,
    incomplete_labels,
    map_blog,
    map_capped,
    map_over_k,
    mar,
    ndcg,
    ndcg_binary,
    ndcg_binary_full,
    ndcg_exp,
    precision,
    r_precision,
    rank_biased_precision,
    rating_errors,
    rating_thresholds,
    recall,
    recall_capped,
    reciprocal_rank,
    retrieval,
)
from streameval.core.metrics.entry import Entry

RANKING = (
    precision.METRIC,
    recall.METRIC,
    ndcg.METRIC,
    average_precision.METRIC,
    reciprocal_rank.METRIC,
    hit_rate.METRIC,
)
"""The ranking metrics of a window."""

METRICS: tuple[Entry, ...] = (
    *RANKING,
    recall_capped.METRIC,
    f1_user.METRIC,
    f1_mean.METRIC,
    f_beta_user.METRIC,
    mar.METRIC,
    map_capped.METRIC,
    map_over_k.METRIC,
    map_blog.METRIC,
    r_precision.METRIC,
    rank_biased_precision.METRIC,
    *incomplete_labels.METRICS,
    ndcg_exp.METRIC,
    ndcg_binary.METRIC,
    ndcg_binary_full.METRIC,
    dcg.METRIC,
    dcg_exp.METRIC,
    dcg_binary.METRIC,
    auc.METRIC,
    half_life.METRIC,
    curve.METRIC,
    *beyond_accuracy.METRICS,
    *rating_errors.METRICS,
    *rating_thresholds.METRICS,
    *retrieval.METRICS,
    *daily_positive_rate.METRICS,
)
"""Every metric that `evaluate` knows."""
