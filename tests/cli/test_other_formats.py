"""Events in another format than JSON, halves of surrogate pairs, and names like ours."""

import itertools
import json
import random

import msgspec
import pytest
from typer.testing import CliRunner

from streameval.cli.app import app
from streameval.cli.diagnosis import judge_records
from streameval.config.settings import Settings
from streameval.core.definition import Definition, Positive
from streameval.core.events import EventDecoder, FeedbackEvent, Rejection, SlateEvent
from streameval.kafka.admin import Sampled

DEFINITION = Definition()
TS = 1_700_000_000_000
IMPRESSION = {"type": "impression", "ts": TS, "user_id": "u", "item_id": "a"}
SLATE = {"type": "slate", "ts": TS, "user_id": "u", "request_id": "r", "items": ["a", "b"]}
FEEDBACK = {"type": "feedback", "ts": TS, "user_id": "u", "item_id": "a", "feedback": "click"}


class MessagePackDecoder(EventDecoder):
    """Events as MessagePack."""

    def parse(self, value):
        return msgspec.msgpack.decode(value)


def decoded(decoder, fields, write):
    return decoder.decode(write(fields))


GOOD = [
    IMPRESSION | {"variant": "B", "position": 3, "score": 0.25, "request_id": "r"},
    IMPRESSION | {"ts": "2026-01-05T12:00:00.250Z", "latency_ms": 12},
    SLATE | {"items": [{"item_id": "a", "position": 2}, "b"], "fallback": True, "more": [1]},
    SLATE | {"items": []},
    FEEDBACK | {"value": None, "retract": None},
    FEEDBACK | {"value": 2.5, "item_id": "ü\u2028"},
]
BAD = [
    *(IMPRESSION | {"user_id": name} for name in ("", "a\nb", "\x7f", "x" * 257, 5, None)),
    *(IMPRESSION | {"ts": ts} for ts in (5, "yesterday", "2026-01-05T12:00:00", 1.5, None)),
    *(IMPRESSION | {"variant": name} for name in ("__all__", "", "a\x85")),
    *(IMPRESSION | {"position": rank} for rank in (0, 1_001, 1.5, True)),
    *(SLATE | {"items": items} for items in (["a", "a"], [{"item_id": "a"}, "a"], "ab", [1])),
    *(FEEDBACK | more for more in ({"value": 1e13}, {"retract": 1}, {"feedback": "a\tb"})),
    {"type": "click"},
    {},
    [],
    "text",
    5,
]


@pytest.mark.parametrize("fields", [*GOOD, *BAD], ids=repr)
def test_another_format_is_judged_as_json_is(fields):
    plain = EventDecoder.of(DEFINITION).decode(json.dumps(fields).encode())
    other = MessagePackDecoder.of(DEFINITION).decode(msgspec.msgpack.encode(fields))
    if isinstance(plain, Rejection):
        assert (other.reason, plain.reason) == ("invalid", "invalid")
    else:
        assert other == plain


def test_a_value_that_cannot_be_parsed_is_malformed_and_others_go_on():
    decoder = MessagePackDecoder.of(DEFINITION)
    good = msgspec.msgpack.encode(IMPRESSION)
    values = [good, None, b"", b"\xc1", good[:-1], good + b"x", b"\x80" * 2_000_000, good]
    events, rejected = decoder.decode_batch(values)
    assert len(events) == 2
    reasons = ["malformed"] * 5 + ["too_large"]
    assert [(at, each.reason) for at, each in rejected] == list(enumerate(reasons, 1))


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("field", ["score", "propensity", "latency_ms"])
def test_numbers_that_json_could_not_hold_are_invalid(number, field):
    decoder = MessagePackDecoder.of(DEFINITION)
    assert decoder.decode(msgspec.msgpack.encode(IMPRESSION | {field: number})).reason == "invalid"
    if field != "latency_ms":
        slate = SLATE | {"items": [{"item_id": "a", field: number}]}
        assert decoder.decode(msgspec.msgpack.encode(slate)).reason == "invalid"


def test_a_decoder_may_return_texts_that_are_no_utf_8():
    class Odd(EventDecoder):
        def parse(self, value):
            return IMPRESSION | {"user_id": value.decode(errors="surrogateescape")}

    assert Odd.of(DEFINITION).decode(b"\xff").reason == "invalid"
    assert Odd.of(DEFINITION).decode(b"u").user_id == "u"


def with_title(text, fields=IMPRESSION):
    """An event whose ignored field `title` is `text`, as it stands in JSON."""
    return json.dumps(fields | {"title": 0}).replace('"title": 0', f'"title": {text}').encode()


