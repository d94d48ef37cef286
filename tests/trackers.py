"""One logical stream, as events of streameval and as the messages of other trackers."""

import itertools
import json
import random
from datetime import UTC, datetime

from streameval.core.definition import Definition
from streameval.profiles import library
from streameval.profiles.draft import draft

BEGIN = 1_700_000_000_000


def stream(seed, count=400, users=60):
    """Lists of up to ten items with a request, and clicks and purchases on them, by time."""
    rng = random.Random(seed)
    events = []
    for number in range(count):
        ts = BEGIN + number * 700
        user, request = f"u{rng.randrange(users)}", f"r{number}"
        items = [f"i{item}" for item in rng.sample(range(40), rng.randrange(1, 11))]
        who = {"user_id": user, "request_id": request}
        events.append({"type": "slate", "ts": ts, **who, "items": items})
        for item in items:
            if rng.random() < 0.15:
                kind = rng.choice(["click", "click", "purchase"])
                value = {"value": rng.randrange(1, 500) / 4} if kind == "purchase" else {}
                done = {"type": "feedback", "ts": ts + rng.randrange(60_000), "item_id": item}
                events.append(done | who | {"feedback": kind} | value)
    return sorted(events, key=lambda event: event["ts"])


def iso(ts):
    return datetime.fromtimestamp(ts / 1000, UTC).isoformat(timespec="milliseconds")


def positions(items, name, base, place="position"):
    return [{name: item, place: place_} for place_, item in enumerate(items, base)]


def segment(event):
    call = {"type": "track", "messageId": f"m{event['ts']}", "userId": event["user_id"]}
    call["timestamp"] = iso(event["ts"])
    named = {"request_id": event["request_id"]}
    if event["type"] == "slate":
        products = positions(event["items"], "product_id", 1)
        return call | {"event": "Product List Viewed", "properties": named | {"products": products}}
    if event["feedback"] == "click":
        properties = named | {"product_id": event["item_id"]}
        return call | {"event": "Product Clicked", "properties": properties}
    bought = {"product_id": event["item_id"], "price": event["value"], "quantity": 1}
    return call | {"event": "Order Completed", "properties": named | {"products": [bought]}}


def ga4_measurement(event):
    name = {"click": "select_item", "purchase": "purchase"}.get(event.get("feedback"))
    params = {"request_id": event["request_id"]}
    if name is None:
        name, items = "view_item_list", positions(event["items"], "item_id", 0, "index")
    else:
        items = [{"item_id": event["item_id"], "price": str(event.get("value", 1))}]
    micros = f"{event['ts']}000"
    one = {"name": name, "params": params | {"items": items}}
    return {"client_id": event["user_id"], "timestamp_micros": micros, "events": [one]}


def ga4_export(event):
    message = ga4_measurement(event)
    ((one,), micros) = message["events"], message["timestamp_micros"]
    items = [
        {"item_id": item["item_id"], "item_list_index": str(item.get("index", ""))}
        | ({"price": item["price"]} if "price" in item else {})
        for item in one["params"]["items"]
    ]
    params = [{"key": "request_id", "value": {"string_value": event["request_id"]}}]
    who = {"user_pseudo_id": event["user_id"], "event_timestamp": micros}
    return {"event_name": one["name"], "event_params": params, "items": items, **who}


def metarank(event):
    who = {"user": event["user_id"], "timestamp": str(event["ts"]), "fields": []}
    if event["type"] == "slate":
        items = [{"id": item} for item in event["items"]]
        return {"event": "ranking", "id": event["request_id"], "items": items, **who}
    done = {"ranking": event["request_id"], "type": event["feedback"], "item": event["item_id"]}
    return {"event": "interaction", "id": f"x{event['ts']}", **done, **who}


def ubi(event):
    who = {"client_id": event["user_id"], "query_id": event["request_id"]}
    who["timestamp"] = iso(event["ts"])
    if event["type"] == "slate":
        return who | {"user_query": "q", "query_response_hit_ids": event["items"]}
    attributes = {"object": {"object_id": event["item_id"]}}
    return who | {"action_name": event["feedback"], "event_attributes": attributes}


def algolia(event):
    who = {"userToken": event["user_id"], "queryID": event["request_id"], "timestamp": event["ts"]}
    if event["type"] == "slate":
        hits = [{"objectID": item} for item in event["items"]]
        return who | {"hits": hits, "page": 0, "hitsPerPage": 10}
    kind = {"eventType": "click", "eventName": "e"}
    if event["feedback"] == "purchase":
        kind = {"eventType": "conversion", "eventSubtype": "purchase", "eventName": "e"}
        kind["objectData"] = [{"queryID": who.pop("queryID"), "price": event["value"]}]
    return who | kind | {"objectIDs": [event["item_id"]]}


