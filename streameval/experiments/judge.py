"""The judge of an arm: the figure's own bounds, those beside them, and whether there was a ramp.

From the first list of each user come bounds of shares that need no spread, and whether the arms
kept their shares of the users. From the extremes comes whether the arms overlap at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

import numpy as np

from streameval.base.arrays import Ints
from streameval.base.limits import NANO
from streameval.core.definition import Definition
from streameval.core.experiments.definition import Experiment
from streameval.core.experiments.first_lists import first_rows
from streameval.core.experiments.metrics import ExperimentMetric, metrics_of
from streameval.core.experiments.sums import ArmSums
from streameval.core.experiments.users import ArmUsers
from streameval.stats.bounded_means import difference_bounds, means_of
from streameval.stats.cluster_sums import ClusterSums
from streameval.stats.experiments import Rules, Scored, compare_ratios, split_alpha
from streameval.stats.separation import separation
from streameval.stats.steady_shares import steady_from
from streameval.stats.verdicts import EACH, WITHOUT_SPREAD, Beside, join_bounds, withhold


@dataclass
class Judge:
    """Judges the figures of one arm beside the control's, as its experiment shares alpha.

    `is_named`: the arm has a part of alpha; the figures of others are exploratory.
    """

    definition: Definition
    arms: ArmSums
    users: ArmUsers
    arm: str
    is_named: bool

    def role(self, metric: str) -> str:
        """Return the role of a metric: `primary`, `guardrail` or `exploratory`."""
        return role_of(metric, self.arms.experiment) if self.is_named else "exploratory"

    def rules(self, metric: str) -> Rules:
        """Return how the experiment judges a metric of the arm."""
        experiment, known = self.arms.experiment, self._metrics.get(metric)
        treatments, share = max(1, len(experiment.treatments)), experiment.primary_share
        alphas = split_alpha(experiment.alpha, len(experiment.guardrails), treatments, share)
        return Rules(
            alpha=float(getattr(alphas, self.role(metric))),
            planned_users=experiment.planned_users,
            margin=experiment.margins.get(metric, 0.0),
            lower_is_better=known is not None and known.lower_is_better,
            reserved=WITHOUT_SPREAD,
        )

    def scored(
        self, metric: str, treatment: ClusterSums, control: ClusterSums, means: Beside | None = None
    ) -> Scored:
        """Judge a metric, from the sums of the arm and of the control.

        `means` are bounds of a metric that has no first lists, as it is a mean over users.
        """
        rules = self.rules(metric)
        beside = (
            means or self._first_lists.get(metric),
            self._separation(metric, treatment, control),
        )
        found = join_bounds(
            compare_ratios(treatment, control, rules),
            [one for one in beside if one is not None],
            rules,
        )
        return withhold(found, self.ramp)

    @cached_property
    def ramp(self) -> str | None:
        """Why the arm cannot be compared with the control: their shares of the users changed.

        None if they did not.
        """
        control, first = self._control, self.users.first
        pair = np.stack([self._sums_of_first(arm)[:, 0] for arm in (self.arm, control)], axis=1)
        begin = steady_from(pair)
        if not begin:
            return None
        before, after = (part.sum(axis=0) for part in (pair[:begin], pair[begin:]))
        times = [time for time, _ in first.by_time(self.arm, len(self._rows))]
        since = datetime.fromtimestamp(times[begin] / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return (
            f"Of the new users of {self.arm} and {control}, {self.arm} has"
            f" {after[0] / after.sum():.1%} since {since} and had {before[0] / before.sum():.1%}"
            " before, so figures over both times compare different times: begin anew with since:"
            f" {since}."
        )

    @property
    def _control(self) -> str:
        return self.arms.experiment.control

    @cached_property
    def _metrics(self) -> dict[str, ExperimentMetric]:
        return metrics_of(self.definition)

    @cached_property
    def _rows(self) -> tuple[str, ...]:
        return first_rows(self.definition)

    def _sums_of_first(self, arm: str) -> Ints:
        """Return the sums of first lists by time, int64 (buckets, rows)."""
        found = [sums for _, sums in self.users.first.by_time(arm, len(self._rows))]
        return np.array(found, np.int64).reshape(-1, len(self._rows))

    @cached_property
    def _first_lists(self) -> dict[str, Beside]:
        """The bounds of all shares of first lists, by metric: all at once is faster."""
        shares = [one for one in self._metrics.values() if one.is_share]
        above = [self._rows.index(one.name) for one in shares]
        below = [self._rows.index(one.denominator) for one in shares]
        # At each end of a bucket, which is a look: (metrics, looks).
        one, other = (
            means_of(sums[below], sums[above] / NANO)
            for arm in (self.arm, self._control)
            for sums in (self._sums_of_first(arm).cumsum(axis=0).T,)
        )
        if not one.number.size:
            return {}
        alphas = [[self.rules(share.name).alpha * EACH] for share in shares]
        ends = difference_bounds(one, other, alphas).together()
        found = zip(*ends, one.number[:, -1], other.number[:, -1], strict=True)
        return {
            share.name: Beside("first lists", float(low), float(high), (float(users), float(rest)))
            for share, (low, high, users, rest) in zip(shares, found, strict=True)
            if users and rest
        }

    def _separation(
        self, metric: str, treatment: ClusterSums, control: ClusterSums
    ) -> Beside | None:
        """Return bounds where the lists of both arms do not overlap."""
        extremes = self.arms.extremes
        if metric not in self._metrics or not {self.arm, self._control} <= extremes.keys():
            return None
        index = list(self._metrics).index(metric)
        one, other = (extremes[arm][:, index] for arm in (self.arm, self._control))
        # Each cluster has a user at least.
        users = min(int(sums.there.sum()) for sums in (treatment, control))
        alpha = self.rules(metric).alpha * EACH
        found = separation((one[0], one[1]), (other[0], other[1]), users, alpha)
        difference = (treatment.value or 0.0) - (control.value or 0.0)
        # Sums of users may differ the other way, where users have not as many lists.
        if found is None or not found[0] <= difference <= found[1]:
            return None
        return Beside("separation", *found, (treatment.users, control.users))


def role_of(metric: str, experiment: Experiment) -> str:
    """Return the role of a metric: `primary`, `guardrail` or `exploratory`."""
    if metric == experiment.primary:
        return "primary"
    guarded = any(guardrail.metric == metric for guardrail in experiment.guardrails)
    return "guardrail" if guarded else "exploratory"
