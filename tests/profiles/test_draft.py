"""Drafts of profiles for trackers that have none, used as they are."""

import json
import random

import pytest
from trackers import drafted, lines

from streameval.core.definition import Definition
from streameval.core.events import FeedbackEvent, SlateEvent
from streameval.profiles import library
from streameval.profiles.deliveries import types_off
from streameval.profiles.draft import draft
from streameval.profiles.message_fields import act_of, leaves_of

AT = 1_767_614_400_000
"""2026-01-05 12:00:00 UTC."""


def amplitude(event_type, **properties):
    """Amplitude's HTTP API v2."""
    return {
        "user_id": "ann",
        "device_id": "d1",
        "event_type": event_type,
        "time": AT,
        "insert_id": "5f0adeff",
        "event_properties": properties,
    }


def mixpanel(event, **properties):
    """Mixpanel's raw export; its times are seconds."""
    who = {"time": AT // 1000, "distinct_id": "ann", "$insert_id": "29fc", "mp_lib": "web"}
    return {"event": event, "properties": who | properties}


def posthog(event, **properties):
    """PostHog's batch exports."""
    return {
        "uuid": "0190",
        "event": event,
        "distinct_id": "ann",
        "timestamp": "2026-01-05T12:00:00Z",
        "properties": {"$lib": "web", "$ip": "10.0.0.1", **properties},
    }


def retail(kind, *products):
    """User events of Google's Vertex AI Search for commerce."""
    details = [{"product": {"id": product}, "quantity": 1} for product in products]
    return {
        "eventType": kind,
        "visitorId": "ann",
        "eventTime": "2026-01-05T12:00:00Z",
        "attributionToken": "l1",
        "experimentIds": ["e1"],
        "variant": "B",
        "productDetails": details,
    }


def row(kind, **columns):
    """A row of a table, as Debezium's JSON has it: jsonb is text."""
    return {
        "id": 7,
        "visitor_id": "ann",
        "created_at": "2026-01-05T12:00:00Z",
        "kind": kind,
    } | columns


def line(message, **context):
    """A line of a service's log: what it is of has an `id`."""
    return {
        "time": "2026-01-05T12:00:00Z",
        "level": "info",
        "message": message,
        "context": {"user": {"id": "ann"}, "trace": {"id": "l1"}} | context,
    }


def article(event_name, **columns):
    """A row of an event table: longer names than those of a tracker."""
    return {
        "event_name": event_name,
        "server_event_timestamp_ms": AT,
        "hashed_user_uuid": "ann",
        "source_request_id": "l1",
        "ab_group": "B",
    } | columns


SHOWN = [{"sku": "a", "rank": 0}, {"sku": "b", "rank": 1}]


def columns(name, **more):
    """A row of a warehouse, as it is exported to JSON."""
    who = {"USER_ID": "ann", "EVENT_TS": "2026-01-05 12:00:00.000", "REQUEST_ID": "l1"}
    return {**who, "EVENT_NAME": name, **more}


def cloud(kind, **data):
    """An event in the envelope of CloudEvents."""
    envelope = {"specversion": "1.0", "id": "5f", "source": "/x", "time": "2026-01-05T12:00:00Z"}
    return {
        **envelope,
        "type": f"com.acme.{kind}",
        "data": {"userId": "ann", "listId": "l1"} | data,
    }


OF_ANN = {"userId": "ann", "requestId": "l1", "time": {"seconds": AT // 1000, "nanos": 0}}
TRACKERS = {
    "amplitude": [
        amplitude("Recommendations Shown", list="l1", items=["a", "b"], algorithm="B", tags=["x"]),
        amplitude("Recommendation Clicked", list="l1", item="b", position=2),
        amplitude("Order Placed", list="l1", products=[{"id": "b", "price": 2.5}]),
        amplitude("Session Started", tags=["x"]),
    ],
    "mixpanel, an impression for each item": [
        mixpanel("Impression", list_id="l1", item_id="a", position=1, variant="B"),
        mixpanel("Impression", list_id="l1", item_id="b", position=2, variant="B"),
        mixpanel("Click", list_id="l1", item_id="b"),
        mixpanel("Purchase", list_id="l1", item_id="b"),
        mixpanel("$mp_web_page_view", current_url="/"),
    ],
    "mixpanel, positions from 0": [
        mixpanel("Impression", list_id="l1", item_id="a", position=0, variant="B"),
        mixpanel("Impression", list_id="l1", item_id="b", position=1, variant="B"),
        mixpanel("Click", list_id="l1", item_id="b"),
        mixpanel("Purchase", list_id="l1", item_id="b"),
    ],
    "posthog": [
        posthog("$pageview", query="list"),
        posthog("recommendations displayed", requestId="l1", results=SHOWN, variant="B"),
        posthog("product_selected", requestId="l1", productId="b"),
        posthog("productsBought", requestId="l1", products=[{"productId": "b"}]),
    ],
    "retail": [
        retail("search", "a", "b"),
        retail("select-item", "b"),
        retail("purchase-complete", "b"),
    ],
    "lines of a log": [
        line("recommendations served", model="B", response={"items": [{"id": "a"}, {"id": "b"}]}),
        line("item clicked", item={"id": "b"}),
        line("order placed", item={"id": "b"}, order={"id": "o"}),
    ],
    "rows of an event table": [
        article("impression", article_id="a", list_rank=0),
        article("impression", article_id="b", list_rank=1),
        article("click", article_id="b"),
        article("transaction", article_id="b"),
    ],
    "rows with JSON as text": [
        row("list_served", req="l1", bucket="B", items=json.dumps(SHOWN), sku=None),
        row("item_tapped", req="l1", sku="b", items=None),
        row("purchase", req="l1", sku="b", items=None),
        row("cart_item_removed", req="l1", sku="b", items=None),
    ],
    "rows with ids in one text, and times without a zone": [
        row("imp", req="l1", arm="B", shown="a | b", created_at="2026-01-05 12:00:00"),
        row("clk", req="l1", item="b", created_at="2026-01-05 12:00:00.000"),
        row("order", req="l1", item="b", created_at="2026-01-05T12:00:00"),
    ],
    "columns of a warehouse": [
        columns("RECS_SHOWN", ITEM_IDS="a,b", VARIANT="B"),
        columns("ITEM_CLICKED", ITEM_ID="b"),
        columns("ITEM_PURCHASED", ITEM_ID="b"),
    ],
    "numbers for ids": [
        {"customerNumber": "ann", "listKey": "l1", "stamp": "2026-01-05T12:00:00Z"} | more
        for more in (
            {"event": "ListServed", "articleNumbers": ["a", "b"], "arm": "B"},
            {"event": "ArticleSelected", "articleNumber": "b"},
            {"event": "ArticleOrdered", "articleNumber": "b"},
        )
    ],
    "a reader, and a list in a text": [
        {"reader_id": "ann", "at": AT, "listid": "l1"} | more
        for more in (
            {"kind": "view", "list": "a|b", "bucket": "B"},
            {"kind": "click", "article": "b"},
            {"kind": "order", "article": "b"},
        )
    ],
    "verbs, and objects": [
        {"actor": "ann", "published": "2026-01-05T12:00:00Z", "list_id": "l1"} | more
        for more in (
            {"verb": "View", "object": {"items": ["a", "b"]}, "variant": "B"},
            {"verb": "Select", "object": "b"},
            {"verb": "Buy", "object": "b"},
        )
    ],
    "rows of a log of ads": [
        {"cookie": "ann", "log_time": "2026-01-05 12:00:00", "auction_id": "l1"} | more
        for more in (
            {"log_type": "impression", "ad": "a", "slot": 1, "bucket": "B"},
            {"log_type": "impression", "ad": "b", "slot": 2, "bucket": "B"},
            {"log_type": "click", "ad": "b"},
            {"log_type": "purchase", "ad": "b"},
        )
    ],
    **{
        language: [
            {
                user: "ann",
                time: "2026-01-05T12:00:00Z",
                kind: shown,
                item: ["a", "b"],
                "bucket": "B",
            }
            | {"req": "l1"},
            {user: "ann", time: "2026-01-05T12:00:00Z", kind: click, item: "b", "req": "l1"},
            {user: "ann", time: "2026-01-05T12:00:00Z", kind: bought, item: "b", "req": "l1"},
        ]
        for language, user, time, kind, item, shown, click, bought in (
            ("German", "nutzer", "zeit", "ereignis", "artikel", "anzeige", "klick", "gekauft"),
            ("Spanish", "id_usuario", "fecha", "evento", "producto", "impresion", "clic", "compra"),
            ("French", "utilisateur", "date", "evenement", "produit", "affichage", "clic", "achat"),
        )
    },
    "messages of a oneof": [
        {"recommendResponse": {**OF_ANN, "results": SHOWN, "variant": "B"}},
        {"feedback": {**OF_ANN, "itemId": "b", "feedbackType": "CLICK"}},
        {"feedback": {**OF_ANN, "itemId": "b", "feedbackType": "PURCHASE"}},
    ],
    "events that are told by their key alone": [
        {"slateShown": {**OF_ANN, "results": SHOWN, "variant": "B"}},
        {"itemClicked": {**OF_ANN, "itemId": "b"}},
        {"itemBought": {**OF_ANN, "itemId": "b"}},
    ],
    "CloudEvents of which the envelope says what and when": [
        cloud("jobs.shown", items=["a", "b"], variant="B"),
        cloud("job.clicked", itemId="b"),
        cloud("job.purchased", itemId="b"),
    ],
}


def app(event, **more):
    """An event of somebody's own application."""
    return {"event": event, "usr": {"id": "ann"}, "timestamp_unixtime_ms": AT} | more


# Names that no list of words has: what was shown tells, since feedback has it too.
BY_VALUES = {
    "an auction of ads": [
        app("imp", creative_id="a", auction_id="l1", app_id="x"),
        app("imp", creative_id="b", auction_id="l1", app_id="x"),
        app("clk", creative_id="b", auction_id="l1"),
    ],
    "the plural of an item's name": [
        app("row_shown", trackId="l1", videoIds=["a", "b"]),
        app("title_click", trackId="l1", videoId="b"),
    ],
    "items in lists alone": [
        app("impression", product_ids=["a", "b"], miso_id="l1"),
        app("click", product_ids=["b"], miso_id="l1"),
    ],
    "people as items, and a word that says nothing": [
        app("deck_served", deck_id="l1", candidates=["a", "b"]),
        app("swipe", deck_id="l1", target_member_id="b"),
    ],
    "lists that are named in their event": [
        app("assistant.suggestions", turn_id="l1", suggestions=["a", "b"]),
        app("assistant.suggestion_chosen", turn_id="l1", suggestion="b"),
    ],
    "a page of results, and pages of one": [
        app("srp_view", srp_id="l1", listings=[{"listing_id": one} for one in "ab"]),
        app("ldp_view", srp_id="l1", listing_id="b"),
    ],
    "a list without a name for its items": [
        app("recs_shown", tiles=["a", "b"], reco_uid="l1"),
        app("tile_click", tile_key="b", reco_uid="l1"),
    ],
    "an index that is no place": [
        app("search", token="l1", results=[{"doc": {"id": one, "index": "p"}} for one in "ab"]),
        app("search_click", token="l1", doc={"id": "b", "index": "p"}),
    ],
}


OWN_KINDS = {
    "people as items, and a word that says nothing": "swipe",
    "lists that are named in their event": "suggestion_chosen",
    "a page of results, and pages of one": "view",
}


@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_draft_maps_the_messages_that_it_was_made_of(tracker, tmp_path):
    _, events = drafted(TRACKERS[tracker], tmp_path)
    shown, feedback = {}, []
    for event in events:
        assert (event.ts, event.user_id, event.request_id) == (AT, "ann", "l1")
        if isinstance(event, FeedbackEvent):
            feedback.append((event.feedback, event.item_id))
            continue
        assert event.variant == "B"
        if isinstance(event, SlateEvent):
            shown |= dict(enumerate(event.items, 1))
        else:
            shown[event.position] = event.item_id
    assert shown == {1: "a", 2: "b"}
    assert feedback == [("click", "b"), ("purchase", "b")]


NUMBERED = {
    "by place": ({"1": "a", "2": "b"}, ["a", "b"]),
    "by place, with a hole": ({"0": {"id": "a"}, "2": {"id": "b"}}, [{"id": "a"}, {"id": "b"}]),
    "by the ids of its items": ({"12": 0.5, "7": 0.25}, None),
}


@pytest.mark.parametrize("case", NUMBERED)
def test_an_object_with_numbers_for_names_is_a_list(case, tmp_path):
    """As PHP writes a list with holes; in order it is one in JSON, too."""
    numbered, listed = NUMBERED[case]
    lists = [app("shown", list_id=f"l{n}", recs={"items": numbered}) for n in range(3)]
    lists += [app("shown", list_id="l4", recs={"items": listed})] if listed else []
    _, events = drafted([*lists, app("click", list_id="l0", item_id="b")], tmp_path)
    shown = ("12", "7") if "ids" in case else ("a", "b")
    assert [one.items for one in events[:-1]] == [shown] * len(lists)


def test_lists_without_an_id_get_one_of_their_user_and_time(tmp_path):
    """Feedback names none then."""
    lists = [{"session": user, "ts": AT, "type": "impressions", "aids": [1, 2]} for user in (7, 8)]
    text, events = drafted([*lists, {"session": 7, "ts": AT, "aid": 2, "type": "clicks"}], tmp_path)
    assert [one.request_id for one in events] == [f"7 {AT}", f"8 {AT}", None]
    assert "# no id of lists was found" in text


def test_what_is_done_with_a_shown_item_is_feedback_of_its_own_kind(tmp_path):
    """What takes something back is none, and what is about no item that was shown."""
    shown = app("recs.shown", request_id="l1", items=["a", "b"])
    done = [
        app(event, request_id="l1", item="b")
        for event in ("rec.dislike", "ItemSaved", "video/progress", "item_removed", "unlike", "No")
    ]
    text, events = drafted([shown, *done, app("ping", item="z"), app("page scrolled")], tmp_path)
    assert [one.feedback for one in events[1:]] == ["dislike", "item_saved", "progress", "no"]
    assert "No rule takes item_removed, unlike, ping" in text


@pytest.mark.parametrize("tracker", BY_VALUES)
def test_values_tell_what_names_do_not(tracker, tmp_path):
    text, events = drafted(BY_VALUES[tracker], tmp_path)
    *shown, click = events
    listed = [one.items if isinstance(one, SlateEvent) else [one.item_id] for one in shown]
    items = [item for one in listed for item in one]
    assert {(one.ts, one.user_id, one.request_id) for one in events} == {(AT, "ann", "l1")}
    assert (items, click.item_id) == (["a", "b"], "b")
    assert click.feedback == OWN_KINDS.get(tracker, "click")
    assert "# a guess, by its values" in text


def row(request, **more):
    """A row of a warehouse: a request with what it showed."""
    return {"impression_time": "2026-01-05 12:00:00", "user_id": "ann", "search_id": request} | more


def flagged(name, flags):
    return [
        {"sku": item, "order": place, name: flag}
        for place, (item, flag) in enumerate(zip("abc", flags, strict=True))
    ]


# What was shown, and what somebody took of it, in one message.
ROWS = {
    "two lists": [
        row("l1", read_time=13.0, ids_inview=[411, 412, 413], ids_clicked=[412, 413], device=2),
        row("l2", read_time=14.0, ids_inview=[413, 414, 415], ids_clicked=[], device=1),
        row("l3", read_time=15.0, ids_inview=[413, 416], ids_clicked=[416], device=1),
    ],
    "one id of a list": [
        row("l1", recs=["aa", "bb"], clicked_item="bb", page="a"),
        row("l2", recs=["aa", "cc"], clicked_item=None, page="c"),
        row("l3", recs=["dd", "cc", "aa"], clicked_item="dd", page="a"),
    ],
    "a list in a text": [
        row("l1", action_type="clickout item", reference="1032", impressions="3400|1032|5100"),
        row("l2", action_type="search", reference="Newtown", impressions=None),
    ],
    "texts of both": [
        row("l1", shown_skus="411;412;413", clicked_skus="412;413"),
        row("l2", shown_skus="411;415;416", clicked_skus="411"),
    ],
    "flags": [
        row("l1", results=flagged("was_clicked", [False, True, False])),
        row("l2", results=flagged("was_clicked", [False, False, False])),
    ],
    "flags that are numbers": [
        row("l1", results=flagged("purchased", [1, 0, 0])),
        row("l2", results=flagged("purchased", [0, 0, 1])),
    ],
    "flags of two kinds": [
        row(
            request,
            hits=[
                {"sku": item, "was_clicked": item != "b", "purchased": item == bought}
                for item in "abc"
            ],
        )
        for request, bought in (("l1", "a"), ("l2", ""))
    ],
    "candidates that were not shown": [
        {
            "request_ts": AT,
            "customer": "ann",
            "reco_id": request,
            "candidates": [
                {"sku": item, "shown": item != "d", "clicked": item == clicked} for item in "abcd"
            ],
        }
        for request, clicked in (("l1", "b"), ("l2", ""))
    ],
    "lists of flags": [
        row("l1", places=[1, 2, 3], recs=["aa", "bb", "cc"], clicks=[0, 1, 0], liked=[0, 0, 0]),
        row("l2", places=[1, 2], recs=["cc", "aa"], clicks=[0, 0], liked=[1, 0]),
    ],
    "lists of flags of candidates": [
        row("l1", was_shown=[True, True, False], candidates=["aa", "bb", "cc"], labels=[1, 0, 0]),
        row("l2", was_shown=[False, True, True], candidates=["cc", "bb", "dd"], labels=[0, 0, 1]),
    ],
    "flags in a text": [
        row("l1", impressions="N1 N2 N3", labels="0 1 0"),
        row("l2", impressions="N3 N1", labels="0 0"),
    ],
    "flags of objects": [
        row("l1", items=[{"id": "aaaa"}, {"id": "bbbb"}], purchased=[False, True]),
        row("l2", items=[{"id": "cccc"}, {"id": "aaaa"}], purchased=[False, False]),
    ],
    "pairs with a flag": [
        row("l1", impressions=[["aa", 0], ["bb", 1]], size=[[300, 250], [1, 1]]),
        row("l2", impressions=[["cc", 0], ["aa", 0]], size=[[300, 250], [1, 1]]),
    ],
    "pairs in a text": [
        row("l1", impressions="aa:0 bb:1", at="10:30 12:30"),
        row("l2", impressions="cc:0 aa:0", at="10:30 12:30"),
    ],
    "flags that are texts": [
        row("l1", results=flagged("was_clicked", ["0", "1", "0"])),
        row("l2", results=flagged("was_clicked", ["0", "0", "0"])),
    ],
    "flags of yes and no": [
        row("l1", results=flagged("was_clicked", ["N", "Y", "N"]), liked=["no", "no", "yes"]),
        row("l2", results=flagged("was_clicked", ["N", "N", "N"]), liked=["no", "no", "no"]),
    ],
    "lists of yes and no": [
        row("l1", skus=["a", "b"], clicked=["f", "t"]),
        row("l2", skus=["b", "c"], clicked=["f", "f"]),
    ],
    "places": [
        row("l1", results=["aa", "bb", "cc"], clicked_positions=[1, 3], selected_tab_index=0),
        row("l2", results=["cc", "aa"], clicked_positions=[], selected_tab_index=1),
    ],
    "an index": [
        row("l1", slate=["aa", "bb"], clicked_index=1, opened="10:30,12:30"),
        row("l2", slate=["cc", "aa"], clicked_index=None, opened="10:30,12:30"),
    ],
    "columns": [
        row("l1", rec_1="aaaa", rec_2="bbbb", rec_3="c", clicked="bbbb", line_1="x", line_2="y"),
        row("l2", rec_1="c", rec_2="aaaa", rec_3=None, clicked=None, line_1="x", line_2="y"),
    ],
    "objects of what was bought": [
        row("l1", items=[{"id": "aaaa"}, {"id": "bbbb"}], bought=[{"id": "bbbb", "price": 3}]),
        row("l2", items=[{"id": "aaaa"}, {"id": "cccc"}], bought=None),
    ],
}
TAKEN = {
    "two lists": (
        ["411 412 413", "413 414 415", "413 416"],
        [("l1", "click", "412"), ("l1", "click", "413"), ("l3", "click", "416")],
    ),
    "one id of a list": (
        ["aa bb", "aa cc", "dd cc aa"],
        [("l1", "click", "bb"), ("l3", "click", "dd")],
    ),
    "a list in a text": (["3400 1032 5100"], [("l1", "click", "1032")]),
    "texts of both": (
        ["411 412 413", "411 415 416"],
        [("l1", "click", "412"), ("l1", "click", "413"), ("l2", "click", "411")],
    ),
    "flags": (["a b c", "a b c"], [("l1", "click", "b")]),
    "flags that are numbers": (
        ["a b c", "a b c"],
        [("l1", "purchase", "a"), ("l2", "purchase", "c")],
    ),
    "flags of two kinds": (
        ["a b c", "a b c"],
        [
            *(("l1", "click", "a"), ("l1", "click", "c"), ("l1", "purchase", "a")),
            *(("l2", "click", "a"), ("l2", "click", "c")),
        ],
    ),
    "candidates that were not shown": (["a b c", "a b c"], [("l1", "click", "b")]),
    "lists of flags": (
        ["aa bb cc", "cc aa"],
        [("l1", "click", "bb"), ("l2", "like", "cc")],
    ),
    "lists of flags of candidates": (
        ["aa bb", "bb dd"],
        [("l1", "click", "aa"), ("l2", "click", "dd")],
    ),
    "flags in a text": (["N1 N2 N3", "N3 N1"], [("l1", "click", "N2")]),
    "flags of objects": (["aaaa bbbb", "cccc aaaa"], [("l1", "purchase", "bbbb")]),
    "pairs with a flag": (["aa bb", "cc aa"], [("l1", "click", "bb")]),
    "pairs in a text": (["aa bb", "cc aa"], [("l1", "click", "bb")]),
    "flags that are texts": (["a b c", "a b c"], [("l1", "click", "b")]),
    "flags of yes and no": (["a b c", "a b c"], [("l1", "click", "b")]),
    "lists of yes and no": (["a b", "b c"], [("l1", "click", "b")]),
    "places": (
        ["aa bb cc", "cc aa"],
        [("l1", "click", "aa"), ("l1", "click", "cc")],
    ),
    "an index": (["aa bb", "cc aa"], [("l1", "click", "bb")]),
    "columns": (["aaaa bbbb c", "c aaaa"], [("l1", "click", "bbbb")]),
    "objects of what was bought": (["aaaa bbbb", "aaaa cccc"], [("l1", "purchase", "bbbb")]),
}


@pytest.mark.parametrize("kind", ROWS)
def test_a_row_with_a_list_and_what_was_taken_of_it_says_both(kind, tmp_path):
    _, events = drafted(ROWS[kind], tmp_path)
    assert {(one.ts, one.user_id) for one in events} == {(AT, "ann")}
    slates = [one for one in events if isinstance(one, SlateEvent)]
    feedback = [one for one in events if isinstance(one, FeedbackEvent)]
    shown, taken = TAKEN[kind]
    assert [" ".join(one.items) for one in slates] == shown
    assert [(one.request_id, one.feedback, one.item_id) for one in feedback] == taken


@pytest.mark.parametrize(("no", "yes"), [(0, 1), (False, True)])
def test_a_row_of_one_item_with_flags_is_an_impression_with_feedback(no, yes, tmp_path):
    flags = [(yes, no), (no, no), (yes, yes)]
    rows = [
        row("l1", video_id=f"v{place}", tab=1, is_click=click, is_like=like, is_ad=no)
        for place, (click, like) in enumerate(flags)
    ]
    for known in (rows, [one | {"action": "recs_shown"} for one in rows]):
        _, events = drafted(known, tmp_path)
        feedback = [one for one in events if isinstance(one, FeedbackEvent)]
        assert [one.item_id for one in events if one not in feedback] == ["v0", "v1", "v2"]
        assert [(one.item_id, one.feedback) for one in feedback] == [
            ("v0", "click"),
            ("v2", "click"),
            ("v2", "like"),
        ]
        assert {(one.ts, one.user_id, one.request_id) for one in events} == {(AT, "ann", "l1")}


def test_what_stands_in_a_list_by_chance_was_not_taken_of_it(tmp_path):
    places = row("l1", items=["a", "b", "c"], positions=[1, 2, 3], page=2)
    other = row("l2", items=["a", "c"], positions=[1, 2], page=1, variant="a")
    variants = row("l3", items=["d", "a"], positions=[1, 2], page=1, variant="b")
    text, events = drafted([places, other, variants], tmp_path)
    assert "      each:" not in text
    assert len(events) == 3
    flags = [one | {"in_stock": [1, 0, 1][: len(one["items"])]} for one in (places, other)]
    text, events = drafted([one | {"is_ad": one["in_stock"]} for one in flags], tmp_path)
    assert "      each:" not in text
    assert len(events) == 2
    texts = {"city": "Sydney, Australia", "town": "Sydney", "query": "red shoe", "color": "red"}
    text, events = drafted([one | texts for one in (places, other)], tmp_path)
    assert "      each:" not in text
    assert len(events) == 2


def test_what_is_no_pair_and_no_column_of_items_is_left_alone(tmp_path):
    """Sizes, areas, times and dimensions of one's own stand beside a list of items."""
    own = {f"custom_dimension_{number}": f"ann{number}" for number in range(1, 4)}
    own |= {"area": [[13, 52], [14, 53]], "open": "10:30,12:30", "selected_tab_index": 1}
    own |= {"rank": 7, "rank_1": "x", "rank_2": "y", "rank_3": "x"}
    rows = [row("l1", shown=["a", "b"], **own), row("l2", shown=["c", "b"], **own)]
    text, events = drafted(rows, tmp_path)
    assert [event.items for event in events] == [("a", "b"), ("c", "b")]
    assert "each" not in text.partition("rules:")[2]
    for name in own:
        assert f"#   {name}: " in text
    texts = {"recs": "a:1,b:2|c:3", "shown": "a-b-0 c-d-1", "items": "10:30", "ids": [[1, 2, 3]]}
    texts["docs"] = [["mail", "a@b.c"], ["phone", "555"]]
    assert dict(leaves_of(texts, "")) == texts
    objects = {"items": [{"score": 0.5}, {"score": 0.4}], "scores": {"recall": 0.5, "auc": 0.4}}
    found = dict(leaves_of(objects, ""))
    assert found == {"items": objects["items"], "scores.recall": 0.5, "scores.auc": 0.4}


def test_a_place_that_is_always_the_same_was_not_taken(tmp_path):
    rows = [row(f"l{n}", results=[f"a{n}", f"b{n}"], selected_index=0) for n in range(7)]
    text, _ = drafted(rows, tmp_path)
    assert "at(results" not in text
    rows[0]["selected_index"] = 1
    text, events = drafted(rows, tmp_path)
    assert "each: at(results, selected_index, `0`)" in text.replace('"', "")
    assert [event.item_id for event in events if isinstance(event, FeedbackEvent)][:2] == [
        "b0",
        "a1",
    ]


@pytest.mark.parametrize(
    ("shown", "rule"),
    [
        ({"recs": [["a1", 0.5], ["b2", 0.4]]}, "{each: recs, item_id: '[0]'}"),
        ({"recs": "a1:0.5|b2:0.4"}, "{each: 'split(recs, '|')', item_id: 'split(@, ':')[0]'}"),
        ({"item_0": "a1", "item_1": "b2", "item_2": None}, "'[item_0, item_1, item_2][?@]'"),
        ({"recs": [{"a1": 0.5}, {"b2": 0.4}]}, "{each: recs, item_id: 'keys(@)[0]'}"),
        ({"scores": {"a1": 1, "b2": 0.4}}, "'keys(scores)'"),
        ({"slot1": {"of": "x"}, "recs": [["a1", 1], ["b2", 2]]}, "{each: recs, item_id: '[0]'}"),
    ],
)
def test_items_may_come_as_pairs_and_in_columns(shown, rule, tmp_path):
    around = {"user_id": "ann", "request_id": "l1", "ts": AT}
    messages = [{"event": "recs_shown"} | around | shown]
    messages += [{"event": "click", "item_id": "b2"} | around]
    text, events = drafted(messages, tmp_path)
    assert f"items: {rule}" in text.replace('"', "'")
    assert (events[0].items, events[1].item_id) == (("a1", "b2"), "b2")


def test_lists_in_columns_are_as_long_as_they_are(tmp_path):
    """JSON leaves out what a list lacks, and the order of its fields says nothing."""
    lists = (["a3", "b4", "c5"], ["d6", "e7"], ["c5", "f8", "a3", "g9", "b4"])
    around = {"user_id": "ann", "ts": AT}
    messages = []
    for number, items in enumerate(lists):
        columns = {f"rec_{place}": one for place, one in enumerate(items, 1)}
        messages += [{"event": "recs_shown", "request_id": f"l{number}"} | around | columns]
    messages += [dict(reversed(one.items())) for one in messages]
    messages += [{"event": "click", "request_id": "l2", "item_id": "g9"} | around]
    _, events = drafted(messages, tmp_path)
    assert [one.items for one in events[:-1]] == [*map(tuple, lists)] * 2


def test_the_list_of_an_order_is_what_was_bought(tmp_path):
    shown = app("recs_shown", list_id="l1", items=[{"sku": "aaaa"}, {"sku": "bbbb"}])
    order = app("purchase", main_sku="bbbb", products=[{"sku": "bbbb"}, {"sku": "cccc"}])
    _, events = drafted([shown, order, order], tmp_path)
    assert [one.item_id for one in events[1:]] == ["bbbb", "cccc"] * 2


def test_a_click_with_the_list_that_was_clicked_is_feedback_alone(tmp_path):
    listed = {"list_id": "l1", "items": ["aaaa", "bbbb", "cccc"]}
    click = app("click", item_id="bbbb", **listed)
    _, events = drafted([app("recs_shown", **listed), click, click], tmp_path)
    assert [isinstance(one, SlateEvent) for one in events] == [True, False, False]
    _, events = drafted([click, click], tmp_path)
    assert [isinstance(one, SlateEvent) for one in events] == [True, False] * 2


def test_of_several_lists_that_of_items_is_the_one(tmp_path):
    rows = [
        row("l1", prices=[310, 420], products=["x", "y"], price=420, picked="y"),
        row("l2", prices=[310, 550], products=["x", "z"], price=310, picked="x"),
    ]
    _, events = drafted(rows, tmp_path)
    assert [one.items for one in events[::2]] == [("x", "y"), ("x", "z")]
    assert [one.item_id for one in events[1::2]] == ["y", "x"]


def test_a_draft_takes_several_lists_out_of_one_message(tmp_path):
    """The rows of a page, each a list of its own."""
    rows = [{"row_id": "r1", "items": ["a", "b"]}, {"row_id": "r2", "tiles": [], "items": ["c"]}]
    page = app("page_served", page_id="home", rows=rows, ab_group="B")
    click = app("click", page_id="home", row_id="r2", item_id="c")
    for pages in ([page], [app("page_served", rows=[]), page]):
        _, events = drafted([*pages, click], tmp_path)
        assert [(one.request_id, one.items, one.variant) for one in events[:2]] == [
            ("r1", ("a", "b"), "B"),
            ("r2", ("c",), "B"),
        ]
        assert (events[2].request_id, events[2].item_id) == ("r2", "c")
        assert {one.user_id for one in events} == {"ann"}


def test_what_lists_share_is_not_their_id(tmp_path):
    """A page of several lists, a visit, or what several users have."""
    lists = [app("shown", place_id="p", reco_id=f"l{number}", items=["a"]) for number in range(3)]
    clicks = [one | {"event": "click", "items": None, "item": "a"} for one in lists]
    _, events = drafted([*lists, *clicks], tmp_path)
    assert [event.request_id for event in events] == ["l0", "l1", "l2"] * 2
    values = [json.dumps(one | {"reco_id": None}).encode() for one in (*lists, *clicks)]
    assert "to_string(usr.id), to_string(timestamp_unixtime_ms)" in draft(values)
    shown = [app("imp", adId=ad, visit_id=f"v{ad}", deal_id="c") for ad in ("a", "b")]
    shown[1]["usr"] = {"id": "bob"}
    _, events = drafted([*shown, shown[0] | {"event": "clk"}], tmp_path)
    assert [(event.item_id, event.request_id) for event in events] == [
        ("a", None),
        ("b", None),
        ("a", None),
    ]


def test_a_draft_takes_several_events_out_of_one_message(tmp_path):
    """Amplitude's requests, and sessions of the OTTO data set."""
    request = {"api_key": "k", "events": TRACKERS["amplitude"]}
    _, events = drafted([request, {"api_key": "k", "events": []}], tmp_path)
    assert [type(event).__name__ for event in events[:1]] == ["SlateEvent"]
    assert [event.feedback for event in events[1:]] == ["click", "purchase"]
    acts = [{"aid": 59625, "ts": AT, "type": kind} for kind in ("clicks", "carts", "orders")]
    text, events = drafted([{"session": 12, "events": acts}], tmp_path)
    assert [(event.feedback, event.user_id, event.item_id) for event in events] == [
        ("click", "12", "59625"),
        ("cart", "12", "59625"),
        ("purchase", "12", "59625"),
    ]
    assert "split: events" in text
    films = [{"id": each, "type": "film", "created_at": AT} for each in ("a", "b")]
    shown = {"uid": "ann", "ts": AT, "req": "l1", "items": films}
    text, events = drafted([shown], tmp_path)
    assert [event.items for event in events] == [("a", "b")]


def test_a_view_of_one_item_is_no_list(tmp_path):
    _, events = drafted([retail("detail-page-view", "b"), retail("search", "a", "b")], tmp_path)
    assert (events[0].feedback, events[0].item_id) == ("view", "b")
    assert events[1].items == ("a", "b")


def test_a_draft_takes_one_id_of_a_user_for_all_kinds(tmp_path):
    """Two ids are two users, so a click by the one would not find the list of the other."""
    shown = amplitude("Recommendations Shown", list="l1", items=["a", "b"]) | {"user_id": None}
    clicked = amplitude("Recommendation Clicked", list="l1", item="b")
    _, events = drafted([shown, clicked], tmp_path)
    assert [event.user_id for event in events] == ["d1", "d1"]
    login = {"userInfo": {"userId": "ann"}, "visitorId": "v"}
    searched, selected = retail("search", "a", "b") | login, retail("select-item", "b")
    _, events = drafted([searched, selected | {"visitorId": "v"}], tmp_path)
    assert [event.user_id for event in events] == ["v", "v"]
    sessions = [one | {"session_id": "s"} for one in (searched, selected, retail("select-item"))]
    _, events = drafted([*sessions[:2], {**sessions[2], "visitorId": None}], tmp_path)
    assert [event.user_id for event in events] == ["v", "ann"]
    # One that only some have is better than none.
    searched |= {"visitorId": "v", "userInfo": None}
    _, events = drafted([searched, selected | {"visitorId": None, "userId": "ann"}], tmp_path)
    assert [event.user_id for event in events] == ["v", "ann"]


def test_the_id_of_an_order_is_no_item(tmp_path):
    bought = retail("purchase-complete", "b") | {"purchaseTransaction": {"id": "t", "revenue": 2}}
    _, events = drafted([retail("search", "a", "b"), bought], tmp_path)
    assert events[1].item_id == "b"
    documents = [{"_id": "e1"} | retail("search", "a", "b"), {"_id": "e2"} | bought]
    _, events = drafted(documents, tmp_path)
    assert events[1].item_id == "b"


def test_a_list_without_a_request_has_an_id_of_its_own(tmp_path):
    """Of several messages, since one does not show which id is never the same."""
    shown = {"kind": "SHELF", "at": AT, "customer_id": 7, "ads": [{"adId": "a"}, {"adId": "b"}]}
    lists = [shown | {"page_id": "home", "event_id": number} for number in range(3)]
    play = {"kind": "PLAY", "at": AT, "customer_id": 7, "page_id": "home", "ad_id": "b"}
    text, events = drafted([*lists, play | {"event_id": 9}], tmp_path)
    assert [event.request_id for event in events] == ["0", "1", "2", None]
    assert [event.items for event in events[:3]] == [("a", "b")] * 3
    assert (events[3].feedback, events[3].item_id) == ("play", "b")
    assert "No rule takes" not in text


@pytest.mark.parametrize("deep", [100, 480, 600, 900])
@pytest.mark.parametrize("pair", [("[", "]"), ('{"string":', "}")])
def test_a_deep_value_ends_no_draft(pair, deep):
    begin, end = pair
    inner = begin * deep + ("1" if end == "}" else "") + end * deep
    value = f'{{"event": "click", "uid": "ann", "item": "b", "a": {inner}}}'.encode()
    form, values = types_off([value])
    assert form in {"", "typed_json"}
    assert "feedback:" in draft(values)


def test_what_nothing_says_is_guessed_and_marked_so(tmp_path):
    """A topic of clicks alone, without a kind."""
    row = {"userId": "ann", "movieId": "b", "timestamp": AT}
    text, events = drafted([row], tmp_path)
    assert [(event.feedback, event.item_id) for event in events] == [("click", "b")]
    assert "# a guess" in text


def test_a_draft_of_one_side_asks_for_the_other(tmp_path):
    """A topic of clicks alone, and one of lists alone, without a kind."""
    click = {"event": "click", "uid": "ann", "ts": AT, "req": "l1", "item": "b"}
    text, events = drafted([click], tmp_path)
    assert [event.feedback for event in events] == ["click"]
    assert 'when: {event: "..."}  # the event that shows a list' in text
    row = {"feedback_type": "click", "user_id": "ann", "item_id": "b", "timestamp": AT}
    assert drafted([row], tmp_path)[1][0].feedback == "click"
    shown = {"uid": "ann", "ts": AT, "req": "l1", "items": ["a", "b"]}
    text, events = drafted([shown], tmp_path)
    assert [event.items for event in events] == [("a", "b")]
    assert "No rule takes" not in text
    assert "when: {event: click}  # the event of a click" in text


def test_a_draft_names_what_it_takes_for_neither(tmp_path):
    pages = [mixpanel(name, current_url="/") for name in ("Page Viewed", "Signed Up")]
    text, events = drafted([*TRACKERS["posthog"], *pages], tmp_path)
    assert len(events) == 3
    assert '# No rule takes "$pageview", "Page Viewed", "Signed Up".' in text


def test_a_draft_names_the_kinds_beyond_its_bound(tmp_path):
    clicks = [mixpanel(f"Click {letter}", list_id="l1", item_id="b") for letter in "abcdefghijklmn"]
    text, events = drafted(clicks, tmp_path)
    assert len(events) == 12
    assert '# No rule takes "Click m", "Click n".' in text


@pytest.mark.parametrize("event", [[{"id": 1}], [["a"]], [], None, 1.5, {"a": 1}])
def test_a_draft_is_a_profile_whatever_stands_for_the_event(event, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(draft([json.dumps({"event": event, "uid": "ann", "ts": AT}).encode()]))
    assert len(library.mapping_of(str(file)).profile.rules) == 2


NAMES = ["event", "type", "name", "user_id", "uid", "ts", "time", "items", "item_id", "id", "sku"]
NAMES += ["request_id", "reco_id", "rows", "position", "variant", "token", "page_id", "products"]
NAMES += ["data", "$x", "a.b", "product_ids", "key", "score"]
SCALARS = ["shown", "click", "unlike", "a", "b", "", "2026-01-05T12:00:00Z", AT, 1, 0, True, None]
SCALARS += [1.5, "x|y", '["a","b"]', '{"id":1}']


def anything(chance, depth):
    kind = chance.random()
    if depth and kind < 0.5:
        if kind < 0.25:
            return message(chance, depth - 1)
        return [anything(chance, depth - 1) for _ in range(chance.randint(0, 3))]
    return chance.choice(SCALARS)


def message(chance, depth=3):
    names = chance.choices(NAMES, k=chance.randint(1, 7))
    return {name: anything(chance, depth) for name in names}


def test_a_draft_is_a_profile_whatever_the_messages_hold(seed, tmp_path):
    chance = random.Random(seed)
    for _ in range(20):
        messages = [message(chance) for _ in range(chance.randint(1, 6))]
        for one in messages if chance.random() < 0.5 else ():
            one["event"] = chance.choice(["shown", "click", "purchase", "view"])
        values = lines(messages)
        file = tmp_path / "mine.yaml"
        file.write_text(draft(values))
        library.decoder_of(Definition(dimensions=("variant",)), str(file)).decode_batch(values)


@pytest.mark.parametrize(
    ("name", "act"),
    [
        ("impression", "shown"), ("imp", "shown"), ("import", ""), ("recs.shown", "shown"),
        ("RecommendationsServed", "shown"), ("view_item_list", "shown"), ("view_item", "view"),
        ("Recommendation Clicked", "click"), ("clk", "click"), ("select_item", "click"),
        ("ImpressionClick", "click"), ("like", "like"), ("unlike", ""), ("displayed", "shown"),
        ("listened", "play"), ("hotel_booked", "purchase"), ("notebook", ""), ("addtocart", "cart"),
        ("add_to_cart", "cart"), ("remove_from_cart", ""), ("Order Completed", "purchase"),
        ("Order Refunded", ""), ("reordered", ""), ("border", ""), ("", ""), (None, ""), (3, ""),
    ],
)  # fmt: skip
def test_what_the_name_of_an_event_says(name, act):
    assert act_of(name) == act


LISTED = [{"id": f"sku{n}", "url": f"/p/{n}", "hash": f"h{n}"} for n in range(3)]


def experience(number):
    """Adobe's XDM: the user is in a list, beside lists of items."""
    who = {"timestamp": AT, "identityMap": {"ECID": [{"id": f"user-{number}", "primary": True}]}}
    shown, clicked = [{"SKU": one["id"]} for one in LISTED], [{"SKU": LISTED[1]["id"]}]
    yield {
        "eventType": "commerce.productListViews",
        "_id": f"a{number}",
        "productListItems": shown,
    } | who
    yield {
        "eventType": "commerce.purchases",
        "_id": f"b{number}",
        "productListItems": clicked,
    } | who


def bloomreach(number):
    who = {"timestamp": AT / 1000, "customer_ids": {"cookie": f"user-{number}"}}
    shown = {"product_ids": [one["id"] for one in LISTED], "request_id": f"r{number}"}
    yield {"type": "view_category", "properties": shown} | who
    yield {"type": "view_item", "properties": {"product_id": LISTED[1]["id"]}} | who


def coveo(number):
    """Two fields of an item tell it apart, and have no name of an item."""
    who = {"dateTime": AT, "clientId": f"user-{number}", "searchQueryUid": f"q{number}"}
    named = [{"documentUri": one["id"], "documentUriHash": one["hash"]} for one in LISTED]
    yield {"type": "search", "results": named} | who
    yield {"type": "click", "documentPosition": 2} | named[1] | who


def luigis_box(number):
    """The `id` of an event is its own, and the list has no name that says so."""
    who = {"timestamp": AT // 1000, "client_id": f"user-{number}"}
    named = [{"url": one["id"], "position": place} for place, one in enumerate(LISTED, 1)]
    query = {"filters": {"RecommendationId": f"q{number}"}}
    lists = {"Recommendation": {"query": query, "items": named}}
    yield {"id": f"a{number}", "type": "event", "lists": lists} | who
    taken = {"type": "click", "resource_identifier": LISTED[1]["id"]}
    yield {"id": f"b{number}", "type": "click", "action": taken} | who


def linked_in(number):
    """Names of users and items without `id`."""
    who = {
        "member": f"user-{number}",
        "header": {"time": AT},
        "recommendationTrackingId": f"t{number}",
    }
    yield {
        "eventType": "JOB_RECOMMENDATION_IMPRESSION",
        "jobs": [one["id"] for one in LISTED],
    } | who
    yield {"eventType": "JOB_APPLY_CLICK", "job": LISTED[1]["id"]} | who


def feed(number):
    """A list of objects whose id has a name of its own."""
    who = {"uid": f"user-{number}", "ts": AT // 1000}
    posts = [{"status": one["id"], "pos": place} for place, one in enumerate(LISTED)]
    shown = {"request": f"q{number}", "items": posts}
    yield {"kind": "feed_shown", "feed": shown} | who
    yield {"kind": "like", "item": LISTED[1]["id"], "request": f"q{number}"} | who


@pytest.mark.parametrize("tracker", [experience, bloomreach, coveo, luigis_box, linked_in, feed])
def test_a_draft_finds_users_and_items_that_have_no_name_of_one(tracker, tmp_path):
    _, events = drafted([one for number in range(4) for one in tracker(number)], tmp_path)
    assert [event.user_id for event in events] == [f"user-{n // 2}" for n in range(8)]
    for shown, taken in zip(events[::2], events[1::2], strict=True):
        assert shown.items == tuple(one["id"] for one in LISTED)
        assert taken.item_id == LISTED[1]["id"]


def test_a_text_of_ids_with_flags_is_a_list_and_its_clicks(tmp_path):
    """MIND's rows; its times have the month first, which one of them tells."""
    times = ("11/11/2025 9:05:58 AM", "11/15/2025 9:05:58 PM")
    lists = ("N1-0 N2-1", "N3-0 N4-0")
    rows = [
        {"impression_id": n, "user_id": f"U{n}", "time": time, "shown": shown}
        for n, (time, shown) in enumerate(zip(times, lists, strict=True), 1)
    ]
    _, events = drafted(rows, tmp_path)
    first, click, second = events
    assert (first.items, second.items) == (("N1", "N2"), ("N3", "N4"))
    assert (click.item_id, click.feedback, click.request_id) == ("N2", "click", "1")
    assert [event.user_id for event in events] == ["U1", "U1", "U2"]
    assert second.ts - first.ts == (4 * 24 + 12) * 3_600_000


def test_lists_within_a_list_are_lists_and_their_items_are_taken(tmp_path):
    """Propositions of Adobe, which have an id each; the id of the user stands in a list, too."""

    def message(number, kind, names):
        proposition = {"id": f"p{number}", "items": [{"id": name} for name in names]}
        return {
            "eventType": f"decisioning.proposition{kind}",
            "timestamp": AT,
            "identityMap": {"ECID": [{"id": f"user-{number}"}]},
            "_experience": {"decisioning": {"propositions": [proposition]}},
        }

    kinds = {"Display": ["a", "b", "c"], "Interact": ["b"]}
    rows = [message(n, kind, names) for n in range(4) for kind, names in kinds.items()]
    _, events = drafted(rows, tmp_path)
    assert [event.user_id for event in events] == [f"user-{n // 2}" for n in range(8)]
    assert {event.items for event in events[::2]} == {("a", "b", "c")}
    assert [event.request_id for event in events[::2]] == [f"p{n}" for n in range(4)]
    assert {event.item_id for event in events[1::2]} == {"b"}


def test_what_a_user_saw_before_is_no_item_that_was_clicked(tmp_path):
    recent = [{"item_id": "old", "ts": AT - 1}]
    who = {"user_recent": recent, "uid": "ann", "ts": AT, "request_id": "r1"}
    shown = {"event": "shown", **who, "items": [{"item_id": "a"}, {"item_id": "b"}]}
    clicked = {"event": "click", **who, "item_id": "b"}
    _, events = drafted([shown, clicked], tmp_path)
    assert events[0].items == ("a", "b")
    assert events[1].item_id == "b"


def test_what_has_no_kind_is_no_kind_of_the_rules_to_complete(tmp_path):
    """A rule that nothing could be put into is a rule of YAML all the same."""
    values = lines(({"position": None}, {"user_id": [""]}))
    file = tmp_path / "mine.yaml"
    file.write_text(draft(values))
    library.decoder_of(Definition(), str(file))
    assert 'when: "!user_id"  # the event that shows a list' in file.read_text()
