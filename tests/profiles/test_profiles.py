"""Messages of other trackers, in the form that their documentation gives, as events of streameval.

Beside each format stands the page of its documentation. What the events must be is written out by
hand.
"""

import base64
import json
import random
from datetime import UTC, datetime

import pytest
import trackers

from streameval.base.errors import ConfigError
from streameval.base.in_memory import InMemory
from streameval.base.limits import MAX_TS, MIN_TS
from streameval.core.definition import Definition, Positive
from streameval.core.events import EventDecoder, FeedbackEvent, Rejection
from streameval.core.replay import replay
from streameval.profiles import library
from streameval.profiles.cells import IS_DIGITS, CellError, converter, short_way
from streameval.profiles.decoder import ProfileDecoder
from streameval.profiles.envelopes import COLUMNS
from streameval.profiles.frames import RecordValue
from streameval.profiles.language import Profile, Take
from streameval.profiles.mapping import Mapping
from streameval.profiles.message_kinds import kind_in_short

DEFINITION = Definition(dimensions=("variant",))
NOON = "2026-01-05T12:00:00.123Z"
MS = 1767614400123
SECONDS = MS // 1000


def decoder(profile):
    if isinstance(profile, str):
        return library.decoder_of(DEFINITION, profile)
    return ProfileDecoder.by(DEFINITION, "mine", Mapping(Profile.model_validate(profile)))


def mapped(profile, *messages):
    """The events of messages, as plain data; fails for a rejected one."""
    values = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in messages]
    decoded, fields = decoder(profile).take(values)
    assert decoded.rejected == []
    for event, one in zip(decoded.events, fields, strict=True):
        assert event.ts in {MS, SECONDS * 1000}
        assert event.user_id == one.fields["user_id"]
    return [{key: value for key, value in one.fields.items() if key != "ts"} for one in fields]


def refused(profile, message):
    """Why a message is rejected."""
    value = message if isinstance(message, bytes) else json.dumps(message).encode()
    found = decoder(profile).decode(value)
    assert isinstance(found, Rejection), found
    return found.detail


def shown(request, *items, user="u", **more):
    return {"type": "slate", "user_id": user, "request_id": request, "items": list(items), **more}


def at(item, position):
    return {"item_id": item, "position": position}


def did(kind, item, request=None, user="u", **more):
    named = {} if request is None else {"request_id": request}
    return {"type": "feedback", "user_id": user, "item_id": item, "feedback": kind, **named, **more}


# ------------------------------------------------------------------------------------- Segment

# https://segment.com/docs/connections/spec/ecommerce/v2/
VIEWED = {
    "type": "track",
    "event": "Product List Viewed",
    "messageId": "m1",
    "userId": "u",
    "anonymousId": "a",
    "timestamp": NOON,
    "originalTimestamp": "2025-01-01T00:00:00Z",
    "properties": {
        "list_id": "hot_deals_1",
        "category": "Deals",
        "products": [
            {"product_id": "p1", "sku": "s1", "price": 19, "position": 1},
            {"product_id": 507, "sku": "s2", "price": 17, "position": 2},
        ],
    },
}
CLICKED = {
    "type": "track",
    "event": "Product Clicked",
    "messageId": "m2",
    "anonymousId": "a",
    "userId": None,
    "timestamp": NOON,
    "properties": {"product_id": "p1", "position": 1},
}


def test_segment():
    ordered = CLICKED | {
        "event": "Order Completed",
        "userId": "u",
        "properties": {
            "order_id": "o",
            "request_id": "r",
            "products": [
                {"product_id": "p1", "price": "19.5", "quantity": 2},
                {"product_id": "p2", "price": 3},
                {"product_id": "p3"},
            ],
        },
    }
    own = {**VIEWED, "properties": VIEWED["properties"] | {"request_id": "r", "variant": "B"}}
    added = CLICKED | {"event": "Product Added"}
    assert mapped("segment", VIEWED, own, CLICKED, added, ordered) == [
        shown("m1", at("p1", 1), at("507", 2)),
        shown("r", at("p1", 1), at("507", 2), variant="B"),
        did("click", "p1", user="a"),
        did("cart", "p1", user="a"),
        did("purchase", "p1", "r", value=39.0),
        did("purchase", "p2", "r", value=3),
        did("purchase", "p3", "r"),
    ]
    batch = {"batch": [VIEWED, CLICKED], "sentAt": NOON}
    assert len(mapped("segment", batch)) == 2
    filtered = VIEWED | {"event": "Product List Filtered", "messageId": "m2"}
    assert mapped("segment", filtered) == [shown("m2", at("p1", 1), at("507", 2))]


# ------------------------------------------------------------------------------------- Snowplow

# https://docs.snowplow.io/docs/events/ootb-data/ecommerce-events/
ACTION = "iglu:com.snowplowanalytics.snowplow.ecommerce/snowplow_ecommerce_action/jsonschema/1-0-2"
PRODUCT = "iglu:com.snowplowanalytics.snowplow.ecommerce/product/jsonschema/1-0-0"
PAGE = "iglu:com.snowplowanalytics.snowplow/web_page/jsonschema/1-0-0"


def self_describing(schema, data):
    return {"schema": schema, "data": data}


def snowplow_parts(kind, *products):
    event = self_describing(
        "iglu:com.snowplowanalytics.snowplow/unstruct_event/jsonschema/1-0-0",
        self_describing(ACTION, {"type": kind}),
    )
    entities = [self_describing(PRODUCT, one) for one in products]
    contexts = self_describing(
        "iglu:com.snowplowanalytics.snowplow/contexts/jsonschema/1-0-1",
        [*entities, self_describing(PAGE, {"id": "page"})],
    )
    return event, contexts


PRODUCTS = ({"id": "p1", "price": 10, "position": 0}, {"id": "p2", "price": 4, "position": 1})
LISTED = shown("page", at("p1", 1), at("p2", 2), user="d")


def test_snowplow_as_tsv_of_131_columns():
    event, contexts = snowplow_parts("list_view", *PRODUCTS)
    cells = dict.fromkeys(COLUMNS, "") | {
        "app_id": "shop",
        "event_id": "e1",
        "domain_userid": "d",
        "derived_tstamp": "2026-01-05 12:00:00.123",
        "unstruct_event": json.dumps(event),
        "contexts": json.dumps(contexts),
    }
    assert len(COLUMNS) == 131
    assert mapped("snowplow", "\t".join(cells.values()).encode()) == [LISTED]
    page = cells | {"unstruct_event": "", "page_url": "/"}
    lines = ["\t".join(one.values()).encode() for one in (cells, page)]
    assert kind_in_short(lines[0]) != kind_in_short(lines[1])


def test_snowplow_counts_from_0_or_1_as_the_list_does():
    name = "com_snowplowanalytics_snowplow_ecommerce"
    for first in (0, 1):
        products = [{"id": "p1", "position": first}, {"id": "p2", "position": first + 1}]
        event = {
            "event_id": "e1",
            "domain_userid": "d",
            "derived_tstamp": NOON,
            f"unstruct_event_{name}_snowplow_ecommerce_action_1": {"type": "list_view"},
            f"contexts_{name}_product_1": [*products, {"id": "p3"}],
            "contexts_com_snowplowanalytics_snowplow_web_page_1": [{"id": "page"}],
        }
        wanted = shown("page", at("p1", 1), at("p2", 2), "p3", user="d")
        assert mapped("snowplow", event) == [wanted]


def test_snowplow_as_json_of_an_analytics_sdk():
    name = "com_snowplowanalytics_snowplow_ecommerce"
    event = {
        "event_id": "e1",
        "user_id": None,
        "domain_userid": "d",
        "derived_tstamp": NOON,
        f"unstruct_event_{name}_snowplow_ecommerce_action_1": {"type": "list_view"},
        f"contexts_{name}_product_1": list(PRODUCTS),
        "contexts_com_snowplowanalytics_snowplow_web_page_1": [{"id": "page"}],
    }
    assert mapped("snowplow", event) == [LISTED]
    bought = event | {
        f"unstruct_event_{name}_snowplow_ecommerce_action_1": {"type": "transaction"},
        "user_id": "u",
    }
    assert mapped("snowplow", bought) == [
        did("purchase", "p1", value=10),
        did("purchase", "p2", value=4),
    ]


