"""Comparisons of arms from sums by cluster of users, and other packages on the same data."""

import math
from fractions import Fraction
from itertools import pairwise
from statistics import NormalDist

import numpy as np
import pytest

from streameval.base.errors import InputError
from streameval.stats.cluster_sums import ClusterSums
from streameval.stats.confidence_sequences import radius
from streameval.stats.experiments import (
    Rules,
    Scored,
    about,
    compare_paired,
    compare_ratios,
    split_alpha,
    users_until,
)
from streameval.stats.plan import smallest_effect, spread_of, users_for
from streameval.stats.regression_adjustment import compare_adjusted
from streameval.stats.sample_ratio import crossed_bound, split_evidence

CLUSTERS = 256
RULES = Rules(alpha=0.05, planned_users=10_000)


def clicks(users, rate, seed, impressions=5):
    """Clicks and impressions by cluster: every user has `impressions` on average and a taste."""
    chance = np.random.default_rng(seed)
    seen = 1 + chance.poisson(impressions - 1, users)
    found = chance.binomial(seen, chance.beta(9 * rate, 9 * (1 - rate), users))
    cluster = chance.integers(0, CLUSTERS, users)
    x, y = (np.bincount(cluster, part, CLUSTERS).astype(np.int64) for part in (found, seen))
    return ClusterSums(x, y, users)


def rare(events, users=20_000):
    """`events` users with an event, spread over all clusters."""
    cluster = np.arange(users) % CLUSTERS
    x = np.bincount(cluster, np.arange(users) < events, CLUSTERS).astype(np.int64)
    return ClusterSums(x, np.bincount(cluster, minlength=CLUSTERS), users)


# --- A figure and its spread


def test_a_figure_is_divided_once_from_exact_sums():
    x = np.array([2**60, 2**60 + 1, 2**60, 2**62] * 8, np.int64)
    y = np.arange(1, 33, dtype=np.int64)
    found = ClusterSums(x, y, 100, unit=10**6).value
    exact = Fraction(sum(x.tolist()), 10**6 * sum(y.tolist()))
    assert found == exact.numerator / exact.denominator


def test_money_beyond_2_to_the_53_may_come_as_doubles():
    whole = np.array([2**70, 3 * 2**65, 0, 2**71], dtype=np.float64)
    y = np.array([3, 1, 1, 2])
    assert ClusterSums(whole, y, 10, unit=10**6).value == (2**70 + 3 * 2**65 + 2**71) / (7 * 10**6)


def moved_by(sums):
    """How far the ratio moves without each cluster: exact fractions, as floats."""
    x, y = sums.x.tolist(), sums.y.tolist()
    whole = Fraction(sum(x), sum(y))
    return [float(whole - Fraction(sum(x) - a, sum(y) - b)) for a, b in zip(x, y, strict=True)]


def test_the_spread_is_that_of_leaving_out_each_cluster():
    sums = clicks(5_000, 0.1, seed=1)
    arm, moved = sums.arm(), moved_by(sums)
    assert (arm.units, arm.clusters) == (5_000, 256)
    squares = math.fsum(by * by for by in moved)
    assert arm.stderr == pytest.approx(math.sqrt(255 / 256 * squares), rel=1e-12)
    cubes = math.fsum((by / math.sqrt(squares / 256)) ** 3 for by in moved) / 256
    assert arm.skewness == pytest.approx(cubes * math.sqrt(5_000 / 256), rel=1e-9)
    # Users of about equal activity: as the delta method.
    parts = (sums.x - arm.value * sums.y) / sums.y.sum()
    assert arm.stderr == pytest.approx(math.sqrt(256 / 255 * np.square(parts).sum()), rel=0.01)
    known = (parts**3).mean() / np.square(parts).mean() ** 1.5 * math.sqrt(5_000 / 256)
    assert arm.skewness == pytest.approx(known, rel=0.1)


def test_the_unit_changes_nothing_but_the_scale():
    plain, nano = clicks(2_000, 0.1, seed=2), clicks(2_000, 0.1, seed=2)
    nano = ClusterSums(nano.x * 10**9, nano.y, nano.users, unit=10**9)
    for found, wanted in zip(
        (nano.value, nano.arm().stderr, nano.arm().skewness),
        (plain.value, plain.arm().stderr, plain.arm().skewness),
        strict=True,
    ):
        assert found == pytest.approx(wanted, rel=1e-13)


