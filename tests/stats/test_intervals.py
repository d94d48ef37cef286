"""Standard errors, intervals of one look, the hash bootstrap, and comparisons that are watched."""

import math
from fractions import Fraction
from importlib import util
from pathlib import Path

import numpy as np
import pytest
from delta_method import delta_arm
from hypothesis import given
from hypothesis import strategies as st

from streameval.base.limits import CLUSTERS
from streameval.stats.bootstrap import user_hashes, weights
from streameval.stats.cluster_sums import ClusterSums, ratio_arm, stderrs
from streameval.stats.confidence_sequences import compare, mixing, radius, units_needed
from streameval.stats.experiments import Rules, compare_ratios
from streameval.stats.intervals import (
    LEVEL,
    Arm,
    Moments,
    Rate,
    difference,
    interval,
    linear_count,
    newcombe,
    normal,
    rate_difference,
    share_interval,
    student,
    wilson,
)

ROOT = Path(__file__).parents[2]


ACTIVITY = {
    "Poisson": lambda chance, shape: chance.poisson(20, shape),
    "lognormal": lambda chance, shape: chance.lognormal(1.5, 1.5, shape),
    "Pareto, 1.5": lambda chance, shape: 5 * (chance.pareto(1.5, shape) + 1),
    "Pareto, 1.2": lambda chance, shape: 3 * (chance.pareto(1.2, shape) + 1),
}


def arm(value=0.1, stderr=0.01, skewness=1.0, units=1_000, clusters=None):
    return Arm(value, stderr, skewness, units, clusters or units)


# --- The delta method

units_of_users = st.lists(
    st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=2, max_size=60
)


def left_out(x, y):
    """The jackknife's standard error of Σx/Σy: each unit left out once, in exact fractions."""
    pairs = [(int(a), int(b)) for a, b in zip(x, y, strict=True) if a or b]
    above, below = sum(a for a, _ in pairs), sum(b for _, b in pairs)
    ratio = Fraction(above, below)
    moved = [float(Fraction(above - a, below - b) - ratio) for a, b in pairs]
    return math.sqrt((len(pairs) - 1) / len(pairs) * math.fsum(by * by for by in moved))


def one_stderr(x, y):
    return stderrs(np.asarray(x)[np.newaxis], np.asarray(y)[np.newaxis])[0]


@given(units_of_users)
def test_every_figure_has_the_standard_error_of_leaving_out_one_cluster(rows):
    """Windows, experiments, figures of files and off-policy estimates."""
    x, y = np.array(rows, np.int64).T
    expected = pytest.approx(left_out(x, y), rel=1e-9, abs=1e-12 * (1 + x.sum() / y.sum()))
    assert one_stderr(x, y) == expected
    assert one_stderr(x.astype(object) << 70, y) / 2.0**70 == expected
    assert ClusterSums(x, y, len(x)).arm().stderr == expected
    assert ClusterSums(x * 10**9, y, len(x), 10**9).arm().stderr == expected
    assert ratio_arm(x, y).stderr == expected


def moments_of(x, y):
    return Moments(len(x), *(each.sum() for each in (x, y, x * x, x * y, y * y)))


@given(units_of_users, st.integers(0, 60))
def test_moments_of_disjoint_users_add_up(rows, cut):
    x, y = np.array(rows, np.int64).T
    assert moments_of(x[:cut], y[:cut]) + moments_of(x[cut:], y[cut:]) == moments_of(x, y)


@given(units_of_users)
def test_moments_have_the_delta_methods(rows):
    x, y = np.array(rows, np.int64).T
    found, expected = moments_of(x, y), delta_arm(x, y)
    # Of equal users the moments leave the rounding of a difference of squares.
    allowed = 1e-7 * max(1, expected.value)
    assert math.sqrt(found.variance()) == pytest.approx(expected.stderr, rel=1e-6, abs=allowed)
    assert found.ratio() == pytest.approx(expected.value)


def test_with_equal_weights_both_are_the_same():
    x, y = np.array([3, 1, 4, 1, 5]), np.full(5, 7)
    assert one_stderr(x, y) == pytest.approx(delta_arm(x, y).stderr, rel=1e-12)