def test_snowplow_of_an_app_has_the_user_of_its_session_and_lists_of_a_screen():
    name = "com_snowplowanalytics_snowplow"
    event = {
        "platform": "mob",
        "event_id": "e1",
        "derived_tstamp": NOON,
        f"unstruct_event_{name}_ecommerce_snowplow_ecommerce_action_1": {"type": "list_view"},
        f"contexts_{name}_ecommerce_product_1": list(PRODUCTS),
        f"contexts_{name}_client_session_1": [{"userId": "d", "sessionId": "s"}],
        "contexts_com_snowplowanalytics_mobile_screen_1": [{"id": "page", "name": "home"}],
    }
    clicked = event | {
        f"unstruct_event_{name}_ecommerce_snowplow_ecommerce_action_1": {"type": "list_click"},
        f"contexts_{name}_ecommerce_product_1": [PRODUCTS[1]],
    }
    assert mapped("snowplow", event, clicked) == [LISTED, did("click", "p2", "page", user="d")]


@pytest.mark.parametrize("packed", [False, True])
def test_snowplow_as_a_payload_of_a_tracker(packed):
    event, contexts = snowplow_parts("list_click", PRODUCTS[1])
    part = {"e": "ue", "eid": "e2", "duid": "d", "dtm": str(MS)}
    if packed:
        for key, data in (("ue_px", event), ("cx", contexts)):
            text = base64.urlsafe_b64encode(json.dumps(data).encode()).decode()
            part[key] = text.rstrip("=")
    else:
        part |= {"ue_pr": json.dumps(event), "co": json.dumps(contexts)}
    schema = "iglu:com.snowplowanalytics.snowplow/payload_data/jsonschema/1-0-4"
    assert mapped("snowplow", self_describing(schema, [part])) == [
        did("click", "p2", "page", user="d")
    ]


# ------------------------------------------------------------------------------------- GA4


def test_ga4_export():
    """https://support.google.com/analytics/answer/7029846"""
    row = {
        "event_name": "view_item_list",
        "event_timestamp": f"{MS}000",
        "user_id": None,
        "user_pseudo_id": "7.9",
        "event_params": [
            {"key": "ga_session_id", "value": {"int_value": "5"}},
            {"key": "request_id", "value": {"string_value": "r", "int_value": None}},
        ],
        "items": [
            {"item_id": "SKU_1", "item_list_index": "0", "item_list_id": "related_products"},
            {"item_id": "SKU_2", "item_list_index": "1", "item_list_id": "related_products"},
        ],
    }
    alone = row | {"event_params": row["event_params"][:1]}
    chosen = row | {"event_name": "select_item", "items": row["items"][:1]}
    bought = alone | {
        "event_name": "purchase",
        "items": [{"item_id": "SKU_2", "price": 10.01, "quantity": "3"}],
    }
    impression = {"type": "impression", "user_id": "7.9"}
    assert mapped("ga4_export", row, alone, chosen, bought) == [
        shown("r", at("SKU_1", 1), at("SKU_2", 2), user="7.9"),
        impression | at("SKU_1", 1),
        impression | at("SKU_2", 2),
        did("click", "SKU_1", "r", user="7.9"),
        did("purchase", "SKU_2", user="7.9", value=10.01 * 3),
    ]


def test_ga4_exports_the_words_not_set_where_no_index_was_sent():
    items = [{"item_id": "a", "item_list_index": "(not set)"}, {"item_id": "b"}]
    row = {
        "event_name": "view_item_list",
        "event_timestamp": f"{MS}000",
        "user_pseudo_id": "7.9",
        "event_params": [{"key": "request_id", "value": {"string_value": "r"}}],
        "items": [*items, {"item_id": "c", "item_list_index": "2"}],
    }
    alone = row | {"event_params": [], "items": items[:1]}
    assert mapped("ga4_export", row, alone) == [
        shown("r", "a", "b", at("c", 3), user="7.9"),
        {"type": "impression", "user_id": "7.9", "item_id": "a"},
    ]
    for event in ("view_item_list", "select_item", "purchase"):
        nameless = row | {"event_name": event, "items": [{"item_id": "(not set)"}]}
        assert "`item_id`: item_id is (not set)" in refused("ga4_export", nameless)


@pytest.mark.parametrize("unit", ["s", "auto"])
def test_seconds_with_a_fraction_are_exact_to_the_millisecond(unit):
    read = converter("ts", Take.model_validate({"from": "t", "unit": unit}))
    chance = random.Random(3)
    for _ in range(2_000):
        ms = chance.randrange(MIN_TS, MAX_TS)
        assert read(ms / 1_000) == ms
        assert read(f"{ms // 1_000}.{ms % 1_000:03}") == ms
    for number in (float("inf"), float("nan")):
        with pytest.raises(CellError):
            read(number)
        with pytest.raises(CellError, match="a whole number is wanted"):
            converter("position", None)(number)


def test_a_text_that_stands_for_no_value_is_missing_where_one_must_be():
    user = {"from": "u", "absent": "undefined"}
    assert refused(with_fields(user_id=user), CLICK | {"u": "undefined"}).endswith(
        "rule c: `user_id`: u is undefined"
    )


def test_ga4_measurement_protocol():
    """https://developers.google.com/analytics/devguides/collection/protocol/ga4/reference/events"""
    items = [{"item_id": "SKU_1", "index": 0, "price": "10.5", "quantity": "2"}]
    request = {
        "client_id": "c.1",
        "timestamp_micros": f"{MS}000",
        "events": [
            {"name": "view_item_list", "params": {"items": items, "request_id": "r"}},
            {"name": "select_item", "params": {"items": items, "request_id": "r"}},
            {"name": "purchase", "params": {"items": items}},
            {"name": "page_view", "params": {}},
        ],
    }
    assert mapped("ga4_measurement", request) == [
        shown("r", at("SKU_1", 1), user="c.1"),
        did("click", "SKU_1", "r", user="c.1"),
        did("purchase", "SKU_1", user="c.1", value=21.0),
    ]


# ------------------------------------------------------------------------------------- search


def test_algolia():
    """https://www.algolia.com/doc/rest-api/insights/ and the response of a search"""
    response = {
        "hits": [{"objectID": "i20"}, {"objectID": "i21"}],
        "page": 2,
        "hitsPerPage": 10,
        "queryID": "q",
        "userToken": "u",
        "timestamp": MS,
    }
    event = {
        "eventType": "click",
        "eventName": "Product Clicked",
        "index": "products",
        "userToken": "u",
        "queryID": "q",
        "objectIDs": ["i20", "i21"],
        "positions": [21, 22],
        "timestamp": MS,
    }
    cart = event | {"eventType": "conversion", "eventSubtype": "addToCart", "objectIDs": ["i20"]}
    assert mapped("algolia", response, {"events": [event, cart]}) == [
        shown("q", at("i20", 21), at("i21", 22)),
        did("click", "i20", "q"),
        did("click", "i21", "q"),
        did("cart", "i20", "q"),
    ]
    assert mapped("algolia", response | {"page": 0})[0]["items"] == ["i20", "i21"]
    bought = event | {
        "eventType": "conversion",
        "eventSubtype": "purchase",
        "queryID": None,
        "objectData": [
            {"queryID": "q", "price": "2.50", "quantity": 2, "discount": "0.5"},
            {"queryID": "other", "price": 3},
        ],
    }
    assert mapped("algolia", bought) == [
        did("purchase", "i20", "q", value=5.0),
        did("purchase", "i21", "other", value=3),
    ]
    filtered = {**event, "filters": ["brand:apple"]}
    del filtered["objectIDs"]
    assert mapped("algolia", filtered, filtered | {"eventType": "conversion"}) == []
    assert "each: objectIDs has 2 values, and objectData has 1" in refused(
        "algolia", bought | {"objectData": [{}]}
    )


