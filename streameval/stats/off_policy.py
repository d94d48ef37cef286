"""The reward that another policy would have earned, from the log of the policy that served.

Each round (an impression, or a slate) carries a propensity: the logging policy's probability of
showing this item there. A round counts `target / logged` times. The estimate is as good as these
weights: where the target policy prefers items that the log hardly shows, a few rounds carry
everything, and the estimate means nothing although it looks like any other. So the weights' mean,
largest value and effective sample size stand beside every estimate. It is refused when too few
rounds are left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from streameval.base.arrays import Floats
from streameval.base.errors import InputError
from streameval.base.limits import CLUSTERS
from streameval.stats.cluster_sums import ratio_arm
from streameval.stats.intervals import Arm, Interval, interval

# Below this many effective rounds no interval is honest: the estimate is refused.
LEAST_EFFECTIVE = 30.0
# Below this share of effective rounds the estimate comes with a warning.
FEW_EFFECTIVE = 0.1
# Standard errors that the mean weight may be away from 1 before propensities are called wrong.
FAR = 4.0
# Rounds with a reward below which the normal approximation is rough.
FEW_REWARDED = 100


# A tiny propensity gives a weight whose square is infinite: such sums are refused, not warned of.
_BOUNDLESS: Final = np.errstate(over="ignore", invalid="ignore")


@dataclass(frozen=True, slots=True)
class WeightSums:
    """Sums over rounds that add over files and partitions: memory does not grow with the log.

    By cluster of users, float64 (256,): `rounds`, `weights` and `rewards` (weighted). Over all
    rounds: `squares` of the weights, the `largest` weight, `rewarded` rounds with a reward.
    """

    rounds: Floats
    weights: Floats
    rewards: Floats
    squares: float
    largest: float
    rewarded: int

    @classmethod
    @_BOUNDLESS
    def of(
        cls,
        rewards: npt.ArrayLike,
        target: npt.ArrayLike,
        logged: npt.ArrayLike,
        clusters: npt.ArrayLike | None = None,
    ) -> WeightSums:
        """Sum up rounds: `rewards`, and the probabilities of the shown items, shape (rounds,).

        `target` in [0, 1] is the policy in question, `logged` in (0, 1] the policy that served.
        `clusters` are the users' clusters. Without them the rounds count as independent, and are
        dealt to the clusters in turn.

        Raises InputError for a probability out of range or a reward that is not finite.
        """
        reward, wanted, served = (
            np.asarray(values, np.float64) for values in (rewards, target, logged)
        )
        weight = importance(wanted, served)
        if not np.isfinite(reward).all():
            raise InputError("a reward is not a finite number: leave such rounds out")
        where = np.arange(len(reward)) % CLUSTERS if clusters is None else np.asarray(clusters)

        def by_cluster(values: Floats) -> Floats:
            return np.bincount(where, weights=values, minlength=CLUSTERS).astype(np.float64)

        return cls(
            rounds=by_cluster(np.ones(len(reward))),
            weights=by_cluster(weight),
            rewards=by_cluster(weight * reward),
            squares=float(np.square(weight).sum()),
            largest=float(weight.max(initial=0.0)),
            rewarded=int(np.count_nonzero(reward)),
        )

    def __add__(self, other: WeightSums) -> WeightSums:
        """Add the sums of other rounds."""
        return WeightSums(
            self.rounds + other.rounds,
            self.weights + other.weights,
            self.rewards + other.rewards,
            self.squares + other.squares,
            max(self.largest, other.largest),
            self.rewarded + other.rewarded,
        )


@dataclass(frozen=True, slots=True)
class OffPolicy:
    """The value of the target policy (mean reward a round), and its evidence.

    `ips` divides by the rounds and is unbiased; `snips` divides by the weights: slightly biased,
    usually closer, and it cannot leave the range of the rewards. Both are None when `refused` says
    why. `warnings` are sentences for people. `effective` is (Σw)²/Σw². `mean_weight` must be 1, but
    for chance: `off_by` is its distance from 1 beyond `FAR` standard errors.
    """

    rounds: int
    mean_weight: float
    off_by: float
    largest_weight: float
    effective: float
    ips: Interval | None
    snips: Interval | None
    warnings: tuple[str, ...]
    refused: str | None


@_BOUNDLESS
def estimate(sums: WeightSums) -> OffPolicy:
    """Estimate IPS and SNIPS with intervals clustered by user, or refuse.

    Horvitz and Thompson, JASA 1952; Swaminathan and Joachims, "The self-normalized estimator for
    counterfactual learning", NeurIPS 2015; effective sample size after Kish, 1965.

    Raises InputError without a round.
    """
    rounds = int(sums.rounds.sum())
    if rounds == 0:
        raise InputError("no round has a propensity: log `propensity` with impressions or slates")
    total = float(sums.weights.sum())
    effective = total * total / sums.squares if sums.squares else 0.0
    if not math.isfinite(effective):
        effective = 0.0
    ips = ratio_arm(sums.rewards, sums.rounds)
    snips = ratio_arm(sums.rewards, sums.weights)
    refused = None
    if effective < LEAST_EFFECTIVE:
        refused = (
            f"the weights (mean {total / rounds:.3g}, largest {sums.largest:.4g}) leave "
            f"{effective:.1f} effective rounds of {rounds:,} (fewer than {LEAST_EFFECTIVE:.0f}): "
            "the log hardly shows what this policy would; no estimate"
        )
    elif ips is None or snips is None:
        refused = "all rounds fall into one cluster of users: no standard error, no estimate"
    weights = ratio_arm(sums.weights, sums.rounds)
    return OffPolicy(
        rounds=rounds,
        mean_weight=total / rounds,
        off_by=0.0 if weights is None else max(0.0, abs(weights.value - 1) - FAR * weights.stderr),
        largest_weight=sums.largest,
        effective=effective,
        ips=None if refused or ips is None else interval(ips),
        snips=None if refused or snips is None else interval(snips),
        warnings=tuple(_warnings(sums, rounds, effective, weights)),
        refused=refused,
    )


def _warnings(sums: WeightSums, rounds: int, effective: float, weights: Arm | None) -> list[str]:
    found = []
    if effective < FEW_EFFECTIVE * rounds:
        found.append(
            f"effective sample size {effective:,.0f} of {rounds:,}: the largest weight is "
            f"{sums.largest:.0f}, a few rounds carry the estimate; read it as a rough figure"
        )
    if weights is not None and abs(weights.value - 1) > max(FAR * weights.stderr, 1e-6):
        found.append(
            f"the mean weight is {weights.value:.3f} ± {weights.stderr:.3f} and must be 1: the "
            "propensities do not belong to the policy that served, or it never shows an item "
            "that the other would"
        )
    if sums.rewarded < FEW_REWARDED:
        found.append(
            f"{sums.rewarded} rounds have a reward: the interval is a normal approximation and "
            "too narrow on the side of larger values"
        )
    return found


def importance(target: Floats, logged: Floats) -> Floats:
    """Weights `target / logged`; raises InputError for a probability out of range."""
    if not ((logged > 0) & (logged <= 1)).all():
        raise InputError("a logged propensity is not in (0, 1]: leave rounds without one out")
    if not ((target >= 0) & (target <= 1)).all():
        raise InputError("a probability of the target policy is not in [0, 1]")
    return np.asarray(target / logged, np.float64)
