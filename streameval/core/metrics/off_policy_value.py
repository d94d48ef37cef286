"""The reward that another policy would earn, from rounds of the policy that served.

A round has its reward, and the weight `target / logged` of the two policies' probabilities for the
item it showed. A model of rewards, made elsewhere, may add its prediction for that item
(`predicted`) and the target policy's reward by it (`expected`, the mean of its predictions
over that policy's choices). `dr` corrects the model by the weighted errors it made.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streameval.core.metrics.entry import Entry, UnitMetric, UnitSums
from streameval.core.metrics.lists import MeanMetric, Scores


@dataclass(frozen=True, slots=True)
class Rounds:
    """n rounds, each array (n,). Columns that no figure asked for are NaN."""

    rewards: Scores
    weights: Scores
    predicted: Scores
    expected: Scores


def _each(values: Scores) -> UnitSums:
    return values, np.ones(len(values), np.int64)


def _ips(rounds: Rounds, k: int) -> UnitSums:  # noqa: ARG001 (no ranks here)
    return _each(rounds.weights * rounds.rewards)


def _weight(rounds: Rounds, k: int) -> UnitSums:  # noqa: ARG001 (no ranks here)
    return _each(rounds.weights)


def _dm(rounds: Rounds, k: int) -> UnitSums:  # noqa: ARG001 (no ranks here)
    return _each(rounds.expected)


def _dr(rounds: Rounds, k: int) -> UnitSums:  # noqa: ARG001 (no ranks here)
    return _each(rounds.expected + rounds.weights * (rounds.rewards - rounds.predicted))


def _normalise(mean_reward: float, mean_weight: float) -> float | None:
    return mean_reward / mean_weight if mean_weight else None


_NOTHING = "refused where fewer than 30 effective rounds are left"

_IPS: UnitMetric[Rounds] = UnitMetric(
    input_kind="rounds",
    name="ips",
    formula="Mean over rounds of target / logged probability times reward",
    source="Horvitz and Thompson 1952; zr-obp InverseProbabilityWeighting",
    convention="weights are not clipped; rounds count the same",
    undefined=_NOTHING,
    cutoff="none",
    score=_ips,
)
_WEIGHT: UnitMetric[Rounds] = UnitMetric(
    input_kind="rounds",
    name="mean_weight",
    formula="Mean over rounds of target / logged probability",
    source="Swaminathan and Joachims 2015, the control variate of snips",
    convention="1, but for chance, where the logged probabilities are right",
    undefined=_NOTHING,
    cutoff="none",
    score=_weight,
)

METRICS: tuple[Entry, ...] = (
    _IPS,
    MeanMetric(
        input_kind="rounds",
        name="snips",
        formula="The sum over rounds of weight times reward divided by the sum of weights",
        source="Swaminathan and Joachims 2015; zr-obp SelfNormalizedInverseProbabilityWeighting",
        convention="the mean weighted reward divided by the mean weight, target / logged",
        undefined=_NOTHING,
        cutoff="none",
        parts=(_IPS, _WEIGHT),
        combine=_normalise,
    ),
    UnitMetric(
        input_kind="rounds",
        name="dm",
        formula="Mean over rounds of the model's mean reward under the target policy",
        source="zr-obp DirectMethod",
        convention="as good as the model, which is given",
        undefined="refused where a round lacks it",
        cutoff="none",
        score=_dm,
    ),
    UnitMetric(
        input_kind="rounds",
        name="dr",
        formula="Mean over rounds of the model's mean reward under the target policy + target / "
        "logged probability times (reward - predicted reward)",
        source="Dudík et al. 2014; zr-obp DoublyRobust",
        convention="the model is given; weights are not clipped",
        undefined=_NOTHING,
        cutoff="none",
        score=_dr,
    ),
    _WEIGHT,
)
"""The rows of these metrics; a round is a unit."""
