"""`counters_match_log`: users' counters against a recount of the log that shares no state.

Each user's counters are exact at an offset of the partition, which stands in the snapshot; the
recount takes the records below it, by the oracle's sort-and-scan over users' events. The log comes
from Kafka or from given files (`logs`). The check reads it whole if it still has its first record.

Lateness belongs to the whole partition: without late events users can be recounted alone, and so
can a sample of them. The recount keeps nothing of other users, so memory is bounded for any log.

A log that begins later than its first record gives the growth of counters since an earlier
snapshot. Feedback and impressions after it touch slates of at most A + L before it (A the
attribution window, L the allowed lateness). The start of a slate follows from the earlier
impressions of its request, back to a gap of more than A. The recount leaves users out whose
requests have no such gap in the log: a `request_id` that goes on for hours serves another purpose.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, TypeAlias

from pydantic import Field

from streameval.base.counts import count_of
from streameval.base.errors import RefusedError, UnreachableError
from streameval.checks.evidence import Counters, Evidence, Log, Snapshot
from streameval.checks.result import (
    Check,
    CheckSettings,
    Found,
    duration,
    failed,
    nothing,
    passed,
    percent,
    unanswered,
)
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


Plain: TypeAlias = dict[str, Any]
NAMED: Final = 3
MEMORY: Final = "counters_match_log"


class Settings(CheckSettings):
    """The sample of users, and bounds on reading the log."""

    sample: float = Field(
        1.0, gt=0, le=1, description="Share of users to recount, chosen by a hash of their id."
    )
    max_events: int = Field(
        250_000,
        ge=1_000,
        description="Events in memory at a time, about 1 KB each: for a partition with more, the"
        " sample is halved until they fit.",
    )
    max_records: int = Field(
        10_000_000,
        ge=1,
        description="Largest number of records to read from Kafka: it limits the age of the earlier"
        " snapshot and the number of partitions that are recounted.",
    )


@dataclass(frozen=True, slots=True)
class _Side:
    """The users of one partition in one snapshot.

    Their counters are those at offsets from `begin` to `end`; a user without any had none at
    `begin`.
    """

    users: dict[str, Counters]
    begin: int
    end: int

    @classmethod
    def of(cls, snapshot: Snapshot, partition: int, sample: Sample) -> _Side:
        """Take the sample's part of a snapshot; empty if that lacks the partition."""
        begin, end = _offsets(snapshot, partition)
        return cls(snapshot.users(partition, sample.has), begin, end)

    def counters(self, definition: Definition) -> dict[str, Plain]:
        return {name: _plain(found, definition.kinds) for name, found in self.users.items()}

    def recount(self, definition: Definition, sample: Sample, part: Part) -> Recounted:
        offsets = {name: found.offset for name, found in self.users.items()}
        return recount(definition, sample, part, offsets, self.begin)


def _offsets(snapshot: Snapshot, partition: int) -> tuple[int, int]:
    part = snapshot.parts.get(partition)
    return (0, 0) if part is None else (part["users_begin"], part["users_end"])


def check(evidence: Evidence, settings: Settings) -> Found:
    """Recount every partition whose log is there."""
    # The next run begins from this snapshot if its counters are right.
    evidence.memory.pop(MEMORY, None)
    if evidence.snapshot is None:
        return nothing("give a snapshot and the log of at least one partition")
    try:
        logs = evidence.recording(settings.max_records)
        if isinstance(logs, str):
            return unanswered(logs)
        return _check(evidence, settings, logs)
    except (RefusedError, UnreachableError) as error:
        return unanswered(f"the log cannot be read: {error}")


def _check(evidence: Evidence, settings: Settings, logs: Mapping[int, Log]) -> Found:
    assert evidence.snapshot is not None, "a recording needs a snapshot"
    users, wrong, share = 0, [], settings.sample
    for partition, log in sorted(logs.items()):
        if log.begin and log.since is None:
            return unanswered(
                f"the log of partition {partition} begins at {log.begin}: give an earlier snapshot"
            )
        sample = Sample(settings.sample, evidence.user if evidence.snapshot.pseudonymous else None)
        first = 0 if log.since is None else _offsets(log.since, partition)[0]
        part = collect(log, evidence.definition, sample, settings.max_events, first)
        # Only now the number of users is known that memory has room for.
        now = _Side.of(evidence.snapshot, partition, sample)
        then = None if log.since is None else _Side.of(log.since, partition, sample)
        lacking = _lacking(evidence.definition, log, part, now)
        if lacking is not None:
            return unanswered(f"the log of partition {partition} {lacking}")
        count, differences = _compare(evidence, sample, log, part, now=now, then=then)
        users += count
        wrong += [f"{text} (partition {partition})" for text in differences]
        share = min(share, sample.share)
    if not users:
        return nothing("no user is in the snapshot or in the log")
    what = count_of(users, "user") + (f" (a sample of {percent(share)})" if share < 1 else "")
    counted = sum(part["users_end"] > 0 for part in evidence.snapshot.parts.values())
    if len(logs) < counted:
        what += f" of {len(logs)} of {counted} partitions"
    elif not wrong:
        evidence.memory[MEMORY] = b"right in all partitions"
    return _found(what, wrong, logs)


