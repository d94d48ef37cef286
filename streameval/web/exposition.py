"""The `/metrics` page: one collector that reads the last `ServiceStatus` at each scrape.

Rules of the page (docs/metrics.md says them to its readers):

1. Names begin with `streameval_`, units are base units, only counters end in `_total`, ratios lie
   in 0-1, no label is called `type`. Names never come from input; label values come from bounded
   sets: the definition, the segments (`max_segments`), closed sets of reasons.
2. HELP of a figure is its formula, from `core.metrics`.
3. Empty is not zero: a figure that is undefined has no sample, a count of nothing is 0. A segment
   once seen shows its counts in every window until no window holds an impression of it.
4. A mean and its weight carry the same labels (less `feedback` or `k`), so that figures of workers
   combine exactly: `sum(mean * weight) / sum(weight)`, see deploy/prometheus/rules.yml.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import HistogramMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from streameval.base.limits import MICRO
from streameval.core.delays import delay_edges
from streameval.web.figure_families import clean, counter, figure_families, gauge, seconds, single
from streameval.web.leader_families import check_families, daily_families, experiment_families
from streameval.web.status import (
    BUCKETS,
    Histogram,
    PartitionStatus,
    ProcessCounters,
    ServiceStatus,
)

_BOUNDS: Final = [*map(floatToGoString, BUCKETS), "+Inf"]


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
        yield from daily_families(status.daily)
        yield from check_families(status)
        yield from experiment_families(status.scorecards if status.leader else ())


def registry(status: Callable[[], ServiceStatus]) -> CollectorRegistry:
    """Make the registry of a worker's page: streameval's families and the process's own."""
    made = CollectorRegistry()
    made.register(Exposition(status))
    ProcessCollector(registry=made)
    return made


def writer(accept: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    """Return what writes the page as `Accept` asks (OpenMetrics or text), and its content type."""
    encode, content_type = choose_encoder(accept)
    return encode, content_type


def page(source: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """Write the page as the `Accept` header asks: body, content type."""
    encode, content_type = writer(accept)
    return encode(source), content_type


def _service(status: ServiceStatus) -> Iterator[Metric]:
    about = {"version": status.version, "topic": status.topic, "group": status.group}
    yield InfoMetricFamily("streameval", "What runs here", value=about)
    yield single(
        "ready", "1 when both servers answer and every partition is restored", not status.unready()
    )
    yield single("broker_up", "1 when Kafka answered the last probe", status.broker_up)
    yield single("store_up", "1 when Redis answered the last call", status.store_up)
    yield single("leader", "1 on the worker that holds the lease of the group", status.leader)
    yield single(
        "leader_fencing_token",
        "The fencing token of the lease, on the leader only",
        status.fencing_token if status.leader else None,
    )
    yield single(
        "topic_partitions",
        "Partitions of the topic, this worker's or not",
        status.topic_partitions or None,
    )
    settings = InfoMetricFamily(
        "streameval_setting",
        "Digests of the settings that all workers of a group need alike",
        labels=("setting",),
    )
    for key, digest in status.digests.items():
        settings.add_metric((key,), {"digest": digest})
    yield settings


_PARTITION: Final[tuple[tuple[str, str, Callable[[PartitionStatus], float | None]], ...]] = (
    ("lag", "Records of the partition that are not committed yet", lambda p: p.lag),
    ("committed_offset", "The offset that Redis holds", lambda p: p.committed_offset),
    (
        "watermark_timestamp_seconds",
        "Event time: the largest accepted ts",
        lambda p: seconds(p.watermark),
    ),
    (
        "reading_time_timestamp_seconds",
        "Event time at which windows are read (T): the watermark, later while idle",
        lambda p: seconds(p.reading_time),
    ),
    ("open_slates", "Slates that can still change", lambda p: p.open_slates),
    (
        "users",
        "Users in windows, once in each of their segments, departed users until the next clearing",
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
        samples = (([str(each.partition)], value(each)) for each in partitions)
        yield gauge(name, text, ["partition"], samples)


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
        yield counter(name, text, [label], (([key], count) for key, count in list(counts.items())))


def _segments(counters: ProcessCounters) -> Iterator[Metric]:
    dimensions = list(counters.definition.dimensions)
    for name, text, by_segment in (
        ("impressions", "Impressions counted", counters.impressions),
        (
            "impressions_retracted",
            "Impressions that moved to another segment or slate after they were counted",
            counters.impressions_retracted,
        ),
    ):
        yield counter(name, text, dimensions, list(by_segment.items()))
    for name, text, by_kind in (
        ("positives", "Positives attributed to an impression", counters.positives),
        (
            "positives_retracted",
            "Positives retracted, or moved to a nearer impression after they were counted",
            counters.positives_retracted,
        ),
    ):
        counts = (([*segment, kind], count) for (segment, kind), count in list(by_kind.items()))
        yield counter(name, text, [*dimensions, "feedback"], counts)
    if "lists" in counters.definition.figures:
        yield _latencies(counters)


def _latencies(counters: ProcessCounters) -> Metric:
    text = "Time that it took to make the lists of slates, as events report it"
    labels = list(counters.definition.dimensions)
    family = HistogramMetricFamily("streameval_latency_seconds", text, labels=labels)
    found = dict(counters.latencies)
    for segment, total in list(counters.latency_totals.items()):
        counts = accumulate(found.get((segment, index), 0) for index in range(len(BUCKETS) + 1))
        family.add_metric(clean(segment), list(zip(_BOUNDS, counts, strict=True)), total / MICRO)
    return family


_WORK: Final = {
    "duplicates": "Impressions already in their slate, and repeated or retracted feedback",
    "ignored": "Feedback of a kind that is not configured as a positive",
    "key_mismatches": "Records whose key is not their user_id: the user may live in two partitions",
    "messages_ignored": "Messages that no rule of the profile takes; neither accepted nor rejected",
    "dead_letters": "Records written to the dead-letter topic",
    "dead_letters_refused": "Rejected records that the dead-letter topic does not take in any form",
    "events_lost": "Records that the log had dropped before they were read",
    "commits": "Batches committed to Redis",
    "fences": "Commits refused because another owner had moved the offset",
    "checkpoints": "Checkpoints written to Redis",
}
"""Counters without labels, each by the name of its field of `ProcessCounters`."""


def _work(counters: ProcessCounters) -> Iterator[Metric]:
    for name, text in _WORK.items():
        yield counter(name, text, [], [((), getattr(counters, name))])
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
    if "nowcast" in counters.definition.figures:
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
        family.add_metric(clean([kind]), [*buckets, ("+Inf", below[-1])], total)
    return family
