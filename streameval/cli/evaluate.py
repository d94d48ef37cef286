"""`streameval evaluate`: options from the declarations of metrics, and the steps to the output."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from streameval.base.errors import InputError
from streameval.cli.common import Config, Json, Strict, print_json, settings_of, warn

if TYPE_CHECKING:
    from streameval.core.metrics.inputs import Input
    from streameval.evaluation.answer import Answer
    from streameval.evaluation.request import Given

EPILOG: Final = (
    "Examples: streameval evaluate outcomes/ --metrics ndcg@10,map --by variant --ci"
    " · streameval evaluate --ratings test.csv --predictions model.csv --metrics rmse,mae_user"
)


class EvaluateCommand(TyperCommand):
    """The command; its options are built when it is used, since metrics import numpy."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options of `_evaluate`, and --help."""
        return [*_command().params, *super().get_params(ctx)]

    def invoke(self, ctx: Any) -> Any:
        """Run `_evaluate`."""
        callback = _command().callback
        assert callback is not None, "a command is made of a function"
        return ctx.invoke(callback, **ctx.params)


def evaluate() -> None:
    """Compute figures of files: ranked lists, ratings, indexes, contents of lists.

    docs/evaluate.md says which figure takes which file; tables are Parquet, CSV, TSV or JSON Lines.
    """


def _evaluate(  # noqa: PLR0917  # typer passes them by name; `evaluate` has the help
    files: Annotated[
        list[str] | None,
        typer.Argument(
            help="Outcome files, their folder or URI, slates (with --labels), an index's results"
            " (with --exact)."
        ),
    ] = None,
    metrics: Annotated[
        str,
        typer.Option(
            metavar="LIST", help="Such as ndcg@10,map@5. Default: those that fit the files."
        ),
    ] = "",
    by: Annotated[
        str, typer.Option(metavar="COLUMNS", help="Also for each value of these: variant,surface.")
    ] = "",
    against: Annotated[
        str | None,
        typer.Option(
            metavar="VALUE",
            help="Compare with this value of the first column of --by: differences and bounds.",
        ),
    ] = None,
    ci: Annotated[
        bool, typer.Option("--ci", help="Show 95 % intervals, clustered by user (JSON has them).")
    ] = False,
    config: Config = None,
    per_list: Annotated[bool, typer.Option("--per-list", help="Print each list's scores.")] = False,
    report: Annotated[
        Path | None, typer.Option(help="Write a page of figures and charts (HTML) here.")
    ] = None,
    checks: Annotated[
        Path | None, typer.Option(help="Results of `check --json`, to show in the report.")
    ] = None,
    list_metrics: Annotated[
        bool, typer.Option("--list", help="Print all metrics, and end.")
    ] = False,
    strict: Strict = False,
    as_json: Json = False,
    **inputs: Any,
) -> None:
    if list_metrics:
        _list_metrics(as_json=as_json)
        return
    if checks is not None and report is None:
        raise InputError("--checks: results are shown in a report: give --report too")
    from streameval.base.terminal import progress_bar
    from streameval.evaluation import input_kinds
    from streameval.evaluation.request import names_of
    from streameval.files.locations import size

    given = input_kinds.given_of(files or (), inputs, lambda: settings_of(config).definition())
    given = replace(given, by=names_of(by), against=against, per_list=per_list, strict=strict)
    names = names_of(metrics)
    with progress_bar(given.all_files(), size) as advance:
        found = input_kinds.answer(given, names, advance)
    if report is not None:
        _report(report, found, given, names, checks)
    _print(found, as_json=as_json, with_intervals=ci)


def _print(answer: Answer, *, as_json: bool, with_intervals: bool) -> None:
    remarks = warn(answer.notes, as_json=as_json)
    if as_json:
        print_json(answer.document())
        return
    from streameval.evaluation.report.terminal import print_answer

    print_answer(replace(answer, notes=remarks), with_intervals=with_intervals)


def _report(
    path: Path, answer: Answer, given: Given, names: Sequence[str], checks: Path | None
) -> None:
    from streameval.evaluation import input_kinds
    from streameval.evaluation.report.more_charts import more_charts
    from streameval.evaluation.report.page import write_report

    asked = input_kinds.asked_for(given, names)
    ranked = any(figure.entry.input_kind == "lists" for figure in asked)
    source = input_kinds.list_source(given) if ranked else None
    more = more_charts(given, asked)
    write_report(path, answer, given.all_files(), source, checks, more=more)


@cache
def _command() -> TyperCommand:
    """Build the command from `_evaluate` and the inputs that metrics and input kinds declare."""
    from streameval.evaluation.input_kinds import inputs_by_heading

    signature = inspect.signature(_evaluate, eval_str=True)
    own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    added = [_parameter(one, heading) for one, heading in inputs_by_heading().items()]
    parameters = [*own, *(one.replace(kind=one.KEYWORD_ONLY) for one in added)]

    def call(**options: Any) -> None:
        _evaluate(**options)

    function: Any = call
    function.__signature__ = signature.replace(parameters=parameters)
    function.__annotations__ = {one.name: one.annotation for one in parameters}
    app = typer.Typer(add_completion=False)
    app.command()(function)
    command = typer.main.get_command(app)
    assert isinstance(command, TyperCommand), "an app of one function is a command"
    return command


def _parameter(one: Input, heading: str) -> inspect.Parameter:
    """Return the parameter of `_evaluate` for an input."""
    from streameval.core.metrics.inputs import Flag, Number, Table

    default, metavar = None, None
    if isinstance(one, Table):
        kind: Any = str | None if one.single else list[str] | None
    else:
        default, metavar = one.default, one.metavar
        kind = bool if isinstance(one, Flag) else float if isinstance(one, Number) else str
        kind = kind if default is not None else kind | None
    option = typer.Option(help=one.help, metavar=metavar, rich_help_panel=heading)
    return inspect.Parameter(
        one.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, option],
    )


def _list_metrics(*, as_json: bool) -> None:
    from streameval.core.metrics import METRICS
    from streameval.evaluation.input_kinds import inputs_of
    from streameval.evaluation.report.terminal import metric_rows, print_metrics

    rows = metric_rows(METRICS, inputs_of)
    if as_json:
        print_json({"catalogue": rows})
    else:
        print_metrics(rows)
