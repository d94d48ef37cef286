"""Chances of counts: by hand, against sums over all draws, and as bounds."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streameval.stats.chance import chance_of_count, chance_of_split


def test_three_of_three_by_hand():
    # Three drawn of six, all three of a part of three: 1 of C(6, 3) = 20 draws.
    assert chance_of_split(3, 3, 3, 6) == pytest.approx(1 / 20)
    assert chance_of_split(2, 3, 3, 6) == pytest.approx((9 + 1) / 20)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40), st.integers(0, 41))
def test_the_tail_is_the_sum_over_all_draws(part, rest, total, found):
    whole = part + rest
    total = min(total, whole)
    draws = range(found, min(total, part) + 1)
    ways = sum(math.comb(part, seen) * math.comb(rest, total - seen) for seen in draws)
    expected = ways / math.comb(whole, total)
    assert chance_of_split(found, total, part, whole) == pytest.approx(expected, rel=1e-9)


def test_very_many_draws_take_few_terms_and_give_a_chance():
    assert 0 < chance_of_split(50_500, 100_000, 500_000, 1_000_000) < 1e-3
    assert chance_of_split(90_000, 100_000, 500_000, 1_000_000) == 0


@given(st.integers(0, 60), st.floats(0.01, 50))
def test_the_bound_of_a_count_is_not_below_that_of_poisson(found, expected):
    below = sum(math.exp(-expected) * expected**k / math.factorial(k) for k in range(found))
    assert chance_of_count(found, expected) >= 1 - below - 1e-9


def test_what_is_never_expected_is_impossible():
    assert chance_of_count(1, 0) == 0
    assert chance_of_count(0, 0) == 1
