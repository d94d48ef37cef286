"""One figure of two arms, judged: bounds that hold at all looks, a verdict, users still needed.

A figure is a ratio Σx/Σy. Its sums are kept by cluster of users, so its spread is the spread
between clusters, and the slates of a user stay together. Everything here is a pure function of such
sums: the live series, `replay` and the files give the same bits where they have the same sums.

Bounds come from `confidence_sequences`, intervals of one look from `intervals`. Nothing undefined
becomes 0: it is None.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

from streameval.stats.cluster_sums import ClusterSums, arm_of
from streameval.stats.confidence_sequences import (
    ALPHA,
    PLANNED_UNITS,
    Comparison,
    compare,
    radius,
    watch,
)
from streameval.stats.intervals import Arm, Interval, Rate, difference, interval, rate_difference

# The smallest relative difference that is worth waiting for, unless the caller names one.
LIFT: Final = 0.01
# With fewer positives in an arm Student's interval is wrong at one look (docs/uncertainty.md).
ENOUGH_POSITIVES: Final = 100
# Nobody waits for more users than this.
MOST: Final = 1e15
_STEPS: Final = 48
# How many of them a reach has to be before the users that it needs are told.
_STANDARD_ERRORS: Final = 2

Verdict = Literal["better", "worse", "no difference shown", "not yet"]
Basis = Literal["all lists", "first lists", "users", "separation"]
"""What bounds are of: the figure, shares of first lists, users' means, or arms set apart."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A figure of a treatment beside the control's.

    `difference` is treatment − control, `relative_difference` its share of the control's value.
    `low` and `high` bound the difference at all looks together, `once_low` and `once_high` at one
    look that was planned beforehand. `users_needed` are the users of both arms that are still
    needed (see `compare_ratios`). `bounds` says what `low` and `high` are of, and `withheld` why
    a figure has none. None: undefined, or not yet known.
    """

    value: float | None
    control_value: float | None
    difference: float | None = None
    relative_difference: float | None = None
    low: float | None = None
    high: float | None = None
    once_low: float | None = None
    once_high: float | None = None
    verdict: Verdict = "not yet"
    users_needed: int | None = None
    bounds: Basis | None = None
    withheld: str | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """How a difference is judged, chosen before the first look.

    alpha: chance of a false alarm of this figure, over all looks (see `split_alpha`).
    planned_users: users of both arms at which the bounds are narrowest.
    margin: a loss up to this much (in units of the figure) is accepted.
    lower_is_better: turns the verdict, and not the difference.
    lift: the smallest relative difference that is worth waiting for.
    reserved: the share of alpha of bounds that stand beside those of the figure (`verdicts`).
    """

    alpha: float = ALPHA
    planned_users: int = PLANNED_UNITS
    margin: float = 0.0
    lower_is_better: bool = False
    lift: float = LIFT
    reserved: float = 0.0

    @property
    def watched_alpha(self) -> float:
        """The chance of a false alarm of the figure's own bounds for all looks."""
        return self.alpha * (1 - self.reserved)

    def verdict(self, low: float | None, high: float | None) -> Verdict:
        """Judge bounds of the difference: is all between them good, or beyond the margin bad."""
        if low is None or high is None:
            return "not yet"
        if self.lower_is_better:
            low, high = -high, -low
        if low > 0:
            return "better"
        return "worse" if high < -self.margin else "no difference shown"


def compare_ratios(treatment: ClusterSums, control: ClusterSums, rules: Rules) -> Scored:
    """Compare a figure of two arms whose users are disjoint; may be asked for at any time.

    `users_needed` counts users of both arms together, at their present proportion: until the
    burn-in is over, and until the bounds exclude 0 or a difference of `lift`, if the difference
    stays as it is. It is 0 when that is reached, and None while no spread is known.
    """
    one, other = treatment.arm(), control.arm()
    if one is None or other is None:
        return Scored(treatment.value, control.value)
    rates = treatment.rate(one), control.rate(other)
    return compare_arms(one, other, rules, rates)


def compare_arms(
    one: Arm,
    other: Arm,
    rules: Rules,
    rates: tuple[Rate | None, Rate | None] = (None, None),
) -> Scored:
    """Compare a figure of two arms whose users are disjoint: `one` − `other`.

    `rates` are the figure's counts in both arms if it is a rate.
    """
    level = 1 - rules.alpha
    look = difference(one, other, level)
    first, second = rates
    if first and second and min(first.positives, second.positives) < ENOUGH_POSITIVES:
        look = rate_difference(first, second, level)
    compared = compare(one, other, rules.watched_alpha, rules.planned_users)
    return _score(compared, look, (one, other), rules)