def test_parallel_lists_are_read_together():
    each = {"id": "ids", "score": "scores", "at": "places"}
    items = {"each": each, "item_id": "id", "score": "score", "position": "at"}
    slate = {"ts": "t", "user_id": "u", "request_id": "r", "items": items}
    profile = {"rules": [{"name": "c", "slate": slate}]}
    message = {"t": NOON, "u": "u", "r": "r", "ids": [7, "b"], "scores": [0.5, None]}
    (found,) = mapped(profile, message)
    assert found["items"] == [{"item_id": "7", "score": 0.5}, "b"]
    (found,) = mapped(profile, message | {"places": ["2", 3]})
    assert found["items"] == [
        {"item_id": "7", "score": 0.5, "position": 2},
        {"item_id": "b", "position": 3},
    ]
    assert refused(profile, message | {"scores": [1]}).endswith(
        "rule c: `items`: ids has 2 values, and scores has 1"
    )
    assert refused(profile, message | {"ids": None}).endswith("`items`: ids finds nothing")
    assert refused(profile, message | {"scores": {}}).endswith("`items`: scores finds no list")
    feedback = {"ts": "$.t", "user_id": "$.u", "item_id": "id", "kind": {"const": "click"}}
    for how in ({"id": "ids"}, "ids"):
        profile = {"rules": [{"name": "c", "each": how, "feedback": feedback}]}
        assert refused(profile, message | {"ids": ["a"] * 10_001}).endswith(
            "rule c: each: 10,001 items, at most 10,000"
        )


def test_opensearch_ubi():
    """https://github.com/o19s/ubi/blob/main/docs: query.request and event, version 1.3"""
    query = {
        "application": "shop",
        "query_id": "q",
        "client_id": "u",
        "user_query": "shoes",
        "query_response_hit_ids": ["7", "8"],
        "timestamp": NOON,
    }
    event = {
        "application": "shop",
        "action_name": "item_click",
        "query_id": "q",
        "client_id": "u",
        "timestamp": NOON.removesuffix("Z"),
        "event_attributes": {"object": {"object_id": 7}, "position": {"ordinal": 1}},
    }
    nothing = query | {"query_id": "q2", "query_response_hit_ids": []}
    assert mapped("ubi", query, nothing, event) == [
        shown("q", "7", "8"),
        shown("q2"),
        did("item_click", "7", "q"),
    ]
    seen = event | {"action_name": "impression"}
    assert mapped("ubi", seen) == []
    assert mapped("ubi_impressions", query, seen, event) == [
        {"type": "impression", "user_id": "u", "request_id": "q"} | at("7", 1),
        did("item_click", "7", "q"),
    ]


# ------------------------------------------------------------------------------------- others


@pytest.mark.parametrize("ts", [str(MS), SECONDS, NOON])
def test_metarank(ts):
    """https://docs.metarank.ai/reference/event-schema"""
    ranking = {
        "event": "ranking",
        "id": "r",
        "timestamp": ts,
        "user": "u",
        "session": "s",
        "fields": [{"name": "query", "value": "cat"}],
        "items": [{"id": "i1", "relevancy": 2.0}, {"id": "i2"}],
    }
    interaction = {
        "event": "interaction",
        "id": "x",
        "ranking": "r",
        "timestamp": ts,
        "session": "s",
        "type": "click",
        "item": "i1",
    }
    metadata = {"event": "item", "id": "y", "item": "i1", "timestamp": ts, "fields": []}
    assert mapped("metarank", ranking, interaction, metadata) == [
        shown("r", {"item_id": "i1", "score": 2.0}, "i2"),
        did("click", "i1", "r", user="s"),
    ]
    # Metarank takes a relevancy of an item's own for one among its fields.
    fields = [{"name": "color", "value": "red"}, {"name": "relevancy", "value": 0.0}]
    among = ranking | {"items": [{"id": "i1", "fields": fields}, {"id": "i2", "fields": []}]}
    assert mapped("metarank", among) == [shown("r", {"item_id": "i1", "score": 0.0}, "i2")]


def test_personalize():
    """https://docs.aws.amazon.com/personalize/latest/dg/API_UBS_PutEvents.html"""
    put = {
        "trackingId": "t",
        "sessionId": "s",
        "userId": "u",
        "eventList": [
            {
                "eventType": "click",
                "itemId": "i1",
                "sentAt": SECONDS,
                "recommendationId": "RID-1",
                "impression": ["i0", "i1"],
            },
            {"eventType": "watch", "itemId": "i1", "eventValue": 0.5, "sentAt": SECONDS},
        ],
    }
    before_login = {key: value for key, value in put.items() if key != "userId"}
    assert mapped("personalize", put) == [
        shown("RID-1", "i0", "i1"),
        did("click", "i1", "RID-1"),
        did("watch", "i1", value=0.5),
    ]
    assert {one["user_id"] for one in mapped("personalize", before_login)} == {"s"}
    # AWS' own samples (retail-demo-store) and Amplify put the item into the properties.
    said = {"itemId": "i1", "eventValue": 0.5}
    for properties in (said, json.dumps(said)):
        event = {"eventType": "watch", "sentAt": SECONDS, "properties": properties}
        within = put | {"eventList": [event, {**event, "properties": None}]}
        assert mapped("personalize", within) == [did("watch", "i1", value=0.5)]


def test_recombee():
    """https://docs.recombee.com/api: the response of RecommendItemsToUser, interactions, Batch"""
    shown_list = {
        "userId": "u",
        "timestamp": SECONDS,
        "recommId": "r",
        "recomms": [{"id": "i1"}, {"id": "i2"}],
    }
    body = {"userId": "u", "itemId": "i1", "timestamp": NOON, "recommId": "r"}
    batch = {
        "requests": [
            {"method": "POST", "path": "/detailviews/", "params": body},
            {"method": "POST", "path": "/cartadditions/", "params": body},
            *(
                {"method": "DELETE", "path": f"/{kind}/", "params": body | {"rating": 1}}
                for kind in ("detailviews", "ratings", "purchases", "cartadditions", "bookmarks")
            ),
        ]
    }
    assert mapped(
        "recombee",
        shown_list,
        body,
        body | {"rating": -0.5},
        body | {"portion": 0.0},
        body | {"price": 4, "amount": 3},
        batch,
    ) == [
        shown("r", "i1", "i2"),
        did("detail_view", "i1", "r"),
        did("rating", "i1", "r", value=-0.5),
        did("view_portion", "i1", "r", value=0.0),
        did("purchase", "i1", "r", value=12),
        did("detail_view", "i1", "r"),
        did("cart", "i1", "r"),
    ]
    no_time = {key: value for key, value in body.items() if key != "timestamp"}
    assert "`ts` is missing in the feedback" in refused("recombee", no_time)


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ("recombee", {"userId": "u", "itemId": "i", "recommId": "r"}),
        (
            "ga4_measurement",
            {
                "client_id": "u",
                "events": [{"name": "select_item", "params": {"items": [{"item_id": "i"}]}}],
            },
        ),
    ],
)
def test_a_message_without_a_time_has_its_records(profile, message):
    values = [json.dumps(message).encode()] * 2
    decoded = decoder(profile).decode_records(values, [MS, -1])
    assert [event.ts for event in decoded.events] == [MS]
    assert [index for index, _ in decoded.rejected] == [1]


def test_gorse_and_recsys_app():
    """https://gorse.io/docs/api/restful-api.html; exposure.v1 and outcome.v1 of recsys.app"""
    read = {"FeedbackType": "read", "UserId": "u", "ItemId": "i", "Timestamp": NOON}
    events = [read, read | {"FeedbackType": "star", "Value": 0}]
    wanted = [{"type": "impression", "user_id": "u", "item_id": "i"}, did("star", "i", value=0)]
    assert mapped("gorse", *events) == wanted
    assert mapped("gorse", events) == wanted
    # https://gorse.io/docs/api/kafka-connect.html: the connector takes these names too.
    camel = {"UserId": "userId", "ItemId": "itemId", "FeedbackType": "feedbackType"}
    snake = {"UserId": "user_id", "ItemId": "item_id", "FeedbackType": "feedback_type"}
    for names in (camel, snake):
        renamed = [{names.get(k, k.lower()): v for k, v in event.items()} for event in events]
        assert mapped("gorse", *renamed) == wanted
    exposure = {
        "request_id": "r",
        "user_id": "u",
        "ts": NOON,
        "items": [{"item_id": "i", "rank": 1}],
        "context": {"variant": "B"},
    }
    outcome = {"request_id": "r", "user_id": "u", "item_id": "i", "event_type": "click", "ts": NOON}
    assert mapped("recsys_app", exposure, outcome) == [
        shown("r", at("i", 1), variant="B"),
        did("click", "i", "r"),
    ]


NATIVE = {"type": "impression", "ts": MS, "user_id": "u", "item_id": "i"}


