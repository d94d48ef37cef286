"""`requests_complete`: impressions name their request, in every variant alike and as before.

An impression without a `request_id` is a slate of its own: it counts for rates and in no ranking
metric. That is fine for a surface without lists. Where one variant loses its request ids, its
ranking figures vanish, or are about the part of its traffic that still has them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Final, TypeAlias

from pydantic import Field

from streameval.checks.evidence import Evidence
from streameval.checks.result import CheckSettings, Found, failed, nothing, passed, percent
from streameval.stats.intervals import Moments

# Standard errors beyond which two shares differ by more than chance: 3e-7, one side.
_FAR: Final = 5.0
# Users that each side needs: below, a share says more about them than about the logging.
_LEAST_USERS: Final = 30
_SHARES: Final = """
    SELECT surface, variant, count(*), sum(x), sum(y), sum(x * x), sum(x * y), sum(y * y)
    FROM (SELECT surface, variant, "user", sum(len(items))::DOUBLE AS y,
            coalesce(sum(len(items)) FILTER (WHERE request IS NULL), 0)::DOUBLE AS x
        FROM {source} WHERE len(items) > 0 GROUP BY ALL)
    GROUP BY surface, variant ORDER BY surface, variant"""

Segments: TypeAlias = dict[str, dict[str, Moments]]
"""Impressions without a request (x) of all (y), over users, by surface and variant."""


class Settings(CheckSettings):
    """How far shares may be apart."""

    max_difference: float = Field(
        0.05,
        gt=0,
        le=1,
        description="Largest share of impressions without a `request_id` beyond that of the other"
        " variants of the surface, and of the reference.",
    )


def check(evidence: Evidence, settings: Settings) -> Found:
    """Each variant against the others of its surface, each surface against the reference."""
    now = _segments(evidence, "current")
    everything = [part for variants in now.values() for part in variants.values()]
    impressions = sum(part.y for part in everything)
    if not impressions:
        return nothing("there is no impression")
    share = sum(part.x for part in everything) / impressions
    before = _segments(evidence, "reference") if evidence.has_reference else {}
    bound = settings.max_difference
    what = f"{percent(share)} of {impressions:,.0f} impressions have no `request_id`"
    pairs = [(_apart(one, other), label, one, other) for label, one, other in _pairs(now, before)]
    if not pairs:
        return nothing(f"no two sides have {_LEAST_USERS} users to compare")
    apart, label, one, other = max(pairs, key=lambda pair: pair[0])
    if apart <= bound:
        return passed(apart, bound, what)
    share = float(one.x / one.y)
    left = f"rest on the other {percent(1 - share)}" if share < 1 else "are none"
    return failed(
        apart,
        bound,
        f"{label[0]}: {percent(share)} of {one.y:,.0f} impressions have no `request_id`,"
        f" {label[1]} {percent(other.x / other.y)}; its ranking figures {left}. Send `request_id`"
        " with slates, impressions and feedback: ranking metrics count only lists that have one",
    )


def _segments(evidence: Evidence, source: str) -> Segments:
    found: Segments = defaultdict(dict)
    rows = evidence.rows(_SHARES.format(source=source))
    for surface, variant, users, x, y, xx, xy, yy in rows:
        found[surface][variant] = Moments(users, x, y, xx, xy, yy)
    return found


def _pairs(now: Segments, before: Segments) -> Iterator[tuple[tuple[str, str], Moments, Moments]]:
    """What is compared: labels of both sides, the side that may lack more, and the other."""
    for surface, variants in now.items():
        where = f" of surface {surface!r}" if surface else ""
        for variant, part in variants.items():
            others = _sum([each for name, each in variants.items() if name != variant])
            if others is not None and _enough(part, others):
                yield (f"variant {variant!r}{where}", "in the other variants"), part, others
        known = _sum(list(before.get(surface, {}).values()))
        whole = _sum(list(variants.values()))
        if known is not None and whole is not None and _enough(whole, known):
            yield (f"all variants{where}", "in the reference"), whole, known


def _sum(parts: list[Moments]) -> Moments | None:
    return sum(parts[1:], parts[0]) if parts else None


def _enough(one: Moments, other: Moments) -> bool:
    return bool(min(one.count, other.count) >= _LEAST_USERS)


def _apart(one: Moments, other: Moments) -> float:
    """How much larger the first share is, 0 where that may be chance."""
    more = float(one.ratio() - other.ratio())
    spread = math.sqrt(float(one.variance() + other.variance()))
    return more if more > _FAR * spread else 0.0
