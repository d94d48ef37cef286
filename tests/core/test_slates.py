"""A list that came whole: one string, what is found in it, and how it joins impressions."""

import pytest
from default_events import ImpressionEvent, SlateEvent
from hypothesis import given
from hypothesis import strategies as st
from oracle.figures import oracle

from streameval.core.definition import Definition
from streameval.core.partition import Partition
from streameval.core.slate import BETWEEN, Slate

IDS = st.lists(st.text("ab1 \u00e9\u65e5", min_size=1, max_size=4), min_size=1, unique=True)


def slate_of(items):
    return Slate("u", "r", 0, 0, 0, BETWEEN.join(items))


@given(IDS, st.text("ab1 \u00e9\u65e5", min_size=1, max_size=4))
def test_it_shows_what_the_list_shows_and_nothing_between(items, other):
    slate = slate_of(items)
    for item in (*items, other):
        wanted = items.index(item) + 1 if item in items else None
        assert slate.packed(item) == wanted
    assert slate.size() == len(items)
    assert list(slate.names()) == items
    assert slate.is_packed, "looking changes nothing"
    assert slate.items == {item: place for place, item in enumerate(items, 1)}
    assert slate.size() == len(items)
    assert list(slate.names()) == items


@pytest.mark.parametrize(
    ("items", "item", "place"),
    [
        (["i10", "i1", "i11"], "i1", 2),  # the first place where it stands is within another
        (["i10", "i11"], "i1", None),
        (["1i", "i"], "i", 2),
        (["aa", "a"], "a", 2),
        (["a"], "a", 1),
    ],
)
def test_an_id_within_another_is_another(items, item, place):
    assert slate_of(items).packed(item) == place


def test_a_list_between_impressions_of_its_request_is_taken_in_its_turn():
    """It begins the slate earlier, so what is shown last begins another."""
    definition = Definition(attribution_window=10, allowed_lateness=10)
    events = [
        *(ImpressionEvent(100 + number, "u", f"i{number}", "r") for number in range(3)),
        SlateEvent(95, "u", "r", ("w",)),
        ImpressionEvent(108, "u", "i9", "r"),
    ]
    partition = Partition(definition)
    partition.apply(events)
    ((user, _, slates, *_),) = partition.flush()
    assert slates == oracle(definition, events)["users"][user]["slates"] == 2
