"""Errors of predicted ratings, over pairs, over users or over items: three seeds, three meanings.

All means are exact sums divided once, so the order of the pairs does not matter; NaN without pairs.
Source: Bobadilla et al. 2013.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streameval.core.errors import InputError
from streameval.core.metrics.lists import Scores


@dataclass(frozen=True, slots=True)
class Ratings:
    """Rated pairs, shape (n,) each: numbers of user and item, actual and predicted rating."""

    users: npt.NDArray[np.int64]
    items: npt.NDArray[np.int64]
    actual: Scores
    predicted: Scores


def mse(ratings: Ratings) -> float:
    """Return the mean squared error over pairs."""
    return _mean(_squares(ratings))


def rmse(ratings: Ratings) -> float:
    """Return the root of the mean squared error over pairs."""
    return math.sqrt(mse(ratings))


def mae(ratings: Ratings) -> float:
    """Return the mean absolute error over pairs."""
    return _mean(_distances(ratings))


def rmse_user(ratings: Ratings) -> float:
    """Return the mean over users of each one's RMSE."""
    return _mean(np.sqrt(_means_by(_squares(ratings), ratings.users)))


def mae_user(ratings: Ratings) -> float:
    """Return the mean over users of each one's MAE."""
    return _mean(_means_by(_distances(ratings), ratings.users))


def rmse_item(ratings: Ratings) -> float:
    """Return the mean over items of each one's RMSE."""
    return _mean(np.sqrt(_means_by(_squares(ratings), ratings.items)))


def mae_item(ratings: Ratings) -> float:
    """Return the mean over items of each one's MAE."""
    return _mean(_means_by(_distances(ratings), ratings.items))


def nrmse(ratings: Ratings, lowest: float, highest: float) -> float:
    """Return RMSE / the range of the rating scale, which is given and not observed."""
    return rmse(ratings) / _range(lowest, highest)


def nmae(ratings: Ratings, lowest: float, highest: float) -> float:
    """Return MAE / the range of the rating scale, which is given and not observed."""
    return mae(ratings) / _range(lowest, highest)


def _range(lowest: float, highest: float) -> float:
    if not lowest < highest:
        raise InputError("the rating scale: its lowest rating is below its highest")
    return highest - lowest


def _squares(ratings: Ratings) -> Scores:
    return (ratings.predicted - ratings.actual) ** 2


def _distances(ratings: Ratings) -> Scores:
    return np.abs(ratings.predicted - ratings.actual)


def _mean(values: Scores) -> float:
    return math.fsum(values.tolist()) / len(values) if len(values) else math.nan


def _means_by(values: Scores, groups: npt.NDArray[np.int64]) -> Scores:
    """Return the mean of each group's values."""
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=groups[order][:1] - 1))
    return np.array([_mean(part) for part in np.split(values[order], starts[1:]) if len(part)])
