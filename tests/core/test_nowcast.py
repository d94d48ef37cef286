"""Nowcasts: delays, the share that has come, and a fall that only nowcasts show in time.

`PYTHONPATH=tests python tests/core/test_nowcast.py` prints the table of docs/uncertainty.md.
"""

import dataclasses
import itertools
import math
import random
import statistics
from functools import cache

import numpy as np
import pytest
from default_events import SlateEvent

from streameval.base.limits import DELAY_BUCKETS, MAX_FOLLOWED, MICRO, NANO
from streameval.core.definition import Definition, Positive, Window
from streameval.core.delays import ArrivalCurve, bucket_of, delay_edges
from streameval.core.events import FeedbackEvent
from streameval.core.metrics import RANKING, RATES, VALUE_MEANS, Scorer
from streameval.core.metrics.lists import nano
from streameval.core.nowcast import PastNowcasts
from streameval.core.partition import Partition

MINUTE = 60_000
BASE = 1_700_000_000_000 // (60 * MINUTE) * (60 * MINUTE)

FALL = 120 * MINUTE
BEFORE, AFTER = 0.10, 0.08
MEAN_DELAY = 2 * MINUTE
DEFINITION = Definition(
    positives=(Positive("click"),),
    windows=(Window("5m", 5 * MINUTE, 5_000), Window("3h", 180 * MINUTE, MINUTE)),
)

# --- delays and curves ---------------------------------------------------------------------------


def test_buckets_cover_every_delay_and_grow_by_a_tenth():
    edges = delay_edges(30 * MINUTE)
    assert (edges[0], edges[-1], len(edges)) == (0, 30 * MINUTE + 1, DELAY_BUCKETS + 1)
    widths = [end - begin for begin, end in itertools.pairwise(edges)]
    assert all(
        wide / narrow == pytest.approx(1.1, abs=0.01) for narrow, wide in itertools.pairwise(widths)
    )
    assert (bucket_of(edges, 0), bucket_of(edges, 30 * MINUTE)) == (0, DELAY_BUCKETS - 1)
    assert bucket_of(edges, edges[7]) == bucket_of(edges, edges[7] - 1) + 1 == 7


@pytest.mark.parametrize("window", [0, 1, 5, 60, 1_000])
def test_a_short_attribution_window_has_fewer_buckets(window):
    edges = delay_edges(window)
    assert (edges[0], edges[-1]) == (0, window + 1)
    assert sorted(set(edges)) == list(edges)


