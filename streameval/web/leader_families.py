"""The leader's part of the `/metrics` page: daily rates, checks, experiments."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client.core import Metric

from streameval.core.figures import Row
from streameval.core.metrics import daily_positive_rate
from streameval.experiments.words import Scorecard, gate
from streameval.web.figure_families import gauge, seconds, single
from streameval.web.status import CheckStatus, DailyStatus, ServiceStatus


def daily_families(daily: DailyStatus | None) -> Iterator[Metric]:
    """Build the families of the last whole day."""
    rates = [] if daily is None else daily.rates
    for metric in daily_positive_rate.METRICS:
        yield gauge(
            metric.name,
            f"Of the last whole day: {metric.formula}",
            ("feedback",),
            (([row["feedback"]], row[metric.name]) for row in rates),
        )
    yield single(
        "daily_users",
        "Users with an impression on the last whole day",
        None if daily is None else daily.users,
    )
    yield single(
        "daily_start_timestamp_seconds",
        "Beginning of the whole day that the daily figures cover",
        None if daily is None else daily.begin,
    )


_CHECK: Final[tuple[tuple[str, str, Callable[[CheckStatus], float | None]], ...]] = (
    ("value", "Measured value of the check, in its own unit", lambda c: c.value),
    ("last_run_timestamp_seconds", "End of the last run of the check", lambda c: c.time),
    ("duration_seconds", "Duration of the last run of the check", lambda c: c.seconds),
    (
        "unanswered_seconds",
        "Time for which a result of the check has been due and missing",
        lambda c: c.unanswered_seconds,
    ),
)


def check_families(status: ServiceStatus) -> Iterator[Metric]:
    """Build the families of the offline checks."""
    yield gauge(
        "check_passed",
        "1 when the check passed, 0 when it failed",
        ("check", "severity"),
        (([check.name, check.severity], check.passed) for check in status.checks),
    )
    for name, text, value in _CHECK:
        values = (([check.name], value(check)) for check in status.checks)
        yield gauge(f"check_{name}", text, ("check",), values)
    yield single(
        "check_interval_seconds", "Time between two runs of the checks", status.check_interval
    )
    yield single(
        "check_running_seconds",
        "Time that the checks under way have run so far",
        status.check_running,
    )


# Numbers of the words that Prometheus cannot hold; "not yet" has no sample.
_VERDICTS: Final = {"worse": -1, "no difference shown": 0, "better": 1}
_COMPARED: Final = ("experiment", "arm", "metric")
_COMPARISON: Final = (
    ("difference", "The arm's value of the metric less the control's"),
    ("relative_difference", "The difference as a share of the control's value"),
    ("low", "Lower bound of the difference, which holds at all looks together"),
    ("high", "Upper bound of the difference, which holds at all looks together"),
    (
        "users_needed",
        "Users of both arms still needed until the metric is decided, if it stays as it is",
    ),
)


# Figures beside the rows, by their key: what they are.
_BESIDE: Final = {
    "adjusted": "adjusted by the users' past (CUPED)",
    "without_crossed": "without the users of several arms",
}
_BESIDE_COLUMNS: Final[tuple[tuple[str, str, Callable[[Row], float | None]], ...]] = (
    ("difference", "The difference {how}, as of a snapshot", lambda row: row["difference"]),
    ("low", "Lower bound of the difference {how}, at all looks", lambda row: row["low"]),
    ("high", "Upper bound of the difference {how}, at all looks", lambda row: row["high"]),
    (
        "timestamp_seconds",
        "Time of the snapshot behind the difference {how}",
        lambda row: seconds(row["time"]),
    ),
)


def experiment_families(cards: Sequence[Scorecard]) -> Iterator[Metric]:
    """Build the families of experiments; the leader judges the whole topic."""
    compared = [(card.name, row) for card in cards for row in card.rows]
    values = {
        (name, arm, row["metric"]): row[column]
        for name, row in compared
        for arm, column in ((row["control"], "control_value"), (row["arm"], "value"))
    }
    text = "The metric in this arm, over final slates"
    yield gauge("experiment_value", text, _COMPARED, values.items())
    for column, text in _COMPARISON:
        samples = ((_labels(name, row), row[column]) for name, row in compared)
        yield gauge(f"experiment_{column}", text, _COMPARED, samples)
    yield gauge(
        "experiment_verdict",
        "1 better than the control, 0 no difference shown, -1 worse; no sample: too early to say",
        (*_COMPARED, "role"),
        (
            ((*_labels(name, row), row["role"]), _VERDICTS.get(row["verdict"]))
            for name, row in compared
        ),
    )
    for key, how in _BESIDE.items():
        beside = [(name, row) for name, row in compared if key in row]
        for column, text, number in _BESIDE_COLUMNS:
            samples = ((_labels(name, row), number(row[key])) for name, row in beside)
            yield gauge(f"experiment_{key}_{column}", text.format(how=how), _COMPARED, samples)
    text = "Share of the users that the adjustment saves"
    saved = (
        (_labels(name, row), row["adjusted"]["users_saved"])
        for name, row in compared
        if "adjusted" in row
    )
    yield gauge("experiment_adjusted_users_saved", text, _COMPARED, saved)
    yield from _splits(cards)


def _labels(name: str, row: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the values of `_COMPARED`."""
    return name, row["arm"], row["metric"]


def _splits(cards: Sequence[Scorecard]) -> Iterator[Metric]:
    yield gauge(
        "experiment_users",
        "Users who have been in this arm only",
        ("experiment", "arm"),
        (([card.name, arm], count) for card in cards for arm, count in card.split["users"].items()),
    )
    for name, text, number in _SPLIT:
        samples = (([card.name], number(card)) for card in cards)
        yield gauge(f"experiment_{name}", text, ("experiment",), samples)
    for name, text in _WITHOUT_ARM.items():
        counts = (([card.name], card.split[name]) for card in cards)
        yield gauge(f"experiment_{name}", text, ("experiment",), counts)


_WITHOUT_ARM: Final = {
    "without_arm": "Slates without an arm, which the figures leave out",
    "without_arm_share": "Share of the slates that have no arm",
    "without_arm_fallback": "Slates without an arm that are fallbacks",
    "without_arm_empty": "Slates without an arm that are empty",
}
_GATE: Final = {"passed": 1, "open": 0, "failed": -1}
_SPLIT: Final[tuple[tuple[str, str, Callable[[Scorecard], float | None]], ...]] = (
    (
        "crossed_users",
        "Users who have been in several arms",
        lambda card: card.split["crossed_users"],
    ),
    (
        "crossed_evidence",
        "Natural logarithm of the evidence that more than 1 % of the users crossed",
        lambda card: math.log(1 / max(card.crossed.p_value, sys.float_info.min)),
    ),
    (
        "split_evidence",
        "Natural logarithm of the evidence against the configured split",
        lambda card: card.split["log_evidence"],
    ),
    (
        "start_timestamp_seconds",
        "Time from which slates count for the experiment",
        lambda card: seconds(card.since),
    ),
    (
        "gate",
        "Result of a release's gate: 1 passed, 0 open, -1 failed",
        lambda card: _GATE[gate(card)],
    ),
)
