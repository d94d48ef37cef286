"""`requests_complete`: impressions name their request, in every variant alike and as before.

An impression without a `request_id` is a slate of its own: it counts for rates and in no ranking
metric. That is fine for a surface without lists. If one variant loses its request ids, its ranking
figures vanish, or describe only the traffic that still has them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Final, TypeAlias

from pydantic import Field

from streameval.checks.evidence import Evidence
from streameval.checks.result import CheckSettings, Found, failed, named, nothing, passed, percent
from streameval.stats.intervals import Moments

# Standard errors beyond which two shares differ by more than chance: 3e-7, one side.
_FAR: Final = 5.0
# Users that each side needs: below, a share says more about them than about the logging.
_LEAST_USERS: Final = 30
_SHARES: Final = """
    SELECT segment, count(*), sum(x), sum(y), sum(x * x), sum(x * y), sum(y * y)
    FROM (SELECT segment, "user", sum(len(items))::DOUBLE AS y,
            coalesce(sum(len(items)) FILTER (WHERE request IS NULL), 0)::DOUBLE AS x
        FROM {source} WHERE len(items) > 0 GROUP BY ALL)
    GROUP BY segment ORDER BY segment"""

Segments: TypeAlias = dict[tuple[str, ...], dict[str, Moments]]
"""Impressions without a request (x) of all (y), over users: by the other dimensions, by arm."""


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
    now = _segments(evidence, "current")
    everything = [part for arms in now.values() for part in arms.values()]
    impressions = sum(part.y for part in everything)
    if not impressions:
        return nothing("no impression was found")
    share = sum(part.x for part in everything) / impressions
    before = _segments(evidence, "reference") if evidence.has_reference else {}
    bound = settings.max_difference
    what = f"{percent(share)} of {impressions:,.0f} impressions have no `request_id`"
    pairs = [
        (_apart(one, other), label, one, other)
        for label, one, other in _pairs(evidence, now, before)
    ]
    if not pairs:
        return nothing(f"no two sides have {_LEAST_USERS} users to compare")
    apart, label, one, other = max(pairs, key=lambda pair: pair[0])
    if apart <= bound:
        return passed(apart, bound, what)
    share = float(one.x / one.y)
    left = f"rest on the other {percent(1 - share)}" if share < 1 else "are lost"
    return failed(
        apart,
        bound,
        f"{label[0]}: {percent(share)} of {one.y:,.0f} impressions have no `request_id`,"
        f" {label[1]} {percent(other.x / other.y)}; its ranking figures {left}. Send `request_id`"
        " with slates, impressions and feedback: ranking metrics count only lists that have one",
    )


def _segments(evidence: Evidence, source: str) -> Segments:
    found: Segments = defaultdict(dict)
    at = _position_of_arm(evidence)
    rows = evidence.rows(_SHARES.format(source=source))
    for segment, users, x, y, xx, xy, yy in rows:
        others, arm = (*segment[:at], *segment[at + 1 :]), "".join(segment[at : at + 1])
        found[others][arm] = Moments(users, x, y, xx, xy, yy)
    return found


def _position_of_arm(evidence: Evidence) -> int:
    """Return the index of the arm among the dimensions; beyond the last without an arm."""
    dimensions = evidence.definition.dimensions
    return len(dimensions) if evidence.arm is None else dimensions.index(evidence.arm)


def _pairs(
    evidence: Evidence, now: Segments, before: Segments
) -> Iterator[tuple[tuple[str, str], Moments, Moments]]:
    """Yield labels of two sides to compare, the side that may lack more, and the other."""
    dimensions = [name for name in evidence.definition.dimensions if name != evidence.arm]
    for segment, arms in now.items():
        where = f" of {named(dimensions, segment)}" if any(segment) else ""
        for arm, part in arms.items():
            others = _sum([each for name, each in arms.items() if name != arm])
            if others is not None and _enough(part, others):
                yield (f"{evidence.arm} {arm!r}{where}", "in the others"), part, others
        known = _sum(list(before.get(segment, {}).values()))
        whole = _sum(list(arms.values()))
        if known is not None and whole is not None and _enough(whole, known):
            yield (f"every {evidence.arm or 'user'}{where}", "in the reference"), whole, known


def _sum(parts: list[Moments]) -> Moments | None:
    return sum(parts[1:], parts[0]) if parts else None


def _enough(one: Moments, other: Moments) -> bool:
    return bool(min(one.count, other.count) >= _LEAST_USERS)


def _apart(one: Moments, other: Moments) -> float:
    """Return by how much the first share is larger, 0 if chance may explain it."""
    more = float(one.ratio() - other.ratio())
    spread = math.sqrt(float(one.variance() + other.variance()))
    return more if more > _FAR * spread else 0.0
