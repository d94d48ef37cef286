"""Logs made to cost time: matching stays O(log n) an event, and a flush breathes.

Counted and not timed: comparisons of the searches, looks at slates, and changes of attribution.
"""

import random
from collections import Counter
from dataclasses import replace

import pytest
from default_events import ImpressionEvent, SlateEvent
from oracle.figures import oracle
from test_oracle import BASE, click, show, unclick
from test_partition_properties import assert_same, run

from streameval.base.limits import APPLY_SLICE, FLUSH_STEP, MANY_SLATES
from streameval.core import attribution, pending, slate, timeline, users
from streameval.core.definition import Definition, Window
from streameval.core.events import FeedbackEvent, event_types
from streameval.core.experiments.definition import MAX_ARMS, Experiment
from streameval.core.experiments.metrics import row_names
from streameval.core.experiments.sums import ExperimentSums
from streameval.core.partition import Partition
from streameval.core.windows import tables
from streameval.core.windows.tables import Cells

pytestmark = pytest.mark.long

EVENTS = 50_000
DEFINITION = Definition(
    windows=(Window("all", 10**10, 10**10),), attribution_window=120_000, allowed_lateness=60_000
)
A, L = DEFINITION.attribution_window, DEFINITION.allowed_lateness


class Count:
    """What searching costs: comparisons, looks at slates, attributions."""

    def __init__(self, monkeypatch):
        self.total = 0
        for name in ("bisect_left", "bisect_right"):
            monkeypatch.setattr(timeline, name, self._searching(getattr(timeline, name)))
        for where, name in (
            (slate.Slate, "packed"),
            (slate.Slate, "may_show"),
            (attribution.Attribution, "_give"),
            (attribution.Attribution, "_seen_at"),
            (timeline.SlatesOfItem, "_reaching"),
        ):
            monkeypatch.setattr(where, name, self._counting(getattr(where, name)))
        for module in (attribution, pending):
            monkeypatch.setattr(module, "add_mark", self._counting(module.add_mark))
        for module in (timeline, users):
            monkeypatch.setattr(module, "sorted", self._sorting, raising=False)
        monkeypatch.setattr(slate.Slate, "keyed_items", self._each(slate.Slate.keyed_items))
        monkeypatch.setattr(users.Slates, "everything", self._each(users.Slates.everything))

    def _searching(self, search):
        def counted(sequence, key):
            self.total += 1 + len(sequence).bit_length()
            return search(sequence, key)

        return counted

    def _sorting(self, values, key):
        self.total += len(values)
        return sorted(values, key=key)

    def _counting(self, function):
        def counted(*arguments):
            self.total += 1
            return function(*arguments)

        return counted

    def _each(self, generator):
        def counted(*arguments):
            for value in generator(*arguments):
                self.total += 1
                yield value

        return counted

    def most(self, batches):
        """Apply and flush the batches; the partition, and the operations of the largest step."""
        partition = Partition(DEFINITION)
        most = 0
        for batch in batches:
            for start in range(0, len(batch), APPLY_SLICE):
                before = self.total
                partition.apply(batch[start : start + APPLY_SLICE])
                most = max(most, self.total - before)
            before = self.total
            for _ in partition.flushing():
                most, before = max(most, self.total - before), self.total
            most = max(most, self.total - before)
        return partition, most


@pytest.fixture
def count(monkeypatch):
    return Count(monkeypatch)


def work_through(events, step, count):
    """Flush after every `step` events; the operations of each flush and the steps it made."""
    partition = Partition(DEFINITION)
    for start in range(0, len(events), step):
        partition.apply(events[start : start + step])
        partition.flush()
    return partition, count.total / len(events)


