"""What a check answers, and what every check can be told."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

Severity: TypeAlias = Literal["error", "warning", "off"]


class Experiment(BaseModel):
    """Where the variants' experiment begins: what is watched must only grow, not slide."""

    since: AwareDatetime | None = Field(
        None, description="Start of the experiment, e.g. 2026-01-31T00:00:00Z; null: the first row."
    )

    @property
    def begin(self) -> int:
        """When the experiment begins (ms); 0 with the first row."""
        return 0 if self.since is None else round(self.since.timestamp() * 1000)

    @property
    def rows(self) -> str:
        """The experiment's rows, as a table in SQL."""
        return f"(SELECT * FROM slates WHERE ms >= {self.begin})"  # noqa: S608  # a number


class CheckSettings(BaseModel):
    """What the specification may say of any check."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    severity: Severity = Field(
        "error", description="error: exit code 1 when it fails; warning: reported; off: not run."
    )


@dataclass(frozen=True, slots=True)
class Found:
    """What one check found. `value` is what `threshold` bounds, in the unit its sentence names.

    `passed` None: nothing was compared, and `message` says what that would need. `due`: the
    specification asks for an answer and the data should have it by now, so somebody is told where
    that stays so.
    """

    passed: bool | None
    value: float | None
    threshold: float | None
    message: str
    due: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """A check that was run: what it found (see `Found`), and how long it took (seconds)."""

    name: str
    passed: bool | None
    severity: Severity
    value: float | None
    threshold: float | None
    message: str
    due: bool
    seconds: float

    def document(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


def passed(value: float, threshold: float, message: str) -> Found:
    """All is well."""
    return Found(passed=True, value=value, threshold=threshold, message=message)


def failed(value: float | None, threshold: float, message: str) -> Found:
    """Something is wrong; `message` says what was found and what to do."""
    return Found(passed=False, value=value, threshold=threshold, message=message)


def nothing(message: str) -> Found:
    """No answer, and none was due: it was not asked for, or there can be none yet."""
    return Found(passed=None, value=None, threshold=None, message=f"not checked: {message}")


def unanswered(message: str) -> Found:
    """No answer although one was due; `message` says what is missing."""
    return Found(passed=None, value=None, threshold=None, message=f"no answer: {message}", due=True)


def percent(share: float) -> str:
    """A share as people read it."""
    return f"{100 * share:.3g} %"


def moment(ms: int) -> str:
    """A time as people read it: UTC, to the second."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def duration(ms: float) -> str:
    """A time span as people read it, in the largest unit that gives 1 or more."""
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if abs(ms) >= size:
            return f"{ms / size:.3g} {unit}"
    return f"{ms:.0f} ms"
