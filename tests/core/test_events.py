"""Events: what is decoded, what is rejected and why, and that nothing can raise."""

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from default_events import DIMENSIONS, Impression, ImpressionEvent, SlateEvent, decode, decode_batch
from hypothesis import given
from hypothesis import strategies as st

from streameval.base.limits import MAX_DETAIL_LENGTH, MAX_EVENT_BYTES, MAX_TS, MIN_TS
from streameval.core.events import REASONS, EventDecoder, FeedbackEvent, Rejection

NOW = 1_700_000_000_000
IMPRESSION = {"type": "impression", "ts": NOW, "user_id": "u", "item_id": "i"}
FEEDBACK = {"type": "feedback", "ts": NOW, "user_id": "u", "item_id": "i", "feedback": "click"}
SLATE = {"type": "slate", "ts": NOW, "user_id": "u", "request_id": "r", "items": ["a", "b"]}


def encode(event, **changes):
    return json.dumps({**event, **changes}).encode()


def read(event, **changes):
    return decode(encode(event, **changes), None, 0)


def reason(value, record_timestamp=None, max_clock_skew=0):
    rejection = decode(value, record_timestamp, max_clock_skew)
    assert isinstance(rejection, Rejection), rejection
    assert rejection.detail
    assert rejection.detail.isprintable()
    assert len(rejection.detail) <= MAX_DETAIL_LENGTH
    return rejection.reason


# --- What is decoded


def test_an_impression_needs_four_fields_and_the_others_are_none():
    assert read(IMPRESSION) == ImpressionEvent(NOW, "u", "i")


def test_an_impression_keeps_all_its_fields_and_ignores_others():
    event = read(
        IMPRESSION,
        request_id="r",
        position=3,
        variant="A",
        surface="home",
        score=-0.5,
        propensity=1,
        fallback=True,
        latency_ms=12,
        country="CH",
    )
    assert event == ImpressionEvent(
        *(NOW, "u", "i", "r", 3, "A", "home", -0.5, 1.0), fallback=True, latency_ms=12.0
    )
    assert type(event.latency_ms) is float


def test_feedback_has_a_value_of_1_and_takes_nothing_back_unless_it_says_so():
    assert read(FEEDBACK) == FeedbackEvent(NOW, "u", "i", "click", None, 1.0, retract=False)
    assert read(FEEDBACK, value=0.25, retract=True, request_id="r") == FeedbackEvent(
        NOW, "u", "i", "click", "r", 0.25, retract=True
    )


@pytest.mark.parametrize(
    ("event", "optional"),
    [
        (IMPRESSION, ["request_id", "position", "variant", "surface", "score", "propensity"]),
        (IMPRESSION, ["fallback", "latency_ms"]),
        (FEEDBACK, ["request_id", "value", "retract"]),
        (SLATE, ["variant", "surface", "fallback", "latency_ms"]),
    ],
)
def test_null_in_an_optional_field_means_absent(event, optional):
    assert read(event, **dict.fromkeys(optional)) == read(event)


def test_a_slate_of_ids_gives_positions_from_1():
    assert read(SLATE, variant="B", surface="home") == SlateEvent(
        NOW, "u", "r", ("a", "b"), variant="B", surface="home"
    )


def test_a_slate_may_have_no_items():
    event = read(SLATE, items=[])
    assert event == SlateEvent(NOW, "u", "r", ())
    assert (event.positions, event.details) == ({}, {})


def test_a_slate_says_whether_it_is_a_fallback_and_how_long_it_took():
    event = read(SLATE, fallback=False, latency_ms=31.25)
    assert (event.fallback, event.latency_ms) == (False, 31.25)
    assert (read(SLATE).fallback, read(SLATE).latency_ms) == (None, None)


@pytest.mark.parametrize("latency", [0, -0.0, 1e-300, 0.5, 3_600_000, 3_600_000.0])
def test_a_latency_is_from_0_to_an_hour(latency):
    for event in (IMPRESSION, SLATE):
        assert read(event, latency_ms=latency).latency_ms == latency


@pytest.mark.parametrize("value", [10**12, -(10**12), 1e12, -1e12, 0, -0.0, 5e-7, 1e-300])
def test_a_value_is_at_most_10_to_the_12_of_either_sign(value):
    assert read(FEEDBACK, value=value).value == value


