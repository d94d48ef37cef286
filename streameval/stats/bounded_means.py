"""Bounds of means of observations in [0, 1] that need no spread and no burn-in.

For n observations with the sum S, (p/m)^S · ((1−p)/(1−m))^(n−S) has a mean of at most 1 if their
mean is m: it is convex in an observation, so coin flips are the worst case. Mixed over p by
Beta(a, a), this is E(m) = B(a+S, a+n−S) / (B(a, a) · m^S · (1−m)^(n−S)), which ever reaches 1/α
with a chance of at most α (Ville). So E(m) < 1/α bounds m at all looks together: the beta-binomial
mixture, sub-Bernoulli, of Howard, Ramdas, McAuliffe and Sekhon, "Time-uniform, nonparametric,
nonasymptotic confidence sequences", arXiv 1810.08240.

The evidence of two arms multiplies. Their difference lies between the smallest and the largest
m₁ − m₀ with E₁(m₁) · E₀(m₀) < 1/α. Every observation is a user's own, so users are independent.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from streameval.base.arrays import Floats

# Jeffreys' prior: 0 of 10,000 bounds a share by 0.0011, where the uniform prior has 0.0015
# (alpha 0.003).
_PRIOR: Final = 0.5
# The logarithms between which the multiplier is searched for, and the halvings: it is known to nine
# digits then, and the bound to more.
_LEAST, _MOST, _HALVINGS = -4.0, 64.0, 36
_lgamma = np.vectorize(math.lgamma, otypes=[np.float64])


class Means(NamedTuple):
    """Observations in [0, 1]: their number and their sum. Arrays of one shape, such as (looks,)."""

    number: Floats
    total: Floats


class Bounds(NamedTuple):
    """Bounds at each look, of the shape of the counts."""

    low: Floats
    high: Floats

    def together(self) -> Bounds:
        """Return the bounds of all looks, the last axis, at once, for they hold together.

        If no number is within all of them, the mean has moved: those of the last look are left.
        """
        low, high = self.low.max(axis=-1), self.high.min(axis=-1)
        fits = low <= high
        return Bounds(
            np.where(fits, low, self.low[..., -1]), np.where(fits, high, self.high[..., -1])
        )


def difference_bounds(treatment: Means, control: Means, alpha: npt.ArrayLike) -> Bounds:
    """Bound the difference of the means of two arms, treatment − control, at all looks together.

    `alpha` may be an array that fits the counts: each figure has its own.
    """
    return Bounds(
        _least(((treatment, 1), (control, -1)), alpha),
        -_least(((treatment, -1), (control, 1)), alpha),
    )


def _least(sides: tuple[tuple[Means, int], ...], alpha: npt.ArrayLike) -> Floats:
    """Return the smallest Σ sign · mean whose evidence is below 1/alpha.

    The logarithm of the evidence is convex, so a multiplier (of Lagrange) pushes each mean from its
    estimate to the bound, and the evidence grows with it.
    """
    limit = -np.log(np.asarray(alpha, np.float64))
    least = np.full(np.shape(sides[0][0].number), _LEAST)
    most = np.full_like(least, _MOST)
    mixtures = [_mixture(means) for means, _ in sides]
    for _ in range(_HALVINGS):
        middle = (least + most) / 2
        evidence = sum(
            mixed - _likelihood(means, *_push(means, sign, middle))
            for mixed, (means, sign) in zip(mixtures, sides, strict=True)
        )
        inside = evidence < limit
        least, most = np.where(inside, middle, least), np.where(inside, most, middle)
    return np.asarray(sum(sign * _push(means, sign, most)[0] for means, sign in sides))


def _push(means: Means, sign: int, multiplier: Floats) -> tuple[Floats, Floats]:
    """Return (m, 1 − m) of the mean that a multiplier (logarithm) pushes against `sign`.

    m solves n·m − S = −λ·m·(1 − m); 1 − m the same with n − S, where it is pushed upwards.
    """
    push, number = np.exp(multiplier), means.number
    total = means.total if sign > 0 else number - means.total
    root = np.sqrt(np.maximum((number + push) ** 2 - 4 * push * total, 0))
    near = 2 * total / (number + push + root)
    return (near, 1 - near) if sign > 0 else (1 - near, near)


def _likelihood(means: Means, mean: Floats, rest: Floats) -> Floats:
    """Return ln(m^S · (1 − m)^(n−S))."""
    return _times_log(means.total, mean) + _times_log(means.number - means.total, rest)


def _times_log(factor: Floats, value: Floats) -> Floats:
    return np.where(factor > 0, factor * np.log(np.maximum(value, 1e-300)), 0.0)


def _mixture(means: Means) -> Floats:
    """Return ln(B(a+S, a+n−S) / B(a, a))."""
    below, above = _PRIOR + means.total, _PRIOR + means.number - means.total
    start = math.lgamma(2 * _PRIOR) - 2 * math.lgamma(_PRIOR)
    return np.asarray(_lgamma(below) + _lgamma(above) - _lgamma(below + above) + start)


def means_of(count: npt.ArrayLike, total: npt.ArrayLike) -> Means:
    """Return observations as arrays of doubles; rounding leaves no sum above its count."""
    number = np.asarray(count, np.float64)
    return Means(number, np.clip(np.asarray(total, np.float64), 0, number))
