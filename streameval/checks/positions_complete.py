"""`positions_complete`: items of slates say where they stood.

Without a position an item is ranked by time and id, and every ranking metric measures that order
instead of the order that people saw. Positions that begin at 2 put every item a rank too low.
"""

from __future__ import annotations

from typing import Final

from pydantic import Field

from streameval.checks.evidence import Evidence
from streameval.checks.result import CheckSettings, Found, failed, named, nothing, passed, percent
from streameval.checks.shares import Figure, Shares

# Lists of a segment below which a missing first position means nothing.
_LEAST_LISTS: Final = 20


class Settings(CheckSettings):
    """The bounds on items without a position and on lists with a first position."""

    max_missing: float = Field(
        0.01,
        ge=0,
        le=1,
        description="Largest share of items of slates without a position, of all; of a value of"
        " `arm` beyond the others', of a segment beyond the reference's.",
    )
    min_first: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Smallest share of lists that have a first position, in each segment;"
        " pages after the first have none.",
    )


def check(evidence: Evidence, settings: Settings) -> Found:
    """Judge items of slates that have a request, by segment."""
    rows = evidence.rows(
        """SELECT segment, sum(len(items)), sum(len(list_filter(positions,
            lambda p: p IS NULL))) FROM current WHERE request IS NOT NULL GROUP BY ALL"""
    )
    rows = [row for row in rows if row[1]]
    items = sum(row[1] for row in rows)
    if not items:
        return nothing("no slate has a request")
    missing = sum(row[2] for row in rows)
    share = float(missing / items)
    what = f"{percent(share)} of {items:,} items of slates have no position"
    if share <= settings.max_missing:
        return _beside_others(evidence, settings) or _first_positions(
            evidence, settings, share, what
        )
    segment, count, lost = max(rows, key=lambda row: row[2] / row[1])
    where = named(evidence.definition.dimensions, segment)
    most = f", most in {where}: {percent(lost / count)}" if where else ""
    return failed(
        share,
        settings.max_missing,
        f"{what}{most}. Send "
        "`position` with each impression, or whole slates: ranking metrics rest on it",
    )


def _beside_others(evidence: Evidence, settings: Settings) -> Found | None:
    """Return a failure where an arm lacks positions that the others have, or the reference had."""
    missing = Figure(
        "len(list_filter(positions, lambda p: p IS NULL))", among="request IS NOT NULL"
    )
    gap = Shares.of(evidence, missing).widest_gap()
    if gap is None or gap.apart <= settings.max_missing:
        return None
    return failed(
        gap.apart,
        settings.max_missing,
        f"{gap.side}: {percent(gap.share)} of {gap.below:,.0f} items of slates have no"
        f" position, {gap.beside} {percent(gap.other)}. Send `position` with each"
        " impression, or whole slates: ranking metrics rest on it",
    )


def _first_positions(evidence: Evidence, settings: Settings, share: float, what: str) -> Found:
    """Judge whether lists begin at 1, in each segment with enough lists."""
    segments = evidence.rows(
        """SELECT segment, count(*), count(*) FILTER (WHERE best = 1), mode(best) FROM (
            SELECT segment, list_min(positions) AS best FROM current
            WHERE request IS NOT NULL) WHERE best IS NOT NULL GROUP BY ALL HAVING count(*) >= ?
            ORDER BY count(*) FILTER (WHERE best = 1) / count(*)""",
        _LEAST_LISTS,
    )
    if not segments or segments[0][2] >= settings.min_first * segments[0][1]:
        return passed(share, settings.max_missing, what)
    segment, lists, first, best = segments[0]
    where = named(evidence.definition.dimensions, segment)
    of = f" of {where}" if where else ""
    return failed(
        first / lists,
        settings.min_first,
        f"{first:,} of {lists:,} lists{of} have a first"
        f" position, most begin at {best}: send positions counted from 1, of the whole list."
        " Ranking metrics put every item lower than it stood",
    )
