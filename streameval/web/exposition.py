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

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, product
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

from streameval.base.limits import MICRO
from streameval.core.delays import delay_edges
from streameval.core.figures import BASES, Figures, Row
from streameval.core.merged_segments import Segment
from streameval.core.metrics import (
    LIST_MEANS,
    RANKING,
    RATES,
    VALUE_MEANS,
    Rate,
    daily_positive_rate,
)
from streameval.experiments.words import Scorecard, gate
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
_BOUNDS: Final = [*map(floatToGoString, BUCKETS), "+Inf"]
_NO_FIGURES: Final = Figures(
    {name: [] for name in ("rates", "ranking", "values", "lists", "ranks", "nowcast", "maturity")}
)

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
        yield from figure_families(status)
        yield from _daily(status.daily)
        yield from _checks(status)
        yield from _experiments(status.scorecards if status.leader else ())


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
    (
        "batch_unreadable_offset",
        "First offset of the batch that cannot be read; absent while there is none",
        lambda p: p.unreadable_offset,
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
    yield _latencies(counters)


def _latencies(counters: ProcessCounters) -> Metric:
    text = "Time that the lists of slates took to make, as their events say"
    labels = list(counters.definition.dimensions)
    family = HistogramMetricFamily("streameval_latency_seconds", text, labels=labels)
    found = dict(counters.latencies)
    for segment, total in list(counters.latency_totals.items()):
        counts = accumulate(found.get((segment, index), 0) for index in range(len(BUCKETS) + 1))
        family.add_metric(_clean(segment), list(zip(_BOUNDS, counts, strict=True)), total / MICRO)
    return family


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
    for step, text, histogram in (
        (
            "batch_duration",
            "Time from a batch's first record to its commit",
            counters.batch_seconds,
        ),
        ("commit_duration", "Time of a commit to Redis, tries included", counters.commit_seconds),
        (
            "checkpoint_duration",
            "Time to encode and write a checkpoint",
            counters.checkpoint_seconds,
        ),
        (
            "freshness",
            "Time from a record's timestamp until the figures on this page hold it",
            counters.freshness_seconds,
        ),
    ):
        yield _histogram(step, text, histogram)
    yield _delays(counters)


def _histogram(step: str, text: str, histogram: Histogram) -> HistogramMetricFamily:
    family = HistogramMetricFamily(f"streameval_{step}_seconds", text)
    family.add_metric(
        [], list(zip(_BOUNDS, accumulate(histogram.counts), strict=True)), histogram.total
    )
    return family


def _delays(counters: ProcessCounters) -> HistogramMetricFamily:
    """Build the histogram of delays, with every fourth edge: the positives below it are exact."""
    edges = delay_edges(counters.definition.attribution_window)
    text = "Time from a slate to its first positive, when it is booked; the sum to a few per cent"
    family = HistogramMetricFamily("streameval_positive_delay_seconds", text, labels=["feedback"])
    bounds = list(map(floatToGoString, ((edge - 1) / 1000 for edge in edges[4::4])))
    middles = [(begin + end) / 2000 for begin, end in pairwise(edges)]
    for kind, counts in zip(counters.definition.kinds, counters.delays, strict=True):
        below = [0, *accumulate(counts)]
        buckets = list(zip(bounds, below[4::4], strict=False))
        total = sum(count * middle for count, middle in zip(counts, middles, strict=False))
        family.add_metric(_clean([kind]), [*buckets, ("+Inf", below[-1])], total)
    return family


@dataclass(frozen=True)
class _Grid:
    """Rows of figures by their labels, and all labels that have a sample.

    Labels are (window, basis, segment, key), the key being a kind of feedback or a k.
    """

    label_names: tuple[str, ...]
    label_sets: Sequence[Labels]
    rows: Mapping[Labels, Row]

    def family(
        self, name: str, text: str, column: str, empty: int | None, scale: float = 1.0
    ) -> Metric:
        """Build the gauge of `scale` times `column`.

        A place without a row gets `empty` (None: no sample).
        """
        family = _gauge(name, text, self.label_names)
        for labels in self.label_sets:
            row = self.rows.get(labels)
            value = empty if row is None else row[column]
            if value is not None:
                window, basis, segment, *key = labels
                value = value if scale == 1 else scale * value
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
    by_labels = {
        (row["window"], row["basis"], _segment(row, dimensions), row.get(label, "")): row
        for row in rows
    }
    # A nowcast may not be known, and is no count of nothing then.
    nowcasts = [labels for labels in by_labels if labels[1] == "nowcast"]
    return _Grid(
        ("window", "basis", *dimensions, label),
        [*product(windows, BASES, segments, keys), *nowcasts],
        by_labels,
    )


def _seen(figures: Figures, dimensions: Sequence[str]) -> set[Segment]:
    """Collect the segments that have an impression in any window: they show in all of them."""
    return {_segment(row, dimensions) for row in (*figures.rates, *figures.ranking)}


def _segment(row: Mapping[str, Any], dimensions: Sequence[str]) -> Segment:
    return tuple(row[dimension] for dimension in dimensions)


def figure_families(status: ServiceStatus) -> Iterator[Metric]:
    """Build the families of figures, all of them gauges."""
    figures = status.figures or _NO_FIGURES
    rates = _grid(status, "feedback", figures.rates, status.definition.kinds)
    users = rates.weights()
    yield users.family("window_users", "Users with an impression in the window", "users", 0)
    yield users.family("window_impressions", "Impressions in the window", "impressions", 0)
    yield rates.family("window_positives", "Positives in the window", "positives", 0)
    for rate in RATES:
        yield from _mean_of(rates, rate)
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
    yield from _values(status, figures)
    yield from _lists(status, figures)
    yield _maturity(figures.maturity, status.definition.dimensions)
    yield from _nowcasts(status, figures)


def _nowcasts(status: ServiceStatus, figures: Figures) -> Iterator[Metric]:
    """Build the gauges that tell how far to trust nowcasts."""
    dimensions = status.definition.dimensions
    for column, text, labels, rows in (
        (
            "observed",
            "Share of the positives expected of the live impressions that has come",
            ("feedback",),
            figures.nowcast,
        ),
        (
            "error",
            "Nowcast less matured, divided by matured: the last of each metric",
            ("metric", "feedback", "k"),
            status.nowcast_errors,
        ),
    ):
        names = ["window", *dimensions, *labels]
        family = _gauge(f"nowcast_{column}_ratio", text, names)
        for row in rows:
            family.add_metric(_clean([str(row[name]) for name in names]), row[f"{column}_ratio"])
        yield family


def _values(status: ServiceStatus, figures: Figures) -> Iterator[Metric]:
    kinds = [one.kind for one in status.definition.positives if one.value != "none"]
    values = _grid(status, "feedback", figures.values, kinds)
    yield values.family("window_value", "Sum of the values of the window, no cap", "value", 0)
    for mean in VALUE_MEANS:
        yield from _mean_of(values, mean)


def _lists(status: ServiceStatus, figures: Figures) -> Iterator[Metric]:
    lists = _grid(status, "", figures.lists, [""]).weights()
    for count, text in (
        ("empty_slates", "Slates that showed nothing in the window"),
        ("short_slates", "Slates with fewer items than the smallest k in the window"),
        ("fallback_slates", "Slates of the window that an event called a fallback"),
        ("abandoned_slates", "Slates without a positive in the window"),
        ("slates_with_latency", "Slates of the window with a latency"),
        ("positive_items", "Items with a positive in the slates of the window"),
    ):
        yield lists.family(f"window_{count}", text, count, 0)
    for mean in LIST_MEANS:
        yield from _mean_of(lists, mean)
    # Each segment has 21 ranks: one window and basis are enough to see the shape.
    window = max(status.definition.windows, key=lambda one: one.size).name
    dimensions = status.definition.dimensions
    labels = ["window", "basis", *dimensions, "rank"]
    impressions = _gauge("window_rank_impressions", "Impressions by rank of the slates", labels)
    positives = _gauge(
        "window_rank_positives", "Positives by rank of the slates", [*labels, "feedback"]
    )
    first = status.definition.kinds[0]
    for row in figures.ranks:
        if (row["window"], row["basis"]) != (window, "matured"):
            continue
        values = _clean([window, "matured", *_segment(row, dimensions), str(row["rank"])])
        positives.add_metric([*values, *_clean([row["feedback"]])], row["positives"])
        if row["feedback"] == first:
            impressions.add_metric(values, row["impressions"])
    yield impressions
    yield positives


def _mean_of(grid: _Grid, mean: Rate) -> Iterator[Metric]:
    name = mean.series or mean.name
    yield grid.family(name, mean.formula, mean.name, None, mean.scale)
    text = f"Standard error of {name}, clustered by user"
    yield grid.family(f"{name}_stderr", text, f"{mean.name}_stderr", None, mean.scale)


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


_ADJUSTED: Final[tuple[tuple[str, str, Callable[[Row], float | None]], ...]] = (
    (
        "difference",
        "The difference adjusted by the users' past (CUPED), as of a snapshot",
        lambda row: row["difference"],
    ),
    ("low", "Lower bound of the adjusted difference, at all looks", lambda row: row["low"]),
    ("high", "Upper bound of the adjusted difference, at all looks", lambda row: row["high"]),
    (
        "users_saved",
        "Share of the users that the adjustment saves",
        lambda row: row["users_saved"],
    ),
    (
        "timestamp_seconds",
        "Time of the snapshot that the adjusted difference is of",
        lambda row: _milliseconds(row["time"]),
    ),
)


def _experiments(cards: Sequence[Scorecard]) -> Iterator[Metric]:
    """Build the families of experiments; the leader judges those of the whole topic."""
    compared = [(card.name, row) for card in cards for row in card.rows]
    value = _gauge("experiment_value", "The metric in this arm, over final slates", _COMPARED)
    values = {
        (name, arm, row["metric"]): row[column]
        for name, row in compared
        for arm, column in ((row["control"], "control_value"), (row["arm"], "value"))
    }
    for key, number in values.items():
        if number is not None:
            value.add_metric(_clean(key), number)
    yield value
    for column, text in _COMPARISON:
        family = _gauge(f"experiment_{column}", text, _COMPARED)
        for name, row in compared:
            if row[column] is not None:
                family.add_metric(_clean([name, row["arm"], row["metric"]]), row[column])
        yield family
    judged = _gauge(
        "experiment_verdict",
        "1 better than the control, 0 no difference shown, -1 worse; no sample: too early to say",
        (*_COMPARED, "role"),
    )
    for name, row in compared:
        if row["verdict"] in _VERDICTS:
            labels = [name, row["arm"], row["metric"], row["role"]]
            judged.add_metric(_clean(labels), _VERDICTS[row["verdict"]])
    yield judged
    yield from _adjusted(cards)
    yield from _splits(cards)


def _adjusted(cards: Sequence[Scorecard]) -> Iterator[Metric]:
    adjusted = [(card.name, row) for card in cards for row in card.rows if "adjusted" in row]
    for column, text, number in _ADJUSTED:
        family = _gauge(f"experiment_adjusted_{column}", text, _COMPARED)
        for name, row in adjusted:
            present = number(row["adjusted"])
            if present is not None:
                family.add_metric(_clean([name, row["arm"], row["metric"]]), present)
        yield family


def _splits(cards: Sequence[Scorecard]) -> Iterator[Metric]:
    users = _gauge(
        "experiment_users", "Users who have been in this arm only", ("experiment", "arm")
    )
    for card in cards:
        for arm, count in card.split["users"].items():
            users.add_metric(_clean([card.name, arm]), count)
    yield users
    for name, text, number in _SPLIT:
        family = _gauge(f"experiment_{name}", text, ("experiment",))
        for card in cards:
            present = number(card)
            if present is not None:
                family.add_metric(_clean([card.name]), present)
        yield family


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
        lambda card: _milliseconds(card.since),
    ),
    (
        "gate",
        "What the gate of a release says: 1 passed, 0 open, -1 failed",
        lambda card: _GATE[gate(card)],
    ),
)