def test_what_is_undefined_is_none_and_never_0():
    nothing = ClusterSums(np.zeros(4, int), np.zeros(4, int), 0)
    one = ClusterSums(np.array([1, 0, 0, 0]), np.array([2, 0, 0, 0]), 1)
    assert nothing.value is None
    assert nothing.arm() is None
    assert one.arm() is None
    assert compare_ratios(one, nothing, RULES) == Scored(0.5, None)
    # Everybody has the same, and rounding is no spread: 1/3 is not a double.
    third = ClusterSums(np.full(CLUSTERS, 7), np.full(CLUSTERS, 21), 5_000)
    found = compare_ratios(third, third, RULES)
    assert (found.difference, found.low, found.high, found.verdict) == (0, None, None, "not yet")
    assert (found.once_low, found.users_needed) == (None, None)


# --- Verdicts


def test_a_difference_is_judged_by_bounds_for_all_looks():
    better = compare_ratios(clicks(20_000, 0.12, 1), clicks(20_000, 0.1, 2), RULES)
    assert better.verdict == "better"
    assert 0 < better.low < better.once_low < better.difference < better.once_high < better.high
    assert better.relative_difference == better.difference / better.control_value
    assert better.users_needed == 0
    worse = compare_ratios(clicks(20_000, 0.1, 2), clicks(20_000, 0.12, 1), RULES)
    assert (worse.verdict, worse.low, worse.high) == ("worse", -better.high, -better.low)
    equal = compare_ratios(clicks(20_000, 0.1, 2), clicks(20_000, 0.1, 3), RULES)
    assert equal.verdict == "no difference shown"
    early = compare_ratios(clicks(99, 0.12, 1), clicks(99, 0.1, 2), RULES)
    assert (early.verdict, early.low) == ("not yet", None)
    # A difference of one standard error: how many users it needs is mere chance.
    assert early.users_needed is None


def test_the_bounds_are_the_formula_of_the_contract():
    arms = clicks(9_000, 0.12, 1), clicks(12_000, 0.1, 2)
    found = compare_ratios(*arms, RULES)
    variance = sum(255 / 256 * math.fsum(by * by for by in moved_by(arm)) for arm in arms)
    t = 21_000
    # ρ² solves the equation of Lambert's function at the planned users.
    u = 1.0
    for _ in range(500):
        u = 1 - 2 * math.log(0.05) + math.log(u)
    rho2 = (u - 1) / 10_000
    s = math.sqrt(variance * t)
    grown = t * rho2 + 1
    reach = s * math.sqrt(2 * grown / (t * t * rho2) * math.log(math.sqrt(grown) / 0.05))
    assert found.high - found.difference == pytest.approx(reach, rel=1e-10)


def test_lower_is_better_turns_the_verdict_and_not_the_difference():
    rules = Rules(lower_is_better=True)
    found = compare_ratios(clicks(20_000, 0.12, 1), clicks(20_000, 0.1, 2), rules)
    assert found.verdict == "worse"
    assert found.low > 0
    assert (
        compare_ratios(clicks(20_000, 0.1, 2), clicks(20_000, 0.12, 1), rules).verdict == "better"
    )


@pytest.mark.parametrize(
    ("low", "high", "margin", "lower", "verdict"),
    [
        (0.001, 0.02, 0.0, False, "better"),
        (0.001, 0.02, 0.5, False, "better"),
        (-0.02, -0.001, 0.0, False, "worse"),
        (-0.02, -0.001, 0.001, False, "no difference shown"),
        (-0.02, -0.001, 0.0005, False, "worse"),
        (0.001, 0.02, 0.0005, True, "worse"),
        (0.001, 0.02, 0.001, True, "no difference shown"),
        (-0.02, -0.001, 0.5, True, "better"),
        (0.0, 0.02, 0.0, False, "no difference shown"),
        (-0.02, 0.0, 0.0, False, "no difference shown"),
        (None, None, 0.0, False, "not yet"),
    ],
)
def test_a_loss_within_the_margin_is_accepted(low, high, margin, lower, verdict):
    assert Rules(margin=margin, lower_is_better=lower).verdict(low, high) == verdict


