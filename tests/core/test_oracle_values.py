"""The oracle's values of feedback against examples worked out by hand, one rule at a time.

Times are counted from BASE, in ms: A = 10, L = 5. Rules 24 and 25 of docs/rules.md.
"""

from dataclasses import replace

import pytest
from oracle.figures import oracle
from oracle.means import left_out
from test_oracle import BASE, DEFINITION, click, show

from streameval.base.limits import MAX_LOGGED_FEEDBACK, MICRO
from streameval.core.checkpoint import checkpoint, restore
from streameval.core.definition import Positive
from streameval.core.events import FeedbackEvent
from streameval.core.partition import Partition


def buy(ts, value, item="x", request=None, *, user="u"):
    return click(ts, item, request, user=user, kind="buy", value=value)


def undo(ts):
    return FeedbackEvent(BASE + ts, "u", "x", "buy", None, 0.0, retract=True)


def with_buys(rule="sum", **changes):
    return replace(DEFINITION, positives=(Positive("buy", value=rule, **changes),))


def only(events, definition=None, *, basis="live"):
    """The one row of values."""
    rows = oracle(definition or with_buys(), events)["values"]
    (row,) = [row for row in rows if row["basis"] == basis]
    return row


ONE_IMPRESSION = {
    # events: (last, sum, max), positives
    "one entry": ([buy(1, 5)], (5, 5, 5), 1),
    "the later one is the last": ([buy(1, 5), buy(2, 3)], (3, 8, 5), 1),
    "the order of arrival does not matter": ([buy(2, 3), buy(1, 5)], (3, 8, 5), 1),
    "the larger one is the last at the same ts": ([buy(1, 5), buy(1, 3)], (5, 8, 5), 1),
    "the same value at the same ts is one entry": ([buy(1, 5), buy(1, 5)], (5, 5, 5), 1),
    "the same value at another ts is another": ([buy(1, 5), buy(2, 5)], (5, 10, 5), 1),
    "values equal in integers of 10**-6 are equal": (
        [buy(1, 0.1), buy(1, 0.1000000001)],
        (0.1, 0.1, 0.1),
        1,
    ),
    "a retraction takes what is before it": ([buy(1, 5), undo(2), buy(3, 3)], (3, 3, 3), 1),
    "a retraction takes what is at its ts": ([undo(1), buy(1, 5), buy(2, 3)], (3, 3, 3), 1),
    "the latest retraction counts": ([undo(3), buy(2, 5), undo(1), buy(4, 1)], (1, 1, 1), 1),
    "nothing is left at the ts of the retraction": ([buy(1, 5), undo(1)], (0, 0, 0), 0),
    "a retraction takes nothing after it": ([undo(1), buy(2, 5), buy(3, 1)], (1, 6, 5), 1),
    "values may be negative": ([buy(1, -3.5), buy(2, 1)], (1, -2.5, 1), 1),
    "a negative value is a positive": ([buy(1, -3.5)], (-3.5, -3.5, -3.5), 1),
    "no entry is no value": ([], (0, 0, 0), 0),
    "a value of 0 is an entry": ([buy(1, 0), buy(2, -1)], (-1, -1, 0), 1),
    "feedback after A has no value": ([buy(1, 5), buy(11, 3)], (5, 5, 5), 1),
}


@pytest.mark.parametrize("index", range(3), ids=("last", "sum", "max"))
@pytest.mark.parametrize(
    ("events", "values", "positives"), ONE_IMPRESSION.values(), ids=ONE_IMPRESSION.keys()
)
def test_the_value_of_one_impression(events, values, positives, index):
    row = only([show(0), *events], with_buys(("last", "sum", "max")[index]))
    assert (row["value"], row["positives"]) == (values[index], positives)


def test_a_value_below_the_threshold_is_no_entry():
    definition = with_buys("last", threshold=2.0)
    assert only([show(0), buy(1, 5), buy(2, 1.9)], definition)["value"] == 5
    assert only([show(0), buy(1, 5), buy(2, 2)], definition)["value"] == 2


