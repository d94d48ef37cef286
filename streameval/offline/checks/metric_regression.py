"""`metric_regression`: no variant is worse than the control, and the present not than the past.

Judged by an interval that holds at all looks together (`offline.sequences`): this check runs after
each snapshot, and an interval for one look would find a regression in a third of the experiments
without any. Users are the units. Variants are compared over the whole experiment.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from pydantic import Field, field_validator

from streameval.core.limits import MAX_K, NANO
from streameval.offline.checks import sql
from streameval.offline.checks.evidence import Evidence
from streameval.offline.checks.result import (
    CheckSettings,
    Experiment,
    Found,
    failed,
    nothing,
    passed,
    percent,
    unanswered,
)
from streameval.offline.intervals import Arm, Moments
from streameval.offline.sequences import compare

# Variants that a message lists.
_SHOWN: Final = 10
_POWERS: Final = (
    "count(*), sum(x), sum(y), sum(x * x), sum(x * y), sum(y * y), sum(x * x * x),"
    " sum(x * x * y), sum(x * y * y), sum(y * y * y)"
)


class Settings(CheckSettings, Experiment):
    """What must not fall, and against what."""

    metrics: tuple[str, ...] = Field(
        ("ndcg@10",), min_length=1, description="Ranking metrics of the stream, each with its @k."
    )
    control: str | None = Field(
        None, description="The variant that the others are compared with; null: only periods are."
    )
    max_drop: float = Field(
        0.0, ge=0, le=1, description="Drop that is accepted, as a share of the control's figure."
    )
    alpha: float = Field(0.05, gt=0, lt=1, description="Chance of a false alarm, over all looks.")

    @field_validator("metrics")
    @classmethod
    def _known(cls, metrics: tuple[str, ...]) -> tuple[str, ...]:
        for metric in metrics:
            name, _, k = metric.partition("@")
            if name not in sql.METRICS or not k.isdecimal() or not 1 <= int(k) <= MAX_K:
                raise ValueError(f"{metric!r}: write one of {', '.join(sql.METRICS)} with @k")
        return metrics


def check(evidence: Evidence, settings: Settings) -> Found:
    """Each metric, of each variant against the control and of now against the reference."""
    if settings.control is None and not evidence.has_reference:
        return nothing("name a `control` in the specification, or give a reference")
    worst, compared, parts, fallen = 0.0, 0, [], []
    for metric in settings.metrics:
        for label, now, before in _pairs(evidence, settings, metric):
            if now is None or before is None:
                parts.append(f"{metric} of {label}: fewer than two users")
                continue
            found = compare(now, before, settings.alpha)
            if found.high is None or found.low is None:
                needed = "more" if found.needed is None else f"{found.needed:,}"
                parts.append(f"{metric} of {label}: not yet, each side needs {needed} users")
                continue
            compared += 1
            drop = -found.high / before.value if before.value else 0.0
            text = (
                f"{metric} of {label}: {now.value:.4g} against {before.value:.4g}, difference "
                f"{found.difference:+.4g} ({found.low:+.4g} to {found.high:+.4g})"
            )
            parts.append(text)
            worst = max(worst, drop)
            if found.high < -settings.max_drop * before.value:
                fallen.append(text)
    if not fallen and settings.control is not None and (unknown := _unknown(evidence, settings)):
        return unanswered(unknown)
    if not parts:
        return unanswered(f"there is no variant beside the control {settings.control!r}")
    if not compared:
        return unanswered("; ".join(parts))
    if not fallen:
        return passed(worst, settings.max_drop, "; ".join(parts))
    return failed(
        worst,
        settings.max_drop,
        f"{'; '.join(fallen)}: a drop of at least {percent(worst)}, at "
        f"{percent(1 - settings.alpha)} over all looks. Stop the variant, or see what was released",
    )


def _unknown(evidence: Evidence, settings: Settings) -> str | None:
    """What is wrong with the control's name; None where it has rows."""
    rows = evidence.rows(f"SELECT DISTINCT variant FROM {settings.rows} ORDER BY 1")  # noqa: S608  # ours
    variants = [variant for (variant,) in rows]
    if settings.control in variants:
        return None
    there = ", ".join(repr(variant) for variant in variants[:_SHOWN])
    return f"no rows of control {settings.control!r}; there are {there or 'no rows at all'}"


def _pairs(
    evidence: Evidence, settings: Settings, metric: str
) -> Iterator[tuple[str, Arm | None, Arm | None]]:
    """What is compared: a label, the side that may have fallen, and the other."""
    if evidence.has_reference:
        now, before = (_arm(evidence, metric, source, None) for source in ("current", "reference"))
        yield "now against the reference", now, before
    if settings.control is not None:
        control = _arm(evidence, metric, settings.rows, settings.control)
        variants = evidence.rows(
            f"SELECT DISTINCT variant FROM {settings.rows} WHERE variant != ? ORDER BY 1",  # noqa: S608
            settings.control,
        )
        for (variant,) in variants:
            arm = _arm(evidence, metric, settings.rows, variant)
            yield f"variant {variant!r} against {settings.control!r}", arm, control


def _arm(evidence: Evidence, metric: str, source: str, variant: str | None) -> Arm | None:
    """The mean over slates with a request; None below two users."""
    name, _, k = metric.partition("@")
    chosen = f"(SELECT * FROM {source} WHERE request IS NOT NULL AND ($1 IS NULL OR variant = $1))"  # noqa: S608  # a name of ours
    score = sql.nano_score(name, int(k), evidence.definition)
    powers = evidence.row(
        f"""SELECT {_POWERS} FROM (
            SELECT sum({score})::DOUBLE / {NANO} AS x, count(*)::DOUBLE AS y
            FROM ({sql.judged(evidence.definition, chosen)}) GROUP BY "user")""",  # noqa: S608
        variant,
    )
    return Moments(*(np.float64(power or 0.0) for power in powers)).arm()
