"""`records_accepted`: few records are rejected, and no more than before.

A producer of broken records, or a wrong clock, takes part of the traffic away, and seldom the same
part in every variant. The check compares the growth of the snapshot's event counters since the
earlier snapshot with their values there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from pydantic import Field

from streameval.checks.evidence import Evidence, counts_by_partition, growth, total
from streameval.checks.result import Check, CheckSettings, Found, failed, nothing, passed, percent
from streameval.stats.chance import chance_of_split

# Chance of a false alarm in one run, over all reasons together.
_ALPHA: Final = 1e-6
# The likely causes, by the reason that grew most.
_CAUSES: Final = {
    "late": "events arrive later than `allowed_lateness`, or clocks of some producers are ahead and"
    " make all others late",
    "future": "clocks of some producers are ahead of Kafka's",
    "malformed": "a producer sends values other than JSON",
    "invalid": "a producer sends events of another form (`streameval schema`)",
    "too_large": "a producer sends events of more than 1 MiB",
}


class Settings(CheckSettings):
    """The bounds on rejected records."""

    max_rejected: float = Field(
        0.05, ge=0, le=1, description="Largest share of records that are rejected or late."
    )
    max_jump: float = Field(
        0.01,
        ge=0,
        le=1,
        description="Largest growth of one reason's share of the records over its share before"
        " the earlier snapshot.",
    )


def check(evidence: Evidence, settings: Settings) -> Found:
    """Compare the records since the earlier snapshot with all before it."""
    if evidence.snapshot is None:
        return nothing("give a snapshot: it holds the counts of rejected records")
    parts = growth(evidence.snapshot, evidence.earlier)
    now = _sum(parts)
    before = _sum({} if evidence.earlier is None else counts_by_partition(evidence.earlier))
    rejected, records = total(now, "rejected"), _records(now)
    if not records:
        return nothing("no record was read since the earlier snapshot")
    share, bound = rejected / records, settings.max_rejected
    what = f"{percent(share)} of {records:,} records were rejected or late"
    known = max(_records(before), 1)
    jumps = {
        key: now[key] / records - before[key] / known
        for key in now
        if key.startswith("rejected.") and _has_jumped(now, before, key, settings.max_jump)
    }
    if not jumps and share <= bound:
        return passed(share, bound, what)
    key = max(
        jumps or now, key=lambda name: jumps.get(name, now[name] * name.startswith("rejected."))
    )
    reason = key.removeprefix("rejected.")
    text = f"{what}; {percent(now[key] / records)} were {reason!r}"
    if jumps:
        text += f" and {percent(before[key] / known)} before the earlier snapshot"
    return failed(
        share,
        bound,
        f"{text}, most in partition {_most(parts, key)}: {_CAUSES.get(reason, 'see the log')}. "
        "The dead-letter topic has the records",
    )


def _has_jumped(now: Counter[str], before: Counter[str], key: str, most: float) -> bool:
    """Tell whether a reason's share grew by more than `most`, and by more than chance."""
    new, old = _records(now), _records(before)
    if not old or now[key] / new - before[key] / old <= most:
        return False
    chance = chance_of_split(now[key], now[key] + before[key], new, new + old)
    return chance <= _ALPHA / len(_CAUSES)


def _records(counts: Counter[str]) -> int:
    return total(counts, "accepted") + total(counts, "rejected")


def _sum(parts: Mapping[int, Counter[str]]) -> Counter[str]:
    return sum(parts.values(), Counter())


def _most(parts: Mapping[int, Counter[str]], key: str) -> int:
    """Return the partition with the largest count."""
    return max(parts, key=lambda number: parts[number][key])


CHECK: Final = Check(
    name="records_accepted",
    place=40,
    sentence="Few records are rejected or late, and no more than before.",
    value="share of records that were rejected or late",
    settings=Settings,
    run=check,
)
