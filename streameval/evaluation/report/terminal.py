"""Output of `evaluate` on a terminal: its figures, and the list of metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from streameval.base.terminal import UNDEFINED, plain_table
from streameval.core.metrics.entry import Entry
from streameval.evaluation.answer import Answer, Figure, Note
from streameval.evaluation.compared import Compared
from streameval.evaluation.plans import Planned, Wanted

# Differences that all have a sentence; of more, those that were named or are decided.
_SENTENCES: Final = 10
_UNCUT: Final = 100_000
"""Columns for programs: a file or a pipe has no edge."""


def print_answer(answer: Answer, *, with_intervals: bool, console: Console | None = None) -> None:
    """Print the figures of all, then of each segment, the notes, and the scores of each list."""
    ends = ("low", "high") if with_intervals else ()
    table = plain_table(names=(*answer.by, "figure"), numbers=("value", *ends, "n"))
    _add(table, ["all"] * len(answer.by), answer.figures, ends)
    for segment, figures in answer.segments.items():
        _add(table, [escape(value) or UNDEFINED for value in segment], figures, ends)
    console = console or _console()
    console.print(table)
    _print_notes(console, answer.notes)
    if answer.differences:
        console.print(differences_table(answer.differences))
    if answer.lists is not None:
        console.print(_lists(answer.lists))


def _add(
    table: Table, segment: list[str], figures: Mapping[str, Figure], ends: Sequence[str]
) -> None:
    table.add_section()
    for name, figure in figures.items():
        cells = (_format(getattr(figure, part)) for part in ("value", *ends))
        table.add_row(*segment, name, *cells, f"{figure.n:,}")


def print_comparison(
    rows: Sequence[Compared], notes: Sequence[Note], console: Console | None = None
) -> None:
    """Print differences as a table, a sentence for each, and the notes."""
    console = console or _console()
    console.print(differences_table(rows))
    if any(row.adjusted is not None for row in rows):
        console.print(_adjusted_table(rows))
    for row in rows:
        if len(rows) <= _SENTENCES or row.role != "exploratory" or row.is_decided:
            console.print(escape(row.sentence()), soft_wrap=True)
    _print_notes(console, notes)


def _adjusted_table(rows: Sequence[Compared]) -> Table:
    """Build the table of differences that are adjusted by the users' past."""
    numbers = ("adjusted by the past", "all looks", "one look", "users saved")
    table = plain_table(names=("arm", "figure"), numbers=numbers)
    table.add_column("verdict")
    for row in rows:
        if row.adjusted is None:
            continue
        scored, saved = row.adjusted.scored, row.adjusted.users_saved
        table.add_row(
            *(escape(row.arm), escape(row.metric)),
            _format(scored.difference, sign="+"),
            _bounds(scored.low, scored.high),
            _bounds(scored.once_low, scored.once_high),
            UNDEFINED if saved is None else f"{saved:.0%}",
            scored.verdict,
        )
    return table


def print_plan(rows: Sequence[Planned], wanted: Wanted, notes: Sequence[Note]) -> None:
    """Print users needed, and the smallest differences that the present users show."""
    needed_for = ("value", f"{wanted.lift:.3g} of it", "users: one look", "all looks")
    resolved_by = ("users so far", "they show: one look", "all looks")
    table = plain_table(names=("figure",), numbers=(*needed_for, *resolved_by))
    for row in rows:
        needed, smallest = row.needed or (None, None), row.smallest or (None, None)
        table.add_row(
            escape(row.metric),
            _format(row.value),
            _format(row.effect),
            *(UNDEFINED if users is None else f"{users:,.0f}" for users in needed),
            f"{row.users:,}",
            *map(_format, smallest),
        )
    console = _console()
    console.print(table)
    console.print(
        f"Users of both arms that show a difference of {wanted.lift:.3g} of the figure with a"
        f" chance of {wanted.power:.0%}, at {wanted.alpha:.3g} of false alarms.",
        soft_wrap=True,
    )
    _print_notes(console, notes)


def _console() -> Console:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _UNCUT
    return console


def _print_notes(console: Console, notes: Sequence[Note]) -> None:
    for note in notes:
        if note.text:
            console.print(escape(note.text), soft_wrap=True)


def differences_table(rows: Sequence[Compared]) -> Table:
    """Build the table of differences, with the bounds for all looks and for one look."""
    numbers = ("difference", "relative", "all looks", "one look", "users", "more needed")
    table = plain_table(names=("arm", "control", *rows[0].labels, "figure"), numbers=numbers)
    table.add_column("verdict")
    arm = rows[0].arm
    for row in rows:
        if row.arm != arm:
            table.add_section()
            arm = row.arm
        scored = row.scored
        relative = scored.relative_difference
        names = (row.arm, row.control, *row.labels.values(), row.metric)
        table.add_row(
            *(escape(name) or UNDEFINED for name in names),
            _format(scored.difference, sign="+"),
            UNDEFINED if relative is None else f"{relative:+.1%}",
            _bounds(scored.low, scored.high),
            _bounds(scored.once_low, scored.once_high),
            f"{row.users:,}",
            UNDEFINED if scored.users_needed is None else f"{scored.users_needed:,}",
            scored.verdict,
        )
    return table


def _bounds(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return UNDEFINED
    return f"{_format(low, sign='+')} to {_format(high, sign='+')}"


def _lists(lists: Mapping[str, Mapping[str, float | None]]) -> Table:
    table = plain_table(names=("list",))
    names = dict.fromkeys(figure for scores in lists.values() for figure in scores)
    for figure in names:
        table.add_column(figure, justify="right", overflow="fold", min_width=len("0.0000"))
    for name in sorted(lists):
        table.add_row(escape(name), *(_format(lists[name].get(figure)) for figure in names))
    return table


def _format(value: float | None, sign: str = "") -> str:
    return UNDEFINED if value is None else f"{value:{sign}.4f}"


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
