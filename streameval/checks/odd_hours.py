"""Hours in which people react less than at other times: part of `traffic_alike`.

An hour without feedback, or with hundreds of visitors who are no people, changes a day by a few
percent. So each half hour and hour is compared with the others, and with the same times of day in
the reference. Users who were there at no other time are compared with such users of other hours:
the regular users tell whether feedback was lost, the others whether they are people.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from streameval.base.durations import utc
from streameval.checks.evidence import DAY, Evidence
from streameval.checks.result import percent
from streameval.checks.shares import LEAST_USERS, Gap
from streameval.stats.intervals import Moments

_HOUR: Final = 3_600_000
# An hour that is lost covers a half hour of the clock wholly, whenever it begins.
_LENGTHS: Final = (_HOUR, _HOUR // 2)
# Users of the reference, or with more than an hour between their first and last slate, are regular.
_RATES: Final = """
    WITH users AS (SELECT "user", max(ms) - min(ms) < {hour} AND NOT {known} AS visitor
            FROM {source} GROUP BY "user"),
        rates AS (SELECT ms // {length} AS time, arm, visitor, "user",
                sum(len(list_filter(gains, lambda g: g > 0))) / sum(len(items)) AS rate
            FROM {source} JOIN users USING ("user") WHERE len(items) > 0 GROUP BY ALL)
    SELECT visitor, arm, time, count(*), sum(rate), sum(rate * rate)
    FROM rates GROUP BY GROUPING SETS ((visitor, arm, time), (visitor, time))"""

Times: TypeAlias = dict[tuple[bool, str | None], dict[int, Moments]]
"""Users' mean rates, by visitor or regular user and arm (None: all), then by time."""


class Hour(NamedTuple):
    """A time of little feedback: how much less (a share), of whom, and how long (ms)."""

    apart: float
    begin: int
    length: int
    visitors: bool
    arm: str | None
    gap: Gap
    users: str

    def said(self) -> str:
        """Write it as people read it."""
        of = "" if self.arm is None else f" of {self.arm!r}"
        time = f"from {utc(self.begin)} to {utc(self.begin + self.length)[11:]} UTC"
        rate = f"{percent(self.gap.share)} of impressions have a positive,"
        if self.visitors:
            return (
                f"{self.gap.below:,.0f} users{of} came only then, {time}: {rate}"
                f" {self.gap.beside} {percent(self.gap.other)}, and other users react as always:"
                f" bots, or a load test ({self.users})"
            )
        return (
            f"{time} {rate} of {self.gap.below:,.0f} users{of} who come at other times too;"
            f" {self.gap.beside} {percent(self.gap.other)}: feedback was lost"
        )


def odd_hours(evidence: Evidence, bound: float) -> Iterator[Hour]:
    """Find the time at which regular users react less by more than `bound`, then visitors."""
    hours = [
        hour
        for length in _LENGTHS
        for hour in _times_fallen(evidence, length, bound)
        if hour.apart > bound
    ]
    regular = max((hour for hour in hours if not hour.visitors), key=_clearest, default=None)
    if regular is not None:
        yield regular
    alone = [hour for hour in hours if hour.visitors and not _meets(hour, regular)]
    if alone:
        hour = max(alone, key=_clearest)
        yield hour._replace(users=_silent_users(evidence, hour))


def _clearest(hour: Hour) -> tuple[float, int]:
    # A fault of all arms is not that of the one that chance made clearest.
    return hour.apart + 0.1 * (hour.arm is None) + 0.1 * (hour.length == _HOUR), hour.length


def _meets(hour: Hour, other: Hour | None) -> bool:
    return (
        other is not None
        and hour.begin < other.begin + other.length
        and other.begin < hour.begin + hour.length
    )


def _times_fallen(evidence: Evidence, length: int, bound: float) -> Iterator[Hour]:
    """Yield each time that is below the others, unless the reference has the same then."""
    known = '"user" IN (SELECT "user" FROM reference)' if evidence.has_reference else "false"
    before = _rates(evidence, "reference", length, "false") if evidence.has_reference else {}
    for (visitors, arm), times in _rates(evidence, "current", length, known).items():
        usual = _by_time_of_day(before.get((visitors, None), {}), length)
        for time, part in times.items():
            others = [each for other, each in times.items() if other != time]
            if part.count < LEAST_USERS or sum(each.count for each in others) < LEAST_USERS:
                continue
            rest = sum(others[1:], others[0])
            gap = Gap.between("", part, "at other times", rest, lower=True)
            then = usual.get(time % (DAY // length))
            if then is None or gap.share <= (1 - bound) * then.ratio():
                yield Hour(gap.relative, time * length, length, visitors, arm, gap, "")


def _rates(evidence: Evidence, source: str, length: int, known: str) -> Times:
    found: Times = defaultdict(dict)
    query = _RATES.format(source=source, length=length, known=known, hour=_HOUR)
    for visitor, arm, time, users, x, xx in evidence.rows(query):
        found[visitor, arm][time] = Moments(users, x, users, xx, x, users)
    return found


def _by_time_of_day(times: dict[int, Moments], length: int) -> dict[int, Moments]:
    """Add up the days, and leave out times of too few users."""
    days: dict[int, Moments] = {}
    for time, part in times.items():
        at = time % (DAY // length)
        days[at] = days[at] + part if at in days else part
    return {at: part for at, part in days.items() if part.count >= LEAST_USERS}


def _silent_users(evidence: Evidence, hour: Hour) -> str:
    """Name some of the users who came then and did not react."""
    rows = evidence.rows(
        """SELECT "user" FROM current GROUP BY "user" HAVING min(ms) >= ? AND max(ms) < ?
            AND sum(len(list_filter(gains, lambda g: g > 0))) = 0
        ORDER BY count(*) DESC, "user" LIMIT 3""",
        hour.begin,
        hour.begin + hour.length,
    )
    return ", ".join(repr(user) for (user,) in rows)