def enveloped(data, **more):
    return {"specversion": "1.0", "id": "1", "source": "/shop", "type": "t", "data": data} | more


def test_cloudevents_around_native_events_and_any_format():
    packed = base64.b64encode(json.dumps(NATIVE).encode()).decode()
    in_base64 = enveloped(None, data_base64=packed)
    del in_base64["data"]
    wanted = {key: value for key, value in NATIVE.items() if key != "ts"}
    assert mapped("native", NATIVE, enveloped(NATIVE), in_base64) == [wanted] * 3
    assert mapped("native", [enveloped(NATIVE), enveloped(enveloped(NATIVE))]) == [wanted] * 2
    assert mapped("segment", enveloped(CLICKED)) == mapped("segment", CLICKED)
    assert mapped("segment", enveloped(json.dumps(CLICKED))) == mapped("segment", CLICKED)
    assert refused("segment", enveloped(None)).endswith("a message is null, not an object")
    nothing = enveloped(None, data_base64="!!")
    assert refused("segment", nothing) == "no JSON: data_base64 holds none"


def test_rules_see_what_stands_around_a_message():
    rule = {"when": {"_envelope.type": "com.shop.clicked"}, "feedback": {
        "kind": {"const": "click"}, "ts": "_envelope.time", "user_id": "_envelope.subject",
        "item_id": "i",
    }}  # fmt: skip
    profile = {"rules": [rule]}
    event = enveloped({"i": "a"}, type="com.shop.clicked", subject="u", time=NOON)
    other = event | {"type": "com.shop.seen"}
    packed = event | {"data_base64": base64.b64encode(b'{"i": "a"}').decode()}
    del packed["data"]
    wanted = [did("click", "a")]
    for message in (event, [event, other], packed, event | {"data": '{"i": "a"}'}):
        assert mapped(profile, message) == wanted
    assert mapped(profile, enveloped(event), enveloped([event, event])) == 3 * wanted
    # A path leads into the envelope: what it does not lead to stands around.
    profile["unwrap"] = "payload.after"
    payload = {"before": None, "after": {"i": "a"}}
    change = {"type": "com.shop.clicked", "time": NOON, "subject": "u", "payload": payload}
    assert mapped(profile, change, event) == 2 * wanted
    # It is around the parts of a batch too, structured or binary.
    profile = {"split": "all", "rules": [rule]}
    data = {"all": [{"i": "a"}, {"i": "b"}]}
    headers = [(f"ce_{name}", event[name].encode()) for name in ("type", "time", "subject")]
    binary = RecordValue.of(json.dumps(data).encode(), None, headers)
    for message in (event | {"data": data}, binary):
        assert mapped(profile, message) == [did("click", "a"), did("click", "b")]
    one = decoder(profile)
    one.decode_batch([json.dumps(other).encode()])
    assert one.said_ignored() == "no rule takes 1 com.shop.seen"


def test_rules_see_the_key_and_the_headers_of_a_record():
    named = {"kind": {"const": "click"}, "ts": "ts", "user_id": "_key", "item_id": "i"}
    profile = {"rules": [{"when": {"_headers.type": "clicked"}, "feedback": named}]}
    value = json.dumps({"ts": NOON, "i": "a"}).encode()
    clicked = ("type", b"clicked")

    def record(key, *headers, value=value):
        return RecordValue.of(value, key, headers)

    wanted = [did("click", "a")]
    by_object = {"rules": [{"feedback": named | {"user_id": "_key.user"}}]}
    for given, key in ((profile, b"u"), (profile, b'"u"'), (by_object, b'{"user": "u"}')):
        assert mapped(given, record(key, ("x", None), ("y", b"\xff"), clicked)) == wanted
    assert mapped(profile, record(b"u", clicked, value=b"[%b]" % value)) == wanted
    assert not decoder(profile).decode_records([record(b"u"), value]).events
    for key, said in ((None, "finds nothing"), (b"\xff", "finds nothing"), (b"", "is empty")):
        found = decoder(profile).decode(record(key, clicked))
        assert f"`user_id`: _key {said}" in found.detail
    assert "user_id" in decoder(profile).decode(record(b"u\n", clicked)).detail
    # CloudEvents in their binary form have the envelope in headers.
    rule = {"when": {"_envelope.type": "clicked"}, "feedback": named | {"ts": "_envelope.time"}}
    attributes = (("ce_type", b"clicked"), ("ce_time", NOON.encode()))
    assert mapped({"rules": [rule]}, record(b"u", *attributes, value=b'{"i": "a"}')) == wanted
    inner = enveloped({"i": "a"}, type="clicked", time=NOON)
    assert mapped({"rules": [rule]}, record(b"u", value=json.dumps(inner).encode())) == wanted
    assert mapped(profile, record(b"u", ("", b"v"), clicked)) == wanted
    others = (*library.names(), with_fields(), with_fields(value="sort_key"))
    assert not any(decoder(each).reads_records for each in others)
    assert all(decoder(each).reads_records for each in (profile, by_object, {"rules": [rule]}))


# ------------------------------------------------------------------------------------- words


def with_fields(**fields):
    usual = {"ts": "ts", "user_id": "u", "item_id": "i", "kind": {"const": "click"}}
    return {"rules": [{"when": {"e": "c"}, "feedback": usual | fields}]}


CLICK = {"e": "c", "ts": NOON, "u": "u", "i": "i"}


@pytest.mark.parametrize(
    ("profile", "message", "said"),
    [
        (with_fields(), CLICK | {"i": None}, "`item_id`: i finds nothing"),
        (with_fields(), CLICK | {"i": ""}, "`item_id`: i is empty"),
        (with_fields(), CLICK | {"i": ["a"]}, "`item_id`: i is a list, and a text is wanted"),
        (with_fields(), CLICK | {"i": 1.5}, "`item_id`: i is 1.5, a number with a fraction"),
        (with_fields(), CLICK | {"i": 2.0**53}, "`item_id`: i is 9007199254740992.0, a number"),
        (with_fields(), CLICK | {"ts": SECONDS}, "RFC 3339 is wanted: write unit: s"),
        (
            with_fields(),
            CLICK | {"ts": "2026-01-05 12:00"},
            '`ts`: ts is "2026-01-05 12:00", without an offset: write its `zone`, such as UTC',
        ),
        (
            with_fields(),
            CLICK | {"ts": "5/1/2026 12:00"},
            "which is no time of that form: write its pattern as `unit`",
        ),
        (
            with_fields(ts={"from": "ts", "unit": "s"}),
            CLICK | {"ts": MS},
            "not between 2000 and 2099 in s: write unit: ms",
        ),
        (
            with_fields(ts={"from": "ts", "unit": "us"}),
            CLICK | {"ts": MS},
            "not between 2000 and 2099 in us: write unit: ms",
        ),
        (
            with_fields(ts={"from": "ts", "unit": "%d.%m.%Y %H:%M", "zone": "+02:00"}),
            CLICK,
            "which is no time of that form",
        ),
        (
            with_fields(ts={"from": "ts", "zone": "+02:00"}),
            CLICK | {"ts": "2026-01-05T24:00:00"},
            "hours go to 23",
        ),
        (with_fields(value={"product": ["v", "w"]}), CLICK | {"v": "2", "w": "x"},
         'rule c: `value`: v * w is "x", and a number is wanted'),
        (with_fields(value="length(v)"), CLICK | {"v": 5}, "rule c: "),
        (with_fields(value="v"), CLICK | {"v": "much"}, '"much", and a number is wanted'),
        (with_fields(value="v"), CLICK | {"v": 1e30}, "`value`"),
        (with_fields(), CLICK | {"i": "x" * 300}, "`item_id`"),
        (with_fields(), CLICK | {"i": "a\u0007b"}, "Control character"),
        ({"rules": [{"each": "many", "feedback": {**with_fields()["rules"][0]["feedback"]}}]},
         CLICK | {"many": {}}, "each: many finds no list"),
        (with_fields(), [1], "a message is 1, not an object"),
        (with_fields(), b"{", "several lines"),
        (with_fields(), b'{"a":' + b"[" * 500_000, "nested too deep"),
    ],
)  # fmt: skip
def test_a_message_that_does_not_fit_is_told_why(profile, message, said):
    found = refused(profile, message)
    assert said in found
    assert found.isprintable()


