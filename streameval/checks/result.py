"""The row of a check, its findings, and the settings that all checks share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from streameval.checks.evidence import Evidence

Severity: TypeAlias = Literal["error", "warning", "off"]


class Experiment(BaseModel):
    """The start of the variants' experiment: its data must only grow, not slide."""

    since: AwareDatetime | None = Field(
        None, description="Start of the experiment, e.g. 2026-01-31T00:00:00Z; null: the first row."
    )

    @property
    def begin(self) -> int:
        """The start of the experiment (ms); 0 for the first row."""
        return 0 if self.since is None else round(self.since.timestamp() * 1000)


class CheckSettings(BaseModel):
    """The settings of any check."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    severity: Severity = Field(
        "error", description="error: exit code 1 when it fails; warning: reported; off: not run."
    )

    @property
    def compares_arms(self) -> bool:
        """Tell whether these settings ask for a comparison of arms."""
        return False


@dataclass(frozen=True, slots=True)
class Found:
    """The finding of one check; `threshold` bounds `value`, in the unit of the check's row.

    `passed` None: the check compared nothing, and `message` names the missing data. `due`: the
    specification asks for an answer that the data should allow by now. A due answer that stays
    missing raises an alert.
    """

    passed: bool | None
    value: float | None
    threshold: float | None
    message: str
    due: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: its name, its claim, the meaning of its value, its settings and function.

    Checks run and are read by rising `place`. It has gaps, so that a new one fits between two.
    """

    name: str
    place: int
    sentence: str
    value: str
    settings: type[CheckSettings]
    run: Callable[[Evidence, Any], Found]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a check: its finding (see `Found`) and its duration (seconds)."""

    name: str
    passed: bool | None
    severity: Severity
    value: float | None
    threshold: float | None
    message: str
    due: bool
    seconds: float

    def document(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


def passed(value: float, threshold: float, message: str) -> Found:
    """Make the finding of a check that passed."""
    return Found(passed=True, value=value, threshold=threshold, message=message)


def failed(value: float | None, threshold: float, message: str) -> Found:
    """Make the finding of a check that failed; `message` names the fault and the cure."""
    return Found(passed=False, value=value, threshold=threshold, message=message)


def nothing(message: str) -> Found:
    """Make a finding without an answer that nobody asked for, or that cannot exist yet."""
    return Found(passed=None, value=None, threshold=None, message=f"not checked: {message}")


def unanswered(message: str) -> Found:
    """Make a finding without the answer that is due; `message` names the missing data."""
    return Found(passed=None, value=None, threshold=None, message=f"no answer: {message}", due=True)


def percent(share: float) -> str:
    """Write a share as people read it."""
    return f"{100 * share:.3g} %"


def segment_name(dimensions: Sequence[str], segment: Sequence[str]) -> str:
    """Name a segment as people read it: variant 'A', surface 'home'."""
    pairs = zip(dimensions, segment, strict=True)
    return ", ".join(f"{dimension} {value!r}" for dimension, value in pairs)


def duration(ms: float) -> str:
    """Write a time span as people read it, in the largest unit that gives 1 or more."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if abs(ms) >= size:
            return f"{ms / size:.3g} {unit}"
    return f"{ms:.0f} ms"
