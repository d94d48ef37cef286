"""Drafts for trackers as public repositories and vendors have them, used as they are.

Seven lists of three users go through each. Names are theirs, values are ours.
"""

import json
import random

import pytest
from trackers import drafted, lines

from streameval.core.events import FeedbackEvent, ImpressionEvent
from streameval.profiles.draft import draft
from streameval.profiles.message_fields import act_of, leaves_of
from streameval.profiles.message_kinds import kind_path
from streameval.profiles.message_times import is_epoch, is_written_time

AT = 1_767_614_400_000
"""2026-01-05 12:00:00 UTC."""
ITEMS = ["12000254", "12000255", "12000256"]


def written(number, second=0):
    """A time in text."""
    return f"2026-01-05T12:{number:02}:{second:02}Z"


def synerise(number, user):
    """Lists with a `correlationId`: https://hub.synerise.com/developers/api/recommendations/events."""
    around = {"correlationId": f"l{number}", "clientUUID": user, "campaignId": "DkhvrZoTKthD"}
    yield {"action": "recommendation.view", "time": written(number)} | around | {"items": ITEMS}
    clicked = {"action": "recommendation.click", "time": written(number, 5), "item": ITEMS[1]}
    yield clicked | around


def particular_audience(number, user):
    """Batches, whose events have the time: https://docs.particularaudience.com/events."""
    slots = [
        {"currentUrl": "https://x/", "eventTime": written(number), "refId": one, "widgetId": "w"}
        for one in ITEMS
    ]
    yield {"type": "slot-impressions", "customerId": user, "events": slots}
    clicked = slots[1] | {"eventTime": written(number, 5)}
    yield {"type": "click", "customerId": user, "events": [clicked]}


def issues(number, user):
    """Batches, whose events have the kind; the id of a list is neither named nor of an item."""
    around = {"recommendation_batch_id": f"l{number}", "user": user}
    shown = [
        {"event_id": f"{number}{place}", "event_type": "impression", "issue_node_id": one}
        for place, one in enumerate(ITEMS)
    ]
    yield {**around, "received_at": written(number), "events": shown}
    clicked = shown[1] | {"event_id": f"{number}9", "event_type": "click"}
    yield {**around, "received_at": written(number, 5), "events": [clicked]}


def shop_page(number, user):
    """Recommendations on the page of a product, whose id stands beside the one clicked."""
    around = {"anonymous_id": user, "product_id": "777", "widget_id": "product-page"}
    shown = {"recommended_product_ids": ITEMS, "timestamp": written(number)}
    yield {"event_type": "recommendation_impression"} | around | shown
    clicked = {"recommended_product_id": ITEMS[1], "timestamp": written(number, 5)}
    yield {"event_type": "recommendation_click"} | around | clicked


def cards(number, user):
    """A recommendation for each item, and a request for each list of them."""
    for event, place in [("feed_impression", 0), ("feed_impression", 1), ("click", 1)]:
        yield {
            "event": event,
            "card_id": ITEMS[place],
            "recommendation_id": f"rec{number}{place}",
            "feed_request_id": f"l{number}",
            "user_id": user,
            "created_at": written(number, 5 if event == "click" else 0),
        }


def pins(number, user):
    """An id of each impression, which is not its item."""
    for action, place in [("seen", 0), ("seen", 1), ("clicked", 1)]:
        yield {
            "impressionId": f"i{number}{place}",
            "action": action,
            "userKey": user,
            "pinId": ITEMS[place],
            "ts": AT // 1000 + number * 60 + 5 * (action == "clicked"),
        }


def papers(number, user):
    """Items whose name says nothing, one by one."""
    for kind, place in [("feed_impression", 0), ("feed_impression", 1), ("paper_click", 1)]:
        yield {
            "userId": user,
            "clientTs": AT + number * 60_000 + 5000 * (kind == "paper_click"),
            "eventType": kind,
            "paperId": ITEMS[place],
            "surface": "feed",
        }


def decisions(number, user):
    """A user whose name says nothing; a list is served, then seen."""
    around = {"decisionId": f"l{number}", "consultantId": user}
    listed = [{"projectId": one, "rank": place} for place, one in enumerate(ITEMS, 1)]
    for kind in ("SERVED", "VISIBLE"):
        shown = {"eventType": kind, "occurredAt": written(number), "recommendations": listed}
        yield shown | around
    clicked = {"eventType": "CLICKED", "occurredAt": written(number, 5), "projectId": ITEMS[1]}
    yield clicked | around


def tables(number, user):
    """Rows of two tables, of which one has the kind in its name only."""
    around = {"user_email": f"{user}", "job_id": ITEMS[1]}
    shown = {"table": "recommendation_impressions", "request_id": f"l{number}"}
    yield shown | around | {"created_at": f"2026-01-05 12:{number:02}:00+00"}
    clicked = {"table": "user_job_events", "event_type": "click"}
    yield clicked | around | {"created_at": f"2026-01-05 12:{number:02}:05+00"}


def banners(number, user):
    """Views of banners, which nothing else shows."""
    around = {"slot_id": 1, "banner_id": ITEMS[number % 2], "user_group_id": user}
    yield {"type": "view", "timestamp": written(number)} | around
    yield {"type": "click", "timestamp": written(number, 5)} | around


