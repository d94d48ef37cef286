"""The `/metrics` page: one collector that reads the last `ServiceStatus` at each scrape.

Rules of the page (docs/metrics.md says them to its readers):

1. Names begin with `streameval_`, units are base units, only counters end in `_total`, ratios lie
   in 0-1, no label is called `type`. Names never come from input; label values come from bounded
   sets: the definition, the segments (`max_segments`), closed sets of reasons.
2. HELP of a figure is its formula, from the catalogue in `core.metrics`.
3. Empty is not zero: a figure that is undefined has no sample, a count of nothing is 0. A segment
   once seen shows its counts in every window until no window holds an impression of it.
4. A mean and its weight carry the same labels (less `feedback` or `k`), so that figures of workers
   combine exactly: `sum(mean * weight) / sum(weight)`, see deploy/prometheus/rules.yml.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from streameval.core.figures import BASES, Figures, Row, Segment
from streameval.core.metrics import RANKING, RATES, daily_positive_rate
from streameval.web.status import (
    BUCKETS,
    CheckStatus,
    DailyStatus,
    Histogram,
    PartitionStatus,
    ProcessCounters,
    ServiceStatus,
)

_KIND: Final = ("feedback",)
_NO_FIGURES: Final = Figures({"rates": [], "ranking": [], "maturity": []})

Labels = tuple[Any, ...]
"""Label values of a sample: window, basis, segment, and a kind of feedback or a k if it has one."""


class Exposition(Collector):
    """Every family of streameval; `status` gives the description to show."""

    def __init__(self, status: Callable[[], ServiceStatus]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Build the page's families from one and the same description."""
        status = self._status()
        yield from _service(status)
        yield from _partitions(status.partitions)
        yield from _events(status.counters)
        yield from _segments(status.counters)
        yield from _work(status.counters)
        yield from _figures(status)
        yield from _daily(status.daily)
        yield from _checks(status)


def registry(status: Callable[[], ServiceStatus]) -> CollectorRegistry:
    """Make the registry of a worker's page: streameval's families and the process's own."""
    made = CollectorRegistry()
    made.register(Exposition(status))
    ProcessCollector(registry=made)
    return made


def page(source: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """Render the page as the `Accept` header asks (OpenMetrics or text): body, content type."""
    encode, content_type = choose_encoder(accept)
    return encode(source), content_type


def _gauge(name: str, text: str, labels: Sequence[str] = ()) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"streameval_{name}", text, labels=labels)


def _single(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"streameval_{name}", text, value=value)


def _counter(
    name: str, text: str, labels: Sequence[str], counts: Iterable[tuple[Sequence[str], int]]
) -> CounterMetricFamily:
    family = CounterMetricFamily(f"streameval_{name}", text, labels=labels)
    for values, count in counts:
        family.add_metric(_clean(values), count)
    return family


def _clean(values: Sequence[str]) -> list[str]:
    """Replace lone surrogates: a single one would make the whole page fail."""
    return [value.encode("utf-8", "replace").decode() for value in values]


def _service(status: ServiceStatus) -> Iterator[Metric]:
    about = {"version": status.version, "topic": status.topic, "group": status.group}
    yield InfoMetricFamily("streameval", "What runs here", value=about)
    yield _single(
        "ready", "1 when both servers answer and every partition is restored", not status.unready()
    )
    yield _single("broker_up", "1 when Kafka answered the last probe", status.broker_up)
    yield _single("store_up", "1 when Redis answered the last call", status.store_up)
    yield _single("leader", "1 on the worker that holds the lease of the group", status.leader)
    token = _gauge("leader_fencing_token", "The fencing token of the lease, on the leader only")
    if status.leader and status.fencing_token is not None:
        token.add_metric([], status.fencing_token)
    yield token


def _milliseconds(value: int | None) -> float | None:
    return None if value is None else value / 1000


_PARTITION: Final[tuple[tuple[str, str, Callable[[PartitionStatus], float | None]], ...]] = (
    ("lag", "Records of the partition that are not committed yet", lambda p: p.lag),
    ("committed_offset", "The offset that Redis holds", lambda p: p.committed_offset),
    (
        "watermark_timestamp_seconds",
        "Event time: the largest accepted ts",
        lambda p: _milliseconds(p.watermark),
    ),
    (
        "reading_time_timestamp_seconds",
        "Event time at which windows are read (T): the watermark, later while idle",
        lambda p: _milliseconds(p.reading_time),
    ),
    ("open_slates", "Slates that can still change", lambda p: p.open_slates),
    (
        "users",
        "Users in windows, once in each of their segments; departed ones until the next clearing",
        lambda p: p.users,
    ),
    (
        "checkpoint_age_seconds",
        "Time since the last checkpoint",
        lambda p: p.checkpoint_age_seconds,
    ),
    (
        "checkpoint_size_bytes",
        "Size of the checkpoint in Redis, all chunks",
        lambda p: p.checkpoint_bytes,
    ),
    (
        "batch_unreadable",
        "1 while the partition waits before a batch that cannot be read; /readyz names it",
        lambda p: bool(p.unreadable),
    ),
    ("restoring", "1 while state is read again after an assignment", lambda p: p.restoring),
)


