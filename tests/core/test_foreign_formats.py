"""Events of other trackers and encodings are recognised, and ours are not taken for theirs."""

import gzip
import json
from collections import Counter

import pytest
import streams

from streameval.core.foreign_formats import FORMATS, format_of, sentence_on

EXAMPLES = {
    "Segment": {"type": "track", "messageId": "m1", "anonymousId": "a", "event": "Clicked"},
    "Snowplow": {"app_id": "shop", "collector_tstamp": "2026-01-05", "event_id": "e"},
    "Snowplow (tracker payload)": {
        "schema": "iglu:com.snowplowanalytics.snowplow/payload_data/jsonschema/1-0-4",
        "data": [{"e": "ue"}],
    },
    "Google Analytics 4": {"event_name": "view_item", "event_params": [], "user_pseudo_id": "u"},
    "Google Analytics 4 (Measurement Protocol)": {
        "client_id": "7.9",
        "timestamp_micros": "1767614400000000",
        "events": [{"name": "select_item", "params": {"items": [{"item_id": "i"}]}}],
    },
    "Google Retail": {"eventType": "detail-page-view", "visitorId": "v"},
    "CloudEvents": {"specversion": "1.0", "id": "1", "source": "/shop", "type": "click"},
    "Algolia Insights": {
        "eventType": "click",
        "eventName": "Product Clicked",
        "index": "products",
        "userToken": "u",
        "queryID": "q",
        "objectIDs": ["i"],
        "positions": [3],
    },
    "an Algolia search response": {"hits": [{"objectID": "i"}], "nbHits": 1, "queryID": "q"},
    "OpenSearch UBI (query)": {
        "application": "shop",
        "query_id": "q",
        "client_id": "c",
        "user_query": "shoes",
        "query_response_hit_ids": ["i"],
        "timestamp": "2026-01-05T12:00:00.000Z",
    },
    "OpenSearch UBI (event)": {
        "application": "shop",
        "action_name": "item_click",
        "query_id": "q",
        "client_id": "c",
        "timestamp": "2026-01-05T12:00:00.000Z",
        "event_attributes": {"object": {"object_id": "i"}, "position": {"ordinal": 3}},
    },
    "Metarank (ranking)": {
        "event": "ranking",
        "id": "r",
        "timestamp": "1767614400000",
        "user": "u",
        "session": "s",
        "fields": [],
        "items": [{"id": "i"}],
    },
    "Metarank (interaction)": {
        "event": "interaction",
        "id": "x",
        "ranking": "r",
        "timestamp": "1767614400000",
        "user": "u",
        "type": "click",
        "item": "i",
    },
    "Recombee": {"userId": "u", "itemId": "i", "timestamp": 1767614400, "recommId": "r"},
    "Amazon Personalize (PutEvents)": {
        "trackingId": "t",
        "sessionId": "s",
        "userId": "u",
        "eventList": [{"eventType": "click", "sentAt": 1767614400, "itemId": "i"}],
    },
    "Amazon Personalize": {"sessionId": "s", "eventType": "click", "sentAt": 1},
    "recsys.app (exposure)": {
        "request_id": "r",
        "user_id": "u",
        "ts": "2026-01-05T12:00:00Z",
        "items": [{"item_id": "i", "rank": 1}],
        "context": {"surface": "home"},
    },
    "recsys.app (outcome)": {
        "request_id": "r",
        "user_id": "u",
        "item_id": "i",
        "event_type": "click",
        "ts": "2026-01-05T12:00:00Z",
    },
    "Gorse": {"FeedbackType": "read", "UserId": "u", "ItemId": "i"},
    "Amplitude": {"event_type": "click", "user_id": "u", "event_properties": {}},
    "Mixpanel": {"event": "click", "properties": {"distinct_id": "u"}},
    "PostHog": {"event": "click", "distinct_id": "u", "properties": {}},
    "Debezium": {"before": None, "after": {}, "op": "c"},
    "Kafka Connect": {"schema": {}, "payload": {}},
    "kcat -J": {"topic": "t", "partition": 0, "offset": 1, "key": "u", "payload": "{}"},
    "EventBridge": {"version": "0", "detail-type": "x", "source": "s", "detail": {}},
    "SNS": {"Type": "Notification", "TopicArn": "arn:aws:sns", "Message": "{}"},
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_format_is_recognised_by_name(name):
    assert name in str(format_of(json.dumps(EXAMPLES[name]).encode()))


def test_every_row_of_the_table_is_reached():
    for known, fields, values, part in FORMATS:
        batch = {"events": [{part: "x"}]} if part else {}
        example = dict.fromkeys(fields) | dict(values) | batch
        assert known.name in str(format_of(json.dumps(example).encode()))


@pytest.mark.parametrize(
    ("batch", "name"),
    [
        ({"batch": [EXAMPLES["Segment"]], "sentAt": "t"}, "Segment"),
        ({"events": [EXAMPLES["Algolia Insights"]]}, "Algolia Insights"),
        (
            {"requests": [{"method": "POST", "path": "/detailviews/", "params": {}}]},
            "map it by the profile recombee",
        ),
    ],
)
def test_a_batch_has_the_format_of_its_first_message(batch, name):
    assert name in str(format_of(json.dumps(batch).encode()))
    for other in ({}, {"events": []}, {"events": [1]}, {"events": {}}, {"requests": [batch]}):
        assert format_of(json.dumps(other).encode()) is None


def test_a_batch_of_another_tracker_is_not_of_the_measurement_protocol():
    batch = {"client_id": "c", "events": [{"action": "click", "tile_id": 7}]}
    assert format_of(json.dumps(batch).encode()) is None


SNOWPLOW = "shop\tweb\t2026-01-05 12:00:00.123\t2026-01-05 12:00:00.000" + "\t" * 127


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"\x00\x00\x00\x00\x07avro", "Avro or Protobuf with a schema id"),
        (b'\x00\x00\x00\x00\x07{"type": "impression"}', "JSON Schema with a schema id"),
        (b"\x03\0" + bytes(16) + b'{"type": "impression"}', "JSON Schema in AWS Glue's frame"),
        (b"\x03\x05" + bytes(16) + b"\x78\x9c", "Avro or JSON in AWS Glue's frame"),
        (b"Obj\x01\x04", "an Avro file"),
        (gzip.compress(b'{"type": "impression"}', mtime=0), "gzip"),
        (b"\x28\xb5\x2f\xfd\x00", "zstd"),
        ('{"type": "impression"}'.encode("utf-16"), "UTF-16"),
        (b'\xef\xbb\xbf{"type": "impression"}', "byte order mark (BOM)"),
        (b"\x83\xa4type", "MessagePack"),
        (b"{\n", "several lines"),
        (b'[{"type": "impression"}]', "jq -c '.[]'"),
        (b'"{\\"type\\": \\"impression\\"}"', "JSON encoded twice"),
        (b"{'type': 'impression'}", "json.dumps"),
        (b"ts,user_id,item_id", "CSV or TSV"),
        (b"1767614400000,u,i", "CSV or TSV"),
        (b"user\titem", "CSV or TSV"),
        (b'u,i,"{""x"": 1}"', "CSV or TSV"),
        (b'u1\t{"type": "impression"}', "JSON after other text"),
        (b'CreateTime:1767614400000\tu\t{ "type": "impression"}', "JSON after other text"),
        (b'2026-01-05 12:00:00,123 INFO a.b - {"type": "impression"}', "JSON after other text"),
        (b'[2026-01-05] INFO: {"type": "impression"}', "JSON after other text"),
        (b'[1, {"type": "impression"}]', "jq -c '.[]'"),
        (SNOWPLOW.encode(), "Snowplow (TSV)"),
        (SNOWPLOW.removeprefix("shop").encode(), "Snowplow (TSV)"),
    ],
)
def test_what_is_no_json_object_is_recognised_by_its_bytes(value, said):
    assert said in str(format_of(value))


def test_our_own_events_and_noise_are_recognised_as_nothing():
    _, events = streams.hostile(3)
    values = [streams.to_json(event) for event in events]
    ours = {"type": "slate", "request_id": "r", "items": [], "context": {}, "event": "ranking"}
    noise = [b"nope", b"", None, b"\xff\xfe", b"3", b"null", b'{"type": "impression"}']
    for value in [*values, *noise, json.dumps(ours).encode()]:
        assert format_of(value) is None


def test_several_formats_are_each_named_and_counted():
    segment, algolia = (
        json.dumps(EXAMPLES[name]).encode() for name in ("Segment", "Algolia Insights")
    )
    one = sentence_on(Counter(map(format_of, [segment] * 3 + [b"nope"])))
    assert one.startswith(
        "3 of them look like Segment or RudderStack: map it by the profile segment"
    )
    both = sentence_on(Counter(map(format_of, [segment] * 3 + [algolia, b"nope"])))
    assert both.startswith(
        "they look like several formats: 3 Segment or RudderStack, 1 Algolia Insights: map it"
    )
    assert sentence_on(Counter(map(format_of, [b"nope", None]))) == ""
