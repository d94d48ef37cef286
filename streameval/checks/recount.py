"""A recount of users' counters from the log, by the oracle's sort-and-scan over users' events.

Lateness belongs to the whole partition: without late events users can be recounted alone, and so
can a sample of them. The recount keeps nothing of other users, so memory is bounded for any log.

A log that begins later than its first record gives the growth of counters. Feedback and impressions
after the earlier snapshot touch slates of at most A + L before it (A the attribution window, L the
allowed lateness). The start of a slate follows from the earlier impressions of its request, back to
a gap of more than A. The recount leaves users out whose requests have no such gap in the log: a
`request_id` that goes on for hours serves another purpose.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, TypeAlias

from streameval.checks.evidence import Log
from streameval.core.definition import Definition
from streameval.core.events import Event, FeedbackEvent
from streameval.core.oracle import history, users

Recounted: TypeAlias = dict[str, dict[str, Any]]
_HASHES: Final = 2**32
_NAMES_KEPT: Final = 100_000
_EVENTS_AT_ONCE: Final = 10_000


class Sample:
    """The users to recount, by a hash of their name in the snapshot."""

    def __init__(self, share: float, name: Callable[[str], str] | None) -> None:
        self.share = share
        # A pseudonym costs more than all other work on a record.
        self.name = (lambda user: user) if name is None else lru_cache(_NAMES_KEPT)(name)

    def has(self, name: str) -> bool:
        """Tell whether the user of this name is in the sample."""
        return zlib.crc32(name.encode()) < self.share * _HASHES

    def halve(self) -> None:
        """Leave out half of the users."""
        self.share /= 2


@dataclass(slots=True)
class Part:
    """The records read from a partition: the sample's timely events, with their offsets.

    `end` is the offset after the last record. `low` and `high` bound the accepted `ts` (ms) below
    `first`, the offset at which growth begins.
    """

    end: int
    events: list[tuple[int, Event]] = field(default_factory=list)
    low: int | None = None
    high: int = 0


def collect(log: Log, definition: Definition, sample: Sample, most: int, first: int) -> Part:
    """Read a log; the sample shrinks until it has at most `most` events."""
    lateness = definition.allowed_lateness
    # At least the true one at `begin`, so every event that was late then is left out.
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
    """Recount each user from the records below the user's offset (else `default`)."""
    # The oracle takes more memory than the events, so it gets a portion of users at a time.
    portions = 1 + len(part.events) // _EVENTS_AT_ONCE
    groups: dict[int, list[Event]] = defaultdict(list)
    for offset, event in part.events:
        if offset < offsets.get(sample.name(event.user_id), default):
            groups[zlib.crc32(event.user_id.encode()) % portions].append(event)
    found: Recounted = {}
    for members in groups.values():
        known = users(history(definition, members), definition.kinds)
        found |= {sample.name(user): counters for user, counters in known.items()}
    return found


def uncertain(definition: Definition, sample: Sample, part: Part, before: int) -> set[str]:
    """Find users with a request whose slates have an unknown start in this log.

    Events that the log lacks have a `ts` below `before` (ms).
    """
    gap, touched = definition.attribution_window, part.high - definition.horizon
    impressions = sorted(
        (event.ts, event.user_id, event.request_id)
        for _, event in part.events
        if not isinstance(event, FeedbackEvent) and event.request_id is not None
    )
    last: dict[tuple[str, str], int | None] = {}  # None: after a gap, so all is known
    found = set()
    for ts, user, request in impressions:
        previous = last.get((user, request), before)
        unbroken = previous is not None and ts <= previous + gap
        last[user, request] = ts if unbroken else None
        if unbroken and ts >= touched:
            found.add(sample.name(user))
    return found
