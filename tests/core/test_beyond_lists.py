"""Ratings, coverage, novelty, diversity, retrieval, the daily rate: cases computed by hand."""

import math

import numpy as np
import pytest

from streameval.core.metrics import METRICS, UNCUT
from streameval.core.metrics.beyond_accuracy import ItemLists, Reach, coverage, unit_vector
from streameval.core.metrics.daily_positive_rate import Reads
from streameval.core.metrics.rating_errors import SCALE, Ratings
from streameval.core.metrics.retrieval import Results, SampledRanks

BY_NAME = {entry.name: entry for entry in METRICS}


def units(name, data, k=UNCUT, **values):
    """What each unit has of a figure: (x, y) of each."""
    x, y = BY_NAME[name].score(data, k, **values)
    return list(zip(x.tolist(), y.tolist(), strict=True))


def figure(name, data, k=UNCUT):
    metric = BY_NAME[name].with_values({SCALE: (1.0, 5.0)})
    x, y = metric.score(data, k)
    mean = x.sum() / y.sum()
    return math.sqrt(mean) if BY_NAME[name].root else mean


# --- Errors. User 0 rates items 0, 1 (errors -1, 3), user 1 item 0 (error 2).

RATINGS = Ratings(
    starts=np.array([0, 2]),
    actual=np.array([4.0, 1.0, 3.0]),
    predicted=np.array([3.0, 4.0, 5.0]),
    lines=np.array([1, 2, 3]),
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mse", (1 + 4 + 9) / 3),
        ("rmse", math.sqrt(14 / 3)),
        ("mae", 2.0),
        ("rmse_user", (math.sqrt((1 + 9) / 2) + 2) / 2),
        ("mae_user", ((1 + 3) / 2 + 2) / 2),
        ("nrmse", math.sqrt(14 / 3) / 4),
        ("nmae", 2 / 4),
    ],
)
def test_errors_over_pairs_and_users_differ(name, value):
    assert figure(name, RATINGS) == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "value"),
    [("rmse_item", (math.sqrt((1 + 4) / 2) + 3) / 2), ("mae_item", ((1 + 2) / 2 + 3) / 2)],
)
def test_errors_over_items_by_hand(name, value):
    """Item 0 has errors -1 and 2, item 1 has 3."""
    metric = BY_NAME[name]
    totals = np.array([5.0, 9.0] if metric.squared else [3.0, 3.0])
    assert metric.of_items(totals, np.array([2.0, 1.0])).mean() == pytest.approx(value)
    assert math.isnan(metric.of_items(np.zeros(1), np.zeros(1))[0])


def test_users_without_pairs_have_no_sums():
    nothing = Ratings(np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(0, np.int64))
    assert units("rmse", nothing) == units("mae_user", nothing) == []


def test_threshold_metrics_by_hand():
    """t = 3.5, k = 2. User 0 predicts 5, 4, 3.6, 3 for actual 4, 2, 5, 4.

    Its top 2 are predicted above t: 2 recommended, 1 of them relevant, 3 relevant in all:
    P = 1/2, R = 1/3, F1 = 2 · 1 / (2 + 3). User 1 predicts 3.5 (not above t) for 5: all 0.
    """
    ratings = Ratings(
        starts=np.array([0, 4]),
        actual=np.array([4.0, 2.0, 5.0, 4.0, 5.0]),
        predicted=np.array([5.0, 4.0, 3.6, 3.0, 3.5]),
        lines=np.arange(5),
    )
    assert units("precision_threshold", ratings, 2, threshold=3.5) == [(1 / 2, 1), (0, 1)]
    assert units("recall_threshold", ratings, 2, threshold=3.5) == [(1 / 3, 1), (0, 1)]
    assert units("f1_threshold", ratings, 2, threshold=3.5) == [(2 / 5, 1), (0, 1)]


@pytest.mark.parametrize(("lines", "precision"), [((1, 2), 1.0), ((2, 1), 0.0)])
def test_of_equal_predictions_the_earlier_line_is_recommended(lines, precision):
    ratings = Ratings(np.array([0]), np.array([5.0, 1.0]), np.array([4.0, 4.0]), np.array(lines))
    assert units("precision_threshold", ratings, 1, threshold=3.0) == [(precision, 1)]


