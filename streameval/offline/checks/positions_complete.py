"""`positions_complete`: items of slates say where they stood.

Without a position an item is ranked by time and id, and every ranking metric is about that order
instead of the one people saw.
"""

from __future__ import annotations

from pydantic import Field

from streameval.offline.checks.evidence import Evidence
from streameval.offline.checks.result import CheckSettings, Found, failed, nothing, passed, percent


class Settings(CheckSettings):
    """How many items may lack a position."""

    max_missing: float = Field(
        0.01, ge=0, le=1, description="Largest share of items of slates without a position."
    )


def check(evidence: Evidence, settings: Settings) -> Found:
    """Over items of slates that have a request, by variant and surface."""
    rows = evidence.rows(
        """SELECT variant, surface, sum(len(items)), sum(len(list_filter(positions,
            lambda p: p IS NULL))) FROM current WHERE request IS NOT NULL GROUP BY ALL"""
    )
    rows = [row for row in rows if row[2]]
    items = sum(row[2] for row in rows)
    if not items:
        return nothing("there is no slate with a request")
    missing = sum(row[3] for row in rows)
    share = float(missing / items)
    what = f"{percent(share)} of {items:,} items of slates have no position"
    if share <= settings.max_missing:
        return passed(share, settings.max_missing, what)
    variant, surface, count, lost = max(rows, key=lambda row: row[3] / row[2])
    return failed(
        share,
        settings.max_missing,
        f"{what}, most in variant {variant!r}, surface {surface!r}: {percent(lost / count)}. Send "
        "`position` with each impression, or whole slates: ranking metrics rest on it",
    )
