"""`freshness`: outcome rows keep coming.

A slate is final A + L after its time, and the next checkpoint writes its row; a row that is missing
later was never written. Before the first slate can be final the check has no answer.
"""

from __future__ import annotations

from typing import Final

from pydantic import Field

from streameval.checks.evidence import Evidence
from streameval.checks.result import (
    Check,
    CheckSettings,
    Found,
    duration,
    failed,
    nothing,
    passed,
    unanswered,
)


class Settings(CheckSettings):
    """The bound on the age of the newest row."""

    max_age_seconds: float = Field(
        3_600,
        gt=0,
        description="Longest time since the newest row could be final (its slate's time, the"
        " attribution window and the allowed lateness).",
    )


def check(evidence: Evidence, settings: Settings) -> Found:
    """Judge the newest row of all partitions; a partition may be idle."""
    bounds = evidence.bounds()
    bound = settings.max_age_seconds
    if bounds is None:
        return _without_rows(evidence, bound)
    newest = bounds[1]
    age = max(0.0, (evidence.now - newest - evidence.definition.horizon) / 1000)
    what = f"the newest outcome row has been final for {duration(1000 * age)}"
    if age <= bound:
        return passed(age, bound, what)
    return failed(
        age,
        bound,
        f"{what}: see that producers send, that workers run (`streameval doctor`) and that "
        "checkpoints are written",
    )


def _without_rows(evidence: Evidence, bound: float) -> Found:
    """Find a fault only if the snapshot's checkpoints prove that a row is missing."""
    snapshot = evidence.snapshot
    if snapshot is None:
        return unanswered("no outcome row was found: a snapshot would tell whether one is missing")
    begins = snapshot.begins()
    if not begins:
        return nothing("no user was counted yet")
    if not begins.keys() & snapshot.watermarks.keys():
        return unanswered("no checkpoint was written yet, and outcome rows come with one")
    horizon = evidence.definition.horizon
    ages = [
        snapshot.watermarks[partition] - horizon - begin
        for partition, begin in begins.items()
        if partition in snapshot.watermarks
    ]
    if max(ages) <= 1000 * bound:
        return nothing(f"slates are final {duration(horizon)} after their time, and none is yet")
    return failed(
        max(ages) / 1000,
        bound,
        f"no outcome row was found, and the first slate has been final for {duration(max(ages))}: "
        "see that `outcomes` names the folder that the workers write to",
    )


CHECK: Final = Check(
    name="freshness",
    place=110,
    sentence="Outcome rows keep coming.",
    value="seconds since the newest row could be final",
    settings=Settings,
    run=check,
)
