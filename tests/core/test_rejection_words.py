"""What a person reads of a rejected event: what was found, what is wanted, and the cure."""

import gzip
import json

import pytest

from streameval.base.limits import MAX_DETAIL_LENGTH
from streameval.core import rejection_words
from streameval.core.events import EventDecoder, Newest, Rejection

DECODER = EventDecoder(("variant",), 60_000, ("click",))
TS = 1_767_614_400_000
FEEDBACK = {"type": "feedback", "ts": TS, "user_id": "u", "item_id": "i", "feedback": "click"}
SLATE = {"type": "slate", "ts": TS, "user_id": "u", "request_id": "r", "items": ["a", "b"]}
SHOWN = {"type": "impression", "ts": TS, "user_id": "u", "item_id": "i"}


def encoded(event, **fields):
    changed = {name: value for name, value in (event | fields).items() if value != "-"}
    return json.dumps(changed).encode()


WANTED_TS = (
    "; wanted: milliseconds since 1970, or RFC 3339 with an offset, such as 2026-01-05T12:00:00Z"
)
WANTED_ID = "; wanted: a text of 1 to 256 characters"
KINDS = "it is impression, slate or feedback"
INVALID = [
    (
        encoded(FEEDBACK, ts=1767614400),
        "`ts` is 1767614400, which is in seconds (2026-01-05 12:00:00 UTC): multiply by 1,000"
        + WANTED_TS,
    ),
    (
        encoded(FEEDBACK, ts=1767614400000000),
        "`ts` is 1767614400000000, which is in microseconds (2026-01-05 12:00:00 UTC): divide by"
        " 1,000" + WANTED_TS,
    ),
    (
        encoded(FEEDBACK, ts=1767614400000000000),
        "`ts` is 1767614400000000000, which is in nanoseconds (2026-01-05 12:00:00 UTC): divide by"
        " 1,000,000" + WANTED_TS,
    ),
    (
        encoded(FEEDBACK, ts=str(TS)),
        f'`ts` is "{TS}", a number in quotes: leave them out' + WANTED_TS,
    ),
    (
        encoded(FEEDBACK, ts="1767614400"),
        '`ts` is "1767614400", a number in quotes, which is in seconds (2026-01-05 12:00:00 UTC):'
        " multiply by 1,000" + WANTED_TS,
    ),
    (encoded(FEEDBACK, ts=TS + 0.5), f"`ts` is {TS}.5, with a fraction: round it down" + WANTED_TS),
    (
        encoded(FEEDBACK, ts="2026-01-05T12:00:00"),
        '`ts` is "2026-01-05T12:00:00", without an offset from UTC: add Z if it is UTC, else one'
        " like +02:00" + WANTED_TS,
    ),
    (
        encoded(FEEDBACK, ts="2026-01-05 12:00:00+00:00"),
        '`ts` is "2026-01-05 12:00:00+00:00", without the T between date and time' + WANTED_TS,
    ),
    (
        encoded(FEEDBACK, ts="2026-02-30T12:00:00Z"),
        '`ts` is "2026-02-30T12:00:00Z", no day from 2000 to 2099' + WANTED_TS,
    ),
    (encoded(FEEDBACK, ts="yesterday"), '`ts` is "yesterday"' + WANTED_TS),
    (encoded(FEEDBACK, ts=None), "`ts` is null" + WANTED_TS),
    (encoded(FEEDBACK, ts={}), "`ts` is an object" + WANTED_TS),
    (encoded(FEEDBACK, ts=-5), "`ts` is -5, outside the years 2000 to 2099" + WANTED_TS),
    (
        encoded(FEEDBACK, ts="-"),
        (
            "`ts` is missing in the feedback: send milliseconds since 1970, or RFC 3339 with an"
            " offset, such as 2026-01-05T12:00:00Z"
        ),
    ),
    (
        encoded(FEEDBACK, type="click"),
        (
            f'`type` is "click": {KINDS}; for what a person did send "type": "feedback",'
            ' "feedback": "click"'
        ),
    ),
    (
        encoded(SHOWN, type="Impression"),
        f'`type` is "Impression": {KINDS}; if impression is meant, send that',
    ),
    (encoded(SHOWN, type="view"), f'`type` is "view": {KINDS}; if impression is meant, send that'),
    (
        encoded(SLATE, type="recommendation"),
        f'`type` is "recommendation": {KINDS}; if slate is meant, send that',
    ),
    (encoded(SHOWN, type=3), f"`type` is 3: {KINDS}"),
    (encoded(SHOWN, type="-"), f"`type` is missing: {KINDS}"),
    (encoded(SHOWN, user_id=17), '`user_id` is 17, a number: send it as text, "17"' + WANTED_ID),
    (encoded(SHOWN, user_id=""), '`user_id` is "", a text without characters' + WANTED_ID),
    (
        encoded(SHOWN, user_id="x" * 300),
        f'`user_id` is "{"x" * 40}…", a text of 300 characters' + WANTED_ID,
    ),
    (
        encoded(SHOWN, user_id="-", userId="u"),
        (
            "`user_id` is missing in the impression (is `userId` meant?): send a text of 1 to 256"
            " characters"
        ),
    ),
    (
        encoded(FEEDBACK, value="9.99"),
        (
            '`value` is "9.99", a text: send the number without quotes; wanted: a number from -1e12'
            " to 1e12"
        ),
    ),
    (
        encoded(FEEDBACK, retract="true"),
        '`retract` is "true", a text: leave out the quotes; wanted: true or false',
    ),
    (
        encoded(SHOWN, position=0),
        "`position` is 0, and positions count from 1; wanted: a whole number from 1 to 1,000",
    ),
    (
        encoded(SHOWN, position=1.5),
        "`position` is 1.5, no whole number; wanted: a whole number from 1 to 1,000",
    ),
    (
        encoded(SHOWN, propensity=50),
        (
            "`propensity` is 50, a percentage, perhaps: divide by 100; wanted: a probability above"
            " 0, at most 1"
        ),
    ),
    (
        encoded(SHOWN, variant=3),
        '`variant` is 3, a number: send it as text, "3"; wanted: a text of 1 to 64 characters',
    ),
    (encoded(SHOWN, latency_ms=-1), "`latency_ms` is -1; wanted: milliseconds from 0 to 3,600,000"),
    (
        encoded(SHOWN, item_id="a\u0001"),
        "Control character, or half a surrogate pair, in an id or a label: `item_id`",
    ),
    (
        encoded(SLATE, items=["a", "b", "a"]),
        '`items` has "a" twice: an item stands in a slate once',
    ),
    (encoded(SLATE, items=["a", 3]), '`items[1]` is 3, a number: send it as text, "3"' + WANTED_ID),
    (
        encoded(SLATE, items=["a", {"item_id": "b", "position": 0}]),
        (
            "`items[1].position` is 0, and positions count from 1; wanted: a whole number from 1 to"
            " 1,000"
        ),
    ),
    (
        encoded(SLATE, items=["a", {"id": "b"}]),
        "`item_id` is missing in an object of `items`: send a text of 1 to 256 characters",
    ),
    (
        encoded(SLATE, items=[str(number) for number in range(1_001)]),
        (
            "`items` is a list, of 1,001 items; wanted: a list of at most 1,000 ids, or of objects"
            " with an item_id"
        ),
    ),
    (
        b"[" + encoded(SHOWN) + b"]",
        (
            "the value is a list, and an event is one JSON object; this looks like one JSON array:"
            " write one event a line (jq -c '.[]')"
        ),
    ),
    (b"3", "the value is 3, and an event is one JSON object"),
    (
        b'{"messageId": "m", "anonymousId": "a", "type": "track"}',
        "this looks like Segment or RudderStack: map it by the profile segment (docs/profiles.md)",
    ),
]
SEVERAL = (
    "several JSON values in one record: send a record for each, or one a line and read them by a"
    " profile, such as native"
)
MALFORMED = [
    (None, "Tombstone: the record has no value"),
    (b" ", "the value is empty: send a JSON object"),
    (
        b"\xef\xbb\xbf" + encoded(SHOWN),
        "this looks like JSON after a byte order mark (BOM): send UTF-8 without the mark",
    ),
    (
        gzip.compress(encoded(SHOWN), mtime=0),
        (
            "this looks like gzip: send the JSON itself (the producer's compression.type packs"
            " whole batches)"
        ),
    ),
    (
        b"\x00\x00\x00\x00\x07\x02a\x90",
        (
            "this looks like Avro or Protobuf with a schema id: read it by a profile and its schema"
            " (docs/profiles.md), or send JSON objects"
        ),
    ),
    (
        encoded(SHOWN) + encoded(SHOWN),
        SEVERAL,
    ),
    (
        encoded(SHOWN) + b"\n" + encoded(SHOWN),
        SEVERAL,
    ),
    (encoded(SHOWN)[:-9], "the JSON ends early, after 66 bytes: it was cut off"),
    (
        encoded(SHOWN, position=1).replace(b": 1}", b": NaN}"),
        "NaN is no JSON: send null, or leave the field out",
    ),
    (
        encoded(SHOWN, position=1).replace(b": 1}", b": None}"),
        "None is no JSON: this is Python: write it with json.dumps",
    ),
    (
        encoded(SHOWN).replace(b'"u"', b'"\xff"'),
        "no UTF-8: byte 0xff at position 56: encode the JSON as UTF-8",
    ),
    (b"[" * 500_000 + b"]" * 500_000, "nested too deep: an event is one flat JSON object"),
    (
        b'{"type": "impression",}',
        "no JSON: trailing comma in object, byte 22, in ': \"impression\",}'",
    ),
]


