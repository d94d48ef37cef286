"""Quix Streams: the rolling positive rate over hopping windows, a mean over users per variant.

It counts impressions and positives of each user in every window of an hour that begins each
minute, and the mean of their rates once a window closes. No attribution (feedback counts when it
arrives, for the variant of its user), no ranking figures, no Redis.

Windows close when event time passes, so the meter counts events read. Quix takes each event through
all its windows before it reads the next, so what is counted is done but for the means: they go
through a topic, and come after the events that were read ahead. The means are written to stderr.
"""

import os
import sys
from typing import Any

from meter import Meter, arguments
from quixstreams import Application, State

HOUR, MINUTE = 3_600_000, 60_000

given = arguments()
meter = Meter(given.records)


def count(_: Any) -> None:
    """Count an event; at the last, end at once: Quix would take seconds to, and say no more."""
    meter.count(1)
    if meter.done:
        sys.stderr.flush()
        os._exit(0)


def first(event: dict[str, Any]) -> list[Any]:
    """Impressions, positives and variant of a user in a window, after one event."""
    return add([0, 0, None], event)


def add(user: list[Any], event: dict[str, Any]) -> list[Any]:
    """Add an event to what a user has in a window."""
    impressions, positives, variant = user
    if event["type"] == "impression":
        return [impressions + 1, positives, event["variant"]]
    return [impressions, positives + (event["feedback"] in {"click", "like"}), variant]


def mean(closed: dict[str, Any], state: State) -> None:
    """Add a user's rate to the mean of its window and variant."""
    impressions, positives, variant = closed["value"]
    end = str(closed["end"])
    users, rates = state.get(end, default=[0, 0.0])
    users, rates = users + 1, rates + positives / impressions
    state.set(end, [users, rates])
    print(end, variant, users, rates / users, file=sys.stderr)


app = Application(
    given.kafka,
    consumer_group=given.group,
    auto_offset_reset="earliest",
    loglevel="ERROR",
)
topic = app.topic(given.topic, timestamp_extractor=lambda value, *_: value["ts"])
closed = (
    app.dataframe(topic)
    .update(count)
    .hopping_window(HOUR, MINUTE)
    .reduce(add, first)
    .final(closing_strategy="partition")
)
# (A user whose impressions have left the window has no rate.)
rated = closed.filter(lambda window: window["value"][0] > 0)
rated.group_by(lambda window: window["value"][2], name="variant").update(mean, stateful=True)
app.run()
