"""Precision, recall and F1 of ratings at a threshold t, user by user.

Recommended: of a user's k pairs with the highest predictions (ties: the earlier pair first), those
predicted above t. Relevant: the pairs with an actual rating of at least t. What has an empty
denominator is 0. Source: the recipe of k-NN libraries; Bobadilla et al. 2013.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from streameval.core.metrics.entry import UnitMetric, UnitSums
from streameval.core.metrics.lists import Scores, ratio
from streameval.core.metrics.rating_errors import Ratings

Counts = npt.NDArray[np.int64]


def _counts(ratings: Ratings, k: int) -> tuple[Counts, Counts, Counts]:
    """How many pairs of each user are recommended, relevant, and both."""
    assert ratings.threshold is not None, "the figure is asked for with its threshold"
    sizes = ratings.sizes()
    owner = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((ratings.lines, -ratings.predicted, owner))
    place = np.arange(len(owner)) - np.repeat(ratings.starts, sizes)
    recommended = (ratings.predicted[order] > ratings.threshold) & (place < k)
    relevant = ratings.actual[order] >= ratings.threshold
    shown, liked, hits = (
        np.bincount(owner[chosen], minlength=len(sizes)).astype(np.int64)
        for chosen in (recommended, relevant, recommended & relevant)
    )
    return shown, liked, hits


def _metric(
    name: str, formula: str, share: Callable[[Counts, Counts, Counts], Scores]
) -> UnitMetric[Ratings]:
    def score(ratings: Ratings, k: int) -> UnitSums:
        shares = share(*_counts(ratings, k))
        return shares, np.ones(len(shares), np.int64)

    return UnitMetric(
        sort="ratings",
        name=name,
        formula=formula,
        source="Surprise's precision_recall_at_k recipe; Bobadilla et al. 2013",
        convention="recommended: of the k highest predictions those above the threshold; "
        "relevant: rated at least the threshold",
        undefined="0 where a denominator is 0, kept and counted",
        cut="required",
        score=score,
    )


METRICS = (
    _metric(
        "precision_threshold",
        "Mean over users of recommended items that are relevant divided by recommended items",
        lambda shown, liked, hits: ratio(hits, shown),  # noqa: ARG005
    ),
    _metric(
        "recall_threshold",
        "Mean over users of recommended items that are relevant divided by relevant items",
        lambda shown, liked, hits: ratio(hits, liked),  # noqa: ARG005
    ),
    _metric(
        "f1_threshold",
        "Mean over users of the harmonic mean of precision and recall at the threshold",
        lambda shown, liked, hits: ratio(2 * hits, shown + liked),
    ),
)
"""The rows of the catalogue; a user is a unit."""
