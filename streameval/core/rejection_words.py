"""Why an event was rejected, in a person's words: what was found, what is wanted, and the cure.

Decoders name the place and the type that they expected. The words here look at the value again,
which costs some 10 us for each rejected record, and nothing for the others.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, Final

from streameval.base.durations import UNITS, utc
from streameval.base.limits import (
    MAX_DEAD_LETTER_BYTES,
    MAX_ID_LENGTH,
    MAX_ITEMS,
    MAX_LABEL_LENGTH,
    MAX_LATENCY,
    MAX_POSITION,
    MAX_TS,
    MAX_VALUE,
    MIN_TS,
)
from streameval.base.nearest import nearest
from streameval.core.foreign_formats import format_of, format_of_bytes

CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""The control characters, Unicode's category Cc, and halves of surrogate pairs."""

_TYPES: Final = ("impression", "slate", "feedback")
_ID: Final = f"a text of 1 to {MAX_ID_LENGTH} characters"
_LABEL: Final = f"a text of 1 to {MAX_LABEL_LENGTH} characters"
_WANTED: Final = {
    "ts": "milliseconds since 1970, or RFC 3339 with an offset, such as 2026-01-05T12:00:00Z",
    "user_id": _ID,
    "item_id": _ID,
    "request_id": _ID,
    "feedback": _LABEL,
    "position": f"a whole number from 1 to {MAX_POSITION:,}",
    "score": "a number",
    "propensity": "a probability above 0, at most 1",
    "fallback": "true or false",
    "retract": "true or false",
    "latency_ms": f"milliseconds from 0 to {MAX_LATENCY:,}",
    "value": f"a number from -{MAX_VALUE:.0e} to {MAX_VALUE:.0e}".replace("e+", "e"),
    "items": f"a list of at most {MAX_ITEMS:,} ids, or of objects with an item_id",
}
"""What each field holds. All other fields are labels."""
_NUMBERS: Final = frozenset({"position", "score", "propensity", "latency_ms", "value"})

# Words of other vocabularies for what people saw; any other type is taken for one of feedback.
_SHOWN: Final = frozenset(
    ("display", "exposure", "impressions", "seen", "show", "shown", "view", "viewed")
)
_LISTS: Final = frozenset(
    ("list", "page", "ranking", "recommendation", "recommendations", "slates")
)

_STEPS: Final = re.compile(r"(\w+)|\[(\d+)\]")
_MISSING: Final = re.compile(r"Object missing required field `(\w+)`")
_BYTE: Final = re.compile(r"codec can't decode byte 0x(\w\w) in position (\d+)")
_AT: Final = re.compile(r"\(byte (\d+)\)")
_TRAILING: Final = "trailing characters"
# What other languages write, and JSON has not.
_NO_JSON: Final = (
    (re.compile(rb".?(NaN|-?Infinity)\b"), "send null, or leave the field out"),
    (re.compile(rb".?(None|True|False)\b"), "this is Python: write it with json.dumps"),
    (re.compile(rb".?(undefined)\b"), "send null, or leave the field out"),
    (re.compile(rb".?(')"), "texts stand in double quotes"),
)
_NO_OFFSET: Final = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?)?\Z")
_LONGEST: Final = 40
# Names that are compared with a missing one: an event may have thousands.
_MOST_NAMES: Final = 50
_UNIX_UNITS: Final = (("seconds", 1_000, 1), ("microseconds", 1, 1_000), ("nanoseconds", 1, 10**6))


def invalid(  # noqa: PLR0911  # one case a line
    parse: Callable[[bytes], Any], value: bytes, error: str
) -> str:
    """Say why an event breaks the rules; `parse` makes it plain data, `error` is the decoder's."""
    if len(value) > MAX_DEAD_LETTER_BYTES:  # nobody looks at all of it, and parsing takes long
        return error
    event = parse(value)
    if not isinstance(event, Mapping):
        foreign = format_of(value, event)
        said = f"the value is {_kind(event)}, and an event is one JSON object"
        return f"{said}; {foreign}" if foreign else said
    if foreign := format_of(value, event):
        return str(foreign)
    message, _, place = error.partition(" - at `$.")
    place = place.rstrip("`")
    if missing := _MISSING.match(message):
        return _missing(event, missing[1], place)
    if place == "type":
        return _type(event)
    found: Any = event
    of_item = False
    for name, index in _STEPS.findall(place):
        found, of_item = (found[int(index)], True) if index else (found[name], False)
    field = "item_id" if of_item else place.rpartition(".")[2]
    if place and (message.startswith("Expected") or field in _NUMBERS):
        return _wrong(place, field, found)
    return _broken_rule(event, message, place)