def compare_paired(treatment: ClusterSums, control: ClusterSums, rules: Rules) -> Scored:
    """Compare two figures of the same users: two models on one log.

    The clusters of both are the same users in the same order, so the spread is the spread of each
    cluster's difference. `planned_users` and `users_needed` count these users. With a user a
    cluster and y = 1, the bounds of one look equal the paired t test's.
    """
    one, other = treatment.value, control.value
    if one is None or other is None:
        return Scored(one, other)
    parts = (treatment.parts() - control.parts())[treatment.there | control.there]
    users = max(treatment.users, control.users)
    apart = arm_of(one - other, parts, users)
    if apart is None:
        return Scored(one, other)
    return _score(
        watch(apart, rules.watched_alpha, rules.planned_users),
        interval(apart, 1 - rules.alpha),
        (replace(apart, value=one), replace(apart, value=other)),
        rules,
        users=apart.units,
    )


def _score(
    compared: Comparison,
    look: Interval,
    arms: tuple[Arm, Arm],
    rules: Rules,
    users: int | None = None,
) -> Scored:
    """Put a comparison of `arms` (treatment, control) and the interval of one look into words.

    `users` counts the users of the comparison; None: the users of both arms.
    """
    one, other = arms
    spread = any(arm.stderr for arm in arms)
    here = one.units + other.units if users is None else users
    return Scored(
        value=one.value,
        control_value=other.value,
        difference=compared.difference,
        relative_difference=compared.difference / abs(other.value) if other.value else None,
        low=compared.low,
        high=compared.high,
        once_low=look.low if spread else None,
        once_high=look.high if spread else None,
        verdict=rules.verdict(compared.low, compared.high),
        users_needed=_users_needed(compared, arms, here, rules),
        bounds=None if compared.low is None else "all lists",
    )


def _users_needed(
    compared: Comparison, arms: tuple[Arm, Arm], here: int, rules: Rules
) -> int | None:
    """Return about how many users are still needed; None while that is mere chance.

    The users go with the inverse square of the reach. A reach of two standard errors is known well
    enough for the rungs of `about`, which then hold from look to look.
    """
    apart, lift = abs(compared.difference), rules.lift * abs(arms[1].value)
    # Bounds of this reach leave out 0, or the lift.
    reach = max(apart, lift - apart)
    known = _STANDARD_ERRORS * math.sqrt(compared.variance)
    if compared.needed is None or not compared.variance or reach < known:
        return None
    burn_in = max(here * compared.needed / arm.units for arm in arms)
    narrow = users_until(reach, compared.variance * here, rules.watched_alpha, rules.planned_users)
    return about(max(0, math.ceil(max(burn_in, narrow)) - here))


def about(users: int) -> int:
    """Round up to a rung of 1, 2, 5, 10, 20, 50, …: no digit more of it would hold."""
    unit: int = 10 ** max(0, len(str(users)) - 1)
    return next(rung * unit for rung in (0, 1, 2, 5, 10) if rung * unit >= users)


def users_until(reach: float, spread: float, alpha: float, planned_users: int) -> float:
    """Return the users at which bounds for all looks lie `reach` from the difference.

    `spread` is the squared standard error of the difference times the users of both arms, which
    stays the same as users come. At most 10¹⁵.
    """
    users = float(planned_users)
    # The radius falls with a power of the users between 1/2 and 1, so a step at least halves the
    # distance to the solution (of the logarithms).
    for _ in range(_STEPS):
        users = min(
            users * float(radius(spread / users, users, alpha, planned_users)) / reach, MOST
        )
    return users


class Alphas(NamedTuple):
    """The chance of a false alarm that each figure of an experiment may use up."""

    primary: float
    guardrail: float
    exploratory: float


def split_alpha(
    alpha: float, guardrails: int, treatments: int = 1, primary_share: float = 0.5
) -> Alphas:
    """Share `alpha` among the named figures, so that any of them alarms falsely with it at most.

    The primary figure gets `primary_share`, the guardrails the rest in equal parts; without
    guardrails the primary figure gets all. Several treatments divide each part. The sum is alpha
    whatever depends on what (Bonferroni), and bounds that hold at all looks keep that promise at
    all looks. An exploratory figure gets alpha by itself: several of them together promise nothing.
    """
    assert guardrails >= 0, "a number of figures"
    assert treatments >= 1, "something is compared"
    each = alpha / treatments
    if not guardrails:
        return Alphas(each, 0.0, alpha)
    return Alphas(each * primary_share, each * (1 - primary_share) / guardrails, alpha)
