"""`streameval compare` and `plan`: arms of outcome files, and models on the same users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from streameval.base.errors import InputError
from streameval.cli.common import Config, Json, instant, print_json, settings_of

if TYPE_CHECKING:
    from streameval.core.definition import Definition
    from streameval.core.experiments.definition import Experiment
    from streameval.evaluation.answer import Note
    from streameval.evaluation.arms import Arms
    from streameval.evaluation.compared import Compared
    from streameval.evaluation.paired import Models

EPILOG: Final = (
    "Examples: streameval compare outcomes/ --by variant --against A --primary ndcg@10"
    " · streameval compare --run a.txt --run b.txt --qrels qrels.txt"
)
PLAN_EPILOG: Final = "Example: streameval plan outcomes/ --metrics ndcg@10 --lift 0.02"
# The smallest and largest chance of a false alarm that anybody may want.
_ALPHAS: Final = (1e-9, 0.5)
_ARMS, _MODELS = "Arms of outcome files", "Models on the same users"

Metrics = Annotated[
    str,
    typer.Option(
        metavar="LIST", help="Such as ndcg@10,positive_rate. Default: those that fit the files."
    ),
]
Since = Annotated[
    str | None,
    typer.Option(
        metavar="TIME", help="Slates from this time on (RFC 3339, or ms).", rich_help_panel=_ARMS
    ),
]
Until = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Slates before this time.", rich_help_panel=_ARMS),
]
Alpha = Annotated[float, typer.Option(help="The chance of a false alarm, over all looks together.")]
By = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN", help="The column that holds the arm: variant.", rich_help_panel=_ARMS
    ),
]
Against = Annotated[
    str | None, typer.Option(metavar="VALUE", help="The control.", rich_help_panel=_ARMS)
]
Experiment_ = Annotated[
    str | None,
    typer.Option(
        "--experiment",
        metavar="NAME",
        help="An experiment of the configuration, in place of all the others here.",
        rich_help_panel=_ARMS,
    ),
]
Primary = Annotated[
    str | None,
    typer.Option(
        metavar="METRIC", help="The metric that decides: half of alpha.", rich_help_panel=_ARMS
    ),
]
Guardrails = Annotated[
    str,
    typer.Option(
        metavar="LIST",
        help="Metrics that must not fall: the other half of alpha.",
        rich_help_panel=_ARMS,
    ),
]
Before = Annotated[
    Path | None,
    typer.Option(
        metavar="SNAPSHOT",
        help="A snapshot from before: takes out what its counters explain (CUPED).",
        rich_help_panel=_ARMS,
    ),
]
Labels = Annotated[
    list[str] | None,
    typer.Option(help="Relevant items of lists: list, item, gain.", rich_help_panel=_MODELS),
]
Runs = Annotated[
    list[str] | None,
    typer.Option(help="A TREC run, once for each model; with --qrels.", rich_help_panel=_MODELS),
]
Qrels = Annotated[
    str | None, typer.Option(help="TREC's relevance judgements.", rich_help_panel=_MODELS)
]
Ratings = Annotated[
    list[str] | None,
    typer.Option(help="Ratings, for models that predict them.", rich_help_panel=_MODELS),
]
Predictions = Annotated[
    list[str] | None,
    typer.Option(help="Predictions, once for each model.", rich_help_panel=_MODELS),
]


def compare(  # noqa: PLR0917  # typer passes them by name
    files: Annotated[
        list[str] | None,
        typer.Argument(help="Outcome files, their folder or URI; or slates, with --labels."),
    ] = None,
    by: By = None,
    against: Against = None,
    primary: Primary = None,
    guardrails: Guardrails = "",
    metrics: Metrics = "",
    since: Since = None,
    until: Until = None,
    before: Before = None,
    experiment: Experiment_ = None,
    labels: Labels = None,
    run: Runs = None,
    qrels: Qrels = None,
    ratings: Ratings = None,
    predictions: Predictions = None,
    alpha: Alpha = 0.05,
    planned_users: Annotated[
        int, typer.Option(min=2, help="Users at which bounds for all looks are narrowest.")
    ] = 10_000,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Compare two arms, or two models on the same users: differences, bounds, and what they say.

    Arms are values of a column of outcome files. Of several models, the first one is the control.
    """
    _require_alpha(alpha)
    of_arms = {
        "--by": by,
        "--against": against,
        "--experiment": experiment,
        "--primary": primary,
        "--guardrails": guardrails,
        "--since": since,
        "--until": until,
        "--before": before,
    }
    given = [option for option, value in of_arms.items() if value]
    paired = {"labels": labels, "runs": run, "qrels": qrels and [qrels]}
    paired |= {"ratings": ratings, "predictions": predictions}
    if any(paired.values()):
        if given:
            raise InputError(f"{given[0]}: belongs to arms of outcome files, and not to models")
        models = _models(config, files or (), {name: value or () for name, value in paired.items()})
        _compare_models(models, _names(metrics), alpha, planned_users, as_json=as_json)
        return
    definition = settings_of(config).definition()
    if experiment is not None:
        if others := [option for option in given if option not in {"--experiment", "--before"}]:
            raise InputError(f"{others[0]}: the experiment {experiment} says it already")
        chosen = _configured(definition, experiment)
    else:
        chosen = _experiment(by, against, primary, _names(guardrails), (since, until))
        chosen = replace(chosen, alpha=alpha, planned_users=planned_users)
    _compare_arms(files or (), definition, chosen, _names(metrics), before, as_json=as_json)