def test_the_burn_in_of_rare_events_is_some_20_of_them_an_arm():
    for events, verdict in ((15, "not yet"), (25, "no difference shown")):
        assert compare_ratios(rare(events), rare(events), RULES).verdict == verdict


def test_a_control_without_an_event_does_not_hide_a_worse_treatment():
    rules = Rules(lower_is_better=True)
    found = compare_ratios(rare(200), rare(0), rules)
    assert found.verdict == "worse"
    assert found.relative_difference is None
    assert compare_ratios(rare(200), rare(3), rules).verdict == "worse"
    # Events enough to know the spread, and not enough to exclude chance.
    assert compare_ratios(rare(200), rare(190), rules).verdict == "no difference shown"


# --- Users that are still needed


def spread_between(one, other):
    """The squared standard error of a difference, times the users of both arms."""
    return (one.arm().stderr ** 2 + other.arm().stderr ** 2) * (one.users + other.users)


def test_the_users_needed_are_those_at_which_the_bounds_leave_0():
    one, other = clicks(4_000, 0.112, 2), clicks(4_000, 0.1, 4)
    found = compare_ratios(one, other, RULES)
    apart = abs(found.difference)
    assert 0.01 * found.control_value < apart < found.high - found.difference
    then = users_until(apart, spread_between(one, other), 0.05, 10_000)
    assert found.users_needed == about(math.ceil(then) - 8_000)


def test_a_difference_near_0_needs_the_users_that_exclude_the_lift():
    same = clicks(3_000, 0.1, 1)
    found = compare_ratios(same, same, Rules(lift=0.1))
    then = users_until(0.1 * same.value, spread_between(same, same), 0.05, 10_000)
    assert found.users_needed == about(math.ceil(then) - 6_000) > 0
    assert compare_ratios(same, same, Rules(lift=0.5)).users_needed == 0


def test_users_still_needed_count_the_burn_in():
    found = compare_ratios(clicks(50, 0.9, 1), clicks(95, 0.1, 2), RULES)
    # 100 users of each arm, at the present proportion: 145 more.
    assert found.users_needed == 200


def test_users_that_nobody_can_know_yet_are_not_told():
    """A lift of 1 % is within the noise: 21,000,000 more users after 20 seconds mean nothing."""
    assert compare_ratios(clicks(150, 0.1, 1), clicks(150, 0.1, 1), RULES).users_needed is None


@pytest.mark.parametrize(
    ("users", "told"),
    [(0, 0), (1, 1), (3, 5), (10, 10), (11, 20), (390, 500), (1_500, 2_000), (59_000, 100_000)],
)
def test_users_are_told_in_rungs(users, told):
    assert about(users) == told


def test_the_users_needed_hold_from_look_to_look():
    """One growing stream: within a tenth of its time the number moves by a rung at most."""
    chance, seen, told = np.random.default_rng(5), [np.zeros((2, CLUSTERS))] * 2, []
    for _ in range(200):
        seen = [
            sums + np.stack((chance.binomial(5, rate, CLUSTERS), np.full(CLUSTERS, 5)))
            for sums, rate in zip(seen, (0.105, 0.1), strict=True)
        ]
        users = int(seen[0][1].sum()) // 5
        arms = [ClusterSums(*sums.astype(np.int64), users) for sums in seen]
        told.append(compare_ratios(*arms, RULES).users_needed)
    rungs = [about(10**digits * step) for digits in range(3, 7) for step in (1, 2, 5)]
    known = [(look, rungs.index(one)) for look, one in enumerate(told) if one]
    assert len(known) > 20
    for (look, one), (later, other) in pairwise(known):
        if later <= 1.1 * look:
            assert abs(one - other) <= 1


@pytest.mark.parametrize("planned", [2, 1_000, 10**6, 10**9])
@pytest.mark.parametrize("reach", [1e-6, 1e-3, 0.1, 3.0])
def test_the_search_for_users_ends_at_the_solution(planned, reach):
    users = users_until(reach, 0.36, 0.0125, planned)
    assert radius(0.36 / users, users, 0.0125, planned) == pytest.approx(reach, rel=1e-9)


