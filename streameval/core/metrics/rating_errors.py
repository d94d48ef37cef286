"""Errors of predicted ratings, over pairs, over users or over items: three seeds, three meanings.

The error of a pair is predicted - actual. `rmse` is over pairs, `rmse_user` the mean over users of
each one's RMSE, `rmse_item` the mean over items. Source of the names: Bobadilla et al. 2013.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streameval.core.metrics.entry import Entry, UnitMetric, UnitSums
from streameval.core.metrics.inputs import Range
from streameval.core.metrics.lists import Scores

SCALE = Range(
    name="scale",
    meaning="the lowest and the highest possible rating, such as 1:5",
    note="Scale {0[0]:g} to {0[1]:g}.",
)


@dataclass(frozen=True, slots=True)
class Ratings:
    """Rated pairs of n users, user after user, each with at least one.

    `starts` (n,): where each user's pairs start in `actual`, `predicted` and `lines` (pairs,), the
    last being the order in which equal predictions stand. `threshold` and `scale` (lowest, and the
    highest above it) are what some figures need to be given.
    """

    starts: npt.NDArray[np.int64]
    actual: Scores
    predicted: Scores
    lines: npt.NDArray[np.int64]

    def sizes(self) -> npt.NDArray[np.int64]:
        """The number of pairs of each user, shape (n,)."""
        return np.diff(self.starts, append=len(self.actual))


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemMetric(Entry):
    """A mean over items of each one's mean absolute error, or of its RMSE where `squared`."""

    squared: bool

    def of_items(self, total: Scores, count: Scores) -> Scores:
        """Return the figure of items whose (squared) errors sum to `total` over `count` pairs each.

        NaN where an item has no pair. Arrays of one shape.
        """
        mean = np.full(total.shape, np.nan)
        np.divide(total, count, out=mean, where=count > 0)
        return np.asarray(np.sqrt(mean)) if self.squared else mean


def _sums(ratings: Ratings, distance: Callable[[Scores], Scores]) -> Scores:
    """Return each user's sum of distances; a user's pairs are added in their order."""
    if not len(ratings.starts):
        return np.zeros(0)
    distances = distance(ratings.predicted - ratings.actual)
    return np.asarray(np.add.reduceat(distances, ratings.starts))


def _over_pairs(
    distance: Callable[[Scores], Scores], normalised: int
) -> Callable[[Ratings, int], UnitSums]:
    """Return a score: sums over a user's pairs, divided by the range ** `normalised`."""

    def score(
        ratings: Ratings,
        k: int,  # noqa: ARG001 (over all pairs)
        scale: tuple[float, float] | None = None,
    ) -> UnitSums:
        sums = _sums(ratings, distance)
        if normalised:
            assert scale is not None, "the figure is asked for with its scale"
            lowest, highest = scale
            sums = sums / (highest - lowest) ** normalised
        return sums, ratings.sizes()

    return score


def _over_users(
    distance: Callable[[Scores], Scores], finish: Callable[[Scores], Scores]
) -> Callable[[Ratings, int], UnitSums]:
    def score(ratings: Ratings, k: int) -> UnitSums:  # noqa: ARG001 (over all pairs)
        means = _sums(ratings, distance) / ratings.sizes()
        return finish(means), np.ones(len(means), np.int64)

    return score


def _same(means: Scores) -> Scores:
    return means


_SOURCE = "Bobadilla et al. 2013"
_NOTHING = "absent without pairs; a rating without a prediction is left out and counted"


def _pairs(
    name: str,
    formula: str,
    distance: Callable[[Scores], Scores],
    *,
    normalised: int = 0,
    root: bool = False,
) -> UnitMetric[Ratings]:
    """Return a mean over pairs, divided by the range of the scale ** `normalised`."""
    return UnitMetric(
        input_kind="ratings",
        name=name,
        formula=formula,
        source=_SOURCE,
        convention="over pairs; the scale is given, not observed" if normalised else "over pairs",
        undefined=_NOTHING,
        cutoff="none",
        lower_is_better=True,
        score=_over_pairs(distance, normalised),
        root=root,
        own=False,
        parameters=(SCALE,) if normalised else (),
    )


def _users(
    name: str, formula: str, score: Callable[[Ratings, int], UnitSums]
) -> UnitMetric[Ratings]:
    return UnitMetric(
        input_kind="ratings",
        name=name,
        formula=formula,
        source=_SOURCE,
        convention="users count the same, however many ratings they have",
        undefined=_NOTHING,
        cutoff="none",
        lower_is_better=True,
        score=score,
    )


def _items(name: str, formula: str, *, squared: bool) -> ItemMetric:
    return ItemMetric(
        input_kind="rated_items",
        name=name,
        formula=formula,
        source=_SOURCE,
        convention="items count the same, however many ratings they have",
        undefined=_NOTHING,
        cutoff="none",
        lower_is_better=True,
        squared=squared,
    )


METRICS: tuple[Entry, ...] = (
    _pairs("mse", "Mean over rated pairs of the squared error", np.square),
    _pairs("rmse", "Root of the mean over rated pairs of the squared error", np.square, root=True),
    _pairs("mae", "Mean over rated pairs of the absolute error", np.abs),
    _users(
        "rmse_user",
        "Mean over users of the root of each one's mean squared error",
        _over_users(np.square, np.sqrt),
    ),
    _users(
        "mae_user", "Mean over users of each one's mean absolute error", _over_users(np.abs, _same)
    ),
    _items(
        "rmse_item", "Mean over items of the root of each one's mean squared error", squared=True
    ),
    _items("mae_item", "Mean over items of each one's mean absolute error", squared=False),
    _pairs(
        "nrmse",
        "RMSE divided by the range of the rating scale",
        np.square,
        normalised=2,
        root=True,
    ),
    _pairs("nmae", "MAE divided by the range of the rating scale", np.abs, normalised=1),
)
"""The rows of these metrics. Units are users: x is a user's sum, y their pairs, or 1."""