def _partitions(partitions: Sequence[PartitionStatus]) -> Iterator[Metric]:
    for name, text, value in _PARTITION:
        family = _gauge(name, text, ["partition"])
        for partition in partitions:
            present = value(partition)
            if present is not None:
                family.add_metric([str(partition.partition)], present)
        yield family


def _events(counters: ProcessCounters) -> Iterator[Metric]:
    for name, text, label, counts in (
        ("events", "Events accepted and committed, by kind of event", "event", counters.events),
        (
            "events_rejected",
            "Events rejected, counted and sent to the dead-letter topic",
            "reason",
            counters.rejected,
        ),
        ("feedback", "Feedback accepted, by its kind", "feedback", counters.feedback),
        (
            "unattributed",
            "Positive feedback without an impression that gets the credit",
            "reason",
            counters.unattributed,
        ),
        (
            "overflow",
            "Segments, items of a slate and feedback in outcome files beyond a bound",
            "bound",
            counters.overflow,
        ),
    ):
        yield _counter(name, text, [label], (([key], count) for key, count in list(counts.items())))


def _segments(counters: ProcessCounters) -> Iterator[Metric]:
    dimensions = list(counters.definition.dimensions)
    for name, text, by_segment in (
        ("impressions", "Impressions counted", counters.impressions),
        (
            "impressions_taken_back",
            "Impressions that moved to another segment or slate after they were counted",
            counters.impressions_retracted,
        ),
    ):
        yield _counter(name, text, dimensions, list(by_segment.items()))
    for name, text, by_kind in (
        ("positives", "Positives attributed to an impression", counters.positives),
        (
            "positives_taken_back",
            "Positives retracted, or moved to a nearer impression after they were counted",
            counters.positives_retracted,
        ),
    ):
        counts = (([*segment, kind], count) for (segment, kind), count in list(by_kind.items()))
        yield _counter(name, text, [*dimensions, "feedback"], counts)


def _work(counters: ProcessCounters) -> Iterator[Metric]:
    for name, text, count in (
        (
            "duplicates",
            "Impressions already in their slate, and repeated or retracted feedback",
            counters.duplicates,
        ),
        ("ignored", "Feedback of a kind that is not configured as a positive", counters.ignored),
        (
            "key_mismatches",
            "Records whose key is not their user_id: the user may live in two partitions",
            counters.key_mismatches,
        ),
        ("dead_letters", "Records written to the dead-letter topic", counters.dead_letters),
        (
            "dead_letters_refused",
            "Rejected records that the dead-letter topic does not take in any form",
            counters.dead_letters_refused,
        ),
        (
            "events_lost",
            "Records the log no longer held when they were to be read",
            counters.events_lost,
        ),
        ("commits", "Batches committed to Redis", counters.commits),
        (
            "fences",
            "Commits refused because another owner had moved the offset",
            counters.fences,
        ),
        ("checkpoints", "Checkpoints written to Redis", counters.checkpoints),
    ):
        yield _counter(name, text, [], [((), count)])
    yield _histogram("batch", "Time from a batch's first record to its commit", counters)
    yield _histogram("commit", "Time of a commit to Redis, tries included", counters)
    yield _histogram("checkpoint", "Time to encode and write a checkpoint", counters)


def _histogram(step: str, text: str, counters: ProcessCounters) -> HistogramMetricFamily:
    histogram: Histogram = getattr(counters, f"{step}_seconds")
    bounds = [*map(floatToGoString, BUCKETS), "+Inf"]
    family = HistogramMetricFamily(f"streameval_{step}_duration_seconds", text)
    family.add_metric(
        [], list(zip(bounds, accumulate(histogram.counts), strict=True)), histogram.total
    )
    return family


