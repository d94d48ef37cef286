"""How sure a figure is: sums of units that merge, standard errors and intervals looked at once.

A unit is independent of all other units: a user, or a cluster of users. A figure is a ratio Σx/Σy
over units: a mean over slates has y = slates and x = summed scores, a rate has y = impressions and
x = positives, a mean over users has y = 1.
Treating the slates of a user as independent makes the standard error 46 % too small (70 % coverage
for 95 %).

An interval of this file holds for a look at a time chosen beforehand. To watch a figure and
stop when it looks good, use `confidence_sequences`. Without a formula, use `bootstrap`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from statistics import NormalDist
from typing import Any

import numpy as np

from streameval.base.arrays import Floats

LEVEL = 0.95
# From so many users on, 95 % intervals hold in at least 93 % of the cases, whatever share of the
# traffic is a few users' (docs/uncertainty.md).
ENOUGH_USERS = 300
# Variances below this part of a coin's are rounding: scores are whole billionths.
_NO_VARIANCE = 1e-18
# Positives from which on the spread of values is known well enough, and Wilson's bound is the lower
# one (benchmarks/share_coverage.py).
_MANY = 10


@dataclass(frozen=True, slots=True)
class Interval:
    """A value between two bounds."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Arm:
    """A figure of one variant (or period, or file), with its spread.

    `units` are users. The standard error was computed from `clusters` (users, or the clusters they
    fall into). `skewness` belongs to one user's part in the figure; it is NaN where all users'
    parts are the same. `freedom`: degrees of freedom of the standard error; None: one less
    than the clusters.
    """

    value: float
    stderr: float
    skewness: float
    units: int
    clusters: int
    freedom: float | None = None

    def degrees(self) -> float:
        """Degrees of freedom of the standard error, at least 1."""
        return max(1.0, self.clusters - 1 if self.freedom is None else self.freedom)


@dataclass(frozen=True, slots=True)
class Moments:
    """Sums of the powers of (x, y) over units: they add over disjoint units.

    `count` is the number of units. Powers lose digits where a deviation is tiny beside its figure:
    fine for scores, rates and weights, not for times since the epoch.
    """

    count: Any
    x: Any
    y: Any
    xx: Any
    xy: Any
    yy: Any

    def __add__(self, other: Moments) -> Moments:
        """Add the moments of other units."""
        both = (getattr(self, f.name) + getattr(other, f.name) for f in fields(self))
        return Moments(*both)

    def ratio(self) -> Floats:
        """Return Σx/Σy; NaN without units."""
        return _divide(self.x, self.y)

    def variance(self) -> Floats:
        """The squared standard error of Σx/Σy, by the delta method.

        d = x − R·y, n/(n−1) · Σd² / (Σy)²; NaN below two units. Deng, Knoblich and Lu, "Applying
        the delta method in metric analytics", KDD 2018.
        """
        ratio = self.ratio()
        squares = np.maximum(self.xx - 2 * ratio * self.xy + ratio**2 * self.yy, 0.0)
        return _divide(self.count * squares, (np.maximum(self.count, 1) - 1) * np.square(self.y))


def _divide(numerator: Any, denominator: Any) -> Floats:
    above, below = np.asarray(numerator, np.float64), np.asarray(denominator, np.float64)
    answer = np.full(np.broadcast_shapes(above.shape, below.shape), np.nan)
    return np.asarray(np.divide(above, below, out=answer, where=below != 0))


def linear_count(filled: int, clusters: int) -> int:
    """Estimate how many users fill so many of the clusters that they are hashed into.

    Whang, Vander-Zanden and Taylor, "A linear-time probabilistic counting algorithm for database
    applications", TODS 15, 1990. If no cluster is empty, there are at least so many.
    """
    empty = max(clusters - filled, 1)
    return max(filled, round(-clusters * math.log(empty / clusters)))


