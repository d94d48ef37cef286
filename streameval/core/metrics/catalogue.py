"""Every metric in its one order, which help, docs, rows and Prometheus follow."""

from __future__ import annotations

from streameval.core.metrics import (
    auc,
    average_precision,
    beyond_accuracy,
    curve,
    daily_positive_rate,
    discounted_gain,
    distributions,
    incomplete_labels,
    off_policy_value,
    popularity,
    precision_recall,
    rank_mix,
    rating_errors,
    rating_thresholds,
    retrieval,
    score_health,
    user_models,
    variants,
)
from streameval.core.metrics.entry import Entry

RANKING = (
    precision_recall.PRECISION,
    precision_recall.RECALL,
    discounted_gain.NDCG,
    average_precision.MAP,
    user_models.MRR,
    precision_recall.HIT_RATE,
)
"""The ranking metrics of a window."""

METRICS: tuple[Entry, ...] = (
    *RANKING,
    precision_recall.RECALL_CAPPED,
    precision_recall.F1_USER,
    precision_recall.F1_MEAN,
    precision_recall.F_BETA_USER,
    average_precision.MAR,
    average_precision.MAP_CAPPED,
    average_precision.MAP_OVER_K,
    average_precision.MAP_BLOG,
    precision_recall.R_PRECISION,
    user_models.RBP,
    *incomplete_labels.METRICS,
    discounted_gain.NDCG_EXP,
    discounted_gain.NDCG_BINARY,
    discounted_gain.NDCG_BINARY_FULL,
    discounted_gain.DCG,
    discounted_gain.DCG_EXP,
    discounted_gain.DCG_BINARY,
    auc.METRIC,
    *score_health.METRICS,
    rank_mix.METRIC,
    user_models.HALF_LIFE_UTILITY,
    curve.METRIC,
    *beyond_accuracy.METRICS,
    *popularity.METRICS,
    *distributions.METRICS,
    *rating_errors.METRICS,
    *rating_thresholds.METRICS,
    *retrieval.METRICS,
    *daily_positive_rate.METRICS,
    *off_policy_value.METRICS,
    *variants.METRICS,
)
"""Every metric that `evaluate` knows."""
