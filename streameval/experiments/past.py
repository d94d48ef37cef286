"""The past of users before an experiment, which explains a part of its figures (CUPED).

A past is what users did before any arm treated them. Under random assignment it is then the same in
all arms but for chance. If the arms served the same users before, the effect is in the past as
well, and the adjustment would take it out of the difference. Two things tell: the arms that served
users before, and pasts that differ by more than chance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np

from streameval.base.arrays import Ints
from streameval.base.limits import CLUSTERS
from streameval.core.definition import Definition
from streameval.core.experiments.sums import ArmSums
from streameval.core.experiments.users import ArmUsers
from streameval.experiments.scorecard import Row, comparisons
from streameval.stats.cluster_sums import ClusterSums
from streameval.stats.experiments import Rules, compare_ratios
from streameval.stats.regression_adjustment import Adjusted, compare_adjusted
from streameval.stats.sample_ratio import ALPHA, log_evidence

# Before, an arm may have served any part of the users: 15 of one arm and none of the other tell.
_ANYTHING: Final = 2.0
# The chance of pasts that are called apart by chance alone, over all looks. It costs the adjusted
# figure only, and a smaller one would let more of an effect pass.
_APART: Final = 0.05


@dataclass(frozen=True, slots=True)
class Served:
    """Users with a slate before the experiment, as far as files tell.

    `seen` counts them by their arm now, and `by` by (arm now, arm that served them before). Users
    of several arms are in neither.
    """

    seen: Mapping[str, int] = field(default_factory=dict)
    by: Mapping[tuple[str, str], int] = field(default_factory=dict)

    def refusal(self, treatment: str, control: str) -> str | None:
        """Say which arm had served users of one side more than of the other; None if none had.

        The control may have served anybody: it is what was there before.
        """
        seen = {arm: self.seen.get(arm, 0) for arm in (treatment, control)}
        others = sorted({arm for _, arm in self.by} - {control})
        if not all(seen.values()) or not others:
            return None
        parts = [count / sum(seen.values()) for count in seen.values()]
        for other in others:
            served = {arm: self.by.get((arm, other), 0) for arm in seen}
            evidence = log_evidence(list(served.values()), parts, _ANYTHING)
            if evidence >= math.log(len(others) / ALPHA):
                one, two = (f"{served[arm]:,} of {seen[arm]:,} users of {arm}" for arm in seen)
                return f"{other} served {one} before, and {two}"
        return None


@dataclass(frozen=True, slots=True)
class Past:
    """Counters of users of each arm from before: int64 (1 + kinds, 256), impressions first.

    `users` have a past, of `of` users in all. `served` are the arms that served them.
    """

    by_arm: dict[str, Ints]
    users: int
    of: int
    served: Served = field(default_factory=Served)

    def refusal(self, arms: tuple[str, str], users: tuple[int, int], planned: int) -> str | None:
        """Return a sentence where this is no past of `arms` (treatment, control); else None.

        `users` are the numbers of their users, `planned` those at which bounds are narrowest.
        """
        reason = self.served.refusal(*arms) or self._apart(arms, users, planned)
        if reason is None:
            return None
        return (
            f"{arms[0]} against {arms[1]} is not adjusted by what users did before: {reason}. Users"
            " already treated have no past: take one from before any arm served."
        )

    def _apart(self, arms: tuple[str, str], users: tuple[int, int], planned: int) -> str | None:
        """Say how far the pasts are apart, if chance does not explain it (at all looks)."""
        kinds = next(iter(self.by_arm.values())).shape[0] - 1 if self.by_arm else 0
        rules = Rules(alpha=_APART / max(1, kinds), planned_users=planned)
        for kind in range(1, 1 + kinds):
            one, other = (
                self._sums([kind], arm, count) for arm, count in zip(arms, users, strict=True)
            )
            scored = compare_ratios(one, other, rules)
            if scored.verdict in {"better", "worse"} and scored.difference is not None:
                return (
                    f"the users of {arms[0]} had {100 * scored.difference:+.2f} points of positives"
                    f" per impression against those of {arms[1]} then, which is more than chance"
                )
        return None

    def _sums(self, rows: Sequence[int], arm: str, users: int) -> ClusterSums:
        """Return the positives of some rows and the impressions of an arm's users."""
        past = self.by_arm.get(arm)
        if past is None:
            nothing = np.zeros(CLUSTERS, np.int64)
            return ClusterSums(nothing, nothing, users)
        return ClusterSums(past[list(rows)].sum(axis=0), past[0], users)

    def compared(
        self,
        definition: Definition,
        metric: str,
        arms: tuple[str, str],
        now: tuple[ClusterSums, ClusterSums],
        rules: Rules,
    ) -> Adjusted:
        """Compare a metric of `arms` (treatment, control), adjusted by their users' past.

        The past counts the metric's kind of feedback, or else all kinds together.
        """
        kinds = definition.kinds
        own = [1 + index for index, kind in enumerate(kinds) if f"{{feedback={kind}}}" in metric]
        rows = own or list(range(1, 1 + len(kinds)))
        before = [self._sums(rows, arm, sums.users) for arm, sums in zip(arms, now, strict=True)]
        return compare_adjusted(now, (before[0], before[1]), rules)


def adjusted_rows(
    definition: Definition, arms: ArmSums, users: ArmUsers, past: Past
) -> tuple[list[Row], list[str]]:
    """Return the adjusted comparison of each named metric and judged arm, as `compare` has it.

    Figures that the past does not explain have no row, and neither have arms with a ramp. Arms that
    have no past have no row either, and a sentence with the reason.
    """
    rows, control = [], arms.experiment.control
    refused: dict[str, str | None] = {}
    for metric, *now, judge in comparisons(definition, arms, users):
        if judge.role(metric) == "exploratory" or judge.ramp is not None:
            continue
        pair, rules = (judge.arm, control), judge.rules(metric)
        if judge.arm not in refused:
            counts = int(users.of(judge.arm).sum()), int(users.of(control).sum())
            refused[judge.arm] = past.refusal(pair, counts, rules.planned_users)
        found = past.compared(definition, metric, pair, (now[0], now[1]), rules)
        if refused[judge.arm] is None and found.theta is not None:
            rows.append({"metric": metric, "arm": judge.arm, **adjusted_document(found)})
    return rows, [reason for reason in refused.values() if reason is not None]


def adjusted_document(found: Adjusted) -> dict[str, Any]:
    """Return an adjusted comparison as JSON has it."""
    return {**asdict(found.scored), "theta": found.theta, "users_saved": found.users_saved}