def interval(arm: Arm, level: float = LEVEL) -> Interval:
    """Return the value ± its standard error times Student's t of its degrees of freedom.

    It is symmetric: for a rate of few positives `share_interval` is the honest one.
    """
    reach = student(level, arm.degrees()) * arm.stderr
    return Interval(arm.value, arm.value - reach, arm.value + reach)


def difference(first: Arm, second: Arm, level: float = LEVEL) -> Interval:
    """`first` − `second` of disjoint users, for one look.

    Degrees of freedom are Welch's, so a variant with few clusters widens it.
    """
    variances = (first.stderr**2, second.stderr**2)
    freedoms = (first.degrees(), second.degrees())
    total = sum(variances)
    weights = sum(v * v / f for v, f in zip(variances, freedoms, strict=True))
    freedom = total * total / weights if weights else float(sum(freedoms))
    reach = student(level, freedom) * math.sqrt(total)
    value = first.value - second.value
    return Interval(value, value - reach, value + reach)


@dataclass(frozen=True, slots=True)
class Rate:
    """A rate from counts. `positives` and `trials` are counts, `stderr` the clustered one.

    The standard error was computed from `clusters`. If both are None, the trials are independent
    (no user is known).
    """

    positives: int
    trials: int
    stderr: float | None = None
    clusters: int | None = None

    def __post_init__(self) -> None:
        """Check that the counts are possible."""
        assert 0 <= self.positives <= self.trials, "a positive is a trial"
        assert self.trials > 0, "no trial, no rate"

    @property
    def value(self) -> float:
        """Positives / trials."""
        return self.positives / self.trials

    def design_effect(self) -> float:
        """How many times the clustered variance is the binomial one; at least 1.

        Below 1 it is taken for chance: clusters would make the figure surer than independence.
        """
        binomial = self.value * (1 - self.value) / self.trials
        if self.stderr is None or binomial == 0:
            return 1.0
        return max(1.0, self.stderr**2 / binomial)

    def effective_trials(self, level: float) -> float:
        """Independent trials that are as sure as these, with (z/t)² for few clusters.

        Korn and Graubard, "Confidence intervals for proportions with small expected number of
        positive counts estimated from survey data", Survey Methodology 24, 1998.
        """
        few = 1.0
        if self.clusters is not None:
            few = (normal(level) / student(level, self.clusters - 1)) ** 2
        return self.trials / self.design_effect() * few


def share_interval(arm: Arm, count: int) -> Interval:
    """The interval of a mean of `count` values in [0, 1], by Wilson on the effective trials.

    Next to 0 and 1 Wilson's interval holds a share in only 84 % of the cases: there `_rare` bounds
    it.
    """
    z, trials = normal(LEVEL), _effective_trials(arm, count)
    low, high = map(float, wilson(arm.value, trials, z))
    return Interval(
        arm.value,
        min(low, _rare(arm.value, trials)),
        max(high, 1.0 - _rare(1.0 - arm.value, trials)),
    )


def _effective_trials(arm: Arm, count: int) -> float:
    """Return the trials with which a rate would have the standard error of `count` values.

    Where no value differs, nothing tells how a user's values go together: then the trials are the
    users (`arm.units`), and no more than `count`. Below `_MANY` positives the standard error tells
    little. Then the trials are drawn towards `count`, and where users have several values towards
    half of it (a design effect of 2) or the users.
    """
    spread = arm.value * (1 - arm.value)
    users = float(min(count, arm.units))
    if arm.stderr**2 <= _NO_VARIANCE * spread:
        return users
    trials, least = spread / arm.stderr**2, max(users, count / 2)
    if trials > least:
        known = min(1.0, min(arm.value, 1 - arm.value) * trials / _MANY)
        trials = least * (trials / least) ** known
    return trials * (normal(LEVEL) / student(LEVEL, arm.degrees())) ** 2


