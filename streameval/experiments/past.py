"""The past of users before an experiment, which explains a part of its figures (CUPED)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from streameval.base.arrays import Ints
from streameval.base.limits import CLUSTERS
from streameval.core.definition import Definition
from streameval.core.experiments.sums import ArmSums
from streameval.core.experiments.users import ArmUsers
from streameval.experiments.scorecard import Row, comparisons
from streameval.stats.experiments import RatioSums, Rules
from streameval.stats.regression_adjustment import Adjusted, compare_adjusted


@dataclass(frozen=True, slots=True)
class Past:
    """Counters of users of each arm from before: int64 (1 + kinds, 256), impressions first.

    `users` have a past, of `of` users in all.
    """

    by_arm: dict[str, Ints]
    users: int
    of: int

    def compared(
        self,
        definition: Definition,
        metric: str,
        arms: tuple[str, str],
        now: tuple[RatioSums, RatioSums],
        rules: Rules,
    ) -> Adjusted:
        """Compare a metric of `arms` (treatment, control), adjusted by their users' past.

        The past counts the metric's kind of feedback, or else all kinds together.
        """
        kinds = definition.kinds
        own = [1 + index for index, kind in enumerate(kinds) if f"{{feedback={kind}}}" in metric]
        rows = own or list(range(1, 1 + len(kinds)))
        nothing = np.zeros((1 + len(kinds), CLUSTERS), np.int64)
        before = []
        for arm, sums in zip(arms, now, strict=True):
            past = self.by_arm.get(arm, nothing)
            before.append(RatioSums(past[rows].sum(axis=0), past[0], sums.users))
        return compare_adjusted(now, (before[0], before[1]), rules)


def adjusted_rows(
    definition: Definition, arms: ArmSums, users: ArmUsers, past: Past
) -> Iterator[Row]:
    """Yield the adjusted comparison of each named metric and judged arm, as `compare` has it.

    Figures that the past does not explain have no row, and neither have arms with a ramp.
    """
    for metric, treatment, control, judge in comparisons(definition, arms, users):
        if judge.role(metric) == "exploratory" or judge.ramp is not None:
            continue
        pair = (judge.arm, arms.experiment.control)
        found = past.compared(definition, metric, pair, (treatment, control), judge.rules(metric))
        if found.theta is not None:
            yield {"metric": metric, "arm": judge.arm, **adjusted_document(found)}


def adjusted_document(found: Adjusted) -> dict[str, Any]:
    """Return an adjusted comparison as JSON has it."""
    return {**asdict(found.scored), "theta": found.theta, "users_saved": found.users_saved}
