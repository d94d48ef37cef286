"""Ratings, coverage, novelty, diversity, retrieval, the daily rate: cases computed by hand."""

import math

import numpy as np
import pytest

from streameval.core.errors import InputError
from streameval.core.metrics import rating_errors
from streameval.core.metrics.beyond_accuracy import (
    catalogue_coverage,
    diversity,
    neighbour_coverage,
    novelty,
    novelty_self_information,
)
from streameval.core.metrics.daily_positive_rate import daily_positive_rate
from streameval.core.metrics.rating_errors import Ratings
from streameval.core.metrics.rating_thresholds import at_threshold
from streameval.core.metrics.retrieval import (
    index_recall,
    sampled_hit_rate,
    sampled_ndcg,
    sampled_rank,
)

# User 0 rates items 0, 1 (errors 1, 3), user 1 item 0 (error 2).
RATINGS = Ratings(
    np.array([0, 1, 0]), np.array([0, 0, 1]), np.array([4.0, 3.0, 1.0]), np.array([3.0, 5.0, 4.0])
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mse", (1 + 4 + 9) / 3),
        ("rmse", math.sqrt(14 / 3)),
        ("mae", 2.0),
        ("rmse_user", (math.sqrt((1 + 9) / 2) + 2) / 2),
        ("mae_user", ((1 + 3) / 2 + 2) / 2),
        ("rmse_item", (math.sqrt((1 + 4) / 2) + 3) / 2),
        ("mae_item", ((1 + 2) / 2 + 3) / 2),
    ],
)
def test_errors_over_pairs_users_and_items_differ(name, value):
    assert getattr(rating_errors, name)(RATINGS) == pytest.approx(value, abs=1e-12)
    nothing = Ratings(*(np.zeros(0, np.int64),) * 2, *(np.zeros(0),) * 2)
    assert math.isnan(getattr(rating_errors, name)(nothing))


def test_normalised_errors_divide_by_the_range_given():
    assert rating_errors.nmae(RATINGS, 1, 5) == 0.5
    assert rating_errors.nrmse(RATINGS, 1, 5) == pytest.approx(math.sqrt(14 / 3) / 4)
    with pytest.raises(InputError, match="rating scale"):
        rating_errors.nmae(RATINGS, 5, 5)


def test_threshold_metrics_by_hand():
    """t = 3.5, k = 2. User 0 predicts 5, 4, 3.6, 3 for actual 4, 2, 5, 4.

    Its top 2 are predicted above t: 2 recommended, 1 of them relevant, 3 relevant in all:
    P = 1/2, R = 1/3, F1 = 2 · 1 / (2 + 3). User 1 predicts 3.5 (not above t) for 5: all 0.
    """
    ratings = Ratings(
        np.array([0, 0, 1, 0, 0]),
        np.array([0, 1, 0, 2, 3]),
        np.array([4.0, 2.0, 5.0, 5.0, 4.0]),
        np.array([5.0, 4.0, 3.5, 3.6, 3.0]),
    )
    precision, recall, f1 = at_threshold(ratings, 2, 3.5)
    assert precision.tolist() == [1 / 2, 0]
    assert recall.tolist() == [1 / 3, 0]
    assert f1.tolist() == [2 / 5, 0]


SIMILAR = {frozenset("ab"): 0.5, frozenset("ac"): 0.25, frozenset("bc"): 0.0}


def similarity(a, b):
    return SIMILAR[frozenset((a, b))]


def test_novelty_and_diversity_by_hand():
    """Distances: ab 1/2, ac 3/4, bc 1. Novelty of a is 5/8, of b 3/4, of c 7/8; their mean 3/4."""
    assert novelty("abc", similarity) == [5 / 8, 3 / 4, 7 / 8]
    assert diversity("abc", similarity) == 3 / 4
    assert novelty("a", similarity) == []
    assert math.isnan(diversity("a", similarity))


def test_self_information_by_hand():
    """Popularities 1/2 and 1/8 carry 1 and 3 bits."""
    assert novelty_self_information("ab", {"a": 1 / 2, "b": 1 / 8}) == 2.0
    assert math.isnan(novelty_self_information("ax", {"a": 1 / 2}))
    assert math.isnan(novelty_self_information("", {}))


def test_coverages_by_hand():
    """Neighbours of u rated b and c: of the unrated b, c, d, two are reached."""
    assert catalogue_coverage(["abc", "bd"], 2, 6) == 3 / 6
    with pytest.raises(InputError, match="2 were shown"):
        catalogue_coverage(["ab"], 2, 1)
    rated = {"u": "a", "v": "ab", "w": "c", "x": "d"}
    assert neighbour_coverage("u", rated, ["v", "w"], set("abcd")) == 2 / 3
    assert math.isnan(neighbour_coverage("u", {"u": "ab"}, ["v"], set("ab")))


def test_retrieval_by_hand():
    assert index_recall("abcx", "bcde", 3) == 2 / 3
    assert sampled_rank(0.5, [0.9, 0.5, 0.1]) == 3
    assert [sampled_hit_rate(3, k) for k in (2, 3)] == [0.0, 1.0]
    assert [sampled_ndcg(3, k) for k in (2, 3)] == [0.0, 0.5]


def test_gorses_toy_case_has_both_of_its_answers():
    """u1 reads a, b and likes a: 1/2. u2 and u4 read a, b: 0. u3 likes c without reading it."""
    reads = {"u1": {"a", "b"}, "u2": {"a", "b"}, "u4": {"a", "b"}}
    likes = {"u1": {"a"}, "u3": {"c"}}
    assert daily_positive_rate(reads, likes) == 1 / 6
    assert daily_positive_rate(reads, likes, "gorse_v05") == 0.5
    assert math.isnan(daily_positive_rate({}, likes))
