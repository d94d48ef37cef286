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
from streameval.core.metrics.lists import Metric

_FAMILIES: tuple[tuple[Entry, ...], ...] = (
    precision_recall.METRICS,
    average_precision.METRICS,
    user_models.METRICS,
    incomplete_labels.METRICS,
    discounted_gain.METRICS,
    (auc.METRIC,),
    score_health.METRICS,
    (rank_mix.METRIC,),
    (curve.METRIC,),
    beyond_accuracy.METRICS,
    popularity.METRICS,
    distributions.METRICS,
    rating_errors.METRICS,
    rating_thresholds.METRICS,
    retrieval.METRICS,
    daily_positive_rate.METRICS,
    off_policy_value.METRICS,
    variants.METRICS,
)

_PLACED = {
    entry.windowed.place: entry
    for family in _FAMILIES
    for entry in family
    if isinstance(entry, Metric) and entry.windowed
}

RANKING: tuple[Metric, ...] = tuple(_PLACED[place] for place in sorted(_PLACED))
"""The ranking metrics of a window."""

METRICS: tuple[Entry, ...] = (
    *RANKING,
    *(entry for family in _FAMILIES for entry in family if entry not in RANKING),
)
"""Every metric that `evaluate` knows."""
