"""`freshness`: outcome rows keep coming.

A slate is final A + L after it was shown, and its row is written with the next checkpoint; what is
missing beyond that was not written. Before a slate can be final there is no answer.
"""

from __future__ import annotations

from pydantic import Field

from streameval.checks.evidence import Evidence
from streameval.checks.result import (
    CheckSettings,
    Found,
    duration,
    failed,
    nothing,
    passed,
    unanswered,
)


class Settings(CheckSettings):
    """How old the newest row may be."""

    max_age_seconds: float = Field(
        3_600,
        gt=0,
        description="Longest time since the newest row could be final (its slate's time, the"
        " attribution window and the allowed lateness).",
    )


def check(evidence: Evidence, settings: Settings) -> Found:
    """The newest row of all partitions; an idle partition is no fault."""
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
    """A fault only where the snapshot's checkpoints say that there should be a row."""
    snapshot = evidence.snapshot
    if snapshot is None:
        return unanswered("there is no outcome row: a snapshot would say whether there should be")
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
        return nothing(f"slates are final {duration(horizon)} after they were shown: none is yet")
    return failed(
        max(ages) / 1000,
        bound,
        f"there is no outcome row, and the first slate has been final for {duration(max(ages))}: "
        "see that `outcomes` names the folder that the workers write to",
    )