@dataclass(frozen=True)
class _Grid:
    """Rows of figures by their labels, and all labels that have a sample.

    Labels are (window, basis, segment, key), the key being a kind of feedback or a k.
    """

    label_names: tuple[str, ...]
    label_sets: Sequence[Labels]
    rows: Mapping[Labels, Row]

    def family(self, name: str, text: str, column: str, empty: int | None) -> Metric:
        """Build the gauge of `column`; a place without a row gets `empty` (None: no sample)."""
        family = _gauge(name, text, self.label_names)
        for labels in self.label_sets:
            row = self.rows.get(labels)
            value = empty if row is None else row[column]
            if value is not None:
                window, basis, segment, *key = labels
                family.add_metric(_clean([window, basis, *segment, *map(str, key)]), value)
        return family

    def weights(self) -> _Grid:
        """Drop the key, for the counts that are the same for every key."""
        return _Grid(
            self.label_names[:-1],
            list(dict.fromkeys(labels[:-1] for labels in self.label_sets)),
            {labels[:-1]: row for labels, row in self.rows.items()},
        )


def _grid(status: ServiceStatus, label: str, rows: Sequence[Row], keys: Sequence[Any]) -> _Grid:
    dimensions = status.definition.dimensions
    windows = [window.name for window in status.definition.windows]
    segments = sorted(_seen(status.figures or _NO_FIGURES, dimensions))
    return _Grid(
        ("window", "basis", *dimensions, label),
        list(product(windows, BASES, segments, keys)),
        {(row["window"], row["basis"], _segment(row, dimensions), row[label]): row for row in rows},
    )


def _seen(figures: Figures, dimensions: Sequence[str]) -> set[Segment]:
    """Collect the segments that have an impression in any window: they show in all of them."""
    return {_segment(row, dimensions) for row in (*figures.rates, *figures.ranking)}


def _segment(row: Row, dimensions: Sequence[str]) -> Segment:
    return tuple(row[dimension] for dimension in dimensions)


def _figures(status: ServiceStatus) -> Iterator[Metric]:
    figures = status.figures or _NO_FIGURES
    rates = _grid(status, "feedback", figures.rates, status.definition.kinds)
    users = rates.weights()
    yield users.family("window_users", "Users with an impression in the window", "users", 0)
    yield users.family("window_impressions", "Impressions in the window", "impressions", 0)
    yield rates.family("window_positives", "Positives in the window", "positives", 0)
    for rate in RATES:
        yield from _mean(rates, rate.name, rate.formula)
    ranking = _grid(status, "k", figures.ranking, status.definition.ks)
    slates = ranking.weights()
    yield slates.family("window_slates", "Slates with a request_id in the window", "slates", 0)
    yield slates.family(
        "window_slates_with_positive",
        "Slates with a request_id in the window that have a positive",
        "slates_with_positive",
        0,
    )
    for metric in RANKING:
        yield from _mean(ranking, metric.name, metric.formula)
    yield _maturity(figures.maturity, status.definition.dimensions)


def _mean(grid: _Grid, name: str, formula: str) -> Iterator[Metric]:
    yield grid.family(name, formula, name, None)
    stderr = f"{name}_stderr"
    yield grid.family(stderr, f"Standard error of {name}, clustered by user", stderr, None)


def _maturity(rows: Sequence[Row], dimensions: Sequence[str]) -> Metric:
    text = "Share of the live impressions whose figures can no longer change"
    family = _gauge("maturity_ratio", text, ["window", *dimensions])
    for row in rows:
        if row["maturity"] is not None:
            family.add_metric(_clean([row["window"], *_segment(row, dimensions)]), row["maturity"])
    return family


def _daily(daily: DailyStatus | None) -> Iterator[Metric]:
    rates = [] if daily is None else daily.rates
    for metric in daily_positive_rate.METRICS:
        family = _gauge(f"daily_{metric.name}", f"Of the last whole day: {metric.formula}", _KIND)
        for row in rates:
            if row[metric.name] is not None:
                family.add_metric([row["feedback"]], row[metric.name])
        yield family
    users = _gauge("daily_users", "Users with an impression on the last whole day")
    begin = _gauge(
        "daily_start_timestamp_seconds", "Beginning of the whole day that the daily figures cover"
    )
    if daily is not None:
        users.add_metric([], daily.users)
        begin.add_metric([], daily.begin)
    yield users
    yield begin


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


def _checks(status: ServiceStatus) -> Iterator[Metric]:
    passed = _gauge(
        "check_passed", "1 when the check passed, 0 when it failed", ["check", "severity"]
    )
    for check in status.checks:
        if check.passed is not None:
            passed.add_metric([check.name, check.severity], check.passed)
    yield passed
    for name, text, value in _CHECK:
        family = _gauge(f"check_{name}", text, ["check"])
        for check in status.checks:
            present = value(check)
            if present is not None:
                family.add_metric([check.name], present)
        yield family
    interval = _gauge("check_interval_seconds", "Time between two runs of the checks")
    if status.check_interval is not None:
        interval.add_metric([], status.check_interval)
    yield interval
    running = _gauge("check_running_seconds", "Time that the checks under way have run so far")
    if status.check_running is not None:
        running.add_metric([], status.check_running)
    yield running
