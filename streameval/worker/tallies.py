"""What a batch adds to the counters of the process, once it is committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streameval.core.ledger import SegmentChanges

if TYPE_CHECKING:
    from streameval.web.status import ProcessCounters
    from streameval.worker.assigned_partition import PendingCommit


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
