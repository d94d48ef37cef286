"""`sample_ratio`: users fall into the variants as the configured split says.

The sequential test of Lindon and Malek (`offline.ratio_mismatch`): it may be looked at after every
snapshot, and its false alarms stay below alpha over all looks together. That holds for what grows,
so users count from the start of the experiment and not of a period that slides.
"""

from __future__ import annotations

import math

from pydantic import Field, field_validator

from streameval.offline.checks.evidence import Evidence
from streameval.offline.checks.result import (
    CheckSettings,
    Experiment,
    Found,
    failed,
    nothing,
    passed,
    percent,
)
from streameval.offline.ratio_mismatch import ALPHA, ratio_mismatch


class Settings(CheckSettings, Experiment):
    """The split that was meant."""

    split: dict[str, float] | None = Field(
        None,
        description="Weight of each variant as configured, e.g. {A: 1, B: 1}; null: not checked.",
    )
    alpha: float = Field(ALPHA, gt=0, lt=1, description="Chance of a false alarm, over all looks.")

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
    """Each user counts once, in the variant of its first slate."""
    if settings.split is None:
        return nothing("the specification names no `split`")
    rows = evidence.rows(
        f"""SELECT variant, count(*), count(*) FILTER (WHERE variants > 1) FROM (
            SELECT arg_min(variant, {{'ms': ms, 'variant': variant}}) AS variant,
                count(DISTINCT variant) AS variants
            FROM {settings.rows} GROUP BY "user") GROUP BY variant"""  # noqa: S608  # ours
    )
    counts = {variant: users for variant, users, _ in rows}
    crossed = sum(row[2] for row in rows)
    if not counts:
        return nothing("there is no outcome row")
    found = ratio_mismatch(counts, settings.split, settings.alpha)
    shares = ", ".join(
        f"{name!r} {percent(share)} (split {percent(found.expected.get(name, 0))})"
        for name, share in found.observed.items()
    )
    both = f"; {crossed:,} users were in more than one variant" if crossed else ""
    what = f"{found.users:,} users: {shares}{both}; p = {found.p_value:.2g}"
    if not found.alarm:
        return passed(found.p_value, settings.alpha, what)
    return failed(
        found.p_value,
        settings.alpha,
        f"the split is not the configured one. {what}. Assignment, logging or filtering differs by "
        "variant: believe no comparison of them until it is found",
    )
