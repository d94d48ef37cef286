"""The sequential test of a split: its evidence, its alarm, who is counted."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streameval.base.errors import InputError
from streameval.stats.sample_ratio import log_evidence, ratio_mismatch, shares

EVEN = {"A": 1, "B": 1}


def test_the_evidence_of_one_user_is_1_whatever_the_variant():
    # Γ(κ)/Γ(κ+1) · Γ(κp+1)/Γ(κp) / p = κp / κ / p = 1.
    assert float(log_evidence([1, 0], [0.3, 0.7])) == pytest.approx(0, abs=1e-9)
    assert float(log_evidence([0, 1], [0.3, 0.7])) == pytest.approx(0, abs=1e-9)


def test_the_evidence_of_two_users_by_hand():
    # κ = 1,000, p = 1/2: both in A gives (500·501)/(1000·1001)·4 = 1002/1001.
    assert float(log_evidence([2, 0], [0.5, 0.5])) == pytest.approx(math.log(1002 / 1001))
    assert float(log_evidence([1, 1], [0.5, 0.5])) == pytest.approx(math.log(1000 / 1001))


@given(st.integers(0, 40), st.sampled_from([(0.5, 0.5), (0.1, 0.9)]))
def test_the_evidence_has_mean_1_when_the_split_holds(users, split):
    # A martingale: the mean over all counts of a binomial is what bounds the false alarms.
    counts = np.array([(seen, users - seen) for seen in range(users + 1)])
    chance = [
        math.comb(users, seen) * split[0] ** seen * split[1] ** (users - seen)
        for seen in range(users + 1)
    ]
    mean = np.dot(chance, np.exp(log_evidence(counts, split, concentration=10)))
    assert mean == pytest.approx(1)


def test_52_to_48_is_found_and_50_to_50_is_not():
    found = ratio_mismatch({"A": 10_400, "B": 9_600}, EVEN)
    assert found.alarm
    assert found.p_value == pytest.approx(math.exp(-found.log_evidence))
    assert found.observed == {"A": 0.52, "B": 0.48}
    fair = ratio_mismatch({"A": 10_050, "B": 9_950}, EVEN)
    assert not fair.alarm
    assert fair.p_value == 1


def test_an_alarm_stays_when_later_users_look_fair():
    fair = {"A": 10_050, "B": 9_950}
    assert ratio_mismatch(fair, EVEN, earlier_p_value=0.0005).alarm
    assert ratio_mismatch(fair, EVEN, earlier_p_value=0.5).p_value == 0.5


def test_a_variant_that_the_split_does_not_name_is_impossible():
    found = ratio_mismatch({"A": 500, "B": 500, "C": 1}, EVEN)
    assert found.alarm
    assert found.p_value == 0
    assert found.observed["C"] == pytest.approx(1 / 1_001)
    assert not ratio_mismatch({"A": 500, "B": 500, "C": 0}, EVEN).alarm


def test_a_variant_that_got_nobody_is_found():
    assert ratio_mismatch({"A": 2_000}, EVEN).alarm


def test_without_users_there_is_no_evidence():
    found = ratio_mismatch({}, EVEN)
    assert (found.users, found.p_value, found.alarm) == (0, 1, False)
    assert found.observed == {"A": 0, "B": 0}


def test_very_many_users_do_not_overflow():
    found = ratio_mismatch({"A": 10**9, "B": 10**8}, EVEN)
    assert found.alarm
    assert found.p_value == 0


def test_weights_are_divided_by_their_sum():
    assert shares({"A": 9, "B": 1}) == {"A": 0.9, "B": 0.1}


@pytest.mark.parametrize("split", [{}, {"A": 1}, {"A": 1, "B": 0}, {"A": 1, "B": math.nan}])
def test_a_split_that_is_none_is_refused(split):
    with pytest.raises(InputError, match="two variants"):
        ratio_mismatch({"A": 1}, split)
