"""First lists of users, extremes of slates, and arms beyond the bound of segments, by hand."""

import dataclasses
import random

import numpy as np
import pytest
from default_events import ImpressionEvent, SlateEvent
from test_experiments import in_one_span

from streameval.base.limits import NANO
from streameval.base.steps import drain
from streameval.core.checkpoint import checkpoint, restore
from streameval.core.definition import Definition, Positive
from streameval.core.events import FeedbackEvent
from streameval.core.experiments.definition import Experiment
from streameval.core.experiments.first_lists import (
    FINEST_MS,
    MOST_BUCKETS,
    FirstLists,
    first_rows,
    width_of,
)
from streameval.core.experiments.metrics import metrics_of
from streameval.core.experiments.users import ArmUsers, UserArms, Visit
from streameval.core.partition import Partition

NOON = 1_769_860_800_000
MINUTE, DAY = 60_000, 86_400_000
DEFINITION = Definition(
    positives=(Positive("click"), Positive("buy", value="sum")),
    ks=(2,),
    experiments=(Experiment("e", "variant", "A", "ndcg@2"),),
)
(EXPERIMENT,) = DEFINITION.experiments


def slate(user, time, arm, items, **more):
    request = f"{user}-{time}"
    return SlateEvent(NOON + time, user, request, items=items, variant=arm, **more)


def feedback(user, time, kind, item, value=1.0):
    return FeedbackEvent(
        NOON + time + 1, user, item, kind, request_id=f"{user}-{time}", value=value
    )


def finished(events, definition=DEFINITION):
    """A partition in which all slates of the events are final, and its users."""
    state, users = Partition(definition, journal=True), UserArms()
    last = max(event.ts for event in events) + 2 * definition.horizon
    for event in sorted(events, key=lambda event: event.ts):
        state.apply([event])
        state.flush()
        users.add(state.experiments.take_visits())
    state.apply([ImpressionEvent(last, "last", "i")])
    state.flush()
    drain(state.finalizing())
    users.add(state.experiments.take_visits())
    return state.experiments.arm_sums[0], users.counts.get(EXPERIMENT.key, ArmUsers())


def by_row(users, arm):
    """The sums of first lists of an arm over all buckets, by name; those that are not 0."""
    rows = first_rows(DEFINITION)
    found = [sums for _, sums in users.first.by_time(arm, len(rows))]
    return {row: count for row, count in zip(rows, sum(found).tolist(), strict=True) if count}


def test_the_first_list_of_each_user_counts_and_no_other():
    """u1 clicks the second of four items, u2 gets an empty fallback, and both come back."""
    events = [
        slate("u1", 0, "A", ["a", "b", "c", "d"], latency_ms=20),
        feedback("u1", 0, "click", "b"),
        slate("u1", MINUTE, "A", ["a"]),
        feedback("u1", MINUTE, "click", "a"),
        slate("u2", 2 * MINUTE, "A", [], fallback=True),
        slate("u2", 3 * MINUTE, "A", ["a", "b"]),
    ]
    sums, users = finished(events)
    ndcg = round(NANO / np.log2(3))  # one relevant item, at rank 2
    assert by_row(users, "A") == {
        "users": 2,
        "impressions": 1,
        "slates": 2,
        "positive_items": 1,
        "positives_per_impression{feedback=click}": NANO // 4,
        "hit_rate@2": NANO,
        "precision@2": NANO // 2,
        "recall@2": NANO,
        "map@2": NANO // 2,
        "mrr@2": NANO // 2,
        "ndcg@2": pytest.approx(ndcg, abs=1),
        "empty_rate": NANO,
        "short_rate": NANO,
        "fallback_rate": NANO,
        "abandonment_rate": NANO,
        "top3_share": NANO,
    }
    assert [time for time, _ in users.first.by_time("A", 1)] == [NOON, NOON + 2 * MINUTE]
    found = dict(zip(metrics_of(DEFINITION), sums.extremes["A"].T.tolist(), strict=True))
    assert found["positives_per_impression{feedback=click}"] == [0.0, 1.0]
    assert found["latency_ms_mean"] == [20.0, 20.0]
    assert found["mean_rank_of_positives"] == [1.0, 2.0]
    assert found["empty_rate"] == [0.0, 1.0]
    assert found["value_per_slate{feedback=buy}"] == [0.0, 0.0]
    assert np.isnan(found["value_per_positive{feedback=buy}"]).all()


def test_the_extremes_of_values_are_of_single_slates():
    events = [
        slate("u1", 0, "A", ["a", "b"]),
        feedback("u1", 0, "buy", "a", 3.5),
        feedback("u1", 0, "buy", "b", 4.0),
        slate("u1", 1, "A", ["a"]),
        feedback("u1", 1, "buy", "a", -2.0),
        ImpressionEvent(NOON + 2, "u2", "a", variant="A"),
    ]
    sums, _ = finished(events)
    found = dict(zip(metrics_of(DEFINITION), sums.extremes["A"].T.tolist(), strict=True))
    assert found["value_per_user{feedback=buy}"] == [-2.0, 7.5]
    assert found["value_per_slate{feedback=buy}"] == [-2.0, 7.5]
    assert found["value_per_impression{feedback=buy}"] == [-2.0, 3.75]
    assert found["value_per_positive{feedback=buy}"] == [-2.0, 3.75]


