"""Values of messages as the fields of events want them: texts, numbers, times, positions.

Trackers write numbers as text, ids as numbers, and times in five units. A profile names the field,
so its type is known; what does not fit is said in words, and nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from streameval.base.durations import EPOCH, MS
from streameval.base.errors import ConfigError
from streameval.base.limits import MAX_TS, MIN_TS
from streameval.profiles.language import Take

Convert = Callable[[Any], Any]


class CellError(ValueError):
    """A value that does not fit its field; the message is a part of a sentence."""


_PER_MS: Final = {"s": (1_000, 1), "ms": (1, 1), "us": (1, 1_000), "ns": (1, 1_000_000)}
_PLAIN: Final = Take.model_validate({"from": "ts"})
_LONGEST: Final = 30
_EXACT: Final = 1 << 53
_IS_TEXT: Final = "found.__class__ is str and found"
_NUMBER: Final = re.compile(r"-?\d{1,30}(\.\d{1,30})?([eE][-+]?\d{1,3})?\Z", re.ASCII)
_OFFSET: Final = re.compile(r"([+-])([01]\d|2[0-3]):?([0-5]\d)\Z", re.ASCII)
_T, _HOUR, _SIGN = slice(10, 11), slice(11, 13), slice(-6, -5)
_UTC: Final = " UTC"
# A time as .NET's serializers wrote it: ms, and an offset that does not count.
_DOTNET: Final = re.compile(r"/Date\((-?\d{1,18})([+-]\d{4})?\)/\Z", re.ASCII)
# Year to minute, and perhaps second and nanosecond, as Java's serializers write a time.
_PARTS: Final = range(5, 8)
# A text that the checks of events read: others of ISO 8601 become one.
_IS_RFC3339: Final = (
    f"{_IS_TEXT} and found[10:11] == 'T' and (found[-1] == 'Z' or found[-6] in '+-')"
)
_NUMBERS: Final = frozenset({"score", "propensity", "latency_ms", "value", "after"})
_FLAGS: Final = frozenset({"fallback", "retract"})


def converter(field: str, take: Take | None) -> Convert:
    """Return the function that makes a value one of `field`. Raises ConfigError for a zone."""
    if field == "ts":
        return _time(take or _PLAIN)
    if field == "position":
        return _position(*_first_position(take))
    if field in _NUMBERS:
        return number
    if field in _FLAGS:
        return _flag
    return _renaming(take.values) if take and take.values else text


IS_DIGITS: Final = (
    f"found.__class__ is str and found.isdigit() and found.isascii() and len(found) < {_LONGEST}"
    " and (found := int(found)) is not None"
)
"""The test, as code, of a text that `number` takes for a whole number; `found` becomes it."""


def short_way(field: str, take: Take | None) -> tuple[str, str, bool]:
    """Return the test, as code, of a value `found` that needs no call, and what it becomes.

    Also returns whether a text of digits stands for a number there. The test is "" where each value
    needs the call of the converter.
    """
    if field == "ts":
        return _short_way_of_time(take or _PLAIN)
    if field == "position":
        lowest, add = _first_position(take)
        return f"found.__class__ is int and found >= {lowest}", f"found + {add}", True
    if field in _NUMBERS:
        return "found.__class__ is int or found.__class__ is float", "found", True
    if field in _FLAGS or (take and take.values):
        return "", "", False
    return _IS_TEXT, "found", False


def _short_way_of_time(take: Take) -> tuple[str, str, bool]:
    if take.unit not in _PER_MS:
        return _IS_RFC3339 if take.unit in {"rfc3339", "auto"} else "", "found", False
    times, over = _PER_MS[take.unit]
    least, most = -(-MIN_TS * over // times), -(-MAX_TS * over // times)
    test = f"found.__class__ is int and {least} <= found < {most}"
    return test, f"found * {times} // {over}", True


def text(value: Any) -> str:
    """Return an id or a label as text; a whole number is written in digits, also one like 7.0."""
    if value.__class__ is str:
        return value
    if value.__class__ is bool:
        return "true" if value else "false"
    if value.__class__ is int:
        return str(value)
    # pandas makes floats of a column that lacks some; beyond 2⁵³ two numbers may have one float.
    if value.__class__ is float and value.is_integer() and abs(value) < _EXACT:
        return str(int(value))
    if isinstance(value, list | dict):
        raise CellError(f"is {value_in_words(value)}, and a text is wanted")
    raise CellError(f"is {value!r}, a number with a fraction, and a text is wanted")


def _renaming(values: Mapping[str, str]) -> Convert:
    def rename(value: Any) -> str:
        known = text(value)
        return values.get(known, known)

    return rename


def number(value: Any) -> Any:
    """Return a number, also one that is written as text."""
    if value.__class__ is int or value.__class__ is float:
        return value
    if value.__class__ is str and len(value) < _LONGEST and value.isascii() and value.isdigit():
        return int(value)
    if isinstance(value, str) and (found := _NUMBER.match(value.strip())):
        return float(value) if found.lastindex else int(value)
    raise CellError(f"is {value_in_words(value)}, and a number is wanted")


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in {"true", "false"}:
        return value.lower() == "true"
    if value in (0, 1) and not isinstance(value, str):
        return bool(value)
    raise CellError(f"is {value_in_words(value)}, and true or false is wanted")


def _first_position(take: Take | None) -> tuple[int, int]:
    """Return the lowest position of a list, and what it lacks to count from 1."""
    base = take.base if take else 1
    # `auto` depends on the whole list, so a 0 stays 0 here.
    return (0, 0) if base == "auto" else (base, 1 - base)


def _position(lowest: int, add: int) -> Convert:
    def position(value: Any) -> int:
        found = number(value)
        if isinstance(found, float) and not found.is_integer():
            raise CellError(f"is {found!r}, and a whole number is wanted")
        if found < lowest:
            cure = " (they count from 0? write base: 0)" if found == 0 else ""
            raise CellError(f"is {found}, and positions count from {lowest}{cure}")
        return int(found) + add

    return position


def _time(take: Take) -> Convert:
    if take.unit in _PER_MS:
        return _numeric_time(take.unit)
    zone = None if take.zone is None else _zone(take.zone)
    if take.unit not in {"rfc3339", "auto"}:
        return _patterned_time(take.unit, zone)
    return _auto_time(zone) if take.unit == "auto" else _rfc3339(zone)


def _rfc3339(zone: tzinfo | None) -> Convert:
    """Return the function that also takes what databases write: 2026-01-05 12:00:00+00, or UTC."""

    def rfc3339(value: Any) -> Any:
        if not isinstance(value, str):
            raise CellError(f"is {value_in_words(value)}, and RFC 3339 is wanted{_unit_of(value)}")
        if value[_T] in {"T", "t"} and (value[-1] in "Zz" or value[_SIGN] in {"+", "-"}):
            return value
        if value[_HOUR] == "24":  # Python 3.14 takes it for the next day's 0
            raise CellError(f'is "{value[:40]}", and hours go to 23')
        written = value.partition("[")[0]  # Java names the zone after the offset, too
        written = f"{written[: -len(_UTC)]}+00:00" if written.endswith(_UTC) else written
        moment = _parse(written, datetime.fromisoformat, ": write its pattern as `unit`")
        if moment.tzinfo is None and zone is None:
            raise CellError(f'is "{value[:40]}", without an offset: write its `zone`, such as UTC')
        return _ms(moment, zone)

    return rfc3339


def _auto_time(zone: tzinfo | None) -> Convert:
    rfc3339 = _rfc3339(zone)

    def auto(value: Any) -> Any:
        if value.__class__ is str and value[4:5] == "-":
            return rfc3339(value)
        if isinstance(value, list) and len(value) in _PARTS:
            value = _iso(value)
        elif isinstance(value, str) and (found := _DOTNET.match(value)):
            value = found[1]
        try:
            found = number(value)
        except CellError:
            return rfc3339(value)
        for times, over in _PER_MS.values():
            if MIN_TS <= found * times / over < MAX_TS:
                return _whole_ms(found, times, over)
        raise CellError(f"is {found}, which is between 2000 and 2099 in no unit")

    return auto


def _iso(parts: Sequence[Any]) -> Any:
    """Write the parts of a time as ISO 8601; return the parts where they are no whole numbers."""
    if not all(part.__class__ is int and part >= 0 for part in parts):
        return parts
    year, month, day, hour, minute, second, nano = (*parts, 0, 0)[:7]
    clock = f"{hour:02}:{minute:02}:{second:02}.{nano // 1_000:06}"
    return f"{year:04}-{month:02}-{day:02} {clock}"


def _numeric_time(unit: str) -> Convert:
    times, over = _PER_MS[unit]

    def numeric(value: Any) -> int:
        found = number(value)
        if not MIN_TS <= found * times / over < MAX_TS:
            raise CellError(
                f"is {found}, which is not between 2000 and 2099 in {unit}{_unit_of(found)}"
            )
        return _whole_ms(found, times, over)

    return numeric


def _whole_ms(found: float, times: int, over: int) -> int:
    """Return a time in ms, rounded down; a fraction counts as its digits are, not as it is stored.

    A float of seconds is exact to the microsecond at least, but seldom below.
    """
    if isinstance(found, int):
        return found * times // over
    return round(found * times * 1_000 / over) // 1_000


def _unit_of(value: Any) -> str:
    """Say in which unit a number would be a time of our days."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        for unit, (times, over) in _PER_MS.items():
            if MIN_TS <= value * times / over < MAX_TS:
                return f": write unit: {unit}"
    return ""