# --- The same users on both sides


def test_paired_figures_are_compared_by_each_clusters_difference():
    """A model that is a little better for everybody: the users' tastes cancel."""
    chance = np.random.default_rng(3)
    y = chance.integers(1, 9, CLUSTERS)
    x = chance.integers(0, 10**9, CLUSTERS) * y
    more = ClusterSums(x + y * 10**7 + chance.integers(0, 10**6, CLUSTERS), y, 2_000, 10**9)
    base = ClusterSums(x, y, 2_000, 10**9)
    found = compare_paired(more, base, RULES)
    assert found.verdict == "better"
    assert found.difference == pytest.approx(0.01, rel=0.05)
    assert compare_ratios(more, base, RULES).verdict == "no difference shown"
    assert compare_paired(base, base, RULES).verdict == "not yet"
    nothing = ClusterSums(np.zeros(CLUSTERS, int), np.zeros(CLUSTERS, int), 0)
    assert compare_paired(base, nothing, RULES) == Scored(base.value, None)


# --- CUPED


def with_past(users, rate, seed, holds=0.9, lift=0.0):
    """Users' clicks and impressions in the experiment and before it, each shape (users,)."""
    chance = np.random.default_rng(seed)
    taste = chance.beta(5 * rate, 5 * (1 - rate), users)
    before = np.where(chance.random(users) < holds, taste, chance.permutation(taste))
    seen, earlier = 1 + chance.poisson(9, users), chance.poisson(20, users)
    now = ClusterSums(chance.binomial(seen, np.minimum(taste * (1 + lift), 1)), seen, users)
    return now, ClusterSums(chance.binomial(earlier, before), earlier, users)


def by_cluster(sums):
    """The sums of users by cluster."""
    cluster = np.arange(len(sums.x)) % CLUSTERS
    x, y = (np.bincount(cluster, part, CLUSTERS).astype(int) for part in (sums.x, sums.y))
    return ClusterSums(x, y, sums.users, sums.unit)


def test_the_past_of_users_takes_noise_out():
    (one, past), (other, earlier) = with_past(20_000, 0.1, 1, lift=0.06), with_past(20_000, 0.1, 2)
    plain = compare_ratios(one, other, RULES)
    found = compare_adjusted((one, other), (past, earlier), RULES)
    assert 0.3 < found.users_saved < 0.7
    assert found.scored.high - found.scored.low == pytest.approx(
        (plain.high - plain.low) * math.sqrt(1 - found.users_saved)
    )
    assert found.scored.difference == pytest.approx(
        plain.difference - found.theta * (past.value - earlier.value)
    )
    assert found.scored.low < 0.006 < found.scored.high
    assert (plain.verdict, found.scored.verdict) == ("no difference shown", "better")


def test_sums_by_cluster_adjust_as_users_do():
    (one, past), (other, earlier) = with_past(20_000, 0.1, 1), with_past(20_000, 0.1, 2)
    users = compare_adjusted((one, other), (past, earlier), RULES)
    clusters = compare_adjusted(
        (by_cluster(one), by_cluster(other)), (by_cluster(past), by_cluster(earlier)), RULES
    )
    assert clusters.theta == pytest.approx(users.theta, rel=0.2)
    assert clusters.users_saved == pytest.approx(users.users_saved, abs=0.1)
    assert clusters.scored.high == pytest.approx(users.scored.high, rel=0.1)


def test_a_past_that_says_nothing_saves_nothing():
    (one, past), (other, earlier) = (with_past(5_000, 0.1, seed, holds=0.0) for seed in (1, 2))
    found = compare_adjusted((one, other), (past, earlier), RULES)
    assert abs(found.users_saved) < 0.01
    none = ClusterSums(np.zeros(5_000, int), np.zeros(5_000, int), 5_000)
    unknown = compare_adjusted((one, other), (none, none), RULES)
    assert (unknown.theta, unknown.users_saved) == (None, None)
    assert unknown.scored == compare_ratios(one, other, RULES)