@pytest.mark.parametrize(
    "text",
    [
        r'"cut \ud83d"',
        r'"\uDE00 low"',
        r'"\ud83d\ud83d\ude00"',
        r'"\ude00\ud83d"',
        r'{"deep": ["\ud800"]}',
        r'{"\ud83d": 1}',
        r'"\\\ud83d"',
        r'"\ud83dx\ud83d"',
    ],
)
def test_half_a_surrogate_pair_where_nobody_reads_does_no_harm(text):
    for fields in (IMPRESSION, SLATE, FEEDBACK):
        found = EventDecoder.of(DEFINITION).decode(with_title(text, fields))
        assert found == EventDecoder.of(DEFINITION).decode(json.dumps(fields).encode())


@pytest.mark.parametrize("field", ["user_id", "item_id", "request_id", "variant"])
def test_half_a_surrogate_pair_in_an_id_or_a_label_is_invalid(field):
    for half in (r"\ud83d", r"\ude00", r"x\uD800y"):
        value = json.dumps(IMPRESSION | {field: "HERE"}).replace("HERE", half).encode()
        rejected = EventDecoder.of(DEFINITION).decode(value)
        assert rejected.reason == "invalid"
        assert "surrogate" in rejected.detail


def test_pairs_and_escaped_backslashes_stay_as_they_are():
    value = json.dumps(IMPRESSION | {"user_id": "HERE"}).replace("HERE", r"\\ud83d\ud83d\ude00")
    assert EventDecoder.of(DEFINITION).decode(value.encode()).user_id == "\\ud83d\U0001f600"


def test_what_is_no_json_besides_stays_malformed():
    for value in (with_title(r'"\ud83d'), with_title(r'"\ud83d" x'), with_title(r'"\ud8zz"')):
        assert EventDecoder.of(DEFINITION).decode(value).reason == "malformed"


# --- Names like ours ----------------------------------------------------------------------------


def told(*events, definition=DEFINITION, kind=EventDecoder, write=json.dumps):
    decoder = kind.of(definition)
    values = [write(event) for event in events]
    decoder.decode_batch([value.encode() if isinstance(value, str) else value for value in values])
    return list(decoder.near_misses.fresh())


@pytest.mark.parametrize(
    ("fields", "name", "meant"),
    [
        (SLATE | {"items": [{"item_id": "a", "rank": 2}, "b"]}, "rank", "position"),
        (IMPRESSION | {"rank": 2}, "rank", "position"),
        (IMPRESSION | {"pos": 2}, "pos", "position"),
        (IMPRESSION | {"index": 2}, "index", "position"),
        (IMPRESSION | {"Position": 2}, "Position", "position"),
        (IMPRESSION | {"positon": 2}, "positon", "position"),
        (IMPRESSION | {"itemId": "a"}, "itemId", "item_id"),
        (IMPRESSION | {"user-id": "a"}, "user-id", "user_id"),
        (IMPRESSION | {"userId": "a"}, "userId", "user_id"),
        (IMPRESSION | {"timestamp": 5}, "timestamp", "ts"),
        (IMPRESSION | {"requestId": "r"}, "requestId", "request_id"),
        (IMPRESSION | {"REQUEST_ID": "r"}, "REQUEST_ID", "request_id"),
        (IMPRESSION | {"Variant": "B"}, "Variant", "variant"),
        (IMPRESSION | {"latency": 5}, "latency", "latency_ms"),
        (FEEDBACK | {"Value": 5}, "Value", "value"),
        ({"type": "slate", "ts": TS, "uid": "u", "itemIds": ["a"]}, "itemIds", "items"),
        (FEEDBACK | {"feedback": "Click"}, "Click", "click"),
        (FEEDBACK | {"feedback": "clicks"}, "clicks", "click"),
        (FEEDBACK | {"type": "Click"}, "Click", "click"),
    ],
    ids=repr,
)
def test_a_name_like_ours_is_told_once_with_its_count(fields, name, meant):
    lines = [line for line in told(fields, IMPRESSION, fields) if repr(name) in line]
    assert len(lines) == 1
    assert repr(meant) in lines[0]
    assert "in 2 of 3 events" in lines[0]


def test_names_of_ours_and_other_names_are_not_told():
    others = {"title": "x", "session": 1, "device": "d", "price": 3, "page": 1, "country": "de"}
    full = {"position": 1, "score": 1, "propensity": 0.5, "fallback": False, "latency_ms": 5}
    events = [
        IMPRESSION | others | full | {"variant": "A", "surface": "s", "request_id": "r"},
        SLATE | others | {"items": [{"item_id": "a", **others}, "b"], "variant": "A"},
        FEEDBACK | others | {"value": 3, "retract": False, "feedback": "dwell"},
        SLATE | {"time": 5, "user": {"name": 1}, "results": 7},
    ]
    assert told(*events) == []


def test_dimensions_of_ones_own_have_near_misses_too():
    definition = Definition(dimensions=("platform",))
    (line,) = told(IMPRESSION | {"Platform": "ios", "variant": "A"}, definition=definition)
    assert "'platform'" in line


