"""Arms of an experiment compared offline, metric by metric, with and without their users' past."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from streameval.base.counts import count_of
from streameval.base.errors import InputError
from streameval.core.definition import Definition
from streameval.core.experiments.definition import Experiment
from streameval.core.experiments.metrics import metrics_of
from streameval.core.windows.tables import cluster_of
from streameval.evaluation.answer import Note
from streameval.evaluation.arms import Arms, offline_metrics, overlaps, rate_kind
from streameval.evaluation.compared import Compared, require_arms
from streameval.evaluation.readers.outcomes import files_of, record_batches
from streameval.experiments.left_out import without_arm, without_arm_sentence, without_arm_warning
from streameval.experiments.past import Past, Served
from streameval.experiments.scorecard import judges_of, treatments_of
from streameval.files.snapshots import manifest_of
from streameval.files.users_past import (
    OPEN_FILE,
    SERVED_MS,
    last_event,
    past_of,
    rows_before,
    served_before,
    slates_before,
)
from streameval.stats.verdicts import users_means


def all_metrics(definition: Definition) -> list[str]:
    """Return every metric that arms can be compared by offline, the rates of users first."""
    return [*offline_metrics(definition), *metrics_of(definition)]


def named_metrics(experiment: Experiment) -> list[str]:
    """Return the metrics that an experiment names, the primary one first."""
    return [metric for metric in experiment.margins if metric]


def read_past(folder: Path, arms: Arms, paths: Sequence[str] = ()) -> Past:
    """Read the counters of the arms' users from a snapshot that was taken before the experiment.

    The outcome files in `paths` tell which arms served these users the day before. Raises
    `InputError` for a snapshot that counts events of the experiment, and for one without any of the
    users.
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
    users = arms.user_arms.count(key) - len(arms.left_out)
    past = past_of(
        folder,
        arms.definition.kinds,
        arms.sums.sums,
        lambda user: (cluster_of(user), arms.arms_of(user)),
        users,
        served=_arms_before(folder, paths, arms, begin),
    )
    if not past.users:
        raise InputError(
            f"--before {folder}: knows none of the {count_of(users, 'user')} of the arms: is one of"
            " the two pseudonymous?"
        )
    return past


def _arms_before(folder: Path, paths: Sequence[str], arms: Arms, begin: int | None) -> Served:
    """Find which arms served the users before the experiment, which begins at `begin` (ms)."""
    if begin is None:
        return Served()
    column = arms.experiment.arm
    earlier = replace(arms.experiment, since=begin - SERVED_MS, until=begin)
    files = [file for file in files_of(paths) if overlaps(file, earlier)] if paths else []
    rows = rows_before([str(folder / OPEN_FILE)], column, begin)
    others = (
        row
        for batch in record_batches(files, ["user", column, "time"], lambda _: None)
        for row in slates_before(batch, column, begin)
    )
    return served_before(chain(rows, others), arms.arms_of)


def past_notes(arms: Arms, past: Past) -> list[Note]:
    """Return how many users have a past, and why some arms are not adjusted by it."""
    text = f"{past.users:,} of {count_of(past.of, 'user')} have a past in the snapshot."
    refused = list(_arms_without_past(arms, past).values())
    return [
        Note("users_with_past", past.users, text),
        *([Note("not_adjusted", refused, " ".join(refused))] if refused else []),
    ]


def _arms_without_past(arms: Arms, past: Past) -> dict[str, str]:
    """Return the arms that have no past, with the reason."""
    control, planned = arms.experiment.control, arms.experiment.planned_users
    users = {arm: int(arms.users.of(arm).sum()) for arm in (control, *treatments_of(arms.sums))}
    found = {
        arm: past.refusal((arm, control), (users[arm], users[control]), planned)
        for arm in treatments_of(arms.sums)
    }
    return {arm: reason for arm, reason in found.items() if reason is not None}


def withheld_notes(rows: Sequence[Compared]) -> list[Note]:
    """Return why the figures of some arms have no bounds."""
    reasons = list(dict.fromkeys(row.scored.withheld for row in rows if row.scored.withheld))
    return [Note("withheld", reasons, " ".join(reasons))] if reasons else []


def left_out_notes(arms: Arms) -> list[Note]:
    """Return notes on slates without an arm, and on users of several arms."""
    notes = []
    found, field = without_arm(arms.sums), arms.experiment.arm
    if found["without_arm"]:
        text = without_arm_warning(found, field) or without_arm_sentence(found, field) or ""
        notes.append(Note("without_arm", found, text))
    crossed = len(arms.user_arms.crossed(arms.experiment.key))
    if crossed:
        of = count_of(arms.user_arms.count(arms.experiment.key), "user")
        text = f"{crossed:,} of {of} have been in several arms: " + (
            "the figures leave them out."
            if arms.left_out
            else "they count in each. --crossed-users leave_out leaves them out."
        )
        value = {"users": crossed, "left_out": bool(arms.left_out)}
        notes.append(Note("crossed_users", value, text))
    return notes


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
    refused = {} if past is None else _arms_without_past(arms, past)
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
                    if past is None or judge.arm in refused or judge.ramp is not None
                    else past.compared(arms.definition, metric, (judge.arm, control), now, rules),
                )
            )
    return rows


def _require_users(arms: Arms, treatments: Sequence[str]) -> None:
    for names in ([arms.experiment.control], treatments):
        users = {name: int(arms.users.of(name).sum()) for name in names}
        if max(users.values(), default=0) < 2:
            there = ", ".join(f"{name!r} has {count_of(n, 'user')}" for name, n in users.items())
            raise InputError(f"{there}: a difference with bounds needs two users in each arm")
