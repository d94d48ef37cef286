"""The scorecard of one experiment, for `streameval experiment`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from streameval.base.errors import InputError
from streameval.base.terminal import UNDEFINED, plain_table

if TYPE_CHECKING:
    from rich.table import Table

    from streameval.config.load import Settings
    from streameval.experiments.words import Outcome, Scorecard

GATE: Final = {"passed": 0, "failed": 1, "open": 4}
"""Exit codes of `--gate`; 2 and 3 have their usual meaning."""
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
    console.print(_table(card))
    if judged is not None:
        console.print(_SAID[judged])


def _table(card: Scorecard) -> Table:
    from rich.markup import escape

    table = plain_table("")
    for column in ("metric", "role", "arm"):
        table.add_column(column)
    for column in ("value", "control", "difference", "low", "high", "verdict", "users"):
        table.add_column(column, justify="right")
    figures = ("value", "control_value", "difference", "low", "high")
    for row in card.rows:
        table.add_row(
            *(escape(row[name]) for name in ("metric", "role", "arm")),
            *(UNDEFINED if row[name] is None else f"{row[name]:.4g}" for name in figures),
            row["verdict"],
            f"{row['users']:,}",
        )
    return table
