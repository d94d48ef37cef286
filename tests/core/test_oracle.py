"""The oracle against timelines worked out by hand, one rule of docs/rules.md at a time.

Times are counted from BASE, in ms: A = 10, L = 5, so H = 15. In the drawings `x` is an item shown,
`!` a click, letters above are the slates.
"""

import math
from dataclasses import replace

import pytest
from default_events import ImpressionEvent, SlateEvent
from oracle.figures import oracle
from streams import placed

from streameval.base.limits import MAX_ITEMS
from streameval.core.definition import Definition, Positive, Window
from streameval.core.events import FeedbackEvent

BASE = 1_700_000_000_000
DEFINITION = Definition(
    windows=(Window("all", 100_000, 100_000),),  # BASE is the border of a pane
    attribution_window=10,
    allowed_lateness=5,
)


def show(ts, item="x", request="r", *, user="u", position=None, variant=None, surface=None):
    return ImpressionEvent(BASE + ts, user, item, request, position, variant, surface)


def click(ts, item="x", request=None, *, user="u", kind="click", value=1.0):
    return FeedbackEvent(BASE + ts, user, item, kind, request, value)


def unclick(ts, item="x", request=None, *, kind="click", value=0.0):
    return FeedbackEvent(BASE + ts, "u", item, kind, request, value, retract=True)


def tick(ts):
    """Feedback that only moves the watermark."""
    return FeedbackEvent(BASE + ts, "clock", "none", "noticed")


def clicks_by_variant(document):
    return {
        row["variant"]: row["positives"]
        for row in document["rates"]
        if row["basis"] == "live" and row["feedback"] == "click"
    }


