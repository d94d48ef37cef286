"""Grafana's dashboard of the experiments that run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from string import ascii_uppercase
from typing import Any, Final

from streameval.cli.grafana import Panel, document, row, variable


def experiments() -> str:
    """Return the JSON of the dashboard of experiments: how they stand, and how far to trust it."""
    chosen = 'streameval_experiment_{}{{job="$job", experiment="$experiment"}}'
    metric = variable("metric", f"label_values({chosen.format('difference')}, metric)")
    everything = {"text": "All", "value": "$__all"}
    return document(
        "experiments",
        "How experiments stand: differences with bounds, verdicts, users, and the split.",
        [
            variable("job", "label_values(streameval_experiment_users, job)"),
            variable(
                "experiment", 'label_values(streameval_experiment_users{job="$job"}, experiment)'
            ),
            metric | {"multi": True, "includeAll": True, "current": everything},
        ],
        _panels(),
        start="now-14d",
    )


def _panels() -> Iterator[Panel]:
    """All panels in reading order."""
    yield _HOW_TO_READ
    yield Panel(
        "Counts since",
        [(f"1000 * {_of('start_timestamp_seconds')}", "")],
        "dateTimeAsIso",
        "Slates before this time do not count.",
        kind="stat",
        size=(6, 4),
    )
    yield _scorecard()
    yield row("Verdicts and users")
    yield Panel(
        "Verdicts",
        [(_of("verdict", "arm", "metric", "role"), "{{arm}} {{metric}} ({{role}})")],
        "none",
        "No line while it is too early to say. An exploratory verdict is a hint.",
        {"mappings": _VERDICTS},
        "state-timeline",
        (24, 8),
    )
    yield Panel(
        "Users",
        [
            (_of("users", "arm"), "{{arm}} only"),
            (_of("crossed_users"), "several arms"),
        ],
        options={"min": 0},
    )
    yield Panel(
        "Users needed",
        [(_of("users_needed", "arm", "metric"), "{{arm}} {{metric}}")],
        description="Users of all arms still needed until the metric is decided, if it stays as it"
        " is.",
        options={"min": 0},
    )
    yield Panel(
        "Evidence against the split",
        [(_of("split_evidence"), "wrong split"), (_of("crossed_evidence"), "crossed users")],
        "none",
        "Natural logarithm. Above the line chance is excluded (1 in 1,000 at all looks together),"
        " an alert fires, and no figure of the experiment can be trusted.",
        _LINE,
    )
    yield row("Differences from the control, with bounds")
    yield Panel(
        "$metric",
        [
            (_of(column, "arm", metric="$metric"), f"{{{{arm}}}} {column}")
            for column in ("low", "difference", "high")
        ],
        "none",
        "The arm's value less the control's. The bounds hold at all looks together.",
        extra={"repeat": "metric", "repeatDirection": "h", "maxPerRow": 3},
    )


def _of(series: str, *labels: str, metric: str = "") -> str:
    """Write a figure of the chosen experiment.

    The leader shows it; for a moment two workers may believe that they lead.
    """
    chosen = f', metric=~"{metric}"' if metric else ""
    figure = f'streameval_experiment_{series}{{job="$job", experiment="$experiment"{chosen}}}'
    return f"max by ({', '.join(labels)}) ({figure})"


def _scorecard() -> Panel:
    """Build the table with a row for each metric and arm."""
    letters = zip(ascii_uppercase, _COLUMNS.values(), strict=False)
    titles = {f"Value #{letter}": title for letter, title in letters}
    return Panel(
        "Now",
        [(_of(series, "metric", "arm"), "") for series in _COLUMNS],
        description="A control has its value only. A cell is empty while it is too early to say.",
        kind="table",
        size=(24, 9),
        extra={
            "transformations": [
                {"id": "merge", "options": {}},
                {
                    "id": "organize",
                    "options": {"excludeByName": {"Time": True}, "renameByName": titles},
                },
            ],
            "fieldConfig": {
                "defaults": {"unit": "none"},
                "overrides": [
                    _override(_COLUMNS["verdict"], "mappings", _VERDICTS),
                    _override(_COLUMNS["relative_difference"], "unit", "percentunit"),
                    _override(_COLUMNS["users_needed"], "unit", "short"),
                ],
            },
        },
    )


def _override(title: str, name: str, value: object) -> dict[str, Any]:
    return {
        "matcher": {"id": "byName", "options": title},
        "properties": [{"id": name, "value": value}],
    }


_COLUMNS: Final = {
    "value": "value",
    "low": "lower bound",
    "difference": "difference",
    "high": "upper bound",
    "relative_difference": "relative difference",
    "verdict": "verdict",
    "users_needed": "users needed",
}
"""Series of the scorecard, and their titles."""

_VERDICTS: Final = [
    {
        "type": "value",
        "options": {
            "1": {"text": "better", "color": "green", "index": 0},
            "0": {"text": "no difference shown", "color": "blue", "index": 1},
            "-1": {"text": "worse", "color": "red", "index": 2},
        },
    }
]

_LINE: Final = {
    "custom": {"thresholdsStyle": {"mode": "line"}},
    "thresholds": {
        "mode": "absolute",
        "steps": [
            {"color": "green", "value": None},
            {"color": "red", "value": round(math.log(1000), 3)},
        ],
    },
}
"""A line where the alerts on the split begin."""

_HOW_TO_READ: Final = Panel(
    "How to read this",
    kind="text",
    size=(18, 4),
    extra={
        "options": {
            "mode": "markdown",
            "content": "The bounds hold at all looks together: look as often as you like, and"
            " decide when a verdict of the primary metric says *better* or *worse*, the guardrails"
            " hold, and the evidence against the split stays below its line.",
        }
    },
)
