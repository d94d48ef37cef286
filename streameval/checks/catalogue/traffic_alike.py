"""`traffic_alike`: lists, feedback and users are alike in every arm, at every hour, and as before.

A fault of one arm's service or clients makes its figures better or worse, and no test of the
figures tells why. What a ranker does not decide should not differ by arm on the same day: how long
lists are, how many are empty, whether people come back, and whether they keep their id. Nor should
the share of feedback that is too fast for people or sent twice, what feedback is worth, or who the
users are. What a ranker does decide (how many positives its lists get) is only told, unless hardly
any are left.

An hour without feedback, or with hundreds of visitors who are no people, changes a day by a few
percent. So each half hour and hour is compared with the others, and with the same times of day in
the reference. Users who were there at no other time are compared with such users of other hours:
the regular users tell whether feedback was lost, the others whether they are people.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from pydantic import Field

from streameval.base.durations import utc
from streameval.checks.evidence import DAY, Evidence
from streameval.checks.result import Check, CheckSettings, Found, failed, nothing, passed, percent
from streameval.checks.shares import FAR, LEAST_USERS, Figure, Gap, Shares, same_hours
from streameval.checks.uneven_arms import uneven_arms
from streameval.files.table_scans import literal
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


# A difference of positives that is worth telling, and one that no ranker makes.
_TOLD: Final = 0.1
# Standard errors where a user counts once: 2e-4, one side. A day has few users.
_FEW_FAR: Final = 3.5
_HARDLY_ANY: Final = 0.75
# Times as many users of one slate as on the busiest day of the reference.
_SURGE: Final = 1.7
_VISITS: Final = """
    SELECT age, count(*), sum((visits = 1)::INTEGER)::BIGINT
    FROM (SELECT DISTINCT age, "user", visits FROM {source}) GROUP BY age ORDER BY age"""
_CAME_BACK: Final = '(SELECT *, "user" IN (SELECT "user" FROM {now}) AS came_back FROM {before})'
# Nobody has seen an item and reacted to it within so many ms, nor reacts twice within so many.
_REACTION: Final = 250
_TWICE: Final = 1_000
# Feedback of a row that is compared with each other: it takes the square of the time.
_COMPARED: Final = 200
_GIVEN: Final = "list_filter(feedback, lambda f: NOT f.retract)"
_SINCE_SHOWN: Final = "ms + f.delay - coalesce(shown[f.item + 1], ms)"
_BEFORE: Final = f"""len(list_filter({_GIVEN}, lambda g: g.item = f.item AND g.kind = f.kind
    AND f.delay - g.delay BETWEEN 1 AND {_TWICE}))"""
_COUNT: Final = f"len({_GIVEN})"
# Faults that a message lists.
_LISTED: Final = 3


class Settings(CheckSettings):
    """The largest differences between arms, hours, and from the reference."""

    max_shorter: float = Field(
        0.1,
        gt=0,
        le=1,
        description="Largest share by which lists may be shorter than the others, or the"
        " reference's.",
    )
    max_empty: float = Field(
        0.02, gt=0, le=1, description="Largest share of empty lists beyond the others'."
    )
    max_fallback: float = Field(
        0.05, gt=0, le=1, description="Largest share of fallback lists beyond the others'."
    )
    max_single: float = Field(
        0.1,
        gt=0,
        le=1,
        description="Largest share of users who are in no other slate of the period, beyond"
        " the others'.",
    )
    max_absent: float = Field(
        0.1,
        gt=0,
        le=1,
        description="Largest share by which the users of an arm come back less often than those"
        " of the others.",
    )
    max_fast: float = Field(
        0.05,
        gt=0,
        le=1,
        description="Largest share of feedback within a quarter of a second of its item, beyond"
        " the others'.",
    )
    max_twice: float = Field(
        0.05,
        gt=0,
        le=1,
        description="Largest share of feedback that comes again within a second, beyond the"
        " others'.",
    )
    max_cheaper: float = Field(
        0.8,
        gt=0,
        le=1,
        description="Largest share by which the mean value of a kind of feedback may be below the"
        " others', or the reference's.",
    )
    max_uneven: float = Field(
        0.2,
        gt=0,
        le=1,
        description="Largest share by which an arm may have more of the users of one value of a"
        " dimension than of the other values.",
    )
    max_fall: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Largest fall of the positives per impression within one hour, beside the"
        " other hours and the same hours of the reference.",
    )


class _Health(NamedTuple):
    """A figure that no ranker decides: its name, its setting, and the words of a fault."""

    figure: Figure
    setting: str
    what: str
    cause: str
    lower: bool = False
    relative: bool = False
    far: float = FAR
    now: str = "current"
    before: str = "reference"

    def faults(self, evidence: Evidence, settings: Settings) -> Iterator[tuple[float, str]]:
        """Yield how far each gap is beyond its bound (1: at the bound), and a sentence."""
        shares = Shares.of(evidence, self.figure, self.now, self.before)
        bound = getattr(settings, self.setting)
        for gap in shares.gaps(lower=self.lower, far=self.far):
            apart = gap.relative if self.relative else gap.apart
            if apart > bound:
                yield apart / bound, f"{self.said(gap)}: {self.cause}"

    def said(self, gap: Gap) -> str:
        """Write a gap as people read it."""
        values = [
            percent(value) if self.what.startswith("of ") else f"{value:,.4g}"
            for value in (gap.share, gap.other)
        ]
        return f"{gap.side}: {values[0]} {self.what}, {gap.beside} {values[1]}"


_LISTS: Final = "request IS NOT NULL"
_HEALTH: Final = (
    _Health(
        Figure("len(items)", "1", f"{_LISTS} AND len(items) > 0"),
        "max_shorter",
        "items a list",
        "lists are cut, or only a part of their items is logged",
        lower=True,
        relative=True,
    ),
    _Health(
        Figure("(len(items) = 0)::INTEGER", "1", _LISTS),
        "max_empty",
        "of the lists are empty",
        "see the service that fills them, and its filters",
    ),
    _Health(
        Figure("coalesce(fallback, false)::INTEGER", "1"),
        "max_fallback",
        "of the lists are fallbacks",
        "see why the ranker does not answer",
    ),
    _Health(
        # One for each user and period, spread over the user's slates.
        Figure("(visits = 1)::INTEGER", "1 / visits"),
        "max_single",
        "of the users are in no other slate",
        "ids change from slate to slate, or many people came once. See whether `user_id` is kept"
        " between requests",
        now=same_hours("current"),
        before="",
    ),
    _Health(
        Figure("came_back::INTEGER / visits", "1 / visits", "age = 1"),
        "max_absent",
        "of the users of the day before came back",
        "slates of users of this arm are lost, or carry another arm or id",
        lower=True,
        relative=True,
        now=_CAME_BACK.format(now=same_hours("current"), before=same_hours("reference")),
        far=_FEW_FAR,
        before="",
    ),
    _Health(
        Figure(f"len(list_filter({_GIVEN}, lambda f: {_SINCE_SHOWN} < {_REACTION}))", _COUNT),
        "max_fast",
        "of the feedback comes within 0.25 s of its item",
        "no person is as fast: links are fetched ahead, a script reacts, or a list is logged only"
        " with its click",
    ),
    _Health(
        Figure(
            f"len(list_filter({_GIVEN}, lambda f: {_BEFORE} > 0))",
            _COUNT,
            f"len(feedback) <= {_COMPARED}",
        ),
        "max_twice",
        "of the feedback comes again within a second",
        "it is sent twice, and counters and values have both",
    ),
)


def _worth(kind: str) -> _Health:
    theirs = f"list_filter({_GIVEN}, lambda f: f.kind = {literal(kind)})"
    return _Health(
        Figure(f"list_sum([f.value FOR f IN {theirs}])", f"len({theirs})"),
        "max_cheaper",
        f"is the mean value of {kind!r}",
        "see whether all send it in the same unit",
        lower=True,
        relative=True,
    )


_POSITIVES: Final = Figure("len(list_filter(gains, lambda g: g > 0))")


def check(evidence: Evidence, settings: Settings) -> Found:
    """Compare arms, the reference and hours; the value is the widest gap over its bound."""
    (slates,) = evidence.row("SELECT count(*) FROM current")
    if not slates:
        return nothing("no outcome row was found")
    health = [*_HEALTH, *map(_worth, evidence.definition.kinds)]
    figures = [one for one in health if evidence.has_reference or "reference" not in one.now]
    faults = [fault for one in figures for fault in one.faults(evidence, settings)]
    lost, told = _positives(evidence)
    faults += [*lost, *_single(evidence, settings), *uneven_arms(evidence, settings.max_uneven)]
    faults += [
        (hour.apart / settings.max_fall, hour.said())
        for hour in odd_hours(evidence, settings.max_fall)
    ]
    if faults:
        faults.sort(reverse=True)
        return failed(faults[0][0], 1, ". ".join(text for _, text in faults[:_LISTED]))
    same = "lists, feedback and users are alike"
    return passed(0, 1, "; ".join([same, *told]))


def _single(evidence: Evidence, settings: Settings) -> Iterator[tuple[float, str]]:
    """Yield a fault where far more users are in one slate only than on any earlier day.

    Their share alone rises on a quiet day too.
    """
    if not evidence.has_reference:
        return
    ((_, users, single),) = evidence.rows(_VISITS.format(source=same_hours("current")))
    days = [row[1:] for row in evidence.rows(_VISITS.format(source=same_hours("reference")))]
    most = max((count for _, count in days), default=0)
    before = sum(count for _, count in days) / max(1, sum(size for size, _ in days))
    apart = single / users - before
    if most and single > _SURGE * most and apart > settings.max_single:
        yield (
            apart / settings.max_single,
            (
                f"{single:,} users ({percent(single / users)}) are in no other slate, on earlier"
                f" days at most {most:,} ({percent(before)}): ids change from slate to slate, or"
                " many people came once. See whether `user_id` is kept between requests"
            ),
        )


def _positives(evidence: Evidence) -> tuple[list[tuple[float, str]], list[str]]:
    """Return arms with hardly any positives as faults, and smaller differences to tell."""
    faults, told = [], []
    for gap in Shares.of(evidence, _POSITIVES, before="").gaps(lower=True):
        said = (
            f"{gap.side}: {percent(gap.share)} of {gap.below:,.0f} impressions have a positive,"
            f" {gap.beside} {percent(gap.other)}"
        )
        if gap.relative > _HARDLY_ANY:
            faults.append((gap.relative / _HARDLY_ANY, f"{said}: its feedback is lost"))
        elif gap.relative > _TOLD:
            told.append(f"{said}: it ranks worse, or a part of its feedback is lost")
    return faults, told


CHECK: Final = Check(
    name="traffic_alike",
    place=100,
    sentence="Lists, feedback and users are alike in every variant, at every hour, and as before.",
    value="widest difference, as a multiple of its bound",
    settings=Settings,
    run=check,
)
