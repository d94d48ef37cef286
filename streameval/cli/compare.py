"""`streameval compare` and `plan`: arms of outcome files, and models on the same users."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from streameval.base.errors import InputError
from streameval.cli.common import Config, Json, Strict, print_json, settings_of, warn
from streameval.core.experiments.definition import CrossedUsers

if TYPE_CHECKING:
    from streameval.evaluation.answer import Note
    from streameval.evaluation.batches import Advance
    from streameval.evaluation.compared import Compared

EPILOG: Final = (
    "Examples: streameval compare outcomes/ --by variant --against A --primary ndcg@10"
    " · streameval compare --run a.txt --run b.txt --qrels qrels.txt"
)
PLAN_EPILOG: Final = "Example: streameval plan outcomes/ --metrics ndcg@10 --lift 0.02"
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
        help="An earlier snapshot: its users' past reduces the noise (CUPED).",
        rich_help_panel=_ARMS,
    ),
]
Crossed = Annotated[
    CrossedUsers | None,
    typer.Option(help="Users of several arms: keep (default) or leave_out.", rich_help_panel=_ARMS),
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
    crossed_users: Crossed = None,
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
    strict: Strict = False,
    as_json: Json = False,
) -> None:
    """Compare two arms, or two models on the same users: differences, bounds and verdicts.

    Arms are values of a column of outcome files. Of several models, the first one is the control.
    """
    from streameval.evaluation.comparison import Wanted, comparison_of
    from streameval.evaluation.request import LABELS, PREDICTIONS, QRELS, RATINGS, RUN, names_of

    wanted = Wanted(
        files=files or (),
        by=by,
        against=against,
        primary=primary,
        guardrails=names_of(guardrails),
        metrics=names_of(metrics),
        since=since,
        until=until,
        before=before,
        crossed_users=crossed_users,
        experiment=experiment,
        tables={
            LABELS: labels or (),
            RUN: run or (),
            QRELS: [qrels] if qrels else (),
            RATINGS: ratings or (),
            PREDICTIONS: predictions or (),
        },
        alpha=alpha,
        planned_users=planned_users,
        strict=strict,
    )
    rows, notes = comparison_of(wanted, lambda: settings_of(config).definition(), _progress)
    _print(rows, notes, as_json=as_json)


def _print(rows: Sequence[Compared], notes: Sequence[Note], *, as_json: bool) -> None:
    from streameval.evaluation.comparison import document
    from streameval.evaluation.report.terminal import print_comparison

    remarks = warn(notes, as_json=as_json)
    if as_json:
        print_json(document(rows, notes))
    else:
        print_comparison(rows, remarks)


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

    Prints the users for one look that is planned beforehand, and for looks at any time. Also prints
    the smallest difference that the present number of users would show.
    """
    from streameval.evaluation import comparison
    from streameval.evaluation.answer import with_notes
    from streameval.evaluation.plans import Wanted, few_users
    from streameval.evaluation.plans import plan as planned
    from streameval.evaluation.report.terminal import print_plan
    from streameval.evaluation.request import names_of

    comparison.require_alpha(alpha)
    for option, value in (("--power", power), ("--share", share)):
        if not 0 < value < 1:
            raise InputError(f"{option} {value:g}: give a share between 0 and 1")
    if not 0 < lift < 100:
        raise InputError(f"--lift {lift:g}: give a relative difference above 0, such as 0.01")
    definition = settings_of(config).definition()
    everybody = comparison.experiment_of(
        comparison.Wanted(by="everybody", against="everybody", since=since, until=until)
    )
    names = comparison.metrics_beside(definition, everybody, names_of(metrics))
    arms = comparison.read(files, definition, everybody, names, _progress, column=None)
    wanted = Wanted(lift, alpha, power, share)
    rows, notes = planned(arms, names, wanted), [*arms.notes, *few_users(arms)]
    if as_json:
        print_json(with_notes({"plan": [row.document(wanted) for row in rows]}, notes))
    else:
        print_plan(rows, wanted, notes)


def _progress(files: Sequence[str]) -> AbstractContextManager[Advance]:
    from streameval.base.terminal import progress_bar
    from streameval.files.locations import size

    return progress_bar(files, size)
