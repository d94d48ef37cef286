"""Shares and means of users, compared between arms and with the reference.

A small arm whose client forgets a field changes the share of all traffic by next to nothing, and
all that is decided by the arm rests on it. A figure is a ratio of two sums over users.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from streameval.checks.evidence import DAY, Evidence
from streameval.checks.result import segment_name
from streameval.stats.intervals import Moments

# Standard errors beyond which two shares differ by more than chance: 3e-7, one side.
FAR: Final = 5.0
# Users that each side needs: below, a share says more about them than about the logging.
LEAST_USERS: Final = 30
_SHARES: Final = """
    SELECT segment, count(*), sum(x), sum(y), sum(x * x), sum(x * y), sum(y * y)
    FROM (SELECT segment, "user", sum({below})::DOUBLE AS y, sum({above})::DOUBLE AS x
        FROM {source} WHERE {among} GROUP BY ALL HAVING sum({below}) > 0)
    GROUP BY segment ORDER BY segment"""
_SAME_HOURS: Final = """
    (WITH span AS (SELECT max(ms) AS last, max(ms) - min(ms) + 1 AS size FROM current),
        days AS (SELECT *, greatest(round(size / {day}), 1)::BIGINT * {day} AS stride FROM span)
    SELECT segment, "user", arm, ms, (last - ms) // stride AS age,
        count(*) OVER (PARTITION BY "user", (last - ms) // stride) AS visits
    FROM {source}, days WHERE (last - ms) % stride < size AND (last - ms) // stride {ages})"""

Segments: TypeAlias = dict[tuple[str, ...], dict[str, Moments]]
"""Sums of a figure over users: by the other dimensions, then by arm."""


class Figure(NamedTuple):
    """A figure in SQL, Σ`above` / Σ`below` of the rows that `among` chooses."""

    above: str
    below: str = "len(items)"
    among: str = "true"


class Gap(NamedTuple):
    """How far the `share` of one side is above `other` (or below); 0 if by chance perhaps."""

    apart: float
    side: str
    below: float
    share: float
    beside: str
    other: float

    @classmethod
    def between(
        cls,
        side: str,
        one: Moments,
        beside: str,
        other: Moments,
        *,
        lower: bool = False,
        far: float = FAR,
    ) -> Gap:
        """Compare two sides, each named in words; `lower`: how far `one` is below.

        By chance perhaps: within `far` standard errors.
        """
        share, known = float(one.x / one.y), float(other.x / other.y)
        apart = known - share if lower else share - known
        spread = max(float(one.variance() + other.variance()), _alike(one, other))
        return cls(
            apart if apart > far * math.sqrt(spread) else 0.0,
            side,
            float(one.y),
            share,
            beside,
            known,
        )

    @property
    def relative(self) -> float:
        """The distance as a share of the larger side."""
        return self.apart / max(self.share, self.other) if self.apart else 0.0


class Shares(NamedTuple):
    """The sums of a figure by segment, now and in the reference; `arm` is a dimension, or None."""

    dimensions: tuple[str, ...]
    arm: str | None
    now: Segments
    before: Segments

    @classmethod
    def of(
        cls, evidence: Evidence, figure: Figure, now: str = "current", before: str = "reference"
    ) -> Shares:
        """Read a figure from tables or queries; `before` counts only if there is a reference."""
        dimensions = tuple(evidence.definition.dimensions)
        known = evidence.has_reference and before
        return cls(
            dimensions,
            evidence.arm,
            _segments(evidence, now, figure),
            _segments(evidence, before, figure) if known else {},
        )

    @property
    def below(self) -> float:
        """Return Σ`below` of all users now."""
        return float(sum(part.y for arms in self.now.values() for part in arms.values()))

    @property
    def above(self) -> float:
        """Return Σ`above` of all users now."""
        return float(sum(part.x for arms in self.now.values() for part in arms.values()))

    def widest_gap(self) -> Gap | None:
        """Return the widest gap upwards; None where no two sides have enough users."""
        return max(self.gaps(), key=lambda gap: gap.apart, default=None)

    def gaps(self, *, lower: bool = False, far: float = FAR) -> Iterator[Gap]:
        """Compare each arm with the others of its segment, each segment with the reference."""
        others_of = [name for name in self.dimensions if name != self.arm]
        for segment, arms in self.now.items():
            where = f" of {segment_name(others_of, segment)}" if any(segment) else ""
            for arm, part in arms.items():
                others = _sum([each for name, each in arms.items() if name != arm])
                if others is not None and _enough(part, others):
                    side = f"{self.arm} {arm!r}{where}"
                    yield Gap.between(side, part, "in the others", others, lower=lower, far=far)
            known = _sum(list(self.before.get(segment, {}).values()))
            whole = _sum(list(arms.values()))
            if known is not None and whole is not None and _enough(whole, known):
                side = f"every {self.arm or 'user'}{where}"
                yield Gap.between(side, whole, "in the reference", known, lower=lower, far=far)


def same_hours(source: str) -> str:
    """Write a query for the slates of `current`, or those of the same hours of earlier days.

    Each is the slate of one `age`: so many times as far back as `current` is long, in whole days.
    `visits` are the user's slates of that age: only spans of one length have as many.
    """
    ages = ">= 1" if source == "reference" else "= 0"
    return _SAME_HOURS.format(source=source, ages=ages, day=DAY)


def _segments(evidence: Evidence, source: str, figure: Figure) -> Segments:
    found: Segments = defaultdict(dict)
    dimensions = evidence.definition.dimensions
    at = len(dimensions) if evidence.arm is None else dimensions.index(evidence.arm)
    rows = evidence.rows(_SHARES.format(source=source, **figure._asdict()))
    for segment, users, x, y, xx, xy, yy in rows:
        others, arm = (*segment[:at], *segment[at + 1 :]), "".join(segment[at : at + 1])
        found[others][arm] = Moments(users, x, y, xx, xy, yy)
    return found


def _alike(one: Moments, other: Moments) -> float:
    """Compute the variance of the difference if all users were of one kind.

    A side of few users that lacks a rare thing has no spread of its own, and would look certain.
    """
    both = one + other
    share = both.x / both.y
    unit = max(both.xx - 2 * share * both.xy + share**2 * both.yy, 0.0) / both.yy
    return float(unit * (one.yy / one.y**2 + other.yy / other.y**2))


def _sum(parts: list[Moments]) -> Moments | None:
    return sum(parts[1:], parts[0]) if parts else None


def _enough(one: Moments, other: Moments) -> bool:
    return bool(min(one.count, other.count) >= LEAST_USERS)
