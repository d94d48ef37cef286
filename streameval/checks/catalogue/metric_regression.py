"""`metric_regression`: no variant is worse than the control, and no day than the weeks before.

*Variants* (the arms) are compared over the whole experiment, by an interval that holds at all
looks together (`stats.confidence_sequences`). This check runs after each snapshot, and an interval
for one look would find a regression in a third of the experiments without any.

*Periods*: the last day and the last three days are compared with the same hours (weekday and
hour) of up to four weeks before, so a weekend is compared with weekends. The check looks four times
a day, and divides alpha by the looks of a year. Many users are on both sides, so the spread comes
from each cluster's difference. Before the first whole week it has nothing to compare with.

Sums are kept from run to run (`checks.hourly`), so only new rows are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from pydantic import Field, field_validator

from streameval.base.limits import MAX_K, NANO
from streameval.checks import sql
from streameval.checks.evidence import Evidence
from streameval.checks.hourly import (
    RATES,
    WEEK_HOURS,
    Hourly,
    Sums,
    hourly,
    series_of,
    total,
    users,
)
from streameval.checks.result import (
    Check,
    CheckSettings,
    Experiment,
    Found,
    failed,
    nothing,
    passed,
    percent,
    unanswered,
)
from streameval.stats.cluster_sums import ClusterSums, arm_of
from streameval.stats.confidence_sequences import FLOOR, PLANNED_UNITS, compare, units_needed
from streameval.stats.intervals import Arm, student

# Variants that a message lists.
_LISTED: Final = 10
MEMORY: Final = "metric_regression"
# Hours to compare: one day shows a large drop soon, three days a small one.
SPANS: Final = ((24, "day"), (72, "three days"))
WEEKS: Final = 4
# Hours between looks; alpha is divided by the looks of a year.
LOOK_HOURS: Final = 6
LOOKS: Final = 366 * 24 // LOOK_HOURS * len(SPANS)


class Settings(CheckSettings, Experiment):
    """The figures that must not fall, and the bounds."""

    metrics: tuple[str, ...] = Field(
        ("ndcg@10",),
        min_length=1,
        description="Ranking metrics of the stream, each with its @k; `positive_rate` and"
        " `positives_per_impression`, of each kind of positive.",
    )
    control: str | None = Field(
        None, description="The variant that the others are compared with; null: only periods are."
    )
    max_drop: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Accepted drop, as a share of the compared figure.",
    )
    alpha: float = Field(
        0.05,
        gt=0,
        lt=1,
        description="Chance of a false alarm of a figure: over all looks at a variant, or of a"
        " year at periods.",
    )
    planned: int = Field(
        PLANNED_UNITS,
        ge=2,
        description="Users of two variants at which their comparison is sharpest; choose it before"
        " the first look.",
    )

    @property
    def compares_arms(self) -> bool:
        """Tell whether a control is named."""
        return self.control is not None

    @field_validator("metrics")
    @classmethod
    def _known(cls, metrics: tuple[str, ...]) -> tuple[str, ...]:
        for metric in metrics:
            name, _, k = metric.partition("@")
            is_ranking = name in sql.METRICS and k.isdecimal() and 1 <= int(k) <= MAX_K
            if metric not in RATES and not is_ranking:
                raise ValueError(
                    f"{metric!r}: write one of {', '.join(sql.METRICS)} with @k, or one of"
                    f" {', '.join(RATES)}"
                )
        return metrics


@dataclass(slots=True)
class Findings:
    """The findings of comparisons: `parts` of a message, and the largest certain drop.

    Comparisons without an answer: `missing` ones are waited for, `small` ones have too few users
    beside others with an answer, and `early` ones cannot have any yet.
    """

    worst: float = 0.0
    compared: int = 0
    parts: list[str] = field(default_factory=list)
    fallen: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    small: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)

    def add(self, text: str, high: float, before: float, max_drop: float) -> None:
        """Add a comparison: `high` is the upper bound of the difference from `before`."""
        self.compared += 1
        self.parts.append(text)
        self.worst = max(self.worst, -high / before if before else 0.0)
        if high < -max_drop * before:
            self.fallen.append(text)

    def take(self, figure: Findings) -> None:
        """Add one figure's comparisons of arms: an arm with an answer waits for no other."""
        self.worst = max(self.worst, figure.worst)
        self.compared += figure.compared
        self.parts += figure.parts
        self.fallen += figure.fallen
        self.small += figure.small + (figure.missing if figure.compared else [])
        self.missing += [] if figure.compared else figure.missing


def check(evidence: Evidence, settings: Settings) -> Found:
    """Compare each figure: of each arm with the control, and of now with the weeks before."""
    series = series_of(settings.metrics, evidence.definition)
    sums = hourly(evidence, series, settings.begin, MEMORY)
    found = Findings()
    if settings.control is not None:
        _variants(sums, settings, evidence.arm, settings.control, found)
    periods(sums, settings, found)
    if evidence.other_files:
        sides = [total(evidence, series, source) for source in ("current", "reference")]
        for index, one in enumerate(series):
            label = f"{one.name} of now against the reference"
            _arms(label, _arm(sides[0], index), _arm(sides[1], index), settings, found)
    return _answer(found, settings, sums)