def traffic(size, request):
    """Showings of one item to one user, each with a click a moment later, all within L."""
    shown = [show(n * L // size, request=request(n)) for n in range(size // 2)]
    return shown, [click(n * L // size + 1) for n in range(size // 2)]


def lone(_):
    return None


def named(n):
    return f"r{n}"


def orders(shown, clicks):
    alternating = [event for pair in zip(shown, clicks, strict=True) for event in pair]
    shuffled = alternating.copy()
    random.Random(1).shuffle(shuffled)
    return {
        "impressions first": shown + clicks,
        "feedback first": clicks + shown,
        "alternating": alternating,
        "reversed": alternating[::-1],
        "random": shuffled,
    }


ORDERS = ("impressions first", "feedback first", "alternating", "reversed", "random")


@pytest.mark.parametrize("request_of", [lone, named])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("step", [EVENTS, 5_000])
def test_one_users_events_cost_a_logarithm_each_in_any_order(order, request_of, step, count):
    partition, each = work_through(orders(*traffic(EVENTS, request_of))[order], step, count)
    assert each < 150
    events = partition.events
    assert events["accepted"]["feedback"] == EVENTS // 2
    assert events["waiting"] == 0


@pytest.mark.parametrize("request_of", [lone, named])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("step", [10_000, 97])
def test_they_give_the_oracles_figures(order, request_of, step):
    events = orders(*traffic(1_000, request_of))[order]
    retractions = [unclick(event.ts - BASE + 2) for event in events[::7]]
    events = events + retractions + events[::5]
    batches = [events[start : start + step] for start in range(0, len(events), step)]
    assert_same(run(DEFINITION, batches), oracle(DEFINITION, events))


def test_twenty_thousand_open_slates_of_the_same_items_are_not_looked_through(count):
    items = tuple(f"i{n}" for n in range(10))
    shown = [SlateEvent(BASE + n % L, "u", f"r{n}", items) for n in range(20_000)]
    partition = Partition(DEFINITION)
    partition.apply(shown)
    partition.flush()
    clicks = [click(L // 2 + n, f"i{n % 10}") for n in range(L // 2)]
    partition.apply(clicks)
    count.total = 0
    partition.flush()
    index = 10 * len(shown)  # every showing is looked at once, to make it
    assert count.total < index + len(shown) + 60 * len(clicks)
    assert partition.events["waiting"] == 0


def test_slates_that_are_too_old_are_not_looked_through_however_late_they_showed_the_item(count):
    """Shown just before the slates were too old, the item stands before one that still counts."""
    shown = [show(0, "other", request="young-enough-0")]
    old = [show(n % 3, "first", request=f"old{n}") for n in range(2_000)]
    late = [show(A - 10 + n % 3, "x", request=f"old{n}") for n in range(2_000)]
    young = [show(A - 20, "x", request="young")]
    clicks = [click(A + 5 + n % 5, "x") for n in range(1_000)]
    events = [*shown, *old, *young, *late, *clicks]
    partition = Partition(DEFINITION)
    for start in range(0, len(events), 500):
        partition.apply(events[start : start + 500])
        partition.flush()
    assert count.total < 120 * len(events)
    document = run(DEFINITION, [events])
    assert_same(document, oracle(DEFINITION, events))
    assert partition.events["waiting"] == 0


def beyond_reach(size):
    """Slates that show an item when they are all but too old, and clicks just after."""
    opened = [show(0, "first", request=f"r{n}") for n in range(size)]
    clicks = [click(A + 1 + n, "x") for n in range(size)]
    return [opened, clicks, [show(A, "x", request=f"r{n}") for n in range(size)]]


def stairs(size):
    """Two stairs of slates: those that began later showed an item earlier, so each holds a click.

    The second takes them all over from the first.
    """
    opened = [show(n, "first", request=f"{stair}{n}") for n in range(size) for stair in "ab"]
    clicks = [click(A + n, "x") for n in range(size)]
    first = [show(A - size - n, "x", request=f"a{n}") for n in range(size)]
    return [opened, clicks, first, [show(A - n, "x", request=f"b{n}") for n in range(size)]]


@pytest.mark.parametrize("made", [beyond_reach, stairs])
def test_what_waits_is_walked_along_once_for_all_slates_that_show_its_item(made, count):
    batches = made(5_000)
    partition = Partition(DEFINITION)
    for batch in batches:
        partition.apply(batch)
        partition.flush()
    assert count.total < 150 * sum(map(len, batches))
    assert partition.events["waiting"] == (5_000 if made is beyond_reach else 0)
    for step in (1, 7, 1_000):
        events = [event for batch in made(100) for event in batch]
        cut = [events[start : start + step] for start in range(0, len(events), step)]
        assert_same(run(DEFINITION, cut), oracle(DEFINITION, events))


def test_one_request_id_for_everything_costs_the_same(count):
    shown = [show(n * L // EVENTS, f"i{n % 900}", request="r") for n in range(EVENTS // 2)]
    clicks = [click(L - 1, f"i{n % 900}", request="r") for n in range(EVENTS // 2)]
    for events in (shown + clicks, clicks + shown):
        count.total = 0
        _, each = work_through(events, EVENTS, count)
        assert each < 50


def test_ten_thousand_slates_chained_by_one_request_are_not_walked_along(count):
    events = []
    for n in range(10_000):
        events += [show(n * (A + 1), "x", request="r"), click(n * (A + 1) + 1, "x", request="r")]
    partition, each = work_through(events, EVENTS, count)
    assert each < 100
    assert partition.events["unattributed"] == {"no_impression": 0, "expired": 0}
    assert partition.slates.count < 5


@pytest.mark.parametrize("retract", [False, True])
def test_one_click_repeated_costs_the_same(retract, count):
    clicks = [
        FeedbackEvent(BASE + n * L // EVENTS, "u", "x", "click", None, retract=retract and n % 2)
        for n in range(EVENTS)
    ]
    events = [ImpressionEvent(BASE, "u", "x", "r"), *clicks]
    partition, each = work_through(events, 5_000, count)
    assert each < 60
    assert partition.events["duplicates"] == EVENTS - 1


def test_a_flush_is_made_in_steps_of_bounded_work(count):
    """Whatever the log holds, between two of them the loop can breathe."""
    for events in orders(*traffic(20_000, named)).values():
        partition, most = count.most([events])
        assert most < 200 * FLUSH_STEP
        assert partition.events["waiting"] == 0


ITEMS = tuple(f"i{n}" for n in range(1_000))


def long_slates(size, first=0):
    return [SlateEvent(BASE + first + n, "u", f"r{n}", ITEMS) for n in range(size)]


def every_item_awaited():
    """A thousand items that feedback waits for, in each of many slates of one user."""
    return [
        [show(0, request=f"s{n}") for n in range(2 * MANY_SLATES)],
        [click(L // 2, item) for item in ITEMS],
        long_slates(2 * MANY_SLATES),
    ]


def one_click_then_long_slates():
    """One requestless click, then long slates: all of them are indexed for that click."""
    return [[click(L // 2, "i0")], long_slates(200)]


def one_click_then_an_earlier_impression():
    """The same where the item of the click is in none of them, but was shown earlier than known."""
    begun = [show(10, "x", request="s"), click(100, "x")]
    return [begun, [*long_slates(200, 20), show(5, "x", request="s")]]


def one_click_then_many_slates_of_its_item():
    slates = [show(n * 7_919 % EVENTS, "x", request=f"r{n}") for n in range(EVENTS)]
    return [[click(L - 1, "x")], slates, [show(L - 2, "x"), click(L, "x")]]


def long_slates_that_turn_out_earlier():
    """Every item of indexed slates moves in the index."""
    indexed = [show(n, request=f"s{n}") for n in range(2 * MANY_SLATES)]
    return [indexed, [*long_slates(100, 1_000), click(L // 2, "i1")], long_slates(100, 500)]


@pytest.mark.parametrize(
    "attack",
    [
        every_item_awaited,
        one_click_then_long_slates,
        one_click_then_an_earlier_impression,
        one_click_then_many_slates_of_its_item,
        long_slates_that_turn_out_earlier,
    ],
)
def test_no_step_grows_with_the_slates_of_a_user_or_their_items(attack, count):
    later = [show(10 * (A + L), "x", request="later")]
    partition, most = count.most([*attack(), later])
    assert most < 200 * FLUSH_STEP
    assert partition.events["waiting"] == 0


@pytest.mark.parametrize("request_id", ["r", None])
def test_slates_with_much_feedback_are_judged_a_few_at_a_time(request_id):
    """Each slate with a thousand clicks is as much work as a step may be."""
    clicks = [
        FeedbackEvent(BASE + 1, f"u{n}", item, "click", request_id)
        for n in range(20)
        for item in ITEMS
    ]
    again = [FeedbackEvent(BASE + 2, f"u{n}", "i0", "click", request_id) for n in range(20)]
    partition = Partition(DEFINITION)
    partition.apply([SlateEvent(BASE, f"u{n}", "r", ITEMS) for n in range(20)])
    partition.apply(clicks)
    partition.flush()
    partition.apply(again)
    assert sum(1 for _ in partition.flushing()) >= 20


def test_long_lists_are_ranked_a_few_at_a_time():
    """A list that came item by item without positions is sorted each time that it grows."""
    partition = Partition(DEFINITION)
    for n in range(100):
        partition.apply([ImpressionEvent(BASE, f"u{n}", item, "r") for item in ITEMS[1:]])
        partition.flush()
    partition.apply([ImpressionEvent(BASE + 1, f"u{n}", "i0", "r") for n in range(100)])
    assert sum(1 for _ in partition.flushing()) >= 5


def test_an_index_of_a_users_slates_goes_when_they_are_few_again():
    partition = Partition(DEFINITION)
    partition.apply([show(n, "x", request=f"r{n}") for n in range(2 * MANY_SLATES)])
    partition.apply([click(2 * MANY_SLATES, "x")])
    partition.flush()
    assert partition.slates.users["u"].by_item is not None
    partition.apply([show(10 * (A + L), "x", request="later")])
    partition.flush()
    assert partition.slates.users["u"].by_item is None


def test_new_arms_without_number_are_admitted_in_bounded_steps(monkeypatch):
    """Somebody sends an id in the field of the arm: each slate has an arm of its own."""
    work = Counter()

    def counted(sums, arms, arm, slates, add=ExperimentSums._add):
        work["calls"] += 1
        work["slates"] += len(slates)
        add(sums, arms, arm, slates)

    monkeypatch.setattr(ExperimentSums, "_add", counted)
    experiment = Experiment("ids", arm="bucket", control="nobody", primary="ndcg@10")
    definition = replace(DEFINITION, experiments=(experiment,))
    show_list = event_types(definition.labels).slate
    partition = Partition(definition, journal=True)
    count = 5_000
    for number in range(2 * count):
        at, names = BASE + number, (f"u{number}", f"r{number}", ("i",))
        bucket = f"b{number % 7 if number < count else number}"
        partition.apply([show_list(at, *names, variant="A", bucket=bucket)])
    partition.flush()
    partition.apply([show_list(BASE + 3 * (A + L), "u", "r", ("i",), variant="A", bucket="b0")])
    partition.flush()
    work.clear()
    steps = partition.finalizing()
    largest = 0
    for _ in steps:
        largest = max(largest, work["calls"] + work["slates"] // 50)
        work.clear()
    largest = max(largest, work["calls"] + work["slates"] // 50)
    assert largest < 50
    (arms,) = partition.experiments.arm_sums
    assert {f"b{number}" for number in range(7)} < arms.sums.keys()
    assert len(arms.sums) == MAX_ARMS  # the control, which nobody saw, has its place
    rows = row_names(definition)
    slates = sum(int(sums[rows.index("slates")].sum()) for sums in arms.sums.values())
    assert slates == 2 * count


def test_users_come_into_the_windows_and_leave_them_in_bounded_steps(monkeypatch):
    """Room for millions of them is made, and their numbers are given back, a part at a time."""
    work = Counter()

    def counting(where, name, weight, function):
        def counted(*arguments):
            work["now"] += weight
            return function(*arguments)

        monkeypatch.setattr(where, name, counted)

    counting(Cells, "of", 1, Cells.of)
    counting(tables, "with_room", 5_000, tables.with_room)
    window = Window("short", 2 * A, A)
    definition = replace(DEFINITION, windows=(window, replace(window, name="twin")))
    partition = Partition(definition)
    count, largest = 20_000, 0
    for number in range(6):
        begin = BASE + number * 3 * (A + L)
        events = [
            ImpressionEvent(begin + user, f"{number} {user}", "i", variant="AB"[user % 2])
            for user in range(count)
        ]
        partition.apply(events)
        work.clear()
        for _ in partition.flushing():
            largest = max(largest, work["now"])
            work.clear()
        largest = max(largest, work["now"])
    assert len(partition.windows.cells) < 6 * count, "the first ones have left"
    assert 0 < largest <= 15_000


def test_a_state_that_nobody_needs_is_freed_in_bounded_steps():
    partition = Partition(DEFINITION, journal=True)
    shown = [show(number, user=f"u{number}", request=f"r{number}") for number in range(3_000)]
    partition.apply(shown + [click(number, "other") for number in range(3_000)])
    partition.flush()

    def left():
        open_slates = sum(len(each.slates) for each in partition.slates._closing.values())
        return open_slates + len(partition.slates.users) + len(partition.attribution._due)

    before = left()
    assert before == 9_001
    for _ in partition.emptying():
        assert before - left() <= FLUSH_STEP
        before = left()
    assert before == 0
