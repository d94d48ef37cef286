"""`slates_once`: each slate is in the files once.

Exactly-once holds for the records of the log. A feed that is sent again to another partition, or
files that are copied into the folder, still count people twice. Nobody sees the same items twice in
one millisecond, and one partition has all slates of a request.
"""

from __future__ import annotations

from pydantic import Field

from streameval.checks.evidence import Evidence
from streameval.checks.result import CheckSettings, Found, failed, nothing, passed


class Settings(CheckSettings):
    """The bound on repeated slates."""

    max_repeated: float = Field(
        0.001,
        ge=0,
        le=1,
        description="Largest share of slates that repeat another one: the same user, time and"
        " items, or the same request in another partition.",
    )


def check(evidence: Evidence, settings: Settings) -> Found:
    """Count repeated slates among all of `current`."""
    (slates,) = evidence.row("SELECT count(*) FROM current")
    if not slates:
        return nothing("no outcome row was found")
    # Empty lists are all alike, so the request tells them apart.
    repeated, rows, across, one, other = evidence.row(
        """SELECT coalesce(sum(n - 1), 0), coalesce(sum(n - records), 0),
                coalesce(sum(partitions - 1), 0), arg_max(low, partitions),
                arg_max(high, partitions)
            FROM (SELECT count(*) AS n, count(DISTINCT (partition, "offset")) AS records,
                    count(DISTINCT partition) AS partitions, min(partition) AS low,
                    max(partition) AS high
                FROM current
                GROUP BY "user", ms, hash(items), CASE WHEN len(items) = 0 THEN request END
                HAVING count(*) > 1)"""
    )
    split, low, high = evidence.row(
        """SELECT coalesce(sum(n - 1), 0), arg_max(low, n), arg_max(high, n) FROM (
            SELECT count(DISTINCT partition) AS n, min(partition) AS low, max(partition) AS high
            FROM current WHERE request IS NOT NULL GROUP BY "user", request
            HAVING count(DISTINCT partition) > 1)"""
    )
    bound = settings.max_repeated
    if split > repeated:
        repeated, across, one, other = split, split, low, high
    share = float(repeated / slates)
    if share <= bound:
        return passed(share, bound, f"{repeated:,} of {slates:,} slates repeat another one")
    if rows >= max(across, repeated - rows - across):
        why = (
            "the same records stand in several rows: files were copied into the folder of outcome"
            " files, remove the copies"
        )
    elif across:
        why = (
            f"the same slates are in partitions {one} and {other}, among others: a feed is sent"
            " twice, or its records are not keyed by `user_id`"
        )
    else:
        why = (
            "other records of the same partition show the same: a producer sends its events again"
            " under another `request_id`, or without one"
        )
    return failed(share, bound, f"{repeated:,} of {slates:,} slates repeat another one; {why}")
