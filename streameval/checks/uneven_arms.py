"""Arms that serve other people: part of `traffic_alike`.

Where most users of the app have one arm and most of the web the other, each arm may have half of
all users, and the figures of all traffic still compare the app with the web. So the users of each
value of a dimension are split as those of the others. This holds for dimensions that users keep,
such as a platform or a country: what an arm itself decides, such as an algorithm, differs by arm.
A value that a single arm serves is part of no comparison.

An arm whose slates of some hours are lost is compared at other times of the day than the others. A
ramp changes its share too, but for good: so an hour is compared with those before and after.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from streameval.base.durations import utc
from streameval.checks.evidence import DAY, Evidence
from streameval.checks.result import percent
from streameval.checks.shares import FAR, LEAST_USERS, by_value

# Share of the users of several slates who have one value of a dimension that users keep.
_KEPT: Final = 0.8
_KEEPING: Final = """
    SELECT avg((count = 1)::INTEGER) FROM (SELECT count(DISTINCT segment[{number}]) AS count
        FROM current GROUP BY "user" HAVING count(*) > 1)"""
_USERS: Final = 'count(DISTINCT "user")'
# The users of each arm by hour of the period, and on the day before it.
_BY_HOUR: Final = """
    SELECT ms // {hour} AS hour, arm, {users} FROM current GROUP BY ALL ORDER BY hour"""
_DAY_BEFORE: Final = """
    SELECT arm, {users} FROM reference WHERE ms >= (SELECT min(ms) FROM current) - {day}
    GROUP BY arm"""
_HOUR: Final = 3_600_000


def uneven_arms(evidence: Evidence, bound: float) -> Iterator[tuple[float, str]]:
    """Yield how far shares of users differ by more than `bound` (1: at it), and a sentence.

    The distance is a share of the larger one, and counts beyond `FAR` standard errors.
    """
    for number, dimension in enumerate(evidence.definition.dimensions, 1):
        if evidence.arm is None or dimension == evidence.arm:
            continue
        (kept,) = evidence.row(_KEEPING.format(number=number))
        counts = by_value(evidence, number, _USERS) if (kept or 0.0) >= _KEPT else {}
        for value, arm, n, share, rest in _larger(counts):
            if (apart := (share - rest) / share) > bound:
                said = (
                    f"{evidence.arm} {arm!r} has {percent(share)} of the {n:,} users of"
                    f" {dimension} {value!r}, elsewhere {percent(rest)}: figures of all traffic"
                    f" compare values of {dimension} too. See what assigns users there, or compare"
                    f" arms within one {dimension}"
                )
                yield apart / bound, said


def _larger(counts: Mapping[str, Counter[str]]) -> Iterator[tuple[str, str, int, float, float]]:
    """Yield values of a dimension of whose users an arm has a larger share than of the others'.

    With value and arm: the users of the value, and both shares.
    """
    compared = {value: arms for value, arms in counts.items() if len(arms) > 1}
    whole = sum(compared.values(), Counter[str]())
    for value, here in compared.items():
        there = whole - here
        n, others = here.total(), there.total()
        if min(n, others) < LEAST_USERS:
            continue
        for arm in here:
            if (rest := _less(there, here, arm)) is not None:
                yield value, arm, n, here[arm] / n, rest


def _less(one: Counter[str], other: Counter[str], arm: str) -> float | None:
    """Return the arm's share of the users of `one`, where it is surely less than of `other`."""
    sizes, both = (one.total(), other.total()), one + other
    share, rest, mean = one[arm] / sizes[0], other[arm] / sizes[1], both[arm] / both.total()
    spread = math.sqrt(mean * (1 - mean) * (1 / sizes[0] + 1 / sizes[1]))
    return share if rest - share > FAR * spread else None


def lost_hour(evidence: Evidence, bound: float) -> Iterator[tuple[float, str]]:
    """Yield the hour in which an arm lacks most of the users it has before and after, if any.

    Distance and bound are those of `uneven_arms`.
    """
    if evidence.arm is None:
        return
    hours: dict[int, Counter[str]] = defaultdict(Counter)
    for hour, arm, users in evidence.rows(_BY_HOUR.format(hour=_HOUR, users=_USERS)):
        hours[hour][arm] = users
    query = _DAY_BEFORE.format(users=_USERS, day=DAY)
    before = Counter[str](dict(evidence.rows(query) if evidence.has_reference else ()))
    for dip in sorted(_dips(hours, before))[-1:]:
        here = hours[dip.hour]
        if dip.apart > bound:
            said = (
                f"{evidence.arm} {dip.arm!r} has {percent(here[dip.arm] / here.total())} of the"
                f" {here.total():,} users from {utc(dip.hour * _HOUR)} to"
                f" {utc((dip.hour + 1) * _HOUR)[11:]} UTC, before and after {percent(dip.usual)} or"
                " more: its slates were lost, and its figures are of other times than the others'."
                " Or the others have bots then"
            )
            yield dip.apart / bound, said


class _Dip(NamedTuple):
    """An hour in which an arm has a smaller share of the users than `usual`, by `apart` of it."""

    apart: float
    hour: int
    arm: str
    usual: float


def _dips(hours: Mapping[int, Counter[str]], before: Counter[str]) -> Iterator[_Dip]:
    """Yield hours in which the share of an arm is surely less than before, and than after."""
    after = sum(hours.values(), Counter[str]())
    arms = {*before, *after}
    for hour, here in hours.items():
        after = after - here
        sides = (before, after)
        if min(side.total() for side in (here, *sides)) >= LEAST_USERS:
            for arm in arms:
                if all(_less(here, side, arm) is not None for side in sides):
                    usual = min(side[arm] / side.total() for side in sides)
                    yield _Dip((usual - here[arm] / here.total()) / usual, hour, arm, usual)
        before = before + here
