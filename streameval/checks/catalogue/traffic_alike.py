"""`traffic_alike`: lists, feedback and users are alike in every arm, at every hour, and as before.

A fault of one arm's service or clients makes its figures better or worse, and no test of the
figures tells why. What a ranker does not decide should not differ by arm on the same day: how long
lists are, how many are empty, whether people come back, and whether they keep their id. What a
ranker does decide (how many positives its lists get) is only told, unless hardly any are left.

The hours of a day are compared with each other and with the same hours of the reference, so that
an hour without feedback, or with visitors who are no people, does not disappear in the day.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from pydantic import Field

from streameval.checks.evidence import Evidence
from streameval.checks.hours import odd_hours
from streameval.checks.result import Check, CheckSettings, Found, failed, nothing, passed, percent
from streameval.checks.shares import FAR, Figure, Gap, Shares, same_hours

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
# Faults that a message lists.
_LISTED: Final = 3


class Settings(CheckSettings):
    """The largest differences between arms, hours, and from the reference."""

    max_shorter: float = Field(
        0.2,
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
            f"{value:.3g}" if self.figure.above == "len(items)" else percent(value)
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
)
_POSITIVES: Final = Figure("len(list_filter(gains, lambda g: g > 0))")


def check(evidence: Evidence, settings: Settings) -> Found:
    """Compare arms, the reference and hours; the value is the widest gap over its bound."""
    (slates,) = evidence.row("SELECT count(*) FROM current")
    if not slates:
        return nothing("no outcome row was found")
    figures = [one for one in _HEALTH if evidence.has_reference or "reference" not in one.now]
    faults = [fault for one in figures for fault in one.faults(evidence, settings)]
    lost, told = _positives(evidence)
    faults += [*lost, *_single(evidence, settings)]
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
