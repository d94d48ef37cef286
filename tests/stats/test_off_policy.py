"""Off-policy estimates: by hand, on the Open Bandit sample, and refused when they mean nothing."""

import csv
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streameval.base.errors import InputError
from streameval.base.limits import CLUSTERS
from streameval.core.windows.tables import cluster_of
from streameval.stats.cluster_sums import ratio_arm
from streameval.stats.confidence_sequences import compare
from streameval.stats.intervals import Rate, interval, rate_difference
from streameval.stats.off_policy import WeightSums, estimate

SAMPLE = Path(__file__).parents[3] / "shared" / "data" / "obd"
needs_sample = pytest.mark.skipif(not SAMPLE.exists(), reason="no Open Bandit sample")
# Items of the campaign: the random policy shows each with this chance at each position.
MEN = 34


@cache
def rounds(policy):
    """Clicks, logged propensities and pseudo-users (the four user features) of a policy's log."""
    with (SAMPLE / policy / "men" / "men.csv").open() as file:
        rows = list(csv.DictReader(file))
    clicks = np.array([float(row["click"]) for row in rows])
    logged = np.array([float(row["propensity_score"]) for row in rows])
    users = ["|".join(row[f"user_feature_{index}"] for index in range(4)) for row in rows]
    return clicks, logged, users


# --- By hand


def test_ips_divides_by_the_rounds_and_snips_by_the_weights():
    # Weights 2, 1/2 (40 times each); rewards 1, 1 and 0, 1 in turn.
    rewards = np.tile([1.0, 1.0, 0.0, 1.0], 20)
    target, logged = np.tile([0.5, 0.25], 40), np.tile([0.25, 0.5], 40)
    found = estimate(WeightSums.of(rewards, target, logged))
    # Σw = 40·2 + 40·0.5 = 100, Σwr = 20·2 + 40·0.5 = 60, Σw² = 40·4 + 40·0.25 = 170.
    assert found.ips.value == pytest.approx(60 / 80)
    assert found.snips.value == pytest.approx(60 / 100)
    assert found.mean_weight == pytest.approx(100 / 80)
    assert found.largest_weight == 2
    assert found.effective == pytest.approx(100**2 / 170)


def test_the_policy_that_served_is_estimated_by_its_own_mean():
    chance = np.random.default_rng(1)
    rewards = (chance.random(5_000) < 0.2) * 1.0
    logged = chance.uniform(0.1, 1, 5_000)
    found = estimate(WeightSums.of(rewards, logged, logged))
    assert found.ips.value == pytest.approx(rewards.mean())
    assert found.snips.value == pytest.approx(rewards.mean())
    assert found.effective == pytest.approx(5_000)
    assert found.warnings == ()


@given(st.integers(1, 99))
def test_sums_of_parts_of_a_log_add_up(cut):
    chance = np.random.default_rng(cut)
    columns = [chance.random(100), chance.random(100), chance.uniform(0.1, 1, 100)]
    users = chance.integers(0, CLUSTERS, 100)
    whole = estimate(WeightSums.of(*columns, users))
    parts = [
        WeightSums.of(*(column[part] for column in columns), users[part])
        for part in (slice(cut), slice(cut, None))
    ]
    merged = estimate(parts[0] + parts[1])
    assert merged.effective == pytest.approx(whole.effective)
    assert merged.largest_weight == whole.largest_weight
    assert merged.ips.high == pytest.approx(whole.ips.high)
    assert merged.snips.low == pytest.approx(whole.snips.low)


def test_intervals_hold_the_value_of_the_target_policy():
    chance = np.random.default_rng(3)
    served, wanted = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.3, 0.5])
    worth = np.array([0.05, 0.1, 0.2])
    missed = 0
    for _ in range(200):
        shown = chance.choice(3, 3_000, p=served)
        rewards = (chance.random(3_000) < worth[shown]) * 1.0
        found = estimate(WeightSums.of(rewards, wanted[shown], served[shown]))
        missed += not found.snips.low <= wanted @ worth <= found.snips.high
    assert missed <= 20


def test_rounds_of_a_user_that_go_together_widen_the_interval():
    chance = np.random.default_rng(4)
    taste = np.repeat(chance.beta(0.5, 2, 200), 20)
    rewards = (chance.random(4_000) < taste) * 1.0
    half = np.full(4_000, 0.5)
    users = np.repeat([cluster_of(f"u{number}") for number in range(200)], 20)
    alone = estimate(WeightSums.of(rewards, half, half)).ips
    found = estimate(WeightSums.of(rewards, half, half, users)).ips
    assert found.high - found.low > 1.5 * (alone.high - alone.low)


# --- Refused, or with a warning