ATTRIBUTION = {
    # A:x--------!      age 10 = A
    "named feedback counts at just A": ([show(0, variant="A"), click(10, request="r")], {"A": 1}),
    # A:x---------!     age 11
    "named feedback does not count after A": (
        [show(0, variant="A"), click(11, request="r")],
        {"A": 0},
    ),
    # A:x---y(5)  !y(4)
    "an item not shown yet cannot be reacted to by request": (
        [show(0, variant="A"), show(5, "y", variant="A"), click(4, "y", "r")],
        {"A": 0},
    ),
    # A:x---y(5)!y(5)
    "an item is reacted to from the moment it was shown": (
        [show(0, variant="A"), show(5, "y", variant="A"), click(5, "y", "r")],
        {"A": 1},
    ),
    # A:x---------x(10)   one slate       the duplicate at 10 keeps neither time nor variant
    "an impression at just A joins its slate": (
        [show(0, variant="A"), show(10, "y", variant="B"), click(10, "y", "r")],
        {"A": 1},
    ),
    # A:x----------B:y(11)
    "an impression after A starts the next slate of the request": (
        [show(0, variant="A"), show(11, "y", variant="B"), click(12, "y", "r")],
        {"A": 0, "B": 1},
    ),
    # A:x(0)y(9)---B:z(11)--!y(11)     the latest slate of r does not hold y
    "named feedback looks at the latest slate of its request only": (
        [show(0, variant="A"), show(9, "y"), show(11, "z", variant="B"), click(11, "y", "r")],
        {"A": 0, "B": 0},
    ),
    # A:x(0)--B:x(3)-!(4)
    "feedback without a request goes to the latest showing": (
        [show(0, variant="A"), show(3, request="s", variant="B"), click(4)],
        {"A": 0, "B": 1},
    ),
    # A:x(0)-!(2)-B:x(3)
    "feedback does not go to a showing after it": (
        [show(0, variant="A"), show(3, request="s", variant="B"), click(2)],
        {"A": 1, "B": 0},
    ),
    # A:y(0)---------x(9)     A is 12 old at the click although it showed x last
    # ------B:x(5)----------!(12)
    "a nearer showing in a slate that is too old gives way": (
        [
            show(0, "y", variant="A"),
            show(5, request="s", variant="B"),
            show(9, variant="A"),
            click(12),
        ],
        {"A": 0, "B": 1},
    ),
    # A:x(0)---x(6) again, B:x(3)-!(7)   A shows x since 0, not since 6
    "a duplicate does not make a showing newer": (
        [
            show(0, variant="A"),
            show(3, request="s", variant="B"),
            show(6, variant="A"),
            click(7),
        ],
        {"A": 0, "B": 1},
    ),
    "of showings at one moment the one without a request is first": (
        [show(0, variant="A"), show(0, request=None, variant="B"), click(1)],
        {"A": 0, "B": 1},
    ),
    "of showings at one moment the smaller request is first": (
        [show(0, request="s", variant="A"), show(0, request="r", variant="B"), click(1)],
        {"A": 0, "B": 1},
    ),
    # arrival: A:x(0), !(4), B:x(3)
    "a nearer impression that arrives later takes the feedback over": (
        [show(0, variant="A"), click(4), show(3, request="s", variant="B")],
        {"A": 0, "B": 1},
    ),
    # arrival: x(5), y(2), !x(15): the slate began at 2, the click comes 13 after it
    "an earlier impression that arrives later moves the slate's time": (
        [show(5, variant="A"), show(2, "y", variant="A"), click(15, request="r")],
        {"A": 0},
    ),
    # arrival: !(4), x(2)
    "feedback waits for its impression": ([click(4), show(2, variant="A")], {"A": 1}),
    "another user's feedback is not mine": (
        [show(0, variant="A"), click(1, user="v"), click(1, request="r", user="v")],
        {"A": 0},
    ),
    "a kind counts once per impression": (
        [show(0, variant="A"), click(1), click(2), click(3, request="r")],
        {"A": 1},
    ),
    "a retraction takes the positive back": (
        [show(0, variant="A"), click(1), unclick(3)],
        {"A": 0},
    ),
    "a retraction wins at the same moment": (
        [show(0, variant="A"), unclick(1), click(1)],
        {"A": 0},
    ),
    "a positive after the retraction counts": (
        [show(0, variant="A"), unclick(2), click(3)],
        {"A": 1},
    ),
    "a retraction after A takes nothing back": (
        [show(0, variant="A"), click(1), unclick(11)],
        {"A": 1},
    ),
    # A:x(0)-!(1)-B:x(3)-undo(4): the undo belongs to B
    "a retraction without a request goes to the latest showing as well": (
        [show(0, variant="A"), click(1), show(3, request="s", variant="B"), unclick(4)],
        {"A": 1, "B": 0},
    ),
    "the variant is that of the earliest event, whatever arrives first": (
        [show(3, "y", variant="A"), show(1, variant="B"), click(4, "y")],
        {"B": 1},
    ),
    "events at one moment: the smaller variant, and absent is smallest": (
        [show(1, variant="B"), show(1, "y", variant=None), click(2)],
        {"": 1},
    ),
}


@pytest.mark.parametrize(("events", "expected"), ATTRIBUTION.values(), ids=ATTRIBUTION.keys())
def test_attribution(events, expected):
    assert clicks_by_variant(oracle(DEFINITION, events)) == expected


def test_a_threshold_decides_but_not_for_retractions():
    definition = replace(DEFINITION, positives=(Positive("watch", 0.5),))
    watch = {"kind": "watch"}
    reached = [show(0), click(1, value=0.5, **watch)]
    below = [*reached, click(2, value=0.4, **watch)]
    taken_back = [*reached, unclick(2, **watch)]
    for events, positives, ignored in ((reached, 1, 0), (below, 1, 1), (taken_back, 0, 0)):
        document = oracle(definition, events)
        assert document["users"]["u"]["positives"] == {"watch": positives}
        assert document["events"]["ignored"] == ignored


def test_feedback_of_other_kinds_and_its_retraction_are_ignored():
    document = oracle(DEFINITION, [show(0), click(1, kind="skip"), unclick(2, kind="skip")])
    assert document["events"]["ignored"] == 2
    assert document["events"]["accepted"] == {"impression": 1, "slate": 0, "feedback": 2}
    assert document["users"]["u"]["positives"] == {"click": 0, "like": 0}
    assert document["users"]["u"]["last_ts"] == BASE + 2


