"""The decoder and the oracle's own parser agree on every value: events, rejections and reasons.

`plain_parser` is written from docs/events.md. Values are events of the hostile streams and of the
page, changed field by field, and byte by byte.
"""

import contextlib
import json
import random

import pytest
from default_events import Impression, decode
from plain_parser import Rejected, parse
from streams import hostile, to_json

from streameval.base.limits import MAX_EVENT_BYTES
from streameval.core.events import FeedbackEvent, Rejection

SEEDS = 300
TS = 1_767_614_400_000
STAMPS = (None, -1, 0, TS, TS + 60_000, 4_000_000_000_000)

WHOLE = (
    {"type": "slate", "ts": TS, "user_id": "u", "request_id": "r", "items": ["i", "j"]},
    {
        "type": "slate",
        "ts": "2026-01-05T12:00:00Z",
        "user_id": "u",
        "request_id": "r",
        "variant": "B",
        "surface": "home",
        "items": ["i", {"item_id": "j", "position": 4, "score": 0.5, "propensity": 1}],
    },
    {"type": "slate", "ts": TS, "user_id": "u", "request_id": "r", "items": [], "fallback": True},
    {"type": "impression", "ts": TS, "user_id": "u", "item_id": "i"},
    {
        "type": "impression",
        "ts": TS,
        "user_id": "u",
        "item_id": "i",
        "request_id": "r",
        "position": 1,
        "variant": "A",
        "surface": "home",
        "score": -1.5,
        "propensity": 0.25,
        "fallback": False,
        "latency_ms": 12.5,
    },
    {"type": "feedback", "ts": TS, "user_id": "u", "item_id": "i", "feedback": "click"},
    {
        "type": "feedback",
        "ts": TS,
        "user_id": "u",
        "item_id": "i",
        "feedback": "watch",
        "value": 0.5,
        "retract": True,
        "request_id": "r",
    },
)
FIELDS = sorted({name for event in WHOLE for name in event} | {"unknown"})
VALUES = (
    *(None, True, False, 0, 1, -1, 2, 1000, 1001, 0.5, 1.0, 1e3, -0.0, 1e308, 10**30, -(10**30)),
    *("", "x", "x" * 64, "x" * 65, "x" * 256, "x" * 257, "é" * 256, "𝄞" * 64, "𝄞" * 65, " ", "1"),
    *(
        "\x00",
        "a\x1fb",
        "\x7f",
        "\x85",
        "\x9f",
        "\xa0",
        "\u2028",
        "slate",
        "view",
        "__all__",
        "NaN",
        '"',
        "\\",
    ),
    *(10**12, 10**12 + 1, -(10**12), -(10**12) - 1, 1e12, 1_000_000_000_000.0001, -1e12),
    *(3_600_000, 3_600_001, 3_600_000.0, 3_600_000.0000001, 1e-300, -5e-324, 5e-324),
    *([], ["i"], ["i", "i"], ["i", {"item_id": "i"}], ["i", None], ["i", 1], ["x"] * 1001, [[]]),
    [f"i{n}" for n in range(1000)],
    *({}, {"item_id": "i"}, [{"item_id": "i"}], [{"item_id": "i", "position": 0}], [{}]),
    *([{"item_id": "i", "score": "1"}], [{"item_id": "i", "more": [1, {}]}]),
    *([{"item_id": "i", "propensity": 0}], [{"item_id": "i", "position": 1000.0}]),
    *(946_684_799_999, 946_684_800_000, 4_102_444_799_999, 4_102_444_800_000, 1_767_614_400.5),
    *(TS, TS + 60_000, TS + 60_001, float(TS), TS + 0.5, 1_767_614_400, str(TS)),
    *("2026-01-05T12:00:00+01:00", "2026-01-05t12:00:00z", "2026-01-05T12:00:00", "2026-01-05"),
    *(
        "2026-02-30T12:00:00Z",
        "2026-01-05T24:00:00Z",
        "2026-01-05T23:59:60Z",
        "0000-01-01T00:00:00Z",
    ),
    *("2026-01-05T12:00:00.123456789-23:59", "2026-01-05T12:00:00.1+24:00", "2026-01-05T12:00:60Z"),
    *(
        "2026-01-05T12:00:00.Z",
        "2026-01-05T12:00:00 Z",
        "2026-01-05T12:00:00Z ",
        "٢026-01-05T12:00:00Z",
    ),
    *("1999-12-31T23:59:59Z", "1999-12-31T23:59:59-00:01", "2100-01-01T00:00:00+00:01"),
    *("2099-12-31T23:59:59.999Z", "2026-01-05T12:00:00+0100", "2026-01-05T12:60:00Z"),
)
BYTES = (
    *(None, b"", b" ", b"null", b"[]", b"{}", b"1", b'"x"', b"{", b"\xef\xbb\xbf{}", b"NaN"),
    *(
        b"\xff\xfe{\x00}\x00",
        b"{}{}",
        b"{} ",
        b"{}\x00",
        b"\x0b{}",
        b'{"a":1,}',
        b"{'a':1}",
        b"[1,]",
    ),
    *(b"-", b"01", b"1.", b".5", b"1e", b"+1", b"- 1", b"0x1", b"tru", b"1e999", b"-0", b'"\\x"'),
    *(
        b'"\\ud800"',
        b'"\\udc00\\ud800"',
        b'"\\ud834\\udd1e"',
        b'"\xed\xa0\x80"',
        b'"\x80"',
        b'"\t"',
    ),
    *(b"[" * 5_000, b"[" * 200 + b"]" * 200, b'{"a":' * 3_000 + b"1" + b"}" * 3_000),
    *(b"9" * 5_000, b'{"a":Infinity}', b'{"a":-Infinity}', b'{"type":"slate","type":"view"}'),
    *(b" " * (MAX_EVENT_BYTES + 1), b"x" * (MAX_EVENT_BYTES + 1), b'"\\u00e9"', b'"\\', b'"a'),
)


