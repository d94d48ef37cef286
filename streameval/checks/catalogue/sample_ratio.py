"""`sample_ratio`: users fall into the variants by the configured split.

The check is the sequential test of Lindon and Malek (`stats.sample_ratio`). People may look at it
after every snapshot, and its false alarms stay below alpha over all looks together. The guarantee
needs data that only grows, so users count from the start of the experiment.

Users who were counted before hide that a part of them is missing now. So the users of the period
are compared with the split too, at one look, and only a large shortage counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np
from pydantic import Field, field_validator

from streameval.base.counts import count_of
from streameval.base.durations import utc
from streameval.checks.evidence import Evidence
from streameval.checks.result import (
    Check,
    CheckSettings,
    Experiment,
    Found,
    failed,
    nothing,
    passed,
    percent,
)
from streameval.checks.shares import same_hours
from streameval.stats.sample_ratio import ALPHA, ratio_mismatch

# Standard errors that the users of a period may be too few: 5e-4 an arm and look. A day has few
# users, and a larger one reaches `max_absent` first.
_FAR: Final = 3.3
# By arm: users of the day before, those of them who came back, and users of the period beside them.
_USERS: Final = """
    WITH before AS (SELECT "user", arg_max(arm, {{'ms': ms, 'arm': arm}}) AS arm FROM {before}
            WHERE {known} AND ms >= {begin} GROUP BY "user"),
        now AS (SELECT "user", arg_min(arm, {{'ms': ms, 'arm': arm}}) AS arm FROM {now}
            WHERE ms >= {begin} GROUP BY "user")
    SELECT arm, sum(was)::BIGINT, sum(back)::BIGINT, sum(new)::BIGINT FROM (
        SELECT before.arm AS arm, 1 AS was, (now.arm IS NOT NULL)::INTEGER AS back, 0 AS new
            FROM before LEFT JOIN now USING ("user")
        UNION ALL SELECT arm, 0, 0, 1 FROM now ANTI JOIN before USING ("user"))
    GROUP BY arm ORDER BY arm"""


class Settings(CheckSettings, Experiment):
    """The intended split, and bounds."""

    split: dict[str, float] | None = Field(
        None,
        description="Weight of each variant as configured, e.g. {A: 1, B: 1}; null: not checked.",
    )
    max_crossed: float = Field(
        0.01, gt=0, le=1, description="Share of users in several variants at which the check fails."
    )
    max_absent: float = Field(
        0.1,
        gt=0,
        le=1,
        description="Largest share by which a variant may have too few of the period's users.",
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
    what = f"{count_of(found.users, 'user')}: {shares}; p = {found.p_value:.2g}"
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
    return _absent_users(evidence, settings, found.expected) or passed(
        found.p_value, settings.alpha, f"{what}; {both}" if crossed else what
    )


def _absent_users(
    evidence: Evidence, settings: Settings, split: Mapping[str, float]
) -> Found | None:
    """Return a failure where an arm has too few of the period's users beside the others.

    Users of the day before should come back as often in each arm, and other users fall into the
    arms as the split says.
    """
    before = same_hours("reference") if evidence.has_reference else "current"
    known = "age = 1" if evidence.has_reference else "false"
    rows = evidence.rows(
        _USERS.format(now=same_hours("current"), before=before, known=known, begin=settings.begin)
    )
    users = np.array([row[1:] for row in rows if row[0] in split], np.float64)
    for row in rows:
        share = split.get(row[0], 0.0)
        if not 0 < share < 1:
            continue
        was, back, new = row[1:]
        others_was, others_back, others_new = users.sum(axis=0) - row[1:]
        rate = (back + others_back) / max(was + others_was, 1)
        expected = others_new * share / (1 - share)
        spread = (new + others_new) * share / (1 - share)
        if others_was:
            expected += was * others_back / others_was
            spread += was * (1 + was / others_was) * rate * (1 - rate)
        missing = expected - back - new
        if missing > max(settings.max_absent * expected, _FAR * math.sqrt(spread)):
            return failed(
                missing / expected,
                settings.max_absent,
                f"{evidence.arm} {row[0]!r} has {back + new:,} of the period's users, where the"
                f" split and the others suggest {expected:,.0f}: {percent(missing / expected)} are"
                " missing. Their slates are lost, or carry another arm or id",
            )
    return None


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


CHECK: Final = Check(
    name="sample_ratio",
    place=120,
    sentence="Users fall into the variants as the configured split says, each into one.",
    value="p-value, valid at every look, or the share of users in several variants",
    settings=Settings,
    run=check,
)
