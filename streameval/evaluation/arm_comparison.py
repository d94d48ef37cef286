"""Arms of an experiment compared offline, metric by metric, with and without their users' past."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.parquet

from streameval.base.arrays import Ints
from streameval.base.errors import InputError
from streameval.base.limits import CLUSTERS
from streameval.core.definition import Definition
from streameval.core.experiments.definition import Experiment
from streameval.core.experiments.metrics import metrics_of
from streameval.core.windows.cells import cluster_of
from streameval.evaluation.answer import Note, counted
from streameval.evaluation.arms import Arms
from streameval.evaluation.compared import Compared, require_arms
from streameval.experiments.scorecard import role_of, treatments_of
from streameval.files.snapshots import manifest_of
from streameval.stats.experiments import RatioSums, Rules, compare_ratios, split_alpha
from streameval.stats.regression_adjustment import Adjusted, compare_adjusted

# Users of a snapshot in one go.
_ROWS: Final = 16_384


def all_metrics(definition: Definition) -> list[str]:
    """Return every metric that arms can be compared by offline, the rates of users first."""
    rates = [f"positive_rate{{feedback={kind}}}" for kind in definition.kinds]
    return [*rates, *metrics_of(definition)]


def named_metrics(experiment: Experiment) -> list[str]:
    """Return the metrics that an experiment names, the primary one first."""
    named = [experiment.primary] if experiment.primary else []
    return [*named, *(guardrail.metric for guardrail in experiment.guardrails)]


@dataclass(frozen=True, slots=True)
class Past:
    """What the users of each arm did before: int64 (1 + kinds, 256), impressions, then positives.

    `users` have a past, of `of` users in all.
    """

    by_arm: dict[str, Ints]
    users: int
    of: int

    def note(self) -> Note:
        """Return how many users have a past."""
        text = f"{self.users:,} of {counted(self.of, 'user')} have a past in the snapshot."
        return Note("users_with_past", self.users, text)

    def ratio(self, arm: str, kind: int | None, users: int) -> RatioSums:
        """Return positives of a kind (None: of all) and impressions before, by cluster."""
        impressions, *positives = self.by_arm[arm]
        chosen = positives if kind is None else [positives[kind]]
        return RatioSums(np.sum(chosen, axis=0), impressions, users)


def read_past(folder: Path, arms: Arms) -> Past:
    """Read the counters of the arms' users from a snapshot that was taken before the experiment.

    Raises `InputError` for a snapshot that counts events of the experiment, and for one without
    any of the users.
    """
    manifest_of(folder)
    kinds = {kind: 1 + index for index, kind in enumerate(arms.definition.kinds)}
    key, found = arms.experiment.key, 0
    by_arm = {arm: np.zeros((1 + len(kinds), CLUSTERS), np.int64) for arm in arms.sums.sums}
    begin = arms.experiment.since
    if begin is None:
        begin = arms.sums.earliest
    for user, impressions, positives, last in _counters(folder):
        if begin is not None and last >= begin:
            raise InputError(
                f"--before {folder}: has events of the experiment's own time: give a snapshot that"
                " was taken before it, or begin later with --since"
            )
        members = arms.user_arms.of(key, user)
        found += bool(members)
        cluster = cluster_of(user)
        for arm in members:
            sums = by_arm[arm]
            sums[0, cluster] += impressions
            for kind, count in positives:
                if kind in kinds:
                    sums[kinds[kind], cluster] += count
    users = arms.user_arms.count(key)
    if not found:
        raise InputError(
            f"--before {folder}: knows none of the {counted(users, 'user')} of the arms: is one of"
            " the two pseudonymous?"
        )
    return Past(by_arm, found, users)


def _counters(folder: Path) -> Iterator[tuple[str, int, Any, int]]:
    columns = ["user", "impressions", "positives", "last_ts"]
    with pyarrow.parquet.ParquetFile(folder / "users.parquet") as file:
        for batch in file.iter_batches(_ROWS, columns=columns):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def compare_arms(arms: Arms, metrics: Sequence[str], past: Past | None) -> list[Compared]:
    """Compare each arm with the control: the named metrics, then `metrics`.

    The named ones share alpha as the live scorecard shares it. Raises `InputError` for a control
    that is not there, without another arm, and where arms have fewer than two users.
    """
    experiment = arms.experiment
    control = experiment.control
    require_arms(sorted(arms.sums.sums), experiment.arm, control)
    treatments = treatments_of(arms.sums)
    _require_users(arms, treatments)
    named = named_metrics(experiment)
    margins = {guardrail.metric: guardrail.margin for guardrail in experiment.guardrails}
    alphas = split_alpha(experiment.alpha, len(margins), len(treatments))
    rows = []
    for metric in dict.fromkeys((*named, *metrics)):
        role = role_of(metric, experiment)
        rules = Rules(
            alpha=float(getattr(alphas, role)),
            planned_users=experiment.planned_users,
            margin=margins.get(metric, 0.0),
            lower_is_better=arms.lower_is_better(metric),
        )
        base = arms.ratio(metric, control)
        for arm in treatments:
            sums = arms.ratio(metric, arm)
            rows.append(
                Compared(
                    name=experiment.name,
                    metric=metric,
                    role=role,
                    arm=arm,
                    control=control,
                    users=sums.users,
                    scored=compare_ratios(sums, base, rules),
                    adjusted=None if past is None else _adjusted(arms, metric, arm, past, rules),
                )
            )
    return rows


def _adjusted(arms: Arms, metric: str, arm: str, past: Past, rules: Rules) -> Adjusted:
    """Compare by the past: of the metric's kind of feedback, or else of all kinds together."""
    kinds = arms.definition.kinds
    kind = next((i for i, one in enumerate(kinds) if f"{{feedback={one}}}" in metric), None)
    now = [arms.ratio(metric, one) for one in (arm, arms.experiment.control)]
    before = [
        past.ratio(one, kind, sums.users)
        for one, sums in zip((arm, arms.experiment.control), now, strict=True)
    ]
    return compare_adjusted((now[0], now[1]), (before[0], before[1]), rules)


def _require_users(arms: Arms, treatments: Sequence[str]) -> None:
    for names in ([arms.experiment.control], treatments):
        users = {name: int(arms.users.of(name).sum()) for name in names}
        if max(users.values(), default=0) < 2:
            there = ", ".join(f"{name!r} has {counted(n, 'user')}" for name, n in users.items())
            raise InputError(f"{there}: a difference with bounds needs two users in each arm")
