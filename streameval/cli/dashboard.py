"""Grafana's dashboards over the recorded figures, for the dimensions of a configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from streameval.cli.grafana import Panel, document, row, variable
from streameval.core.metrics import LIST_MEANS, RANKING, RATES, VALUE_MEANS

_WITH_ERROR: Final = "The mean, and two standard errors (clustered by user) below and above it."
_FROM_ZERO: Final = {"min": 0}


def dashboard(dimensions: Sequence[str]) -> str:
    """Return the JSON of the dashboard of all figures and of the service."""
    return document(
        "",
        "Figures of all workers together (recorded by the rules of `streameval rules`), and the"
        " service that computes them.",
        [*_variables(), _BASIS, *_choices()],
        _panels(_segment(dimensions)),
    )


def quality(dimensions: Sequence[str]) -> str:
    """Return the JSON of the dashboard that compares the stream with its usual state."""
    return document(
        "quality",
        "What producers send and how good the lists are, live and matured, beside what is usual.",
        [*_variables(), *_choices()],
        _quality(dimensions),
    )


def _segment(dimensions: Sequence[str]) -> str:
    """Write the legend of a segment."""
    return " ".join(f"{{{{{name}}}}}" for name in dimensions)


_BASIS: Final = {
    "name": "basis",
    "type": "custom",
    "query": "matured,nowcast,live",
    "current": {"text": "matured", "value": "matured"},
    "options": [
        {"text": basis, "value": basis, "selected": basis == "matured"}
        for basis in ("matured", "nowcast", "live")
    ],
}


def _variables() -> Iterator[dict[str, Any]]:
    yield variable("job", "label_values(streameval_info, job)")
    yield variable("window", _values("window_users:sum", "window"))


def _choices() -> Iterator[dict[str, Any]]:
    yield variable("feedback", _values("positive_rate:mean", "feedback"))
    yield variable("k", _values("ndcg:mean", "k"))


def _values(series: str, label: str) -> str:
    return f'label_values(job:streameval_{series}{{job="$job"}}, {label})'


def _panels(segment: str) -> Iterator[Panel]:
    """All panels in reading order; `segment` is the legend of a segment."""
    yield from _SUMMARY
    yield row("Figures: $basis, $window")
    yield _mean("positive_rate", "Positive rate of $feedback: mean over users", "feedback", segment)
    yield _mean("positives_per_impression", "$feedback per impression", "feedback", segment)
    for metric in RANKING:
        yield _mean(metric.name, f"{_heading(metric.name)}@$k", "k", segment)
    yield Panel(
        "Maturity",
        [('job:streameval_maturity_ratio:mean{job="$job", window="$window"}', segment)],
        "percentunit",
        "Share of the live impressions whose figures can no longer change.",
        {"min": 0, "max": 1},
    )
    yield Panel("Users in the window", [(_figure("window_users:sum"), segment)])
    yield Panel("Impressions in the window", [(_figure("window_impressions:sum"), segment)])
    yield Panel(
        "Slates in the window",
        [
            (_figure("window_slates:sum"), segment),
            (_figure("window_slates_with_positive:sum"), f"{segment} with a positive"),
        ],
    )
    yield row("Service")
    yield from _SERVICE
    yield row("Offline")
    yield from _OFFLINE


def _quality(dimensions: Sequence[str]) -> Iterator[Panel]:
    """All panels of the dashboard of quality, in reading order."""
    segment = _segment(dimensions)
    yield from _against_usual(segment)
    yield row("Rates of $feedback, $window")
    for rate in RATES:
        yield _bases(rate.name, segment, "percentunit", "feedback")
    duplicates = f"sum({_rate('duplicates_total')})"
    new = " + ".join(f"sum({_rate(name)})" for name in ("impressions_total", "positives_total"))
    yield Panel(
        "Duplicates",
        [(f"{duplicates} / ({duplicates} + {new})", "duplicates")],
        "percentunit",
        "Of impressions and positives. An alert fires above 25 %.",
        _FROM_ZERO,
    )
    yield row("Ranking at $k, $window")
    for metric in RANKING:
        share = metric.name == "hit_rate"
        yield _bases(metric.name, segment, "percentunit" if share else "none", "k")
    yield row("Lists, $window")
    for mean in LIST_MEANS:
        yield _bases(mean.series or mean.name, segment, _UNITS.get(mean.name, "percentunit"))
    yield row("Values, $window")
    for mean in VALUE_MEANS:
        yield _bases(mean.name, f"{{{{feedback}}}} {segment}", "none")
    yield row("Ranks of $feedback")
    yield Panel(
        "Positives per impression by rank",
        [(_by_rank(dimensions), f"{{{{rank}}}} {segment}")],
        "percentunit",
        "Of the longest window, matured. 21+ holds all ranks after 20.",
        _FROM_ZERO,
    )


def _against_usual(segment: str) -> Iterator[Panel]:
    """Build the panels of the figures that the alerts by comparison compare."""
    yield row("Against what is usual (the median of the last day; 1: as usual)")
    yield Panel(
        "Slates and feedback",
        [
            (_recorded("requests:of_usual"), "slates and single impressions"),
            (_recorded("feedback:of_usual"), "feedback for each"),
        ],
        "percentunit",
        "Alerts fire below 2 % and 10 %.",
        _FROM_ZERO,
    )
    yield Panel(
        "Feedback by kind",
        [(_recorded("feedback_kind:of_usual"), "{{feedback}}")],
        "percentunit",
        "Feedback for each slate or single impression. An alert fires below 10 %.",
        _FROM_ZERO,
    )
    yield Panel(
        "Share of the impressions",
        [(_recorded("impressions:share"), "{{dimension}} {{value}}")],
        "percentunit",
        "Of each value of each dimension, in ten minutes. An alert fires below 2 % of the usual.",
        {"min": 0, "max": 1},
    )
    for name, label in (*((rate.name, "feedback") for rate in RATES), ("ndcg", "k")):
        yield Panel(
            f"{_heading(name)}, live",
            [(_recorded(f"{name}:of_usual", label), f"{{{{window}}}} {segment}")],
            "percentunit",
            "Of the usual, by window. An alert fires below 50 % where chance cannot be the cause.",
            _FROM_ZERO,
        )


_UNITS: Final = {"mean_rank_of_positives": "none", "latency_ms_mean": "s"}
"""Units of the health of lists that are no shares."""


def _bases(name: str, segment: str, unit: str, *labels: str) -> Panel:
    """Build the panel of a mean on all bases; `labels` are those that a variable chooses."""
    query = _recorded(f"{name}:mean", "window", *labels)
    return Panel(_heading(name), [(query, f"{{{{basis}}}} {segment}")], unit)


def _by_rank(dimensions: Sequence[str]) -> str:
    """Write the share of impressions at each rank that have a positive, over all workers."""
    total = f"sum by ({', '.join(('rank', *dimensions))})"
    kind = 'job="$job", feedback="$feedback"'
    return (
        f"{total} (streameval_window_rank_positives{{{kind}}})"
        f" / {total} ({_of('window_rank_impressions')})"
    )


def _recorded(series: str, *labels: str) -> str:
    chosen = ", ".join(f'{name}="${name}"' for name in ("job", *labels))
    return f"job:streameval_{series}{{{chosen}}}"


def _heading(metric: str) -> str:
    """Write a metric's name as people do: NDCG, Hit rate."""
    abbreviated = metric in {"map", "mrr", "ndcg"}
    return metric.upper() if abbreviated else metric.replace("_", " ").capitalize()


