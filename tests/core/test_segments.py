"""Segments come and go: a place that nothing needs any more is another's, as the log decides it.

Each property runs once a seed (see conftest): hostile streams whose variants change over time, with
pauses of about the time for which a segment is needed, and with fewer places than variants.
"""

import random
from dataclasses import replace

import msgspec
from oracle.figures import oracle
from streams import cuts, hostile, redeliver
from test_oracle import DEFINITION, click, show
from test_partition_properties import assert_same, run, run_with_kills

from streameval.core.checkpoint import checkpoint, restore
from streameval.core.definition import Definition, Window
from streameval.core.events import FeedbackEvent
from streameval.core.figures import ShownSegments
from streameval.core.partition import Partition
from streameval.web.status import ProcessCounters

SEEDS = 150


def drawn(seed):
    """A hostile stream over several spans of time, in each of which other variants are shown."""
    definition, events = hostile(seed)
    rng = random.Random(f"segments of {seed}")
    attribution = definition.attribution_window
    definition = replace(
        definition,
        dimensions=definition.dimensions or ("variant",),
        windows=(
            Window("short", 2 * attribution, attribution),
            Window("long", 6 * attribution, 2 * attribution),
        ),
        max_segments=rng.choice((1, 2, 3, 5)),
    )
    span = definition.segment_span
    starts = sorted(rng.choices([event.ts for event in events], k=rng.randint(1, 6)))
    pauses = [
        rng.choice((0, attribution, span // 2, span - 1, span, span + 1, 2 * span)) for _ in starts
    ]
    longest = rng.choice((2, 3, 6))

    def later(event):
        passed = sum(start <= event.ts for start in starts)
        shift = sum(pauses[:passed])
        if isinstance(event, FeedbackEvent):
            return msgspec.structs.replace(event, ts=event.ts + shift)
        variant = f"v{passed + rng.randrange(longest)}" if rng.random() < 0.7 else event.variant
        return msgspec.structs.replace(event, ts=event.ts + shift, variant=variant)

    return definition, [later(event) for event in events], rng


def test_the_engine_gives_up_the_segments_that_the_oracle_does(seed):
    definition, events, rng = drawn(seed)
    events = redeliver(events, rng) if seed % 3 == 0 else events
    expected = oracle(definition, events)
    assert_same(run(definition, [[event] for event in events]), expected)
    assert_same(run(definition, [events]), expected)
    assert_same(run(definition, cuts(events, rng), flush_share=0.5, rng=rng), expected)


def test_restores_and_records_read_again_give_up_the_same(seed):
    definition, events, rng = drawn(seed)
    assert_same(run_with_kills(definition, events, rng), oracle(definition, events))


def test_a_place_is_free_again_when_nothing_can_show_its_segment():
    """To the millisecond, by the newest showing of the segment; the table does not grow."""
    definition = replace(DEFINITION, max_segments=2, dimensions=("variant",))
    span = definition.segment_span

    def variants(*times):
        events = [
            show(ts, request=f"r{n}", variant=variant) for n, (ts, variant) in enumerate(times)
        ]
        partition = Partition(definition, journal=True)
        for event in events:
            partition.apply([event])
            partition.flush()
        document = partition.document()
        assert_same(document | {"users": {}}, oracle(definition, events) | {"users": {}})
        return partition, {row["variant"] for row in document["rates"]}

    assert variants((0, "A"), (0, "B"), (span, "C"))[1] == {"__other__"}
    assert variants((0, "A"), (0, "B"), (span + 1, "C"))[1] == {"C"}
    assert variants((0, "A"), (1, "B"), (1, "A"), (span + 1, "C"))[1] == {"__other__"}
    assert variants((0, "A"), (0, "B"), (span + 1, "B"), (span + 1, "C"))[1] == {"B", "C"}
    many, _ = variants(*((n * (span + 1), f"v{n}") for n in range(50)))
    segments = many.segments
    assert segments.overflowed == 0
    assert len(segments.values) <= 3
    saved = checkpoint(many, "0")
    again = restore(definition, saved.header, saved.chunks).segments
    assert (again.values, again.newest) == (segments.values, segments.newest)


def test_items_that_come_apart_keep_their_segment():
    definition = replace(DEFINITION, max_segments=1, dimensions=("variant",))
    later = definition.attribution_window + definition.segment_span
    events = [show(ts, f"i{ts}", variant="A") for ts in range(definition.attribution_window + 1)]
    events.append(show(later, request="other", variant="B"))
    expected = oracle(definition, events)
    assert {row["variant"] for row in expected["rates"]} == {"__other__"}
    assert_same(run(definition, [events]), expected)


def test_an_index_that_rows_still_hold_is_not_used_again_before_they_are_booked():
    """All of it in one batch: what was shown first is counted for the segment it was shown in."""
    definition = replace(DEFINITION, max_segments=1, dimensions=("variant",))
    span, partition = definition.segment_span, Partition(definition)
    partition.apply([show(0, request="r", variant="A"), click(1, request="r")])
    partition.apply([show(span + 1, request="s", variant="B"), show(2 * span + 2, variant="C")])
    partition.flush()
    assert partition.changes.impressions == {("A",): (1, 0), ("B",): (1, 0), ("C",): (1, 0)}
    assert partition.changes.positives == {(("A",), 0): (1, 0)}
    assert partition.segments.leaving == []


def test_a_segment_that_comes_back_in_one_batch_is_counted_whole():
    """It has an index of then and one of now, which go by one name."""
    definition = replace(DEFINITION, max_segments=1, dimensions=("variant",))
    span, partition = definition.segment_span, Partition(definition)
    for ts, variant in ((0, "A"), (span + 1, "B"), (2 * span + 2, "A")):
        partition.apply([show(ts, request="r", variant=variant), click(ts + 1, request="r")])
    partition.flush()
    assert partition.changes.impressions == {("A",): (2, 0), ("B",): (1, 0)}
    assert partition.changes.positives == {(("A",), 0): (2, 0), (("B",), 0): (1, 0)}


def test_a_worker_shows_and_counts_new_segments_when_old_ones_are_in_no_window_any_more():
    """Below the bound nothing is forgotten; a counter that is dropped never falls."""
    shown, counters = ShownSegments(2), ProcessCounters(Definition(max_segments=2))

    def count(*names):
        answers = [shown((name,)) for name in names]
        for name in names:
            counters.impressions.add((name,), 5)
            counters.positives.add(((name,), "click"), 1)
        return answers

    def keep(*names):
        present = {(name,) for name in names}
        shown.keep(present)
        counters.keep(present)

    count("A")
    keep()
    assert counters.impressions == {("A",): 5}, "there is room"
    assert count("A", "B", "C") == [("A",), ("B",), ("__other__",)]
    keep("B", "C")
    assert counters.impressions == {("B",): 5, ("__other__",): 5}
    assert count("C", "B") == [("C",), ("B",)]
    assert counters.impressions == {("B",): 10, ("C",): 5, ("__other__",): 5}
    assert (("B",), "click") in counters.positives


def test_what_is_shown_as_other_takes_no_place_of_a_segment():
    """A worker that meets it first, after a restart, shows what the one before showed."""
    shown = ShownSegments(2)
    names = ("B",), ("__other__",), ("A",), ("C",)
    assert [shown(name) for name in names] == [("B",), ("__other__",), ("A",), ("__other__",)]


def test_segments_of_an_ordinary_log_keep_their_places():
    """Fewer than the bound: nothing is retired, however long ago it was shown."""
    partition = Partition(replace(DEFINITION, dimensions=("variant",)))
    span = partition.definition.segment_span
    for n in range(10):
        partition.apply([show(10 * n * span, variant=f"v{n}", request=f"r{n}")])
        partition.flush()
    assert partition.segments.values == [(f"v{n}",) for n in range(10)]
