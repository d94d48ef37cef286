"""`benchmarks/scorecards.py` for arrays of experiments, and the library: the same verdicts."""

import sys
from importlib import util
from pathlib import Path

import numpy as np
import pytest

from streameval.stats.cluster_sums import ClusterSums
from streameval.stats.experiments import Rules, compare_ratios
from streameval.stats.regression_adjustment import compare_adjusted

PATH = Path(__file__).parents[2] / "benchmarks" / "scorecards.py"
CALLED = {"better": 1, "worse": -1, "no difference shown": 0, "not yet": 0}


@pytest.fixture(scope="module")
def cards():
    if not PATH.exists():
        pytest.skip("the benchmarks are not here")
    spec = util.spec_from_file_location("scorecards", PATH)
    module = util.module_from_spec(spec)
    # Dataclasses look their module up.
    sys.modules["scorecards"] = module
    spec.loader.exec_module(module)
    return module


def ratios(sums, run, pair, users, unit=10**9):
    """The two arms of an experiment; scores and values are rounded to nano-units."""
    x, y = pair
    return tuple(
        ClusterSums(
            np.rint(sums[x][run, arm] * unit), sums[y][run, arm], int(users[run, arm]), unit
        )
        for arm in (0, 1)
    )


def test_arrays_of_experiments_are_judged_as_one_experiment_is(cards):
    world = cards.World(20, np.random.default_rng(11))
    # A loose alpha, so that all verdicts occur among equal arms.
    alpha, called = 0.6, []
    for step in range(1, 61):
        world.step()
        if step not in (1, 3, 10, 60):
            continue
        users = world.sums["users"].sum(axis=-1)
        for name in [*cards.FIGURES, cards.ADJUSTED]:
            found = cards.look(world.sums, name)
            flags = found.called(alpha)
            rules = Rules(alpha=alpha, planned_users=cards.USERS)
            for run in range(world.runs):
                pair = cards.FIGURES.get(name, cards.FIGURES[cards.PRIMARY])
                now = ratios(world.sums, run, pair, users)
                scored = compare_ratios(*now, rules)
                if name == cards.ADJUSTED:
                    before = ("past_positives", "past_impressions")
                    past = ratios(world.sums, run, before, users, unit=1)
                    scored = compare_adjusted(now, past, rules).scored
                assert CALLED[scored.verdict] == flags[run]
                assert scored.difference == pytest.approx(
                    found.values[run, 0] - found.values[run, 1], rel=1e-6, abs=1e-9
                )
                called.append(scored.verdict)
    assert set(called) == set(CALLED)


@pytest.mark.long
def test_a_watched_scorecard_of_equal_arms_raises_few_alarms(cards):
    rows = {row["what"]: row for row in cards.false_alarms(runs=150, seed=4)}
    for card in ("six named", "four named"):
        assert rows[f"scorecard: {card}"]["alarms"] <= 0.06
    assert rows[cards.ADJUSTED]["alarms"] <= 0.06
    assert rows[cards.PRIMARY]["naive"] > 0.2
    for name in [*cards.FIGURES, cards.ADJUSTED]:
        # One list in a thousand never has spread enough: there first lists alone speak.
        assert (rows[name]["past_burn_in"] > 0.7) == (name != "fallback_rate")
        assert rows[name]["first_lists"] <= 0.05


@pytest.mark.long
def test_planned_users_find_a_loss_of_5_percent_and_the_past_of_users_saves_half(cards):
    alpha = 0.025
    plain, adjusted = cards.plans(-0.05, alpha, seed=2, returning=True)
    assert adjusted.all_looks < 0.6 * plain.all_looks
    assert 1.5 < plain.all_looks / plain.one_look < 2
    for plan, adjust in ((plain, False), (adjusted, True)):
        found = cards.found(plan.all_looks, -0.05, alpha, 40, returning=True, adjust=adjust, seed=3)
        assert found.any_look >= 0.65
        assert found.median_users < plan.all_looks


def test_a_mismatch_of_2_percent_is_found_and_a_fair_split_is_not(cards):
    rows = {row["split"]: row for row in cards.splits(runs=50, seed=5)}
    assert rows["50/50"]["found"] == 0
    assert rows["51/49"]["found"] == rows["52/48"]["found"] == 1
    assert rows["52/48"]["median_users"] < rows["51/49"]["median_users"] < 100_000
