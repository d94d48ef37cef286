"""The oracle's empty slates, health of lists and ranks against examples worked out by hand.

Times are counted from BASE, in ms: A = 10, L = 5. Rules 2 and 26 to 29 of docs/rules.md.
"""

from dataclasses import replace

import pytest
from default_events import ImpressionEvent, SlateEvent
from oracle.figures import oracle
from oracle.means import left_out
from streams import placed
from test_oracle import BASE, DEFINITION, click, clicks_by_variant, show, tick

from streameval.base.limits import MAX_ITEMS
from streameval.core.definition import Positive, Window


def slate(ts, items, request="r", *, user="u", variant=None, fallback=None, latency=None):
    return SlateEvent(BASE + ts, user, request, tuple(items), fallback, latency, variant=variant)


def nothing(ts, request="r", **details):
    return slate(ts, (), request, **details)


def lists(events, definition=DEFINITION):
    """The one row of lists."""
    (row,) = [row for row in oracle(definition, events)["lists"] if row["basis"] == "live"]
    return row


def sizes(events):
    """How many slates there are, and how many of them are empty."""
    row = lists(events)
    return row["slates"], row["empty_slates"]


# --- rule 2: lists without items -----------------------------------------------------------------


def test_a_list_without_items_is_a_slate_that_scores_zero():
    definition = replace(DEFINITION, positives=(Positive("click", value="sum"),), ks=(5,))
    document = oracle(definition, [nothing(0)])
    assert document["users"]["u"] == {
        "impressions": 0,
        "slates": 1,
        "positives": {"click": 0},
        "first_ts": BASE,
        "last_ts": BASE,
    }
    assert document["events"]["accepted"] == {"impression": 0, "slate": 1, "feedback": 0}
    assert document["events"]["duplicates"] == 0
    assert [document[part] for part in ("rates", "maturity", "ranks")] == [[], [], []]
    (ranking,), (values,), (health,) = (document[part] for part in ("ranking", "values", "lists"))
    assert (ranking["slates"], ranking["slates_with_positive"], ranking["ndcg"]) == (1, 0, 0.0)
    assert (values["users"], values["slates"], values["impressions"], values["value"]) == (
        *(0, 1, 0),
        0.0,
    )
    assert (values["value_per_user"], values["value_per_slate"]) == (None, 0.0)
    counts = {name: value for name, value in health.items() if name.endswith("slates")}
    assert counts == {
        "slates": 1,
        "empty_slates": 1,
        "short_slates": 1,
        "fallback_slates": 0,
        "abandoned_slates": 1,
    }


EMPTY = {
    # events: (slates, empty ones)
    "twice is one slate": ([nothing(0), nothing(0), nothing(7)], (1, 1)),
    "after A it is the next slate": ([nothing(0), nothing(11)], (2, 2)),
    "an impression within A joins it": ([nothing(0), show(10)], (1, 0)),
    "an impression after A does not": ([nothing(0), show(11)], (2, 1)),
    "it joins an impression within A": ([show(0), nothing(10)], (1, 0)),
    "it follows an impression after A": ([show(0), nothing(11)], (2, 1)),
    "it arrives after what it precedes": ([show(4), nothing(0), show(11, "y")], (2, 0)),
    "another request is another slate": ([nothing(0), show(0, request="s")], (2, 1)),
    "another user's is another slate": ([nothing(0), show(0, user="v")], (2, 1)),
}


@pytest.mark.parametrize(("events", "expected"), EMPTY.values(), ids=EMPTY.keys())
def test_a_list_without_items_opens_or_joins_a_slate(events, expected):
    assert sizes(events) == expected
    assert oracle(DEFINITION, events)["events"]["duplicates"] == 0


def test_a_list_without_items_moves_the_time_and_the_segment_of_its_slate():
    """x at 5, nothing at 1: the slate began at 1, so a click at 12 comes 11 after it."""
    events = [show(5, variant="A"), nothing(1, variant="B"), click(11, request="r")]
    assert clicks_by_variant(oracle(DEFINITION, events)) == {"B": 1}
    events[-1] = click(12, request="r")
    assert clicks_by_variant(oracle(DEFINITION, events)) == {"B": 0}


@pytest.mark.parametrize(
    ("nothings", "items", "segment"), [("A", "B", "A"), ("B", "A", "A"), (None, "A", "")]
)
def test_at_one_moment_the_smaller_segment_wins_with_items_or_without(nothings, items, segment):
    events = [show(0, variant=items), nothing(0, variant=nothings)]
    assert clicks_by_variant(oracle(DEFINITION, events)) == {segment: 0}