@given(units_of_users, st.sampled_from([0, 10**6, 60_000_000, 10**14]))
def test_the_standard_error_of_nearly_equal_ratios_is_exact(rows, near):
    """Latencies of a minute that differ by microseconds, for example."""
    x, y = np.array([(near * count + apart, count) for apart, count in rows], np.int64).T
    expected = left_out(x, y)
    size = x.sum() / y.sum()
    # Below 10⁻¹⁵ of the figure a deviation is rounding, and 0.
    assert one_stderr(x, y) == pytest.approx(expected, rel=1e-12, abs=1e-15 * size)


def test_units_without_a_denominator_are_not_there():
    x, y = np.array([1, 0, 3, 0]), np.array([2, 0, 4, 0])
    found = ratio_arm(x, y)
    assert found.clusters == 2
    assert found.stderr == pytest.approx(left_out(x, y))


def test_units_with_a_numerator_alone_count_in_the_error():
    """Users with a score and no click move Σp/Σy as much as others do."""
    x, y = np.array([0.5, 0.25, 1.0, 0.75]), np.array([1, 0, 2, 0])
    expected = pytest.approx(left_out(x * 4, y) / 4)
    assert ratio_arm(x, y).stderr == expected
    assert ClusterSums((x * 4).astype(np.int64), y, users=4, unit=4).arm().stderr == expected


def test_a_single_cluster_has_no_standard_error():
    x, y = np.array([3, 2, 0]), np.array([5, 0, 0])
    assert one_stderr(x, y) is None
    assert ratio_arm(x, y) is None
    assert ClusterSums(x, y, 3).arm() is None


def test_skewness_of_a_mean_is_the_usual_one():
    # One 1 among four: deviations -1/4 thrice and 3/4; m2 = 3/16, m3 = 3/32.
    found = ratio_arm([1, 0, 0, 0], [1, 1, 1, 1])
    assert found.skewness == pytest.approx((3 / 32) / (3 / 16) ** 1.5)


def test_clusters_of_users_tell_the_skewness_of_users():
    chance = np.random.default_rng(5)
    x = (chance.random(200_000) < 0.01) * 1
    buckets = chance.integers(0, CLUSTERS, len(x))
    sums = (np.bincount(buckets, each, CLUSTERS) for each in (x, None))
    by_bucket = ClusterSums(*(each.astype(np.int64) for each in sums), len(x)).arm()
    by_user = ratio_arm(x, np.ones(len(x)))
    assert by_bucket.units == by_user.units
    assert by_bucket.stderr == pytest.approx(by_user.stderr, rel=0.15)
    # 256 buckets tell it within the error of a skewness, sqrt(6/256), of 28 times as many users.
    off = math.sqrt(6 / CLUSTERS) * math.sqrt(len(x) / CLUSTERS)
    assert by_bucket.skewness == pytest.approx(by_user.skewness, abs=3 * off)


def test_treating_the_slates_of_a_user_as_independent_is_too_sure():
    chance = np.random.default_rng(7)
    taste = np.repeat(chance.beta(1, 3, 500), 20)
    slates = (chance.random(len(taste)) < taste) * 1.0
    users = ratio_arm(slates.reshape(500, 20).sum(axis=1), np.full(500, 20))
    alone = ratio_arm(slates, np.ones(len(slates)))
    assert alone.stderr < 0.6 * users.stderr


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    # Any table of Student's t, two-sided 95 %.
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (10, 2.228), (30, 2.042)],
)
def test_students_quantiles_are_those_of_the_tables(freedom, quantile):
    assert student(0.95, freedom) == pytest.approx(quantile, abs=6e-4)


def test_students_quantile_tends_to_the_normal_one():
    assert student(0.99, 1e6) == pytest.approx(normal(0.99), abs=1e-4)


def test_an_interval_of_few_clusters_is_wider_than_the_normal_one():
    found = interval(arm(value=0.5, stderr=0.1, clusters=3))
    assert (found.low, found.high) == pytest.approx((0.5 - 0.4303, 0.5 + 0.4303), abs=1e-4)


