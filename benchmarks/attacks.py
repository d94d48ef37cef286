"""`make attacks`: how long a worker's loop is held while its log attacks it.

Each log is what costs a naive engine quadratic time: many events of one user, of one item or of one
request. A worker at the defaults reads it from real Kafka into real Redis; `loop_lag` asks its loop
again and again. tests/core/test_attacks_on_time.py counts operations, whatever the machine does.
"""

from __future__ import annotations

import json
import pathlib
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any, Final

HERE: Final = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

import pytest  # noqa: E402 - as servers.py does
import servers  # noqa: E402 - they stand beside
from log import fill  # noqa: E402
from measure import Stack, committed, wait_for, worker  # noqa: E402
from run import CHECKPOINT_INTERVAL  # noqa: E402
from workload import START, Record  # noqa: E402

from streameval.core.definition import Definition  # noqa: E402

EVENTS: Final = 50_000
SLATES: Final = 20_000
CHAINED: Final = 10_000
LONG: Final = 50
AWAITED: Final = 1_000
ITEMS: Final = [f"item-{number}" for number in range(1_000)]
# What heartbeats and probes may wait for; a group forgets a member after 10 s.
MOST_SECONDS: Final = 1.0

WINDOW: Final = Definition().attribution_window
LATENESS: Final = Definition().allowed_lateness


def event(kind: str, ts: int, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "ts": START + ts, "user_id": "u"} | fields


def clicks_without_request() -> Iterator[dict[str, Any]]:
    """Showings of one item and clicks on it, in any order that is not late."""
    events = []
    for number in range(EVENTS // 2):
        ts = number * LATENESS // EVENTS
        events.append(event("impression", ts, item_id="x", request_id=f"r{number}"))
        events.append(event("feedback", ts + 1, item_id="x", feedback="click"))
    random.Random(1).shuffle(events)
    yield from events


def slates_of_the_same_items() -> Iterator[dict[str, Any]]:
    """Open slates of one user that all show the same, then clicks that name none of them."""
    for number in range(SLATES):
        yield event("slate", number, request_id=f"r{number}", items=ITEMS[:10])
    for number in range(SLATES):
        yield event("feedback", SLATES + number, item_id=ITEMS[number % 10], feedback="click")


def one_request_for_everything() -> Iterator[dict[str, Any]]:
    """Items of one user and one request, with clicks."""
    for number in range(EVENTS // 2):
        item = f"item-{number}"
        yield event("impression", number, item_id=item, request_id="r")
        yield event("feedback", number, item_id=item, request_id="r", feedback="click")


def chained_slates() -> Iterator[dict[str, Any]]:
    """One request that begins anew each time its slate is over, with clicks."""
    for number in range(CHAINED):
        ts = number * (WINDOW + 1)
        yield event("impression", ts, item_id="x", request_id="r")
        yield event("feedback", ts + 5, item_id="x", request_id="r", feedback="click")


def long_slates() -> Iterator[dict[str, Any]]:
    """The longest lists there are, of which every item is clicked."""
    for number in range(LONG):
        yield event("slate", number, request_id=f"r{number}", items=ITEMS)
    for item in ITEMS:
        for number in range(LONG):
            yield event("feedback", LONG, item_id=item, request_id=f"r{number}", feedback="click")


def one_click_then_long_slates() -> Iterator[dict[str, Any]]:
    """A click that names no request, then the longest lists: one of their items is clicked."""
    yield event("feedback", AWAITED, item_id=ITEMS[0], feedback="click")
    for number in range(AWAITED):
        yield event("slate", number, request_id=f"r{number}", items=ITEMS)


ATTACKS: Final = (
    clicks_without_request,
    slates_of_the_same_items,
    one_request_for_everything,
    chained_slates,
    long_slates,
    one_click_then_long_slates,
)


def main() -> int:
    """Print a table; 1 where an answer took too long, 2 without a server."""
    slow = 0
    print("| log | events | s until all is committed | longest that the loop was held, s |")
    print("| --- | --- | --- | --- |")
    try:
        with servers.kafka() as kafka, servers.redis() as redis:
            for attack in ATTACKS:
                slow += attacked(Stack(kafka, redis), attack.__name__.replace("_", "-"), attack())
    except (pytest.skip.Exception, pytest.fail.Exception) as error:  # of `programs.need`
        print(f"attacks: {error}", file=sys.stderr)
        return 2
    return slow > 0


def attacked(stack: Stack, name: str, events: Iterator[dict[str, Any]]) -> bool:
    """Whether the worker's loop was held for too long while it read the events."""
    records: Iterator[Record] = ((0, b"u", json.dumps(each).encode()) for each in events)
    log = fill(stack.kafka.port, name, records)
    with tempfile.NamedTemporaryFile("r") as lags:
        program = (str(HERE / "loop_lag.py"), lags.name)
        began = time.monotonic()
        with worker(stack, log.topic, program, checkpoint_interval=CHECKPOINT_INTERVAL):
            wait_for(lambda: sum(committed(stack, log.topic)) == log.records, "the last commit")
            seconds = time.monotonic() - began
        # The first answer waits until the loop runs, the last line may be half of one.
        longest = max(map(float, lags.read().split("\n")[1:-1]))
    print(f"| {name} | {log.records:,} | {seconds:.1f} | {longest:.2f} |", flush=True)
    return longest > MOST_SECONDS


if __name__ == "__main__":
    sys.exit(main())