@pytest.mark.parametrize(("ts", "late"), [(5, 0), (4, 1)])
def test_an_event_is_late_more_than_l_behind_the_watermark(ts, late):
    document = oracle(DEFINITION, [tick(10), show(ts)], rejected={"invalid": 2})
    assert document["events"]["rejected"] == {
        "malformed": 0,
        "invalid": 2,
        "too_large": 0,
        "future": 0,
        "late": late,
    }
    assert ("u" in document["users"]) == (not late)
    assert document["watermark"] == BASE + 10


@pytest.mark.parametrize(("watermark", "waiting"), [(9, 1), (10, 0)])
def test_feedback_waits_until_the_watermark_is_strictly_past_l(watermark, waiting):
    events = oracle(DEFINITION, [click(4), tick(watermark)])["events"]
    assert events["waiting"] == waiting
    assert events["unattributed"] == {"no_impression": 1 - waiting, "expired": 0}


@pytest.mark.parametrize("request_id", ["r", None])
def test_feedback_to_a_slate_that_is_too_old_is_expired(request_id):
    events = oracle(DEFINITION, [show(0), click(11, request=request_id), tick(17)])["events"]
    assert events["unattributed"] == {"no_impression": 0, "expired": 1}


def test_duplicates_are_impressions_and_feedback_that_add_nothing():
    events = [
        show(0),
        show(0),  # 1
        show(3),  # 2
        show(3, request=None),
        show(3, request=None),  # 3
        SlateEvent(BASE + 4, "u", "r", ("x", "y")),  # 4: x is in the slate already
        click(5, request="r"),
        click(6, request="r"),  # 5
        unclick(6, request="r"),  # 6: a third event on one impression and kind
        click(5, "x", kind="like", request="r"),
        click(5, "z", request="r"),  # attributed to nothing
    ]
    document = oracle(DEFINITION, events)
    assert document["events"]["duplicates"] == 6
    assert document["users"]["u"] == {
        "impressions": 3,
        "slates": 1,
        "positives": {"click": 0, "like": 1},
        "first_ts": BASE,
        "last_ts": BASE + 6,
    }


def test_a_slate_event_is_the_same_as_its_impressions():
    whole = [SlateEvent(BASE, "u", "r", placed({"x": 1, "y": 3}), variant="A"), click(2, "y", "r")]
    single = [
        show(0, "x", position=1, variant="A"),
        show(0, "y", position=3, variant="A"),
        whole[1],
    ]
    one, other = oracle(DEFINITION, whole), oracle(DEFINITION, single)
    for part in ("rates", "ranking", "values", "lists", "ranks", "maturity", "users"):
        assert one[part] == other[part]
    assert one["users"]["u"]["impressions"] == 2


@pytest.mark.parametrize(
    ("at", "live", "matured"),
    [
        (0, 1, 0),  # the slate's pane is [0, 10), the window two panes
        (19, 1, 0),
        (20, 0, 0),  # live: [10, 30)
        (24, 0, 0),
        (25, 0, 1),  # matured: panes that end at or before 10
        (44, 0, 1),
        (45, 0, 0),  # matured: [10, 30)
    ],
)
def test_a_slate_stands_in_the_panes_of_its_time(at, live, matured):
    definition = replace(DEFINITION, windows=(Window("w", 20, 10),))
    document = oracle(definition, [show(0)], at=BASE + at)
    shown = {row["basis"]: row["impressions"] for row in document["rates"]}
    assert (shown.get("live", 0), shown.get("matured", 0)) == (live, matured)
    assert document["watermark"] == BASE


def test_a_positive_counts_in_the_pane_of_its_slate():
    """Slate in [0, 10), its second item and the click in [10, 20): all of it is in the first."""
    definition = replace(DEFINITION, windows=(Window("w", 10, 10),))
    events = [show(9), show(11, "y"), click(12, "y")]
    assert oracle(definition, events)["rates"] == []
    matured = oracle(definition, events, at=BASE + 25)["rates"]
    assert [(row["basis"], row["feedback"], row["impressions"]) for row in matured] == [
        ("matured", "click", 2),
        ("matured", "like", 2),
    ]
    assert [row["positives"] for row in matured] == [1, 0]