def test_welchs_degrees_of_freedom_are_those_of_the_variant_that_varies():
    found = difference(arm(0.5, 0.1, clusters=4), arm(0.3, 1e-9, clusters=200))
    assert found.value == pytest.approx(0.2)
    assert found.high - found.value == pytest.approx(0.1 * student(0.95, 3))


def test_the_difference_of_figures_without_spread_has_no_width():
    found = difference(arm(0.5, 0.0), arm(0.5, 0.0))
    assert (found.low, found.value, found.high) == (0, 0, 0)


# --- Rates of few positives


def test_wilson_gives_the_textbook_interval():
    # Newcombe 1998 (single proportions), 81 of 263: 0.2553 to 0.3662.
    assert wilson(81 / 263, 263, normal(0.95)) == pytest.approx((0.2553, 0.3662), abs=5e-5)


def test_newcombe_gives_the_textbook_interval():
    # Newcombe 1998 (differences), 56/70 against 48/80, method 10: 0.0524 to 0.3339.
    found = rate_difference(Rate(56, 70), Rate(48, 80))
    assert (found.low, found.high) == pytest.approx((0.0524, 0.3339), abs=5e-5)


def test_no_positive_at_all_still_has_an_upper_bound():
    # z²/(n + z²): the delta method would say 0 ± 0.
    low, high = wilson(0, 100, normal(0.95))
    assert low == 0
    assert high == pytest.approx(1.96**2 / (100 + 1.96**2), abs=1e-4)
    assert rate_difference(Rate(0, 100), Rate(0, 100)).high > 0.03


def test_46_and_69_clicks_of_10000_barely_differ_at_one_look_and_do_not_when_watched():
    one_look = rate_difference(Rate(69, 10_000), Rate(46, 10_000))
    assert (one_look.low, one_look.high) == pytest.approx((0.000196, 0.004455), abs=1e-6)
    arms = [ratio_arm(np.arange(10_000) < clicks, np.ones(10_000)) for clicks in (69, 46)]
    watched = compare(*arms)
    assert watched.verdict == "no difference"
    assert watched.low < 0 < watched.high


def test_correlated_users_widen_the_interval_and_lucky_ones_do_not_narrow_it():
    binomial = math.sqrt(0.05 * 0.95 / 1_000)
    doubled = Rate(50, 1_000, 2 * binomial, CLUSTERS)
    assert doubled.design_effect() == pytest.approx(4)
    alone, wider = (rate_difference(rate, rate, LEVEL) for rate in (Rate(50, 1_000), doubled))
    assert wider.high > 1.9 * alone.high
    assert Rate(50, 1_000, binomial / 2, CLUSTERS).design_effect() == 1


def exact_coverage(bounds, rates, trials):
    """The chance that `bounds` hold the true difference: a sum over every pair of counts."""
    n = np.arange(trials + 1)
    logs = np.cumsum(np.log(np.maximum(n, 1)))
    mass = [
        np.exp(logs[-1] - logs - logs[::-1] + n * math.log(p) + (trials - n) * math.log1p(-p))
        for p in rates
    ]
    first, second = np.meshgrid(n / trials, n / trials, indexing="ij")
    low, high = bounds(first, second)
    apart = rates[0] - rates[1]
    held = (low <= apart) & (apart <= high)
    return float((mass[0][:, None] * mass[1][None, :] * held).sum())


@pytest.mark.long
def test_newcombe_keeps_its_word_for_few_positives_where_the_delta_method_does_not():
    trials, z = 600, normal(0.95)

    def delta(p, q):
        reach = z * np.sqrt((p * (1 - p) + q * (1 - q)) / (trials - 1))
        return p - q - reach, p - q + reach

    def ours(p, q):
        return newcombe(p, trials, q, trials, z)

    few = (0.0015, 0.0015)
    assert exact_coverage(ours, few, trials) > 0.95
    rare = [(2 / trials, 0.5 / trials), (3 / trials, 1 / trials), (0.01, 0.01)]
    assert all(exact_coverage(ours, rates, trials) > 0.94 for rates in rare)
    assert exact_coverage(delta, rare[0], trials) < 0.93


