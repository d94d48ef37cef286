"""`positions_complete`: items of slates say where they stood.

Without a position an item is ranked by time and id, and every ranking metric is about that order
instead of the one people saw. Positions that begin at 2 put every item a place too low.
"""

from __future__ import annotations

from typing import Final

from pydantic import Field

from streameval.checks.evidence import Evidence
from streameval.checks.result import CheckSettings, Found, failed, nothing, passed, percent

# Lists of a variant and surface below which a missing first place means nothing.
_LEAST_LISTS: Final = 20


class Settings(CheckSettings):
    """How many items may lack a position, and how many lists a first place."""

    max_missing: float = Field(
        0.01, ge=0, le=1, description="Largest share of items of slates without a position."
    )
    min_first: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Smallest share of lists that have a first place, in each variant and surface;"
        " pages after the first have none.",
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
        return _first_places(evidence, settings, share, what)
    variant, surface, count, lost = max(rows, key=lambda row: row[3] / row[2])
    return failed(
        share,
        settings.max_missing,
        f"{what}, most in variant {variant!r}, surface {surface!r}: {percent(lost / count)}. Send "
        "`position` with each impression, or whole slates: ranking metrics rest on it",
    )


def _first_places(evidence: Evidence, settings: Settings, share: float, what: str) -> Found:
    """Whether lists begin at 1; with too few lists nothing is said of a variant and surface."""
    segments = evidence.rows(
        """SELECT variant, surface, count(*), count(*) FILTER (WHERE best = 1), mode(best) FROM (
            SELECT variant, surface, list_min(positions) AS best FROM current
            WHERE request IS NOT NULL) WHERE best IS NOT NULL GROUP BY ALL HAVING count(*) >= ?
            ORDER BY count(*) FILTER (WHERE best = 1) / count(*)""",
        _LEAST_LISTS,
    )
    if not segments or segments[0][3] >= settings.min_first * segments[0][2]:
        return passed(share, settings.max_missing, what)
    variant, surface, lists, first, best = segments[0]
    return failed(
        first / lists,
        settings.min_first,
        f"{first:,} of {lists:,} lists of variant {variant!r}, surface {surface!r} have a first"
        f" place, most begin at {best}: send positions counted from 1, of the whole list."
        " Ranking metrics take every item for lower than it stood",
    )
