"""CPU of one stream as events of streameval and as the messages of each profile, in turns.

Decoding and the core, without servers: the lists and feedback of `tests/trackers.py`. The rate is
that of messages beside native ones of the same run.

    python benchmarks/profiles.py --turns 5
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import trackers

from streameval.core.definition import Definition, Positive
from streameval.core.events import EventDecoder
from streameval.core.partition import Partition
from streameval.profiles import library
from streameval.worker.app import NEVER, YOUNG_OBJECTS

SLICE = 256
FLUSH = 32
DEFINITION = Definition(
    positives=tuple(map(Positive, ("click", "detail_view", "purchase"))), dimensions=()
)


def seconds(values: list[bytes], profile: str | None) -> float:
    """The CPU seconds of one pass."""
    decoder = (
        EventDecoder.of(DEFINITION) if profile is None else library.decoder_of(DEFINITION, profile)
    )
    state = Partition(DEFINITION)
    gc.collect()  # of the pass before
    began = time.process_time()
    for count, first in enumerate(range(0, len(values), SLICE)):
        state.apply(decoder.decode_records(values[first : first + SLICE]).events)
        if not count % FLUSH:
            state.flush()
    state.flush()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--lists", type=int, default=10_000)
    options = parser.parse_args()
    events = trackers.stream(1, count=options.lists, users=options.lists // 5)
    ways = {"native events": (None, [json.dumps(event).encode() for event in events])}
    for name, write in trackers.WRITERS.items():
        ways[name] = (name, [json.dumps(write(event)).encode() for event in events])
    found: dict[str, list[float]] = {name: [] for name in ways}
    # As a worker does.
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, NEVER, NEVER)
    for profile, values in ways.values():  # a first pass fills what is remembered
        seconds(values[: 4 * SLICE], profile)
    for _ in range(options.turns):
        for name, (profile, values) in ways.items():
            found[name].append(seconds(values, profile))
    print("| messages | bytes | us a message | rate beside native |\n| --- | --- | --- | --- |")
    for name, (_, values) in ways.items():
        pairs = zip(found["native events"], found[name], strict=True)
        ratio = statistics.median(native / own for native, own in pairs)
        cost = statistics.median(found[name]) / len(values) * 1e6
        size = sum(map(len, values)) / len(values)
        print(f"| {name} | {size:.0f} | {cost:.1f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
