"""Shares of impressions that lack something, compared between arms and with the reference.

A small arm whose client forgets a field changes the share of all traffic by next to nothing, and
all that is decided by the arm rests on it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from streameval.checks.evidence import Evidence
from streameval.checks.result import named
from streameval.stats.intervals import Moments

# Standard errors beyond which two shares differ by more than chance: 3e-7, one side.
_FAR: Final = 5.0
# Users that each side needs: below, a share says more about them than about the logging.
LEAST_USERS: Final = 30
_SHARES: Final = """
    SELECT segment, count(*), sum(x), sum(y), sum(x * x), sum(x * y), sum(y * y)
    FROM (SELECT segment, "user", sum(len(items))::DOUBLE AS y, sum({lacking})::DOUBLE AS x
        FROM {source} WHERE len(items) > 0 AND {among} GROUP BY ALL)
    GROUP BY segment ORDER BY segment"""

Segments: TypeAlias = dict[tuple[str, ...], dict[str, Moments]]
"""Impressions that lack something (x) of all (y), over users: by the other dimensions, by arm."""


class Gap(NamedTuple):
    """How far the `share` of one side's impressions is above `other`; 0 if by chance perhaps."""

    apart: float
    side: str
    impressions: float
    share: float
    beside: str
    other: float

    @classmethod
    def between(cls, side: str, one: Moments, beside: str, other: Moments) -> Gap:
        """Compare two sides, each named in words."""
        share, known = float(one.x / one.y), float(other.x / other.y)
        spread = math.sqrt(float(one.variance() + other.variance()))
        apart = share - known if share - known > _FAR * spread else 0.0
        return cls(apart, side, float(one.y), share, beside, known)


class Shares(NamedTuple):
    """The shares of the segments now and in the reference; `arm` is a dimension, or None."""

    dimensions: tuple[str, ...]
    arm: str | None
    now: Segments
    before: Segments

    @classmethod
    def of(cls, evidence: Evidence, lacking: str, among: str = "true") -> Shares:
        """Read the shares; SQL: how many items of a row lack it, and which rows count."""
        dimensions = tuple(evidence.definition.dimensions)
        sources = ("current", "reference") if evidence.has_reference else ("current",)
        found = [_segments(evidence, source, lacking, among) for source in sources]
        return cls(dimensions, evidence.arm, found[0], found[1] if len(found) > 1 else {})

    @property
    def impressions(self) -> float:
        """All impressions now."""
        return float(sum(part.y for arms in self.now.values() for part in arms.values()))

    @property
    def lacking(self) -> float:
        """Those that lack it."""
        return float(sum(part.x for arms in self.now.values() for part in arms.values()))

    def widest_gap(self) -> Gap | None:
        """Return the widest gap; None where no two sides have enough users."""
        return max(self._gaps(), key=lambda gap: gap.apart, default=None)

    def _gaps(self) -> Iterator[Gap]:
        """Compare each arm with the others of its segment, each segment with the reference."""
        others_of = [name for name in self.dimensions if name != self.arm]
        for segment, arms in self.now.items():
            where = f" of {named(others_of, segment)}" if any(segment) else ""
            for arm, part in arms.items():
                others = _sum([each for name, each in arms.items() if name != arm])
                if others is not None and _enough(part, others):
                    yield Gap.between(f"{self.arm} {arm!r}{where}", part, "in the others", others)
            known = _sum(list(self.before.get(segment, {}).values()))
            whole = _sum(list(arms.values()))
            if known is not None and whole is not None and _enough(whole, known):
                side = f"every {self.arm or 'user'}{where}"
                yield Gap.between(side, whole, "in the reference", known)


def _segments(evidence: Evidence, source: str, lacking: str, among: str) -> Segments:
    found: Segments = defaultdict(dict)
    dimensions = evidence.definition.dimensions
    at = len(dimensions) if evidence.arm is None else dimensions.index(evidence.arm)
    rows = evidence.rows(_SHARES.format(source=source, lacking=lacking, among=among))
    for segment, users, x, y, xx, xy, yy in rows:
        others, arm = (*segment[:at], *segment[at + 1 :]), "".join(segment[at : at + 1])
        found[others][arm] = Moments(users, x, y, xx, xy, yy)
    return found


def _sum(parts: list[Moments]) -> Moments | None:
    return sum(parts[1:], parts[0]) if parts else None


def _enough(one: Moments, other: Moments) -> bool:
    return bool(min(one.count, other.count) >= LEAST_USERS)