@pytest.mark.parametrize(("value", "said"), INVALID)
def test_an_invalid_event_is_told_what_was_found_and_what_is_wanted(value, said):
    assert DECODER.decode(value) == Rejection("invalid", said)


@pytest.mark.parametrize(("value", "said"), MALFORMED)
def test_a_value_that_is_no_json_is_told_what_it_is(value, said):
    assert DECODER.decode(value) == Rejection("malformed", said)


def test_the_future_is_told_by_how_much():
    rejection = DECODER.decode(encoded(SHOWN), TS - 5_400_000)
    assert rejection.detail == (
        "`ts` is 2026-01-05 12:00:00 UTC, 1h 30m after the record's own time 2026-01-05 10:30:00"
        " UTC; max_clock_skew is 1m: set the producer's clock (NTP)"
    )


def events(*times):
    return DECODER.decode_batch([encoded(SHOWN, ts=TS + ts) for ts in times])[0]


def test_late_is_told_by_how_much_and_against_which_watermark():
    newest = Newest(TS)
    assert not newest.rejections(events(1_000), [], 600_000, str)
    ((index, rejection),) = newest.rejections(events(2_000, -700_000), [1], 600_000, str)
    assert (index, rejection.reason) == (1, "late")
    assert rejection.detail == (
        "`ts` is 2026-01-05 11:48:20 UTC, 11m 42s behind the watermark 2026-01-05 12:00:02 UTC;"
        " allowed_lateness is 10m"
    )


