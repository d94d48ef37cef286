"""`clocks_agree`: slates are dated in the order in which the log has them.

An event that lies more than the allowed lateness behind an earlier record of its partition is late
and enters no row. So rows in the order of offsets never fall back by more, unless somebody changed
their times or their clocks disagree. Nothing tells which clock is wrong; the check blames the fewer
users.
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
    percent,
)

# Rows ahead of a later record of the log, and rows behind an earlier one, by more than the
# lateness: their number, the number of their users, the median gap (ms); users who have both.
_DISORDER: Final = """
    WITH steps AS MATERIALIZED (SELECT "user",
            ms - min(ms) OVER (PARTITION BY partition ORDER BY "offset"
                ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS ahead,
            max(ms) OVER (PARTITION BY partition ORDER BY "offset"
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) - ms AS behind
        FROM current)
    SELECT sum(a), count(*) FILTER (WHERE a > 0),
        (SELECT median(ahead) FROM steps WHERE ahead > $1),
        sum(b), count(*) FILTER (WHERE b > 0),
        (SELECT median(behind) FROM steps WHERE behind > $1),
        count(*) FILTER (WHERE a > 0 AND b > 0)
    FROM (SELECT count(*) FILTER (WHERE ahead > $1) AS a, count(*) FILTER (WHERE behind > $1) AS b
        FROM steps GROUP BY "user")"""


class Settings(CheckSettings):
    """The bound on slates out of order."""

    max_disordered: float = Field(
        0.001,
        ge=0,
        le=1,
        description="Largest share of slates whose time contradicts others in the log.",
    )


def check(evidence: Evidence, settings: Settings) -> Found:
    """Compare all slates of `current`, in each partition by itself."""
    lateness = evidence.definition.allowed_lateness
    latest = evidence.now + evidence.definition.max_clock_skew
    users, slates, apart, beyond = evidence.row(
        """SELECT count(DISTINCT "user"), count(*),
                count(*) FILTER (WHERE ms != list_min(shown)), count(*) FILTER (WHERE ms > ?)
            FROM current""",
        latest,
    )
    if not slates:
        return nothing("no outcome row was found")
    ahead, fast, by, behind, slow, below, both = evidence.row(_DISORDER, lateness)
    if both > min(fast, slow) / 2:
        return nothing(
            f"{both:,} of {users:,} users have slates before and after those beside them: the"
            " offsets of these rows do not follow time"
        )
    bound = settings.max_disordered
    share = max(min(ahead, behind), apart, beyond) / slates
    if share <= bound:
        return passed(share, bound, f"{slates:,} slates are dated in the order of the log")
    if apart > bound * slates:
        why = f"{apart:,} slates have another time than their items: the files were changed"
    elif min(ahead, behind) > bound * slates:
        wrong, spread, way = (fast, by, "ahead of") if fast <= slow else (slow, below, "behind")
        why = (
            f"the clocks of {wrong:,} of {users:,} users ({percent(wrong / users)}) are about"
            f" {duration(float(spread))} {way} other users beside them in the log"
        )
    else:
        why = f"{beyond:,} slates are dated later than now"
    return failed(
        share,
        bound,
        f"{why}. See that the clocks of producers are set, that `ts` is the time of the"
        " event in UTC, and that nobody changed the files",
    )


CHECK: Final = Check(
    name="clocks_agree",
    place=50,
    sentence="Slates are dated in the order in which the log has them.",
    value="share of slates whose time contradicts the log",
    settings=Settings,
    run=check,
)