def test_a_slate_mixes_ids_and_objects_and_a_missing_position_is_the_index_plus_1():
    event = read(
        SLATE,
        items=[
            "a",
            {"item_id": "b", "position": 7, "score": 0.5},
            {"item_id": "c", "propensity": 0.1},
            {"item_id": "d", "position": None},
        ],
    )
    assert event.positions == {"a": 1, "b": 7, "c": 3, "d": 4}
    assert event.details == {"b": (0.5, None), "c": (None, 0.1)}


def test_a_slate_of_bare_objects_has_no_details():
    event = read(SLATE, items=[{"item_id": "a"}, {"item_id": "b"}])
    assert event.positions == {"a": 1, "b": 2}
    assert event.details == {}


def test_objects_that_say_only_their_places_are_read_as_ids():
    assert read(SLATE, items=objects("a", "b")) == read(SLATE, items=["a", "b"])
    assert read(SLATE, items=objects("a", "b")).items == ("a", "b")
    assert reason(encode(SLATE, items=objects("a", "a"))) == "invalid"


@pytest.mark.parametrize(
    ("more", "positions", "details"),
    [
        ([{"position": 2}, {"position": 1}], [2, 1], {}),
        ([{}, {"position": 3}], [1, 3], {}),
        ([{"score": 0.0}, {}], [1, 2], {"a": (0.0, None)}),
        ([{}, {"score": 0.0}], [1, 2], {"b": (0.0, None)}),
        ([{}, {"propensity": 1}], [1, 2], {"b": (None, 1.0)}),
    ],
)
def test_what_an_object_says_beside_its_place_is_kept(more, positions, details):
    items = [one | change for one, change in zip(objects("a", "b"), more, strict=True)]
    event = read(SLATE, items=items)
    assert event.positions == dict(zip("ab", positions, strict=True))
    assert event.details == details


def objects(*ids):
    return [{"item_id": item, "position": place} for place, item in enumerate(ids, 1)]


def test_the_order_of_fields_does_not_matter():
    value = json.dumps(dict(reversed(FEEDBACK.items()))).encode()
    assert decode(value, None, 0) == read(FEEDBACK)


def test_text_beyond_ascii_and_escapes_are_kept():
    event = read(IMPRESSION, user_id='Zoë "日本" 🎬', item_id="a\\b")
    assert (event.user_id, event.item_id) == ('Zoë "日本" 🎬', "a\\b")
    raw = '{"type":"impression","ts":1700000000000,"user_id":"Zoë","item_id":"\\u00e9"}'
    assert decode(raw.encode(), None, 0) == ImpressionEvent(NOW, "Zoë", "é")


# --- Time


@pytest.mark.parametrize(
    ("text", "ts"),
    [
        ("2023-11-14T22:13:20Z", NOW),
        ("2023-11-14t22:13:20z", NOW),
        ("2023-11-15T03:43:20+05:30", NOW),
        ("2023-11-14T17:13:20-05:00", NOW),
        ("2023-11-14T22:13:20-00:00", NOW),
        ("2023-11-14T22:13:20.1Z", NOW + 100),
        ("2023-11-14T22:13:20.0019999999999999999Z", NOW + 1),
        ("2023-11-14T22:13:19.999999Z", NOW - 1),
        ("2016-12-31T23:59:60.5Z", 1_483_228_799_999),
        ("2000-01-01T00:00:00Z", MIN_TS),
        ("2099-12-31T23:59:59.999Z", MAX_TS - 1),
        ("2000-01-01T00:00:00-01:00", MIN_TS + 3_600_000),
    ],
)
def test_a_time_may_be_rfc_3339_and_is_floored_to_milliseconds(text, ts):
    for event in (IMPRESSION, FEEDBACK, SLATE):
        assert read(event, ts=text).ts == ts


@given(
    st.datetimes(datetime(2000, 1, 2), datetime(2099, 12, 30)),
    st.integers(-23 * 60, 23 * 60),
)
def test_rfc_3339_agrees_with_the_standard_library(moment, offset):
    moment = moment.replace(tzinfo=timezone(timedelta(minutes=offset)))
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    expected = (moment - epoch) // timedelta(milliseconds=1)
    assert read(IMPRESSION, ts=moment.isoformat()).ts == expected


