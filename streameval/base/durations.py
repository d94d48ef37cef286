"""Durations and times as people write them, `500ms` or `24h`; all other code has integer ms."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:  # help of the command line needs durations, and must be quick
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MS: Final = timedelta(milliseconds=1)
UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
"""Milliseconds of each unit, rising."""

_WRITTEN = re.compile(r"(\d{1,15})(ms|s|m|h|d)", re.ASCII)


def ms_of(moment: datetime) -> int:
    """Return an instant with a zone in ms since the epoch; exact, and rounded down, as events are.

    `datetime.timestamp` is a float: from 2030 on it is a ms too early at times.
    """
    return (moment - EPOCH) // MS


def parse_duration(value: object) -> int:
    """Return the ms of a number and a unit; 0 needs no unit. Raises ValueError."""
    if value in (0, "0") and not isinstance(value, bool):
        return 0
    match = _WRITTEN.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(
            f"write a whole number and a unit ({', '.join(UNITS)}), like 30s or 5m, not {value!r}"
        )
    return int(match[1]) * UNITS[match[2]]


def format_duration(ms: int) -> str:
    """Write ms in the largest unit that divides them."""
    unit = next(unit for unit in reversed(UNITS) if ms % UNITS[unit] == 0)
    return f"{ms // UNITS[unit]}{unit}" if ms else "0"


def utc(ms: float) -> str:
    """Write a time (ms) as people read it: UTC, to the second."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


@dataclass(frozen=True, slots=True)
class Duration:
    """Marks an annotated integer of ms as a duration, written from `low` to `high` (inclusive)."""

    low: str
    high: str

    def __str__(self) -> str:
        """Write the range as people read it."""
        return f"{self.low} to {self.high}"

    def parse(self, value: object) -> int | None:
        """Parse the text and check its range; None stays None."""
        if value is None:
            return None
        ms = parse_duration(value)
        if not parse_duration(self.low) <= ms <= parse_duration(self.high):
            raise ValueError(f"must be from {self}, not {value}")
        return ms

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Let pydantic parse the text before it checks the integer."""
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(self.parse, handler(source))