def plan(  # noqa: PLR0917  # typer passes them by name
    files: Annotated[list[str], typer.Argument(help="Outcome files, their folder or URI.")],
    metrics: Metrics = "",
    lift: Annotated[
        float, typer.Option(help="The relative difference to be shown: 0.01 is 1 %.")
    ] = 0.01,
    power: Annotated[float, typer.Option(help="The chance that it is shown.")] = 0.8,
    share: Annotated[float, typer.Option(help="The new arm's share of the users.")] = 0.5,
    since: Since = None,
    until: Until = None,
    alpha: Alpha = 0.05,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Say how many users an experiment needs, by the variance of outcome files.

    For one look that is planned beforehand, and for looking at all times; and the smallest
    difference that as many users as there are now would show.
    """
    from streameval.evaluation.plans import Wanted, few_users
    from streameval.evaluation.plans import plan as planned
    from streameval.evaluation.report.terminal import print_plan

    _require_alpha(alpha)
    for option, value in (("--power", power), ("--share", share)):
        if not 0 < value < 1:
            raise InputError(f"{option} {value:g}: give a share between 0 and 1")
    if not 0 < lift < 100:
        raise InputError(f"--lift {lift:g}: give a relative difference above 0, such as 0.01")
    definition = settings_of(config).definition()
    everybody = _experiment("everybody", "everybody", None, (), (since, until))
    names = _require_metrics(definition, everybody, _names(metrics))
    arms = _read(files, definition, everybody, names, column=None)
    wanted = Wanted(lift, alpha, power, share)
    rows, notes = planned(arms, names, wanted), [*arms.notes, *few_users(arms)]
    if as_json:
        _print({"plan": [row.document(wanted) for row in rows]}, notes)
    else:
        print_plan(rows, wanted, notes)


def _require_alpha(alpha: float) -> None:
    if not _ALPHAS[0] <= alpha <= _ALPHAS[1]:
        raise InputError(f"--alpha {alpha:g}: give a chance of a false alarm, such as 0.05")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _print(document: dict[str, Any], notes: Sequence[Note]) -> None:
    if notes:
        document["notes"] = {note.key: note.value for note in notes}
    print_json(document)


def _print_rows(rows: Sequence[Compared], notes: Sequence[Note], *, as_json: bool) -> None:
    if as_json:
        _print({"experiments": [row.document() for row in rows]}, notes)
        return
    from streameval.evaluation.report.terminal import print_comparison

    print_comparison(rows, notes)


# ------------------------------------------------------------------------------------------- arms


def _experiment(
    by: str | None,
    against: str | None,
    primary: str | None,
    guardrails: Sequence[str],
    span: tuple[str | None, str | None],
) -> Experiment:
    """Make the experiment that the options describe. Raises `InputError`."""
    from streameval.core.experiments.definition import Experiment, Guardrail

    if by is None or against is None:
        raise InputError(
            "give --by and --against, the column and the value of the control (--by variant"
            " --against A); or two models, with --labels, --run and --qrels, or --predictions"
        )
    since, until = span
    begin = None if since is None else instant(since, "--since")
    end = None if until is None else instant(until, "--until")
    if begin is not None and end is not None and end <= begin:
        raise InputError(f"--until {until}: give a time after --since {since}")
    return Experiment(
        name=by,
        arm=by,
        control=against,
        primary=primary or "",
        guardrails=tuple(map(Guardrail, dict.fromkeys(guardrails))),
        since=begin,
        until=end,
    )


def _configured(definition: Definition, name: str) -> Experiment:
    known = {experiment.name: experiment for experiment in definition.experiments}
    if name not in known:
        there = f"it has {', '.join(known)}" if known else "it has none"
        raise InputError(f"--experiment {name}: the configuration has no such experiment; {there}")
    return known[name]


def _require_metrics(
    definition: Definition, experiment: Experiment, names: Sequence[str]
) -> list[str]:
    """Return the metrics beside those that the experiment names. Raises `InputError`."""
    from streameval.evaluation.arm_comparison import all_metrics, named_metrics
    from streameval.evaluation.arms import require_metrics

    named = named_metrics(experiment)
    require_metrics([*named, *names], definition)
    return list(names) if names or named else all_metrics(definition)


def _read(
    files: Sequence[str],
    definition: Definition,
    experiment: Experiment,
    metrics: Sequence[str],
    *,
    column: str | None,
) -> Arms:
    from streameval.base.terminal import progress_bar
    from streameval.evaluation.arms import rate_kind, read_arms
    from streameval.files.locations import require_name, size

    if not files:
        raise InputError("no files: give outcome files, or their folder or URI")
    for file in files:
        require_name(file)
    with progress_bar(files, size) as advance:
        return read_arms(
            files,
            definition,
            experiment,
            advance,
            with_rates=any(rate_kind(name, definition) is not None for name in metrics),
            column=column,
        )


def _compare_arms(
    files: Sequence[str],
    definition: Definition,
    experiment: Experiment,
    names: Sequence[str],
    before: Path | None,
    *,
    as_json: bool,
) -> None:
    from streameval.evaluation.arm_comparison import compare_arms, named_metrics, read_past

    metrics = _require_metrics(definition, experiment, names)
    wanted = [*named_metrics(experiment), *metrics]
    arms = _read(files, definition, experiment, wanted, column=experiment.arm)
    past = None if before is None else read_past(before, arms)
    rows = compare_arms(arms, metrics, past)
    notes = [*arms.notes, *(() if past is None else (past.note(),))]
    _print_rows(rows, notes, as_json=as_json)


# ----------------------------------------------------------------------------------------- models


def _compare_models(
    models: Models, names: Sequence[str], alpha: float, planned_users: int, *, as_json: bool
) -> None:
    from streameval.base.terminal import progress_bar
    from streameval.evaluation.paired import compare_models
    from streameval.files.locations import size
    from streameval.stats.experiments import Rules

    rules = Rules(alpha=alpha, planned_users=planned_users)
    with progress_bar(models.all_files(), size) as advance:
        rows, notes = compare_models(models, names, rules, advance)
    _print_rows(rows, notes, as_json=as_json)


def _models(config: Path | None, files: Sequence[str], given: dict[str, Sequence[str]]) -> Models:
    """Sort the files into those of each model and those of all. Raises `InputError`."""
    from streameval.evaluation.paired import Models
    from streameval.evaluation.request import (
        FILES,
        LABELS,
        PREDICTIONS,
        QRELS,
        RATINGS,
        RUN,
        Given,
    )
    from streameval.files.locations import require_name

    kinds = {
        FILES: (files, LABELS, given["labels"]),
        RUN: (given["runs"], QRELS, given["qrels"]),
        PREDICTIONS: (given["predictions"], RATINGS, given["ratings"]),
    }
    present = [table for table, (own, _, common) in kinds.items() if own or common]
    if len(present) != 1:
        raise InputError(
            "give the models in one form: two files with --labels, two --run with --qrels, or two"
            " --predictions with --ratings"
        )
    (table,) = present
    own, companion, common = kinds[table]
    what = "files of slates" if table == FILES else table.option
    if len(own) < 2:
        raise InputError(f"{what}: give at least two, the first is what others are compared with")
    if not common:
        raise InputError(f"{what}: needs {companion.described}")
    if len(set(own)) < len(own):
        raise InputError(f"{what}: one file is given twice, so there is nothing to compare")
    for file in (*own, *common):
        require_name(file)
    return Models(
        Given(
            definition=lambda: settings_of(config).definition(), tables={companion: list(common)}
        ),
        table,
        own,
    )
