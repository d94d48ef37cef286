"""`streameval evaluate` from what was asked to what is printed or written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from streameval.core.errors import InputError
from streameval.offline.evaluate import DEFAULT, LIST_METRICS, evaluate
from streameval.offline.ranked_tables import Ties
from streameval.offline.sources import source


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The options of the command, as its help explains them."""

    files: Sequence[str]
    metrics: str | None
    by: Sequence[str]
    labels: Sequence[str]
    run: str | None
    qrels: str | None
    ties: str | None
    complete: bool
    per_list: bool
    intervals: bool
    report: Path | None
    checks: Path | None
    catalogue: bool
    as_json: bool


def run(request: Request, print_json: Callable[[Mapping[str, Any]], None]) -> None:
    """Do what was asked. Raises `InputError`."""
    from streameval.offline.terminal import catalogue_rows, print_catalogue, print_evaluation

    if request.catalogue:
        if request.as_json:
            print_json({"catalogue": catalogue_rows(LIST_METRICS.values())})
        else:
            print_catalogue(LIST_METRICS.values())
        return
    if request.ties is not None and request.ties not in get_args(Ties):
        raise InputError(f"--ties {request.ties}: {' or '.join(get_args(Ties))}")
    if request.checks is not None and request.report is None:
        raise InputError("--checks: results are shown in a report: give --report too")
    chosen = source(
        request.files,
        labels=request.labels,
        run=request.run,
        qrels=request.qrels,
        by=request.by,
        ties=cast("Ties | None", request.ties),
        complete=request.complete,
        with_ids=request.per_list,
    )
    names = request.metrics.split(",") if request.metrics else DEFAULT
    from streameval.tables import progress_bar

    with progress_bar(chosen.files) as advance:
        evaluation = evaluate(chosen.read(advance), names, request.by, per_list=request.per_list)
    if request.report is not None:
        from streameval.offline.report import write_report

        write_report(request.report, evaluation, chosen, request.checks)
    if request.as_json:
        print_json(evaluation.document())
    else:
        print_evaluation(evaluation, with_intervals=request.intervals)