def test_t_never_goes_back():
    definition = replace(DEFINITION, windows=(Window("w", 20, 10),))
    assert oracle(definition, [show(0)], at=0) == oracle(definition, [show(0)])


def test_maturity_is_the_share_of_live_impressions_that_are_settled():
    """T = 40, so panes that end at or before 25 are settled: those of 0 and 19, not of 20."""
    definition = replace(DEFINITION, windows=(Window("w", 100, 10),))
    events = [show(0), show(0, "y"), show(19, request="s"), show(20, request="t"), tick(40)]
    assert oracle(definition, events)["maturity"] == [
        {"window": "w", "variant": "", "maturity": 0.75}
    ]


def ranking(definition, events, *, k):
    rows = oracle(definition, events)["ranking"]
    (row,) = [row for row in rows if row["basis"] == "live" and row["k"] == k]
    return row


@pytest.mark.parametrize(
    ("ndcg_gain", "ndcg"),
    [
        # gains b 1, c 3: DCG@2 = 1/log2(3) = 0.63093; ideal 3 + 0.63093, or 7 + 0.63093
        ("linear", 0.173765343),
        ("exponential", 0.082680587),
    ],
)
def test_ranking_metrics_of_one_slate(ndcg_gain, ndcg):
    definition = replace(
        DEFINITION,
        positives=(Positive("click"), Positive("buy")),
        gains={"buy": 3.0},
        ks=(2,),
        ndcg_gain=ndcg_gain,
    )
    slate = SlateEvent(BASE, "u", "r", ("a", "b", "c"))
    events = [slate, click(1, "b"), click(1, "c"), click(1, "c", kind="buy")]
    row = ranking(definition, events, k=2)
    assert row["ndcg"] == ndcg
    assert [row[name] for name in ("precision", "recall", "map", "mrr", "hit_rate")] == [
        0.5,  # one hit of two places
        0.5,  # one of the two relevant items
        0.25,  # 1/2 at rank 2, over the two relevant items
        0.5,
        1.0,
    ]
    assert (row["slates"], row["slates_with_positive"]) == (1, 1)


def test_a_slate_without_a_positive_scores_zero_and_stays_in_the_mean():
    events = [show(0, position=1), show(0, request="s", user="v"), click(1)]
    row = ranking(DEFINITION, events, k=5)
    assert (row["slates"], row["slates_with_positive"], row["mrr"]) == (2, 1, 0.5)


def test_a_positive_without_gain_is_a_positive_but_not_relevant():
    definition = replace(DEFINITION, gains={"click": 0.0})
    row = ranking(definition, [show(0, position=1), click(1)], k=5)
    assert (row["slates_with_positive"], row["hit_rate"], row["ndcg"]) == (1, 0.0, 0.0)


def test_an_impression_without_a_request_counts_for_rates_only():
    document = oracle(DEFINITION, [show(0, request=None), click(1)])
    assert clicks_by_variant(document) == {"": 1}
    row = document["ranking"][0]
    assert (row["slates"], row["slates_with_positive"], row["ndcg"]) == (0, 0, None)
    assert row["ndcg_stderr"] is None
    assert document["users"]["u"]["slates"] == 0


@pytest.mark.parametrize(("item", "rank"), [("c", 1), ("a", 2), ("b", 3), ("d", 4), ("e", 7)])
def test_ranks_strictly_increase_whatever_the_positions(item, rank):
    """Order: c (no position), a and b (1, by ts), d (1, later still), e (7)."""
    shown = [
        show(2, "d", position=1),
        show(1, "b", position=1),
        show(1, "a", position=1),
        show(3, "e", position=7),
        show(4, "c"),
    ]
    row = ranking(DEFINITION, [*shown, click(5, item)], k=10)
    assert row["mrr"] == pytest.approx(1 / rank, abs=1e-9)


def test_a_duplicate_keeps_the_lowest_position_and_a_given_one_beats_none():
    events = [show(0, position=4), show(1, position=2), show(2), click(3)]
    assert ranking(DEFINITION, events, k=5)["mrr"] == 0.5


