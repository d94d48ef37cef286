"""Shares and means of users, compared between arms and with the reference.

A small arm whose client forgets a field changes the share of all traffic by next to nothing, and
all that is decided by the arm rests on it. A figure is a ratio of two sums over users.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from streameval.checks.evidence import DAY, Evidence
from streameval.checks.result import segment_name
from streameval.stats.intervals import Moments

# Standard errors beyond which two shares differ by more than chance: 3e-7, one side.
FAR: Final = 5.0
# Users that each side needs: below, a share says more about them than about the logging.
LEAST_USERS: Final = 30
# Arms are compared by value of a dimension if each shares the values of so much of its slates. The
# others share a value if they have at least so many slates of it for one of the arm's.
_SHARED: Final = 0.5
_BESIDE: Final = 0.05
_VALUES: Final = "SELECT segment[{number}], arm, {count} FROM current GROUP BY ALL"
_SHARES: Final = """
    SELECT values, arm, {moments}
    FROM (SELECT {values}::VARCHAR[] AS values, arm, "user", {sums} FROM {source} GROUP BY ALL)
    GROUP BY ALL ORDER BY ALL"""
# Both sums of a user, and the moments of them, for the figure of this number.
_SUMS: Final = """sum({above}) FILTER (WHERE {among})::DOUBLE AS x{number},
    sum({below}) FILTER (WHERE {among})::DOUBLE AS y{number}"""
_POWERS: Final = (
    *("count(*)", "sum(x{number})", "sum(y{number})"),
    *("sum(x{number} * x{number})", "sum(x{number} * y{number})", "sum(y{number} * y{number})"),
)
_MOMENTS: Final = f"[{', '.join(f'{one} FILTER (WHERE y{{number}} > 0)' for one in _POWERS)}]"
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
    """The sums of a figure by segment, now and in the reference; `arm` is a dimension, or None.

    `dimensions` are those of the segments (`compared_dimensions`).
    """

    dimensions: tuple[str, ...]
    arm: str | None
    now: Segments
    before: Segments

    @classmethod
    def of(
        cls, evidence: Evidence, figure: Figure, now: str = "current", before: str = "reference"
    ) -> Shares:
        """Read a figure from tables or queries; `before` counts only if there is a reference."""
        (found,) = cls.each(evidence, [figure], now, before)
        return found

    @classmethod
    def each(
        cls,
        evidence: Evidence,
        figures: Sequence[Figure],
        now: str = "current",
        before: str = "reference",
    ) -> list[Shares]:
        """Read several figures at once: the rows are read once, and of users only sums are kept."""
        names = compared_dimensions(evidence)
        here = _segments(evidence, now, figures, names)
        known = evidence.has_reference and before
        there = _segments(evidence, before, figures, names) if known else [{} for _ in figures]
        return [cls(names, evidence.arm, *sides) for sides in zip(here, there, strict=True)]

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
        for segment, arms in self.now.items():
            where = f" of {segment_name(self.dimensions, segment)}" if any(segment) else ""
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


def by_value(evidence: Evidence, number: int, count: str) -> dict[str, Counter[str]]:
    """Count by value of a dimension (numbered from 1), then by arm."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for value, arm, size in evidence.rows(_VALUES.format(number=number, count=count)):
        found[value][arm] = size
    return found


def compared_dimensions(evidence: Evidence) -> tuple[str, ...]:
    """Return the dimensions beside the arm whose values arms share, so that they can be compared.

    Where an arm has values of its own, such as the name of its algorithm, or lost those of the
    others, it would have no other arm beside it.
    """
    found = []
    for number, name in enumerate(evidence.definition.dimensions, 1):
        if name == evidence.arm:
            continue
        values = by_value(evidence, number, "count(*)").values()
        shared = Counter[str]()
        for arms in values:
            shared += {arm: n for arm, n in arms.items() if arms.total() - n >= _BESIDE * n}
        # What others lack does not matter of the largest arm: they are compared with it.
        whole = sum(values, Counter[str]()).most_common()
        if all(shared[arm] >= _SHARED * n for arm, n in whole[1:]):
            found.append(name)
    return tuple(found)


def _segments(
    evidence: Evidence, source: str, figures: Sequence[Figure], names: Sequence[str]
) -> list[Segments]:
    found: list[Segments] = [defaultdict(dict) for _ in figures]
    numbers = [evidence.definition.dimensions.index(name) + 1 for name in names]
    query = _SHARES.format(
        source=source,
        values=f"[{', '.join(f'segment[{number}]' for number in numbers)}]",
        sums=", ".join(_SUMS.format(number=n, **one._asdict()) for n, one in enumerate(figures)),
        moments=", ".join(_MOMENTS.format(number=n) for n in range(len(figures))),
    )
    for values, arm, *each in evidence.rows(query):
        for segments, (users, *sums) in zip(found, each, strict=True):
            if users:
                segments[tuple(values)][arm] = Moments(int(users), *sums)
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
