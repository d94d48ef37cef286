"""The scorecard of one experiment, for `streameval experiment`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from streameval.base.errors import InputError
from streameval.base.terminal import UNDEFINED, plain_table

if TYPE_CHECKING:
    from rich.table import Table

    from streameval.config.load import Settings
    from streameval.experiments.words import Scorecard

GATE: Final = {"passed": 0, "failed": 1, "open": 4}
"""Exit codes of `--gate`; 2 and 3 have their usual meaning."""


async def read_scorecard(settings: Settings, name: str) -> Scorecard:
    """Read the sums that the workers of a group have stored of an experiment.

    Kafka tells the number of partitions. Raises `StreamevalError`, and `InputError` for an
    experiment that is not configured.
    """
    from streameval.kafka.admin import partitions
    from streameval.kafka.consumer import client_arguments
    from streameval.store.redis_store import RedisStateStore
    from streameval.store.scorecards import ScorecardReader

    definition = settings.definition()
    names = [experiment.name for experiment in definition.experiments]
    if name not in names:
        listed = f"the configuration has {', '.join(names)}" if names else "none is configured"
        raise InputError(f"no experiment is called {name}: {listed}")
    count = await partitions(client_arguments(settings), settings.topic)
    if not count:
        raise InputError(f"the topic {settings.topic} does not exist: correct `topic`")
    store = RedisStateStore(settings.redis_url, settings.group, settings.topic, definition.kinds)
    try:
        cards = await ScorecardReader(store, definition).read(count)
    finally:
        await store.close()
    return cards[names.index(name)]


def print_scorecard(card: Scorecard) -> None:
    """Print the sentences, and the rows of the named figures as a table."""
    from rich.console import Console

    from streameval.experiments.words import remarks, sentences, warnings

    console = Console(soft_wrap=True, highlight=False)
    for sentence in sentences(card) or ["No arm has a final slate yet."]:
        console.print(sentence, markup=False)
    for warning in warnings(card):
        console.print(warning, markup=False, style="bold red")
    for remark in remarks(card):
        console.print(remark, markup=False)
    console.print(_table(card))


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
