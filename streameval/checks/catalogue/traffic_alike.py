"""`traffic_alike`: lists, feedback and users are alike in every arm, at every hour, and as before.

A fault of one arm's service or clients makes its figures better or worse, and no test of the
figures tells why. What a ranker does not decide should not differ by arm on the same day: how long
lists are, how many are empty, whether people come back, and whether they keep their id. Nor should
the share of feedback that is too fast for people, or on several items at once, what feedback is
worth, how late the latest comes, or who the users are. What a ranker does decide (how many
positives its lists get) is only told, unless hardly any of a kind are left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

from pydantic import Field

from streameval.checks.evidence import Evidence
from streameval.checks.odd_hours import odd_hours
from streameval.checks.result import Check, CheckSettings, Found, failed, nothing, passed, percent
from streameval.checks.shares import FAR, Figure, Gap, Shares, compared_dimensions, same_hours
from streameval.checks.uneven_arms import lost_hour, uneven_arms
from streameval.files.table_scans import literal

# A difference of positives that is worth telling.
_TOLD: Final = 0.1
# Standard errors where a user counts once: 2e-4, one side. A day has few users.
_FEW_FAR: Final = 3.5
# Times as many users of one slate as on the busiest day of the reference.
_SURGE: Final = 1.7
_VISITS: Final = """
    SELECT age, count(*), sum((visits = 1)::INTEGER)::BIGINT
    FROM (SELECT DISTINCT age, "user", visits FROM {source}) GROUP BY age ORDER BY age"""
_CAME_BACK: Final = '(SELECT *, "user" IN (SELECT "user" FROM {now}) AS came_back FROM {before})'
# The slates in one segment, whatever values they have.
_WHOLE: Final = """
    (SELECT * REPLACE (list_transform(segment, lambda _: '') AS segment), segment AS named
    FROM {source})"""
# Nobody has seen an item and reacted to it within so many ms, nor reacts twice within so many.
_REACTION: Final = 250
_TWICE: Final = 1_000
# Feedback that comes later than nine tenths of its kind is late.
_LATEST: Final = """
    SELECT quantile_disc(f.delay, 0.9) FROM (SELECT unnest({theirs}) AS f FROM current)"""
# Feedback of a row that is compared with each other: it takes the square of the time.
_COMPARED: Final = 200
_GIVEN: Final = "list_filter(feedback, lambda f: NOT f.retract)"
_SINCE_SHOWN: Final = "ms + f.delay - coalesce(shown[f.item + 1], ms)"
_BEFORE: Final = f"""len(list_filter({_GIVEN}, lambda g: g.kind = f.kind AND {{item}}
    AND f.delay - g.delay BETWEEN {{least}} AND {_TWICE}))"""
_COUNT: Final = f"len({_GIVEN})"
# Users of a surface who saw enough of it to react, four times as a rule; how often they did.
_SAW_MUCH: Final = """
    (SELECT segment, "user", arm, sum(coalesce({count}, 0)) AS given FROM current GROUP BY ALL
    HAVING sum(len(items)) >= (
        SELECT 4 * sum(len(items)) / nullif(sum({count}), 0) FROM current))"""
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
    max_silent: float = Field(
        0.2,
        gt=0,
        le=1,
        description="Largest share of users without any feedback, of those who saw much, beyond"
        " the others'.",
    )
    max_together: float = Field(
        0.1,
        gt=0,
        le=1,
        description="Largest share of feedback within a second of other feedback of its kind in"
        " the same list, beyond the others'.",
    )
    max_lost: float = Field(
        0.75,
        gt=0,
        le=1,
        description="Largest share by which positives, feedback of a kind or retractions may be"
        " fewer than the others', or the reference's.",
    )
    max_earlier: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Largest share by which late feedback of a kind (the last tenth) may be less"
        " than the others', or the reference's.",
    )
    max_unnamed: float = Field(
        0.05,
        gt=0,
        le=1,
        description="Largest share of slates without a value of a dimension, beyond the others'.",
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

    @property
    def sources(self) -> tuple[str, str]:
        """What is compared with each other, and with what of the reference."""
        return self.now, self.before

    def faults(self, shares: Shares, settings: Settings) -> Iterator[tuple[float, str]]:
        """Yield how far each gap is beyond its bound (1: at the bound), and a sentence."""
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
_POSITIVES: Final = Figure("len(list_filter(gains, lambda g: g > 0))")
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
        Figure(f"len(list_filter({_GIVEN}, lambda f: {_SINCE_SHOWN} < {_REACTION}))", _COUNT),
        "max_fast",
        "of the feedback comes within 0.25 s of its item",
        "no person is as fast: links are fetched ahead, a script reacts, or a list is logged only"
        " with its click",
    ),
    _Health(
        Figure(
            f"len(list_filter({_GIVEN}, lambda f:"
            f" {_BEFORE.format(item='g.item = f.item', least=1)} > 0))",
            _COUNT,
            f"len(feedback) <= {_COMPARED}",
        ),
        "max_twice",
        "of the feedback comes again within a second",
        "it is sent twice, and counters and values have both",
    ),
    _Health(
        Figure(
            f"len(list_filter({_GIVEN}, lambda f:"
            f" {_BEFORE.format(item='g.item <> f.item', least=0)} > 0))",
            _COUNT,
            f"len(feedback) <= {_COMPARED}",
        ),
        "max_together",
        "of the feedback comes within a second of other feedback in its list",
        "one action of a person is sent for several items, or a script reacts",
    ),
    _Health(
        _POSITIVES,
        "max_lost",
        "of the impressions have a positive",
        "its feedback is lost",
        lower=True,
        relative=True,
    ),
    _Health(
        Figure("len(list_filter(feedback, lambda f: f.retract))", _COUNT),
        "max_lost",
        "of the feedback is taken back",
        "retractions are lost, and what they take back still counts",
        lower=True,
        relative=True,
    ),
)
_USERS: Final = (
    _Health(
        Figure("(given = 0)::INTEGER", "1"),
        "max_silent",
        "of the users who saw much gave no feedback",
        "clients that do not send it, or bots",
        now=_SAW_MUCH.format(count=_COUNT),
        before="",
        far=_FEW_FAR,
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
)


def _unnamed(number: int, name: str) -> _Health:
    return _Health(
        Figure(f"(named[{number}] = '')::INTEGER", "1"),
        "max_unnamed",
        f"of the slates have no `{name}`",
        f"figures by {name} lack them: see the services that send it",
        now=_WHOLE.format(source="current"),
        before=_WHOLE.format(source="reference"),
    )


def _of_kind(evidence: Evidence, kind: str) -> Iterator[_Health]:
    """Yield the figures of one kind of feedback."""
    theirs = f"list_filter({_GIVEN}, lambda f: f.kind = {literal(kind)})"
    count = f"len({theirs})"
    yield _Health(
        Figure(count),
        "max_lost",
        f"of the impressions have {kind!r}",
        "this feedback is lost, or has another name",
        lower=True,
        relative=True,
    )
    (late,) = evidence.row(_LATEST.format(theirs=theirs))
    if late is not None:
        yield _Health(
            Figure(f"len(list_filter({theirs}, lambda f: f.delay > {late}))", count),
            "max_earlier",
            f"of {kind!r} comes later than {late / 60_000:,.3g} min",
            "late feedback is lost, or times are not those of what people did",
            lower=True,
            relative=True,
        )
    yield _Health(
        Figure(f"list_sum([f.value FOR f IN {theirs}])", count),
        "max_cheaper",
        f"is the mean value of {kind!r}",
        "see whether all send it in the same unit",
        lower=True,
        relative=True,
    )


def check(evidence: Evidence, settings: Settings) -> Found:
    """Compare arms, the reference and hours; the value is the widest gap over its bound."""
    (slates,) = evidence.row("SELECT count(*) FROM current")
    if not slates:
        return nothing("no outcome row was found")
    of_kinds = [one for kind in evidence.definition.kinds for one in _of_kind(evidence, kind)]
    named = [*enumerate(evidence.definition.dimensions, 1)]
    of_dimensions = [_unnamed(number, name) for number, name in named if name != evidence.arm]
    health = [*_HEALTH, *of_kinds, *of_dimensions, *_USERS]
    health = [one for one in health if evidence.has_reference or "reference" not in one.now]
    faults = [
        fault
        for sources, group in groupby(health, attrgetter("sources"))
        for fault in _faults(evidence, settings, list(group), sources)
    ]
    faults += [
        *_single(evidence, settings),
        *uneven_arms(evidence, settings.max_uneven),
        *lost_hour(evidence, settings.max_uneven),
    ]
    faults += [
        (hour.apart / settings.max_fall, hour.said())
        for hour in odd_hours(evidence, settings.max_fall)
    ]
    if faults:
        faults.sort(reverse=True)
        return failed(faults[0][0], 1, ". ".join(text for _, text in faults[:_LISTED]))
    same = "lists, feedback and users are alike"
    return passed(0, 1, "; ".join([same, *_fewer_positives(evidence), *_alone(evidence)]))


def _faults(
    evidence: Evidence, settings: Settings, health: Sequence[_Health], sources: tuple[str, str]
) -> Iterator[tuple[float, str]]:
    """Yield the faults of figures that have the same sources."""
    shares = Shares.each(evidence, [one.figure for one in health], *sources)
    for one, found in zip(health, shares, strict=True):
        yield from one.faults(found, settings)


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


def _fewer_positives(evidence: Evidence) -> Iterator[str]:
    """Tell of arms with fewer positives, which is no fault by itself."""
    for gap in Shares.of(evidence, _POSITIVES, before="").gaps(lower=True):
        if gap.relative > _TOLD:
            yield (
                f"{gap.side}: {percent(gap.share)} of {gap.below:,.0f} impressions have a positive,"
                f" {gap.beside} {percent(gap.other)}: it ranks worse, or a part of its feedback is"
                " lost"
            )


def _alone(evidence: Evidence) -> Iterator[str]:
    """Tell of dimensions by which arms cannot be compared."""
    compared = (evidence.arm, *compared_dimensions(evidence))
    for name in evidence.definition.dimensions:
        if name not in compared:
            yield f"values of `{name}` have hardly more than one {evidence.arm} each"


CHECK: Final = Check(
    name="traffic_alike",
    place=100,
    sentence="Lists, feedback and users are alike in every variant, at every hour, and as before.",
    value="widest difference, as a multiple of its bound",
    settings=Settings,
    run=check,
)