def test_the_share_still_to_come_is_the_mean_over_a_pane():
    """Edges 0, 10, 30; one delay below 10 and three from 10 on: F is 0, 1/4, 1 at the edges."""
    curve = ArrivalCurve((0, 10, 30), [1, 3])
    assert curve.missing([50, 30]) == [0]
    assert curve.missing([10, 0]) == [MICRO - MICRO // 8]  # the mean of a ramp from 0 to 1/4
    assert curve.missing([30, 10, 0]) == [MICRO * 3 // 8, MICRO * 7 // 8]
    # Up to 10 a mean of 1/8, from 10 to 20 a ramp from 1/4 to 5/8: in all 9/32.
    assert curve.missing([20, 0]) == [MICRO * 23 // 32]


# --- delays of a stream ---------------------------------------------------------------------------


def slate(ts, request, variant="A"):
    return SlateEvent(BASE + ts, "u", request, ("x", "y"), None, None, variant)


def click(ts, request, item="x", *, retract=False):
    return FeedbackEvent(BASE + ts, "u", item, "click", request, retract=retract)


def test_a_delay_is_from_the_slate_to_the_first_feedback():
    """A click at 7 s, again at 9 s: one delay of 7 s, of the item and of the slate. A click on the
    other item adds one of its own, and a retraction takes it away."""
    partition = Partition(DEFINITION)
    edges = delay_edges(DEFINITION.attribution_window)
    first, second = bucket_of(edges, 7_000), bucket_of(edges, 20_000)
    whole = {first: 1, DELAY_BUCKETS + first: 1}
    partition.apply([slate(0, "r"), click(9_000, "r"), click(7_000, "r")])
    partition.flush()
    assert partition.changes.delays == whole
    partition.apply([click(20_000, "r", "y")])
    partition.flush()
    assert partition.changes.delays == {second: 1}
    partition.apply([click(30_000, "r", "y", retract=True)])
    partition.flush()
    assert partition.changes.delays == {}
    clicks, slates, *scores = partition.delays(BASE + 24 * 60 * MINUTE // 12)["A",]
    assert clicks.nonzero()[0].tolist() == slates.nonzero()[0].tolist() == [first]
    assert clicks.sum() == slates.sum() == 1
    assert all(score.nonzero()[0].tolist() == [first] for score in scores)


def test_a_score_rises_and_falls_as_feedback_comes():
    """Of two items the second is clicked first. At k = 1 it is recalled not at all, then half."""
    partition = Partition(DEFINITION)
    edges = delay_edges(DEFINITION.attribution_window)
    first, second = bucket_of(edges, 7_000), bucket_of(edges, 20_000)
    partition.apply([slate(0, "r"), click(7_000, "r", "y"), click(20_000, "r", "x")])
    partition.flush()
    _, slates, *scores = partition.delays(BASE + 24 * 60 * MINUTE // 12)["A",]
    assert dict(enumerate(slates.tolist()))[first] == slates.sum() == 1
    columns = Scorer(DEFINITION.ks, DEFINITION.ndcg_gain).columns
    found = {
        column: (sums[first], sums[second]) for column, sums in zip(columns, scores, strict=True)
    }
    five, ten = DEFINITION.ks
    assert found["precision", five] == (NANO // 5, NANO // 5)
    assert found["hit_rate", ten] == (NANO, 0)
    assert found["mrr", ten] == (NANO // 2, NANO // 2)
    alone = nano(np.array([1 / math.log2(3)]))[0]
    assert found["ndcg", ten] == (alone, NANO - alone)
    assert found["recall", ten] == (NANO, 0)


def test_a_score_may_fall():
    """The only item within the cutoff is clicked first: its recall of 1 becomes a half."""
    definition = dataclasses.replace(DEFINITION, ks=(1,))
    partition = Partition(definition)
    partition.apply([slate(0, "r"), click(7_000, "r", "x"), click(20_000, "r", "y")])
    partition.flush()
    _, _, *scores = partition.delays(BASE + 24 * 60 * MINUTE // 12)["A",]
    recall = scores[Scorer((1,), "linear").columns.index(("recall", 1))]
    assert recall[recall != 0].tolist() == [NANO, -NANO // 2]


def test_a_slate_with_very_many_positives_is_not_followed():
    items = tuple(f"i{number}" for number in range(MAX_FOLLOWED + 1))
    for count in (MAX_FOLLOWED, MAX_FOLLOWED + 1):
        partition = Partition(DEFINITION)
        shown = SlateEvent(BASE, "u", "r", items, None, None, "A")
        clicks = [click(1_000 + number, "r", item) for number, item in enumerate(items[:count])]
        partition.apply([shown, *clicks])
        partition.flush()
        found, slates, *scores = partition.delays(BASE + 24 * 60 * MINUTE // 12)["A",]
        assert found.sum() == count
        followed = count == MAX_FOLLOWED
        assert slates.sum() == followed
        assert any(score.any() for score in scores) == followed


def test_delays_do_not_depend_on_where_flushes_fall():
    """Feedback comes late, again and is taken back, up to more positives than are followed."""
    items = tuple(f"i{number}" for number in range(MAX_FOLLOWED + 2))
    for seed in range(100):
        chance = random.Random(seed)
        often = chance.choice((3, len(items), 3 * len(items)))
        events = [
            click(
                chance.randrange(60_000), "r", chance.choice(items), retract=chance.random() < 0.2
            )
            for _ in range(often)
        ]
        whole, in_parts = Partition(DEFINITION), Partition(DEFINITION)
        shown = SlateEvent(BASE, "u", "r", items, None, None, "A")
        for partition in (whole, in_parts):
            partition.apply([shown])
        for event in events:
            whole.apply([event])
            in_parts.apply([event])
            if chance.random() < 0.5:
                in_parts.flush()
        whole.flush()
        in_parts.flush()
        moment = BASE + 24 * 60 * MINUTE // 12
        [(_, expected)], [(_, found)] = (
            partition.delays(moment).items() for partition in (whole, in_parts)
        )
        assert found.tolist() == expected.tolist()


def test_without_delays_there_is_no_nowcast():
    partition = Partition(DEFINITION)
    partition.apply([slate(0, "r"), click(1_000, "r")])
    partition.flush()
    document = partition.document(BASE + 60 * MINUTE)
    rows = [row for part in ("rates", "ranking", "values", "nowcast") for row in document[part]]
    assert {row["basis"] for row in rows} == {"live", "matured"}


# --- errors of the past ---------------------------------------------------------------------------


FIGURES = [
    *((metric.name, "ranking", {"k": k}) for metric in RANKING for k in (5, 10)),
    ("positives_per_impression", "rates", {"feedback": "click"}),
    *((f"value_per_{unit}", "values", {"feedback": "click"}) for unit in ("slate", "impression")),
]


def sections(section, row):
    """The sections of figures with one row, in which figures that are not given are undefined."""
    means = [*RATES, *RANKING, *VALUE_MEANS]
    whole = dict.fromkeys(mean.name for mean in means) | {"window": "5m", "variant": "A"} | row
    return {"rates": [], "ranking": [], "values": []} | {section: [whole]}


@pytest.mark.parametrize(("metric", "section", "label"), FIGURES)
def test_the_error_is_of_the_nowcast_whose_panes_have_matured(metric, section, label):
    """A nowcast of 0.10 at minute 0, and of 0.12 later. Its pane of 5 s matures H + 5 s after."""
    past = PastNowcasts(DEFINITION)
    at = BASE // 55_000 * 55_000  # one pane in 11 is kept

    def rows(basis, figure):
        return sections(section, label | {"basis": basis, metric: figure})

    past.note(at, rows("nowcast", 0.10))
    for second in range(5, 31 * 60 + 5, 5):
        both = rows("nowcast", 0.12)
        both[section] += rows("matured", 0.08)[section]
        past.note(at + second * 1_000, both)
        assert past.errors() == []
    past.note(at + (31 * 60 + 5) * 1_000, rows("matured", 0.08))
    (row,) = past.errors()
    assert row == {"window": "5m", "variant": "A", "metric": metric, "feedback": "", "k": ""} | (
        label | {"error_ratio": pytest.approx(0.25)}
    )


@pytest.mark.parametrize(("nowcast", "matured"), [(None, 0.5), (0.5, None), (0.5, 0.0)])
def test_what_is_undefined_has_no_error(nowcast, matured):
    past = PastNowcasts(DEFINITION)
    at = BASE // 55_000 * 55_000
    past.note(at, sections("ranking", {"k": 5, "basis": "nowcast", "ndcg": nowcast}))
    later = sections("ranking", {"k": 5, "basis": "matured", "ndcg": matured, "map": 0.5})
    past.note(at + (31 * 60 + 5) * 1_000, later)
    assert past.errors() == []


@pytest.mark.long
def test_the_errors_of_a_stream_are_those_of_its_figures():
    """A worker's ticks: each nowcast is compared once, with the figures of the same panes."""
    definition = dataclasses.replace(
        DEFINITION,
        positives=(Positive("click", value="sum"),),
        windows=(Window("5m", 5 * MINUTE, MINUTE),),
    )
    partition, past, found = Partition(definition), PastNowcasts(definition), {}
    rng = random.Random(5)
    batches = {}
    for ts in range(0, 80 * MINUTE, 250):
        shown = SlateEvent(BASE + ts, f"u{ts % 700}", f"r{ts}", ITEMS, None, None, "A")
        batches.setdefault(ts // MINUTE, []).append(shown)
        for item in ITEMS:
            at = ts + round(rng.expovariate(1 / MEAN_DELAY))
            if rng.random() < 0.3 and at - ts <= definition.attribution_window:
                clicked = FeedbackEvent(BASE + at, f"u{ts % 700}", item, "click", f"r{ts}", value=3)
                batches.setdefault(at // MINUTE, []).append(clicked)
    compared = 0
    for minute in range(80):
        partition.apply(batches[minute])
        partition.flush()
        found[minute] = partition.document(BASE + (minute + 1) * MINUTE)
        past.note(BASE + (minute + 1) * MINUTE, found[minute])
        before = found.get(minute - 32, {"ranking": []})
        if not any(row["basis"] == "nowcast" for row in before["ranking"]):
            continue
        errors = {(row["metric"], row["feedback"], row["k"]): row for row in past.errors()}
        for metric, section, label in FIGURES:
            nowcast, matured = (
                row[metric]
                for document, basis in ((before, "nowcast"), (found[minute], "matured"))
                for row in document[section]
                if row["basis"] == basis and label.items() <= row.items()
            )
            row = errors.pop((metric, label.get("feedback", ""), label.get("k", "")))
            assert row["error_ratio"] == pytest.approx(nowcast / matured - 1)
            compared += 1
        # A value per positive is the live one: it is not divided by what has come.
        assert set(errors) == {("value_per_positive", "click", "")}
    assert compared > 10 * len(FIGURES)


# --- a fall ---------------------------------------------------------------------------------------


def stream(seed, per_second=16, until=FALL + 40 * MINUTE):
    """Slates of 5 items in variants A and B; the click rate of B falls at `FALL`.

    Clicks come after 2 minutes in the mean (exponential), the last after half an hour.
    """
    rng = random.Random(seed)
    events = []
    for number in range(until * per_second // 1_000):
        ts = number * 1_000 // per_second
        variant, user = "AB"[number % 2], f"u{rng.randrange(20_000)}{'AB'[number % 2]}"
        rate = AFTER if variant == "B" and ts >= FALL else BEFORE
        events.append(SlateEvent(BASE + ts, user, f"r{number}", ITEMS, None, None, variant))
        for item in ITEMS:
            delay = rng.expovariate(1 / MEAN_DELAY)
            if rng.random() < rate and delay <= DEFINITION.attribution_window:
                at = BASE + ts + round(delay)
                events.append(FeedbackEvent(at, user, item, "click", f"r{number}"))
    return sorted((event for event in events if event.ts < BASE + until), key=lambda e: e.ts)


ITEMS = ("a", "b", "c", "d", "e")


@cache
def readings(seed, minutes):
    """The rows of B in the short window, by minutes after the fall and basis."""
    partition, found = Partition(DEFINITION), {}
    waiting = sorted(minutes)
    batch = []
    for event in stream(seed):
        while waiting and event.ts >= BASE + FALL + waiting[0] * MINUTE:
            partition.apply(batch)
            partition.flush()
            batch = []
            rows = partition.document()["rates"]
            found[waiting.pop(0)] = {
                row["basis"]: row for row in rows if (row["window"], row["variant"]) == ("5m", "B")
            }
        batch.append(event)
    return found


@cache
def rankings(seed, rate, minutes):
    """The rows of ranking in the short window by minute and basis, of a stream without a fall."""
    rng = random.Random(seed)
    events = []
    for number in range(minutes * 60 * 16):
        ts, request = number * 1_000 // 16, f"r{number}"
        user = f"u{rng.randrange(20_000)}"
        events.append(SlateEvent(BASE + ts, user, request, ITEMS, None, None, "A"))
        for item in ITEMS:
            at = ts + round(rng.expovariate(1 / MEAN_DELAY))
            if rng.random() < rate and at - ts <= DEFINITION.attribution_window:
                events.append(FeedbackEvent(BASE + at, user, item, "click", request))
    partition, found = Partition(DEFINITION), {}
    events = [event for event in events if event.ts < BASE + minutes * MINUTE]
    for event in sorted(events, key=lambda event: event.ts):
        partition.apply([event])
        minute = (event.ts - BASE) // MINUTE
        if minute >= 60 and minute % 6 == 0 and minute not in found:
            partition.flush()
            rows = partition.document()["ranking"]
            found[minute] = {(row["basis"], row["k"]): row for row in rows if row["window"] == "5m"}
    return found


@pytest.mark.long
@pytest.mark.parametrize("metric", [metric.name for metric in RANKING])
def test_the_nowcast_of_a_score_is_what_matures(metric):
    """Three of ten items are clicked: most slates have several clicks, and scores keep changing."""
    readings_by_minute = rankings(3, 0.3, 120)
    for k in DEFINITION.ks:
        errors, live = [], []
        for minute, found in readings_by_minute.items():
            later = readings_by_minute.get(minute + 36)
            if later is None:
                continue
            truth = later["matured", k][metric]
            errors.append(found["nowcast", k][metric] / truth - 1)
            live.append(found["live", k][metric] / truth - 1)
        assert len(errors) >= 3
        assert abs(statistics.fmean(errors)) < 0.015
        assert abs(statistics.fmean(live)) > 3 * abs(statistics.fmean(errors))


def rate(row):
    return row["positives_per_impression"], row["positives_per_impression_stderr"]


MOMENTS = (-1, 5, 10, 15, 20, 25, 30, 39)


@pytest.mark.long
def test_a_nowcast_shows_a_fall_within_its_window():
    found = readings(1, MOMENTS)
    for minute, truth in ((-1, BEFORE), (5, AFTER), (20, AFTER), (39, AFTER)):
        live, _ = rate(found[minute]["live"])
        value, stderr = rate(found[minute]["nowcast"])
        assert live < 0.75 * truth, "much of the feedback is under way"
        assert abs(value - truth) < 3 * stderr
    for minute in (5, 20, 30):
        value, stderr = rate(found[minute]["matured"])
        assert abs(value - BEFORE) < 3 * stderr, "slates of the time before the fall"
    value, stderr = rate(found[39]["matured"])
    assert abs(value - AFTER) < 3 * stderr


@pytest.mark.long
def test_its_standard_error_is_that_of_the_clicks_that_have_come():
    found = readings(1, MOMENTS)
    ratios = [
        rate(found[minute]["nowcast"])[1] / rate(found[minute]["matured"])[1]
        for minute in MOMENTS
        if minute != 39
    ]
    come = found[-1]["live"]["positives"] / found[-1]["matured"]["positives"]
    # After the fall the clicks are fewer, which moves the factor by a tenth.
    assert statistics.median(ratios) == pytest.approx(1 / math.sqrt(come), rel=0.15)


def measured(seeds):
    """Print what the bases say, in the mean over simulated falls."""
    runs = [readings(seed, MOMENTS) for seed in range(seeds)]
    for minute in MOMENTS:
        truth = BEFORE if minute < 0 else AFTER
        print(f"| {minute} |", end="")
        for basis in ("live", "nowcast", "matured"):
            values = [rate(run[minute][basis])[0] for run in runs]
            mean = statistics.fmean(values)
            print(f" {mean:.4f} ({mean / truth - 1:+.1%}) |", end="")
        spread = statistics.stdev(rate(run[minute]["nowcast"])[0] for run in runs)
        stated = statistics.fmean(rate(run[minute]["nowcast"])[1] for run in runs)
        whole = statistics.fmean(rate(run[minute]["matured"])[1] for run in runs)
        print(f" {spread:.5f} | {stated:.5f} | {stated / whole:.2f} |")


if __name__ == "__main__":
    measured(20)