def test_who_crosses_is_taken_out_of_the_first_lists_of_all_arms():
    _, stayed = finished([slate("u1", 0, "A", ["a"]), slate("u3", 5, "B", [])])
    _, users = finished(
        [
            *(slate("u1", 0, "A", ["a"]), slate("u3", 5, "B", [])),
            *(slate("u2", time, arm, ["a"]) for time, arm in ((0, "A"), (1, "B"), (2, "A"))),
        ]
    )
    assert users.crossed == 1
    assert {arm: by_row(users, arm) for arm in "AB"} == {arm: by_row(stayed, arm) for arm in "AB"}


def test_canaries_beyond_the_bound_of_segments_make_nobody_cross():
    """45 variants come and go in two weeks, more than `max_segments`; A and B never change."""
    rng = random.Random(26)
    definition = dataclasses.replace(DEFINITION, max_segments=4, allowed_lateness=MINUTE)
    events = []
    for number in range(14 * 24):
        time = number * 3_600_000
        canary = f"canary-{number // 8:02}"
        users = [(f"u{rng.randrange(60)}", None), (f"c{number // 8}", canary)]
        for at, (user, arm) in enumerate([*users, *users]):
            events.append(slate(user, time + at, arm or "AB"[int(user[1:]) % 2], ["a", "b"]))
    sums, users = finished(events, definition)
    assert (users.crossed, users.exactly["A"], users.exactly["B"]) == (0, 30, 30)
    assert sums.sums.keys() >= {"A", "B", "canary-00"}
    assert users.exactly["__other__"] == 42 - 19 + 1, "those beyond the bound of arms alone"


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("shuffled", range(6))
def test_the_arm_beyond_the_bound_is_that_of_the_earliest_event(shuffled, keep):
    """The slate moves and ties, between segments that are known and not, and is restored."""
    definition = dataclasses.replace(DEFINITION, max_segments=1, allowed_lateness=MINUTE)
    for events, arm in (
        ([(5, "X"), (3, "K"), (3, "C"), (9, "B")], "C"),
        ([(3, "K"), (3, "a"), (4, "X")], "K"),
        ([(4, "K"), (4, "C"), (3, "X")], "X"),
        ([(3, "X"), (2, "K")], "K"),
    ):
        order = [
            ImpressionEvent(NOON + ts, "u", f"i{n}", "r", variant=name)
            for n, (ts, name) in enumerate(events)
        ]
        random.Random(shuffled).shuffle(order)
        state, chunks = Partition(definition, journal=True, keep_outcomes=keep), {}
        state.apply([ImpressionEvent(NOON, "other", "i", "r0", variant="K")])
        for number, event in enumerate(order):
            state.apply([event])
            state.flush()
            saved = checkpoint(state, f"c{number}")
            chunks |= saved.chunks
            if number == shuffled % len(order):
                state = restore(definition, saved.header, chunks, keep_outcomes=keep)
        state.apply([ImpressionEvent(NOON + DAY, "last", "i")])
        state.flush()
        drain(state.finalizing())
        assert {visit.arm for visit in state.experiments.visits if visit.user == "u"} == {arm}


def test_a_visit_that_is_lent_goes_again_where_an_earlier_list_comes():
    experiments = Partition(DEFINITION).experiments
    late, early = (
        Visit("u", EXPERIMENT.key, "A", 9, (1, 0)),
        Visit("u", EXPERIMENT.key, "A", 3, (0,)),
    )
    experiments.visits.add([late])
    assert experiments.take_visits(for_good=False) == [late]
    assert experiments.untaken == 0
    experiments.visits.add([early])
    assert experiments.untaken == 1
    assert list(experiments.visits) == [late, early], "a checkpoint holds both"
    assert experiments.take_visits(for_good=False) == [early]
    assert experiments.take_visits() == [early], "the smaller stays"
    assert list(experiments.visits) == []


def test_first_lists_agree_with_a_sort_in_any_order_and_however_often(seed):
    rng = random.Random(seed)
    span = rng.choice((10, 200, 10**4, 10**7)) * MINUTE
    visits = [
        Visit(
            f"u{rng.randrange(30)}",
            "e",
            rng.choice("AAAB"),
            rng.randrange(span),
            (rng.randrange(3),),
        )
        for _ in range(rng.randrange(1, 100))
    ]
    arms = {visit.user: {one.arm for one in visits if one.user == visit.user} for visit in visits}
    earliest = {}
    for user, _, arm, time, values in sorted(visits, reverse=True):
        if len(arms[user]) == 1:
            earliest[user] = arm, time, values
    users, parts = UserArms(), [UserArms(), UserArms()]
    for visit in rng.choices(visits, k=100) + rng.sample(visits, len(visits)):
        users.add([visit])
        parts[int(visit.user[1:]) % 2].add([visit])
    counts, merged = users.counts["e"], ArmUsers()
    for part in parts:
        merged.add(part.counts.get("e", ArmUsers()))
    assert in_one_span(merged, counts) == in_one_span(counts, merged)
    wanted = {}
    for arm, time, values in earliest.values():
        key = time // counts.first.width, arm
        wanted[key] = [a + b for a, b in zip(wanted.get(key, [0, 0]), [1, *values], strict=True)]
    assert {key: sums.tolist() for key, sums in counts.first.sums.items()} == wanted


def test_buckets_double_where_the_span_needs_it():
    lists = FirstLists()
    for minute in range(300):
        lists.change("A", NOON + minute * MINUTE, np.array([1, minute]), 1)
        begin, end = NOON, NOON + minute * MINUTE
        assert lists.width == width_of(begin, end)
        assert end // lists.width - begin // lists.width < MOST_BUCKETS
    assert lists.width == 4 * FINEST_MS
    assert sum(sums for _, sums in lists.by_time("A", 2)).tolist() == [300, 300 * 299 // 2]