def test_what_is_configured_and_absent_is_told_after_a_thousand_events():
    """Where events have other kinds or fields, of which one may be meant."""
    definition = Definition(dimensions=("country",), positives=(Positive("purchase"),))
    shown, bought = IMPRESSION | {"geo": "de"}, FEEDBACK | {"feedback": "buy"}
    assert told(*[shown, bought] * 499, definition=definition) == []
    kinds, fields = told(*[shown, bought] * 500, definition=definition)
    assert "`positives` has 'purchase', and none of 500 feedback events" in kinds
    assert "further kinds are 'buy'" in kinds
    assert "has the field 'country'; further fields are 'geo'" in fields
    assert (
        told(*[IMPRESSION, FEEDBACK | {"feedback": "purchase"}] * 500, definition=definition) == []
    )
    few = [shown | {"country": "de"}, FEEDBACK | {"feedback": "purchase"}]
    assert told(*few, *[shown, bought] * 500, definition=definition) == []


def test_names_of_any_type_and_length_are_looked_at_within_bounds():
    """Other formats have names that are no texts; a name may be as long as an event."""
    definition = Definition(dimensions=("country",))
    odd = IMPRESSION | {7: "seven", b"raw": "x", "n" * 50_000: "long"}
    (line,) = told(
        *[odd] * 1_000,
        definition=definition,
        kind=MessagePackDecoder,
        write=msgspec.msgpack.encode,
    )
    assert "'country'" in line
    assert len(line) < 400


def test_other_formats_and_odd_values_are_looked_at():
    fields = IMPRESSION | {"rank": 1}
    assert told(fields, kind=MessagePackDecoder, write=msgspec.msgpack.encode)
    assert told([], "text", 5, {"type": 5, "items": 5}, {"type": ["x"], "feedback": {}}) == []


def test_a_long_log_is_looked_at_in_samples_and_names_are_bounded():
    decoder = EventDecoder.of(DEFINITION)
    rng = random.Random(4)
    plain = json.dumps(IMPRESSION).encode()
    for _ in range(20):
        decoder.decode_batch([plain] * rng.randrange(200))
    decoder.decode_batch([json.dumps(IMPRESSION | {"rank": 1}).encode()] * 5_120)
    (line,) = decoder.near_misses.fresh()
    assert "in 10 of " in line
    assert list(decoder.near_misses.fresh()) == []
    many = map("".join, itertools.product("rR", "aA", "nN", "kK", "-_", "-_", "-_"))
    assert len(told(*(IMPRESSION | {name: 1} for name in many))) == 100, "of 128"


def replayed(tmp_path, *events, arguments=()):
    file = tmp_path / "events.jsonl"
    file.write_text("".join(json.dumps(event) + "\n" for event in events))
    return CliRunner().invoke(app, ["replay", str(file), *arguments])


def test_replay_tells_names_like_ours(tmp_path):
    done = replayed(tmp_path, SLATE | {"items": [{"item_id": "a", "rank": 2}, "b"]})
    assert done.exit_code == 0
    assert "the field 'rank' is not read, in 1 of 1 events looked at" in done.stderr


def test_a_replay_that_accepts_nothing_fails(tmp_path):
    done = replayed(tmp_path, {"type": "view"}, IMPRESSION | {"ts": 5}, [])
    assert done.exit_code == 1
    assert done.stderr.splitlines()[0] == "every line was rejected, 3 of 3 as invalid"
    accepted = replayed(tmp_path, {"type": "view"}, IMPRESSION)
    assert (accepted.exit_code, "another tracker" in accepted.stderr) == (0, False)
    assert replayed(tmp_path).exit_code == 0, "an empty file has nothing to reject"


def test_a_replay_of_events_of_others_says_how_to_map_them(tmp_path):
    done = replayed(tmp_path, {"evt": "view", "who": "ann"})
    assert done.exit_code == 1
    last = done.stderr.splitlines()[-1]
    assert last == "are they of another tracker? `streameval map FILE --init` drafts a profile"
    done = replayed(tmp_path, {"event": "view", "distinct_id": "ann"})
    said = "this looks like PostHog: `streameval map FILE --init` drafts a profile for it"
    assert done.stderr.splitlines()[-1].startswith(said)
    wrong = replayed(tmp_path, IMPRESSION | {"ts": 5})
    assert "another tracker" not in wrong.stderr


def test_doctor_tells_names_like_ours():
    value = json.dumps(FEEDBACK | {"feedback": "Click", "userId": "u"}).encode()
    findings = judge_records(Settings(kafka="b:1"), [Sampled(0, TS, b"u", value)], TS)
    said = [finding.message for finding in findings if finding.check == "fields"]
    assert len(said) == 2
    assert all(finding.level == "warn" for finding in findings if finding.check == "fields")


def test_events_of_another_format_are_of_the_same_types():
    decoder = MessagePackDecoder.of(DEFINITION)
    events, _ = decoder.decode_batch([msgspec.msgpack.encode(each) for each in (SLATE, FEEDBACK)])
    assert isinstance(events[0], SlateEvent)
    assert isinstance(events[1], FeedbackEvent)
