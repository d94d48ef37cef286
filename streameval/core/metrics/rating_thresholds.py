"""Precision, recall and F1 of ratings at a threshold t, user by user.

Of a user's k pairs with the highest predictions (ties: the earlier pair first), recommended are
the pairs with a prediction above t. Relevant are the pairs with an actual rating of at least t. A
figure with an empty denominator is 0. Source: the recipe of k-NN libraries; Bobadilla et al. 2013.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from streameval.core.metrics.entry import UnitMetric, UnitSums
from streameval.core.metrics.inputs import Number
from streameval.core.metrics.lists import Scores, ratio
from streameval.core.metrics.rating_errors import Ratings

Counts = npt.NDArray[np.int64]

THRESHOLD = Number(
    name="threshold",
    meaning="the rating from which on an item is relevant",
    note="Threshold {:g}.",
)


def _counts(ratings: Ratings, k: int, threshold: float) -> tuple[Counts, Counts, Counts]:
    """Return each user's numbers of recommended pairs, relevant pairs, and pairs that are both."""
    sizes = ratings.sizes()
    owner = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((ratings.lines, -ratings.predicted, owner))
    position = np.arange(len(owner)) - np.repeat(ratings.starts, sizes)
    recommended = (ratings.predicted[order] > threshold) & (position < k)
    relevant = ratings.actual[order] >= threshold
    chosen, liked, hits = (
        np.bincount(owner[kept], minlength=len(sizes)).astype(np.int64)
        for kept in (recommended, relevant, recommended & relevant)
    )
    return chosen, liked, hits


def _metric(
    name: str, formula: str, share: Callable[[Counts, Counts, Counts], Scores]
) -> UnitMetric[Ratings]:
    def score(ratings: Ratings, k: int, threshold: float) -> UnitSums:
        shares = share(*_counts(ratings, k, threshold))
        return shares, np.ones(len(shares), np.int64)

    return UnitMetric(
        input_kind="ratings",
        name=name,
        formula=formula,
        source="Surprise's precision_recall_at_k recipe; Bobadilla et al. 2013",
        convention="recommended: of the k highest predictions those above the threshold; "
        "relevant: rated at least the threshold",
        undefined="0 where a denominator is 0, kept and counted",
        cutoff="required",
        parameters=(THRESHOLD,),
        score=score,
    )


METRICS = (
    _metric(
        "precision_threshold",
        "Mean over users of recommended items that are relevant divided by recommended items",
        lambda chosen, liked, hits: ratio(hits, chosen),  # noqa: ARG005
    ),
    _metric(
        "recall_threshold",
        "Mean over users of recommended items that are relevant divided by relevant items",
        lambda chosen, liked, hits: ratio(hits, liked),  # noqa: ARG005
    ),
    _metric(
        "f1_threshold",
        "Mean over users of the harmonic mean of precision and recall at the threshold",
        lambda chosen, liked, hits: ratio(2 * hits, chosen + liked),
    ),
)
"""The rows of the catalogue; a user is a unit."""