def _answer(found: Findings, settings: Settings, sums: Hourly) -> Found:
    if found.fallen:
        worst = percent(found.worst)
        return failed(
            found.worst,
            settings.max_drop,
            f"{'; '.join(found.fallen)}: a drop of at least {worst}, at"
            f" {percent(1 - settings.alpha)} over all looks. Look first for changes of logging,"
            " positions or bots there, then at the releases; stop the variant last",
        )
    # Nobody waits for a small arm if another has its answer.
    if found.missing or (found.small and not found.compared):
        return unanswered("; ".join([*found.missing, *found.small, *found.parts]))
    if not found.compared:
        if not sums.arms and not sums.hours:
            return nothing("no outcome row was found")
        return nothing("; ".join(dict.fromkeys(found.early)))
    return passed(
        found.worst,
        settings.max_drop,
        "; ".join([*found.parts, *found.small, *dict.fromkeys(found.early)]),
    )


# --------------------------------------------------------------------------------------- variants


def _variants(
    sums: Hourly, settings: Settings, arm: str | None, control: str, found: Findings
) -> None:
    """Compare each arm with the control, over the whole experiment."""
    if not sums.arms:
        found.early.append("the experiment has no outcome row yet")
        return
    if control not in sums.arms:
        there = ", ".join(repr(name) for name in sorted(sums.arms)[:_LISTED])
        found.missing.append(f"no rows of control {control!r}; there are {there}")
        return
    others = sorted(sums.arms.keys() - {control})
    if not others:
        found.missing.append(f"the control {control!r} is the only {arm}")
    for index, one in enumerate(sums.series):
        judged = Findings()
        for other in others:
            label = f"{one.name} of {arm} {other!r} against {control!r}"
            sides = sums.arms[other], sums.arms[control]
            _arms(label, _arm(sides[0], index), _arm(sides[1], index), settings, judged)
        found.take(judged)


def _arm(sums: Sums, index: int) -> Arm | None:
    x, y = sums[index + 1]
    return ClusterSums(x, y, users(sums), NANO).arm()


def _arms(
    label: str, now: Arm | None, before: Arm | None, settings: Settings, found: Findings
) -> None:
    """Compare two sides with disjoint users."""
    if now is None or before is None:
        found.missing.append(f"{label}: fewer than two users")
        return
    compared = compare(now, before, settings.alpha, settings.planned)
    if compared.high is None or compared.low is None:
        needed = "more" if compared.needed is None else f"{compared.needed:,}"
        waiting = found.small if min(now.units, before.units) < FLOOR else found.missing
        waiting.append(f"{label}: not yet, each side needs {needed} users")
        return
    text = (
        f"{label}: {now.value:.4g} against {before.value:.4g}, difference "
        f"{compared.difference:+.4g} ({compared.low:+.4g} to {compared.high:+.4g})"
    )
    found.add(text, compared.high, before.value, settings.max_drop)


# ---------------------------------------------------------------------------------------- periods


def periods(sums: Hourly, settings: Settings, found: Findings) -> None:
    """Compare each figure of the last day and three days with the same hours of weeks before."""
    for index, one in enumerate(sums.series):
        for hours, name in SPANS:
            _period(
                sums, index, f"{one.name} of the last {name}", hours, settings=settings, found=found
            )


def _period(
    sums: Hourly, index: int, label: str, hours: int, *, settings: Settings, found: Findings
) -> None:
    """Compare the last `hours` with the same hours of the weeks before."""
    end = sums.until // LOOK_HOURS * LOOK_HOURS
    now = sums.span(end - hours, end, index)
    weeks = list(_weeks(sums, index, end - hours, end))
    if now is None or not weeks:
        found.early.append("periods are compared after a week")
        return
    apart = _apart(now, np.sum(weeks, axis=0))
    if apart is None:
        found.missing.append(f"{label}: too few users, or too much is one user's")
        return
    difference, was = apart
    reach = student(1 - 2 * settings.alpha / LOOKS, difference.clusters - 1) * difference.stderr
    text = (
        f"{label} against the same hours of {len(weeks)} week{'s' * (len(weeks) > 1)} before:"
        f" {was + difference.value:.4g} against {was:.4g}, difference {difference.value:+.4g}"
        f" ({difference.value - reach:+.4g} to {difference.value + reach:+.4g})"
    )
    found.add(text, difference.value + reach, was, settings.max_drop)


def _weeks(sums: Hourly, index: int, begin: int, end: int) -> Iterator[tuple[Sums, Sums]]:
    """Yield the sums of the same hours of earlier weeks, as far as sums reach back."""
    first = min(sums.hours, default=end)
    for week in range(1, WEEKS + 1):
        earlier = begin - week * WEEK_HOURS, end - week * WEEK_HOURS
        found = sums.span(*earlier, index) if earlier[0] >= first else None
        if found is not None:
            yield found


def _apart(now: Sequence[Sums], before: Sequence[Sums]) -> tuple[Arm, float] | None:
    """Return the difference of two ratios of sums, and the ratio `before`.

    Its error is that of each cluster's difference: the same users are on both sides. None if their
    skewness asks for more clusters before a normal approximation holds.
    """
    one, other = (ClusterSums(x, y, 0, NANO) for x, y in (now, before))
    if one.value is None or other.value is None:
        return None
    parts = (one.parts() - other.parts())[one.there | other.there]
    found = arm_of(one.value - other.value, parts, 0)
    if found is None or found.clusters < FLOOR or not found.stderr:
        return None
    needed = units_needed(found.skewness, found.clusters, found.clusters)
    return None if found.clusters < float(needed) else (found, other.value)


CHECK: Final = Check(
    name="metric_regression",
    place=140,
    sentence="No variant is worse than the control, and no day than the weeks before.",
    value="largest certain drop, as a share of the compared figure",
    settings=Settings,
    run=check,
)
