"""`requests_complete`: impressions name their request, in every variant alike and as before.

An impression without a `request_id` is a slate of its own: it counts for rates and in no ranking
metric. That is fine for a surface without lists. If one variant loses its request ids, its ranking
figures vanish, or describe only the traffic that still has them.
"""

from __future__ import annotations

from typing import Final

from pydantic import Field

from streameval.checks.evidence import Evidence
from streameval.checks.result import Check, CheckSettings, Found, failed, nothing, passed, percent
from streameval.checks.shares import LEAST_USERS, Figure, Shares


class Settings(CheckSettings):
    """The bound on the difference of shares."""

    max_difference: float = Field(
        0.05,
        gt=0,
        le=1,
        description="Largest share of impressions without a `request_id` beyond the share of the"
        " other values of `arm`, and of the reference.",
    )


def check(evidence: Evidence, settings: Settings) -> Found:
    """Compare each arm with the others of its segment, each segment with the reference."""
    shares = Shares.of(evidence, Figure("CASE WHEN request IS NULL THEN len(items) ELSE 0 END"))
    if not shares.below:
        return nothing("no impression was found")
    bound = settings.max_difference
    what = (
        f"{percent(shares.above / shares.below)} of {shares.below:,.0f} impressions"
        " have no `request_id`"
    )
    gap = shares.widest_gap()
    if gap is None:
        return nothing(f"no two sides have {LEAST_USERS} users to compare")
    if gap.apart <= bound:
        return passed(gap.apart, bound, what)
    left = f"rest on the other {percent(1 - gap.share)}" if gap.share < 1 else "are lost"
    return failed(
        gap.apart,
        bound,
        f"{gap.side}: {percent(gap.share)} of {gap.below:,.0f} impressions have no"
        f" `request_id`, {gap.beside} {percent(gap.other)}; its ranking figures {left}. Send"
        " `request_id` with slates, impressions and feedback: ranking metrics count only lists"
        " that have one",
    )


CHECK: Final = Check(
    name="requests_complete",
    place=70,
    sentence="Impressions name their request, in every variant alike and as before.",
    value="share of impressions without a request beyond the others' share",
    settings=Settings,
    run=check,
)
