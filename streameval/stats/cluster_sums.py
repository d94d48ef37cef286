"""Sums of a ratio by cluster of users, and the one standard error that every figure has.

A figure is a ratio R = Σx/Σy over users: a mean over slates has y = slates and x = summed scores, a
rate has y = impressions and x = positives. Its standard error is the jackknife's over clusters of
users: leave each cluster out once, and see how far the ratio moves. The windows, experiments and
figures of files have it from here, so the same slates have the same error everywhere.

A few users may make most of Σy and pull the ratio to themselves. Then the delta method trusts them
too much (docs/uncertainty.md measures it). Where all y are equal, both are the same.

Efron and Stein, "The jackknife estimate of variance", Annals of Statistics 9, 1981.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streameval.base.arrays import Floats
from streameval.stats.intervals import Arm, Rate

# A sum of squares that is smaller than this share of the figure's own is only rounding.
_ROUNDING: Final = 1e-30

Numbers = npt.NDArray[Any]
"""Whole numbers as int64, as float64, or as Python's integers, which have no bound."""


def moved_by(
    x: Numbers, y: Numbers, above: Sequence[float], below: Sequence[float]
) -> tuple[Floats, Floats]:
    """Return how far each cluster moves each ratio, and (n - 1)/n of the n clusters it has.

    `x` and `y` are of shape (ratios, clusters), as are the moves, (x - R·y)/(Σy - y): the ratio
    less that of the other clusters. `above` and `below` are the sums by ratio. Moves are 0 where
    fewer than two clusters have a y.
    """
    there = x | y if x.dtype == y.dtype == np.int64 else (x != 0) | (y != 0)
    # x - R·y of nearly equal ratios is small: the whole part of R is taken off in integers.
    shares = [divmod(a, b) if b else (0, 0) for a, b in zip(above, below, strict=True)]
    whole = np.array([share for share, _ in shares], x.dtype)[:, np.newaxis]
    rest = np.array([left / (b or 1) for (_, left), b in zip(shares, below, strict=True)])
    sums = np.array(below, np.float64)
    apart = np.asarray(x - whole * y, np.float64)
    apart -= rest[:, np.newaxis] * y
    others = sums[:, np.newaxis] - y
    others[np.count_nonzero(y, axis=-1) < 2] = np.inf
    apart /= others
    ratios = np.array(above, np.float64) / np.where(sums, sums, 1.0)
    apart[_squares(apart) <= _ROUNDING * np.square(ratios)] = 0.0
    return apart, _share(there)


def stderrs(x: Numbers, y: Numbers) -> list[float | None]:
    """Return the standard errors of ratios Σx/Σy, of (ratios, clusters) each.

    None where fewer than two clusters have a y.
    """
    moves, shares = moved_by(x, y, x.sum(axis=-1).tolist(), y.sum(axis=-1).tolist())
    found = np.sqrt(shares * _squares(moves)).tolist()
    known = (np.count_nonzero(y, axis=-1) > 1).tolist()
    return [error if enough else None for error, enough in zip(found, known, strict=True)]


def _share(there: npt.NDArray[Any]) -> Floats:
    """Return (n - 1)/n of the n clusters that are there."""
    counts = np.maximum(np.count_nonzero(there, axis=-1), 1)
    return np.asarray((counts - 1) / counts)


def _squares(rows: Floats) -> Floats:
    """Return the sum of squares of each row."""
    return np.asarray(np.einsum("ij,ij->i", rows, rows))