@pytest.mark.parametrize(
    "ts",
    [
        "2023-11-14T22:13:20",
        "2023-11-14",
        "2023-11-14 22:13:20Z",
        "2023-11-14T22:13Z",
        "2023-11-14T22:13:20.Z",
        "2023-11-14T24:00:00Z",
        "2023-11-14T22:13:61Z",
        "2023-02-29T22:13:20Z",
        "2023-13-01T22:13:20Z",
        "2023-11-14T22:13:20+0530",
        "2023-11-14T22:13:20+24:00",
        "٢٠٢٣-11-14T22:13:20Z",
        "1999-12-31T23:59:59.999Z",
        "2100-01-01T00:00:00Z",
        "2000-01-01T00:00:00+00:01",
        "1700000000000",
        "",
        MIN_TS - 1,
        MAX_TS,
        -1,
        0,
        10**40,
        1_700_000_000,
        1.7e12,
        True,
        None,
        [],
    ],
)
def test_a_time_outside_2000_to_2099_or_without_an_offset_is_invalid(ts):
    assert reason(encode(IMPRESSION, ts=ts)) == "invalid"


def test_an_event_is_future_beyond_the_skew_of_its_own_record():
    value = encode(IMPRESSION)
    assert isinstance(decode(value, NOW - 1_000, 1_000), Impression)
    assert reason(value, NOW - 1_001, 1_000) == "future"


def test_without_a_record_timestamp_nothing_is_future():
    latest = encode(IMPRESSION, ts=MAX_TS - 1)
    assert isinstance(decode(latest, None, 0), Impression)
    assert isinstance(decode(latest, -1, 0), Impression)  # Kafka's "no timestamp"


# --- What is rejected


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b" ",
        b"{",
        b"nonsense",
        b"\x00\xff\xfe",
        encode(IMPRESSION)[:-1],
        encode(IMPRESSION) + b"}",
        encode(IMPRESSION) * 2,
        encode(IMPRESSION).replace(b'"u"', b'"\xff"'),
        encode(IMPRESSION).replace(b'"u"', b'"\xed\xa0\x80"'),
        encode(IMPRESSION).replace(b'"u"', b'"a\nb"'),
        encode(IMPRESSION).replace(b'"u"', b'"a\x00b"'),
        encode(IMPRESSION, score=float("nan")),
        encode(IMPRESSION, score=float("inf")),
        b"[" * 200_000,
        b'{"type":5,' + b"[" * 200_000,
        b'{"a":' + b"[" * 500_000 + b"]" * 500_000 + b"}",
        b'{"type": 5, nonsense',
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_is_no_json_is_malformed(value):
    assert reason(value) == "malformed"


