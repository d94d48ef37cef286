"""`sample_ratio`: users fall into the variants by the configured split.

The check is the sequential test of Lindon and Malek (`stats.sample_ratio`). People may look at it
after every snapshot, and its false alarms stay below alpha over all looks together. The guarantee
needs data that only grows, so users count from the start of the experiment.
"""

from __future__ import annotations

import math

from pydantic import Field, field_validator

from streameval.base.instants import utc
from streameval.checks.evidence import Evidence
from streameval.checks.result import (
    CheckSettings,
    Experiment,
    Found,
    failed,
    nothing,
    passed,
    percent,
)
from streameval.stats.sample_ratio import ALPHA, ratio_mismatch


class Settings(CheckSettings, Experiment):
    """The intended split, and bounds."""

    split: dict[str, float] | None = Field(
        None,
        description="Weight of each variant as configured, e.g. {A: 1, B: 1}; null: not checked.",
    )
    max_crossed: float = Field(
        0.01, gt=0, le=1, description="Share of users in several variants at which the check fails."
    )
    alpha: float = Field(ALPHA, gt=0, lt=1, description="Chance of a false alarm, over all looks.")

    @property
    def compares_arms(self) -> bool:
        """Tell whether a split is named."""
        return self.split is not None

    @field_validator("split")
    @classmethod
    def _weighed(cls, split: dict[str, float] | None) -> dict[str, float] | None:
        if split is not None and len(split) < 2:
            raise ValueError("name two variants or more, e.g. {A: 1, B: 1}")
        for variant, weight in (split or {}).items():
            if not 0 < weight < math.inf:
                raise ValueError(f"the weight of {variant!r} is a finite number above 0")
        return split


def check(evidence: Evidence, settings: Settings) -> Found:
    """Compare the arms' shares of users; each user counts once, in the arm of its first slate."""
    if settings.split is None:
        return nothing("the specification names no `split`")
    bounds = evidence.bounds()
    if bounds is None:
        return nothing("no outcome row was found")
    slates = evidence.between(max(settings.begin, bounds[0]), bounds[1] + 1)
    rows = evidence.rows(
        f"""SELECT arm, count(*), count(*) FILTER (WHERE arms > 1) FROM (
            SELECT arg_min(arm, {{'ms': ms, 'arm': arm}}) AS arm, count(DISTINCT arm) AS arms
            FROM {slates} GROUP BY "user") GROUP BY arm"""  # noqa: S608  # ours
    )
    counts = {arm: users for arm, users, _ in rows}
    crossed = sum(row[2] for row in rows)
    if not counts:
        return nothing("no outcome row was found since then")
    found = ratio_mismatch(counts, settings.split, settings.alpha)
    shares = ", ".join(
        f"{name!r} {percent(share)} (split {percent(found.expected.get(name, 0))})"
        for name, share in found.observed.items()
    )
    what = f"{found.users:,} users: {shares}; p = {found.p_value:.2g}"
    both = (
        f"{crossed:,} users ({percent(crossed / found.users)}) were in more than one {evidence.arm}"
    )
    if found.alarm:
        more = f"; {both}" if crossed else ""
        return failed(
            found.p_value,
            settings.alpha,
            f"the split is not the configured one. {what}{more}. Assignment, logging or filtering"
            f" differs by {evidence.arm}: believe no comparison of them until the cause is"
            " found",
        )
    if crossed >= settings.max_crossed * found.users:
        return failed(
            crossed / found.users,
            settings.max_crossed,
            f"{both}, {_example(evidence, slates)}. {what}. Users were assigned anew, or by"
            " something else than their id: believe no comparison of variants since, and begin the"
            " experiment anew (`since`)",
        )
    return passed(found.p_value, settings.alpha, f"{what}; {both}" if crossed else what)


def _example(evidence: Evidence, slates: str) -> str:
    """Describe the first user who changed arms, and the time by which half of them had."""
    user, before, after, first, half = evidence.row(
        f"""WITH steps AS (SELECT "user", arm, ms, lag(arm) OVER (
                PARTITION BY "user" ORDER BY ms, arm) AS earlier FROM {slates}),
            changes AS (SELECT "user", min(ms) AS ms, arg_min(earlier, ms) AS earlier,
                arg_min(arm, ms) AS arm FROM steps WHERE arm != earlier GROUP BY "user")
        SELECT arg_min("user", ms), arg_min(earlier, ms), arg_min(arm, ms), min(ms),
            median(ms)::BIGINT FROM changes"""  # noqa: S608  # ours
    )
    return (
        f"the first {user!r} ({before!r}, then {after!r}) at {utc(first)}, half of them by"
        f" {utc(half)}"
    )
