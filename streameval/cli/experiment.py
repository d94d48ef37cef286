"""The scorecard of one experiment, for `streameval experiment`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.markup import escape

from streameval.base.errors import InputError
from streameval.base.terminal import UNDEFINED, plain_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console
    from rich.table import Table

    from streameval.config.load import Settings
    from streameval.experiments.words import Outcome, Scorecard

GATE: Final = {"passed": 0, "failed": 1, "open": 4}
"""Exit codes of `--gate`; 2 and 3 have their usual meaning."""
_NAMES: Final = ("metric", "role", "arm", "verdict")
_NUMBERS: Final = ("value", "control", "difference", "low", "high", "users")
_UNBOUNDED: Final = 1_000
# Columns that a row of two lines needs.
_TWO_LINES: Final = 72
_SAID: Final = {
    "passed": "The gate has passed: no named figure is worse.",
    "failed": "The gate has failed: a named figure is worse, or the users cannot be trusted.",
    "open": "The gate is open: a named figure has no bounds yet. Ask again later.",
}


async def read_scorecard(settings: Settings, name: str) -> Scorecard:
    """Read the sums that the workers of a group have stored of an experiment.

    Raises `StreamevalError`, and `InputError` for an experiment that is not configured.
    """
    from streameval.files.group_store import opened_store
    from streameval.store.scorecards import ScorecardReader

    definition = settings.definition()
    names = [experiment.name for experiment in definition.experiments]
    if name not in names:
        listed = (
            f"the configuration has {', '.join(names)}"
            if names
            else "none is configured; name your configuration with --config, and describe the"
            " experiment there under `experiments`"
        )
        raise InputError(f"no experiment is called {name}: {listed}")
    store, count = await opened_store(settings)
    try:
        cards = await ScorecardReader(store, definition).read(count)
    finally:
        await store.close()
    return cards[names.index(name)]


def print_scorecard(card: Scorecard, judged: Outcome | None = None) -> None:
    """Print the sentences, the rows as a table, and the gate's result if it was asked."""
    from rich.console import Console

    from streameval.experiments.words import beside_sentences, remarks, sentences, warnings

    console = Console(soft_wrap=True, highlight=False)
    for sentence in sentences(card) if card.rows else ["No arm has a final slate yet."]:
        console.print(sentence, markup=False)
    for warning in warnings(card):
        console.print(warning, markup=False, style="bold red")
    for remark in [*beside_sentences(card), *remarks(card)]:
        console.print(remark, markup=False)
    if card.rows:
        _print_rows(console, card)
    if judged is not None:
        console.print(_SAID[judged])


def _print_rows(console: Console, card: Scorecard) -> None:
    """Print the rows as a table; as lines where the terminal is too narrow for one.

    No name and no number is cut: in a table each row then takes two lines or more.
    """
    rows = [_cells(row) for row in card.rows]
    whole = plain_table("", _NAMES, _NUMBERS)
    for row in rows:
        whole.add_row(*(escape(row[name]) for name in (*_NAMES, *_NUMBERS)))
    unbounded = console.options.update(max_width=_UNBOUNDED)
    if console.measure(whole, options=unbounded).maximum <= console.width:
        console.print(whole)
    elif console.width >= _TWO_LINES:
        console.print(_two_lines(rows))
    else:
        for row in rows:
            console.print(_line(row), markup=False, soft_wrap=True)


def _cells(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of a row, by column."""
    figures = ("value", "control_value", "difference", "low", "high")
    values = (UNDEFINED if row[name] is None else f"{row[name]:.4g}" for name in figures)
    names = {name: row[name] for name in ("metric", "role", "arm", "verdict")}
    found = names | dict(zip(_NUMBERS, values, strict=False)) | {"users": f"{row['users']:,}"}
    known = row["low"] is not None
    return found | {"bounds": f"{found['low']} to {found['high']}" if known else "no bounds yet"}


def _two_lines(rows: Sequence[Mapping[str, str]]) -> Table:
    heads = ("value\ncontrol", "difference\nbounds", "verdict\nusers")
    table = plain_table("", ("figure\narm, role",), heads)
    for column in table.columns[1:]:
        column.no_wrap = True
    for row in rows:
        metric = row["metric"].replace("{", "\n  {")  # a name is folded where it is read
        table.add_row(
            escape(f"{metric}\n{row['arm']}, {row['role']}"),
            f"{row['value']}\n{row['control']}",
            f"{row['difference']}\n{row['bounds']}",
            f"{row['verdict']}\n{row['users']} users",
        )
    return table


def _line(row: Mapping[str, str]) -> str:
    return (
        f"{row['metric']}, {row['arm']}, {row['role']}: {row['verdict']}, {row['difference']}"
        f" ({row['bounds']}), {row['value']} against {row['control']},"
        f" {row['users']} users"
    )
