"""The history of figures: points of bounded size, honest intervals, charts with gaps."""

import asyncio
import math
import random
from itertools import pairwise

import pytest
from scipy.stats import beta
from test_shared_sums import on_redis

from streameval.base.limits import HISTORY_POINTS, MAX_POINT_BYTES
from streameval.experiments.words import Scorecard
from streameval.stats.intervals import LEVEL, Rate, normal, wilson
from streameval.web import experiment_history, history
from streameval.web.intervals import SECTIONS, bounds, with_intervals
from streameval.worker.history_job import HistoryJob


def rates(segments, **changed):
    """Rows of the section `rates`, the first segments with the most impressions."""
    rng = random.Random(5)
    return [
        {
            "window": "1h",
            "basis": "live",
            "variant": f"v{number}",
            "feedback": "click",
            "users": 400,
            "impressions": 90_000 - number,
            "positives": 900,
            "positive_rate": rng.random(),
            "positive_rate_stderr": rng.random() / 100,
            "positives_per_impression": rng.random(),
            "positives_per_impression_stderr": rng.random() / 100,
        }
        | changed
        for number in range(segments)
    ]


def point(time, rows):
    sections = dict.fromkeys(SECTIONS, ()) | {"rates": rows}
    return history.pack(time, sections, ("variant",))


def charted(*points, figure="positives_per_impression", **wanted):
    return history.chart([history.unpack(each) for each in points], "rates", figure, wanted)


def test_a_chart_has_the_figures_and_gaps():
    first, later = rates(2), rates(3)[1:]
    found = charted(point(10, first), point(10, later), point(20, later), figure="positives")
    assert found["times"] == [10, 20], "time stood still in between"
    assert [(one["labels"]["variant"], one["value"]) for one in found["series"]] == [
        ("v0", [900.0, None]),
        ("v1", [900.0, 900.0]),
        ("v2", [None, 900.0]),
    ]
    assert all(one["low"] == [None, None] for one in found["series"]), "a count has no interval"
    assert charted(point(10, first), variant="v1")["series"][0]["labels"]["variant"] == "v1"


def test_an_undefined_figure_is_null():
    row = rates(1, positives_per_impression=None, positives_per_impression_stderr=None)
    (series,) = charted(point(10, row))["series"]
    assert (series["value"], series["low"], series["high"]) == ([None], [None], [None])


@pytest.mark.parametrize("positives", [3, 900])
def test_a_rate_has_wilsons_interval_on_the_effective_trials(positives):
    """With a standard error that users make larger, as `intervals.Rate` has it."""
    value = positives / 90_000
    stderr = math.sqrt(2 * value * (1 - value) / 90_000)
    row = rates(1, positives_per_impression=value, positives_per_impression_stderr=stderr)[0]
    low, high = bounds(row, "positives_per_impression", 400)
    clusters = round(256 * (1 - (1 - 1 / 256) ** 400))
    trials = Rate(positives, 90_000, stderr, clusters).effective_trials(LEVEL)
    least, most = wilson(value, trials, normal(LEVEL))
    of_few = beta.ppf(0.05, value * trials, (1 - value) * trials + 1)
    assert low == pytest.approx(min(least, of_few), rel=0.1)
    assert high == pytest.approx(most, rel=1e-9)


def test_a_rate_without_a_positive_is_bounded_by_its_users():
    """Nothing tells how users go together: 0 of 400 by Wilson, z² / (400 + z²)."""
    row = rates(1, positives_per_impression=0.0, positives_per_impression_stderr=0.0)[0]
    low, high = bounds(row, "positives_per_impression", 400)
    assert (low, high) == (0.0, pytest.approx(3.841459 / 403.841459, rel=1e-6))


def test_a_figure_of_one_user_has_no_interval():
    assert bounds(rates(1)[0], "positive_rate", 1) is None


def test_a_value_has_a_symmetric_interval():
    row = {"value_per_user": 12.0, "value_per_user_stderr": 1.0, "users": 400}
    low, high = bounds(row, "value_per_user", 400)
    assert low + high == pytest.approx(24.0)
    assert 1.96 < high - 12 < 1.98


def test_a_value_that_does_not_vary_has_no_interval():
    row = {"value_per_user": 12.0, "value_per_user_stderr": 0.0, "users": 400}
    assert bounds(row, "value_per_user", 400) is None


def test_a_nowcast_beyond_1_has_the_interval_of_a_value():
    row = rates(1, positives_per_impression=1.2, positives_per_impression_stderr=0.3)[0]
    low, high = bounds(row, "positives_per_impression", 400)
    assert low + high == pytest.approx(2.4)