@pytest.mark.long
def test_arms_with_few_positives_are_compared_by_newcombe_at_one_look():
    """Of users of unequal activity it holds in 95 %, where the delta method does not."""
    chance, users, rates = np.random.default_rng(3), 300, (0.001, 0.0003)
    held, runs = np.zeros(2), 500
    for _ in range(runs):
        arms = []
        for rate in rates:
            seen = np.clip(ACTIVITY["lognormal"](chance, users), 1, 20_000).astype(np.int64)
            clicks = chance.binomial(seen, np.minimum(chance.gamma(2, rate / 2, users), 1))
            arms.append(ClusterSums(clicks, seen, users))
        found = compare_ratios(*arms, Rules())
        delta = difference(*(delta_arm(each.x, each.y) for each in arms))
        for index, ends in enumerate(((found.once_low, found.once_high), (delta.low, delta.high))):
            held[index] += ends[0] is not None and ends[0] <= rates[0] - rates[1] <= ends[1]
    assert held[0] / runs >= 0.95
    assert held[1] / runs < 0.93


@pytest.mark.long
@pytest.mark.parametrize("activity", ACTIVITY)
@pytest.mark.parametrize("users", [40, 100, 300])
def test_differences_of_few_users_hold_whatever_their_activity(activity, users):
    """At one look; by the delta method with Welch's degrees of freedom in 85 to 90 %."""
    chance, runs = np.random.default_rng(users), 600
    held = np.zeros(2)
    for _ in range(runs):
        arms = []
        for _ in "AB":
            seen = np.clip(ACTIVITY[activity](chance, users), 1, 20_000).astype(np.int64)
            clicks = chance.binomial(seen, np.minimum(chance.gamma(2, 0.05, users), 1))
            buckets = chance.integers(0, CLUSTERS, users)
            sums = (np.bincount(buckets, each, CLUSTERS) for each in (clicks, seen))
            arms.append(ClusterSums(*(each.astype(np.int64) for each in sums), users))
        ours = difference(*(each.arm() for each in arms))
        delta = difference(*(delta_arm(each.x, each.y) for each in arms))
        held += [found.low <= 0 <= found.high for found in (ours, delta)]
    assert held[0] / runs >= 0.925
    if activity == "Pareto, 1.2":
        assert held[1] / runs < 0.92


def test_many_positives_and_figures_that_are_no_rates_are_compared_by_their_arms():
    chance = np.random.default_rng(4)
    seen = chance.integers(1, 20, 400)
    many, few = (ClusterSums(chance.binomial(seen, p), seen, 400) for p in (0.1, 0.01))
    scores = [ClusterSums(sums.x * 10**9, seen, 400, 10**9) for sums in (many, few)]
    for arms, is_delta in (((many, many), True), ((many, few), False), (scores, True)):
        found, delta = compare_ratios(*arms, Rules()), difference(*(each.arm() for each in arms))
        assert (found.once_low == delta.low) is is_delta


def test_wilson_takes_arrays():
    low, high = wilson([0.0, 0.5, 1.0], [10, 10, 10], 1.96)
    assert (low < [1e-12, 0.5, 1.0]).all()
    assert (high > [0.0, 0.5, 1 - 1e-12]).all()


# --- Users of unequal activity


def coverage(activity, users, rate, runs=1_000):
    """In which share of the runs the interval for 95 % holds, and one without our corrections."""
    chance = np.random.default_rng(users)
    shown = np.clip(ACTIVITY[activity](chance, (runs, users)), 1, 20_000).astype(np.int64)
    clicks = chance.binomial(shown, np.minimum(chance.gamma(2, rate / 2, shown.shape), 1))
    buckets = chance.integers(0, CLUSTERS, users)
    held = np.zeros(2)
    for x, y in zip(clicks, shown, strict=True):
        by_cluster = np.bincount(buckets, x, CLUSTERS), np.bincount(buckets, y, CLUSTERS)
        ours = share_interval(ratio_arm(*by_cluster), int(y.sum()))
        plain = interval(delta_arm(*by_cluster))
        held += [found.low <= rate <= found.high for found in (ours, plain)]
    return held / runs