def _patterned_time(pattern: str, zone: tzinfo | None) -> Convert:
    def patterned(value: Any) -> int:
        value = str(value) if value.__class__ is int else value
        if not isinstance(value, str):
            raise CellError(f"is {value_in_words(value)}, and a text like {pattern} is wanted")
        return _ms(_parse(value, lambda one: datetime.strptime(one, pattern)), zone)  # noqa: DTZ007  # the zone comes next

    return patterned


def _parse(value: str, parse: Callable[[str], datetime], cure: str = "") -> datetime:
    try:
        return parse(value)
    except ValueError:
        raise CellError(f'is "{value[:40]}", which is no time of that form{cure}') from None


def _ms(moment: datetime, zone: tzinfo | None) -> int:
    """Return ms since the epoch; `zone` is that of a time which names none.

    Of an hour that clocks go through twice it is the first time.
    """
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)
    return (moment - EPOCH) // MS


def _zone(name: str) -> tzinfo:
    """Return a zone of this name or offset. Raises ConfigError."""
    if name.upper() in {"UTC", "Z"}:
        return UTC
    if found := _OFFSET.match(name):
        offset = timedelta(hours=int(found[2]), minutes=int(found[3]))
        return timezone(-offset if found[1] == "-" else offset)
    if "/" not in name:  # CET is no word for summer
        raise ConfigError(
            f"zone {name!r}: write UTC, an offset such as +02:00, or a name such as Europe/Berlin"
        )
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigError(
            f"zone {name!r}: this machine knows no such zone (pip install tzdata brings all)"
        ) from None


def value_in_words(value: Any) -> str:
    """Return a parsed value as it stands in a sentence: a text in quotes, shortened."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "an object"
    return f'"{value[:40]}"' if isinstance(value, str) else f"{value!r}"