def names_a_field_twice(value):
    """Whether a value is JSON of which the page does not say what it means."""
    found = []

    def look(pairs):
        found.append(len(dict(pairs)) < len(pairs))

    with contextlib.suppress(ValueError, RecursionError):
        json.loads(value or b"", object_pairs_hook=look)
    return any(found)


def agree(value, stamp):
    """Both say the same of a record; answers whether it is an event."""
    if names_a_field_twice(value):
        return False
    found, wanted = decode(value, stamp, 60_000), parse(value, stamp, 60_000)
    shown = value if value is None or len(value) < 2_000 else f"{value[:100]}… {len(value)} bytes"
    if isinstance(wanted, Rejected) or isinstance(found, Rejection):
        assert getattr(found, "reason", "an event") == getattr(wanted, "reason", "an event"), shown
        return False
    assert plain(found) == plain(wanted), shown
    return True


def plain(event):
    """An event's fields, with the types that matter."""
    names = ("ts", "user_id", "request_id")
    if isinstance(event, Impression):
        names += ("item_id", "position", "variant", "surface", "score", "propensity")
        names += ("fallback", "latency_ms")
    elif isinstance(event, FeedbackEvent):
        names += ("item_id", "feedback", "value", "retract")
    else:
        names += ("variant", "surface", "positions", "details", "fallback", "latency_ms")
    fields = {name: getattr(event, name) for name in names}
    return type(event), {name: (type(value), value) for name, value in fields.items()}


@pytest.mark.parametrize("event", WHOLE, ids=lambda event: event["type"])
def test_every_field_with_every_value_is_judged_alike(event):
    accepted = 0
    for name in FIELDS:
        for value in VALUES:
            for changed in ({**event, name: value}, {k: v for k, v in event.items() if k != name}):
                accepted += agree(json.dumps(changed, ensure_ascii=False).encode(), TS)
                accepted += agree(json.dumps(changed).encode(), None)
    assert accepted > len(VALUES), "any value of an unknown field will do"


@pytest.mark.parametrize("value", BYTES, ids=lambda value: repr(value)[:30])
def test_what_is_no_json_is_judged_alike_alone_and_inside_an_event(value):
    agree(value, TS)
    if value is not None and len(value) < MAX_EVENT_BYTES:
        for name in (b"unknown", b"value", b"retract", b"request_id"):
            head = b'{"type":"feedback","ts":1767614400000,"user_id":"u","item_id":"i",'
            agree(head + b'"feedback":"click","' + name + b'":' + value + b"}", TS)


def test_bytes_changed_at_random_are_judged_alike(seed):
    rng = random.Random(seed)
    _, events = hostile(seed)
    for event in rng.sample(events, 20):
        raw = bytearray(to_json(event))
        for _ in range(5):
            changed = bytearray(raw)
            for _ in range(rng.choice((0, 1, 1, 2, 5))):
                at = rng.randrange(len(changed))
                what = rng.randrange(4)
                if what == 0:
                    changed[at] = rng.randrange(256)
                elif what == 1:
                    del changed[at]
                elif what == 2:
                    changed.insert(at, rng.choice(b'{}[],:"\\0123456789eE+-. \n\ttfnu\xc3\xa9'))
                else:
                    other = rng.randrange(len(changed))
                    changed[at:at] = changed[other : other + 12]
            agree(bytes(changed), rng.choice(STAMPS))
