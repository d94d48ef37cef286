"""Two variants compared while somebody watches: bounds that hold at every look at once.

A z test looked at again and again finds a difference between equal variants in 37-45 % of the
experiments (benchmarks/false_alarms.py). A confidence sequence holds for all looks together, so an
experiment may be watched all day and stopped when the answer is there. Its price: at least 1.55
times the width of an interval that may be looked at once. It counts users as they come, each with
final figures: use matured ones, and count a user's later days as part of the same unit.

It rests on a normal approximation, so it starts after a burn-in; before that the answer is "not
yet". It does not hold for heavy importance weights: `off_policy` has its own bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from streameval.base.arrays import Floats
from streameval.stats.intervals import Arm

ALPHA = 0.05
# Users of both variants at which the sequence is narrowest; not to be chosen after a look. At a
# tenth of them it is 1.95 times as wide as one look's interval, at ten times 1.65.
PLANNED_UNITS = 10_000
# Users a variant needs before the normal approximation is trusted. If one variant gets less than a
# quarter of the other's users, its variance is too uncertain at 100.
FLOOR = 100
FLOOR_UNEQUAL = 500
UNEQUAL = 0.25

Verdict = Literal["not yet", "no difference", "higher", "lower"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """`difference` = treatment − control, and bounds that hold at all looks together.

    `low` and `high` are None while the verdict is "not yet"; `needed` says how many users each
    variant needs by present knowledge (None: no user's part differs from another's yet). "no
    difference" means that no difference has been found so far. `variance` is the squared standard
    error that the bounds were made from.
    """

    difference: float
    low: float | None
    high: float | None
    verdict: Verdict
    needed: int | None
    variance: float


def compare(
    treatment: Arm, control: Arm, alpha: float = ALPHA, planned: int = PLANNED_UNITS
) -> Comparison:
    """Compare two variants of disjoint users; the answer may be asked for at any time."""
    apart = treatment.value - control.value
    pairs = ((treatment, control), (control, treatment))
    burn_ins = [
        burn_in(
            (one.stderr**2, one.skewness, one.units), (other.stderr**2, other.skewness, other.units)
        )
        for one, other in pairs
    ]
    variance = sum(float(found.variance) for found in burn_ins)
    waiting = _waiting(apart, variance, max(float(found.needed) for found in burn_ins))
    if any(arm.units < found.needed for (arm, _), found in zip(pairs, burn_ins, strict=True)):
        return waiting
    return _with_bounds(waiting, treatment.units + control.units, alpha, planned)


def watch(apart: Arm, alpha: float = ALPHA, planned: int = PLANNED_UNITS) -> Comparison:
    """Compare two figures of the same users, `apart` being the difference and its spread."""
    needed = float(units_needed(apart.skewness, apart.units, apart.units))
    waiting = _waiting(apart.value, apart.stderr**2, needed)
    return waiting if apart.units < needed else _with_bounds(waiting, apart.units, alpha, planned)


def _waiting(apart: float, variance: float, needed: float) -> Comparison:
    """Return a comparison before its burn-in."""
    known = None if math.isinf(needed) else math.ceil(needed)
    return Comparison(apart, None, None, "not yet", known, variance)


def _with_bounds(waiting: Comparison, units: int, alpha: float, planned: int) -> Comparison:
    """Return the comparison with its bounds, past its burn-in."""
    apart, reach = waiting.difference, float(radius(waiting.variance, units, alpha, planned))
    verdict: Verdict = "no difference"
    if abs(apart) > reach:
        verdict = "higher" if apart > 0 else "lower"
    return replace(waiting, low=apart - reach, high=apart + reach, verdict=verdict)


class BurnIn(NamedTuple):
    """The squared standard error of a variant to compare with, and the users that it needs."""

    variance: Floats
    needed: Floats


def burn_in(
    own: tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike],
    other: tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike],
) -> BurnIn:
    """Say when a variant has users enough, from (squared standard error, skewness, users) of both.

    A variant in which an event is rare has seen too little to know its own spread: B shows 200
    empty lists, the control none. Equal variants have equal spreads, so it borrows the spread per
    user and the skewness of the other variant where that spread is the larger one. The lender has
    to be past its own burn-in; the borrower needs as many users as the lender's skewness asks
    for. Arrays of one shape.
    """
    variance, skewness, units = (np.asarray(value, np.float64) for value in own)
    lent, other_skewness, others = (np.asarray(value, np.float64) for value in other)
    lent = lent * others / np.maximum(units, 1)
    needed = units_needed(skewness, units, others)
    borrows = (needed > units) & (lent > variance)
    return BurnIn(
        np.where(borrows, lent, variance),
        np.where(borrows, units_needed(other_skewness, units, others), needed),
    )


def units_needed(skewness: npt.ArrayLike, one: npt.ArrayLike, other: npt.ArrayLike) -> Floats:
    """Users that the variant with this `skewness` needs: max(floor, 20·skewness²).

    `one` and `other` are the users of the two variants. Infinite where the skewness is NaN: no
    spread has been seen. Rare clicks of rate p have a skewness² of about 1/p, so it asks for some
    20 positives. Arrays of one shape.
    """
    first, second = np.asarray(one, np.float64), np.asarray(other, np.float64)
    unequal = np.minimum(first, second) < UNEQUAL * np.maximum(first, second)
    floor = np.where(unequal, float(FLOOR_UNEQUAL), float(FLOOR))
    needed = np.maximum(floor, 20 * np.square(np.asarray(skewness, np.float64)))
    return np.asarray(np.where(np.isnan(needed), np.inf, needed))


def radius(
    variance: npt.ArrayLike, units: npt.ArrayLike, alpha: float, planned: int = PLANNED_UNITS
) -> Floats:
    """How far the bounds lie from the figure, `variance` being its squared standard error.

    s·sqrt(2(tρ²+1)/(t²ρ²)·ln(sqrt(tρ²+1)/α)) with t units and s² = t·variance; ρ² makes it
    narrowest at t = `planned`. Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas, "Time-uniform
    central limit theory and asymptotic confidence sequences", arXiv 2103.06476. Arrays of one
    shape.
    """
    spread, t = np.asarray(variance, np.float64), np.asarray(units, np.float64)
    rho = mixing(alpha, planned)
    grown = t * rho + 1
    factor = 2 * grown / (t * rho) * np.log(np.sqrt(grown) / alpha)
    return np.asarray(np.sqrt(spread * factor))


@cache
def mixing(alpha: float, planned: int) -> float:
    """ρ² = (−W₋₁(−α²/e) − 1) / `planned`, W₋₁ the lower branch of Lambert's function."""
    assert 0 < alpha < 1, "alpha is a probability"
    # u = −W₋₁(−α²/e) solves u − ln u = 1 − 2 ln α; the iteration contracts, its slope is 1/u < 1.
    u = constant = 1 - 2 * math.log(alpha)
    for _ in range(200):
        u = constant + math.log(u)
    return (u - 1) / planned