def test_named_feedback_looks_at_the_latest_slate_also_where_it_is_empty():
    events = [show(5), nothing(16), click(16, request="r"), tick(30)]
    found = oracle(DEFINITION, events)["events"]["unattributed"]
    assert found == {"no_impression": 1, "expired": 0}
    found = oracle(DEFINITION, [nothing(0), click(11, request="r"), tick(30)])["events"]
    assert found["unattributed"] == {"no_impression": 0, "expired": 1}


def test_a_list_without_items_takes_a_place_of_the_segments():
    definition = replace(DEFINITION, max_segments=1)
    events = [nothing(0, variant="B"), show(1, request="s", variant="A")]
    assert clicks_by_variant(oracle(definition, events)) == {"__other__": 0}


def test_a_user_without_an_impression_is_in_no_rate():
    events = [show(0), click(1), nothing(0, user="v")]
    document = oracle(DEFINITION, events)
    (row,) = [row for row in document["rates"] if row["feedback"] == "click"]
    assert (row["users"], row["positive_rate"]) == (1, 1.0)
    assert (row["positive_rate_stderr"], row["positives_per_impression_stderr"]) == (None, None)
    assert document["ranking"][0]["slates"] == 2


def test_a_segment_of_empty_lists_has_rows_of_ranking_and_lists_only():
    events = [nothing(0, variant="A"), show(0, request="s", variant="B")]
    document = oracle(DEFINITION, events)
    found = {part: {row["variant"] for row in document[part]} for part in ("ranking", "lists")}
    assert found == {"ranking": {"A", "B"}, "lists": {"A", "B"}}
    for part in ("rates", "maturity", "ranks"):
        assert {row["variant"] for row in document[part]} == {"B"}


def test_a_list_without_items_counts_in_the_pane_of_its_time():
    definition = replace(DEFINITION, windows=(Window("w", 10, 10),))
    events = [nothing(9), tick(19)]
    assert oracle(definition, events)["lists"] == []
    rows = oracle(definition, events, at=BASE + 25)["lists"]
    assert [(row["basis"], row["empty_slates"]) for row in rows] == [("matured", 1)]


# --- rule 27: the health of lists ----------------------------------------------------------------

DAY = [
    # u1: c at rank 3 twice a positive, a at rank 1; then ranks 7 and 9
    slate(0, "abc", user="u1"),
    *(click(1, "c", "r", user="u1"), click(1, "c", "r", user="u1", kind="like")),
    click(1, "a", "r", user="u1"),
    slate(0, placed({"a": 7, "b": 9}), "s", user="u1"),
    click(1, "b", "s", user="u1", kind="like"),
    slate(0, "a", user="u2", fallback=True, latency=10),
    nothing(0, user="u3", latency=20.5),
]


def test_figures_of_lists():
    row = lists(DAY, replace(DEFINITION, ks=(2, 3), gains={"like": 0.0}))
    assert {name: value for name, value in row.items() if not name.endswith("_stderr")} == {
        "window": "all",
        "basis": "live",
        "variant": "",
        "slates": 4,
        "empty_slates": 1,
        "short_slates": 2,  # of u2 and u3; the list of two is as long as the smallest k
        "fallback_slates": 1,
        "abandoned_slates": 2,
        "empty_rate": 0.25,
        "short_rate": 0.5,
        "fallback_rate": 0.25,
        "abandonment_rate": 0.5,
        "mean_rank_of_positives": 13 / 3,  # 1, 3 and 9
        "top3_share": 2 / 3,
        "latency_ms_mean": 15.25,
        "slates_with_latency": 2,
        "positive_items": 3,
    }


def test_standard_errors_of_lists_are_clustered_by_user():
    """Slates by cluster: 2, 1 and 1."""
    row = lists([*DAY, click(1, "a", "r", user="u2")], replace(DEFINITION, ks=(2, 3)))
    # Without each user.
    one_in_four = left_out(1 / 4, 1 / 2, 1 / 3, 0 / 3)
    assert row["empty_rate_stderr"] == pytest.approx(one_in_four, abs=1e-15)
    assert row["fallback_rate_stderr"] == pytest.approx(one_in_four, abs=1e-15)
    assert row["abandonment_rate_stderr"] == pytest.approx(one_in_four, abs=1e-15)
    short = left_out(2 / 4, 2 / 2, 1 / 3, 1 / 3)
    assert row["short_rate_stderr"] == pytest.approx(short, abs=1e-15)
    # u1 13 over 3, u2 1 over 1
    assert row["mean_rank_of_positives"] == 3.5
    rank = left_out(3.5, 1 / 1, 13 / 3)
    assert row["mean_rank_of_positives_stderr"] == pytest.approx(rank, abs=1e-15)
    # u1 2 over 3, u2 1 over 1
    top = left_out(3 / 4, 1 / 1, 2 / 3)
    assert row["top3_share_stderr"] == pytest.approx(top, abs=1e-15)
    # u2 10, u3 20.5
    assert row["latency_ms_mean_stderr"] == pytest.approx(5.25, abs=1e-14)


