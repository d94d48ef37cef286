"""Events of other trackers are recognised, and ours are not taken for theirs."""

import json

import pytest
import streams

from streameval.files.foreign_formats import FORMATS, recognise

EXAMPLES = {
    "Segment": {"type": "track", "messageId": "m1", "anonymousId": "a", "event": "Clicked"},
    "Snowplow": {"app_id": "shop", "collector_tstamp": "2026-01-05", "event_id": "e"},
    "Google Analytics 4": {"event_name": "view_item", "event_params": [], "user_pseudo_id": "u"},
    "Google Retail": {"eventType": "detail-page-view", "visitorId": "v"},
    "CloudEvents": {"specversion": "1.0", "id": "1", "source": "/shop", "type": "click"},
    "Amazon Personalize": {"sessionId": "s", "eventType": "click", "sentAt": 1},
    "Gorse": {"FeedbackType": "read", "UserId": "u", "ItemId": "i"},
    "Amplitude": {"event_type": "click", "user_id": "u", "event_properties": {}},
    "Mixpanel": {"event": "click", "properties": {"distinct_id": "u"}},
    "PostHog": {"event": "click", "distinct_id": "u", "properties": {}},
    "Debezium": {"before": None, "after": {}, "op": "c"},
    "Kafka Connect": {"schema": {}, "payload": {}},
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_format_is_recognised_by_name(name):
    assert name in recognise([b"no json", None, json.dumps(EXAMPLES[name]).encode()])


def test_every_row_of_the_table_is_reached():
    for name, fields in FORMATS:
        assert name in recognise([json.dumps(dict.fromkeys(fields)).encode()])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"\x00\x00\x00\x00\x07avro", "schema id"),
        (b"{\n", "several lines"),
        (b'[{"type": "impression"}]', "jq -c '.[]'"),
        (b"ts,user_id,item_id", "CSV or TSV"),
        (b"user\titem", "CSV or TSV"),
    ],
)
def test_what_is_no_json_object_is_recognised_by_its_shape(value, said):
    assert said in recognise([value])


def test_our_own_events_and_noise_are_recognised_as_nothing():
    _, events = streams.hostile(3)
    values = [streams.to_json(event) for event in events]
    noise = [b"nope", b"", None, b"\xff\xfe", b"3", b"null", b'{"type": "impression"}']
    assert recognise([*values, *noise]) is None
