"""Figures of experiments beside those of other packages on the same data.

scipy answers here; the others do not install beside each other, so their figures stand in
`golden/experiments.json` with their versions (`golden/experiments.py` wrote it). Bounds are
compared as shares of their own reach: 1e-12 is the same arithmetic in another order.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from experiment_cases import ALPHA, BOUNDS, EXPERIMENTS, PLANS, SPLITS, experiments
from scipy import stats

from streameval.stats import cluster_sums
from streameval.stats.cluster_sums import ClusterSums
from streameval.stats.confidence_sequences import mixing, radius
from streameval.stats.experiments import Rules, compare_paired, compare_ratios
from streameval.stats.intervals import difference
from streameval.stats.plan import spread_of, users_for
from streameval.stats.regression_adjustment import compare_adjusted
from streameval.stats.sample_ratio import log_evidence

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "experiments.json").read_text())
DATA = experiments()
# They approximate the best ρ² by a first step of its equation; with these planned users ours is the
# same (5,000 users there: `TUNING` in golden/experiments.py).
APPROXIMATE = -2 * math.log(ALPHA) + math.log(1 - 2 * math.log(ALPHA))
RULES = Rules(alpha=ALPHA, planned_users=5_000 * mixing(ALPHA, 1) / APPROXIMATE)
# `intervals.student` is good to 1e-4 at few degrees of freedom; here there are many.
STUDENT = 1e-9


def figures(package):
    return GOLDEN[package]["figures"]


@pytest.fixture(autouse=True)
def delta(monkeypatch, request):
    """Others have the delta method's error. Ours leaves out each cluster, and all else is alike."""
    if "jackknife" in request.node.name:
        return

    def parts(sums):
        x, y = np.asarray(sums.x, np.float64), np.asarray(sums.y, np.float64)
        value = float(x.sum() / y.sum())
        return (x - value * y) / y.sum() / sums.unit

    monkeypatch.setattr(ClusterSums, "parts", parts)
    monkeypatch.setattr(ClusterSums, "deviations", parts)
    monkeypatch.setattr(cluster_sums, "kish", np.count_nonzero)


@pytest.mark.parametrize("number", range(len(EXPERIMENTS)))
def test_the_jackknife_is_hardly_wider_than_the_delta_method(number):
    """Where a few users make most of the impressions it is, and has to be."""
    for treatment in DATA[number]:
        ours = ratio(treatment).arm().stderr
        x, y = np.array(treatment.x), np.array(treatment.y)
        squares = np.square(x - x.sum() / y.sum() * y).sum()
        theirs = math.sqrt(len(x) / (len(x) - 1) * squares) / y.sum()
        assert 1 <= ours / theirs < 1.02


def ratio(arm):
    return ClusterSums(np.array(arm.x), np.array(arm.y), len(arm.x))


def ratio_before(arm):
    return ClusterSums(np.array(arm.before_x), np.array(arm.before_y), len(arm.x))


def mean(values):
    return ClusterSums(np.array(values), np.ones(len(values), int), len(values))


def largest(found, wanted):
    """The largest difference of two pairs of bounds, as a share of the wanted reach."""
    reach = (wanted[1] - wanted[0]) / 2
    return max(abs(one - other) for one, other in zip(found, wanted, strict=True)) / reach


def always(found):
    """The bounds for all looks, which begin after the burn-in that other packages do not have."""
    return None if found.low is None else (found.low, found.high)


def test_most_cases_are_past_the_burn_in():
    past = [
        always(compare_ratios(ratio(treatment), ratio(control), RULES)) is not None
        for treatment, control in DATA
    ]
    assert past.count(True) >= 6


def one_look(treatment, control):
    """The delta method's interval; `compare_ratios` has Newcombe's for few positives."""
    found = difference(treatment.arm(), control.arm())
    return found.low, found.high


@pytest.mark.parametrize("number", range(len(EXPERIMENTS)))
def test_gbstats_has_the_same_differences_and_bounds(number):
    treatment, control = DATA[number]
    wanted = figures("gbstats")[number]
    arms = ratio(treatment), ratio(control)
    found = compare_ratios(*arms, RULES)
    assert found.difference == pytest.approx(wanted["difference"], rel=1e-10)
    assert largest(one_look(*arms), wanted["one_look"]) < STUDENT
    if always(found):
        assert largest(always(found), wanted["all_looks"]) < 1e-10


@pytest.mark.parametrize("number", range(len(EXPERIMENTS)))
def test_gbstats_adjusts_means_alike(number):
    treatment, control = DATA[number]
    wanted = figures("gbstats")[number]
    now, before = (
        tuple(mean(getattr(arm, name)) for arm in (treatment, control))
        for name in ("x", "before_x")
    )
    found = compare_adjusted(now, before, RULES)
    # θ multiplies a mean of 1, in units of the figure: both packages have the same.
    assert found.theta == pytest.approx(wanted["theta"], rel=1e-10)
    once = found.scored.once_low, found.scored.once_high
    assert largest(once, wanted["adjusted_one_look"]) < STUDENT
    if always(found.scored):
        assert largest(always(found.scored), wanted["adjusted_all_looks"]) < 1e-10


