"""What `evaluate` shows on a terminal: its figures, and the catalogue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from streameval.core.metrics.entry import Entry
from streameval.offline.evaluate import Evaluation, Figure

UNDEFINED: Final = "-"


def print_evaluation(evaluation: Evaluation, *, with_intervals: bool) -> None:
    """Print the figures, those of each segment below those of all, then each list's."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in (*evaluation.by, "figure"):
        table.add_column(name)
    for name in ("value", *(("low", "high") if with_intervals else ()), "n"):
        table.add_column(name, justify="right")
    _add(table, ["all"] * len(evaluation.by), evaluation.figures(), with_intervals)
    if evaluation.by:
        for segment in sorted(evaluation.segments):
            names = [escape(value) or UNDEFINED for value in segment]
            _add(table, names, evaluation.figures(segment), with_intervals)
    console = Console(highlight=False)
    console.print(table)
    if evaluation.per_list:
        console.print(_lists(evaluation))


def _add(
    table: Table, segment: list[str], figures: Mapping[str, Figure], with_intervals: bool
) -> None:
    table.add_section()
    for name, figure in figures.items():
        bounds = [figure.low, figure.high] if with_intervals else []
        cells = [_shown(value) for value in (figure.value, *bounds)]
        table.add_row(*segment, name, *cells, f"{figure.n:,}")


def _lists(evaluation: Evaluation) -> Table:
    table = Table("list", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for figure in next(iter(evaluation.lists.values()), ()):
        table.add_column(figure, justify="right")
    for name in sorted(evaluation.lists):
        table.add_row(escape(name), *map(_shown, evaluation.lists[name].values()))
    return table


def _shown(value: float | None) -> str:
    return UNDEFINED if value is None else f"{value:.4f}"


def catalogue_rows(metrics: Iterable[Entry]) -> list[dict[str, str]]:
    """The rows of the catalogue as `--list --json` prints them."""
    return [
        {
            "name": metric.name,
            "cut": metric.cut,
            "formula": metric.formula,
            "convention": metric.convention,
            "undefined": metric.undefined,
            "source": metric.source,
        }
        for metric in metrics
    ]


def print_catalogue(metrics: Iterable[Entry]) -> None:
    """Print each figure's name, formula, convention and source."""
    console = Console(highlight=False, soft_wrap=True)
    names = {"required": "{}@k", "optional": "{}@k or {}", "none": "{}"}
    for metric in metrics:
        console.print(f"[bold]{names[metric.cut].format(metric.name, metric.name)}[/bold]")
        for label, text in (
            ("", metric.formula),
            ("convention: ", metric.convention),
            ("undefined: ", metric.undefined),
            ("source: ", metric.source),
        ):
            console.print(f"  {label}{escape(text)}")
