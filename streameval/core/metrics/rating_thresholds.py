"""Precision, recall and F1 of ratings at a threshold t, user by user.

Recommended: of a user's k pairs with the highest predictions (ties: the earlier pair first), those
predicted above t. Relevant: the pairs with an actual rating of at least t. What has an empty
denominator is 0. Source: the recipe of k-NN libraries; Bobadilla et al. 2013.
"""

from __future__ import annotations

import numpy as np

from streameval.core.metrics.lists import Scores, ratio
from streameval.core.metrics.rating_errors import Ratings


def at_threshold(ratings: Ratings, k: int, threshold: float) -> tuple[Scores, Scores, Scores]:
    """Return precision, recall and F1 of each user, in the order of users' numbers.

    Precision is hits / recommended, recall hits / relevant, F1 their harmonic mean.
    """
    order = np.lexsort((-ratings.predicted, ratings.users))
    users, owner = np.unique(ratings.users[order], return_inverse=True)
    sizes = np.bincount(owner, minlength=len(users))
    place = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    recommended = (ratings.predicted[order] > threshold) & (place < k)
    relevant = ratings.actual[order] >= threshold
    shown, liked, hits = (
        np.bincount(owner[chosen], minlength=len(users)).astype(np.int64)
        for chosen in (recommended, relevant, recommended & relevant)
    )
    return ratio(hits, shown), ratio(hits, liked), ratio(2 * hits, shown + liked)
