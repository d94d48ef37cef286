"""`traffic_sane`: no user is a machine.

A crawler or a load test reads more than people do and reacts never or always: it moves means over
slates by its share, and standard errors by far more.
"""

from __future__ import annotations

from pydantic import Field

from streameval.offline.checks.evidence import Evidence
from streameval.offline.checks.result import CheckSettings, Found, failed, nothing, passed, percent


class Settings(CheckSettings):
    """What people do at most."""

    max_share: float = Field(
        0.05, gt=0, le=1, description="Largest share of all impressions that one user may have."
    )
    min_impressions: int = Field(
        10_000, ge=1, description="Impressions below which shares of users mean nothing."
    )
    max_slates_per_minute: int = Field(
        60, ge=1, description="Most slates one user can look at in a minute."
    )
    max_positives_per_minute: int = Field(
        120, ge=1, description="Most positives one user can give to the slates of a minute."
    )


def check(evidence: Evidence, settings: Settings) -> Found:
    """The user with the most of each, against what people do."""
    total, user, most = evidence.row(
        """SELECT coalesce(sum(n), 0), arg_max("user", n), max(n)
           FROM (SELECT "user", sum(len(items)) AS n FROM current GROUP BY ALL)"""
    )
    if not total:
        return nothing("there is no outcome row")
    share = float(most / total)
    slates, fast, positives, eager = evidence.row(
        """SELECT max(n), arg_max("user", n), max(p), arg_max("user", p) FROM (
            SELECT "user", ms // 60000, count(request) AS n,
                sum(len(list_filter(feedback, lambda f: NOT f.retract))) AS p
            FROM current GROUP BY ALL)"""
    )
    problems = []
    if total >= settings.min_impressions and share > settings.max_share:
        problems.append(f"user {user!r} has {percent(share)} of all {total:,} impressions")
    if slates > settings.max_slates_per_minute:
        problems.append(f"user {fast!r} was shown {slates:,} slates in a minute")
    if positives > settings.max_positives_per_minute:
        problems.append(f"user {eager!r} gave {positives:,} positives to the slates of a minute")
    if problems:
        return failed(
            share,
            settings.max_share,
            f"{'; '.join(problems)}: no person does. Leave bots and tests out before events are "
            "sent, or under a `variant` of their own",
        )
    return passed(
        share,
        settings.max_share,
        f"the busiest user has {percent(share)} of the impressions, at most {slates} slates a "
        "minute",
    )