def test_the_positive_rate_is_the_mean_over_users_shown_something():
    """The toy case of METRICS: u3 likes c without having been shown it."""
    shown = [show(0, item, user, user=user) for user in ("u1", "u2", "u4") for item in "ab"]
    likes = [click(1, "a", user="u1", kind="like"), click(1, "c", user="u3", kind="like")]
    document = oracle(DEFINITION, [*shown, *likes])
    (row,) = [row for row in document["rates"] if row["feedback"] == "like"]
    assert row["users"] == 3
    assert row["positive_rate"] == pytest.approx(1 / 6, abs=1e-15)
    assert row["positives_per_impression"] == pytest.approx(1 / 6, abs=1e-15)
    assert set(document["users"]) == {"u1", "u2", "u3", "u4"}


def test_standard_errors_are_clustered_by_user():
    """u1 1 of 2, u2 0 of 4: rates 1/2 and 0; clusters differ, R = 1/6, without each 0 and 1/2."""
    shown = [show(0, item, user="u1") for item in "ab"] + [show(0, i, user="u2") for i in "abcd"]
    row = oracle(DEFINITION, [*shown, click(1, "a", user="u1")])["rates"][0]
    assert row["positive_rate"] == 0.25
    assert row["positive_rate_stderr"] == pytest.approx(0.25, abs=1e-15)
    expected = math.sqrt(1 / 2 * ((1 / 6) ** 2 + (1 / 3) ** 2))
    assert row["positives_per_impression_stderr"] == pytest.approx(expected, abs=1e-15)


def test_standard_errors_need_two_users():
    row = oracle(DEFINITION, [show(0)])["rates"][0]
    assert row["positive_rate"] == 0.0
    assert row["positive_rate_stderr"] is None
    assert row["positives_per_impression_stderr"] is None


def test_rows_stand_in_order_and_name_every_dimension():
    definition = replace(
        DEFINITION,
        dimensions=("surface", "variant"),
        windows=(Window("b", 100, 100), Window("a", 100, 100)),
        positives=(Positive("like"), Positive("click")),
        ks=(1, 2),
    )
    events = [show(0, variant="A", surface="feed"), show(0, request="s", variant="B")]
    document = oracle(definition, events)
    keys = [
        (row["window"], row["basis"], row["surface"], row["variant"], row["feedback"])
        for row in document["rates"]
    ]
    segments = [key for key in keys if "__all__" not in key]
    assert segments == sorted(segments)
    assert segments[:2] == [("a", "live", "", "B", "click"), ("a", "live", "", "B", "like")]
    assert len(segments) == 2 * 2 * 2
    whole = "__all__"
    totals = [(whole, whole), ("", whole), ("feed", whole), (whole, "A"), (whole, "B")]
    assert [key[2:4] for key in keys[: 2 * 7 : 2]] == [*totals, ("", "B"), ("feed", "A")]
    assert [row["k"] for row in document["ranking"][:2]] == [1, 2]


def test_no_events_give_no_rows():
    document = oracle(DEFINITION, [], at=BASE)
    assert document["watermark"] is None
    parts = ("rates", "ranking", "maturity", "values", "lists", "ranks")
    assert [document[part] for part in parts] == [[]] * len(parts)
    assert document["users"] == {}


def test_segments_beyond_the_bound_are_other():
    definition = replace(DEFINITION, max_segments=1)
    events = [show(1, variant="B"), show(0, request="s", variant="A"), show(2, request="t")]
    assert clicks_by_variant(oracle(definition, events)) == {"B": 0, "__other__": 0}


def test_items_beyond_the_bound_are_dropped_in_order_of_arrival():
    full = SlateEvent(BASE + 1, "u", "r", tuple(f"i{n}" for n in range(MAX_ITEMS)))
    document = oracle(DEFINITION, [full, show(0, "x"), click(2), click(2, "i0")])
    assert document["users"]["u"]["impressions"] == MAX_ITEMS
    assert document["users"]["u"]["positives"]["click"] == 1
    assert document["events"]["duplicates"] == 0