def labels(number, user):
    """Rows of a training set."""
    listed = [{"sid": one, "label": int(one == ITEMS[1])} for one in ITEMS]
    around = {"request_id": f"l{number}", "timestamp": AT // 1000 + number * 60}
    yield {"user_id": user, "impressed_items": listed} | around


def braze(number, user):
    """An event with its properties in a text."""
    around = {"user_id": user, "event_type": "users.behaviors.CustomEvent"}
    shown = json.dumps({"request_id": f"l{number}", "items": ITEMS})
    clicked = json.dumps({"request_id": f"l{number}", "item": ITEMS[1]})
    yield {"name": "recs_shown", "time": AT // 1000 + number * 60, "properties": shown} | around
    clicked = {"properties": clicked, "time": AT // 1000 + number * 60 + 5}
    yield {"name": "rec_clicked"} | clicked | around


def variants(number, user):
    """What is put into the cart has another name than what is clicked."""
    around = {"subjectId": user}
    lists = {"requestId": f"l{number}", "itemIds": ITEMS}
    yield {"name": "recommendation_impression", "occurredAt": written(number)} | around | lists
    clicked = {"requestId": f"l{number}", "itemId": ITEMS[1]}
    yield {"name": "recommendation_clicked", "occurredAt": written(number, 5)} | around | clicked
    added = {"name": "cart_item_added", "occurredAt": written(number, 9), "variantId": ITEMS[1]}
    yield added | around


def klevu(number, user):
    """Lists that share the id of their place, and a click with it too."""
    around = {"event_list_id": "k-rec-1", "user_profile": {"klevu_uid": user}}
    listed = [{"item_id": one, "item_position": place} for place, one in enumerate(ITEMS)]
    yield {"event": "view_recs_list", "event_timestamp": written(number), "items": listed} | around
    clicked = {"event": "select_recs_list", "event_timestamp": written(number, 5)}
    yield clicked | {"items": listed[1:2]} | around


def enhanced_ecommerce(number, user):
    """Google's older data layer, whose clicks name a list that no list has."""
    listed = [{"id": one, "list": "Home", "position": n} for n, one in enumerate(ITEMS, 1)]
    around = {"clientId": user, "timestamp": AT + number * 60_000}
    yield {"event": "productImpressions", "ecommerce": {"impressions": listed}} | around
    clicked = {"click": {"actionField": {"list": "Home"}, "products": listed[1:2]}}
    yield (
        around
        | {"event": "productClick", "timestamp": AT + number * 60_000 + 5}
        | {"ecommerce": clicked}
    )


def searchspring(number, user):
    """Each message has an `id`, that of the widget is the `pid` of its products."""
    around = {"context": {"shopperId": user}, "timestamp": AT + number * 60_000}
    yield {"type": "profile.impression", "id": f"l{number}", "event": {"tag": "similar"}} | around
    for kind, place in [("impression", 0), ("impression", 1), ("click", 1)]:
        sku = {"position": place, "mappings": {"core": {"sku": ITEMS[place]}}}
        message = {"type": f"product.{kind}", "id": f"{kind}{number}{place}", "pid": f"l{number}"}
        yield message | {"event": {"product": sku}} | around


def countly(number, user):
    """Batches, whose events have a `key`."""
    at = AT + number * 60_000
    shown = {"list": f"l{number}", "items": ",".join(ITEMS)}
    clicked = {"list": f"l{number}", "item": ITEMS[1]}
    for key, segmentation in [("recs_shown", shown), ("rec_click", clicked)]:
        event = {"key": key, "count": 1, "timestamp": at, "segmentation": segmentation}
        yield {"device_id": user, "timestamp": at, "events": [event]}


def evergage(number, user):
    """Statistics of campaigns: kinds without a name that says so, and no time in the parts."""
    for stat, listed in [("Impression", ITEMS), ("Clickthrough", ITEMS[1:2])]:
        part = {"stat": stat, "control": False, "catalog": {"Product": listed}}
        at = AT + number * 60_000
        yield {"time": at, "user": {"anonId": user}, "campaignStats": [part]}


def spans(number, user):
    """Labels of OpenTelemetry, with ids in a text whose name is none of a list."""
    labels = {"search_client_id": user, "search_query_id": f"l{number}"}
    shown = {"search_result_ids": ",".join(ITEMS)}
    yield {"@timestamp": written(number), "span": {"name": "search"}, "labels": shown | labels}
    clicked = {"search_result_click_id": ITEMS[1]}
    time = written(number, 5)
    yield {"@timestamp": time, "span": {"name": "click"}, "labels": clicked | labels}


def teasers(number, user):
    """Views of teasers, and rarer ones of the pages behind them."""
    for event, place in [("teaser_view", 0), ("teaser_view", 1), ("teaser_click", 1)]:
        teaser = {"articleId": ITEMS[place], "slot": place + 1}
        yield {"ev": event, "sub": user, "t": AT + number * 60_000, "teaser": teaser}
    yield {"ev": "article_read", "sub": user, "t": AT, "article": {"id": "read"}}


def carousels(number, user):
    """Rows of a warehouse with a flag; the items are stores, and rows have places too."""
    for place, one in enumerate(ITEMS):
        yield {
            "consumer_id": user,
            "event_timestamp": written(number),
            "container_instance_id": f"l{number}",
            "store_id": one,
            "vertical_position": 0,
            "horizontal_position": place,
            "is_clicked_flg": int(place == 1),
        }


def fullstory(number, user):
    """Names that end with the type of their value."""
    around = {"user": {"uid": user}, "timestamp": written(number)}
    shown = {"item_ids_strs": ITEMS, "list_str": f"l{number}"}
    yield {"name": "Recs Shown", "properties": shown} | around
    clicked = {"item_id_str": ITEMS[1], "list_str": f"l{number}"}
    yield {"name": "Rec Clicked", "properties": clicked} | around


def hotels(number, user):
    """Expedia's searches: items and their flags, under names of their own."""
    found = [
        {"prop_id": one, "position": place, "click_bool": int(place == 2), "booking_bool": 0}
        for place, one in enumerate(ITEMS, 1)
    ]
    around = {"visitor_location": 219, "guest": user, "date_time": "2026-01-05 12:00:00"}
    yield {"srch_id": f"l{number}", "props": found} | around


def conversions(number, user):
    """Meta's Conversions API: the id of a user is a list of one."""
    for event, listed in [("ViewCategory", ITEMS), ("ClickItem", ITEMS[1:2])]:
        around = {"event_id": f"{event}{number}", "event_time": AT // 1000 + number}
        who = {"user_data": {"external_id": [user]}, "custom_data": {"content_ids": listed}}
        yield {"data": [{"event_name": event} | around | who]}


def museum(number, user):
    """Names that say nothing, nor that they are of an id."""
    around = {"who": user, "when": written(number), "where": "home", "ref": f"l{number}"}
    yield {"verb": "shown", "what": ITEMS} | around
    yield {"verb": "clicked", "what": ITEMS[1]} | around


def references(number, user):
    """Ids of lists and items that are at another path in feedback."""
    around = {"at": {"epochMillis": AT + number}, "subject": {"kind": "CUSTOMER", "ref": user}}
    served = {"batchRef": f"l{number}", "entries": [{"ref": one} for one in ITEMS]}
    yield {"payload": {"kind": "ServedRecommendations", "served": served} | around}
    tapped = {"batchRef": f"l{number}", "ref": ITEMS[1]}
    yield {"payload": {"kind": "RecommendationTapped", "tapped": tapped} | around}


def stations(number, user):
    """A list in a text, whose name is the plural of what was taken."""
    around = {"LISTENER": user, "EVT_TS": "2026-01-05 12:00:00", "LIST_REF": f"l{number}"}
    yield {"EVENT_TYPE": "STATION_LIST_SHOWN", "STATIONS": ";".join(ITEMS)} | around
    yield {"EVENT_TYPE": "STATION_CLICK", "STATION": ITEMS[1]} | around


def customer_io(number, user):
    """An id of the event, and one among `identifiers`."""
    around = {"identifiers": {"id": user}, "timestamp": AT // 1000 + number}
    shown = {"items": ITEMS, "request_id": f"l{number}"}
    yield {"name": "recs_shown", "id": f"e{number}", "attributes": shown} | around
    clicked = {"item": ITEMS[1], "request_id": f"l{number}"}
    yield {"name": "rec_clicked", "id": f"f{number}", "attributes": clicked} | around


def units(number, user):
    """Adobe Commerce: several lists in a message, each with its id."""
    around = {"shopper": {"shopperId": user}, "eventTime": written(number)}
    lists = [{"unitId": f"l{number}{name}", "unitType": "primary"} for name in "ab"]
    found = [one | {"products": [{"productId": item} for item in ITEMS]} for one in lists]
    yield {"event": "recs-unit-render", "recommendations": {"units": found}} | around
    yield {"event": "recs-item-click", "unitId": f"l{number}a", "productId": ITEMS[1]} | around


def cookies(number, user):
    """Salesforce Einstein: the id of an account is empty for who has none."""
    around = {"cookieId": user, "userId": "", "recoUUID": f"l{number}"}
    shown = {"products": [{"id": one} for one in ITEMS], "receivedAt": AT + number}
    yield {"activity": "viewReco"} | around | shown
    yield {"activity": "clickReco", "product": {"id": ITEMS[1]}, "receivedAt": AT + 5} | around


def clocks(number, user):
    """A time whose name is its unit, within what says nothing of a time."""
    around = {"context": {"user": {"name": user}, "clock": {"epochMillis": AT + number}}}
    for name, place in [("UbiImpression", 0), ("UbiImpression", 1), ("UbiInteraction", 1)]:
        event = {"messageName": name, "pageInstanceId": f"l{number}", "itemUri": ITEMS[place]}
        yield {"event": event} | around


def texts(number, user):
    """Lists in a text, of which the first is empty."""
    around = {"user_id": user, "request_id": f"l{number}", "item_ids": ""}
    if not number:
        yield {"event": "impression", "ts": AT} | around
    yield {"event": "impression", "ts": AT + number} | around | {"item_ids": ",".join(ITEMS)}
    yield {"event": "click", "ts": AT + number + 5, "item_id": ITEMS[1]} | around


def batches(number, user):
    """Impressions one by one, of which several lists were sent at once; each has one category."""
    around = {"anonymous_id": user, "timestamp": written(number)}
    for name, place in [("item_impression", 0), ("item_impression", 1), ("item_viewed", 1)]:
        of = {"item_id": ITEMS[place], "category_ids": ["c1"], "list_instance_id": f"l{number}"}
        sent = {"impression_batch_id": f"b{number // 3}"} if "view" not in name else {}
        told = {"event_id": f"{number}{name}{place}", "event_name": name, "properties": of | sent}
        yield told | around
    clicked = {"event_name": "item_clicked", "event_id": f"{number}c", "properties": of}
    yield clicked | around


def recommended(number, user):
    """The id of a recommendation is the one of what was recommended."""
    around = {"userId": user, "timestamp": written(number)}
    for name, place in [("rec_impression", number % 2), ("rec_impression", 1), ("rec_click", 1)]:
        of = {"recommendationId": ITEMS[place], "algorithm": "hybrid"}
        yield {"eventType": name, "properties": of} | around


def flagged(number, user):
    """Rows of a table with their own ids, and of the item by an unknown name, with a flag."""
    for place in range(2):
        of = {"activityId": ITEMS[place], "position": place, "clicked": place == 1}
        yield {"id": f"8f{number}{place}", "userId": user, "createdAt": AT + number} | of


def meetups(number, user):
    """The item is an event, and a row has its own id."""
    around = {"user_id": user, "created_at": written(number)}
    for name, place in [("rec_impression", 0), ("rec_impression", 1), ("rec_click", 1)]:
        own = {"id": f"{number}{name}{place}", "interaction_type": name}
        yield own | {"event_id": ITEMS[place]} | around


def bundles(number, user):
    """Events with their own ids, and an item within what is called a recommendation."""
    around = {"clientId": user, "timestamp": written(number)}
    listed = {"recommendations": [{"id": one} for one in ITEMS]}
    yield {"name": "recommendation_viewed", "id": f"v{number}", "data": listed} | around
    clicked = {"recommendation": {"id": ITEMS[1]}}
    yield {"name": "recommendation_clicked", "id": f"c{number}", "data": clicked} | around


def two_tables(number, user):
    """Rows that say no kind show what others are actions on."""
    around = {"user_id": user, "created_at": written(number)}
    for place in range(2):
        yield {"post_id": ITEMS[place], "dwell_ms": 800} | around
    yield {"post_id": ITEMS[1], "action": "click"} | around


def feed_slates(number, user):
    """A list by its own id, to which a click refers by another name."""
    around = {"user_id": user, "created_at": written(number)}
    yield {"id": f"l{number}", "item_ids": ITEMS} | around
    yield {"id": f"c{number}", "slate_id": f"l{number}", "item_id": ITEMS[1], "kind": "click"} | (
        around
    )


def accepted(number, user):
    """Feedback whose kind says nothing that is known, with a list of words."""
    around = {"userId": user, "createdAt": written(number), "terms": ["oak", "chair"]}
    for name, place in [("shown", 0), ("shown", 1), ("accepted", 1), ("clicked", 1)]:
        own = {"id": f"{number}{name}{place}", "kind": f"suggestion_{name}"}
        yield own | {"docId": ITEMS[place]} | around


def ad_network(number, user):
    """Messages without a kind, of which clicks have an id of their own."""
    around = {"device_id": user, "ts": AT + number}
    for place in range(2):
        yield {"impression_id": f"i{number}{place}", "ad_unit_id": ITEMS[place]} | around
    clicked = {"impression_id": f"i{number}1", "click_id": f"c{number}"}
    yield clicked | {"ad_unit_id": ITEMS[1]} | around


def signals(number, user):
    """Two tables, of which one has a kind, by the end of its name, and its time by another."""
    around = {"session_id": f"s{user}", "doctor_id": user, "query_id": f"l{number}"}
    for place in range(2):
        of = {"impression_id": f"i{number}{place}", "content_id": ITEMS[place]}
        yield of | around | {"timestamp_served": written(number)}
    told = {"signal_id": f"b{number}", "signal_type": "click", "timestamp": written(number, 5)}
    yield of | around | told


def addresses(number, user):
    """Clicks have the address of an item, lists its title first: https://docs.luigisbox.com."""
    around = {"client_id": user, "timestamp": AT // 1000 + number}
    rows = [{"title": f"Box {one}", "type": "item", "url": one} for one in ITEMS]
    yield {"type": "event", "lists": {"Recommendation": {"items": rows}}} | around
    yield {"type": "click", "action": {"type": "click", "resource_identifier": ITEMS[1]}} | around


def stock_keeping(number, user):
    """Clicks have another id of the item than the one that lists have first."""
    around = {"user_id": user, "list_id": f"l{number}", "ts": AT + number}
    rows = [{"product_id": 7 * place, "code": {"sku": one}} for place, one in enumerate(ITEMS)]
    yield {"event": "list_view", "products": rows} | around
    yield {"event": "click", "sku": ITEMS[1]} | around


def shelves(number, user):
    """The same of single impressions."""
    around = {"user_id": user, "list_id": f"l{number}", "ts": AT + number}
    for place, one in enumerate(ITEMS):
        yield {"event": "impression", "product_id": 7 * place, "sku": one, "tags": ["x"]} | around
    yield {"event": "click", "sku": ITEMS[1]} | around


def appsflyer(number, user):
    """The user's id begins as that of an app: https://support.appsflyer.com (raw data)."""
    around = {"app_id": "com.shop", "appsflyer_id": user}
    shown = json.dumps({"af_content_list": ITEMS})
    yield (
        around
        | {"event_name": "af_list_view", "event_time": written(number)}
        | {"event_value": shown}
    )
    clicked = {"event_name": "af_content_click", "event_time": written(number, 5)}
    yield around | clicked | {"event_value": json.dumps({"af_content_id": ITEMS[1]})}


def widgets(number, user):
    """A page with two lists, of which each has an id whose name tells nothing."""
    lists = [
        {"placement": f"l{number}-{place}", "contents": [{"contentId": one} for one in items]}
        for place, items in enumerate((ITEMS[:1], ITEMS[1:]))
    ]
    around = {"producedAt": written(number), "body": {"user": {"uuid": user}}}
    yield around | {"schema": "page.rendered.v3", "body": around["body"] | {"widgets": lists}}
    clicked = {"placement": f"l{number}-1", "contentId": ITEMS[1]}
    yield around | {"schema": "content.tapped.v1", "body": around["body"] | clicked}


def in_batches(number, user):
    """Clicks come in batches, lists alone."""
    shown = {"event": "list_shown", "listId": f"l{number}", "ts": AT + number, "items": ITEMS}
    yield {"userId": user} | shown
    clicked = {"event": "click", "listId": f"l{number}", "itemId": ITEMS[1], "ts": AT + number}
    yield {"userId": user, "sent": AT + 9_000, "events": [clicked]}


def promotions(number, user):
    """No name tells the item: https://developers.atinternet-solutions.com (self-promotion)."""
    around = {"visitor_privacy_id": user, "event_time_utc": written(number)}
    for one in ITEMS:
        shown = {"event_name": "self_promotion.impression", "onsitead_creation": one}
        yield around | shown | {"onsitead_general_placement": "home"}
    clicked = {"event_name": "self_promotion.click", "onsitead_creation": ITEMS[1]}
    yield around | clicked | {"onsitead_general_placement": "home"}


def snapshots(number, user):
    """Events in lists in lists, with the user around all: Optimizely's event API."""
    events = [
        {"key": "recs_shown", "timestamp": AT, "tags": {"rec_id": f"l{number}", "sku_list": ITEMS}},
        {"key": "rec_click", "timestamp": AT, "tags": {"rec_id": f"l{number}", "sku": ITEMS[1]}},
    ]
    for event in events:
        visit = {"decisions": [{"campaign_id": "9"}], "events": [event]}
        yield {"account_id": "1", "visitors": [{"visitor_id": user, "snapshots": [visit]}]}


def commerce(number, user):
    """What shows lists has no kind, and the kind of clicks has a path: mParticle's batches."""
    products = [{"id": each, "position": place} for place, each in enumerate(ITEMS, 1)]
    shown = {"product_impressions": [{"product_impression_list": "top", "products": products}]}
    clicked = {"product_action": {"action": "click", "products": [{"id": ITEMS[1]}]}}
    for said in (shown, clicked):
        data = said | {"timestamp_unixtime_ms": AT + number}
        yield {"mpid": user, "events": [{"event_type": "commerce_event", "data": data}]}


def mails(number, user):
    """Nothing but an address tells the user."""
    around = {"email": user, "message_id": f"l{number}"}
    yield around | {"event": "sent", "sent_at": written(number), "recommended_articles": ITEMS}
    yield around | {"event": "click", "clicked_at": written(number), "article_id": ITEMS[1]}


def ads_on_pages(number, user):
    """Each ad stands on the page of a document, as in Outbrain's log of clicks."""
    around = {"display_id": f"l{number}", "uuid": user, "timestamp": AT // 1000 + number}
    for each in ITEMS:
        yield around | {"document_id": 900 + number, "ad_id": each, "clicked": each == ITEMS[1]}


def marts(number, user):
    """A row for each item that was shown, with the times at which more was done to it."""
    around = {"rec_id": f"l{number}", "customer_id": user, "shown_at": written(number)}
    for each in ITEMS:
        taken = written(number + 1) if each == ITEMS[1] else None
        yield around | {"product_id": each, "clicked_at": taken, "purchased_at": None}
    later = around | {"rec_id": f"l{number}x", "shown_at": written(number + 9)}
    yield later | {"product_id": ITEMS[0], "clicked_at": None, "purchased_at": written(number + 10)}


def named_values(number, user):
    """Fields in a list of names and values."""
    for name, more in (("shown", {"item_ids": ",".join(ITEMS)}), ("click", {"item_id": ITEMS[1]})):
        fields = {"request_id": f"l{number}"} | more
        attributes = [{"name": one, "value": value} for one, value in fields.items()]
        yield {"event_name": f"reco_{name}", "ts": AT, "user": user, "attributes": attributes}


def slots(number, user):
    """An object of objects, by the names of their places."""
    around = {"user_id": user, "request_id": f"l{number}", "ts": AT + number}
    places = {f"place {each}": {"item_id": each, "model": "m"} for each in ITEMS}
    yield around | {"event": "page_personalized", "slots": places}
    yield around | {"event": "slot_clicked", "slot": "hero", "item_id": ITEMS[1]}


def texts_of_python(number, user):
    """Lists in texts as pandas writes them."""
    around = {"user_id": user, "request_id": f"l{number}", "ts": AT + number}
    recs = str([{"id": each, "score": None, "new": True} for each in ITEMS])
    yield around | {"event": "recs_served", "recs": recs}
    yield around | {"event": "rec_clicked", "id": ITEMS[1]}


def statements(number, user):
    """Who, what, and of what: xAPI."""
    around = {"actor": {"account": {"homePage": "https://x.org", "name": user}}}
    around["timestamp"] = written(number)
    result = {"result": {"extensions": {"items": ITEMS}}}
    yield around | {"id": f"s{number}", "verb": {"id": "https://x.org/verbs/suggested"}} | result
    verb = {"verb": {"id": "https://x.org/verbs/selected"}}
    yield around | {"id": f"c{number}", "object": {"id": ITEMS[1]}} | verb


def marts_of_lists(number, user):
    """A row for each list, with what was clicked of it and when, if anything was."""
    around = {"rec_id": f"l{number}", "customer_id": user, "product_ids": ITEMS}
    around["shown_at"] = written(number)
    yield around | {"clicked_at": written(number + 1), "clicked_product_id": ITEMS[1]}
    later = {"rec_id": f"l{number}x", "shown_at": written(number + 9)}
    yield around | later | {"clicked_at": None, "clicked_product_id": None}


def null_columns(number, user):
    """All kinds have all columns, and one that is called like a list's id is never filled."""
    around = {"user_id": user, "list": f"l{number}", "query": None, "ts": AT + number}
    yield around | {"event_type": "list_view", "item": ITEMS}
    yield around | {"event_type": "item_click", "item": [ITEMS[1]]}


def stories(number, user):
    """No name says that a list was shown, and nothing else has one."""
    around = {"user": user, "feed_id": f"l{number}", "at": written(number)}
    yield around | {"kind": "feed", "stories": [{"story_id": each} for each in ITEMS]}
    yield around | {"kind": "click", "story_id": ITEMS[1]}
    yield around | {"kind": "read", "story_id": ITEMS[1], "seconds": 7}


TRACKERS = {
    marts_of_lists: "l",
    null_columns: "l",
    stories: "l",
    marts: "l",
    named_values: "l",
    slots: "l",
    texts_of_python: "l",
    statements: None,
    ads_on_pages: "l",
    snapshots: "l",
    commerce: "made",
    mails: None,
    addresses: "made",
    stock_keeping: "l",
    shelves: "l",
    appsflyer: "made",
    widgets: "l",
    in_batches: "l",
    promotions: None,
    accepted: None,
    ad_network: None,
    signals: "l",
    batches: "l",
    recommended: None,
    flagged: None,
    meetups: None,
    bundles: "v",
    two_tables: None,
    feed_slates: "l",
    texts: "l",
    synerise: "l",
    particular_audience: None,
    issues: "l",
    shop_page: "made",
    cards: "l",
    pins: "i",
    papers: None,
    decisions: "l",
    tables: None,
    banners: None,
    labels: "l",
    braze: "l",
    variants: "l",
    klevu: "made",
    enhanced_ecommerce: "made",
    searchspring: "l",
    countly: "l",
    evergage: "made",
    spans: "l",
    teasers: None,
    carousels: "l",
    fullstory: "l",
    hotels: "l",
    conversions: "made",
    museum: "l",
    references: "l",
    stations: "l",
    customer_io: "l",
    units: "l",
    cookies: "l",
    clocks: None,
}
"""How the ids of lists begin; `None` for impressions without one."""


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_draft_maps_the_tracker(tracker, tmp_path):
    users = ["ann", "bob", "cyd"]
    messages = [one for number in range(7) for one in tracker(number, users[number % 3])]
    text, events = drafted(messages, tmp_path)
    assert tracker is searchspring or "# No rule takes" not in text
    feedback = [event for event in events if isinstance(event, FeedbackEvent)]
    shown = [event for event in events if not isinstance(event, FeedbackEvent)]
    for number, clicked in enumerate(one for one in feedback if one.feedback == "click"):
        item = ITEMS[number % 2] if tracker is banners else ITEMS[1]
        assert (clicked.user_id, clicked.item_id) == (users[number % 3], item)
        begins = TRACKERS[tracker]
        lists = [one for one in shown if one.request_id == clicked.request_id]
        if begins in {"l", "i"}:
            assert clicked.request_id is not None
            assert clicked.request_id.startswith(f"{begins}{number}")
            assert {one.user_id for one in lists} == {clicked.user_id}
    assert len([one for one in feedback if one.feedback == "click"]) == 7
    if TRACKERS[tracker] == "made":
        assert len({one.request_id for one in shown}) == 7
    for one in shown:
        items = {one.item_id} if isinstance(one, ImpressionEvent) else {*one.items}
        assert items <= {*ITEMS}
    assert {one.user_id for one in shown} == {*users}


def is_flat(tracker):
    return not any(
        isinstance(one, dict) for message in tracker(0, "ann") for one in message.values()
    )


@pytest.mark.parametrize("tracker", [*filter(is_flat, TRACKERS)])
@pytest.mark.parametrize("text", [json.dumps, str])
def test_cells_of_csv_are_drafted_as_the_values_in_them(tracker, text, tmp_path):
    """All are texts there: numbers, and lists as JSON or as pandas write them."""
    messages = [one for n in range(7) for one in tracker(n, ["ann", "bob", "cyd"][n % 3])]
    cells = [
        {
            name: text(one) if isinstance(one, list) else str(one)
            for name, one in message.items()
            if one is not None
        }
        for message in messages
    ]
    wanted, found = (told(drafted(each, tmp_path)[1]) for each in (messages, cells))
    assert found == wanted


def told(events):
    """Who was shown or took which items of which list, by the kinds of events."""
    return [
        (
            event.user_id,
            event.request_id,
            getattr(event, "feedback", None),
            (event.item_id,) if hasattr(event, "item_id") else tuple(event.items),
        )
        for event in events
    ]


def test_a_row_with_times_is_shown_once_and_taken_at_each_time(tmp_path):
    _, events = drafted([one for number in range(7) for one in marts(number, "ann")], tmp_path)
    taken = [event for event in events if isinstance(event, FeedbackEvent)]
    assert len(events) - len(taken) == 7 * (len(ITEMS) + 1)
    assert {one.feedback for one in taken} == {"click", "purchase"}
    assert len(taken) == 14
    shown = {one.request_id: one.ts for one in events if not isinstance(one, FeedbackEvent)}
    assert {one.ts - shown[one.request_id] for one in taken} == {60_000}  # a minute after


USERS = ["ann", "bob", "cyd"]
BETWEEN = {
    "page_opened": {"url": "/p/1", "title": "Hats"},
    "search_performed": {"query": "hat", "hits_total": 9},
    "login": {"method": "google"},
    "popup_shown": {"popup": "newsletter"},
    "experiment_viewed": {"experiment_id": "x1", "variant": "B"},
    "form_submitted": {"fields": ["name", "mail"]},
    "notification_clicked": {"notification_id": "n77"},
    "heartbeat": {"seq": 5},
}
"""Other messages of a site, which are about no item: their kinds, and what they have."""


def with_others_between(messages, chance):
    """Messages among others that have their user, their time and their kind at the same paths.

    It is None where messages have no kind, or one within a text.
    """
    read = [dict(leaves_of(message, "")) for message in messages]
    kind = kind_path(read)
    if kind is None or "(" in kind:
        return None
    found = []
    for message, leaves in zip(messages, read, strict=True):
        found.append(message | CONTEXT)
        for said in chance.sample(list(BETWEEN), chance.randrange(3)):
            other = {**BETWEEN[said], **CONTEXT}
            for path, value in leaves.items():
                if value in USERS or is_epoch(value) or is_written_time(value):
                    put(other, path, value)
            put(other, kind, said)
            found.append(other)
    return found


CONTEXT = {"app_version": "1.2.3", "platform": "web"}


def put(message, path, value):
    *above, name = path.replace('"', "").split(".")
    for step in above:
        message = message.setdefault(step, {})
    message[name] = value


def test_messages_of_no_item_between_the_others_change_nothing(seed, tmp_path):
    chance = random.Random(seed)
    tried = 0
    for tracker in chance.sample(list(TRACKERS), 6):
        messages = [one for number in range(7) for one in tracker(number, USERS[number % 3])]
        among = with_others_between(messages, chance)
        if among is not None:
            _, wanted = drafted(messages, tmp_path)
            _, found = drafted(among, tmp_path)
            assert sorted(map(repr, found)) == sorted(map(repr, wanted)), tracker.__name__
            tried += 1
    assert tried > 0


def test_a_list_of_items_by_name_needs_no_click_on_one_of_them(tmp_path):
    """The clicks of a short file may be on lists before it."""
    around = {"user_id": "ann", "ts": AT}
    suggested = {"event": "suggestions", "items": ["a", "b"]} | around
    form = {"event": "form_submitted", "fields": ["name", "mail"]} | around
    clicked = {"event": "click", "item_id": "c"} | around
    text, events = drafted([suggested, form, clicked], tmp_path)
    assert [event.__class__ is FeedbackEvent for event in events] == [False, True]
    assert "# No rule takes form_submitted." in text


@pytest.mark.parametrize("taken", ["1", "2000"])
def test_a_place_or_a_price_like_an_id_by_chance_does_not_tell_the_item(taken):
    """Nobody took an item of these lists."""
    rows = [{"product_id": 900 + one, "cents": 1000 * one, "nth": one} for one in range(1, 4)]
    shown = [{"event": "list_view", "user_id": user, "products": rows} for user in "abc"]
    clicked = [
        {"event": "click", "user_id": "a", "product_id": one} for one in (taken, "7001", "7002")
    ]
    assert "item_id: product_id}" in draft(lines(shown + clicked))


def test_what_items_share_is_no_item_though_lists_have_it_more_often():
    """The lists of most clicks came before the file begins."""
    names = ("a", "b", "c", "d")
    lists = [
        {"event": "shown", "items": [{"product_id": one, "category_id": "c1"} for one in names]}
        for _ in range(7)
    ]
    clicks = [{"event": "click", "product_id": one, "category_id": "c1"} for one in "axyzuvw"]
    around = [{"uid": f"u{n % 3}", "ts": AT + n} for n in range(7)]
    messages = [
        one | each for part in (lists, clicks) for one, each in zip(part, around, strict=True)
    ]
    text = draft(lines(messages))
    assert text.count("item_id: product_id") == 2
    assert "category_id\n" not in text.partition("rules:")[2]


def test_the_item_of_the_page_is_not_the_one_that_was_clicked_on_it():
    shown = [{"event": "shown", "item_id": "page", "items": ITEMS} for _ in range(3)]
    clicks = [{"event": "click", "item_id": "page", "clicked_id": one} for one in ITEMS]
    around = [{"uid": f"u{n}", "ts": AT + n} for n in range(3)]
    messages = [a | b for part in (shown, clicks) for a, b in zip(part, around, strict=True)]
    text = draft(lines(messages))
    assert "item_id: clicked_id  # a guess, by its values" in text


NAMES = {
    "item": ("item_id", "productId", "sku", "thingId", "pinId", "offerKey", "cardRef"),
    "inner": ("id", "item_id", "thing", "ref", "key"),
    "user": ("user_id", "visitorId", "subjectId", "personKey"),
    "list": ("request_id", "impressionId", "correlationId", "batchId", "decisionKey"),
}


def test_no_other_field_is_taken_for_an_id_whatever_the_ids_are_called(seed, tmp_path):
    """Beside them stand ids of pages, sessions, experiments, sellers, categories and events."""
    rng = random.Random(seed)
    item, inner, user, request = (rng.choice(names) for names in NAMES.values())
    singly, objects, on_list = rng.random() < 0.3, rng.random() < 0.6, rng.choice([1, 0.5, 0.2])
    categories = [f"cat{n}" for n in range(rng.choice([1, 3, 10]))]
    messages, expected = [], []

    def say(event, place, **more):
        around = {"event_id": f"e{len(messages)}", "experiment_id": f"x{place % 2}"}
        about = {"seller_id": f"sel{rng.randrange(7)}", "category_id": rng.choice(categories)}
        at = {"event": event, "ts": AT + place * 1_000, "page_id": f"pg{place % 4}"}
        messages.append(at | around | about | {user: who, request: f"q{place}"} | more)

    for place in range(60):
        who = f"u{rng.randrange(8)}"
        shown = [f"P{number}" for number in rng.sample(range(1_000, 1_060), 5)]
        session = {"session_id": f"{who}{place % 3}"}
        for one in shown if singly else ():
            say("shown", place, **{item: one}, **session)
            expected.append((who, f"q{place}", one))
        if not singly:
            of = {"category_id": categories[-1], "seller_id": "sel0", "price": 5}
            say("shown", place, items=[{inner: a} | of for a in shown] if objects else shown)
            expected.append((who, f"q{place}", tuple(shown)))
        for _ in range(rng.randrange(3)):
            one = rng.choice(shown) if rng.random() < on_list else f"P{rng.randrange(2_000, 3_000)}"
            say(rng.choice(["click", "click", "purchase"]), place, **{item: one})
            expected.append((who, f"q{place}", one))
    _, events = drafted(messages, tmp_path)
    assert expected == [
        (one.user_id, one.request_id, one.items if hasattr(one, "items") else one.item_id)
        for one in events
    ]


def test_the_end_of_a_name_may_be_the_type_of_its_value():
    """As clients of Twitter have it; two messages tell no ids by their values."""
    around = {"user_id_str": "ann", "list_id_str": "l1", "timestamp_ms": AT}
    shown = {"event": "impression", "item_id_strs": ITEMS} | around
    clicked = {"event": "click", "item_id_str": "elsewhere"} | around
    text = draft(lines((shown, clicked)))
    rules = text.partition("rules:")[2]
    for told in ("user_id: user_id_str", "request_id: list_id_str", "item_id: item_id_str"):
        assert told in rules


def test_a_session_has_one_user(tmp_path):
    """The id of a group is no user's: a session has seen several groups."""
    messages = [
        {
            "event": "impression" if place < 2 else "click",
            "session_id": f"s{number}",
            "reader_group_id": f"g{(number + place) % 3}",
            "reader_card_no": f"a{number % 4}",
            "request_id": f"l{number}",
            "item_id": ITEMS[place % 2],
            "ts": AT + number * 60_000 + place,
        }
        for number in range(12)
        for place in range(3)
    ]
    _, events = drafted(messages, tmp_path)
    assert [one.user_id for one in events] == [one["reader_card_no"] for one in messages]


def test_what_few_messages_tell_is_told_by_more(tmp_path):
    """Of this seed, no list showed what was bought, by sellers of what was shown."""
    test_no_other_field_is_taken_for_an_id_whatever_the_ids_are_called(322, tmp_path)


@pytest.mark.parametrize("first", ["click", "purchase"])
def test_what_more_messages_tell_counts(first, tmp_path):
    """The few purchases are of what nothing showed, by sellers of what was."""
    messages = []
    for number in range(21):
        for event in ("shown", "click") if number % 2 else ("shown", "purchase")[: 1 + number % 3]:
            card = f"Q{number}" if event == "purchase" else f"P{number % 7}"
            of = {"seller_id": f"s{number % 5}", "user_id": f"u{number % 3}", "ts": AT + number}
            messages.append({"event": event, "cardRef": card} | of)
    messages.sort(key=lambda one: one["event"] != first)
    _, events = drafted(messages, tmp_path)
    assert [one.item_id for one in events] == [one["cardRef"] for one in messages]


def test_what_was_taken_of_a_list_is_no_kind_though_it_is_called_an_action():
    around = [{"user": f"u{number % 3}", "ts": AT + number} for number in range(7)]
    lists = {"actionSpace": [{"id": one} for one in ITEMS]}
    messages = [lists | {"action": ITEMS[number % 3]} | of for number, of in enumerate(around)]
    text = draft(lines(messages))
    assert "when:" not in text and 'each: "[action][?@]"' in text


def test_what_several_users_searched_for_is_no_item():
    messages = [
        {"event": event, "query": "shoes", "user_id": f"u{number % 3}", "ts": AT + number}
        | {"thingId": ITEMS[number % 3]}
        for number in range(9)
        for event in ("shown", "click")
    ]
    text = draft(lines(messages))
    assert text.count("item_id: thingId") == 2


def test_the_cart_that_some_users_have_does_not_make_feedback_of_what_they_saw():
    messages = [
        {"item_id": ITEMS[number % 3], "user_id": f"u{number % 2}", "ts": AT + number}
        | ({"cart_id": "c1"} if number % 2 else {})
        for number in range(12)
    ]
    text = draft(lines(messages))
    assert "cart_id" not in text.partition("rules:")[2]


def test_what_has_no_kind_beside_feedback_is_shown_by_a_guess():
    around = [{"user_id": f"u{number % 2}", "ts": AT + number} for number in range(6)]
    shown = [{"item_id": ITEMS[number % 3]} | of for number, of in enumerate(around)]
    messages = [*shown, *({"action": "like"} | one for one in shown)]
    rules = draft(lines(messages)).partition("rules:")[2]
    assert 'when: "!action"' in rules and rules.count("# a guess") == 1


def test_flags_of_rows_are_feedback_of_their_own_kinds(tmp_path):
    rows = [
        {"user_id": f"u{number % 2}", "post_id": ITEMS[number % 3], "shown_at": AT + number}
        | {"opened": number % 3 == 0, "engaged": False, "featured": number % 2 == 0}
        for number in range(12)
    ]
    _, events = drafted(rows, tmp_path)
    feedback = [one for one in events if isinstance(one, FeedbackEvent)]
    assert {(one.feedback, one.item_id) for one in feedback} == {("opened", ITEMS[0])}
    assert len(feedback) == 4 and len(events) == 16


def of_topics(*topics):
    """Messages of topics of one kind each, which say no kind."""
    users = ("ann", "bob", "cyd")
    around = [{"userId": users[n % 3], "requestId": f"l{n}"} for n in range(7)]
    return [one | topic for topic in topics for one in around]


@pytest.mark.parametrize(
    ("lists", "clicks"),
    [
        ({"servedAt": AT, "items": ITEMS}, {"clickedAt": AT + 5, "itemId": ITEMS[1]}),
        (
            {"shown_ts": AT, "items": ITEMS},
            {"shown_ts": AT, "click_ts": AT + 5, "item": ITEMS[1]},
        ),
        ({"ts": AT, "items": ITEMS}, {"ts": AT + 5, "item": ITEMS[1]}),
    ],
)
def test_topics_of_one_kind_are_told_by_their_fields(lists, clicks, tmp_path):
    _, events = drafted(of_topics(lists, clicks), tmp_path)
    assert [one.items for one in events[:7]] == [tuple(ITEMS)] * 7
    assert [(one.feedback, one.item_id, one.ts) for one in events[7:]] == [
        ("click", ITEMS[1], AT + 5)
    ] * 7
    assert [one.request_id for one in events] == [f"l{n}" for n in range(7)] * 2


def test_rows_of_two_tables_are_told_by_a_time_that_only_one_has(tmp_path):
    """An entry that was opened: a kind of its own. The rule for what is left stands last."""
    shown = [
        one | {"served_at": written(n), "position": place, "entry_id": item}
        for n, one in enumerate(of_topics({}))
        for place, item in enumerate(ITEMS, 1)
    ]
    opened = [one | {"opened_at": written(9), "entry_id": ITEMS[1]} for one in of_topics({})]
    _, events = drafted((*shown, *opened), tmp_path)
    assert [one.item_id for one in events[:21]] == ITEMS * 7
    assert {(one.feedback, one.item_id) for one in events[21:]} == {("opened", ITEMS[1])}
    rows = [one | {"dt": "2026-01-05", "ts": written(1), "items": ITEMS} for one in of_topics({})]
    clicks = [one | {"dt": "2026-01-05", "click_time": written(2), "item": "a"} for one in opened]
    text = draft(lines((*rows, *clicks)))
    assert text.index("when: click_time") < text.index("slate:")


def test_a_time_in_a_number_needs_no_name():
    message = {"log": "search", "cid": "c1", "happened": AT // 1000, "doc_id": 1_767_614_400}
    text = draft([json.dumps(message | {"top": [{"doc": "a"}, {"doc": "b"}]}).encode()])
    assert "ts: {from: happened, unit: auto}" in text


def test_how_long_something_played_is_not_when():
    rows = [one | {"itemId": "a", "ts": AT, "play_time_ms": 9_000} for one in of_topics({})]
    assert "kind: {const: click}" in draft(lines(rows))


def test_the_date_of_an_event_is_not_its_kind():
    message = {"visitor_id": "v", "product_id": "a", "event_date": "2026-01-05"}
    text = draft([json.dumps(message | {"impression_time": written(1)}).encode()])
    assert "- impression:" in text


def test_a_topic_alone_is_told_by_its_time():
    times = {"purchasedAt": "kind: {const: purchase}", "impressionTime": "- impression:"}
    for time, said in times.items():
        values = [json.dumps(one | {time: AT, "itemId": "a"}).encode() for one in of_topics({})]
        text = draft(values)
        assert said in text
        assert "a guess" not in text
    text = draft([json.dumps(one | {"ts": AT, "itemId": "a"}).encode() for one in of_topics({})])
    assert "click}  # a guess: no field says what was done" in text


def test_places_in_a_row_tell_more_than_rows():
    messages = [one for number in range(7) for one in carousels(number, f"u{number % 3}")]
    text = draft(lines(messages))
    assert "position: {from: horizontal_position, base: 0}" in text


def test_what_is_on_top_of_each_list_is_not_taken():
    """Azure's Personalizer says which item of a ranking to show first."""
    messages = [
        {"ranking": [{"id": one} for one in (first, "b", "c")], "rewardActionId": first}
        for first in "adeadea"
    ]
    around = {"userId": "ann", "time": written(1)}
    text = draft([json.dumps(around | one).encode() for one in messages])
    assert "rewardActionId" not in text.partition("rules:")[2]


def test_titles_tell_no_kinds():
    titles = ["Play and like", "The list", "Buy a cart", "A view", "Shown clicks"]
    messages = [
        {"event": event, "user_id": f"u{number}", "ts": AT, "item": {"id": "a", "title": title}}
        for number in range(40)
        for event in ("impression", "click")
        for title in [f"{titles[number % 5]} {number}"]
    ]
    text = draft(lines(messages))
    assert "when: {event: click}" in text


def test_behaviour_of_taobao_is_no_click():
    messages = [
        {"user_id": 7, "item_id": 1, "behavior_type": kind, "timestamp": AT // 1000}
        for kind in ("pv", "fav", "buy", "cart")
    ]
    text = draft(lines(messages))
    for kind in ("view", "like", "purchase", "cart"):
        assert f"kind: {{const: {kind}}}" in text


def test_a_draft_tells_feedback_of_other_kinds(tmp_path):
    messages = [one for number in range(7) for one in variants(number, f"u{number % 3}")]
    text = draft(lines(messages))
    assert text.count("variantId  # a guess, by its values") == 1


@pytest.mark.parametrize(
    ("name", "act"),
    [
        ("recommendation_shown", "shown"),
        ("recommendations.generated", "shown"),
        ("saved_search_displayed", "shown"),
        ("recommendation_save", ""),
        ("RecommendationFeedback", ""),
        ("added_to_list", ""),
        ("recommendation_add_to_cart", "cart"),
        ("recs-unit-render", "shown"),
        ("unlike", ""),
        ("item_unsaved", ""),
        ("Product aangeklikt", "click"),
        ("wyświetlenie_listy", "shown"),
        ("urun_tiklama", "click"),
        ("Показ рекомендаций", "shown"),
        ("商品点击", "click"),
        ("レコメンド表示", "shown"),
        ("상품_구매", "purchase"),
    ],
)
def test_what_is_done_with_a_recommendation_shows_none(name, act):
    assert act_of(name) == act