def test_a_kind_without_a_value_rule_has_no_row():
    definition = replace(DEFINITION, positives=(Positive("click"), Positive("buy", value="max")))
    rows = oracle(definition, [show(0), click(1, value=7), buy(1, 2)])["values"]
    assert [(row["feedback"], row["value"]) for row in rows] == [("buy", 2.0)]


@pytest.mark.parametrize(
    ("value", "micro"),
    [
        # Times 10**6 in floats, each of the first four is exactly half an integer.
        (5e-7, 0),  # the double is 4.9999999999999998e-07
        (1.5e-6, 2),  # 1.50000000000000003e-06
        (2.5e-6, 3),  # 2.5000000000000002e-06
        (3.5e-6, 3),  # 3.49999999999999995e-06
        (0.0078125, 7_812),  # 1/128 = 7812.5 * 10**-6: exactly half, to even
        (-0.0078125, -7_812),
        (0.0234375, 23_438),  # 3/128 = 23437.5 * 10**-6
        (1e-300, 0),
        (0.1, 100_000),
        (1e12, 10**18),
        (-1e12, -(10**18)),
    ],
)
def test_a_value_is_rounded_half_to_even_of_its_exact_number(value, micro):
    assert only([show(0), buy(1, value)])["value"] == micro / 10**6


def test_of_more_entries_than_are_kept_the_latest_and_largest_stay():
    """1000 at ts 1 and 1 to 100 at ts 2: the 100 later ones stay, 1 to 99 and 1000 all do."""
    later = [buy(2, value) for value in range(1, MAX_LOGGED_FEEDBACK + 1)]
    for rule, beyond, within in (("last", 100, 99), ("sum", 5050, 5950), ("max", 100, 1000)):
        for dropped, events in ((beyond, later), (within, later[:-1])):
            assert only([show(0), buy(1, 1000), *events], with_buys(rule))["value"] == dropped


@pytest.mark.parametrize("sign", [1, -1])
def test_values_of_one_impression_that_no_64_bits_hold_are_added_up(sign):
    """Also in a checkpoint, and once they are retracted."""
    definition = with_buys("sum", cap=500.0)
    events = [show(0), *(buy(1, sign * (1e12 - n)) for n in range(MAX_LOGGED_FEEDBACK))]
    assert abs(only(events, definition)["value"]) * MICRO > 2**66
    state = Partition(definition, journal=True)
    state.apply(events)
    state.flush()
    saved = checkpoint(state, "c")
    for part in (state, restore(definition, saved.header, saved.chunks)):
        rows = [row for row in part.document(None, {})["values"] if row["basis"] == "live"]
        assert rows == [only(events, definition)]
        part.apply([undo(2)])
        part.flush()
        (row,) = [row for row in part.document(None, {})["values"] if row["basis"] == "live"]
        assert row["value"] == only([*events, undo(2)], definition)["value"] == 0


def test_an_entry_that_comes_twice_takes_one_place_of_those_kept():
    events = [buy(2, value) for value in range(1, MAX_LOGGED_FEEDBACK)]
    assert only([show(0), buy(1, 1000), *events, *events], with_buys("max"))["value"] == 1000


def test_a_nearer_impression_takes_the_value_over():
    events = [show(0, variant="A"), buy(4, 5), show(3, request="s", variant="B")]
    rows = oracle(with_buys(), events)["values"]
    assert [(row["variant"], row["value"]) for row in rows] == [("A", 0), ("B", 5)]


# u1: r, s hold 3 impressions, 10 and 3.   u2: one without a request, 1.   u3: an impression
SHOPPING = [
    *(show(0, item, user="u1") for item in "ab"),
    show(0, "c", "s", user="u1"),
    show(0, "a", None, user="u2"),
    show(0, "a", user="u3"),
    buy(1, 10, "a", "r", user="u1"),
    buy(1, 3, "c", "s", user="u1"),
    buy(1, 1, "a", user="u2"),
]