def test_a_figure_over_nothing_is_none():
    row = lists([show(0)])
    absent = ("mean_rank_of_positives", "top3_share", "latency_ms_mean")
    assert [row[name] for name in absent] == [None, None, None]
    assert all(value is None for name, value in row.items() if name.endswith("_stderr"))
    row = lists([show(0, request=None), click(1)])
    assert row["slates"] == row["abandoned_slates"] == 0
    assert row["empty_rate"] is None
    assert row["top3_share"] is None


# --- rule 26: fallback and latency ---------------------------------------------------------------


def said(ts, item="x", request="r", *, fallback=None, latency=None):
    details = {"fallback": fallback, "latency_ms": latency}
    return ImpressionEvent(BASE + ts, "u", item, request, **details)


FULL = slate(0, (f"i{number}" for number in range(MAX_ITEMS)))

DETAILS = {
    # events: (fallback slates, mean latency)
    "one event of several says it": ([said(0), said(0, "y", fallback=True)], (1, None)),
    "no does not undo yes": ([said(0, fallback=True), said(1, fallback=False)], (1, None)),
    "no alone is no": ([said(0, fallback=False)], (0, None)),
    "the largest latency counts": ([said(0, latency=7.0), said(1, "y", latency=3.0)], (0, 7.0)),
    "0 is a latency": ([said(0, latency=0.0), said(1, "y")], (0, 0.0)),
    "a slate without latency is in no mean": (
        [said(0, latency=7.0), said(0, request="s")],
        (0, 7.0),
    ),
    "an item again says it": (
        [said(0), said(1, fallback=True, latency=4.0), said(2, latency=9.0)],
        (1, 9.0),
    ),
    "an item beyond the bound says it": ([FULL, said(1, fallback=True, latency=4.0)], (1, 4.0)),
    "a list without items says it": ([said(1), nothing(0, fallback=True, latency=2)], (1, 2.0)),
    "without a request it is no list": ([said(0, request=None, fallback=True)], (0, None)),
    "half a microsecond goes to even, down": ([said(0, latency=0.0625)], (0, 0.062)),
    "half a microsecond goes to even, up": ([said(0, latency=0.1875)], (0, 0.188)),
    "an hour is the largest": ([said(0, latency=3_600_000.0)], (0, 3_600_000.0)),
}


@pytest.mark.parametrize(("events", "expected"), DETAILS.values(), ids=DETAILS.keys())
def test_fallback_and_latency_of_slates(events, expected):
    for order in (events, events[::-1]):
        row = lists(order)
        assert (row["fallback_slates"], row["latency_ms_mean"]) == expected


def test_after_a_fallback_and_latency_are_those_of_the_next_slate():
    row = lists([said(0, latency=2.0), said(11, fallback=True, latency=4.0)])
    assert (row["slates"], row["fallback_slates"], row["latency_ms_mean"]) == (2, 1, 3.0)


# --- rule 28: ranks ------------------------------------------------------------------------------


def test_impressions_and_positives_by_rank():
    items = [f"i{rank}" for rank in range(1, 26)]
    events = [
        slate(0, items),
        *(click(1, f"i{rank}", "r") for rank in (1, 20, 21, 25)),
        click(1, "i1", "r", kind="like"),
        slate(0, placed({"a": 20, "b": 22}), "s"),
        click(1, "a", "s", kind="like"),
        show(0, "alone", None, position=2),  # without a request
        nothing(0, "t"),
    ]
    rows = [row for row in oracle(DEFINITION, events)["ranks"] if row["basis"] == "live"]
    assert rows[0] == {
        "window": "all",
        "basis": "live",
        "variant": "",
        "feedback": "click",
        "rank": 1,
        "impressions": 1,
        "positives": 1,
    }
    found = {(row["feedback"], row["rank"]): (row["impressions"], row["positives"]) for row in rows}
    ranks = [*range(1, 21), "21+"]
    assert list(found) == [(kind, rank) for kind in ("click", "like") for rank in ranks]
    assert found == {
        **{(kind, rank): (1, 0) for kind in ("click", "like") for rank in range(1, 20)},
        ("click", 1): (1, 1),
        ("click", 20): (2, 1),
        ("click", "21+"): (6, 2),
        ("like", 1): (1, 1),
        ("like", 20): (2, 1),
        ("like", "21+"): (6, 0),
    }


def test_a_rank_that_no_item_had_has_no_row():
    """Order: c (no position) at 1, a and b (4) at 4 and 5."""
    events = [show(0, "a", position=4), show(0, "b", position=4), show(0, "c"), click(1, "b", "r")]
    rows = oracle(replace(DEFINITION, positives=(Positive("click"),)), events)["ranks"]
    assert [(row["rank"], row["positives"]) for row in rows] == [(1, 0), (4, 0), (5, 1)]
