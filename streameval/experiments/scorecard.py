"""The scorecard of experiments: differences of arms, with bounds that hold at all looks.

`replay` and the live service judge equal sums by these functions, so they show equal rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from streameval.base.limits import OTHER
from streameval.core.definition import Definition
from streameval.core.experiments.metrics import ExperimentMetric, metrics_of, named_rows, ratio_rows
from streameval.core.experiments.sums import ArmSums
from streameval.core.experiments.users import ArmUsers
from streameval.experiments.judge import Judge
from streameval.experiments.left_out import without_arm
from streameval.stats.cluster_sums import ClusterSums
from streameval.stats.confidence_sequences import FLOOR
from streameval.stats.sample_ratio import split_evidence

Row = dict[str, Any]

_JUDGED: Final = (
    *("value", "control_value", "difference", "relative_difference"),
    *("low", "high", "bounds", "verdict", "users_needed", "withheld"),
)
"""What a row has of `Scored`: an experiment is watched, so it has no bounds for one look."""


def sections(
    definition: Definition, found: Sequence[ArmSums], users: Mapping[str, ArmUsers]
) -> dict[str, list[Row]]:
    """Return the sections `experiments` and `splits` of `replay`'s document.

    `users` are by `Experiment.key`; an experiment without users may be absent.
    """
    judged = [(arms, users.get(arms.experiment.key, ArmUsers())) for arms in found]
    return {
        "experiments": [row for pair in judged for row in scorecard(definition, *pair)],
        "splits": [split(arms, counts) for arms, counts in judged],
    }


class Comparison(NamedTuple):
    """A metric of an arm beside the control's, with the judge of the arm."""

    metric: str
    treatment: ClusterSums
    control: ClusterSums
    judge: Judge


def comparisons(definition: Definition, arms: ArmSums, users: ArmUsers) -> Iterator[Comparison]:
    """Yield a comparison for each metric and treatment: the named metrics come first."""
    experiment = arms.experiment
    metrics = metrics_of(definition)
    judges = judges_of(definition, arms, users)
    for name in dict.fromkeys((*experiment.margins, *metrics)):
        control = ratio_sums(definition, metrics[name], arms, users, experiment.control)
        for judge in judges:
            treatment = ratio_sums(definition, metrics[name], arms, users, judge.arm)
            yield Comparison(name, treatment, control, judge)


def scorecard(definition: Definition, arms: ArmSums, users: ArmUsers) -> Iterator[Row]:
    """Yield a row for each metric and arm beside the control: the named metrics come first."""
    for metric, treatment, control, judge in comparisons(definition, arms, users):
        scored = judge.scored(metric, treatment, control)
        yield {
            "name": arms.experiment.name,
            "metric": metric,
            "role": judge.role(metric),
            "arm": judge.arm,
            "control": arms.experiment.control,
            "users": treatment.users,
            **{name: getattr(scored, name) for name in _JUDGED},
        }


def split(arms: ArmSums, users: ArmUsers) -> Row:
    """Return how users fell into the arms, beside the configured split, and slates without an arm.

    Users who were in several arms are in none of the counts of `users`.
    """
    experiment = arms.experiment
    exactly = dict.fromkeys(experiment.named_arms, 0) | users.exactly
    tested = None if experiment.split is None else split_evidence(exactly, experiment.split)
    return {
        "experiment": experiment.name,
        "users": dict(sorted(exactly.items())),
        "crossed_users": users.crossed,
        "log_evidence": None if tested is None else tested.log_evidence,
        "p_value": None if tested is None else tested.p_value,
        **without_arm(arms),
    }


def judges_of(definition: Definition, arms: ArmSums, users: ArmUsers) -> list[Judge]:
    """Return a judge for each arm that is compared with the control."""
    named = judged_treatments(arms, users)
    return [
        Judge(definition, arms, users, arm, is_named=arm in named) for arm in treatments_of(arms)
    ]


def treatments_of(arms: ArmSums) -> list[str]:
    """Return the arms that are compared with the control.

    These are the arms that the experiment names. If it names none, all arms that have come so far.
    """
    experiment = arms.experiment
    compared = experiment.treatments or arms.sums
    return sorted(arm for arm in compared if arm not in {experiment.control, OTHER})


def judged_treatments(arms: ArmSums, users: ArmUsers) -> list[str]:
    """Return the arms whose named metrics share alpha. Of the others all metrics are exploratory.

    Alpha is shared before the first look, so these are the arms that the experiment names. If it
    names none, alpha is for one arm: the first with enough users to have bounds. Once another arm
    has as many, nobody knows which is meant, and none is judged. Users only become more, so an arm
    does not take the place of another, and arms of few users change nothing.
    """
    treatments = treatments_of(arms)
    if arms.experiment.treatments:
        return treatments
    grown = [arm for arm in treatments if users.of(arm).sum() >= FLOOR]
    return [] if len(grown) > 1 else grown or treatments


def ratio_sums(
    definition: Definition, metric: ExperimentMetric, arms: ArmSums, users: ArmUsers, arm: str
) -> ClusterSums:
    """Return the sums of a metric in one arm; zeros where the arm has none."""
    here = users.of(arm)
    rows = named_rows(definition, arms.sums.get(arm))
    return ClusterSums(*ratio_rows(metric, rows, here), int(here.sum()), metric.unit)