def test_the_means_are_over_users_slates_impressions_and_positives():
    """With the cap of 5 the users' sums are 5, 1 and 0; their clusters differ."""
    row = only(SHOPPING, with_buys("sum", cap=5.0))
    assert {name: value for name, value in row.items() if not name.endswith("_stderr")} == {
        "window": "all",
        "basis": "live",
        "variant": "",
        "feedback": "buy",
        "users": 3,
        "slates": 3,  # r and s of u1, r of u3
        "impressions": 5,
        "positives": 3,
        "value": 14.0,  # not capped
        "value_per_user": 2.0,
        "value_per_slate": 2.0,
        "value_per_impression": 1.2,
        "value_per_positive": 2.0,
    }
    # Without u1, u2 and u3, of x = 5, 1, 0. u2 has no slate, and counts with its 1.
    for unit, expected in (
        ("user", left_out(2, 1 / 2, 5 / 2, 6 / 2)),
        ("slate", left_out(2, 1 / 1, 5 / 3, 6 / 2)),  # y = 2, 0, 1
        ("impression", left_out(1.2, 1 / 2, 5 / 4, 6 / 4)),  # y = 3, 1, 1
        ("positive", left_out(2, 1 / 1, 5 / 2)),  # y = 2, 1; u3 has nothing
    ):
        assert row[f"value_per_{unit}_stderr"] == pytest.approx(expected, abs=1e-15)


def test_without_a_cap_the_means_are_of_the_plain_sum():
    row = only(SHOPPING)
    assert row["value"] == 14.0
    assert row["value_per_user"] == pytest.approx(14 / 3, abs=1e-15)
    assert row["value_per_impression"] == 2.8


def test_a_cap_is_for_one_segment_and_cuts_no_negative_sum():
    events = [
        *(show(0, request="r", variant="A"), show(0, "y", "s", variant="B")),
        *(buy(1, 4, "x", "r"), buy(1, 9, "y", "s"), show(0, user="v", variant="B")),
        buy(1, -7, "x", "r", user="v"),
    ]
    rows = oracle(with_buys(cap=5.0), events)["values"]
    assert [(row["variant"], row["value"], row["value_per_user"]) for row in rows] == [
        ("A", 4, 4),
        ("B", 2, -1),  # (5 - 7) / 2
    ]


def test_a_cap_cuts_the_sum_of_a_user_and_not_each_value():
    events = [show(0), show(0, "y"), buy(1, 3), buy(1, 3, "y")]
    assert only(events, with_buys(cap=5.0))["value_per_user"] == 5


def test_a_cap_is_an_integer_of_millionths_too():
    row = only([show(0), buy(1, 1)], with_buys(cap=0.0078125))
    assert (row["value"], row["value_per_user"]) == (1.0, 0.007812)


def test_values_without_slates_or_positives_have_no_mean_over_them():
    row = only([show(0, request=None)])
    assert (row["users"], row["slates"], row["impressions"], row["positives"]) == (1, 0, 1, 0)
    assert row["value"] == row["value_per_user"] == row["value_per_impression"] == 0
    assert row["value_per_slate"] is None
    assert row["value_per_positive"] is None
    assert all(value is None for name, value in row.items() if name.endswith("_stderr"))


def test_rows_of_values_stand_in_order_of_their_kinds():
    positives = (Positive("like", value="sum"), Positive("buy", value="last"))
    events = [show(0, variant="B"), show(0, request="s", variant="A")]
    rows = oracle(replace(DEFINITION, positives=positives), events)["values"]
    assert [(row["basis"], row["variant"], row["feedback"]) for row in rows] == [
        ("live", "A", "buy"),
        ("live", "A", "like"),
        ("live", "B", "buy"),
        ("live", "B", "like"),
    ]