def _mean(name: str, title: str, label: str, segment: str) -> Panel:
    """Build the panel of a mean with two standard errors below and above it."""
    mean = _figure(f"{name}:mean", label)
    error = f"2 * {_figure(f'{name}_stderr:mean', label)}"
    queries = [
        (mean, segment),
        (f"{mean} - {error}", f"{segment} - 2 se"),
        (f"{mean} + {error}", f"{segment} + 2 se"),
    ]
    share = label == "feedback" or name == "hit_rate"
    return Panel(title, queries, "percentunit" if share else "none", _WITH_ERROR)


def _figure(series: str, *labels: str) -> str:
    return _recorded(series, "window", "basis", *labels)


def _of(series: str) -> str:
    return f'streameval_{series}{{job="$job"}}'


def _rate(series: str, function: str = "rate") -> str:
    return f"{function}({_of(series)}[$__rate_interval])"


def _by(label: str, title: str, query: str, unit: str, total: str = "sum") -> Panel:
    """Build the panel of a query with a line for each value of `label`."""
    return Panel(title, [(f"{total} by ({label}) ({query})", f"{{{{{label}}}}}")], unit)


_EVENTS: Final = f"sum({_rate('events_total')})"
_REJECTED: Final = f"sum({_rate('events_rejected_total')})"
_COMMITS: Final = _rate("commit_duration_seconds_bucket")
_SUMMARY: Final = tuple(
    Panel(title, [(query, "")], unit, options=options, kind="stat", size=(width, 4))
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
    Panel(
        "Commit to Redis, 99th percentile",
        [(f"histogram_quantile(0.99, sum by (le, instance) ({_COMMITS}))", "{{instance}}")],
        "s",
    ),
    _by("partition", "Checkpoint age by partition", _of("checkpoint_age_seconds"), "s", "max"),
    Panel(
        "Memory of workers",
        [('process_resident_memory_bytes{job="$job"}', "{{instance}}")],
        "bytes",
    ),
    _by("instance", "Open slates", _of("open_slates"), "short"),
    Panel(
        "Fences and lost events",
        [
            (f"sum({_rate('fences_total', 'increase')})", "fences"),
            (f"sum({_rate('events_lost_total', 'increase')})", "lost"),
        ],
    ),
)
_OFFLINE: Final = (
    Panel(
        "Checks: 1 passed, 0 failed",
        [(f"min by (check) ({_of('check_passed')})", "{{check}}")],
        description="Checks of the newest snapshot; the leader runs them. A check without an answer"
        " has no line.",
        options={"min": 0, "max": 1},
    ),
    Panel(
        "Time since checks ran",
        [
            (
                f"time() - max by (check) ({_of('check_last_run_timestamp_seconds')})",
                "{{check}}",
            )
        ],
        "s",
    ),
    Panel(
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