def test_weights_that_collapse_to_two_rounds_are_refused():
    target = np.full(1_000, 1e-6)
    target[[10, 20]] = 0.5
    found = estimate(WeightSums.of(np.ones(1_000), target, np.full(1_000, 0.01)))
    assert found.effective == pytest.approx(2, abs=0.01)
    assert found.ips is None
    assert found.snips is None
    assert "2.0 effective rounds of 1,000" in found.refused


def test_a_policy_that_the_log_never_shows_is_refused():
    found = estimate(WeightSums.of(np.ones(100), np.zeros(100), np.full(100, 0.5)))
    assert found.effective == 0
    assert found.refused is not None


def test_propensities_that_are_not_those_of_the_policy_that_served_are_noticed():
    found = estimate(WeightSums.of(np.ones(1_000), np.full(1_000, 0.5), np.full(1_000, 0.25)))
    assert any("mean weight is 2.000" in warning for warning in found.warnings)
    assert found.off_by == pytest.approx(1)


def test_rounds_of_one_user_only_have_no_interval_and_are_refused():
    half = np.full(1_000, 0.5)
    found = estimate(WeightSums.of(np.ones(1_000), half, half, np.zeros(1_000, np.int64)))
    assert found.ips is None
    assert "one cluster of users" in found.refused


@pytest.mark.parametrize(
    ("rewards", "target", "logged", "says"),
    [
        ([1.0], [0.5], [0.0], "logged propensity"),
        ([1.0], [0.5], [1.5], "logged propensity"),
        ([1.0], [0.5], [np.nan], "logged propensity"),
        ([1.0], [1.5], [0.5], "target policy"),
        ([1.0], [np.nan], [0.5], "target policy"),
        ([np.inf], [0.5], [0.5], "reward"),
    ],
)
def test_what_is_no_probability_and_no_reward_is_bad_input(rewards, target, logged, says):
    with pytest.raises(InputError, match=says):
        WeightSums.of(rewards, target, logged)


def test_a_log_without_propensities_is_bad_input():
    with pytest.raises(InputError, match="log `propensity`"):
        estimate(WeightSums.of([], [], []))


# --- Open Bandit sample, campaign "men"


@needs_sample
def test_the_random_policy_from_its_own_log_is_its_click_rate():
    clicks, logged, _ = rounds("random")
    found = estimate(WeightSums.of(clicks, np.full(len(clicks), 1 / MEN), logged))
    assert clicks.mean() == pytest.approx(0.0046)
    assert found.ips.value == pytest.approx(0.0046)
    assert found.effective == pytest.approx(10_000)


@needs_sample
def test_the_random_policy_from_the_log_of_bts_comes_with_its_warning():
    clicks, logged, users = rounds("bts")
    where = [cluster_of(user) for user in users]
    found = estimate(WeightSums.of(clicks, np.full(len(clicks), 1 / MEN), logged, where))
    assert found.rounds == 10_000
    assert found.ips.value == pytest.approx(0.00301, abs=5e-6)
    assert found.snips.value == pytest.approx(0.00319, abs=5e-6)
    assert found.mean_weight == pytest.approx(0.943, abs=5e-4)
    assert found.largest_weight == pytest.approx(178, abs=0.5)
    assert found.effective == pytest.approx(656, abs=0.5)
    assert found.refused is None
    assert found.off_by == 0
    assert "effective sample size 656 of 10,000" in found.warnings[0]
    assert "69 rounds have a reward" in found.warnings[1]


@needs_sample
def test_bts_less_random_is_barely_above_zero_at_one_look_and_open_when_watched():
    arms, rates = [], []
    for policy in ("bts", "random"):
        clicks, _, users = rounds(policy)
        names, which = np.unique(users, return_inverse=True)
        positives, shown = np.bincount(which, clicks), np.bincount(which)
        by_user = ratio_arm(positives, shown)
        assert by_user.clusters == len(names)
        rates.append(Rate(int(clicks.sum()), len(clicks), by_user.stderr, by_user.clusters))
        arms.append(ratio_arm(clicks, np.ones(len(clicks))))
    assert [rate.positives for rate in rates] == [69, 46]
    found = rate_difference(*rates)
    assert found.value == pytest.approx(0.0023)
    assert (found.low, found.high) == pytest.approx((0.000185, 0.004466), abs=2e-6)
    watched = compare(*arms)
    assert watched.verdict == "no difference"
    assert (watched.low, watched.high) == pytest.approx((-0.00098, 0.00558), abs=1e-5)
    # What one look says without the users is nearly the same here: 230 pseudo-users show no excess.
    assert interval(arms[0]).high == pytest.approx(0.00852, abs=1e-5)
