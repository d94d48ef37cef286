"""Figures of `replay` as tables, on a terminal and in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from streameval.base.durations import parse_duration
from streameval.base.terminal import UNDEFINED, WIDE, format_figure, moment, plain_table
from streameval.web.intervals import SECTIONS, means_of, with_intervals

Row = Mapping[str, Any]

_WINDOW: Final = ("window", "basis")
_OF_MEANS: Final = ("_stderr", "_low", "_high")


def print_figures(
    document: Mapping[str, Any], dimensions: Sequence[str], console: Console | None = None
) -> None:
    """Print `replay`'s document as tables."""
    console = console or Console(highlight=False)
    # A narrow terminal wraps lines, which loses less than truncated cells.
    console.width = max(console.width if console.is_terminal else 0, WIDE)
    console.print(f"Watermark {moment(document['watermark'])}")
    console.print(_events(document["events"]), soft_wrap=True)
    sections = with_intervals({name: document[name] for name in SECTIONS}, dimensions)
    both = [*sections["rates"], *sections["ranking"]]
    for name in ("rates", "ranking"):
        if rows := sections[name]:
            by_size = sorted(rows, key=lambda row: parse_duration(row["window"]))
            console.print(_figures(name.capitalize(), by_size))
    if not sections["rates"]:
        console.print("No window holds an impression.")
    if any(row[f"{mean}_low"] is not None for row in both for mean in means_of(row)):
        console.print("Below a mean stands its 95 % interval, which holds at one look.")
    if "users" in document:
        console.print(_users(document["users"]))


def _events(events: Mapping[str, Any]) -> str:
    """Write all counters on one line; groups without their zeros."""
    parts = []
    for name, count in events.items():
        if isinstance(count, Mapping):
            inner = ", ".join(f"{key} {value:,}" for key, value in count.items() if value)
            parts.append(f"{name}: {inner or 0}")
        else:
            parts.append(f"{name}: {count:,}")
    return " · ".join(parts)


def _figures(title: str, rows: Sequence[Row]) -> Table:
    """Build a table with intervals below the means, a section for each window and basis."""
    table = plain_table(title)
    names = [name for name in rows[0] if name not in _WINDOW and not name.endswith(_OF_MEANS)]
    table.add_column("window")
    for name in names:
        words = name.split("_")
        table.add_column(
            " ".join(words),
            justify="left" if isinstance(rows[0][name], str) else "right",
            min_width=max(map(len, words)),
            overflow="fold",
        )
    previous = None
    for row in rows:
        window = " ".join(row[part] for part in _WINDOW)
        if previous not in (None, window):
            table.add_section()
        table.add_row(window if window != previous else "", *(_cell(row, name) for name in names))
        previous = window
    return table


def _cell(row: Row, name: str) -> str:
    value = row[name]
    if isinstance(value, str):
        return escape(value) or UNDEFINED
    if isinstance(value, int):
        return f"{value:,}"
    low, high = (row.get(f"{name}{end}") for end in ("_low", "_high"))
    # Six means with an interval on one line would not fit into a terminal.
    ends = "" if low is None else f"\n{format_figure(low)}–\n{format_figure(high)}"
    return format_figure(value) + ends


def _users(users: Mapping[str, Row]) -> Table:
    table = plain_table("Users")
    for name in ("user", "first", "last"):
        table.add_column(name)
    kinds = list(next(iter(users.values()))["positives"]) if users else []
    for name in ("impressions", "slates", *kinds):
        table.add_column(name, justify="right")
    for user_id, row in users.items():
        counts = (row["impressions"], row["slates"], *row["positives"].values())
        times = (moment(row["first_ts"]), moment(row["last_ts"]))
        table.add_row(escape(user_id), *times, *(f"{count:,}" for count in counts))
    return table