# --- What lists are made of. Features: a = {x}, b = {x, y}, c = {y}.
# Cosines: ab 1/√2, bc 1/√2, ac 0.

VECTORS = {item: unit_vector(dict.fromkeys(names, 1.0)) for item, names in
           {"a": "x", "b": "xy", "c": "y"}.items()}  # fmt: skip
HALF = 1 - 1 / math.sqrt(2)


def shown(*lists, **known):
    return ItemLists(lists, [range(1, len(items) + 1) for items in lists], **known)


def test_novelty_and_diversity_by_hand():
    """Distances: ab and bc 1 - 1/√2, ac 1. Diversity of abc is their mean, of ab that of ab.

    Novelty is the mean over the five items shown: of abc (ab + ac)/2, (ab + bc)/2, (ac + bc)/2,
    which sum to 3 times its diversity; of ab twice ab.
    """
    lists = shown("abc", "ab", vectors=VECTORS)
    first = (HALF + HALF + 1) / 3
    assert [x for x, _ in units("diversity", lists)] == pytest.approx([first, HALF], abs=1e-12)
    assert figure("diversity", lists) == pytest.approx((first + HALF) / 2, abs=1e-12)
    assert figure("novelty", lists) == pytest.approx((3 * first + 2 * HALF) / 5, abs=1e-12)
    assert figure("diversity", lists, 2) == pytest.approx(HALF, abs=1e-12), "the top 2 of both"


def test_values_of_features_count():
    """Cosine of (3, 4) and (1, 0): 3/5."""
    vectors = {"a": unit_vector({"x": 3.0, "y": 4.0}), "b": unit_vector({"x": 1.0})}
    assert figure("diversity", shown("ab", vectors=vectors)) == pytest.approx(2 / 5, abs=1e-12)


def test_lists_without_two_known_items_are_left_out():
    lists = shown("a", "", "ax", vectors=VECTORS)
    assert units("diversity", lists) == units("novelty", lists) == [(0, 0)] * 3


def test_self_information_by_hand():
    """Popularities 1/2 and 1/8 carry 1 and 3 bits; nobody has x."""
    lists = shown("ab", "ax", "", popularity={"a": 1 / 2, "b": 1 / 8})
    assert units("novelty_self_information", lists) == [(2.0, 1), (0, 0), (0, 0)]
    assert units("novelty_self_information", lists, 1)[1] == (1.0, 1), "x is below the cut"


def test_coverages_by_hand():
    """Three of six items; two of three unrated reached; nothing left to reach."""
    assert coverage(3, 6) == 1 / 2
    assert coverage(0, 0) is None
    reach = Reach(unrated=np.array([3, 0]), reached=np.array([2, 0]))
    assert units("neighbour_coverage", reach) == [(2 / 3, 1), (0, 0)]


# --- Retrieval and Gorse's rate


def test_retrieval_by_hand():
    """Of bcd, bc are found; a query without results has 0."""
    assert units("index_recall", Results(["abcx", ""], ["bcde", "ab"]), 3) == [(2 / 3, 1), (0, 1)]
    ranks = SampledRanks(np.array([1, 3]))
    assert units("sampled_hit_rate", ranks, 2) == [(1, 1), (0, 1)]
    assert units("sampled_ndcg", ranks, 3) == [(1, 1), (1 / math.log2(4), 1)]
    assert units("sampled_ndcg", ranks, 2) == [(1, 1), (0, 1)]


def test_gorses_toy_case_has_both_of_its_answers():
    """u1 reads a, b and likes a: 1/2. u2 and u4 read a, b: 0."""
    reads = Reads(reads=np.array([2, 2, 2]), positives=np.array([1, 0, 0]))
    assert figure("daily_positive_rate", reads) == pytest.approx(1 / 6)
    assert figure("daily_positive_rate_gorse_v05", reads) == 0.5
