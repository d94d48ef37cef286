"""The scorecard of experiments: differences of arms, with bounds that hold at all looks.

`replay` and the live service judge equal sums by these functions, so they show equal rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from streameval.base.limits import OTHER
from streameval.core.definition import Definition
from streameval.core.experiments.definition import Experiment
from streameval.core.experiments.metrics import (
    ExperimentMetric,
    metrics_of,
    named_rows,
    ratio_rows,
)
from streameval.core.experiments.sums import ArmSums
from streameval.core.experiments.users import ArmUsers
from streameval.stats.experiments import Alphas, RatioSums, Rules, compare_ratios, split_alpha
from streameval.stats.sample_ratio import split_evidence

Row = dict[str, Any]


def sections(
    definition: Definition, found: Sequence[ArmSums], users: Mapping[str, ArmUsers]
) -> dict[str, list[Row]]:
    """Return the sections `experiments` and `splits` of `replay`'s document.

    `users` are by `Experiment.key`; an experiment without users may be absent.
    """
    judged = [(arms, users.get(arms.experiment.key, ArmUsers())) for arms in found]
    return {
        "experiments": [row for pair in judged for row in scorecard(definition, *pair)],
        "splits": [split(arms.experiment, counts) for arms, counts in judged],
    }


def scorecard(definition: Definition, arms: ArmSums, users: ArmUsers) -> Iterator[Row]:
    """Yield a row for each metric and arm beside the control: the named metrics come first."""
    experiment = arms.experiment
    metrics = metrics_of(definition)
    margins = {guardrail.metric: guardrail.margin for guardrail in experiment.guardrails}
    named = dict.fromkeys((experiment.primary, *margins))
    treatments = treatments_of(arms)
    alphas = split_alpha(experiment.alpha, len(margins), max(1, len(treatments)))
    for name in named | dict.fromkeys(metrics):
        role = role_of(name, experiment)
        rules = Rules(
            alpha=_alpha(role, alphas),
            planned_users=experiment.planned_users,
            margin=margins.get(name, 0.0),
            lower_is_better=metrics[name].lower_is_better,
        )
        control = ratio_sums(definition, metrics[name], arms, users, experiment.control)
        for arm in treatments:
            treatment = ratio_sums(definition, metrics[name], arms, users, arm)
            yield {
                "name": experiment.name,
                "metric": name,
                "role": role,
                "arm": arm,
                "control": experiment.control,
                "users": treatment.users,
                **_judged(treatment, control, rules),
            }


def split(experiment: Experiment, users: ArmUsers) -> Row:
    """Return how users fell into the arms, beside the configured split.

    Users who were in several arms are in none of the counts of `users`.
    """
    exactly = dict.fromkeys(experiment.named_arms, 0) | users.exactly
    tested = None if experiment.split is None else split_evidence(exactly, experiment.split)
    return {
        "experiment": experiment.name,
        "users": dict(sorted(exactly.items())),
        "crossed_users": users.crossed,
        "log_evidence": None if tested is None else tested.log_evidence,
        "p_value": None if tested is None else tested.p_value,
    }


def treatments_of(arms: ArmSums) -> list[str]:
    """Return the arms that are compared with the control.

    These are the arms of the split, and without one the arms that have come so far.
    """
    experiment = arms.experiment
    compared = arms.sums if experiment.split is None else experiment.split
    return sorted(arm for arm in compared if arm not in {experiment.control, OTHER})


def role_of(metric: str, experiment: Experiment) -> str:
    """Return the role of a metric: `primary`, `guardrail` or `exploratory`."""
    if metric == experiment.primary:
        return "primary"
    guarded = any(guardrail.metric == metric for guardrail in experiment.guardrails)
    return "guardrail" if guarded else "exploratory"


def ratio_sums(
    definition: Definition, metric: ExperimentMetric, arms: ArmSums, users: ArmUsers, arm: str
) -> RatioSums:
    """Return the sums of a metric in one arm; zeros where the arm has none."""
    here = users.of(arm)
    rows = named_rows(definition, arms.sums.get(arm))
    return RatioSums(*ratio_rows(metric, rows, here), int(here.sum()), metric.unit)


def _alpha(role: str, alphas: Alphas) -> float:
    return float(getattr(alphas, role))


def _judged(treatment: RatioSums, control: RatioSums, rules: Rules) -> Row:
    scored = compare_ratios(treatment, control, rules)
    names = ("value", "control_value", "difference", "relative_difference", "low", "high")
    row = {name: getattr(scored, name) for name in names}
    return row | {"verdict": scored.verdict, "users_needed": scored.users_needed}