def test_units_do_not_change_what_is_saved():
    (one, past), (other, earlier) = with_past(2_000, 0.1, 1), with_past(2_000, 0.1, 2)
    nano = tuple(ClusterSums(s.x * 10**9, s.y, s.users, 10**9) for s in (one, other))
    plain = compare_adjusted((one, other), (past, earlier), RULES)
    found = compare_adjusted(nano, (past, earlier), RULES)
    assert found.users_saved == pytest.approx(plain.users_saved, rel=1e-9)
    assert found.scored.low == pytest.approx(plain.scored.low, rel=1e-9)


# --- Plans


def test_planned_users_show_the_effect_with_the_power():
    spread, effect = 0.36, 0.005
    plan = users_for(effect, spread, alpha=0.05, power=0.8)
    # Textbook: 16·σ²/δ² users an arm, 7.85·2·σ² exactly.
    assert plan.one_look == pytest.approx(7.849 * spread / effect**2, rel=1e-3)
    reach = float(radius(spread / plan.all_looks, plan.all_looks, 0.05, plan.all_looks))
    error = math.sqrt(spread / plan.all_looks)
    assert (effect - reach) / error == pytest.approx(NormalDist().inv_cdf(0.8), abs=1e-3)


@pytest.mark.parametrize("users", [1_000, 54_321])
def test_the_smallest_effect_and_the_users_for_it_are_inverse(users):
    found = smallest_effect(users, 0.36, planned_users=users, alpha=0.0125, power=0.9)
    plans = [users_for(effect, 0.36, 0.0125, 0.9) for effect in found]
    assert plans[0].one_look == pytest.approx(users, abs=1)
    assert plans[1].all_looks == pytest.approx(users, abs=1)
    # Bounds that were planned for other users see less.
    assert smallest_effect(users, 0.36, 10 * users, 0.0125, 0.9).all_looks > found.all_looks


def test_the_spread_of_a_plan_is_the_spread_of_the_comparison():
    both = clicks(40_000, 0.1, seed=1)
    found = spread_of(both)
    arms = clicks(20_000, 0.1, seed=2), clicks(20_000, 0.1, seed=3)
    variance = sum(arm.arm().stderr ** 2 for arm in arms)
    assert found == pytest.approx(40_000 * variance, rel=0.2)
    assert spread_of(both, share=0.1) == pytest.approx(found * 0.25 / 0.09)
    assert spread_of(ClusterSums(np.array([1]), np.array([2]), 1)) is None


# --- Many figures, and the split


def test_alpha_is_shared_and_its_sum_is_kept():
    found = split_alpha(0.05, guardrails=2)
    assert found == (0.025, 0.0125, 0.05)
    assert split_alpha(0.05, guardrails=0).primary == 0.05
    three = split_alpha(0.05, guardrails=3, treatments=2, primary_share=0.8)
    assert 2 * (three.primary + 3 * three.guardrail) == pytest.approx(0.05)


def test_the_split_is_weighed_over_the_arms_that_it_names():
    even = split_evidence({"A": 10_000, "B": 10_000}, {"A": 1, "B": 1})
    assert even.log_evidence < 0
    assert even.p_value == 1
    found = split_evidence({"A": 10_400, "B": 9_600, "debug": 3}, {"A": 1, "B": 1})
    assert found.p_value == pytest.approx(math.exp(-found.log_evidence))
    assert found.p_value < 0.001
    with pytest.raises(InputError):
        split_evidence({"A": 1}, {"A": 1})


def test_crossed_users_are_too_many_when_chance_is_excluded():
    assert crossed_bound(0, 0).share is None
    assert crossed_bound(1, 50) == (0.02, pytest.approx(1, abs=0.3), False)
    assert not crossed_bound(100, 10_000).too_many
    assert not crossed_bound(110, 10_000).too_many
    assert crossed_bound(200, 10_000).too_many


def test_crossed_users_at_the_bound_raise_an_alarm_in_fewer_runs_than_alpha():
    chance = np.random.default_rng(5)
    runs, users = 400, 4_000
    crossed = np.cumsum(chance.random((runs, users)) < 0.01, axis=1)[:, 99::100]
    looks = np.arange(100, users + 1, 100)
    alarms = sum(
        any(
            crossed_bound(int(count), int(seen), alpha=0.05).too_many
            for count, seen in zip(run, looks, strict=True)
        )
        for run in crossed
    )
    assert alarms / runs <= 0.05
