"""A recount of users' counters from the log: the oracle's, by sort-and-scan over users' events.

Lateness is the whole partition's: once late events are gone, users can be recounted alone, and so
a part of them. Of the others nothing is kept, so memory is bounded however long the log is.

A log that begins later than its first record gives what counters grew by. Feedback and impressions
that come after the earlier snapshot touch slates of at most A + L before it (A the attribution
window, L the allowed lateness); where a slate begins follows from the impressions of its request
before it, back to a gap of more than A. Users whose requests have no such gap in the log are left
out: a `request_id` that goes on for hours is in use for something else.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final, TypeAlias

from streameval.checks.evidence import Log
from streameval.core.definition import Definition, Window
from streameval.core.events import Event, FeedbackEvent
from streameval.core.oracle.figures import oracle

Recounted: TypeAlias = dict[str, dict[str, Any]]
_HASHES: Final = 2**32
# The oracle computes windows too, which nobody reads here: one pane is the least of them.
_WINDOWS: Final = (Window("none", 1_000, 1_000),)
_NAMES_KEPT: Final = 100_000
_EVENTS_AT_ONCE: Final = 10_000


class Sample:
    """Which users are recounted, by a hash of what the snapshot calls them."""

    def __init__(self, share: float, name: Callable[[str], str] | None) -> None:
        self.share = share
        # Computing a pseudonym costs more than all else that is done to a record.
        self.name = (lambda user: user) if name is None else lru_cache(_NAMES_KEPT)(name)

    def has(self, name: str) -> bool:
        """Whether the user of this name is among them."""
        return zlib.crc32(name.encode()) < self.share * _HASHES

    def halve(self) -> None:
        """Leave out half of the users."""
        self.share /= 2


@dataclass(slots=True)
class Part:
    """What was read of a partition: the sample's events that are not late, with their offsets.

    `end` is the offset after the last record. `low` and `high` bound the accepted `ts` (ms) below
    `first`, the offset from which on growth is asked for.
    """

    end: int
    events: list[tuple[int, Event]] = field(default_factory=list)
    low: int | None = None
    high: int = 0


def collect(log: Log, definition: Definition, sample: Sample, most: int, first: int) -> Part:
    """Read a log. The sample becomes smaller where it has more than `most` events."""
    lateness = definition.allowed_lateness
    # Not below the true one at `begin`: what is late there was never counted.
    part, watermark = Part(log.begin), log.before or 0
    for records in log.read():
        for offset, event in records:
            if event is None or event.ts < watermark - lateness:
                continue
            watermark = max(watermark, event.ts)
            if offset < first:
                part.low = event.ts if part.low is None else min(part.low, event.ts)
                part.high = watermark
            if sample.has(sample.name(event.user_id)):
                part.events.append((offset, event))
        if records:
            part.end = records[-1][0] + 1
        while len(part.events) > most:
            sample.halve()
            part.events = [one for one in part.events if sample.has(sample.name(one[1].user_id))]
    return part


def recount(
    definition: Definition, sample: Sample, part: Part, offsets: Mapping[str, int], default: int
) -> Recounted:
    """The counters of each user from the records below its offset (`default` where none)."""
    # The oracle takes more memory than the events: a portion of the users at a time.
    portions = 1 + len(part.events) // _EVENTS_AT_ONCE
    groups: dict[int, list[Event]] = defaultdict(list)
    for offset, event in part.events:
        if offset < offsets.get(sample.name(event.user_id), default):
            groups[zlib.crc32(event.user_id.encode()) % portions].append(event)
    small = replace(definition, windows=_WINDOWS, ks=(1,))
    found: Recounted = {}
    for members in groups.values():
        users: Any = oracle(small, members)["users"]
        found |= {sample.name(user): counters for user, counters in users.items()}
    return found


def uncertain(definition: Definition, sample: Sample, part: Part, before: int) -> set[str]:
    """Users with a request of which the log cannot tell where its slates begin.

    Events that the log lacks have a `ts` below `before` (ms).
    """
    gap, touched = definition.attribution_window, part.high - definition.horizon
    shown = sorted(
        (event.ts, event.user_id, event.request_id)
        for _, event in part.events
        if not isinstance(event, FeedbackEvent) and event.request_id is not None
    )
    last: dict[tuple[str, str], int | None] = {}  # None: after a gap, so all is known
    found = set()
    for ts, user, request in shown:
        previous = last.get((user, request), before)
        unbroken = previous is not None and ts <= previous + gap
        last[user, request] = ts if unbroken else None
        if unbroken and ts >= touched:
            found.add(sample.name(user))
    return found
