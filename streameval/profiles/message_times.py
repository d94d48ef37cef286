"""Times in messages of an unknown format: whether a value is one, and how it is written."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, Final

# A date that does not tell whether its day or its month stands first.
_EITHER: Final = re.compile(r"(0?[1-9]|1[0-2])/(0?[1-9]|1[0-2])/\d{4}\b")
# Notations that `auto` does not take. Of a date that may be either, the month stands first.
_PATTERNS: Final = (
    "%Y%m%d%H%M%S",
    "%Y/%m/%d %H:%M:%S",
    "%m/%d/%Y %H:%M:%S",
    "%m/%d/%Y %I:%M:%S %p",
    "%d/%m/%Y %H:%M:%S",
    "%d.%m.%Y %H:%M:%S",
    "%d/%b/%Y:%H:%M:%S %z",
    "%d-%b-%y %I.%M.%S.%f %p",
    "%a, %d %b %Y %H:%M:%S %z",
    "%a, %d %b %Y %H:%M:%S GMT",
    "%a %b %d %H:%M:%S UTC %Y",
)
_SHORTEST: Final = 14
# Seconds since 1970 at the beginnings of 2005 and 2040.
_FIRST: Final = 1_104_537_600
_LAST: Final = 2_208_988_800
_TIME_OF_DAY: Final = re.compile(r"\d\d:\d\d")


def is_time(value: Any) -> bool:
    """Tell whether a value may be a time: a text with a date, or seconds since 1970 or less."""
    if isinstance(value, str):
        return bool(re.search(r"\d{2}[-/.]\d|\d{9}", value))
    if isinstance(value, list):
        return is_in_parts(value)
    return isinstance(value, int | float) and value > 1e8


def is_written_time(value: Any) -> bool:
    """Tell whether a value is a text of a date and a time of day, whatever its field is named."""
    if not isinstance(value, str) or len(value) < _SHORTEST:
        return False
    try:
        return bool(_TIME_OF_DAY.search(value)) and bool(datetime.fromisoformat(value))
    except ValueError:
        return pattern_of(value) is not None


def is_epoch(value: Any) -> bool:
    """Tell whether a number is a time of this century, in seconds, ms or us since 1970."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return any(_FIRST * unit < value < _LAST * unit for unit in (1, 1e3, 1e6))


def is_in_parts(value: Any) -> bool:
    """Tell whether a value is a time as a list of its parts: year to minute, or longer."""
    whole = isinstance(value, list) and all(isinstance(part, int) for part in value)
    return whole and 5 <= len(value) <= 7 and 2_000 <= value[0] < 2_100


def may_be_either(value: Any) -> bool:
    """Tell whether a value is a date whose day and month may stand in either order."""
    return isinstance(value, str) and bool(_EITHER.match(value))


def pattern_of(time: Any) -> str | None:
    """Return the pattern of `strptime` by which a time is written; None where `auto` takes it."""
    text = str(time)
    # (`strptime` takes the digits of an epoch, too.)
    return next((one for one in _PATTERNS if len(text) >= _SHORTEST and _is_of(text, one)), None)


def _is_of(text: str, pattern: str) -> bool:
    try:
        datetime.strptime(text, pattern)  # noqa: DTZ007  # whether it can be read
    except ValueError:
        return False
    return True


def lacks_zone(time: Any) -> bool:
    """Tell whether a value is a time that does not say its offset from UTC."""
    if pattern := pattern_of(time):
        return "%z" not in pattern
    if is_in_parts(time):
        return True
    try:
        return datetime.fromisoformat(time).tzinfo is None
    except (TypeError, ValueError):
        return False
