"""`positions_complete`: items of slates say where they stood.

Without a position an item is ranked by time and id, and every ranking metric measures that order
instead of the order that people saw. Positions that begin at 2 put every item a rank too low.

People react more often to what stands above, and most rankers put higher scores above. Where one of
both was so and is gone, in one arm or since the reference, positions are not those that people saw.
"""

from __future__ import annotations

from typing import Final

from pydantic import Field

from streameval.checks.evidence import Evidence
from streameval.checks.result import (
    Check,
    CheckSettings,
    Found,
    failed,
    nothing,
    passed,
    percent,
    segment_name,
)
from streameval.checks.shares import Figure, Shares

# Lists of a segment below which a missing first position means nothing.
_LEAST_LISTS: Final = 20
# Pairs that are in order beyond one half, for an order to be there; standard errors to lose it.
_THERE: Final = 0.02
_FAR: Final = 4.0
_HITS: Final = "list_filter(range(1, len(items) + 1), lambda i: gains[i] > 0)"
_STEPS: Final = (
    "list_filter(range(1, len(items)), lambda i: scores[i] IS NOT NULL"
    " AND scores[i + 1] IS NOT NULL AND scores[i] != scores[i + 1])"
)
_ORDERS: Final = {
    "items with a positive stand above the items without": Figure(
        f"len({_HITS}) * (len(items) - (len({_HITS}) - 1) / 2) - list_sum({_HITS})",
        f"len({_HITS}) * (len(items) - len({_HITS}))",
        f"request IS NOT NULL AND len({_HITS}) > 0",
    ),
    "items have a higher score than the next": Figure(
        f"len(list_filter({_STEPS}, lambda i: scores[i] > scores[i + 1]))",
        f"len({_STEPS})",
        "request IS NOT NULL AND len(items) > 1",
    ),
}


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
    max_disorder: float = Field(
        0.7,
        gt=0,
        le=1,
        description="Largest share of the order of positives and scores by position that may be"
        " gone beside the others, or since the reference; 1: an arm may show items at random.",
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
        return (
            _beside_others(evidence, settings)
            or _order_gone(evidence, settings)
            or _first_positions(evidence, settings, share, what)
        )
    segment, count, lost = max(rows, key=lambda row: row[2] / row[1])
    where = segment_name(evidence.definition.dimensions, segment)
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


def _order_gone(evidence: Evidence, settings: Settings) -> Found | None:
    """Return a failure where the order of items has gone that the others have, or was there."""
    found = Shares.each(evidence, [*_ORDERS.values()])
    for what, shares in zip(_ORDERS, found, strict=True):
        for gap in shares.gaps(lower=True, far=_FAR):
            there = gap.other - 0.5
            gone = gap.apart / there if there >= _THERE else 0.0
            if gone > settings.max_disorder and settings.max_disorder < 1:
                return failed(
                    gone,
                    settings.max_disorder,
                    f"{gap.side}: {what} in {percent(gap.share)} of pairs, {gap.beside}"
                    f" {percent(gap.other)}, by chance 50 %. `position` is not where people saw the"
                    " item, or position or score are another item's (shuffled): or the ranker"
                    " lost its order",
                )
    return None


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
    where = segment_name(evidence.definition.dimensions, segment)
    of = f" of {where}" if where else ""
    return failed(
        first / lists,
        settings.min_first,
        f"{first:,} of {lists:,} lists{of} have a first"
        f" position, most begin at {best}: send positions counted from 1, of the whole list."
        " Ranking metrics put every item lower than it stood",
    )


CHECK: Final = Check(
    name="positions_complete",
    place=80,
    sentence="Items of slates have a position, and lists a first one.",
    value="share of items without a position, or of lists with a first position",
    settings=Settings,
    run=check,
)
