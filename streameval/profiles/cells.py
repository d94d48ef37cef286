"""Values of messages as the fields of events want them: texts, numbers, times, positions.

Trackers write numbers as text, ids as numbers, and times in five units. A profile names the field,
so its type is known; what does not fit is said in words, and nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any, Final

from streameval.base.errors import ConfigError
from streameval.base.limits import MAX_TS, MIN_TS
from streameval.profiles.language import Take

Convert = Callable[[Any], Any]


class CellError(ValueError):
    """A value that does not fit its field; the message is a part of a sentence."""


_PER_MS: Final = {"s": (1_000, 1), "ms": (1, 1), "us": (1, 1_000), "ns": (1, 1_000_000)}
_LONGEST: Final = 30
_NUMBER: Final = re.compile(r"-?\d{1,30}(?:\.\d{1,30})?(?:[eE][-+]?\d{1,3})?\Z", re.ASCII)
_ZONE: Final = re.compile(r"([+-])(\d\d):?(\d\d)\Z", re.ASCII)
_HAS_ZONE: Final = re.compile(r".*(?:[Zz]|[+-]\d\d:\d\d)\Z", re.ASCII | re.DOTALL).match
_NUMBERS: Final = frozenset({"score", "propensity", "latency_ms", "value", "after"})
_FLAGS: Final = frozenset({"fallback", "retract"})


def converter(field: str, take: Take | None) -> Convert:
    """Return the function that makes a value one of `field`. Raises ConfigError for a zone."""
    if field == "ts":
        return _time(take or Take.model_validate({"from": "ts"}))
    if field == "position":
        return _position(take.base if take else 1)
    if field in _NUMBERS:
        return number
    if field in _FLAGS:
        return _flag
    return _renamed(take.values) if take and take.values else text


def text(value: Any) -> str:
    """Return an id or a label as text; a whole number is written in digits."""
    if value.__class__ is str:
        return value
    if value.__class__ is bool:
        return "true" if value else "false"
    if value.__class__ is int:
        return str(value)
    if isinstance(value, list | dict):
        raise CellError(f"is {_kind(value)}, and a text is wanted")
    raise CellError(f"is {value!r}, a number with a fraction, and a text is wanted")


def _renamed(values: Mapping[str, str]) -> Convert:
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
    if isinstance(value, str) and _NUMBER.match(value.strip()):
        return float(value) if set(value) & set(".eE") else int(value)
    raise CellError(f"is {_kind(value)}, and a number is wanted")


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in {"true", "false"}:
        return value.lower() == "true"
    if value in (0, 1) and not isinstance(value, str):
        return bool(value)
    raise CellError(f"is {_kind(value)}, and true or false is wanted")


def _position(base: int | str) -> Convert:
    # `auto` depends on the whole list, so a 0 stays 0 here.
    lowest, add = (0, 0) if base == "auto" else (int(base), 1 - int(base))

    def position(value: Any) -> int:
        found = number(value)
        if found != int(found):
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
    def rfc3339(value: Any) -> Any:
        if isinstance(value, str):
            if zone is not None and not _HAS_ZONE(value):
                return _ms(_parsed(value, datetime.fromisoformat), zone)
            return value
        raise CellError(f"is {_kind(value)}, and RFC 3339 is wanted{_unit_of(value)}")

    return rfc3339


def _auto_time(zone: tzinfo | None) -> Convert:
    rfc3339 = _rfc3339(zone)

    def auto(value: Any) -> Any:
        if value.__class__ is str and value[4:5] == "-":
            return rfc3339(value)
        try:
            found = number(value)
        except CellError:
            return rfc3339(value)
        for times, over in _PER_MS.values():
            if MIN_TS <= found * times / over < MAX_TS:
                return int(found * times // over)
        raise CellError(f"is {found}, which is between 2000 and 2099 in no unit")

    return auto


def _numeric_time(unit: str) -> Convert:
    times, over = _PER_MS[unit]

    def numeric(value: Any) -> int:
        found = number(value)
        ts = int(found * times // over)
        if not MIN_TS <= ts < MAX_TS:
            raise CellError(
                f"is {found}, which is not between 2000 and 2099 in {unit}{_unit_of(found)}"
            )
        return ts

    return numeric


def _unit_of(value: Any) -> str:
    """Say in which unit a number would be a time of our days."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        for unit, (times, over) in _PER_MS.items():
            if MIN_TS <= value * times / over < MAX_TS:
                return f": write unit: {unit}"
    return ""


def _patterned_time(pattern: str, zone: tzinfo | None) -> Convert:
    def patterned(value: Any) -> int:
        if not isinstance(value, str):
            raise CellError(f"is {_kind(value)}, and a text like {pattern} is wanted")
        return _ms(_parsed(value, lambda one: datetime.strptime(one, pattern)), zone)  # noqa: DTZ007  # the zone comes next

    return patterned


def _parsed(value: str, parse: Callable[[str], datetime]) -> datetime:
    try:
        return parse(value)
    except ValueError:
        raise CellError(f'is "{value[:40]}", which is no time of that form') from None


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)


def _ms(moment: datetime, zone: tzinfo | None) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone)
    return (moment - _EPOCH) // _MS


def _zone(name: str) -> tzinfo:
    if name.upper() in {"UTC", "Z"}:
        return UTC
    if found := _ZONE.match(name):
        offset = timedelta(hours=int(found[2]), minutes=int(found[3]))
        return timezone(-offset if found[1] == "-" else offset)
    raise ConfigError(f"zone {name!r}: write UTC, or an offset such as +02:00")


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "an object"
    return f'"{value[:40]}"' if isinstance(value, str) else f"{value!r}"
