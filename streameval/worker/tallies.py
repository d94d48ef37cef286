"""What a batch adds to the counters of the process, once it is committed; rejections of late."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from streameval.core.ledger import SegmentChanges

if TYPE_CHECKING:
    from streameval.kafka.records import DeadLetter
    from streameval.web.status import ProcessCounters
    from streameval.worker.assigned_partition import PendingCommit

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Tally:
    """The increments of one batch to the counters of the process, for when it is committed."""

    counters: dict[str, Any]
    changes: SegmentChanges
    feedback: dict[str, int]
    overflow: dict[str, int]
    key_mismatches: int
    messages_ignored: int
    dead_letters: int
    lost: int
    gaps: int
    batch_seconds: float
    dead_letters_refused: int = 0


def settle(pending: PendingCommit, counters: ProcessCounters, kinds: Sequence[str]) -> None:
    """Count a batch that is committed."""
    tally = pending.tally
    for event, count in tally.counters["accepted"].items():
        counters.events.add(event, count)
    for reason, count in tally.counters["rejected"].items():
        counters.rejected.add(reason, count)
    for reason, count in tally.counters["unattributed"].items():
        counters.unattributed.add(reason, count)
    for kind, count in tally.feedback.items():
        counters.feedback.add(kind, count)
    for bound, count in tally.overflow.items():
        counters.overflow.add(bound, count)
    for segment, (added, taken) in tally.changes.impressions.items():
        counters.impressions.add(segment, added)
        counters.impressions_retracted.add(segment, taken)
    for (segment, index), (added, taken) in tally.changes.positives.items():
        counters.positives.add((segment, kinds[index]), added)
        counters.positives_retracted.add((segment, kinds[index]), taken)
    for segment, latencies in tally.changes.latencies.items():
        for latency in latencies:
            counters.add_latency(segment, latency)
    counters.add_delays(tally.changes.delays)
    counters.duplicates += tally.counters["duplicates"]
    counters.ignored += tally.counters["ignored"]
    counters.key_mismatches += tally.key_mismatches
    counters.messages_ignored += tally.messages_ignored
    counters.dead_letters += tally.dead_letters
    counters.dead_letters_refused += tally.dead_letters_refused
    counters.events_lost += tally.lost
    counters.commits += 1
    counters.checkpoints += pending.checkpoint is not None
    counters.batch_seconds.observe(tally.batch_seconds)


def rise(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return by how much each count rose; 0 for one that fell."""
    return {
        name: rise(before.get(name, {}), value)
        if isinstance(value, Mapping)
        else max(0, value - before.get(name, 0))
        for name, value in after.items()
    }


def highest(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the larger of the two for each count."""
    return {
        name: highest(before.get(name, {}), value)
        if isinstance(value, Mapping)
        else max(value, before.get(name, 0))
        for name, value in after.items()
    }


EVERY_SECONDS: Final = 60.0
RECENT_SECONDS: Final = 900.0
"""The page looks back as far as the alert `StreamevalRejecting` does."""


class Rejections:
    """Counts of committed records, and the latest one that was rejected. All times in seconds."""

    def __init__(self) -> None:
        self._unsaid = _Counted()
        self._minutes: dict[int, _Counted] = {}
        self._latest: DeadLetter | None = None
        self._said = -math.inf

    def note(
        self, accepted: int, rejected: Mapping[str, int], letters: Sequence[DeadLetter], now: float
    ) -> None:
        """Count a batch: its events, its rejected records by reason, and their dead letters."""
        minute = self._minutes.setdefault(int(now // 60), _Counted())
        for counted in (self._unsaid, minute):
            counted.add(accepted + sum(rejected.values()), rejected)
        if letters:
            self._latest = letters[-1]

    def say(self, now: float) -> None:
        """Log a line where records were rejected, a minute after the last one."""
        counted = self._unsaid
        if self._latest is None or not counted.reasons or now - self._said < EVERY_SECONDS:
            return
        log.warning(
            "%s of %s records rejected: %s; latest: %s. The dead-letter topic has them, and"
            " `streameval doctor` sums them up",
            f"{counted.reasons.total():,}",
            f"{counted.records:,}",
            ", ".join(f"{count:,} {reason}" for reason, count in counted.reasons.most_common()),
            _words_of(self._latest),
        )
        self._said, self._unsaid = now, _Counted()

    def recent(self, now: float) -> dict[str, Any]:
        """Return the counts of the last `RECENT_SECONDS`, as plain values."""
        oldest = (now - RECENT_SECONDS) // 60
        self._minutes = {minute: one for minute, one in self._minutes.items() if minute > oldest}
        counted = _Counted()
        for one in self._minutes.values():
            counted.add(one.records, one.reasons)
        latest = _words_of(self._latest) if self._latest and counted.reasons else None
        return {"records": counted.records, "reasons": dict(counted.reasons), "latest": latest}


class _Counted:
    """Records, and the rejected ones of them by reason."""

    def __init__(self) -> None:
        self.records = 0
        self.reasons: Counter[str] = Counter()

    def add(self, records: int, reasons: Mapping[str, int]) -> None:
        self.records += records
        self.reasons.update({reason: count for reason, count in reasons.items() if count})


def _words_of(letter: DeadLetter) -> str:
    place = f"partition {letter.partition}, offset {letter.offset}"
    return f"{place}, {letter.rejection.reason}: {letter.rejection.detail}"
