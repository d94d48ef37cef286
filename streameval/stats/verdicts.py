"""One verdict from several bounds of a figure, and the alpha that each of them may use up.

The bounds of `experiments` are those of the figure itself, and need a spread. Beside them stand
bounds that need none: of first lists and of users' means (`bounded_means`), and of separated arms
(`separation`). They share alpha beforehand, so any of them may decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from streameval.stats.bets import mean_bounds
from streameval.stats.bounded_means import Means, difference_bounds, means_of
from streameval.stats.cluster_sums import ClusterSums
from streameval.stats.confidence_sequences import units_needed
from streameval.stats.experiments import Basis, Rules, Scored
from streameval.stats.separation import one_sided

WITHOUT_SPREAD: Final = 0.1
"""The share of alpha for bounds that need no spread: the others are 1 % wider for it."""
EACH: Final = WITHOUT_SPREAD / 2
"""The share of alpha of each of the two kinds: of means in [0, 1], and of separated arms."""
DECIDED: Final = frozenset(("better", "worse"))


class Beside(NamedTuple):
    """Bounds that need no spread; `users` are the smaller and the larger arm's."""

    basis: Basis
    low: float
    high: float
    users: tuple[float, float]

    def settles(self, rules: Rules) -> bool:
        """Whether there is no more to wait for before a figure without a spread passes.

        Both arms have as many users as figures with a spread need, and a loss beyond the margin is
        excluded. Nothing ever excludes every loss, so without a margin the users suffice.
        """
        loss = self.high if rules.lower_is_better else -self.low
        enough = min(self.users) >= float(units_needed(0.0, *self.users))
        return enough and (not rules.margin or loss <= rules.margin)


def join_bounds(scored: Scored, beside: Sequence[Beside], rules: Rules) -> Scored:
    """Let the bounds `beside` decide, and stand in where the figure has no bounds of its own.

    What the figure's own bounds have decided stands. Bounds that exclude them are left out: lists
    of returning users differ from first ones then, and the figure is over all lists.
    """
    if scored.verdict in DECIDED:
        return scored
    fitting = [one for one in beside if _overlaps(scored, one)]
    for one in fitting:
        verdict = rules.verdict(one.low, one.high)
        if verdict in DECIDED:
            return replace(_with_bounds(scored, one), verdict=verdict, users_needed=0)
    if scored.low is not None or not fitting:
        return scored
    first = fitting[0]
    settled = first.settles(rules)
    return replace(
        _with_bounds(scored, first), verdict="no difference shown" if settled else "not yet"
    )


def withhold(scored: Scored, reason: str | None) -> Scored:
    """Take the bounds and the verdict away from a figure that compares different times."""
    if reason is None:
        return scored
    return Scored(
        *(scored.value, scored.control_value, scored.difference, scored.relative_difference),
        withheld=reason,
    )


def _with_bounds(scored: Scored, one: Beside) -> Scored:
    return replace(scored, low=one.low, high=one.high, bounds=one.basis)


def _overlaps(scored: Scored, one: Beside) -> bool:
    if scored.low is None or scored.high is None:
        return True
    return one.low <= scored.high and scored.low <= one.high


def users_means(treatment: ClusterSums, control: ClusterSums, rules: Rules) -> Beside | None:
    """Bound the difference of means over users of values in [0, 1], of two arms.

    `y` counts the users that have a value. None without one in an arm.
    """
    one, other = _means(treatment), _means(control)
    if not one.number or not other.number:
        return None
    low, high = difference_bounds(one, other, rules.alpha * EACH)
    return Beside("users", float(low), float(high), (float(one.number), float(other.number)))


def of_pairs(
    treatment: ClusterSums, control: ClusterSums, rules: Rules, *, is_share: bool
) -> list[Beside]:
    """Bound the difference of two models on the same users, one or more, from each one's mean.

    `is_share`: scores lie in [0, 1], so differences lie in [−1, 1], and half of one more in [0, 1].
    """
    there = treatment.y != 0
    users = int(there.sum())
    lists = treatment.unit * treatment.y[there]
    apart = np.asarray((treatment.x - control.x)[there] / lists, np.float64)
    alpha, found = rules.alpha * EACH, []
    if is_share:
        low, high = mean_bounds((apart + 1) / 2, alpha)
        found.append(Beside("users", 2 * low - 1, 2 * high - 1, (users, users)))
    ends = one_sided(float(apart.min()), float(apart.max()), users, alpha)
    return [*found, *([] if ends is None else [Beside("separation", *ends, (users, users))])]


def _means(sums: ClusterSums) -> Means:
    return means_of(sum(map(int, sums.y)), sum(map(int, sums.x)) / sums.unit)