@pytest.mark.parametrize("number", range(len(EXPERIMENTS)))
def test_tea_tasting_has_the_same_ratios_plain_and_adjusted(number):
    treatment, control = DATA[number]
    wanted = figures("tea-tasting")[number]
    now = ratio(treatment), ratio(control)
    before = ratio_before(treatment), ratio_before(control)
    plain, adjusted = compare_ratios(*now, RULES), compare_adjusted(now, before, RULES).scored
    looks = one_look(*now), (adjusted.once_low, adjusted.once_high)
    for found, once, name in zip((plain, adjusted), looks, ("", "adjusted_"), strict=True):
        assert largest(once, wanted[f"{name}one_look"]) < STUDENT
        error = (wanted[f"{name}one_look"][1] - wanted[f"{name}one_look"][0]) / 4
        assert found.difference - wanted[f"{name}difference"] == pytest.approx(0, abs=1e-10 * error)
    users = users_for(0.05 * now[1].value, spread_of(now[1]), ALPHA, 0.8).one_look
    # It solves for the whole power function and a t distribution, which is a user or two.
    assert users == pytest.approx(wanted["users_for_5_percent"], rel=1e-3)


@pytest.mark.parametrize("number", range(len(EXPERIMENTS)))
def test_savvi_has_the_regression_adjusted_bounds_of_all_looks(number):
    """Its variance is common to both arms, and its bounds use Student's t: the same for many."""
    treatment, control = DATA[number]
    treated, rest, _, _, _ = EXPERIMENTS[number]
    wanted = figures("savvi")["experiments"][number]["adjusted_all_looks"]
    now, before = (
        tuple(mean(getattr(arm, name)) for arm in (treatment, control))
        for name in ("x", "before_x")
    )
    found = compare_adjusted(now, before, RULES).scored
    if always(found) and min(treated, rest) > 0.5 * max(treated, rest):
        assert largest(always(found), wanted) < 0.02


def test_savvi_has_the_same_evidence_against_a_split():
    for row in figures("savvi")["splits"]:
        found = float(log_evidence(row["counts"], row["split"], 1_000))
        assert found == pytest.approx(math.log(row["odds"]), rel=1e-9)


def test_ssrm_test_has_the_same_evidence_against_a_split():
    assert len(figures("ssrm-test")) == len(SPLITS)
    for row in figures("ssrm-test"):
        found = float(log_evidence(row["counts"], row["split"], 1_000))
        assert found == pytest.approx(math.log(row["factor"]), rel=1e-8)


@pytest.mark.parametrize("package", ["confseq", "expectation"])
def test_the_boundary_is_the_normal_mixture(package):
    rows = figures(package)
    assert len(rows) == len(BOUNDS)
    for row in rows:
        t, alpha, planned = row["users"], row["alpha"], row["planned"]
        # They approximate the best ρ; with it, a sum of t variables of variance 1 has this bound.
        rho = planned / (2 * math.log(1 / alpha) + math.log(1 + 2 * math.log(1 / alpha)))
        same = mixing(alpha, 1) * rho
        assert t * float(radius(1 / t, t, alpha, same)) == pytest.approx(row["bound"], rel=1e-12)
        ours = t * float(radius(1 / t, t, alpha, planned))
        assert ours == pytest.approx(row["bound"], rel=0.02)


def test_statsmodels_has_the_same_clustered_error_and_users():
    for (treatment, control), wanted in zip(
        DATA, figures("statsmodels")["experiments"], strict=True
    ):
        arms = ratio(treatment), ratio(control)
        found = compare_ratios(*arms, RULES)
        assert found.difference == pytest.approx(wanted["difference"], rel=1e-10)
        # It divides by n where we divide by n − 1.
        error = math.sqrt(sum(a.arm().stderr ** 2 * (a.users - 1) / a.users for a in arms))
        assert error == pytest.approx(wanted["stderr"], rel=1e-10)
    for (lift, rate, alpha, power), wanted in zip(
        PLANS, figures("statsmodels")["plans"], strict=True
    ):
        spread = 4 * rate * (1 - rate)
        found = users_for(lift * rate, spread, alpha, power).one_look
        assert found == pytest.approx(wanted["users"], rel=1e-5, abs=1)


@pytest.mark.parametrize("number", range(len(EXPERIMENTS)))
def test_scipy_has_the_same_interval_of_one_look(number):
    treatment, control = DATA[number]
    found = compare_ratios(mean(treatment.x), mean(control.x), RULES)
    wanted = stats.ttest_ind(treatment.x, control.x, equal_var=False).confidence_interval(1 - ALPHA)
    assert largest((found.once_low, found.once_high), wanted) < STUDENT


@pytest.mark.parametrize("number", range(len(EXPERIMENTS)))
def test_scipy_has_the_same_paired_interval_of_one_look(number):
    arm = DATA[number][0]
    found = compare_paired(mean(arm.x), mean(arm.before_x), RULES)
    test = stats.ttest_rel(arm.x, arm.before_x)
    wanted = test.confidence_interval(1 - ALPHA)
    assert largest((found.once_low, found.once_high), wanted) < STUDENT
    assert found.difference == pytest.approx(np.mean(arm.x) - np.mean(arm.before_x), rel=1e-12)