@pytest.mark.long
@pytest.mark.parametrize("activity", ACTIVITY)
@pytest.mark.parametrize("rate", [0.01, 0.1])
def test_intervals_of_300_users_hold_whatever_their_activity(activity, rate):
    ours, _ = coverage(activity, 300, rate, runs=2_000)
    assert ours >= 0.93


@pytest.mark.long
@pytest.mark.parametrize("activity", ACTIVITY)
@pytest.mark.parametrize("rate", [0.01, 0.1])
def test_intervals_of_60_users_hold_nearly_as_often(activity, rate):
    ours, _ = coverage(activity, 60, rate)
    assert ours >= 0.90


def test_without_the_corrections_a_few_heavy_users_make_intervals_too_narrow():
    assert coverage("Pareto, 1.2", 300, 0.01)[1] < 0.9
    assert coverage("Pareto, 1.2", 60, 0.01)[1] < 0.87


def test_the_jackknife_of_equal_users_is_the_delta_method():
    x = np.random.default_rng(1).integers(0, 5, 400)
    y = np.full(400, 5)
    ours, plain = ratio_arm(x, y), delta_arm(x, y)
    assert ours.stderr == pytest.approx(plain.stderr, rel=1e-2)
    assert ours.degrees() == pytest.approx(plain.degrees())


def test_the_jackknife_is_the_spread_of_ratios_that_each_lack_a_user():
    x, y = np.array([1.0, 0, 4, 2]), np.array([2.0, 3, 9, 4])
    left_out = (x.sum() - x) / (y.sum() - y)
    spread = 3 / 4 * np.square(left_out - x.sum() / y.sum()).sum()
    assert ratio_arm(x, y).stderr == pytest.approx(math.sqrt(spread))


def test_a_share_of_few_positives_has_an_interval_within_0_and_1():
    none = share_interval(ratio_arm(np.zeros(40), np.ones(40)), 40)
    assert none.low == 0
    assert 0.05 < none.high < 0.12
    many = share_interval(ratio_arm(np.arange(400) % 2, np.ones(400)), 400)
    assert many.high - 0.5 == pytest.approx(0.5 - many.low)


def test_users_are_counted_by_the_clusters_they_fill():
    chance = np.random.default_rng(2)
    for users in (2, 50, 300, 700):
        filled = len(np.unique(chance.integers(0, CLUSTERS, users)))
        assert linear_count(filled, CLUSTERS) == pytest.approx(users, rel=0.15)
    assert linear_count(CLUSTERS, CLUSTERS) > 1_000


# --- The hash bootstrap


def test_a_users_weights_are_the_same_in_every_run():
    # Written down once: a change would make intervals of old and new files differ.
    assert weights(user_hashes(["u1", "ü2"]), 8).tolist() == [
        [3, 2, 2, 1, 1, 1, 0, 1],
        [0, 1, 0, 1, 1, 1, 1, 0],
    ]


def test_weights_are_poisson_of_mean_1_and_independent_between_replicates():
    drawn = weights(user_hashes(f"u{number}" for number in range(4_000)), 50)
    shares = np.bincount(drawn.ravel(), minlength=4)[:4] / drawn.size
    expected = [math.exp(-1) / math.factorial(count) for count in range(4)]
    assert shares == pytest.approx(expected, abs=0.005)
    between = np.corrcoef(drawn.T) - np.eye(50)
    assert np.abs(between).max() < 5 / math.sqrt(4_000)


def test_the_bootstrap_agrees_with_the_delta_method_where_both_hold():
    chance = np.random.default_rng(11)
    y = chance.integers(1, 20, 3_000)
    x = chance.binomial(y, chance.beta(1, 3, 3_000))
    drawn = weights(user_hashes(f"u{n}" for n in range(3_000)))
    low, high = np.quantile((x @ drawn) / (y @ drawn), [0.025, 0.975])
    expected = interval(delta_arm(x, y))
    assert high - low == pytest.approx(expected.high - expected.low, rel=0.15)


