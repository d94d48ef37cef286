"""Tables on a terminal: counters of a user, findings, results of checks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from streameval.base.errors import StreamevalError
from streameval.base.terminal import moment

if TYPE_CHECKING:
    from streameval.checks.result import Result
    from streameval.cli.diagnosis import Finding

_LEVEL_STYLE: Final = {"ok": "green", "warn": "yellow", "fail": "bold red"}


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


if TYPE_CHECKING:
    from streameval.config.load import Settings


async def user_counters(settings: Settings, user_id: str) -> dict[str, Any]:
    """Return the lifetime counters of a user, over all partitions that know the id.

    Kafka tells the number of partitions, Redis holds the counters. Raises `StreamevalError`
    for a user without any, `InputError` for a topic that does not exist.
    """
    from streameval.files.group_store import opened_store

    store, count = await opened_store(settings)
    try:
        counters = await store.user(user_id, count)
    finally:
        await store.close()
    if counters is None:
        raise StreamevalError(
            f"nothing is stored of the user {user_id!r} in group {settings.group}: "
            "check the id, or wait until a worker has committed"
        )
    names = {experiment.key: experiment.name for experiment in settings.definition().experiments}
    return counters.document(user_id, names)