def test_positions_that_count_from_zero_are_told_and_taken_by_base_0():
    rule = {
        "slate": {
            "ts": "ts",
            "user_id": "u",
            "request_id": "r",
            "items": {"each": "items", "item_id": "id", "position": "p"},
        }
    }
    message = {"ts": NOON, "u": "u", "r": "r", "items": [{"id": "a", "p": 0}]}
    said = refused({"rules": [rule]}, message)
    assert "item 0: `position`: p is 0, and positions count from 1" in said
    assert "write base: 0" in said
    rule["slate"]["items"]["position"] = {"from": "p", "base": 0}
    assert mapped({"rules": [rule]}, message) == [shown("r", at("a", 1))]
    many = message | {"items": [{"id": str(number), "p": number} for number in range(10_000)]}
    assert "`items`: 10,000 items, at most" in refused({"rules": [rule]}, many)


@pytest.mark.parametrize("base", [0, 1, "auto"])
@pytest.mark.parametrize("has_places", [True, False])
def test_items_read_together_are_those_read_one_by_one(base, has_places):
    rng = random.Random(f"{base} {has_places}")
    items = {"each": "items", "item_id": {"from": "id", "absent": "none"}}
    if has_places:
        items["position"] = {"from": "p", "base": base, "absent": "-"}
    usual = {"ts": "ts", "user_id": "u", "request_id": "r"}
    rule = {"slate": usual | {"items": items}}
    # A field that finds nothing lets items be read one by one.
    alone = {"slate": usual | {"items": items | {"score": "nothing"}}}
    together, one_by_one = ({"rules": [each]} for each in (rule, alone))

    def message():
        first, as_text = rng.choice([0, 1, 1, 2]), rng.random() < 0.5
        held = []
        for place in range(first, first + rng.randrange(5)):
            held.append({"id": f"i{place}", "p": str(place) if as_text else place})
            if rng.random() < 0.1:
                held[-1]["id"] = rng.choice(["", None, "none", 7, True, 1.5, "x" * 300, "i1", {}])
            if rng.random() < 0.1:
                held[-1]["p"] = rng.choice(
                    [place + 1, float(place), bool(place), f"0{place}", f" {place}", None, "-", []]
                )
            if rng.random() < 0.02:
                held[-1] = rng.choice([None, "i", held[:1]])
        return {"ts": NOON, "u": "u", "r": "r", "items": held}

    values = [json.dumps(message()).encode() for _ in range(3_000)]
    (found, fields), (wanted, their_fields) = (
        decoder(each).take(values) for each in (together, one_by_one)
    )
    assert found.events == wanted.events
    assert [one.fields for one in fields] == [one.fields for one in their_fields]
    said, theirs = (
        [(at, why.reason, why.detail.replace("].item_id", "]")) for at, why in each.rejected]
        for each in (found, wanted)
    )
    assert said == theirs
    assert decoder(together).decode_records(values) == found
    assert 1_000 < len(found.events) < 2_800


def test_a_message_is_taken_whole_or_not_at_all():
    good, bad = VIEWED, CLICKED | {"properties": {}}
    lines = [json.dumps(one).encode() for one in ({"batch": [good, bad]}, good, bad)]
    found = decoder("segment").decode_records(lines)
    assert list(found.records) == [1]
    assert [index for index, _ in found.rejected] == [0, 2]
    late = json.dumps({"batch": [good, CLICKED | {"timestamp": "2026-01-06T12:00:00Z"}]}).encode()
    found = decoder("segment").decode_records([late, lines[1]], [MS, MS])
    assert list(found.records) == [1]
    assert found.rejected[0][1].reason == "future"


def test_events_of_a_record_have_its_index_and_order():
    batch = json.dumps({"batch": [VIEWED, CLICKED, CLICKED]}).encode()
    found = decoder("segment").decode_records([b"{}", batch, b"nope", batch])
    assert list(found.records) == [1, 1, 1, 3, 3, 3]
    assert [isinstance(event, FeedbackEvent) for event in found.events] == [False, True, True] * 2
    assert [index for index, _ in found.rejected] == [2]
    assert found.ignored == 1


def test_what_no_rule_takes_is_ignored_and_counted_by_name():
    one = decoder("segment")
    page = json.dumps({"type": "page", "event": "Page Viewed"}).encode()
    one.decode_batch([page] * 999)
    assert one.fresh() == []
    one.decode_batch([b"{}"])
    (said,) = one.fresh()
    assert said == (
        "profile segment has mapped none of 1,000 messages: no rule takes 999 Page Viewed,"
        " 1 messages without a name"
    )
    assert one.fresh() == []


def test_a_profile_that_finds_nothing_where_it_looks_asks_for_the_format():
    """As of an envelope that it knows nothing of."""
    one = decoder("segment")
    one.decode_batch([json.dumps({"what": CLICKED}).encode()])
    said = "no rule takes 1 messages without a name: is this their format?"
    assert one.said_ignored() == f"{said} `streameval map FILE --init` tells"
    one.decode_batch([json.dumps(CLICKED).encode()])
    assert one.said_ignored() == "no rule takes 1 messages without a name"


@pytest.mark.parametrize(
    "name", ["product clicked", "PRODUCT_CLICKED", "product-clicked", "ProductClicked"]
)
def test_a_name_of_another_spelling_is_taken(name):
    assert mapped("segment", CLICKED | {"event": name}) == [did("click", "p1", user="a")]


def test_the_spelling_of_a_name_counts_where_a_rule_has_it_exactly():
    first = with_fields()["rules"][0]["feedback"]
    rules = [
        {"when": {"e": kind}, "feedback": first | {"kind": {"const": kind}}}
        for kind in ("View", "view", "é-1", 7, "+", "-")
    ]
    named = [CLICK | {"e": name} for name in ("view", "VIEW", "View", "É 1", 7, "-")]
    found = [each["feedback"] for each in mapped({"rules": rules}, *named)]
    assert found == ["view", "View", "View", "é-1", "7", "-"]
    one = decoder({"rules": rules})
    one.decode_batch([json.dumps(CLICK | {"e": "*"}).encode()])
    assert one.ignored == {"*": 1}


def test_an_expression_compares_texts_exactly():
    (rule,) = with_fields()["rules"]
    one = decoder({"rules": [rule | {"when": "e == 'c'"}]})
    one.decode_batch([json.dumps(CLICK | {"e": "C"}).encode()])
    assert one.ignored == {"messages without a name": 1}


def test_a_name_that_no_rule_takes_forges_no_line_of_a_log():
    one = decoder("segment")
    one.decode_batch([json.dumps({"event": "a\nERROR b\x1b[31m"}).encode()])
    assert one.said_ignored() == r"no rule takes 1 a\nERROR b\x1b[31m"


def test_json_within_json_is_unwrapped_and_an_ignored_message_has_its_own_name():
    profile = with_fields() | {"unwrap": ["payload", "data.body"]}
    inner = json.dumps(CLICK)
    wanted = [did("click", "i")]
    assert mapped(profile, {"payload": CLICK}) == wanted
    assert mapped(profile, {"payload": inner}) == wanted
    assert mapped(profile, {"data": {"body": inner}}) == wanted
    assert mapped(profile, CLICK) == wanted
    one = decoder("snowplow")
    one.decode_batch([json.dumps({"event_id": "e", "event_name": "page_view"}).encode()])
    assert one.ignored == {"page_view": 1}


def test_a_native_profile_is_the_native_decoder():
    """Also where a text is suspicious, a field is wrong, or a list repeats an item."""
    lists = {"type": "slate", "ts": MS, "user_id": "u", "request_id": "r", "items": ["a", "a"]}
    values = [
        json.dumps(one).encode()
        for one in (NATIVE, NATIVE | {"ts": SECONDS}, NATIVE | {"item_id": "\u0001"}, lists)
    ]
    plain = EventDecoder.of(DEFINITION).decode_records(values)
    found = decoder("native").decode_records(values)
    assert found.events == plain.events
    assert list(found.records) == list(plain.records) == [0]
    assert [index for index, _ in found.rejected] == [index for index, _ in plain.rejected]
    for (_, ours), (_, theirs) in zip(found.rejected, plain.rejected, strict=True):
        assert ours.reason == theirs.reason
        assert ours.detail.endswith(theirs.detail.partition("(")[0].split(":")[-1][:20]) or (
            theirs.detail[:20] in ours.detail
        )


