"""Above the bounds the order of arrival decides, and the engine still equals the oracle."""

import gc
import math
import sys
from dataclasses import replace
from unittest.mock import Mock

from default_events import SlateEvent
from oracle.figures import oracle
from streams import placed
from test_oracle import BASE, DEFINITION, click, show
from test_partition_properties import assert_same, run

from streameval.base.limits import MANY_SLATES, MAX_FEEDBACK_KINDS, MAX_ITEMS
from streameval.base.steps import drain
from streameval.core import checkpoint as checkpoint_module
from streameval.core import slate as slates_module
from streameval.core.checkpoint import checkpoint, pieces, restore
from streameval.core.definition import Window
from streameval.core.partition import Partition
from streameval.core.windows import tables as windows_module


def test_segments_beyond_the_bound_are_other_in_order_of_arrival():
    definition = replace(DEFINITION, dimensions=("variant", "surface"), max_segments=2)
    events = [
        show(n, request=f"r{n}", variant=f"v{n % 4}", surface="home" if n % 3 else None)
        for n in range(12)
    ]
    events += [click(n, request=f"r{n}") for n in range(12)]
    document = run(definition, [[event] for event in events])
    assert_same(document, oracle(definition, events))
    assert {row["surface"] for row in document["rates"]} == {"", "home", "__other__", "__all__"}


def test_items_beyond_the_bound_are_dropped_in_order_of_arrival():
    full = SlateEvent(BASE, "u", "r", tuple(f"i{n}" for n in range(MAX_ITEMS - 1)))
    events = [full, show(1, "last"), show(2, "beyond"), show(2, "i0"), click(3, "last")]
    events += [click(3, "beyond"), click(3, "i0")]
    document = run(DEFINITION, [[event] for event in events])
    assert_same(document, oracle(DEFINITION, events))
    assert document["users"]["u"]["impressions"] == MAX_ITEMS
    assert document["users"]["u"]["positives"]["click"] == 2


def test_a_showing_that_turns_out_older_gives_its_feedback_to_the_one_between():
    """Also where the other slate did not change since the feedback was matched."""
    events = [
        show(8, request="other", variant="B"),
        show(9, request="nearest"),
        click(10),
        show(7, request="nearest"),
        show(11, request="third"),
    ]
    document = run(DEFINITION, [[event] for event in events])
    assert_same(document, oracle(DEFINITION, events))


def test_pending_feedback_is_matched_with_what_changed_and_not_with_all_that_is_open():
    """One user, say `anonymous`, can have all the traffic: its open slates are many."""
    attribution = Partition(DEFINITION).attribution
    attribution._nearest = Mock(wraps=attribution._nearest)
    attribution.apply([show(0, "first", request="r"), *(click(1, f"i{n}") for n in range(10))])
    for n in range(20):
        attribution.apply([show(2, "first", request=f"r{n}")])
        drain(attribution.resolving())
        attribution.slates.dirty.clear()
    assert attribution.waiting == 10
    assert attribution._nearest.call_count == 10


def test_feedback_without_a_request_is_not_held_against_all_slates_of_its_user():
    """The same for the first match: of very many slates with the item, the newest decide."""
    attribution = Partition(DEFINITION).attribution
    attribution._seen_at = Mock(wraps=attribution._seen_at)
    slates = 10 * MANY_SLATES
    for n in range(slates):
        attribution.apply([show(n, "item", request=f"r{n}")])
        drain(attribution.resolving())
        attribution.slates.dirty.clear()
    attribution.apply([click(n, "item") for n in range(slates - 50, slates)])
    drain(attribution.resolving())
    assert attribution.waiting == 0
    assert attribution._seen_at.call_count <= 2 * 50 * 50


def test_dicts_of_slates_hold_one_string_of_each_item_and_lists_are_one(monkeypatch):
    """Item ids are a third of the memory; the table that finds them is bounded."""

    def other(item):
        return "".join(item)  # equal, and a string of its own

    partition = Partition(DEFINITION, journal=True, keep_outcomes=True)
    shown = [SlateEvent(BASE, "u", f"whole{n}", (other("a-1"), other("a-2"))) for n in range(2)]
    shown += [SlateEvent(BASE, "u", "placed", placed({other("a-1"): 2, other("a-2"): 1}))]
    shown += [show(n, other(f"a-{n}"), request="r", user="u") for n in (1, 2)]
    partition.apply(shown)
    partition.flush()
    saved = checkpoint(partition, "0")
    restored = restore(DEFINITION, saved.header, saved.chunks)
    for state in (partition, restored):
        slates = list(state.slates.users["u"].open_slates())
        assert len(slates) == 4
        # A list that came whole is one string, which holds them all.
        assert [slate.record()[5] for slate in slates if slate.is_packed] == ["a-1\na-2"] * 2
        dicts = [slate.items for slate in slates if not slate.is_packed]
        assert len({id(item) for shown in dicts for item in shown}) == 2
    monkeypatch.setattr(slates_module, "MAX_SHARED_ITEMS", 10)
    for n in range(50):
        partition.apply([show(n, f"b-{n}", request=f"r{n}")])
    assert len(slates_module._ITEMS) <= 11