def _found(what: str, wrong: Sequence[str], logs: Mapping[int, Log]) -> Found:
    since = {log.since.path.name for log in logs.values() if log.since is not None}
    growth = f" since {min(since)}" if since else ""
    if not wrong:
        return passed(0, 0, f"the counters of {what} agree with the log{growth}")
    more = f"; and {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
    return failed(
        len(wrong),
        0,
        f"{len(wrong):,} of {what} have counters that differ from the log{growth}: "
        f"{'; '.join(wrong[:NAMED])}{more}. Somebody else writes to these keys of Redis, or "
        "Redis lost writes: restore it from a copy, or count anew under another `group`",
    )


def _lacking(definition: Definition, log: Log, part: Part, now: _Side) -> str | None:
    """Describe the gap of a log; None if it has enough."""
    missing = now.end - (log.end or part.end)
    if missing > 0:
        return f"ends {missing} records too early"
    if log.since is None or log.before is not None:
        return None
    span = 0 if part.low is None else part.high - part.low
    if span > 2 * definition.horizon:
        return None
    return (
        f"must begin {duration(2 * definition.horizon)} before the earlier snapshot, and begins"
        f" {duration(span)} before it"
    )


def _compare(
    evidence: Evidence, sample: Sample, log: Log, part: Part, *, now: _Side, then: _Side | None
) -> tuple[int, list[str]]:
    """Count the compared users, and describe the differences."""
    definition = evidence.definition
    known = now.counters(definition)
    expected = now.recount(definition, sample, part)
    if then is not None:
        before, counted = then.counters(definition), then.recount(definition, sample, part)
        known_before = log.before
        if known_before is None:
            known_before = (part.low or 0) + definition.allowed_lateness
        # Users with events before the earlier snapshot and no counters in it began anew.
        left_out = uncertain(definition, sample, part, known_before)
        left_out |= counted.keys() - before.keys()
        expected = {
            name: _add_growth(before.get(name), counted.get(name), expected.get(name))
            for name in before.keys() | expected.keys()
        }
        for name in left_out:
            known.pop(name, None)
            expected.pop(name, None)
    names = sorted(known.keys() | expected.keys())
    if evidence.users_expire:
        names = [name for name in names if not _began_anew(known.get(name), expected.get(name))]
    return len(names), [
        _difference(name, known.get(name), expected.get(name))
        for name in names
        if known.get(name) != expected.get(name)
    ]


def _add_growth(before: Plain | None, first: Plain | None, last: Plain | None) -> Plain:
    """Add the growth between two counts of the log to counters."""
    sides = [each for each in (before, last) if each is not None]
    grown: Plain = {
        "impressions": 0,
        "slates": 0,
        "positives": dict.fromkeys(sides[0]["positives"], 0),
        "first_ts": min(each["first_ts"] for each in sides),
        "last_ts": max(each["last_ts"] for each in sides),
    }
    for each, sign in ((before, 1), (first, -1), (last, 1)):
        if each is not None:
            grown["impressions"] += sign * each["impressions"]
            grown["slates"] += sign * each["slates"]
            for kind, count in each["positives"].items():
                grown["positives"][kind] += sign * count
    return grown


def _began_anew(known: Plain | None, expected: Plain | None) -> bool:
    """Tell whether a user's time to live ended: the counters are gone, or younger than the log."""
    return expected is not None and (known is None or known["first_ts"] > expected["first_ts"])


def _plain(found: Counters, kinds: Sequence[str]) -> Plain:
    """Write counters like the recount: exactly the kinds of the definition."""
    return {
        "impressions": found.impressions,
        "slates": found.slates,
        "positives": {kind: found.positives.get(kind, 0) for kind in kinds},
        "first_ts": found.first_ts,
        "last_ts": found.last_ts,
    }


def _difference(name: str, known: Plain | None, expected: Plain | None) -> str:
    if known is None:
        return f"user {name!r} has none, the log gives {expected}"
    if expected is None:
        return f"user {name!r} has {known} and is not in the log"
    fields = [field for field in known if known[field] != expected[field]]
    apart = ", ".join(f"{field} {known[field]}, the log {expected[field]}" for field in fields)
    return f"user {name!r} has {apart}"


CHECK: Final = Check(
    name="counters_match_log",
    place=10,
    sentence="Users' counters equal an independent recount of the log.",
    value="users with other counters",
    settings=Settings,
    run=check,
)