@dataclass(frozen=True, slots=True, eq=False)
class ClusterSums:
    """The sums of a figure in one arm: R = Σx / (unit·Σy).

    `x` and `y` hold whole numbers by cluster of users (or by user), shape (clusters,). `users` is
    the number of users of the arm. One unit of the figure is `unit` in `x`: 10⁹ for scores in
    nano-units.
    """

    x: Numbers
    y: Numbers
    users: int
    unit: int = 1

    @property
    def value(self) -> float | None:
        """Return the figure, divided once from exact sums; None without a denominator."""
        below = self.unit * _total(self.y)
        return _total(self.x) / below if below else None

    @property
    def there(self) -> npt.NDArray[np.bool_]:
        """Tell which clusters have a part in the figure, shape (clusters,)."""
        return np.asarray((self.y != 0) | (self.x != 0))

    def parts(self) -> Floats:
        """Return each cluster's part in the error of the figure, shape (clusters,).

        It is (n - 1)/n of what the cluster moves the figure by, so n/(n - 1)·Σparts² is the squared
        standard error. Parts of figures of the same clusters add up.
        """
        x, y = np.asarray(self.x)[np.newaxis], np.asarray(self.y)[np.newaxis]
        (moves,), (share,) = moved_by(x, y, [_total(self.x)], [_total(self.y)])
        return np.asarray(moves * share / self.unit)

    def deviations(self) -> Floats:
        """Return (x - R·y)/Σy of each cluster, the figure made linear: (clusters,)."""
        below, share = _total(self.y), float(_share(self.there))
        weights = np.asarray(self.y, np.float64) / (below or 1)
        return np.asarray(self.parts() / (share or 1) * (1 - weights))

    def arm(self) -> Arm | None:
        """Return the figure with its spread; None below two clusters with a denominator."""
        value = self.value
        if value is None or np.count_nonzero(self.y) < 2:
            return None
        return arm_of(value, self.parts()[self.there], self.users, kish(self.y) - 1)

    def rate(self, arm: Arm) -> Rate | None:
        """Return a rate with the error of its `arm`; None if `x` does not count some of `y`."""
        if self.unit != 1 or (self.x > self.y).any():
            return None
        return Rate(_total(self.x), _total(self.y), arm.stderr, arm.clusters)


def ratio_arm(x: npt.ArrayLike, y: npt.ArrayLike) -> Arm | None:
    """Return Σx/Σy of any numbers by unit, shape (units,); None below two units with a y.

    A unit with x alone counts too: a user who was promised clicks and had none.
    """
    above, below = (np.asarray(numbers, np.float64) for numbers in (x, y))
    if np.count_nonzero(below) < 2:
        return None
    sums = float(above.sum()), float(below.sum())
    (moves,), (share,) = moved_by(above[np.newaxis], below[np.newaxis], sums[:1], sums[1:])
    there = (above != 0) | (below != 0)
    return arm_of(sums[0] / sums[1], moves[there] * share, 0, kish(below) - 1)


def kish(weights: Numbers) -> float:
    """Return the effective number of units, (Σw)²/Σw² (Kish, "Survey Sampling", 1965)."""
    found = np.asarray(weights, np.float64)
    return float(found.sum() ** 2 / np.square(found).sum())


def arm_of(value: float, parts: Floats, users: int, freedom: float | None = None) -> Arm | None:
    """Return a figure whose error is the sum of `parts` (clusters,); None below two of them.

    n/(n - 1)·Σparts² is its squared standard error. A cluster of m users is √m times less skewed
    than a user, so that is multiplied back. For counts of rare events the burn-in (20·skewness²
    users) is then the same as 20 events an arm.
    """
    count = len(parts)
    if count < 2:
        return None
    squares = float(np.square(parts).sum())
    units = max(users, count)
    skewness = math.nan
    if squares > 0:
        # The parts are scaled, for the cubes of small parts are no numbers any more.
        scaled = parts / math.sqrt(squares / count)
        skewness = float((scaled**3).mean()) * math.sqrt(units / count)
    stderr = math.sqrt(count / (count - 1) * squares)
    return Arm(value, stderr, skewness, units=units, clusters=count, freedom=freedom)


def _total(values: Numbers) -> int:
    """Add whole numbers exactly: an int64 would wrap, and a float64 would round."""
    return sum(map(int, values.tolist()))