# --- Watched comparisons


def test_the_mixing_parameter_solves_its_equation_and_the_radius_is_narrowest_as_planned():
    minus_w = mixing(0.05, 1) + 1
    assert -minus_w * math.exp(-minus_w) == pytest.approx(-(0.05**2) / math.e)
    # The variance of a mean falls as 1/t: what is left is the price of watching.
    prices = {t: float(radius(1.0, t, 0.05, 1_000)) for t in (100, 900, 1_000, 1_100, 10_000)}
    assert min(prices, key=prices.get) == 1_000
    assert prices[1_000] / normal(0.95) == pytest.approx(1.55, abs=0.01)


def test_a_comparison_waits_for_its_burn_in_and_says_how_many_users_it_needs():
    found = compare(arm(0.9, units=99), arm(0.1, units=100))
    assert (found.verdict, found.low, found.needed) == ("not yet", None, 100)
    skewed = compare(arm(0.9, skewness=10), arm(0.1))
    assert (skewed.verdict, skewed.needed) == ("not yet", 2_000)
    assert compare(arm(0.9, skewness=10, units=2_000), arm(0.1)).verdict == "higher"


def test_a_small_variant_beside_a_large_one_waits_for_500_users():
    assert compare(arm(0.9, units=499), arm(0.1, units=4_500)).verdict == "not yet"
    assert compare(arm(0.9, units=500), arm(0.1, units=4_500)).verdict == "higher"


def test_without_any_spread_there_is_no_verdict():
    flat = ratio_arm(np.zeros(1_000), np.ones(1_000))
    found = compare(flat, flat)
    assert (found.verdict, found.needed) == ("not yet", None)


def test_a_variant_without_events_borrows_the_spread_of_the_other():
    none = ratio_arm(np.zeros(1_000), np.ones(1_000))
    some = ratio_arm(np.arange(1_000) < 200, np.ones(1_000))
    found = compare(some, none)
    assert found.verdict == "higher"
    assert found.variance == pytest.approx(2 * some.stderr**2)
    # The lender is past its burn-in, the borrower has too few users for so rare an event.
    rare = ratio_arm(np.arange(20_000) < 25, np.ones(20_000))
    few = ratio_arm(np.zeros(10_000), np.ones(10_000))
    found = compare(few, rare)
    assert found.verdict == "not yet"
    assert found.needed == pytest.approx(16_000, rel=0.01)


def test_a_verdict_says_on_which_side_the_treatment_lies():
    assert compare(arm(0.3), arm(0.1)).verdict == "higher"
    assert compare(arm(0.1), arm(0.3)).verdict == "lower"
    assert compare(arm(0.101), arm(0.1)).verdict == "no difference"


def test_rare_clicks_need_some_20_positives():
    for clicks, ready in ((15, False), (25, True)):
        known = ratio_arm(np.arange(20_000) < clicks, np.ones(20_000))
        assert (units_needed(known.skewness, 20_000, 20_000) <= 20_000) == ready


# --- A/A experiments, smaller than benchmarks/false_alarms.py


def benchmark():
    path = ROOT / "benchmarks" / "false_alarms.py"
    if not path.exists():
        pytest.skip("the benchmarks are not here")
    spec = util.spec_from_file_location("false_alarms", path)
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.long
@pytest.mark.parametrize("name", ["clicks, 10 %", "mean over slates, by user"])
def test_watching_equal_variants_raises_few_false_alarms_where_a_z_test_raises_many(name):
    table = benchmark()
    draw, share = next((draw, share) for found, draw, share in table.FIGURES if found == name)
    ours, naive, past_burn_in = table.compare_runs(draw, share, runs=200, users=2_000, seed=9)
    assert past_burn_in == 1
    assert ours <= 0.06
    assert naive > 0.2


@pytest.mark.long
def test_watching_a_fair_split_raises_few_false_alarms_where_chi_square_raises_many():
    ours, naive = benchmark().split_runs((0.5, 0.5), runs=200, users=2_000, seed=9)
    assert ours <= 0.06
    assert naive > 0.3
