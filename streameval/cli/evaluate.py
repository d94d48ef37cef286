"""`streameval evaluate` from what was asked to what is printed or written."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from streameval.base.errors import InputError
from streameval.core.metrics import CATALOGUE
from streameval.evaluate.input_kinds import answer, asked_for, inputs_of, list_source
from streameval.evaluate.readers.ranked_tables import Ties
from streameval.evaluate.request import Given
from streameval.files.locations import require_name, size


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What was given, and the options that say what to do with it, as the help explains them."""

    given: Given
    metrics: Sequence[str]
    intervals: bool
    report: Path | None
    checks: Path | None
    catalogue: bool
    as_json: bool


def run(request: Request, print_json: Callable[[Mapping[str, Any]], None]) -> None:
    """Do what was asked. Raises `InputError`."""
    from streameval.evaluate.report.terminal import catalogue_rows, print_answer, print_catalogue

    if request.catalogue:
        rows = catalogue_rows(CATALOGUE, inputs_of)
        if request.as_json:
            print_json({"catalogue": rows})
        else:
            print_catalogue(rows)
        return
    if request.checks is not None and request.report is None:
        raise InputError("--checks: results are shown in a report: give --report too")
    from streameval.base.terminal import progress_bar

    given = request.given
    _require_finite(given)
    for file in given.all_files():
        require_name(file)
    for option, name in (("run", given.run), ("qrels", given.qrels)):
        if name is not None and Path(name).is_dir():
            raise InputError(f"--{option} {name}: is a folder: give the file")
    with progress_bar(given.all_files(), size) as advance:
        found = answer(given, request.metrics, advance)
    if request.report is not None:
        from streameval.evaluate.report.page import write_report

        ranked = any(asked.entry.sort == "lists" for asked in asked_for(given, request.metrics))
        source = list_source(given) if ranked else None
        write_report(request.report, found, given.all_files(), source, request.checks)
    if request.as_json:
        print_json(found.document())
    else:
        print_answer(found, with_intervals=request.intervals)


def _require_finite(given: Given) -> None:
    """Raise `InputError` for a parameter that is NaN or infinite."""
    for option in ("half_life", "neutral", "threshold"):
        value = getattr(given, option)
        if value is not None and not math.isfinite(value):
            raise InputError(f"--{option.replace('_', '-')} {value}: give a finite number")


def ties_of(text: str | None) -> Ties | None:
    """Read the rule for equal scores. Raises `InputError`."""
    if text is not None and text not in get_args(Ties):
        raise InputError(f"--ties {text}: {' or '.join(get_args(Ties))}")
    return cast("Ties | None", text)


def scale_of(text: str) -> tuple[float, float]:
    """Read `1:5`, the lowest and the highest rating. Raises `InputError`."""
    lowest, _, highest = text.partition(":")
    try:
        scale = float(lowest), float(highest)
    except ValueError as error:
        raise InputError(
            f"--scale {text}: the lowest and the highest rating, such as 1:5"
        ) from error
    if not all(map(math.isfinite, scale)):
        raise InputError(f"--scale {text}: give finite numbers, such as 1:5")
    if not scale[0] < scale[1]:
        raise InputError(f"--scale {text}: the lowest rating is below the highest")
    return scale
