"""What experiments, values and guardrails cost in the core, side by side in one process.

The same events go through one partition of each kind, a stretch at a time and in turns: decode,
apply, commit and, now and then, a checkpoint. The clock is the processor's, so a busy machine
changes the ratios little.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace

from workload import Shape, records

from streameval.core.checkpoint import checkpoint
from streameval.core.definition import Definition, Positive
from streameval.core.events import EventDecoder
from streameval.core.experiments.definition import Experiment, Guardrail
from streameval.core.partition import Partition, drained

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
            drained(self.state.finalizing())
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


def main() -> None:
    """Print the rate of each kind as a share of the rate without."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--impressions", type=int, default=400_000)
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


if __name__ == "__main__":
    main()
