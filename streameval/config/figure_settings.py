"""Settings of parts of the definition: kinds of feedback that are positives, and windows."""

from __future__ import annotations

import math
import re
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from streameval.base.durations import Duration, format_duration, parse_duration
from streameval.base.limits import MAX_DURATION, MAX_GAIN, MAX_LABEL_LENGTH, MAX_PANES, MAX_VALUE
from streameval.core.definition import Positive, ValueRule

LONGEST = format_duration(MAX_DURATION)
"""The longest duration of a key."""


def no_flag(value: object) -> object:
    """Refuse YAML's `yes`, which Python would take for 1."""
    if isinstance(value, bool):
        raise ValueError("must be a number")  # noqa: TRY004  # pydantic reports ValueError
    return value


def label(value: str) -> str:
    """Return a label; raises ValueError for one that no series or file may carry."""
    if not 1 <= len(value) <= MAX_LABEL_LENGTH or re.search(r"[\x00-\x1f\x7f-\x9f]", value):
        raise ValueError(f"must be 1 to {MAX_LABEL_LENGTH} characters without control characters")
    return value


Integer = Annotated[int, BeforeValidator(no_flag)]
Gain = Annotated[float, BeforeValidator(no_flag), Field(ge=0, le=MAX_GAIN, allow_inf_nan=False)]
Label = Annotated[str, AfterValidator(label)]


def _read_short_form(given: object) -> object:
    """Read `kind`, `kind>=number` and `kind>number`."""
    if not isinstance(given, str):
        return given
    kind, sign, number = given.partition(">=" if ">=" in given else ">")
    label(kind.strip())
    try:
        finite = not sign or math.isfinite(float(number))
    except ValueError:
        finite = False
    # A kind with such a sign in it is a threshold written otherwise: it would match no feedback.
    if not finite or set("<>=") & set(kind):
        raise ValueError(
            f"write a kind, kind>=number or kind>number, like watch>=0.5, not {given!r}"
        )
    bound = {">=": "threshold", ">": "above"}
    return {"kind": kind.strip()} | ({bound[sign]: float(number)} if sign else {})


Amount = Annotated[float, BeforeValidator(no_flag), Field(allow_inf_nan=False)]


class PositiveSettings(BaseModel):
    """A kind of feedback that counts as success, and what becomes of its values."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Label
    threshold: Amount | None = None
    above: Annotated[Amount, Field(ge=-MAX_VALUE, le=MAX_VALUE)] | None = None
    value: ValueRule = "none"
    cap: Annotated[Amount, Field(gt=0, le=MAX_VALUE)] | None = None

    _short = model_validator(mode="before")(_read_short_form)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if set("<>=") & set(self.kind):
            raise ValueError(f"write the threshold of {self.kind!r} as threshold: number")
        if self.threshold is not None and self.above is not None:
            raise ValueError(f"write threshold or above for {self.kind!r}, not both")
        if self.cap is not None and self.value == "none":
            raise ValueError(f"cap: {self.kind!r} has no value; write value: last, sum or max")
        return self

    def definition(self) -> Positive:
        """Return the part of the definition."""
        # Above a number is from the next one on.
        least = self.threshold if self.above is None else math.nextafter(self.above, math.inf)
        return Positive(self.kind, least, self.value, self.cap)


def _window_size(value: object) -> object:
    Duration("1ms", LONGEST).parse(value)
    return value


class WindowSettings(BaseModel):
    """A sliding window: its size, which is also its name, and its slide."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: Annotated[str, BeforeValidator(_window_size)]
    slide: Annotated[int, Duration("1ms", LONGEST)]

    @model_validator(mode="before")
    @classmethod
    def _written_whole(cls, given: object) -> object:
        if isinstance(given, str | int):
            raise ValueError(f"write {{size: 5m, slide: 5s}}, not {given!r}")  # noqa: TRY004  # pydantic reports ValueError
        return given

    @model_validator(mode="after")
    def _divides(self) -> Self:
        size, slide = parse_duration(self.size), format_duration(self.slide)
        if size % self.slide:
            raise ValueError(f"the slide {slide} does not divide the size {self.size}")
        if size // self.slide > MAX_PANES:
            raise ValueError(
                f"a slide of {slide} cuts {self.size} into {size // self.slide} panes, "
                f"at most {MAX_PANES} are possible: take a longer slide"
            )
        return self
