"""Arms of an experiment compared offline, metric by metric, with and without their users' past."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from streameval.base.errors import InputError
from streameval.core.definition import Definition
from streameval.core.experiments.definition import Experiment
from streameval.core.experiments.metrics import metrics_of
from streameval.core.windows.cells import cluster_of
from streameval.evaluation.answer import Note, counted
from streameval.evaluation.arms import Arms, offline_metrics, rate_kind
from streameval.evaluation.compared import Compared, require_arms
from streameval.experiments.past import Past
from streameval.experiments.scorecard import judges_of
from streameval.files.snapshots import manifest_of
from streameval.files.users_past import last_event, past_of
from streameval.stats.verdicts import users_means


def all_metrics(definition: Definition) -> list[str]:
    """Return every metric that arms can be compared by offline, the rates of users first."""
    return [*offline_metrics(definition), *metrics_of(definition)]


def named_metrics(experiment: Experiment) -> list[str]:
    """Return the metrics that an experiment names, the primary one first."""
    return [metric for metric in experiment.margins if metric]


def read_past(folder: Path, arms: Arms) -> Past:
    """Read the counters of the arms' users from a snapshot that was taken before the experiment.

    Raises `InputError` for a snapshot that counts events of the experiment, and for one without
    any of the users.
    """
    manifest_of(folder)
    key, begin = arms.experiment.key, arms.experiment.since
    if begin is None:
        begin = arms.sums.earliest
    last = last_event(folder)
    if begin is not None and last is not None and last >= begin:
        raise InputError(
            f"--before {folder}: has events of the experiment's own time: give a snapshot that"
            " was taken before it, or begin later with --since"
        )
    users = arms.user_arms.count(key)
    past = past_of(
        folder,
        arms.definition.kinds,
        arms.sums.sums,
        lambda user: (cluster_of(user), arms.user_arms.of(key, user)),
        users,
    )
    if not past.users:
        raise InputError(
            f"--before {folder}: knows none of the {counted(users, 'user')} of the arms: is one of"
            " the two pseudonymous?"
        )
    return past


def past_note(past: Past) -> Note:
    """Return how many users have a past."""
    text = f"{past.users:,} of {counted(past.of, 'user')} have a past in the snapshot."
    return Note("users_with_past", past.users, text)


def compare_arms(arms: Arms, metrics: Sequence[str], past: Past | None) -> list[Compared]:
    """Compare each arm with the control: the named metrics, then `metrics`.

    The named ones share alpha as the live scorecard shares it. Raises `InputError` for a control
    that is not there, without another arm, and where arms have fewer than two users.
    """
    experiment = arms.experiment
    control = experiment.control
    require_arms(sorted(arms.sums.sums), experiment.arm, control)
    judges = judges_of(arms.definition, arms.sums, arms.users)
    _require_users(arms, [judge.arm for judge in judges])
    rows = []
    for metric in dict.fromkeys((*named_metrics(experiment), *metrics)):
        for judge in judges:
            now = arms.ratio(metric, judge.arm), arms.control(metric, judge.arm)
            rules = judge.rules(metric)
            is_rate = rate_kind(metric, arms.definition) is not None
            means = users_means(*now, rules) if is_rate else None
            rows.append(
                Compared(
                    name=experiment.name,
                    metric=metric,
                    role=judge.role(metric),
                    arm=judge.arm,
                    control=control,
                    users=now[0].users,
                    scored=judge.scored(metric, *now, means),
                    adjusted=None
                    if past is None or judge.ramp is not None
                    else past.compared(arms.definition, metric, (judge.arm, control), now, rules),
                )
            )
    return rows


def _require_users(arms: Arms, treatments: Sequence[str]) -> None:
    for names in ([arms.experiment.control], treatments):
        users = {name: int(arms.users.of(name).sum()) for name in names}
        if max(users.values(), default=0) < 2:
            there = ", ".join(f"{name!r} has {counted(n, 'user')}" for name, n in users.items())
            raise InputError(f"{there}: a difference with bounds needs two users in each arm")