def _broken_rule(event: Mapping[str, Any], message: str, place: str) -> str:
    """Name what breaks a rule that types cannot state."""
    if place == "items":
        ids = [item["item_id"] if isinstance(item, Mapping) else item for item in event["items"]]
        twice = next(item for item, count in Counter(ids).items() if count > 1)
        return f"`items` has {_quote(twice)} twice: an item stands in a slate once"
    fields = [
        name for name, text in event.items() if isinstance(text, str) and CONTROL.search(text)
    ]
    if message.startswith("Control") and fields:
        return f"{message}: `{fields[0]}`"
    return message


def malformed(value: bytes, error: str) -> str:  # noqa: PLR0911  # one case a line
    """Say why bytes are no JSON; `error` is what the parser says of them."""
    if not value.strip():
        return "the value is empty: send a JSON object"
    if "recursion" in error or "Stack overflow" in error:  # the latter from Python 3.14 on
        return "nested too deep: an event is one flat JSON object"
    foreign = format_of_bytes(value)
    if found := _BYTE.search(error):
        said = f"no UTF-8: byte 0x{found[1]} at position {found[2]}"
        cure = "encode the JSON as UTF-8" if value.lstrip()[:1] == b"{" else "send JSON objects"
        return str(foreign) if foreign else f"{said}: {cure}"
    at = _AT.search(error)
    begin = int(at[1]) if at else 0
    if _TRAILING in error and value[max(begin - 1, 0) :].lstrip()[:1] in {b"{", b"["}:
        return (
            "several JSON values in one record: send a record for each, or one a line and read"
            " them by a profile, such as native"
        )
    if foreign:
        return str(foreign)
    if "truncated" in error:
        return f"the JSON ends early, after {len(value):,} bytes: it was cut off"
    if at is None:
        return f"no JSON: {error}"
    for pattern, cure in _NO_JSON:
        if word := pattern.match(value, max(begin - 1, 0)):
            return f"{word[1].decode()} is no JSON: {cure}"
    near = value[max(begin - 15, 0) : begin + 15].decode(errors="replace")
    said = error[: at.start()].removeprefix("JSON is malformed: ").strip()
    return f"no JSON: {said}, byte {begin:,}, in {near!r}"


def late(ts: int, watermark: int, allowed: int, mover: tuple[str, int] | None) -> str:
    """Say by how much an event comes too late; times and `allowed` in ms.

    `mover`: which event moved the watermark too far at once, and by how many ms.
    """
    said = (
        f"`ts` is {utc(ts)} UTC, {_long(watermark - ts)} behind the watermark {utc(watermark)}"
        f" UTC; allowed_lateness is {_long(allowed)}"
    )
    return f"{said}; {mover[0]} moved the watermark {_long(mover[1])} ahead" if mover else said


def future(ts: int, stamp: int, allowed: int) -> str:
    """Say by how much an event is dated after its record; times and `allowed` in ms."""
    return (
        f"`ts` is {utc(ts)} UTC, {_long(ts - stamp)} after the record's own time {utc(stamp)} UTC;"
        f" max_clock_skew is {_long(allowed)}: set the producer's clock (NTP)"
    )


def _missing(event: Mapping[str, Any], field: str, place: str) -> str:
    if field == "type":
        return _type(event)
    where = "an object of `items`" if place else f"the {event.get('type')}"
    wanted = _WANTED.get(field, _LABEL)
    names = () if place else tuple(str(name)[:_LONGEST] for name in islice(event, _MOST_NAMES))
    near = _near(field, names)
    meant = f" (is `{near[0]}` meant?)" if near else ""
    return f"`{field}` is missing in {where}{meant}: send {wanted}"


@lru_cache(maxsize=256)
def _near(field: str, names: tuple[str, ...]) -> list[str]:
    return nearest(field, names)


def _type(event: Mapping[str, Any]) -> str:
    listed = "impression, slate or feedback"
    if "type" not in event:
        return f"`type` is missing: it is {listed}"
    kind = event["type"]
    if not isinstance(kind, str):
        return f"`type` is {_kind(kind)}: it is {listed}"
    return _other_type(kind[:_LONGEST])


