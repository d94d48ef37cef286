"""`freshness`: outcome rows keep coming.

A slate is final A + L after it was shown, and its row is written with the next checkpoint; what is
missing beyond that was not written.
"""

from __future__ import annotations

from pydantic import Field

from streameval.offline.checks.evidence import Evidence
from streameval.offline.checks.result import CheckSettings, Found, duration, failed, passed


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
    (newest,) = evidence.row("SELECT max(ms) FROM slates")
    bound = settings.max_age_seconds
    if newest is None:
        return failed(
            None,
            bound,
            "there is no outcome row: see that `outcomes` is set, that workers run and that the "
            "first slates are older than the attribution window",
        )
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
