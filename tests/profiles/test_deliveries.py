"""Drafts for messages as databases, queues and log shippers deliver them."""

import base64
import json
from datetime import UTC, datetime

import msgspec
import pytest
import trackers

from streameval.cli.map import draft_profile
from streameval.core.definition import Definition
from streameval.core.events import FeedbackEvent
from streameval.profiles import library
from streameval.profiles.typed_json import without_types

AT = 1_767_614_400_000
"""2026-01-05 12:00:00 UTC."""
ITEMS = ["sku1", "sku2", "sku3"]


def shown(number):
    """A list of three items, by an app that has no tracker."""
    items = [{"itemId": name, "position": place} for place, name in enumerate(ITEMS, 1)]
    who = {"userId": f"user-{number}", "requestId": f"req-{number}", "ts": AT}
    return {"event": "recs_shown", **who, "items": items}


def clicked(number):
    """A click on the second item of it."""
    who = {"userId": f"user-{number}", "requestId": f"req-{number}", "ts": AT}
    return {"event": "item_clicked", **who, "itemId": ITEMS[1]}


MESSAGES = [make(number) for number in range(6) for make in (shown, clicked)]


def text(message):
    return json.dumps(message)


def in_base64(message):
    return base64.b64encode(text(message).encode()).decode()


def mongodb(message):
    """The source connector's change events, in canonical Extended JSON."""

    def typed(value):
        if isinstance(value, dict):
            return {name: typed(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [typed(inner) for inner in value]
        return {"$numberInt": str(value)} if isinstance(value, int) else value

    document = typed(message) | {"ts": {"$date": {"$numberLong": str(AT)}}}
    return {
        "_id": {"_data": "826"},
        "operationType": "insert",
        "clusterTime": {"$timestamp": {"t": 1, "i": 1}},
        "fullDocument": {"_id": {"$oid": "65f0"}, **document},
        "ns": {"db": "shop", "coll": "events"},
        "documentKey": {"_id": {"$oid": "65f0"}},
    }


def dynamodb(message):
    """A record of DynamoDB Streams."""

    def typed(value):
        if isinstance(value, dict):
            return {"M": {name: typed(inner) for name, inner in value.items()}}
        if isinstance(value, list):
            return {"L": [typed(inner) for inner in value]}
        return {"N": str(value)} if isinstance(value, int) else {"S": value}

    return {
        "eventName": "INSERT",
        "eventSource": "aws:dynamodb",
        "dynamodb": {
            "ApproximateCreationDateTime": AT // 1000 + 3,
            "Keys": {"requestId": {"S": message["requestId"]}},
            "NewImage": typed(message)["M"],
            "SequenceNumber": "111",
        },
    }


def open_telemetry(message):
    """A batch of log records, as the collector's Kafka exporter writes them (otlp_json)."""

    def typed(value):
        if isinstance(value, list):
            return {"arrayValue": {"values": [typed(inner["itemId"]) for inner in value]}}
        return {"stringValue": value}

    names = {"event": "event.name", "userId": "user.id", "requestId": "request.id"}
    attributes = [
        {"key": names.get(name, name), "value": typed(value)}
        for name, value in message.items()
        if name != "ts"
    ]
    record = {"timeUnixNano": str(AT * 10**6), "severityText": "INFO", "attributes": attributes}
    scope = {"scope": {"name": "shop"}, "logRecords": [record]}
    service = {"key": "service.name", "value": {"stringValue": "shop"}}
    return {"resourceLogs": [{"resource": {"attributes": [service]}, "scopeLogs": [scope]}]}


def event_bridge(message):
    """The name of the event stands outside alone."""
    inner = {name: value for name, value in message.items() if name != "event"}
    return {
        "version": "0",
        "id": "e1",
        "detail-type": message["event"],
        "source": "shop",
        "time": "2026-01-05T12:00:03Z",
        "detail": inner,
    }


def jackson(message):
    """Java's JSON with times in parts, and the name of the event beside the message."""
    inner = {name: value for name, value in message.items() if name not in {"event", "ts"}}
    about = {"eventType": message["event"], "timestamp": [2026, 1, 5, 12, 0]}
    return {"metadata": about, "payload": inner}


def dot_net(message):
    """Times as .NET's serializers wrote them, and names as its properties have them."""
    written = {name[0].upper() + name[1:]: value for name, value in message.items()}
    return written | {"Ts": f"/Date({AT}+0100)/"}


DELIVERIES = {
    "MongoDB": mongodb,
    "DynamoDB": dynamodb,
    "OpenTelemetry": open_telemetry,
    "EventBridge": event_bridge,
    "Jackson": jackson,
    ".NET": dot_net,
    "Maxwell": lambda one: {"database": "shop", "type": "insert", "ts": AT // 1000, "data": one},
    "Debezium outbox": lambda one: {
        "before": None,
        "after": {"id": 1, "payload": text(one)},
        "op": "c",
        "ts_ms": AT + 3,
    },
    "Fluent Bit": lambda one: {"date": AT / 1000 + 3, "log": f"{text(one)}\n", "stream": "stdout"},
    "Logstash": lambda one: {"@timestamp": "2026-01-05T12:00:03Z", "message": text(one)},
    "Kinesis": lambda one: {"kinesis": {"partitionKey": "k", "data": in_base64(one)}},
    "Pub/Sub": lambda one: {"message": {"data": in_base64(one), "messageId": "1"}},
    "Kinesis to Lambda": lambda one: {
        "Records": [{"kinesis": {"partitionKey": "k", "data": in_base64(one)}, "eventID": "s:1"}]
    },
    "SQS to Lambda": lambda one: {"Records": [{"messageId": "1", "body": text(one)}]},
    "texts in a list": lambda one: {"sent": AT + 3, "events": [text(one)]},
}


def events_by_a_draft(lines, folder):
    file = folder / "lines.jsonl"
    file.write_text("".join(f"{text(line)}\n" for line in lines))
    profile = folder / "drafted.yaml"
    profile.write_text(draft_profile(file.read_bytes().splitlines()))
    decoder = library.decoder_of(Definition(dimensions=()), str(profile))
    events, rejected = decoder.decode_batch([text(line).encode() for line in lines])
    assert rejected == []
    return events


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_a_draft_finds_the_message_within(delivery, tmp_path):
    events = events_by_a_draft([*map(DELIVERIES[delivery], MESSAGES)], tmp_path)
    assert len(events) == len(MESSAGES)
    for number, event in enumerate(events):
        about = (f"user-{number // 2}", f"req-{number // 2}", AT)
        assert (event.user_id, event.request_id, event.ts) == about
        if number % 2:
            assert isinstance(event, FeedbackEvent)
            assert (event.feedback, event.item_id) == ("click", ITEMS[1])
        else:
            assert event.items == tuple(ITEMS)


@pytest.mark.parametrize("write", [text, in_base64, dict])
def test_a_list_within_an_envelope_is_several_messages(write, tmp_path):
    batches = [[*map(write, MESSAGES[at : at + 5])] for at in range(0, len(MESSAGES), 5)]
    events = events_by_a_draft([{"of": {"all": batch}} for batch in batches], tmp_path)
    assert [event.request_id for event in events] == [one["requestId"] for one in MESSAGES]


AROUND = {
    "a field of any name": lambda one: {"received": "2026-01-05T12:00:03Z", "id": "7", "what": one},
    "objects in objects": lambda one: {"topic": "t", "offset": 3, "it": {"n": 1, "was": one}},
    "a list of any name": lambda one: {"sent": "2026-01-05T12:00:03Z", "all": [one]},
    "texts of JSON in a list": lambda one: {"sent": "2026-01-05T12:00:03Z", "all": [text(one)]},
    "CloudEvents in Kafka Connect's JSON": lambda one: {
        "schema": {"type": "struct"},
        "payload": {"specversion": "1.0", "id": "1", "source": "/", "type": "t", "data": one},
    },
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("tracker", [*trackers.WRITERS, "personalize", "gorse", "ours"])
def test_a_known_tracker_is_found_within_any_envelope(tracker, around, tmp_path):
    stream = trackers.stream(1, count=20, users=5)
    write = getattr(trackers, tracker, lambda event: event)
    messages = [one for event in stream if (one := write(event))]
    profile = "native" if tracker == "ours" else tracker
    decoder = library.decoder_of(Definition(dimensions=()), profile)
    plain, rejected = decoder.decode_batch([text(one).encode() for one in messages])
    assert plain and not rejected
    assert events_by_a_draft([*map(AROUND[around], messages)], tmp_path) == plain


def test_what_stands_around_a_message_stays_where_it_says_more(tmp_path):
    """Of an outbox, the user and the name of the event are columns of the row."""

    def row(one):
        columns = {"event_type": one["event"], "user_id": one["userId"], "created_at": one["ts"]}
        rest = {name: one[name] for name in ("requestId", "items", "itemId") if name in one}
        return {**columns, "payload": rest}

    events = events_by_a_draft([*map(row, MESSAGES)], tmp_path)
    assert [event.user_id for event in events[::2]] == [f"user-{n}" for n in range(6)]


@pytest.mark.parametrize(
    ("typed", "plain"),
    [
        ({"string": "ann"}, "ann"),
        ({"a": {"long": 5}, "b": None}, {"a": 5, "b": None}),
        ({"shop.Item": {"id": {"int": 1}}}, {"id": 1}),
        ({"$numberDouble": "0.5"}, "0.5"),
        ({"$date": {"$numberLong": "5"}}, "5"),
        ({"M": {"a": {"NULL": True}, "b": {"BOOL": False}}}, {"a": None, "b": False}),
        ({"c": {"SS": ["x"]}, "d": {"L": [{"N": "1"}]}}, {"c": ["x"], "d": ["1"]}),
        ({"arrayValue": {}}, []),
        ({"kvlistValue": {"values": [{"key": "a", "value": {"intValue": "5"}}]}}, {"a": "5"}),
        # Fields that have the names of types, and attributes of another kind.
        ({"S": 3}, {"S": 3}),
        ({"M": "x", "L": "y"}, {"M": "x", "L": "y"}),
        ([{"key": "a", "value": 5}], [{"key": "a", "value": 5}]),
    ],
)
def test_types_are_taken_off_and_nothing_else_is(typed, plain):
    assert without_types(typed) == plain


NOTATIONS = {
    "ms": lambda at: int(at.timestamp() * 1000),
    "seconds, with a fraction": lambda at: f"{at.timestamp():.6f}",
    "Firestore": lambda at: {"_seconds": int(at.timestamp()), "_nanoseconds": 0},
    "Protobuf": lambda at: {"seconds": str(int(at.timestamp())), "nanos": 0},
    "Java, with a zone": lambda at: f"{at:%Y-%m-%dT%H:%M:%S}Z[UTC]",
    "Java's Date": lambda at: f"{at:%a %b %d %H:%M:%S} UTC {at.year}",
    "RFC 2822": lambda at: f"{at:%a, %d %b %Y %H:%M:%S} +0000",
    "HTTP": lambda at: f"{at:%a, %d %b %Y %H:%M:%S} GMT",
    "logs of Apache": lambda at: f"{at:%d/%b/%Y:%H:%M:%S} +0000",
    "Oracle": lambda at: f"{at:%d-%b-%y %I.%M.%S}.000000 {at:%p}".upper(),
    "month first": lambda at: f"{at.month}/{at.day}/{at.year} {at:%I:%M:%S %p}",
    "day first": lambda at: f"{at:%d/%m/%Y %H:%M:%S}",
    "day first, dots": lambda at: f"{at:%d.%m.%Y %H:%M:%S}",
    "slashes": lambda at: f"{at:%Y/%m/%d %H:%M:%S}",
    "digits": lambda at: f"{at:%Y%m%d%H%M%S}",
    "a number of digits": lambda at: int(f"{at:%Y%m%d%H%M%S}"),
}


@pytest.mark.parametrize("notation", NOTATIONS)
def test_a_draft_reads_times_in_other_notations(notation, tmp_path):
    """Of two weeks some days tell whether the day or the month stands first."""
    times = [datetime(2026, 1, day, 15, 4, 5, tzinfo=UTC) for day in range(5, 20)]
    lines = [
        make(n) | {"ts": NOTATIONS[notation](at)}
        for n, at in enumerate(times)
        for make in (shown, clicked)
    ]
    events = events_by_a_draft(lines, tmp_path)
    assert [event.ts for event in events[::2]] == [at.timestamp() * 1000 for at in times]


def test_a_date_and_a_time_of_day_in_two_fields_are_one_time(tmp_path):
    lines = [{**one, "date": "2026-01-05", "time": "12:00:00"} for one in MESSAGES]
    lines = [{name: value for name, value in one.items() if name != "ts"} for one in lines]
    order = {"event": "order_completed", "userId": "user-0", "orderId": "o1"}
    order |= {"date": "2026-01-05", "time": "12:00:00", "products": [{"productId": "sku1"}]}
    events = events_by_a_draft([*lines, order], tmp_path)
    assert {event.ts for event in events} == {AT}
    assert events[-1].feedback == "purchase"


def test_columns_of_wal2json_are_an_object(tmp_path):
    def row(one):
        values = {name: text(one[name]) if name == "items" else one[name] for name in one}
        columns = [{"name": name, "type": "text", "value": each} for name, each in values.items()]
        return {"action": "I", "schema": "public", "table": "events", "columns": columns}

    events = events_by_a_draft([*map(row, MESSAGES)], tmp_path)
    assert [event.user_id for event in events[::2]] == [f"user-{n}" for n in range(6)]
    assert events[0].items == tuple(ITEMS)


def test_a_record_may_hold_several_events_as_lines():
    """As log shippers write batches. One line that is none rejects them all, with its reason."""
    decoder = library.decoder_of(Definition(dimensions=()), "native")
    slate = {"type": "slate", "ts": AT, "user_id": "ann", "request_id": "r1", "items": ITEMS}
    liked = {"type": "feedback", "ts": AT, "user_id": "ann", "item_id": "sku1", "feedback": "click"}
    lines = f"{text(slate)}\r\n\n{text(liked)}\n".encode()
    pretty = json.dumps(slate, indent=1).encode()
    cut_off = lines[:-4]
    decoded = decoder.decode_records([lines, pretty, cut_off])
    assert [event.user_id for event in decoded.events] == ["ann"] * 3
    assert decoded.records == [0, 0, 1]
    ((at, rejection),) = decoded.rejected
    assert (at, rejection.reason) == (2, "malformed")
    assert "several JSON values in one record" in rejection.detail


def test_messagepack_is_read_as_json_would_be(tmp_path):
    """Bytes are texts, and timestamps ms. What is no MessagePack is told from it."""
    profile = tmp_path / "packed.yaml"
    profile.write_text(
        "format: messagepack\nrules:\n  - when: {event: item_clicked}\n    feedback:\n"
        "      {ts: {from: at, unit: ms}, user_id: who, item_id: item, kind: {const: click}}\n"
    )
    decoder = library.decoder_of(Definition(dimensions=()), str(profile))
    at = datetime.fromtimestamp(AT / 1000, UTC)
    clicked = {"event": "item_clicked", "at": at, "who": b"ann", "item": 7}
    good = msgspec.msgpack.encode(clicked)
    odd = msgspec.msgpack.encode(clicked | {"who": "a\x07nn"})
    decoded = decoder.decode_records([good, odd, good[:-1], text(MESSAGES[1]).encode()])
    (event,) = decoded.events
    assert (event.ts, event.user_id, event.item_id) == (AT, "ann", "7")
    details = [rejection.detail for _, rejection in decoded.rejected]
    assert "Control character" in details[0]
    assert "no MessagePack" in details[1]
    assert "leave out `format: messagepack`" in details[2]