@lru_cache(maxsize=256)  # a producer that is wrong is wrong often
def _other_type(kind: str) -> str:
    listed = "impression, slate or feedback"
    word = kind.strip().lower()
    near = word if word in _TYPES else next(iter(nearest(word, _TYPES)), None)
    if near or word in _SHOWN or word in _LISTS:
        meant = near or ("impression" if word in _SHOWN else "slate")
        return f"`type` is {_quote(kind)}: it is {listed}; if {meant} is meant, send that"
    return (
        f"`type` is {_quote(kind)}: it is {listed}; for what a person did send"
        f' "type": "feedback", "feedback": {_quote(kind)}'
    )


def _wrong(where: str, field: str, found: Any) -> str:
    """Say what a field holds, what is wanted there, and how to get from one to the other."""
    wanted = _WANTED.get(field, _LABEL)
    cure = _time_cure(found) if field == "ts" else _cure(field, found)
    return f"`{where}` is {_kind(found)}{cure and f', {cure}'}; wanted: {wanted}"


def _time_cure(found: Any) -> str:  # noqa: PLR0911  # one case a line
    if isinstance(found, bool) or found is None:
        return ""
    if isinstance(found, str):
        if found.isdecimal() and len(found) < _LONGEST:
            number = int(found)
            sound = MIN_TS <= number < MAX_TS
            return f"a number in quotes{': leave them out' if sound else ', ' + _time_cure(number)}"
        if _NO_OFFSET.match(found):
            return "without an offset from UTC: add Z if it is UTC, else one like +02:00"
        if re.match(r"\d{4}-\d\d-\d\d ", found):
            return "without the T between date and time"
        return "no day from 2000 to 2099" if re.match(r"\d{4}-\d\d-\d\dT", found) else ""
    if not isinstance(found, int | float):
        return ""
    for unit, times, over in _UNIX_UNITS:
        if MIN_TS <= found * times / over < MAX_TS:
            factor = f"multiply by {times:,}" if times > 1 else f"divide by {over:,}"
            return f"which is in {unit} ({utc(found * times / over)} UTC): {factor}"
    if isinstance(found, float) and MIN_TS <= found < MAX_TS:
        return "with a fraction: round it down"
    return "outside the years 2000 to 2099"


def _cure(field: str, found: Any) -> str:  # noqa: PLR0911  # one case a line
    """Say in words what is wrong with a value, where that is known."""
    number = isinstance(found, int | float) and not isinstance(found, bool)
    if field in _NUMBERS and isinstance(found, str):
        return "a text: send the number without quotes"
    if field in {"fallback", "retract"} and (isinstance(found, str) or number):
        return "a text: leave out the quotes" if isinstance(found, str) else "a number"
    if field == "position":
        if found == 0:
            return "and positions count from 1"
        if isinstance(found, float):
            return "no whole number"
    if field == "propensity" and number and found > 1:
        return "a percentage, perhaps: divide by 100"
    if field not in _NUMBERS and field not in {"fallback", "retract", "items"} and number:
        return f'a number: send it as text, "{found}"'
    if isinstance(found, str):
        return f"a text of {len(found):,} characters" if found else "a text without characters"
    if field == "items" and isinstance(found, Sequence):
        return f"of {len(found):,} items" if len(found) > MAX_ITEMS else ""
    return ""


def _kind(found: Any) -> str:
    """Return a value as a person reads it, or its kind where it is long."""
    if found is None:
        return "null"
    if isinstance(found, bool):
        return "true" if found else "false"
    if isinstance(found, str):
        return _quote(found)
    if isinstance(found, Mapping):
        return "an object"
    if isinstance(found, list | tuple):
        return "a list"
    return f"{found!r}"[:_LONGEST]


def _quote(text: str) -> str:
    return f'"{text[:_LONGEST]}{"…" if len(text) > _LONGEST else ""}"'


def _long(duration: int) -> str:
    """Return a duration (ms) in its two largest units."""
    parts: list[str] = []
    for unit in sorted(UNITS, key=UNITS.__getitem__, reverse=True):
        count, duration = divmod(duration, UNITS[unit])
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
        if len(parts) == 2:
            break
    return " ".join(filter(None, parts)) or "0ms"
