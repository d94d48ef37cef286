"""`counters_match_log`: users' counters against a recount of the log that shares no state.

The recount is the oracle's: slates and attribution by sort-and-scan over the events of a user. Each
user's counters are exact at an offset of the partition (it stands in the snapshot), so the recount
takes the records below it. A log that begins at its first record gives the counters themselves; a
later part of it gives what they grew by between two snapshots.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from pydantic import Field

from streameval.core.definition import Definition, Window
from streameval.core.events import Event
from streameval.core.oracle import oracle
from streameval.offline.checks.evidence import Counters, Evidence, Log
from streameval.offline.checks.result import CheckSettings, Found, duration, failed, nothing, passed

Recounted: TypeAlias = dict[str, dict[str, Any]]
SHOWN: Final = 3
# The oracle computes windows too, which nobody reads here: one pane is the least of them.
_WINDOWS: Final = (Window("none", 1_000, 1_000),)


class Settings(CheckSettings):
    """Which users are recounted."""

    sample: float = Field(
        1.0, gt=0, le=1, description="Share of users to recount, chosen by a hash of their id."
    )


def check(evidence: Evidence, settings: Settings) -> Found:
    """Recount every partition that the log was given of."""
    if evidence.snapshot is None or not evidence.log:
        return nothing("give a snapshot and the log of at least one partition")
    later = evidence.snapshot.users()
    earlier = None if evidence.earlier is None else evidence.earlier.users()
    users, differences = 0, []
    for partition, log in sorted(evidence.log.items()):
        chosen = _Sample(evidence, settings.sample)
        events = _not_late(log, evidence.definition.allowed_lateness)
        end = log.begin + len(log.events)
        mine = _of(later, partition)
        missing = max((found.offset for found in mine.values()), default=0) - end
        if missing > 0:
            return nothing(f"the log of partition {partition} ends {missing} records too early")
        if log.begin == 0:
            count, wrong = _absolute(evidence, chosen, events, mine)
        elif earlier is None:
            return nothing(
                f"the log of partition {partition} begins at {log.begin}: give an earlier snapshot"
            )
        else:
            before = _of(earlier, partition)
            short = _shortage(evidence.definition, log, before)
            if short is not None:
                return nothing(f"partition {partition}: {short}")
            count, wrong = _growth(evidence, chosen, events, before, mine)
        users += count
        differences += [f"{text} (partition {partition})" for text in wrong]
    if not users and not differences:
        return nothing("no user is in the snapshot or in the log")
    if not differences:
        return passed(0, 0, f"the counters of {users:,} users are those of the log")
    more = f"; and {len(differences) - SHOWN} more" if len(differences) > SHOWN else ""
    return failed(
        len(differences),
        0,
        f"{len(differences):,} of {users:,} users have counters that the log does not give: "
        f"{'; '.join(differences[:SHOWN])}{more}. Somebody else writes to these keys of Redis, or "
        "Redis lost writes: restore it from a copy, or count anew under another `group`",
    )


class _Sample:
    """Which users are recounted, and what the snapshot calls them."""

    def __init__(self, evidence: Evidence, share: float) -> None:
        self._bound = share * 2**32
        pseudonymous = evidence.snapshot is not None and evidence.snapshot.pseudonymous
        self._name = evidence.user if pseudonymous else None

    def name(self, user: str) -> str:
        return user if self._name is None else self._name(user)

    def has(self, name: str) -> bool:
        return zlib.crc32(name.encode()) < self._bound


def _of(users: Mapping[tuple[int, str], Counters], partition: int) -> dict[str, Counters]:
    return {user: found for (number, user), found in users.items() if number == partition}


def _not_late(log: Log, allowed_lateness: int) -> list[tuple[int, Event]]:
    """The accepted events with their offsets.

    Lateness is the whole partition's: once late events are gone, users can be recounted alone.
    """
    kept, watermark = [], 0
    for offset, event in enumerate(log.events, log.begin):
        if event is not None and event.ts >= watermark - allowed_lateness:
            watermark = max(watermark, event.ts)
            kept.append((offset, event))
    return kept


def _shortage(definition: Definition, log: Log, before: Mapping[str, Counters]) -> str | None:
    """What a log lacks that begins after its first record; None when it has enough.

    Feedback after the earlier snapshot may belong to slates of A + L before it, whose own
    feedback may reach as far again.
    """
    first = min((found.offset for found in before.values()), default=log.begin)
    head = [event.ts for event in log.events[: max(0, first - log.begin)] if event is not None]
    span = max(head) - min(head) if head else 0
    if span > 2 * definition.horizon:
        return None
    return (
        f"the log must begin {duration(2 * definition.horizon)} before the earlier snapshot,"
        f" and begins {duration(span)} before it"
    )


def _recount(
    definition: Definition,
    chosen: _Sample,
    events: Iterable[tuple[int, Event]],
    offsets: Mapping[str, int],
    default: int,
) -> Recounted:
    """The counters of each user from the records below its offset (`default` where none)."""
    groups: dict[int, list[Event]] = defaultdict(list)
    for offset, event in events:
        name = chosen.name(event.user_id)
        end = offsets.get(name, default)
        if chosen.has(name) and offset < end:
            groups[end].append(event)
    small = replace(definition, windows=_WINDOWS, ks=(1,))
    found: Recounted = {}
    for members in groups.values():
        users: Any = oracle(small, members)["users"]
        found |= {chosen.name(user): counters for user, counters in users.items()}
    return found


def _absolute(
    evidence: Evidence,
    chosen: _Sample,
    events: Sequence[tuple[int, Event]],
    users: Mapping[str, Counters],
) -> tuple[int, list[str]]:
    """Users whose counters are not those of the whole log."""
    offsets = {name: found.offset for name, found in users.items()}
    # A user without counters had none when the snapshot began.
    default = min(offsets.values(), default=0)
    recounted = _recount(evidence.definition, chosen, events, offsets, default)
    known = {name: _plain(found) for name, found in users.items() if chosen.has(name)}
    names = sorted(known.keys() | recounted.keys())
    wrong = [
        _difference(name, known.get(name), recounted.get(name))
        for name in names
        if known.get(name) != recounted.get(name)
    ]
    return len(names), wrong


def _growth(
    evidence: Evidence,
    chosen: _Sample,
    events: Sequence[tuple[int, Event]],
    before: Mapping[str, Counters],
    after: Mapping[str, Counters],
) -> tuple[int, list[str]]:
    """Users whose counters grew by something else than the log says."""
    ends = [{name: found.offset for name, found in side.items()} for side in (before, after)]
    counts = [
        _recount(evidence.definition, chosen, events, offsets, min(offsets.values(), default=0))
        for offsets in ends
    ]
    names = sorted(name for name in before.keys() | after.keys() if chosen.has(name))
    wrong = []
    for name in names:
        stored = [_plain(side[name]) if name in side else None for side in (before, after)]
        grown = _apart(stored[0], stored[1])
        expected = _apart(counts[0].get(name), counts[1].get(name))
        if grown != expected:
            wrong.append(f"user {name!r} grew by {grown}, the log says {expected}")
    return len(names), wrong


def _apart(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> dict[str, int]:
    """What was added between two counts, without what is 0."""
    grown: dict[str, int] = defaultdict(int)
    for counters, sign in ((first, -1), (second, 1)):
        if counters is not None:
            grown["impressions"] += sign * counters["impressions"]
            grown["slates"] += sign * counters["slates"]
            for kind, count in counters["positives"].items():
                grown[kind] += sign * count
    return {name: count for name, count in sorted(grown.items()) if count}


def _plain(found: Counters) -> dict[str, Any]:
    return {
        "impressions": found.impressions,
        "slates": found.slates,
        "positives": found.positives,
        "first_ts": found.first_ts,
        "last_ts": found.last_ts,
    }


def _difference(
    name: str, known: Mapping[str, Any] | None, expected: Mapping[str, Any] | None
) -> str:
    if known is None:
        return f"user {name!r} has none, the log gives {dict(expected or {})}"
    if expected is None:
        return f"user {name!r} has {dict(known)} and is not in the log"
    fields = [field for field in known if known[field] != expected[field]]
    apart = ", ".join(f"{field} {known[field]}, the log {expected[field]}" for field in fields)
    return f"user {name!r} has {apart}"