@pytest.mark.parametrize(
    "value",
    [
        b"null",
        b"1",
        b'"text"',
        b"[]",
        b"{}",
        encode({"type": "purchase"}),
        encode(IMPRESSION, type="Impression"),
        encode(IMPRESSION, type=None),
        encode(IMPRESSION, type="x" * 100_000),
        encode(IMPRESSION, type="\n\u2028"),
        encode(IMPRESSION, user_id=None),
        encode(IMPRESSION, user_id=""),
        encode(IMPRESSION, user_id=7),
        encode(IMPRESSION, user_id="u" * 257),
        encode(IMPRESSION, user_id="u" * 1_000_000),
        encode(IMPRESSION, request_id=""),
        encode(IMPRESSION, position=0),
        encode(IMPRESSION, position=1_001),
        encode(IMPRESSION, position=1.5),
        encode(IMPRESSION, position=True),
        encode(IMPRESSION, position="3"),
        encode(IMPRESSION, position=10**40),
        encode(IMPRESSION, variant=""),
        encode(IMPRESSION, variant="v" * 65),
        encode(IMPRESSION, variant="__all__"),
        encode(IMPRESSION, surface="__all__").replace(b"_", b"\\u005f"),
        encode(SLATE, surface="__all__"),
        encode(IMPRESSION, propensity=0),
        encode(IMPRESSION, propensity=1.01),
        encode(IMPRESSION).replace(b"}", b',"score":1e400}'),
        encode(IMPRESSION).replace(b"}", b',"score":1' + b"0" * 400 + b"}"),
        encode(IMPRESSION).replace(b"1700000000000", b"1" + b"0" * 5_000),
        encode(FEEDBACK, feedback=""),
        encode(FEEDBACK, feedback=None),
        encode(FEEDBACK, value="1"),
        encode(FEEDBACK, value=True),
        encode(FEEDBACK, retract=1),
        encode(FEEDBACK, value=10**12 + 1),
        encode(FEEDBACK, value=-(10**12) - 1),
        encode(FEEDBACK, value=1_000_000_000_000.0001),
        encode(FEEDBACK, value=-1_000_000_000_000.0001),
        encode(FEEDBACK, value=1e308),
        *(
            encode(event, fallback=fallback)
            for event in (IMPRESSION, SLATE)
            for fallback in (0, 1, "true", [], {})
        ),
        *(
            encode(event, latency_ms=latency)
            for event in (IMPRESSION, SLATE)
            for latency in (-1, -5e-324, 3_600_000.0000001, 3_600_001, 1e308, True, "12", [])
        ),
        encode(SLATE, items=None),
        encode(SLATE, items={}),
        encode(SLATE, items="ab"),
        encode(SLATE, items=["a", "a"]),
        encode(SLATE, items=["a", {"item_id": "a", "position": 9}]),
        encode(SLATE, items=["a", None]),
        encode(SLATE, items=["a", ""]),
        encode(SLATE, items=["a", ["b"]]),
        encode(SLATE, items=[{"position": 1}]),
        encode(SLATE, items=[{"item_id": "a", "position": 0}]),
        encode(SLATE, items=[str(number) for number in range(1_001)]),
        encode(SLATE, request_id=None),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_json_that_breaks_the_schema_is_invalid(value):
    assert reason(value) == "invalid"


def test_only_a_label_may_not_be_the_name_of_a_total():
    for value in (
        encode(IMPRESSION, item_id="__all__", request_id="__all__", country="__all__"),
        encode(FEEDBACK, feedback="__all__"),
        encode(SLATE, items=["__all__"], variant="__all__x"),
    ):
        assert not isinstance(EventDecoder(DIMENSIONS, 0).decode(value), Rejection), value


CONTROLS = ["\x00", "\t", "\n", "\x1f", "\x7f", "\x80", "\x85", "\x9f"]


@pytest.mark.parametrize("control", CONTROLS, ids=ascii)
@pytest.mark.parametrize("escaped", [True, False])
@pytest.mark.parametrize(
    ("event", "field"),
    [
        *((IMPRESSION, f) for f in ("user_id", "item_id", "request_id", "variant", "surface")),
        *((FEEDBACK, f) for f in ("user_id", "item_id", "request_id", "feedback")),
        *((SLATE, f) for f in ("user_id", "request_id", "items", "variant", "surface")),
    ],
)
def test_a_control_character_in_an_id_or_a_label_is_refused(event, field, control, escaped):
    text = f"a{control}b"
    changes = {field: ["x", text] if field == "items" else text}
    value = json.dumps({**event, **changes}, ensure_ascii=escaped).encode()
    # Below 0x20 a raw one is escaped by json.dumps in any case; test_what_is_no_json has it raw.
    assert reason(value) == "invalid"


def test_a_control_character_in_an_object_of_a_slate_is_refused():
    assert reason(encode(SLATE, items=["a", {"item_id": "b\n"}])) == "invalid"


def test_a_control_character_in_an_ignored_field_is_ignored():
    assert read(IMPRESSION, comment="two\nlines\x7f") == ImpressionEvent(NOW, "u", "i")


def test_the_longest_ids_and_the_largest_slate_are_events():
    items = [f"{number:0256}" for number in range(1_000)]
    assert len(read(SLATE, items=items).items) == 1_000
    assert read(IMPRESSION, user_id="é" * 256, variant="v" * 64).user_id == "é" * 256


def test_an_event_of_more_than_1_mib_is_too_large_whatever_is_in_it():
    exact = encode(IMPRESSION) + b" " * (MAX_EVENT_BYTES - len(encode(IMPRESSION)))
    assert decode(exact, None, 0) == read(IMPRESSION)
    assert reason(exact + b" ") == "too_large"
    assert reason(b"x" * (MAX_EVENT_BYTES + 1)) == "too_large"


# --- Batches

SAMPLE = [
    encode(IMPRESSION),
    encode(IMPRESSION, ts=NOW + 10),
    encode(FEEDBACK, user_id="a\nb"),
    encode(SLATE, items=["x", {"item_id": "y", "score": 1}]),
    encode(FEEDBACK, user_id="é"),
    b"{",
    None,
    b"x" * (MAX_EVENT_BYTES + 1),
    encode(FEEDBACK, ts="2023-11-14T22:13:20Z", value=None),
    encode(IMPRESSION, comment="\\"),
]


@given(st.lists(st.sampled_from(SAMPLE)), st.integers(0, 20))
def test_a_batch_is_its_records_one_by_one(values, skew):
    """What stands beside a record changes nothing; indices name the rejected."""
    stamps = [NOW + index % 3 for index in range(len(values))]
    events, rejected = decode_batch(values, stamps, skew)
    alone = [decode(value, stamp, skew) for value, stamp in zip(values, stamps, strict=True)]
    assert events == [event for event in alone if not isinstance(event, Rejection)]
    assert rejected == [
        (index, event) for index, event in enumerate(alone) if isinstance(event, Rejection)
    ]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
FIELDS = {**IMPRESSION, **FEEDBACK, **SLATE}.keys()
FIELDS |= {"position", "value", "variant", "score", "fallback", "latency_ms"}


@given(st.binary() | st.none())
def test_any_bytes_are_an_event_or_a_rejection(value):
    assert reason(value) in REASONS


@given(
    st.sampled_from([IMPRESSION, FEEDBACK, SLATE]),
    st.dictionaries(st.sampled_from(sorted(FIELDS)), JSON_VALUES, max_size=2),
    st.integers(0, 300),
    st.binary(max_size=2),
)
def test_any_change_to_an_event_gives_an_event_in_bounds_or_a_rejection(
    event, changes, cut, splice
):
    whole = json.dumps({**event, **changes}).encode()
    for value in (whole, whole[:cut] + splice + whole[cut:]):
        decoded = decode(value, NOW, 60_000)
        if isinstance(decoded, Rejection):
            assert decoded.reason in REASONS
            continue
        assert type(decoded.ts) is int
        assert MIN_TS <= decoded.ts <= NOW + 60_000
        assert 1 <= len(decoded.user_id) <= 256
        if isinstance(decoded, SlateEvent):
            assert len(decoded.items) <= 1_000
            assert all(1 <= position <= 1_000 for position in decoded.positions.values())
        if isinstance(decoded, FeedbackEvent):
            assert type(decoded.value) is float
            assert abs(decoded.value) <= 10**12
            assert type(decoded.retract) is bool
        else:
            assert decoded.fallback in (None, True, False)
            assert decoded.latency_ms is None or 0 <= decoded.latency_ms <= 3_600_000


# --- The schema


def test_the_json_schema_names_every_kind_of_event_with_its_required_fields():
    schema = EventDecoder(DIMENSIONS, 0).json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    required = {
        kind: schema["$defs"][reference.rpartition("/")[2]]["required"]
        for kind, reference in schema["discriminator"]["mapping"].items()
    }
    assert required == {
        "impression": ["type", "ts", "user_id", "item_id"],
        "slate": ["type", "ts", "user_id", "request_id", "items"],
        "feedback": ["type", "ts", "user_id", "item_id", "feedback"],
    }
    assert json.loads(json.dumps(schema)) == schema


def test_the_json_schema_says_what_the_decoder_checks():
    properties = EventDecoder(DIMENSIONS, 0).json_schema()["$defs"]["FeedbackEvent"]["properties"]
    assert properties["user_id"]["maxLength"] == 256
    assert properties["feedback"]["maxLength"] == 64
    (bounds,) = [one for one in properties["value"]["anyOf"] if one["type"] == "number"]
    assert (bounds["minimum"], bounds["maximum"]) == (-(10**12), 10**12)
    assert properties["user_id"]["pattern"] == r"^[^\u0000-\u001f\u007f-\u009f]*$"
    assert [choice["type"] for choice in properties["ts"]["anyOf"]] == ["integer", "string"]
