"""The catalogue: every metric in its one order, which help, docs, rows and Prometheus follow."""

from __future__ import annotations

from streameval.core.metrics import (
    average_precision,
    hit_rate,
    ndcg,
    precision,
    recall,
    reciprocal_rank,
)
from streameval.core.metrics.rates import POSITIVE_RATE, POSITIVES_PER_IMPRESSION

RANKING = (
    precision.METRIC,
    recall.METRIC,
    ndcg.METRIC,
    average_precision.METRIC,
    reciprocal_rank.METRIC,
    hit_rate.METRIC,
)
"""The ranking metrics."""

RATES = (POSITIVE_RATE, POSITIVES_PER_IMPRESSION)
"""The rates of feedback."""

CATALOGUE = (*RATES, *RANKING)
"""Every figure of a window."""