# ------------------------------------------------------------------------------------- language


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rules: []", "rules: write at least one"),
        ("rules: [{when: {a: 1}}]", "a rule has a `slate`, an `impression` or a `feedback`"),
        (
            "rules: [{feedback: {ts: t, user_id: u, item_id: i}}]",
            "line 1: rules.0.feedback.kind: is missing",
        ),
        (
            "rules: [{feedback: {ts: t, user_id: u, item_id: i, kind: k, usr_id: x}}]",
            "no such field usr_id",
        ),
        (
            "rules: [{slate: {ts: t, user_id: u, request_id: r, items: i, requst_id: r}}]",
            "no such field requst_id; did you mean request_id?",
        ),
        ("rules: [{feedback: {ts: 't[', user_id: u, item_id: i, kind: k}}]", "is no path"),
        (
            "rules: [{feedback: {ts: t, user_id: u, item_id: 'splt(i)', kind: k}}]",
            "'splt(i)': no function splt(); did you mean split()?",
        ),
        (
            "rules: [{each: '[split(a)]', feedback: {ts: t, user_id: u, item_id: u, kind: k}}]",
            "split() takes 2 values, not 1",
        ),
        (
            "rules: [{when: '!a.b.c', feedback: {ts: t, user_id: u, item_id: i, kind: k}}]",
            "'!a.b.c': !a.b means (!a).b, which finds nothing: write !(a.b)",
        ),
        (
            "rules: [{feedback: {ts: {from: t, unit: sec}, user_id: u, item_id: i, kind: k}}]",
            "rules.0.feedback.ts: unit 'sec': write one of rfc3339, s, ms, us, ns, auto, or",
        ),
        (
            "rules: [{feedback: {ts: {from: t, unit: '%Y'}, user_id: u, item_id: i, kind: k}}]",
            "line 1: rules.0.feedback.ts: a pattern without %z needs a zone",
        ),
        (
            "rules: [{feedback: {ts: {from: t, zone: CET}, user_id: u, item_id: i, kind: k}}]",
            "zone 'CET': write UTC, an offset such as +02:00, or a name such as Europe/Berlin",
        ),
        (
            "rules: [{feedback: {ts: {from: t, zone: A/B}, user_id: u, item_id: i, kind: k}}]",
            "zone 'A/B': this machine knows no such zone (pip install tzdata brings all)",
        ),
        ("rules: [{whn: {a: 1}}]", "line 1: rules.0.whn: no such key; did you mean when?"),
        ("native: perhaps", "line 1: native: write true or false, not 'perhaps'"),
        ("\nrule: 3", "line 2: rule: no such key; did you mean rules?"),
        ("unwrap: 5\nrules: []", "line 1: unwrap: "),
        ("rules:\n- when: [a]", "line 2: rules.0.when: "),
        ("rules:\n- slate: {tss: t}", "line 2: rules.0.slate.ts: is missing; is tss meant?"),
        (
            "rules: [{slate: {ts: t, user_id: u, request_id: r, items: {each: i, itm_id: r}}}]",
            "rules.0.slate.items.itm_id: no such key; did you mean item_id?",
        ),
        (
            "rules: [{feedback: {ts: {frm: t}, user_id: u, item_id: i, kind: k}}]",
            "rules.0.feedback.ts.frm: no such key; did you mean from?",
        ),
        (
            "rules: [{feedback: {ts: t, user_id: u, item_id: i, kind: {from: k, values: [a]}}}]",
            "rules.0.feedback.kind.values: write keys and values, not ['a']",
        ),
        ("rules: [\n  {", "line 2"),
        ("rules: [{when: items[0]}]", "write text with braces or brackets in quotes"),
        (
            "rules: [{feedback: {ts: 5, user_id: u, item_id: i, kind: k}}]",
            "line 1: rules.0.feedback.ts: write a text, or keys and values, not 5",
        ),
        (
            "rules: [{slate: {ts: t, user_id: u, request_id: r, items: i, type: page}}]",
            "line 1: rules.0.slate: `type` is the event's own: give the label another name",
        ),
    ],
)
def test_a_wrong_profile_is_told_where_and_what(text, said, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as told:
        library.decoder_of(DEFINITION, str(file))
    assert said in str(told.value)
    assert str(told.value).startswith(f"{file}: ")


def test_a_name_that_is_near_a_profile_is_told():
    with pytest.raises(ConfigError, match="no profile segmnt; did you mean segment"):
        library.decoder_of(DEFINITION, "segmnt")


def test_every_built_in_profile_is_described_and_has_no_key_unused():
    for name in library.names():
        assert library.mapping_of(name).profile.description


def test_paths_are_those_of_jmespath():
    """The plain ones, which are compiled, against the library, on the same data."""
    import jmespath

    from streameval.profiles.paths import compile_path

    message = {"a": {"b": [1, {"c": "x"}], "d e": 5, "f": ""}, "g": 0, "h": None, "i": False}
    for text in (
        *("a", "a.b", "a.b[1].c", 'a."d e"', "a.f || g", "h || a.f || i", "h || i", "i || h"),
        *("x.y.z", "a.b.c", "g", "g || a", "@", "a.f || `1`", "length(a.b)", "a.b[0]", "a.b[9]"),
        *(
            "a.b[-1]",
            "a.b[*].c",
            "a.b[?c].c",
            "a.b[?c == 'x'].c | [0]",
            "a.b[?c != 'x']",
            "!a",
            "!g",
        ),
        *("g == `0`", "i == `0`", "g == `false`", "g && a.f", "a.f && g", "not_null(h, i, g)"),
        *("type(a)", "type(g)", "type(h)", "type(i)", "type(a.b)", "type(a.f)", "g < `1`"),
        *("*", "a.*", "a.b[0:1]", "a.{x: b}", "a.b[]", "value", "path || g", "function"),
        *("a.b | [1]", "a.[b, f]", "a.b[?c].not_null(d, c)", "a.b[1].c && type(a.b) == 'array'"),
    ):
        found, wanted = compile_path(text)(message, message), jmespath.search(text, message)
        assert (found, type(found)) == (wanted, type(wanted)), text
    element = {"g": 7, "b": [1]}
    for text, wanted in {
        "$.a.f || $.g": 0,
        "$": message,
        "$.a.b[1].c": "x",
        "g || $.g": 7,
        "h || $.a.b[1].c": "x",
        "length($.a.b)": 2,
        "type($.a) == 'object' && g": 7,
        "b[0] || '$.a'": 1,
        "h || '$.a'": "$.a",
    }.items():
        assert compile_path(text)(element, message) == wanted, text


def test_feedback_on_each_of_what_was_taken_of_a_list_stands_beside_it():
    """A row of a warehouse has both, and often nothing was taken."""
    both = {
        "slate": {"ts": "ts", "user_id": "u", "request_id": "r", "items": "shown"},
        "feedback": {
            "each": "taken",
            "ts": "$.ts",
            "user_id": "$.u",
            "request_id": "$.r",
            "item_id": "id",
            "value": "paid",
            "kind": {"const": "buy"},
        },
    }
    known = {"rules": [both]}
    row = {"ts": NOON, "u": "u", "r": "l", "shown": ["a", "b"]}
    taken = [{"id": "b", "paid": 2}, {"id": "a"}]
    wanted = [shown("l", "a", "b"), did("buy", "b", "l", value=2), did("buy", "a", "l")]
    assert mapped(known, row | {"taken": taken}) == wanted
    assert mapped(known, row, row | {"taken": None}, row | {"taken": []}) == wanted[:1] * 3
    assert refused(known, row | {"taken": 5}) == (
        "profile mine, rule rule 1: each: taken finds no list"
    )
    assert refused(known, row | {"taken": [5]}) == (
        "profile mine, rule rule 1: `item_id`: id finds nothing"
    )
    both["feedback"] = [both["feedback"], both["feedback"] | {"kind": {"const": "like"}}]
    also = did("like", "b", "l", value=2), did("like", "a", "l")
    assert mapped(known, row | {"taken": taken}) == [*wanted, *also]
    both["feedback"] = both["feedback"][0]
    both["feedback"]["each"] = {"id": "ids", "paid": "prices"}
    assert mapped(known, row | {"ids": ["b", "a"], "prices": [2, None]}) == wanted
    assert mapped(known, row, row | {"prices": [1]}) == wanted[:1] * 2
    both["each"] = "lists"  # each row of a page
    both["feedback"]["each"] = "$.taken"
    many = {"ts": NOON, "u": "u", "r": "l", "lists": [{"r": "l", "shown": []}] * 9_000}
    many["taken"] = [{"id": "a"}] * 9_000
    both["slate"] = both["slate"] | {"ts": "$.ts", "user_id": "$.u"}
    assert refused(known, many).endswith("a message of more than 10,000 events")
    both["feedback"] = both["feedback"] | {"each": "taken", "request_id": "$.r"}
    page = {"ts": NOON, "u": "u", "r": "l", "lists": [{"r": "l"} | row | {"taken": taken}]}
    assert mapped(known, page) == wanted


def test_a_text_may_say_of_each_item_whether_it_was_clicked():
    """As the behaviors.tsv of MIND does: https://github.com/msnews/msnews.github.io."""
    at = {"unit": "%m/%d/%Y %I:%M:%S %p", "zone": "UTC"}
    item = "split(@, '-')[0]"
    both = {
        "slate": {
            "ts": {"from": "time"} | at,
            "user_id": "u",
            "request_id": "id",
            "items": {"each": "split(shown, ' ')", "item_id": item},
        },
        "feedback": {
            "each": "split(shown, ' ')[?ends_with(@, '-1')]",
            "ts": {"from": "$.time"} | at,
            "user_id": "$.u",
            "request_id": "$.id",
            "item_id": item,
            "kind": {"const": "click"},
        },
    }
    line = {"id": 7, "u": "u", "time": "1/5/2026 12:00:00 PM", "shown": "N55-0 N35-1 N20-0"}
    assert mapped({"rules": [both]}, line) == [
        shown("7", "N55", "N35", "N20"),
        did("click", "N35", "7"),
    ]


def test_a_list_may_have_come_as_a_text():
    """Ids with something between, and JSON; what is no such text is rejected."""
    texts = {"ids": " a|b ||c", "lines": "a \n b\tc", "rows": '[{"id": "a"}, {"id": 2}]', "n": 7}
    texts["pandas"] = str(["a", "b c"])
    texts["objects"] = str([{"id": "a'b", "new": True, "was": None}, {"id": 2, "x": ("y", 1.5)}])
    texts["deep"], texts["nested"] = "[" * 100_000, "['" + "[" * 100_000
    texts["parquet"] = str([{"id": b"a"}, {"id": "é".encode()}])
    texts["escapes"] = r"['a\d', 'b']"  # later Pythons warn of it
    texts["numpy"] = "['a' 'b']"
    texts["call"], texts["bytes"] = "['a', exit()]", "[{'id': b'a'}, 'b' * 9]"
    for path, wanted in {
        "split(ids, '|')": ("a", "b", "c"),
        "split(lines, '')": ("a", "b", "c"),
        "split(ids, '||')[1:]": ("c",),
        "split('{a,b}', ',')": ("a", "b"),
        "split(pandas, ',')": ("a", "b c"),
        "split('(a b)', '')": ("a", "b"),
        "split('{a}|{b}', '|')": ("{a}", "{b}"),
        "split('{a},{b}', ',')": ("{a}", "{b}"),
        "split('{a}', '|')": ("{a}",),
        "from_json(rows)[*].id": ("a", "2"),
        "from_json(objects)[*].id": ("a'b", "2"),
        "from_json(objects)[1].x[:1]": ("y",),
        "from_json(pandas)": ("a", "b c"),
        "from_json(parquet)[*].id": ("a", "é"),
        "from_json(escapes)": (r"a\d", "b"),
        "from_json(from_json('[[5]]'))[0]": ("5",),
        "split(none, '|') || from_json(rows)[].id": ("a", "2"),
    }.items():
        rule = {"slate": {"ts": "ts", "user_id": "u", "request_id": "u", "items": path}}
        (event,) = decoder({"rules": [rule]}).decode_batch(
            [json.dumps(texts | {"ts": NOON, "u": "u"}).encode()]
        )[0]
        assert event.items == wanted, path
    for path, said in {
        "split(n, '|')": "split()",
        "from_json(ids)": "from_json(): JSON is malformed",
        "from_json(deep)": "from_json(): nested too deep",
        "from_json(nested)": "from_json(): JSON is malformed",
        "from_json(numpy)": "from_json(): JSON is malformed",
        "from_json(call)": "from_json(): JSON is malformed",
        "from_json(bytes)": "from_json(): JSON is malformed",
        "from_json(n)": "`items`: from_json(n) finds no list",
        "from_json(none)": "`items`: from_json(none) finds nothing",
    }.items():
        rule = {"slate": {"ts": "ts", "user_id": "u", "request_id": "u", "items": path}}
        assert said in refused({"rules": [rule]}, texts | {"ts": NOON, "u": "u"}), path


def test_flags_may_stand_in_a_list_of_their_own():
    """Numbers, truth and texts; what is taken may have a value in another list."""
    rule = {"ts": "$.ts", "user_id": "$.u", "request_id": "$.id", "kind": {"const": "watch"}}
    around = {"id": "l1", "u": "u", "ts": NOON, "shown": ["a", "b", "c"], "none": None}
    lists = {"n": [0, 1, 2.5], "is": [False, True, True], "texts": ["0", "1", "true"]}
    lists |= {"lack": [None, 1, 1], "odd": [1, 0], "said": ["N", "Y", "yes"]}
    for flags in ("n", "is", "texts", "lack", "said"):
        profile = {
            "rules": [{"feedback": rule | {"each": f"where(shown, {flags})", "item_id": "@"}}]
        }
        assert mapped(profile, around | lists) == [did("watch", one, "l1") for one in "bc"], flags
    each = {"item": "where(shown, n)", "seconds": "where(n, n)"}
    valued = rule | {"each": each, "item_id": "item", "value": "seconds"}
    found = mapped({"rules": [{"feedback": valued}]}, around | lists)
    assert found == [did("watch", "b", "l1", value=1), did("watch", "c", "l1", value=2.5)]
    for path in ("where(shown, none)", "where(none, n)"):
        profile = {"rules": [{"feedback": rule | {"each": path, "item_id": "@"}}]}
        assert mapped(profile, around | lists) == []
    for path, said in {
        "where(shown, odd)": "where(): 3 values, and 2 flags",
        "where(shown, id)": "where()",
    }.items():
        profile = {"rules": [{"feedback": rule | {"each": path, "item_id": "@"}}]}
        assert said in refused(profile, around | lists), path


def test_places_may_say_what_was_taken():
    """One place or several, from 0 or 1; a place that the list has not is rejected."""
    rule = {"ts": "ts", "user_id": "u", "request_id": "id", "kind": {"const": "click"}}
    rule = {name: f"$.{path}" if name != "kind" else path for name, path in rule.items()}
    message = {"id": "l1", "u": "u", "ts": NOON, "shown": ["a", "b", "c"], "odd": ["1"]}
    message |= {"one": 1, "some": [1, 3], "none": None, "nested": [[1]]}

    def profile(each):
        return {"rules": [{"feedback": rule | {"each": each, "item_id": "@"}}]}

    for path, items in {
        "at(shown, one, `0`)": "b",
        "at(shown, one, `1`)": "a",
        "at(shown, some, `1`)": "ac",
        "at(shown, none, `1`)": "",
        "at(none, one, `1`)": "",
    }.items():
        assert mapped(profile(path), message) == [did("click", one, "l1") for one in items], path
    for path, said in {
        "at(shown, some, `0`)": "at(): no place 3 in 3 values",
        "at(shown, odd, `0`)": "at(): no place '1' in 3 values",
        "at(shown, nested, `0`)": "at(): no place [1] in 3 values",
        "at(shown, id, `0`)": "at()",
    }.items():
        assert said in refused(profile(path), message), path


def test_a_path_is_code_in_which_no_text_of_it_can_act():
    """Names and literals with quotes, backslashes and line ends; and paths of any depth."""
    import jmespath

    from streameval.profiles.paths import compile_path

    odd = ["'", '"', "'''", "\\", "a\nb", "'] = 1; x['", "\u2028", "{x}", "element", "None", "é"]
    message = {name: {name: at} for at, name in enumerate(odd)} | {"element": {"None": "found"}}
    for name in odd:
        quoted = json.dumps(name)
        for text in (f"{quoted}.{quoted}", f"x || {quoted}", f"{quoted} == `{quoted}`"):
            assert compile_path(text)(message, message) == jmespath.search(text, message), text
        assert compile_path(f"`{quoted}`")(message, message) == name
    deep = inner = {}
    for _ in range(300):
        inner["a"] = inner = {}
    inner["a"] = 7
    for text in (".".join("a" * 301), " || ".join("b" * 400), "!" * 300 + "a", "a" + "[0]" * 300):
        assert compile_path(text)(deep, deep) == jmespath.search(text, deep), text[:9]


@pytest.mark.parametrize("unit", ["rfc3339", "auto"])
@pytest.mark.parametrize("zone", [None, "UTC", "+02:00"])
def test_times_are_taken_as_databases_write_them(unit, zone):
    """PostgreSQL's, BigQuery's, ClickHouse's and Python's; those without an offset by a zone."""
    take = {"from": "ts", "unit": unit} | ({"zone": zone} if zone else {})
    read = decoder(with_fields(ts=take))
    written = ["2026-01-05 12:00:00.123456+00", "2026-01-05 12:00:00.123 UTC"]
    written += ["2026-01-05 14:00:00.123+02:00", "2026-01-05T12:00:00.123+0000", NOON.lower()]
    written += ["2026-01-05 12:00:00.123Z"]
    if zone == "UTC":
        written += ["2026-01-05 12:00:00.123", "2026-01-05T12:00:00.123999"]
    if zone == "+02:00":
        written += ["2026-01-05 14:00:00.123"]
    events, rejected = read.decode_batch(
        [json.dumps(CLICK | {"ts": ts}).encode() for ts in written]
    )
    assert rejected == []
    assert {event.ts for event in events} == {MS}


def test_patterns_of_times_have_a_zone():
    profile = with_fields(ts={"from": "ts", "unit": "%d.%m.%Y %H:%M:%S.%f", "zone": "+02:00"})
    (event,) = decoder(profile).decode_batch(
        [json.dumps(CLICK | {"ts": "05.01.2026 14:00:00.123"}).encode()]
    )[0]
    assert event.ts == MS == datetime(2026, 1, 5, 12, 0, 0, 123_000, UTC).timestamp() * 1000


@pytest.mark.parametrize(
    ("written", "ms"),
    [
        ("2026-01-05 13:00:00", 1_767_614_400_000),
        ("2026-07-05 14:00:00", 1_783_252_800_000),
        ("2026-10-25 02:30:00", 1_792_888_200_000),  # twice, and this is the first time
    ],
)
@pytest.mark.parametrize("unit", ["rfc3339", "auto", "%Y-%m-%d %H:%M:%S"])
def test_times_of_a_zone_with_summer_time(written, ms, unit):
    read = decoder(with_fields(ts={"from": "ts", "zone": "Europe/Berlin", "unit": unit}))
    ((event,), rejected) = read.decode_batch([json.dumps(CLICK | {"ts": written}).encode()])
    assert (event.ts, rejected) == (ms, [])


# ------------------------------------------------------------------------------------- figures


CELLS = [
    *(None, "", "x", " 3", "\uff13", "01", "0", "1", "-1", "1.5", "1e3", True, False, [], {}, [1]),
    *(0, 1, -1, 2, 0.5, 10**40, "9" * 29, "9" * 30, "9" * 31),
    *(MIN_TS, MIN_TS - 1, MAX_TS, MAX_TS - 1, f"{MIN_TS}000", f"{MAX_TS}000", MAX_TS * 1000 - 1),
    *(MIN_TS // 1000, MAX_TS // 1000, str(MAX_TS // 1000 - 1), MIN_TS * 10**6, 1767614400.5),
    *("2026-01-05T10:00:00Z", "2026-01-05 10:00:00.123", "2026-01-05T10:00:00+02:00", "2026-13-01"),
    *(
        "2026-01-05 10:00:00Z",
        "2026-01-05t10:00:00z",
        "2026-01-05 10:00:00 UTC",
        "2026-01-05T10:00",
    ),
]


@pytest.mark.parametrize(
    ("field", "take"),
    [
        *(("ts", {"unit": unit}) for unit in ("rfc3339", "auto", "s", "ms", "us", "ns")),
        *(("ts", {"unit": unit, "zone": "-03:30"}) for unit in ("rfc3339", "auto", "ms")),
        *(("position", {"base": base}) for base in (0, 1, "auto")),
        *((field, {}) for field in ("item_id", "score", "value", "latency_ms", "retract")),
        ("feedback", {"values": {"x": "click", "1": "like"}}),
    ],
)
def test_the_way_without_calls_gives_what_the_converter_gives(field, take):
    """It is a second way to the same value, so it must take none that the first one refuses."""
    take = Take.model_validate({"from": "cell", **take})
    test, quick, is_number = short_way(field, take)
    convert = converter(field, take)
    taken = 0
    for cell in CELLS:
        names = {"found": cell}
        if test and (eval(test, names) or (is_number and eval(f"{IS_DIGITS} and ({test})", names))):
            taken += 1
            assert eval(quick, names) == convert(cell), (field, take, cell)
            assert type(eval(quick, names)) is type(convert(cell))
    assert bool(taken) == bool(test)


@pytest.mark.parametrize("profile", trackers.WRITERS)
def test_figures_through_a_profile_are_those_of_native_events(profile):
    """Equal to the bit; `trackers.LACKS` names what a format cannot say."""
    definition = Definition(
        positives=tuple(map(Positive, ("click", "detail_view", "purchase"))), dimensions=()
    )
    events = trackers.stream(3)
    said = [trackers.as_said(event, trackers.LACKS.get(profile, ())) for event in events]
    messages = [trackers.WRITERS[profile](event) for event in events]
    found, wanted = (
        replay(
            definition,
            [InMemory.of("events", trackers.lines(lines))],
            lambda _: None,
            decoder=read,
            with_users=True,
        )
        for lines, read in (
            (messages, library.decoder_of(definition, profile)),
            (said, EventDecoder.of(definition)),
        )
    )
    assert sum(found["events"]["rejected"].values()) == 0
    assert found == wanted
    assert max(row["positives"] for row in found["rates"]) > 50


# ------------------------------------------------------------------------------------- anything

ODD = [
    *(None, True, False, 0, -1, 1.5, 1e300, 10**30, "", "x", "7", "é\u0001", "\ud800", [], {}),
    *([0], {"a": 1}, [[]], "__all__", "x" * 300, NOON, MS, [None, 3], {"": ""}),
]


def broken(value, rng):
    """A value with some of its parts replaced, left out or repeated."""
    if rng.random() < 0.08:
        return rng.choice(ODD)
    if isinstance(value, dict):
        return {key: broken(each, rng) for key, each in value.items() if rng.random() > 0.05}
    if isinstance(value, list):
        return [broken(each, rng) for each in value for _ in range(rng.choice([1, 1, 1, 2]))]
    return value


@pytest.mark.parametrize("profile", library.names())
def test_whatever_comes_is_an_event_ignored_or_rejected(profile):
    """Nothing raises, and what is taken is what the native decoder takes, event by event."""
    rng = random.Random(profile)
    read, native = decoder(profile), EventDecoder.of(DEFINITION)
    known = trackers.WRITERS | trackers.PARTLY
    writers, own = list(known.values()), known[profile]
    messages = []
    for event in trackers.stream(5, count=300):
        message = broken(own(event) if rng.random() < 0.8 else rng.choice(writers)(event), rng)
        messages.append({"batch": [message, own(event)]} if rng.random() < 0.1 else message)
    values = [json.dumps(message).encode() for message in messages]
    decoded, mapped_ = read.take(values)
    assert len(decoded.events) > 50
    taken, refused_ = set(decoded.records), {index for index, _ in decoded.rejected}
    assert not taken & refused_
    assert sorted(decoded.records) == list(decoded.records)
    again = native.decode_records([json.dumps(one.fields).encode() for one in mapped_])
    assert again.rejected == []
    assert again.events == decoded.events
    for _, rejection in decoded.rejected:
        assert rejection.detail
        assert rejection.detail.isprintable()
        assert rejection.reason in {"invalid", "malformed"}
