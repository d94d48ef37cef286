"""What experiments, values and guardrails cost: the core, the accumulators, a whole service.

    python benchmarks/experiments.py [--impressions 400000] [--service]

*Core*: the same events go through one partition of each kind, in one process, a stretch at a time
and in turns: decode, apply, commit and, now and then, a checkpoint. The clock is the processor's,
so a busy machine changes the ratios little.

*Accumulators*: bytes in the checkpoint of a partition for 4 arms and all metrics.

*Service* (with `--service`): a worker on Kafka and Redis reads 100,000 users as fast as it can,
then a stream at half that rate: time of /metrics, and freshness. It needs a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import cramjam
import msgspec
import servers
import service
from workload import Shape, records

from streameval.base.steps import drain
from streameval.core.checkpoint import checkpoint
from streameval.core.definition import Definition, Positive
from streameval.core.events import EventDecoder
from streameval.core.experiments.definition import Experiment, Guardrail
from streameval.core.experiments.metrics import metrics_of
from streameval.core.partition import Partition

SLICE, COMMIT, CHECKPOINT = 250, 10_000, 60_000

# Slates become final within the run.
PLAIN = Definition(dimensions=("variant", "surface"), attribution_window=60_000)
VALUED = replace(PLAIN, positives=(Positive("click"), Positive("like", value="sum")))
EXPERIMENT = Experiment(
    "bench",
    "variant",
    "A",
    "positives_per_impression{feedback=click}",
    (Guardrail("ndcg@10"), Guardrail("empty_rate"), Guardrail("value_per_user{feedback=like}")),
    split={"A": 1, "B": 1},
)
KINDS = {
    "without": PLAIN,
    "values": VALUED,
    "values and an experiment over a dimension": replace(VALUED, experiments=(EXPERIMENT,)),
    "values and an experiment over another field": replace(
        VALUED, experiments=(replace(EXPERIMENT, arm="bucket"),)
    ),
}


def values(shape: Shape) -> Iterator[bytes]:
    """The events of a stream, each with one more field that names the arm of its user."""
    for _, user, value in records(shape):
        arm = b'"bucket":"%s",' % (b"A" if user[-1] % 2 else b"B")
        yield value.replace(b'"ts":', arm + b'"ts":', 1)


class Candidate:
    """A partition of one kind, and the CPU seconds of its stretches."""

    def __init__(self, definition: Definition) -> None:
        self.state = Partition(definition, journal=True)
        self.decoder = EventDecoder.of(definition)
        self.seconds: list[float] = []
        self.events = self.checkpoints = 0

    def take(self, stretch: list[bytes]) -> None:
        """Process a stretch of events up to its commit."""
        began = time.process_time()
        for start in range(0, len(stretch), SLICE):
            events, _ = self.decoder.decode_batch(stretch[start : start + SLICE])
            self.state.apply(events)
        self.state.flush()
        self.state.experiments.take_visits()
        self.events += len(stretch)
        if self.events // CHECKPOINT > self.checkpoints:
            self.checkpoints += 1
            drain(self.state.finalizing())
            checkpoint(self.state, str(self.checkpoints))
        self.seconds.append(time.process_time() - began)


def measure(sent: str, impressions: int) -> dict[str, list[float]]:
    """Return the CPU seconds of each stretch, by kind."""
    shape = Shape(impressions, sent=sent, partitions=1, per_second=250)
    stream = list(values(shape))
    candidates = {name: Candidate(definition) for name, definition in KINDS.items()}
    names = list(candidates)
    for start in range(0, len(stream), COMMIT):
        random.Random(start).shuffle(names)
        for name in names:
            candidates[name].take(stream[start : start + COMMIT])
    return {name: candidate.seconds for name, candidate in candidates.items()}


def accumulators(users: int = 20_000) -> tuple[int, int, int]:
    """Return metrics, and bytes of the sums of an experiment of 4 arms, plain and compressed."""
    arms = ("A", "B", "C", "D")
    experiment = replace(EXPERIMENT, split=dict.fromkeys(arms, 1.0))
    definition = replace(VALUED, experiments=(experiment,))
    state = Partition(definition)
    shape = Shape(10 * users, sent="slates", partitions=1, users=users, variants=4)
    decoder = EventDecoder.of(definition)
    stream = [value for _, _, value in records(shape)]
    for start in range(0, len(stream), COMMIT):
        state.apply(decoder.decode_batch(stream[start : start + COMMIT])[0])
        state.flush()
    drain(state.finalizing())
    state.experiments.take_visits()
    (sums,) = state.experiments.arm_sums
    assert sorted(sums.sums) == list(arms), "every arm has slates"
    encoded = msgspec.msgpack.encode(state.experiments.state())
    packed = len(bytes(cramjam.zstd.compress(encoded, level=1)))
    return len(metrics_of(definition)), len(encoded), packed


# ---------------------------------------------------------------------------------- a service


def service_figures(impressions: int, seconds: float) -> None:
    """Print the time of /metrics and the freshness of a worker with everything on."""
    settings: dict[str, Any] = {
        "positives": ["click", {"kind": "like", "value": "sum"}],
        "dimensions": ["variant", "surface"],
        "attribution_window": "1m",
        "experiments": [
            {
                "name": "bench",
                "arm": "variant",
                "control": "A",
                "split": {"A": 1, "B": 1},
                "primary": EXPERIMENT.primary,
                "guardrails": [guardrail.metric for guardrail in EXPERIMENT.guardrails],
            }
        ],
    }
    slates = impressions // 10
    with servers.kafka() as kafka, servers.redis() as redis:
        service.create_topic(kafka.port, "bench", 4)
        sent = list(records(Shape(impressions, sent="slates", users=130_000)))
        service.produce(kafka.port, "bench", [(key, value) for _, key, value in sent])
        _, ends = service.read_log(kafka.port, "bench", 4)
        began = time.monotonic()
        with service.Worker(kafka.port, redis.url, "bench", **settings) as worker:
            worker.wait_until_up()
            loading = _scrapes(worker)
            service.wait_until_read(redis.url, "bench", ends, 600)
            rate = len(sent) / (time.monotonic() - began)
            idle = _scrapes(worker)
            # The figures hold the last of these events a tick later.
            service.wait_for(lambda: _fresh(worker) >= len(sent), 120, "figures hold all events")
            before = worker.metrics()
            half = rate / 2
            more = list(
                records(
                    Shape(int(half * seconds * 10), sent="slates", users=130_000),
                    first_slate=slates,
                )
            )
            more = more[: int(half * seconds)]
            service.produce(
                *(kafka.port, "bench"), [(key, value) for _, key, value in more], seconds=seconds
            )
            all_events = len(sent) + len(more)
            service.wait_for(lambda: _fresh(worker) >= all_events, 120, "figures hold all events")
            after = worker.metrics()
    print(f"/metrics while loading: {loading}; idle: {idle}")
    print(f"rate with start-up {rate:,.0f} events/s; freshness at half of it: p99 within")
    print(f"  {_quantile(before, after, 0.99)} s of {len(more):,} events in {seconds:.0f} s")


def _scrapes(worker: service.Worker, count: int = 20) -> str:
    times = []
    for _ in range(count):
        began = time.monotonic()
        page = worker.page()
        times.append(time.monotonic() - began)
        time.sleep(0.1)
    median, most = statistics.median(times), max(times)
    return f"median {median * 1000:.0f} ms, max {most * 1000:.0f} ms, {len(page) / 1000:.0f} kB"


def _fresh(worker: service.Worker) -> float:
    """Return how many events the freshness of the worker has been observed of."""
    return worker.metrics().get(("streameval_freshness_seconds_count", frozenset()), 0)


def _quantile(before: dict[Any, float], after: dict[Any, float], share: float) -> float:
    """Return the bound of the bucket of freshness in which a quantile lies."""
    name = "streameval_freshness_seconds_bucket"
    buckets = sorted(
        (float(dict(labels)["le"]), count - before.get((name, labels), 0))
        for (each, labels), count in after.items()
        if each == name
    )
    return next(bound for bound, count in buckets if count >= share * buckets[-1][1])


def main() -> None:
    """Print the rate of each kind as a share of the rate without."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--impressions", type=int, default=400_000)
    parser.add_argument("--service", action="store_true", help="also a worker on real servers")
    parser.add_argument("--seconds", type=float, default=20.0, help="at half of its rate")
    arguments = parser.parse_args()
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    for sent, impressions in (
        ("impressions", arguments.impressions),
        ("slates", 4 * arguments.impressions),
    ):
        found = measure(sent, impressions)
        print(f"\n| {sent} | CPU s | share of the rate without | median of stretches |")
        print("| --- | --- | --- | --- |")
        plain = found["without"]
        for name, seconds in found.items():
            ratios = [one / other for one, other in zip(plain, seconds, strict=True)]
            print(
                f"| {name} | {sum(seconds):.2f} | {sum(plain) / sum(seconds):.2f}"
                f" | {statistics.median(ratios):.2f} |"
            )
    metrics, plain, packed = accumulators()
    print(f"\naccumulators of 4 arms and {metrics} metrics: {plain:,} B, {packed:,} B compressed")
    if arguments.service:
        print()
        service_figures(10 * arguments.impressions, arguments.seconds)


if __name__ == "__main__":
    main()
