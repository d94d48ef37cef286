"""Tables on a terminal: figures of `replay`, counters of a user, findings, results of checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from streameval.base.durations import parse_duration
from streameval.base.terminal import UNDEFINED, WIDE, format_figure, moment, plain_table

if TYPE_CHECKING:
    from streameval.checks.result import Result
    from streameval.cli.diagnosis import Finding

Row = Mapping[str, Any]

_WINDOW: Final = ("window", "basis")
_LEVEL_STYLE: Final = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def print_figures(document: Mapping[str, Any]) -> None:
    """Print `replay`'s document as tables."""
    console = Console(highlight=False)
    # A narrow terminal wraps lines, which loses less than truncated cells.
    console.width = max(console.width if console.is_terminal else 0, WIDE)
    console.print(f"Watermark {moment(document['watermark'])}")
    console.print(_events(document["events"]), soft_wrap=True)
    for title, rows in (("Rates", document["rates"]), ("Ranking", document["ranking"])):
        if rows:
            by_size = sorted(rows, key=lambda row: parse_duration(row["window"]))
            console.print(_figures(title, by_size))
    if not document["rates"]:
        console.print("No window holds an impression.")
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
    """Build a table with standard errors below the means, a section for each window and basis."""
    table = plain_table(title)
    names = [name for name in rows[0] if name not in _WINDOW and not name.endswith("_stderr")]
    table.add_column("window")
    for name in names:
        words = name.split("_")
        table.add_column(
            " ".join(words),
            justify="left" if isinstance(rows[0][name], str) else "right",
            min_width=max(map(len, words)),
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
    return format_figure(value, row.get(f"{name}_stderr"), joint="\n")


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


def print_counters(counters: Mapping[str, Any]) -> None:
    """Print the counters that `streameval user` found."""
    table = Table(show_header=False)
    for name, value in counters.items():
        if name == "positives":
            for kind, count in value.items():
                table.add_row(f"positives: {escape(kind)}", f"{count:,}")
        elif name == "arms":
            for experiment, arms in value.items():
                table.add_row(f"arms: {escape(experiment)}", escape(", ".join(arms)))
        elif name.endswith("_ts"):
            table.add_row(name, moment(value))
        else:
            table.add_row(name, escape(str(value)))
    Console().print(table)


def print_findings(findings: Sequence[Finding]) -> None:
    """Print one line a finding, the cure behind an arrow."""
    console = Console(soft_wrap=True, highlight=False)
    for finding in findings:
        cure = f" → {escape(finding.cure)}" if finding.cure else ""
        style = _LEVEL_STYLE[finding.level]
        level = f"[{style}]{finding.level:4}[/{style}]"
        console.print(f"{level} {finding.check}: {escape(finding.message)}{cure}")


def print_results(results: Iterable[Result]) -> list[Result]:
    """Print one line a check as soon as it has run, and return all results."""
    console = Console(soft_wrap=True, highlight=False)
    found = []
    for result in results:
        if result.passed is None:
            level, style = "none", "dim"
        else:
            level = "ok" if result.passed else {"error": "fail"}.get(result.severity, "warn")
            style = _LEVEL_STYLE[level]
        console.print(f"[{style}]{level:4}[/{style}] {result.name}: {escape(result.message)}")
        found.append(result)
    return found
