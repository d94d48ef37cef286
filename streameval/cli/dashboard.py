"""Grafana's dashboard over the recorded figures, for the dimensions of a configuration."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from streameval.core.metrics import RANKING

_SOURCE: Final = {"type": "prometheus", "uid": "prometheus"}
_WITH_ERROR: Final = "The mean, and two standard errors (clustered by user) below and above it."
_COLUMNS: Final = 24
"""Columns of Grafana's grid."""


@dataclass(frozen=True, slots=True)
class _Panel:
    """A panel: queries with their legends, the unit, and the size in cells of the grid."""

    title: str
    queries: Sequence[tuple[str, str]] = ()
    unit: str = "short"
    description: str = ""
    options: Mapping[str, float] = field(default_factory=dict)
    kind: str = "timeseries"
    size: tuple[int, int] = (8, 8)


def dashboard(dimensions: Sequence[str]) -> str:
    """Return the JSON of the dashboard."""
    document = {
        "uid": "streameval",
        "title": "streameval",
        "description": "Figures of all workers together (recorded by the rules of `streameval"
        " rules`), and the service that computes them.",
        "tags": ["streameval"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": list(_variables())},
        "panels": list(_placed(_panels(" ".join(f"{{{{{name}}}}}" for name in dimensions)))),
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _variables() -> Iterator[dict[str, Any]]:
    yield _variable("job", "label_values(streameval_info, job)")
    yield _variable("window", _values("window_users:sum", "window"))
    yield {
        "name": "basis",
        "type": "custom",
        "query": "matured,live",
        "current": {"text": "matured", "value": "matured"},
        "options": [
            {"text": basis, "value": basis, "selected": basis == "matured"}
            for basis in ("matured", "live")
        ],
    }
    yield _variable("feedback", _values("positive_rate:mean", "feedback"))
    yield _variable("k", _values("ndcg:mean", "k"))


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 3,
    }


def _values(series: str, label: str) -> str:
    return f'label_values(job:streameval_{series}{{job="$job"}}, {label})'


def _panels(segment: str) -> Iterator[_Panel]:
    """All panels in reading order; `segment` is the legend of a segment."""
    yield from _SUMMARY
    yield _row("Figures: $basis, $window")
    yield _mean("positive_rate", "Positive rate of $feedback: mean over users", "feedback", segment)
    yield _mean("positives_per_impression", "$feedback per impression", "feedback", segment)
    for metric in RANKING:
        yield _mean(metric.name, f"{_heading(metric.name)}@$k", "k", segment)
    yield _Panel(
        "Maturity",
        [('job:streameval_maturity_ratio:mean{job="$job", window="$window"}', segment)],
        "percentunit",
        "Share of the live impressions whose figures can no longer change.",
        {"min": 0, "max": 1},
    )
    yield _Panel("Users in the window", [(_figure("window_users:sum"), segment)])
    yield _Panel("Impressions in the window", [(_figure("window_impressions:sum"), segment)])
    yield _Panel(
        "Slates in the window",
        [
            (_figure("window_slates:sum"), segment),
            (_figure("window_slates_with_positive:sum"), f"{segment} with a positive"),
        ],
    )
    yield _row("Service")
    yield from _SERVICE
    yield _row("Offline")
    yield from _OFFLINE


def _row(title: str) -> _Panel:
    return _Panel(title, kind="row", size=(_COLUMNS, 1))


def _heading(metric: str) -> str:
    """Write a metric's name as people do: NDCG, Hit rate."""
    abbreviated = metric in {"map", "mrr", "ndcg"}
    return metric.upper() if abbreviated else metric.replace("_", " ").capitalize()


def _mean(name: str, title: str, label: str, segment: str) -> _Panel:
    """Build the panel of a mean with two standard errors below and above it."""
    mean = _figure(f"{name}:mean", label)
    error = f"2 * {_figure(f'{name}_stderr:mean', label)}"
    queries = [
        (mean, segment),
        (f"{mean} - {error}", f"{segment} - 2 se"),
        (f"{mean} + {error}", f"{segment} + 2 se"),
    ]
    share = label == "feedback" or name == "hit_rate"
    return _Panel(title, queries, "percentunit" if share else "none", _WITH_ERROR)


def _figure(series: str, *labels: str) -> str:
    chosen = ", ".join(f'{name}="${name}"' for name in ("job", "window", "basis", *labels))
    return f"job:streameval_{series}{{{chosen}}}"


def _of(series: str) -> str:
    return f'streameval_{series}{{job="$job"}}'


def _rate(series: str, function: str = "rate") -> str:
    return f"{function}({_of(series)}[$__rate_interval])"


def _by(label: str, title: str, query: str, unit: str, total: str = "sum") -> _Panel:
    """Build the panel of a query with a line for each value of `label`."""
    return _Panel(title, [(f"{total} by ({label}) ({query})", f"{{{{{label}}}}}")], unit)


_EVENTS: Final = f"sum({_rate('events_total')})"
_REJECTED: Final = f"sum({_rate('events_rejected_total')})"
_COMMITS: Final = _rate("commit_duration_seconds_bucket")
_SUMMARY: Final = tuple(
    _Panel(title, [(query, "")], unit, options=options, kind="stat", size=(width, 4))
    for title, query, unit, options, width in (
        ("Workers ready", f"sum({_of('ready')})", "short", {}, 4),
        ("Records to read", f"sum({_of('lag')})", "short", {}, 5),
        ("Events", _EVENTS, "cps", {}, 5),
        (
            "Rejected",
            f"{_REJECTED} / ({_EVENTS} + {_REJECTED})",
            "percentunit",
            {"decimals": 2},
            5,
        ),
        (
            "Event time behind the clock",
            f"max(time() - {_of('reading_time_timestamp_seconds')})",
            "s",
            {},
            5,
        ),
    )
)
_SERVICE: Final = (
    _by("event", "Events by kind", _rate("events_total"), "cps"),
    _by("reason", "Rejected by reason", _rate("events_rejected_total"), "cps"),
    _by("reason", "Feedback without an impression", _rate("unattributed_total"), "cps"),
    _by("partition", "Records to read by partition", _of("lag"), "short"),
    _Panel(
        "Commit to Redis, 99th percentile",
        [(f"histogram_quantile(0.99, sum by (le, instance) ({_COMMITS}))", "{{instance}}")],
        "s",
    ),
    _by("partition", "Checkpoint age by partition", _of("checkpoint_age_seconds"), "s", "max"),
    _Panel(
        "Memory of workers",
        [('process_resident_memory_bytes{job="$job"}', "{{instance}}")],
        "bytes",
    ),
    _by("instance", "Open slates", _of("open_slates"), "short"),
    _Panel(
        "Fences and lost events",
        [
            (f"sum({_rate('fences_total', 'increase')})", "fences"),
            (f"sum({_rate('events_lost_total', 'increase')})", "lost"),
        ],
    ),
)
_OFFLINE: Final = (
    _Panel(
        "Checks: 1 passed, 0 failed",
        [(f"min by (check) ({_of('check_passed')})", "{{check}}")],
        description="Checks of the newest snapshot; the leader runs them. A check without an answer"
        " has no line.",
        options={"min": 0, "max": 1},
    ),
    _Panel(
        "Time since checks ran",
        [
            (
                f"time() - max by (check) ({_of('check_last_run_timestamp_seconds')})",
                "{{check}}",
            )
        ],
        "s",
    ),
    _Panel(
        "Positive rate of the last whole day",
        [
            (f"max by (feedback) ({_of('daily_positive_rate')})", "{{feedback}}, all users"),
            (
                f"max by (feedback) ({_of('daily_positive_rate_gorse_v05')})",
                "{{feedback}}, users with a positive",
            ),
        ],
        "percentunit",
        "Over distinct items, UTC: the mean over all users with an impression, and over users with"
        " a positive.",
    ),
)


def _placed(panels: Iterator[_Panel]) -> Iterator[dict[str, Any]]:
    """Place the panels side by side, and below where a line is full."""
    x = y = height = 0
    for number, panel in zip(count(1), panels, strict=False):
        width = panel.size[0]
        if x + width > _COLUMNS:
            x, y = 0, y + height
        height = panel.size[1]
        where = {"h": height, "w": width, "x": x, "y": y}
        x += width
        yield _written(number, panel, where)


def _written(number: int, panel: _Panel, where: Mapping[str, int]) -> dict[str, Any]:
    """Write a panel as Grafana reads it."""
    head = {"id": number, "title": panel.title, "type": panel.kind, "gridPos": where}
    if panel.kind == "row":
        return head | {"collapsed": False, "panels": []}
    return head | {
        "description": panel.description,
        "datasource": _SOURCE,
        "targets": [
            {"refId": letter, "datasource": _SOURCE, "expr": query, "legendFormat": legend}
            for letter, (query, legend) in zip("ABC", panel.queries, strict=False)
        ],
        "fieldConfig": {"defaults": {"unit": panel.unit, **panel.options}, "overrides": []},
    }