def _rare(share: float, trials: float) -> float:
    """The lower bound of a share of few positives: below Wilson's up to some 10 of them.

    It is the 5 % quantile of the beta distribution of Clopper and Pearson, by Paulson's cube: two
    cube roots of gamma variables are as good as normal. `make share-coverage` measures the result.

    Brown, Cai and DasGupta, "Interval estimation for a binomial proportion", Statistical Science
    16, 2001, section 4.1.1; Paulson, "An approximate normalization of the analysis of variance
    distribution", Annals of Mathematical Statistics 13, 1942.
    """
    if share in (0.0, 1.0):
        return share
    positives = share * trials
    others = trials - positives + 1
    z, a, b = normal(0.9), 1 / (9 * positives), 1 / (9 * others)
    middle = (1 - a) * (1 - b)
    reach = z * math.sqrt(a * (1 - b) ** 2 + b * (1 - a) ** 2 - z * z * a * b)
    odds = positives / others * max((middle - reach) / ((1 - b) ** 2 - z * z * b), 0.0) ** 3
    return odds / (1 + odds)


def rate_difference(first: Rate, second: Rate, level: float = LEVEL) -> Interval:
    """`first` − `second`, from the two Wilson intervals, for one look: the one for rare clicks.

    Newcombe, "Interval estimation for the difference between independent proportions", Statistics
    in Medicine 17, 1998, method 10.
    """
    z = normal(level)
    value = first.value - second.value
    low, high = newcombe(
        first.value,
        first.effective_trials(level),
        second.value,
        second.effective_trials(level),
        z,
    )
    return Interval(value, float(low), float(high))


def wilson(rate: Any, trials: Any, z: float) -> tuple[Floats, Floats]:
    """Wilson's bounds for rates and trials of one shape, exactly 0 or 1 where the rate is.

    Wilson, "Probable inference, the law of succession, and statistical inference", JASA 1927.
    """
    p, n = np.asarray(rate, np.float64), np.asarray(trials, np.float64)
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    reach = z / (1 + z * z / n) * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low, high = np.maximum(middle - reach, 0.0), np.minimum(middle + reach, 1.0)
    # Rounding would leave 5e-17.
    return low * (p > 0), np.maximum(high, p >= 1)


def newcombe(
    first: Any, first_trials: Any, second: Any, second_trials: Any, z: float
) -> tuple[Floats, Floats]:
    """Newcombe's bounds of `first` − `second`, rates and trials of one shape."""
    p, q = np.asarray(first, np.float64), np.asarray(second, np.float64)
    p_low, p_high = wilson(p, first_trials, z)
    q_low, q_high = wilson(q, second_trials, z)
    value = p - q
    low = value - np.sqrt(np.square(p - p_low) + np.square(q_high - q))
    high = value + np.sqrt(np.square(p_high - p) + np.square(q - q_low))
    return low, high


def normal(level: float) -> float:
    """The two-sided quantile of the normal distribution: 1.96 at 0.95."""
    assert 0 < level < 1, "a level is a probability"
    return NormalDist().inv_cdf((1 + level) / 2)


def student(level: float, freedom: float) -> float:
    """The two-sided quantile of Student's t: 12.7 at 0.95 with one degree of freedom.

    Hill, "Algorithm 396: Student's t-quantiles", CACM 13, 1970; good to 1e-4 from `freedom` 1 on.
    """
    assert freedom >= 1, "two units have one degree of freedom"
    tails = 1 - level
    if freedom == 1:
        return 1 / math.tan(tails * math.pi / 2)
    if freedom == 2:
        return math.sqrt(2 / (tails * (2 - tails)) - 2)
    a = 1 / (freedom - 0.5)
    b = (48 / a) / a
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * freedom
    x = d * tails
    y = x ** (2 / freedom)
    if y > 0.05 + a:
        x = -normal(level)
        y = x * x
        if freedom < 5:
            c += 0.3 * (freedom - 4.5) * (x + 0.6)
        c += (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = math.expm1(a * y * y)
    else:
        y = (
            (
                1 / (((freedom + 6) / (freedom * y) - 0.089 * d - 0.822) * (freedom + 2) * 3)
                + 0.5 / (freedom + 4)
            )
            * y
            - 1
        ) * (freedom + 1) / (freedom + 2) + 1 / y
    return math.sqrt(freedom * y)