def recombee(event):
    who = {"userId": event["user_id"], "recommId": event["request_id"], "timestamp": event["ts"]}
    if event["type"] == "slate":
        return who | {"recomms": [{"id": item} for item in event["items"]]}
    bought = {"price": event["value"]} if event["feedback"] == "purchase" else {}
    return who | {"itemId": event["item_id"]} | bought


def recsys_app(event):
    who = {"user_id": event["user_id"], "request_id": event["request_id"], "ts": iso(event["ts"])}
    if event["type"] == "slate":
        return who | {"items": positions(event["items"], "item_id", 1, "rank"), "context": {}}
    value = {"value": event["value"]} if "value" in event else {}
    return who | {"item_id": event["item_id"], "event_type": event["feedback"]} | value


def snowplow(event):
    name = "com_snowplowanalytics_snowplow_ecommerce"
    action = f"unstruct_event_{name}_snowplow_ecommerce_action_1"
    kinds = {None: "list_view", "click": "list_click", "purchase": "transaction"}
    items = event.get("items") or [event["item_id"]]
    products = positions(items, "id", 0)
    if "value" in event:
        products[0]["price"] = event["value"]
    return {
        "event_id": f"e{event['ts']}",
        "domain_userid": event["user_id"],
        "derived_tstamp": iso(event["ts"]).replace("T", " ").removesuffix("+00:00"),
        action: {"type": kinds[event.get("feedback")]},
        f"contexts_{name}_product_1": products,
        "contexts_com_snowplowanalytics_snowplow_web_page_1": [{"id": event["request_id"]}],
    }


def personalize(event):
    who = {"trackingId": "t", "sessionId": "s", "userId": event["user_id"]}
    items = event.get("items", [])
    one = {"eventType": event.get("feedback", "click"), "sentAt": event["ts"] // 1000}
    one |= {"itemId": event.get("item_id") or items[0], "recommendationId": event["request_id"]}
    return who | {"eventList": [one | ({"impression": items} if items else {})]}


def gorse(event):
    item = event.get("item_id") or event["items"][0]
    kind = event.get("feedback", "read")
    who = {"UserId": event["user_id"], "Timestamp": iso(event["ts"])}
    return who | {"FeedbackType": kind, "ItemId": item, "Value": event.get("value", 1)}


def ubi_impressions(event):
    if event["type"] != "slate":
        return ubi(event)
    message = ubi(event | {"item_id": event["items"][0], "feedback": "impression", "type": ""})
    message["event_attributes"]["position"] = {"ordinal": 1}
    return message


def native(event):
    return {"specversion": "1.0", "id": "1", "source": "/", "type": "t", "data": event}


WRITERS = {
    each.__name__: each
    for each in (
        *(segment, ga4_measurement, ga4_export, metarank, ubi, algolia, recombee, recsys_app),
        *(snowplow, native),
    )
}
"""The profiles that can say all of the stream: by name, how an event becomes their message."""

PARTLY = {"personalize": personalize, "gorse": gorse, "ubi_impressions": ubi_impressions}
"""The same of profiles that cannot say lists as they were."""

LACKS = {
    "snowplow": ("request of a purchase",),
    "ga4_export": ("request of a purchase",),
    "recombee": ("name of a click",),
}
"""What messages of a profile do not say of this stream."""


def as_said(event, lacks):
    """What is left of an event in messages that lack something."""
    event = dict(event)
    if "request of a purchase" in lacks and event.get("feedback") == "purchase":
        del event["request_id"]
    if "name of a click" in lacks and event.get("feedback") == "click":
        event["feedback"] = "detail_view"
    return event


def lines(messages):
    return [json.dumps(message).encode() for message in messages]


def batches(messages, size):
    """Calls of Segment as batches of up to `size`."""
    parts = iter(messages)
    while part := list(itertools.islice(parts, size)):
        yield {"batch": part}


def drafted(messages, folder):
    """The draft for messages, and their events by it; fails for a rejected one."""
    values = lines(messages)
    text = draft(values)
    file = folder / f"{len(text)}.yaml"
    file.write_text(text)
    decoder = library.decoder_of(Definition(dimensions=("variant",)), str(file))
    events, rejected = decoder.decode_batch(values)
    assert rejected == []
    return text, events
