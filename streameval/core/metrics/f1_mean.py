"""F1 at k of the means: the harmonic mean of mean precision and mean recall.

It differs from `f1_user`, which takes the harmonic mean list by list, and has no score for a list.
"""

from __future__ import annotations

from streameval.core.metrics import precision, recall
from streameval.core.metrics.lists import MeanMetric


def harmonic_mean(mean_precision: float, mean_recall: float) -> float:
    """Return 2PR / (P + R), 0 where both are 0."""
    total = mean_precision + mean_recall
    return 2.0 * mean_precision * mean_recall / total if total > 0 else 0.0


METRIC = MeanMetric(
    name="f1_mean",
    formula="Harmonic mean of mean precision and mean recall at k",
    source="Bobadilla et al. 2013; Evidently FBetaTopK with beta 1 and no_feedback_users, for "
    "lists of k items",
    convention="means over lists first, then the harmonic mean",
    undefined="0 where both means are 0",
    cutoff="required",
    parts=(precision.METRIC, recall.METRIC),
    combine=harmonic_mean,
)