def test_an_event_that_made_others_late_is_named():
    newest = Newest()
    found = newest.rejections(events(0, 3_600_000, 5, 6), [2, 3], 600_000, "line {}".format)
    assert [index for index, _ in found] == [2, 3]
    assert found[1][1].detail.endswith("; line 1 moved the watermark 1h ahead")


def test_a_wide_event_is_compared_by_some_of_its_names(monkeypatch):
    """An event may have thousands of names, and comparing each with the missing one takes long."""
    compared = []

    def counting(_, names):
        compared.append(names)
        return []

    monkeypatch.setattr(rejection_words, "_near", counting)
    wide = {f"field{number}" * 7: 1 for number in range(800)}
    rejection = DECODER.decode(encoded(SHOWN | wide, user_id="-"))
    assert rejection.detail.startswith("`user_id` is missing in the impression: send")
    ((names),) = compared
    assert len(names) == 50
    assert max(map(len, names)) <= 40


def test_a_large_value_is_not_parsed_for_words():
    large = encoded(SHOWN, position=0, more="x" * 70_000)
    assert DECODER.decode(large) == Rejection("invalid", "Expected `int` >= 1 - at `$.position`")


@pytest.mark.parametrize("size", [10, 5_000, 60_000])
def test_words_are_bounded_and_printable_whatever_is_quoted(size):
    for text in ("9" * size, "\u2028" * size, "\U0001f600" * size, "\n" * size):
        for field in ("ts", "type", "user_id", "position"):
            rejection = DECODER.decode(encoded(SHOWN, **{field: text + "\u0001"}))
            assert rejection.detail.isprintable()
            assert len(rejection.detail) <= MAX_DETAIL_LENGTH