def test_rows_have_the_interval_of_their_segment_and_keep_what_they_had():
    few, many = rates(2)
    few |= {"users": 5}
    ranked = [{"window": "1h", "basis": "live", "variant": v, "slates": 400} for v in ("v0", "v1")]
    for row in ranked:
        row |= {"ndcg": 0.3, "ndcg_stderr": 0.01}
    sections = dict.fromkeys(SECTIONS, ()) | {"rates": [few, many], "ranking": ranked, "ranks": [5]}
    found = with_intervals(sections, ("variant",))
    widths = [row["ndcg_high"] - row["ndcg_low"] for row in found["ranking"]]
    assert widths[0] > 1.3 * widths[1], "five users"
    assert found["ranks"] == [5]
    for row, same in zip(found["rates"], (few, many), strict=True):
        assert row.items() > same.items()
        assert (row["positive_rate_low"], row["positive_rate_high"]) == bounds(
            same, "positive_rate", same["users"]
        )
    assert "ndcg_low" not in ranked[0]


def test_a_point_is_bounded_and_keeps_the_busiest_segments():
    data = point(10, rates(2_000))
    assert len(data) <= MAX_POINT_BYTES
    found = charted(data)
    kept = len(found["series"])
    assert found["segments_left_out"] == 2_000 - kept
    assert kept > 20
    assert {one["labels"]["variant"] for one in found["series"]} == {f"v{n}" for n in range(kept)}


def test_a_point_of_another_version_is_a_gap():
    assert history.unpack(b"") is None
    assert history.unpack(point(10, rates(1))[:-4]) is None


def card(low):
    rows = [
        {"metric": "ndcg@10", "arm": "B", "role": "primary", "difference": 0.5, "low": low}
        | {"high": 0.9},
        {
            "metric": "other",
            "arm": "B",
            "role": "exploratory",
            "difference": 1,
            "low": 1,
            "high": 1,
        },
    ]
    return Scorecard("e", None, rows, {}, ())


def test_bounds_over_time_are_of_named_metrics():
    assert experiment_history.point(card(None), 5) is None
    points = [
        experiment_history.point(card(low), now) for now, low in ((9, 0.2), (5, 0.1), (9, 0.2))
    ]
    assert experiment_history.over_time(points) == [
        {
            "metric": "ndcg@10",
            "arm": "B",
            "times": [5, 9],
            "difference": [0.5, 0.5],
            "low": [0.1, 0.2],
            "high": [0.9, 0.9],
        }
    ]


def test_bounds_over_time_are_as_many_as_a_chart_shows():
    """The newest of each span, of a month by the half hour and its last day by the minute."""
    month, day = 30 * 24 * 60, 24 * 60
    times = [*range(month - day, month), *range(0, month, 30)]
    points = [experiment_history.point(card(0.1), now) for now in times]
    (series,) = experiment_history.over_time(points)
    kept = series["times"]
    assert experiment_history.MOST_POINTS - 3 <= len(kept) <= experiment_history.MOST_POINTS
    assert kept[-1] == month - 1
    apart = [later - earlier for earlier, later in pairwise(kept)]
    assert max(apart) <= 2 * month / experiment_history.MOST_POINTS
    assert len(series["low"]) == len(kept)


def test_bounds_over_time_may_be_of_one_metric():
    rows = [dict(card(0.1).rows[0], metric=metric) for metric in ("ndcg@10", "empty_rate")]
    data = experiment_history.point(Scorecard("e", None, rows, {}, ()), 5)
    for wanted, found in ((None, ["ndcg@10", "empty_rate"]), ("empty_rate", ["empty_rate"])):
        assert [one["metric"] for one in experiment_history.over_time([data], wanted)] == found


@pytest.mark.servers
def test_a_ring_forgets_what_is_a_round_older():
    async def test(store):
        for number in (7, 8, 7 + HISTORY_POINTS):
            await store.remember("figures", number, b"%d" % number, 60_000)
        assert await store.history("figures", 0, 8) == [b"8"]
        last = 7 + HISTORY_POINTS
        assert await store.history("figures", 0, last) == [b"8", b"%d" % last]
        assert await store.history("nothing", 0, 9) == []

    on_redis(test)


class Topic:
    """A topic whose points take some seconds, or which has none."""

    def __init__(self):
        self.ready, self.took = False, 0.0

    async def points(self):
        return ({"figures:1h:live": b"point"}, self.took) if self.ready else ({}, 0.0)


class Store:
    def __init__(self):
        self.points = []

    async def remember(self, name, number, point, period):
        self.points.append((name, number))


class Definition:
    experiments = ()


def test_the_leader_adds_a_point_a_minute_and_pays_no_more_than_agreed():
    store, topic = Store(), Topic()
    job = HistoryJob(store, topic, Definition())

    def turn(now):
        asyncio.run(job.turn(now, ()))
        return [number for _, number in store.points]

    assert turn(600 + 30) == [], "a partition is missing"
    topic.ready = True
    assert turn(600 + 5) == [], "owners have not shared yet"
    assert turn(600 + 32) == [10]
    assert turn(600 + 34) == [10]
    topic.took = 2.0
    assert turn(660 + 30) == [10, 11]
    assert turn(720 + 30) == [10, 11], "two seconds of work in 500"
    assert turn(1_200 + 30) == [10, 11, 20]
