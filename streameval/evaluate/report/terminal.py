"""Output of `evaluate` on a terminal: its figures, and the list of metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from streameval.core.metrics.entry import Entry
from streameval.evaluate.answer import Answer, Figure

UNDEFINED: Final = "-"
_UNCUT: Final = 100_000
"""Columns for programs: a file or a pipe has no edge."""


def print_answer(answer: Answer, *, with_intervals: bool) -> None:
    """Print the figures of all, then of each segment, the notes, and the scores of each list."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in (*answer.by, "figure"):
        table.add_column(name, overflow="fold")
    for name in ("value", *(("low", "high") if with_intervals else ()), "n"):
        table.add_column(name, justify="right")
    _add(table, ["all"] * len(answer.by), answer.figures, with_intervals=with_intervals)
    for segment, figures in answer.segments.items():
        _add(
            table,
            [escape(value) or UNDEFINED for value in segment],
            figures,
            with_intervals=with_intervals,
        )
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _UNCUT
    console.print(table)
    for note in answer.notes:
        if note.text:
            console.print(escape(note.text), soft_wrap=True)
    if answer.lists is not None:
        console.print(_lists(answer.lists))


def _add(
    table: Table, segment: list[str], figures: Mapping[str, Figure], *, with_intervals: bool
) -> None:
    table.add_section()
    for name, figure in figures.items():
        bounds = [figure.low, figure.high] if with_intervals else []
        cells = [_format(value) for value in (figure.value, *bounds)]
        table.add_row(*segment, name, *cells, f"{figure.n:,}")


def _lists(lists: Mapping[str, Mapping[str, float | None]]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("list", overflow="fold")
    names = dict.fromkeys(figure for scores in lists.values() for figure in scores)
    for figure in names:
        table.add_column(figure, justify="right", overflow="fold", min_width=len("0.0000"))
    for name in sorted(lists):
        table.add_row(escape(name), *(_format(lists[name].get(figure)) for figure in names))
    return table


def _format(value: float | None) -> str:
    return UNDEFINED if value is None else f"{value:.4f}"


def metric_rows(metrics: Iterable[Entry], inputs: Callable[[Entry], str]) -> list[dict[str, str]]:
    """Return the metrics as `--list --json` prints them; `inputs` names the inputs of each."""
    return [
        {
            "name": metric.name,
            "cut": metric.cutoff,
            "formula": metric.formula,
            "convention": metric.convention,
            "undefined": metric.undefined,
            "source": metric.source,
            "input": inputs(metric),
        }
        for metric in (entry.with_values({}) for entry in metrics)
    ]


def print_metrics(rows: Sequence[Mapping[str, str]]) -> None:
    """Print the name, formula, convention, source and inputs of each metric."""
    console = Console(highlight=False, soft_wrap=True)
    names = {"required": "{0}@k", "optional": "{0}@k or {0}", "none": "{0}", "recall": "{0}@0.3"}
    for row in rows:
        console.print(f"[bold]{names[row['cut']].format(row['name'])}[/bold]")
        console.print(f"  {escape(row['formula'])}")
        for label in ("convention", "undefined", "source", "input"):
            console.print(f"  {label}: {escape(row[label])}")
