"""The running service's description of itself, for the web pages and the exposition.

Plain data, no I/O. `Ingest` describes itself each second or tick. Pages and scrapes read only the
last description, so a scrape never waits for a batch and never sees half of one.

There are two kinds of counts:

* `ProcessCounters` only rise, and count the commits of *this process* since it started. They become
  Prometheus counters, where a restart is a reset that `rate()` understands.
* `PartitionStatus.counters` belong to the state of a partition. They are exact over the whole log,
  across restarts. The status page shows them.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from streameval.base.limits import DELAY_BUCKETS, MAX_FEEDBACK_KINDS, MICRO, OTHER
from streameval.core.definition import Definition
from streameval.core.events import REASONS

if TYPE_CHECKING:  # importing figures starts numpy's threads, see `shutdown`
    from streameval.core.figures import Figures
    from streameval.core.merged_segments import Segment
    from streameval.experiments.words import Scorecard

Key = TypeVar("Key", bound=Hashable)
# How the name of an unreadable batch begins: `offsets 2 to 4` or `offset 2`.
_OFFSET: Final = re.compile(r"offsets? (\d+)")

EVENTS: Final = ("impression", "slate", "feedback")
UNATTRIBUTED: Final = ("no_impression", "expired")

# Seconds. The last bound is near the shutdown deadline: a slower step is as good as stuck.
BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)


class Counts(dict[Key, int]):
    """Monotone counts of at most `limit` keys; later keys count under `other`.

    `known` keys stand at 0 from the start, so that the first increase is seen by `rate()`.
    """

    def __init__(self, limit: int, other: Key, known: Sequence[Key] = ()) -> None:
        super().__init__(dict.fromkeys(known, 0))
        self.limit = limit
        self.other = other

    def add(self, key: Key, count: int) -> None:
        """Add `count` (not negative) to `key`, or to `other` where `key` came too late."""
        assert count >= 0, "a counter never falls"
        if key not in self and self._full():
            key = self.other
        self[key] = self.get(key, 0) + count

    def keep(self, wanted: Callable[[Key], bool]) -> None:
        """Drop the counts that nobody wants, if all keys are taken; `other` stays."""
        if self._full():
            for key in [key for key in self if key != self.other and not wanted(key)]:
                del self[key]

    def _full(self) -> bool:
        return len(self) - (self.other in self) >= self.limit


@dataclass(slots=True)
class Histogram:
    """How long a step took: counts per bucket of `BUCKETS` (one more for above), and the sum."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """Count steps that took `seconds` each."""
        self.counts[bisect_left(BUCKETS, seconds)] += count
        self.total += count * seconds


def _labels(*known: str) -> Counts[str]:
    """Count by a closed set of label values."""
    return Counts(len(known), OTHER, known)


@dataclass
class ProcessCounters:
    """Counts of everything that this process has committed; every field only rises.

    A segment that is in no window may leave the fields by segment when there are too many.
    `*_retracted` count corrections, such as an impression that turns out to be a duplicate, or a
    retracted positive. The net count is counted minus retracted. `delays` of positives by index of
    the kind and bucket (`core.delays`).
    """

    definition: Definition
    events: Counts[str] = field(default_factory=lambda: _labels(*EVENTS))
    rejected: Counts[str] = field(default_factory=lambda: _labels(*REASONS))
    unattributed: Counts[str] = field(default_factory=lambda: _labels(*UNATTRIBUTED))
    overflow: Counts[str] = field(default_factory=lambda: _labels("segments", "items", "feedback"))
    feedback: Counts[str] = field(init=False)
    impressions: Counts[Segment] = field(init=False)
    impressions_retracted: Counts[Segment] = field(init=False)
    positives: Counts[tuple[Segment, str]] = field(init=False)
    positives_retracted: Counts[tuple[Segment, str]] = field(init=False)
    latencies: Counts[tuple[Segment, int]] = field(init=False)
    latency_totals: Counts[Segment] = field(init=False)
    delays: list[list[int]] = field(init=False)
    duplicates: int = 0
    ignored: int = 0
    key_mismatches: int = 0
    messages_ignored: int = 0
    dead_letters: int = 0
    dead_letters_refused: int = 0
    events_lost: int = 0
    commits: int = 0
    fences: int = 0
    checkpoints: int = 0
    batch_seconds: Histogram = field(default_factory=Histogram)
    commit_seconds: Histogram = field(default_factory=Histogram)
    checkpoint_seconds: Histogram = field(default_factory=Histogram)
    freshness_seconds: Histogram = field(default_factory=Histogram)

    def __post_init__(self) -> None:
        """Size the counts by segment and kind, which depend on the definition."""
        kinds, segments = self.definition.kinds, self.definition.max_segments
        rest = (OTHER,) * len(self.definition.dimensions)
        self.feedback = Counts(len(kinds) + MAX_FEEDBACK_KINDS, OTHER, kinds)
        self.impressions = Counts(segments, rest)
        self.impressions_retracted = Counts(segments, rest)
        self.positives = Counts(segments * len(kinds), (rest, OTHER))
        self.positives_retracted = Counts(segments * len(kinds), (rest, OTHER))
        self.delays = [[0] * DELAY_BUCKETS for _ in kinds]
        self.latencies = Counts(segments * (len(BUCKETS) + 1), (rest, len(BUCKETS)))
        self.latency_totals = Counts(segments, rest)

    def add_delays(self, added: Mapping[int, int]) -> None:
        """Count delays by slot of `core.delays`; slots of slates stand after slots of kinds."""
        for slot, count in added.items():
            group, bucket = divmod(slot, DELAY_BUCKETS)
            if group < len(self.delays):
                self.delays[group][bucket] += count

    def add_latency(self, segment: Segment, latency: int) -> None:
        """Count the latency (us) of a list in the bucket of its seconds."""
        self.latencies.add((segment, bisect_left(BUCKETS, latency / MICRO)), 1)
        self.latency_totals.add(segment, latency)

    def keep(self, present: set[Segment]) -> None:
        """Drop counts of segments that are in no window any more, if there are too many.

        A segment that comes back begins at 0 like after a restart, which `rate()` understands.
        """
        for counts in (self.impressions, self.impressions_retracted, self.latency_totals):
            counts.keep(present.__contains__)
        self.latencies.keep(lambda key: key[0] in present)
        for by_kind in (self.positives, self.positives_retracted):
            by_kind.keep(lambda key: key[0] in present)


@dataclass(slots=True)
class PartitionStatus:
    """One partition that this worker owns.

    `watermark`, `reading_time`: ms since the epoch, None before the first event. `counters`: the
    `events` part of `replay`'s document (`accepted`, `rejected`, `duplicates`, `unattributed`,
    `waiting`, `ignored`). `restoring`: state is still being read again up to the committed offset.
    `unreadable` names the unreadable batch that it waits before, and why it is unreadable;
    `waits_for` says which server it waits for.
    """

    partition: int
    watermark: int | None = None
    reading_time: int | None = None
    lag: int | None = None
    committed_offset: int | None = None
    open_slates: int = 0
    users: int = 0
    checkpoint_age_seconds: float | None = None
    checkpoint_bytes: int | None = None
    counters: Mapping[str, Any] = field(default_factory=dict)
    restoring: bool = False
    unreadable: str = ""
    waits_for: str = ""

    @property
    def unreadable_offset(self) -> int | None:
        """The first offset of the unreadable batch; None while there is none."""
        found = _OFFSET.match(self.unreadable)
        return None if found is None else int(found[1])


@dataclass(frozen=True, slots=True)
class CheckStatus:
    """The result of an offline check the last time it ran.

    `passed` and `value` are None if nothing was compared. `time` is its end (seconds since the
    epoch), `seconds` its duration, `severity` error or warning. `unanswered_seconds` counts how
    long a result had been due and missing by then; None if none was due. `message` is its finding,
    with the cure where it failed.
    """

    name: str
    severity: str
    passed: bool | None
    value: float | None
    time: float
    seconds: float
    unanswered_seconds: float | None = None
    message: str = ""

    @property
    def state(self) -> str:
        """How it ended: passed, failed, warns, no answer (one is due), or not checked."""
        if self.passed is None:
            return "not checked" if self.unanswered_seconds is None else "no answer"
        return "passed" if self.passed else "failed" if self.severity == "error" else "warns"

    def document(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "name": self.name,
            "state": self.state,
            "severity": self.severity,
            "value": self.value,
            "message": self.message,
            "ended": round(self.time * 1000),
            "seconds": self.seconds,
            "unanswered_seconds": self.unanswered_seconds,
        }


@dataclass(frozen=True, slots=True)
class DailyStatus:
    """The positive rate of a whole day (UTC) over distinct items.

    `begin`: seconds since the epoch. `users`: users with an impression. `rates`: rows of `feedback`
    and each rate of the metrics by name, None over no user.
    """

    begin: float
    users: int
    rates: Sequence[Mapping[str, Any]]


@dataclass
class ServiceStatus:
    """The whole worker at one tick. `started_at`: seconds since the epoch.

    `partitions` are this worker's; `topic_partitions` counts all of the topic (0: not known yet).
    `figures` is None until the first tick with a partition. `reason` says in one line why the
    service is not `ready`, `kafka_trouble` what Kafka lacks, such as the topic. `scorecards` judge
    the experiments over all partitions of the topic, its own or not. `leader`,
    `fencing_token` and, on the leader, `checks`, `check_interval` (seconds; None where no checks
    are run), `check_running` (for how long those under way have run; None without) and `daily` are
    filled by the application frame, as are the `digests` of settings that a group needs alike.
    `rejected`: `records` committed of late, the rejected ones of them by `reasons`, and the
    `latest` in words.
    """

    version: str
    topic: str
    group: str
    started_at: float
    definition: Definition
    counters: ProcessCounters
    store_up: bool = False
    broker_up: bool = False
    kafka_trouble: str = ""
    ready: bool = False
    reason: str = "starting"
    partitions: list[PartitionStatus] = field(default_factory=list)
    topic_partitions: int = 0
    figures: Figures | None = None
    nowcast_errors: Sequence[Mapping[str, Any]] = ()
    scorecards: Sequence[Scorecard] = ()
    leader: bool = False
    fencing_token: int | None = None
    checks: Sequence[CheckStatus] = ()
    check_interval: float | None = None
    check_running: float | None = None
    daily: DailyStatus | None = None
    digests: Mapping[str, str] = field(default_factory=dict)
    rejected: Mapping[str, Any] = field(default_factory=dict)

    def unready(self) -> str | None:
        """Say in one line why no traffic or trust should go here; None when all is well."""
        if not self.ready:
            return " ".join(self.reason.split()) or "starting"
        if not self.broker_up:
            return self.kafka_trouble or "Kafka does not answer"
        if not self.store_up:
            return "Redis does not answer"
        if self.kafka_trouble:
            return self.kafka_trouble
        restoring = [each.partition for each in self.partitions if each.restoring]
        if restoring:
            return f"restoring partitions {', '.join(map(str, sorted(restoring)))}"
        return None

    def waiting(self) -> str:
        """Name in one line the partitions that wait, and for what; "" if none.

        The worker is ready nevertheless: its other partitions go on.
        """
        return "; ".join(
            f"partition {each.partition} waits"
            + (
                f" before the batch at {' '.join(each.unreadable.split())}"
                if each.unreadable
                else f": {' '.join(each.waits_for.split())}"
            )
            for each in self.partitions
            if each.unreadable or each.waits_for
        )
