"""The rules of docs/events.md once more, in plain Python: what the oracle reads a log with.

Written from the page and not from the decoder, with nothing of it but the types of events: bytes
to an event or to the reason why there is none.
"""

import json
import re
from collections import Counter
from datetime import UTC, datetime
from math import isfinite
from typing import NamedTuple

from default_events import ImpressionEvent, SlateEvent

from streameval.core.events import FeedbackEvent, SlateItem

LARGEST = 1024 * 1024
YEAR_2000 = 946_684_800_000
YEAR_2100 = 4_102_444_800_000
REQUIRED = object()


class Rejected(NamedTuple):
    """A record that is no event, and the reason."""

    reason: str


class _MalformedError(ValueError):
    pass


class _InvalidError(ValueError):
    pass


def parse(value, timestamp, max_clock_skew):
    """The event in a record, or `Rejected`; `timestamp` is the record's, in ms."""
    try:
        event = _event(_json(value))
    except OverflowError:
        return Rejected("too_large")
    except _MalformedError:
        return Rejected("malformed")
    except _InvalidError:
        return Rejected("invalid")
    if timestamp is not None and timestamp >= 0 and event.ts > timestamp + max_clock_skew:
        return Rejected("future")
    return event


def parse_all(values, timestamps, max_clock_skew):
    """The events among records, in order, and how many are rejected by reason.

    `timestamps` None: they are lines of a file.
    """
    stamps = [None] * len(values) if timestamps is None else timestamps
    found = [parse(*record, max_clock_skew) for record in zip(values, stamps, strict=True)]
    reasons = Counter(one.reason for one in found if isinstance(one, Rejected))
    return [one for one in found if not isinstance(one, Rejected)], dict(reasons)


def _json(value):
    if not value:
        raise _MalformedError("empty, or a tombstone")
    if len(value) > LARGEST:
        raise OverflowError
    try:
        text = value.decode("utf-8")
        parsed = json.loads(text, parse_int=_whole, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise _MalformedError(str(error)) from error
    return parsed


def _whole(digits):
    """A whole number; thousands of digits are beyond any bound of ours, and slow."""
    return int(digits) if len(digits) < 400 else float("-inf" if digits[0] == "-" else "inf")


def _no_number(name):
    raise _MalformedError(f"{name} is no JSON")


def _event(fields):
    if not isinstance(fields, dict):
        raise _InvalidError("an object is wanted")
    kind = fields.get("type")
    if kind == "slate":
        return SlateEvent(
            ts=_ts(fields),
            user_id=_text(fields, "user_id", 256),
            request_id=_text(fields, "request_id", 256),
            items=_items(fields.get("items")),
            variant=_label(fields, "variant"),
            surface=_label(fields, "surface"),
            fallback=_flag(fields, "fallback"),
            latency_ms=_between(fields, "latency_ms", 0, 3_600_000),
        )
    if kind == "impression":
        return ImpressionEvent(
            ts=_ts(fields),
            user_id=_text(fields, "user_id", 256),
            item_id=_text(fields, "item_id", 256),
            request_id=_text(fields, "request_id", 256, None),
            position=_position(fields),
            variant=_label(fields, "variant"),
            surface=_label(fields, "surface"),
            score=_number(fields, "score", None),
            propensity=_propensity(fields),
            fallback=_flag(fields, "fallback"),
            latency_ms=_between(fields, "latency_ms", 0, 3_600_000),
        )
    if kind == "feedback":
        return FeedbackEvent(
            ts=_ts(fields),
            user_id=_text(fields, "user_id", 256),
            item_id=_text(fields, "item_id", 256),
            feedback=_text(fields, "feedback", 64),
            request_id=_text(fields, "request_id", 256, None),
            value=_between(fields, "value", -(10**12), 10**12, 1.0),
            retract=_flag(fields, "retract", default=False),
        )
    raise _InvalidError("an unknown type")


def _items(items):
    if not isinstance(items, list) or len(items) > 1_000:
        raise _InvalidError("items")
    found = []
    for item in items:
        if isinstance(item, dict):
            name = _text(item, "item_id", 256)
            found.append(
                SlateItem(name, _position(item), _number(item, "score", None), _propensity(item))
            )
        else:
            found.append(_text({"item": item}, "item", 256))
    names = [item if isinstance(item, str) else item.item_id for item in found]
    if len(set(names)) != len(names):
        raise _InvalidError("an item twice")
    return tuple(found)


def _text(fields, name, longest, default=REQUIRED):
    value = fields.get(name)
    if value is None:
        if default is REQUIRED:
            raise _InvalidError(f"{name} is missing")
        return default
    if not isinstance(value, str) or not 1 <= len(value) <= longest:
        raise _InvalidError(name)
    if any(ord(sign) < 0x20 or 0x7F <= ord(sign) <= 0x9F for sign in value):
        raise _InvalidError(f"a control character in {name}")
    if any(0xD800 <= ord(sign) <= 0xDFFF for sign in value):
        raise _InvalidError(f"half a surrogate pair in {name}")
    return value


def _label(fields, name):
    value = _text(fields, name, 64, None)
    if value == "__all__":
        raise _InvalidError(f"{name} stands for all values")
    return value


def _is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value):
    return isinstance(value, int) and not isinstance(value, bool)


def _number(fields, name, default):
    value = fields.get(name)
    if value is None:
        return default
    if not _is_number(value):
        raise _InvalidError(name)
    try:
        value = float(value)
    except OverflowError as error:
        raise _InvalidError(name) from error
    if not isfinite(value):
        raise _InvalidError(name)
    return value


def _propensity(fields):
    value = _number(fields, "propensity", None)
    if value is not None and not 0 < value <= 1:
        raise _InvalidError("propensity")
    return value


def _between(fields, name, least, most, default=None):
    value = _number(fields, name, default)
    if value is not None and not least <= value <= most:
        raise _InvalidError(name)
    return value


def _position(fields):
    value = fields.get("position")
    if value is None:
        return None
    if not _is_whole(value) or not 1 <= value <= 1_000:
        raise _InvalidError("position")
    return value


def _flag(fields, name, default=None):
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise _InvalidError(name)
    return value


_MOMENT = re.compile(
    r"(\d\d\d\d-\d\d-\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)


def _ts(fields):
    value = fields.get("ts")
    if isinstance(value, str):
        value = _moment(value)
    elif not _is_whole(value):
        raise _InvalidError("ts")
    if not YEAR_2000 <= value < YEAR_2100:
        raise _InvalidError("ts lies outside of 2000 to 2099")
    return value


def _moment(text):
    """RFC 3339 with an offset, in ms; a leap second is the last millisecond before it."""
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise _InvalidError("ts")
    day, hour, minute, second, fraction, zone = match.groups()
    milliseconds = int(((fraction or "") + "000")[:3])
    if second == "60":
        second, milliseconds = "59", 999
    offset = "+00:00" if zone in "Zz" else zone
    # Python 3.14 takes hour 24 for the next day's 0.
    if int(hour) > 23 or int(offset[1:3]) > 23 or int(offset[4:]) > 59:
        raise _InvalidError("ts")
    try:
        local = datetime.fromisoformat(f"{day}T{hour}:{minute}:{second}").replace(tzinfo=UTC)
    except ValueError as error:
        raise _InvalidError("ts") from error
    shift = (int(offset[1:3]) * 60 + int(offset[4:])) * 60_000
    since = int((local - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()) * 1000 + milliseconds
    return since - shift if offset[0] == "+" else since + shift
