"""Comparisons as they are asked for: which arms or models, by which metrics, and the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeAlias, get_args

from streameval.base.errors import InputError
from streameval.base.instants import instant
from streameval.core.definition import Definition
from streameval.core.experiments.definition import CrossedUsers, Experiment, Guardrail
from streameval.core.metrics.inputs import Table
from streameval.evaluation.answer import Note, with_notes
from streameval.evaluation.arm_comparison import (
    all_metrics,
    compare_arms,
    left_out_notes,
    named_metrics,
    past_notes,
    read_past,
    withheld_notes,
)
from streameval.evaluation.arms import (
    Arms,
    over_expected_kind,
    rate_kind,
    read_arms,
    require_metrics,
)
from streameval.evaluation.batches import Advance
from streameval.evaluation.compared import Compared
from streameval.evaluation.paired import Models, compare_models
from streameval.evaluation.request import FILES, LABELS, PREDICTIONS, QRELS, RATINGS, RUN, Given
from streameval.experiments.scorecard import treatments_of
from streameval.experiments.words import cap_remark, uncapped_metrics
from streameval.files.locations import require_name
from streameval.stats.experiments import Rules

# The smallest and largest chance of a false alarm that anybody may want.
_ALPHAS: Final = (1e-9, 0.5)

Progress: TypeAlias = Callable[[Sequence[str]], AbstractContextManager[Advance]]
"""Shows how far the reading of files has come."""

_OF_ARMS: Final = (
    *("by", "against", "experiment"),
    *("primary", "guardrails", "since", "until", "before", "crossed_users"),
)
MODELS: Final = ((FILES, LABELS), (RUN, QRELS), (PREDICTIONS, RATINGS))
"""The forms of models: the table of each one's own files, and the table of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The sides of a comparison: arms of outcome files, or models where `tables` has one of theirs.

    `experiment` names one of the configuration, in place of the other fields of arms.
    """

    files: Sequence[str] = ()
    by: str | None = None
    against: str | None = None
    primary: str | None = None
    guardrails: Sequence[str] = ()
    metrics: Sequence[str] = ()
    since: str | None = None
    until: str | None = None
    before: Path | None = None
    crossed_users: CrossedUsers | None = None
    experiment: str | None = None
    tables: dict[Table, Sequence[str]] = field(default_factory=dict)
    alpha: float = 0.05
    planned_users: int = 10_000
    strict: bool = False

    def of_arms(self) -> list[str]:
        """List the options given that belong to arms."""
        return [f"--{name.replace('_', '-')}" for name in _OF_ARMS if getattr(self, name)]


def comparison_of(
    wanted: Wanted, definition: Callable[[], Definition], progress: Progress
) -> tuple[list[Compared], list[Note]]:
    """Compare the arms or the models. `definition` reads the configuration. Raises `InputError`."""
    require_alpha(wanted.alpha)
    if any(wanted.tables.values()):
        if given := wanted.of_arms():
            raise InputError(f"{given[0]}: belongs to arms of outcome files, and not to models")
        models = _models(wanted, definition)
        rules = Rules(alpha=wanted.alpha, planned_users=wanted.planned_users)
        with progress(models.all_files()) as advance:
            return compare_models(models, wanted.metrics, rules, advance)
    known = definition()
    return _compared_arms(wanted, known, _experiment(wanted, known), progress)


def document(rows: Sequence[Compared], notes: Sequence[Note]) -> dict[str, Any]:
    """Return the document that `--json` prints."""
    return with_notes({"experiments": [row.document() for row in rows]}, notes)


def require_alpha(alpha: float) -> None:
    """Raise `InputError` for a chance of a false alarm that nobody may want."""
    if not _ALPHAS[0] <= alpha <= _ALPHAS[1]:
        raise InputError(f"--alpha {alpha:g}: give a chance of a false alarm, such as 0.05")


# ------------------------------------------------------------------------------------------- arms


def _experiment(wanted: Wanted, definition: Definition) -> Experiment:
    """Return the experiment of the configuration, or the one that the options describe."""
    if wanted.experiment is None:
        return replace(
            experiment_of(wanted), alpha=wanted.alpha, planned_users=wanted.planned_users
        )
    allowed = {"--experiment", "--before"}
    if others := [option for option in wanted.of_arms() if option not in allowed]:
        raise InputError(f"{others[0]}: the experiment {wanted.experiment} defines this already")
    return _find_experiment(definition, wanted.experiment)


def experiment_of(wanted: Wanted) -> Experiment:
    """Make the experiment that the options describe. Raises `InputError`."""
    if wanted.by is None or wanted.against is None:
        raise InputError(
            "give --by and --against, the column and the value of the control (--by variant"
            " --against A); or two models, with --labels, --run and --qrels, or --predictions"
        )
    crossed = wanted.crossed_users or "keep"
    if crossed not in get_args(CrossedUsers):
        raise InputError(f"--crossed-users {crossed}: write keep or leave_out")
    since, until = wanted.since, wanted.until
    begin = None if since is None else instant(since, "--since")
    end = None if until is None else instant(until, "--until")
    if begin is not None and end is not None and end <= begin:
        raise InputError(f"--until {until}: give a time after --since {since}")
    return Experiment(
        name=wanted.by,
        arm=wanted.by,
        control=wanted.against,
        primary=wanted.primary or "",
        guardrails=tuple(map(Guardrail, dict.fromkeys(wanted.guardrails))),
        since=begin,
        until=end,
        crossed_users=crossed,
    )


def _find_experiment(definition: Definition, name: str) -> Experiment:
    known = {experiment.name: experiment for experiment in definition.experiments}
    if name not in known:
        there = f"it has {', '.join(known)}" if known else "it has none"
        raise InputError(f"--experiment {name}: the configuration has no such experiment; {there}")
    return known[name]


def metrics_beside(
    definition: Definition, experiment: Experiment, names: Sequence[str]
) -> list[str]:
    """Return the metrics beside those that the experiment names. Raises `InputError`."""
    named = named_metrics(experiment)
    require_metrics([*named, *names], definition)
    return list(names) if names or named else all_metrics(definition)


def read(
    files: Sequence[str],
    definition: Definition,
    experiment: Experiment,
    metrics: Sequence[str],
    progress: Progress,
    *,
    column: str | None,
) -> Arms:
    """Sum up outcome files by the arm that `column` holds, for these metrics.

    Raises `InputError`.
    """
    if not files:
        raise InputError("no files: give outcome files, or their folder or URI")
    for file in files:
        require_name(file)
    with progress(files) as advance:
        return read_arms(
            files,
            definition,
            experiment,
            advance,
            with_rates=any(rate_kind(name, definition) is not None for name in metrics),
            with_ranks=any(over_expected_kind(name, definition) is not None for name in metrics),
            column=column,
        )


def _compared_arms(
    wanted: Wanted, definition: Definition, experiment: Experiment, progress: Progress
) -> tuple[list[Compared], list[Note]]:
    metrics = metrics_beside(definition, experiment, wanted.metrics)
    chosen = [*named_metrics(experiment), *metrics]
    arms = read(wanted.files, definition, experiment, chosen, progress, column=experiment.arm)
    if wanted.experiment is None:
        # The files are chosen before the look, so their arms are.
        arms.sums.experiment = replace(experiment, arms=tuple(treatments_of(arms.sums)))
    past = None if wanted.before is None else read_past(wanted.before, arms, wanted.files)
    rows = compare_arms(arms, metrics, past)
    if without_cap := uncapped_metrics(dict.fromkeys(chosen), definition):
        arms.notes.append(Note("uncapped", without_cap, cap_remark(without_cap)))
    return rows, [
        *arms.notes,
        *withheld_notes(rows),
        *left_out_notes(arms),
        *(() if past is None else past_notes(arms, past)),
    ]


# ----------------------------------------------------------------------------------------- models


def _models(wanted: Wanted, definition: Callable[[], Definition]) -> Models:
    """Sort the files by model, and those for all models apart. Raises `InputError`."""
    tables = {FILES: wanted.files, **wanted.tables}
    present = [(own, common) for own, common in MODELS if tables.get(own) or tables.get(common)]
    if len(present) != 1:
        raise InputError(
            "give the models in one form: two files with --labels, two --run with --qrels, or two"
            " --predictions with --ratings"
        )
    ((own, companion),) = present
    files, common = tables.get(own, ()), tables.get(companion, ())
    what = "files of slates" if own == FILES else own.option
    if len(files) < 2:
        raise InputError(f"{what}: give at least two; the first one is the control")
    if not common:
        raise InputError(f"{what}: needs {companion.described}")
    if len(set(files)) < len(files):
        raise InputError(f"{what}: one file is given twice, so there is nothing to compare")
    for file in (*files, *common):
        require_name(file)
    given = Given(definition=definition, tables={companion: list(common)}, strict=wanted.strict)
    return Models(given, own, files)