def test_a_state_that_is_dropped_is_gone():
    """Slates and feedback are invisible to the garbage collector: they must make no cycle."""
    partition = Partition(DEFINITION, journal=True, keep_outcomes=True)
    events = [show(n, f"i{n}", request="r") for n in range(3)]
    partition.apply([*events, click(3, "i1"), click(3, "i2", request="r"), click(4, "late")])
    partition.flush()
    (user,) = partition.slates.users.values()
    (slate,) = user.open_slates()
    assert slate.provisional
    assert len(user.pending) == 2
    del partition
    gc.collect()
    ours_alone = object()
    assert sys.getrefcount(user) == sys.getrefcount(ours_alone)
    del user
    assert sys.getrefcount(slate) == sys.getrefcount(ours_alone)


def test_scores_take_room_for_the_clusters_that_have_any_and_grow_by_doubling(monkeypatch):
    """Room for all clusters of every segment, made anew at each, was quadratic."""
    segments, grown = 1_000, Mock(wraps=windows_module.with_room)
    monkeypatch.setattr(windows_module, "with_room", grown)
    definition = replace(DEFINITION, max_segments=segments)
    partition = Partition(definition)
    for n in range(segments):
        request = f"r{n}"
        partition.apply([show(0, request=request, variant=f"v{n}"), click(1, request=request)])
        partition.flush()
        partition.update_windows()
    (window,) = partition.windows.states
    assert segments <= len(window.live.totals[2].sums) <= 2 * (segments + 1)
    assert len(window.matured.totals[2].sums) == 0
    # Twice for each basis, once for each of its arrays, every time that it doubles.
    assert grown.call_count <= 2 * 6 * math.log2(segments)
    assert len(partition.document()["ranking"]) == 2 * segments


def test_rows_of_scores_whose_panes_are_gone_are_used_again():
    """Clusters and segments come and go: the sums have room for those of a window, twice."""
    definition = replace(DEFINITION, windows=(Window("w", 20, 10),), max_segments=1_000)
    partition = Partition(definition)
    for n in range(600):
        at, request, user = 100 * n, f"r{n}", f"u{n}"
        partition.apply([show(at, request=request, user=user, variant=f"v{n}")])
        partition.apply([click(at, request=request, user=user)])
        partition.flush()
        partition.update_windows()
    for basis in (partition.windows.states[0].live, partition.windows.states[0].matured):
        assert len(basis.totals[2].sums) <= 256


def test_a_checkpoint_is_made_in_pieces_of_bounded_work_and_the_state_can_be_read_between(
    monkeypatch,
):
    """Slates, a pane with many users, and pending feedback: no chunk holds more than the bound."""
    monkeypatch.setattr(checkpoint_module, "CHUNK_RECORDS", 20)
    monkeypatch.setattr(checkpoint_module, "CHUNK_ITEMS", 100)
    definition, users = DEFINITION, [f"u{n}" for n in range(300)]
    partition, packed = Partition(definition, journal=True), []
    events = [
        SlateEvent(BASE, user, f"r{n}", tuple(f"i{k}" for k in range(1 + n % 40)))
        for n, user in enumerate(users)
    ]
    events += [click(0, "i0", user=user, request=f"r{n}") for n, user in enumerate(users)]
    partition.apply(events)
    partition.flush()
    end = definition.horizon + definition.windows[0].slide
    partition.apply([show(end, "late", request="r"), *(click(end, "x", user=u) for u in users)])
    partition.flush()
    pack = checkpoint_module._pack
    monkeypatch.setattr(
        checkpoint_module, "_pack", lambda value: packed.append(value) or pack(value)
    )
    steps, documents = pieces(partition, "0"), []
    try:
        while True:
            next(steps)
            documents.append(partition.document())
    except StopIteration as stop:
        saved = stop.value
    *chunks, _ = packed
    assert {name.split(".")[1] for name in saved.chunks} == {"slates", "panes", "pending"}
    assert len(chunks) == len(documents) > 40
    for chunk in chunks:
        assert len(chunk) <= 20
        assert all(len(users) <= 60 for _, users, *_ in chunk if isinstance(users, list))
    restored = restore(definition, saved.header, saved.chunks)
    assert all(document == restored.document() for document in documents)


def test_kinds_that_are_positives_are_counted_by_name_however_many_others_came_before():
    attribution = Partition(DEFINITION).attribution
    others = [click(0, kind=f"k{n}") for n in range(MAX_FEEDBACK_KINDS + 5)]
    attribution.apply([*others, click(0)])
    drain(attribution.resolving())
    assert attribution.feedback_kinds["click"] == 1
    assert attribution.feedback_kinds["__other__"] == 5
