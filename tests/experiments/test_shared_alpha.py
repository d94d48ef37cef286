"""Arms share alpha before the first look: late arms and stray arms change no promise.

Equal arms are drawn as sums, each user with one impression; one arm after the other begins.
"""

import dataclasses

import numpy as np
import pytest

from streameval.base.limits import CLUSTERS
from streameval.core.definition import Definition
from streameval.core.experiments.definition import Experiment
from streameval.core.experiments.metrics import metrics_of, row_names
from streameval.core.experiments.sums import ArmSums
from streameval.core.experiments.users import ArmUsers
from streameval.experiments import scorecard as scorecards
from streameval.experiments.scorecard import scorecard

CLICKS = "positives_per_impression{feedback=click}"
DEFINITION = Definition()
ROWS = row_names(DEFINITION)
IMPRESSIONS, POSITIVES = ROWS.index("impressions"), ROWS.index("positives{feedback=click}")
UNNAMED = Experiment("e", "variant", "A", CLICKS, alpha=0.3, planned_users=1_500)
NAMED = dataclasses.replace(UNNAMED, arms=("B", "C", "D", "E"))


@pytest.fixture(autouse=True)
def _one_metric(monkeypatch):
    """Judge one metric only: the others take most of the time."""
    found = {CLICKS: metrics_of(DEFINITION)[CLICKS]}
    monkeypatch.setattr(scorecards, "metrics_of", lambda _: found)


class Watched:
    """Sums and users of an experiment that is looked at while users come."""

    def __init__(self, experiment, rng):
        self.arms, self.users, self.rng = ArmSums(experiment), ArmUsers(), rng

    def come(self, arm, users):
        clusters = self.rng.integers(CLUSTERS, size=users)
        sums = self.arms.of(arm, len(ROWS))
        np.add.at(sums[IMPRESSIONS], clusters, 1)
        np.add.at(sums[POSITIVES], clusters[self.rng.random(users) < 0.5], 1)
        np.add.at(self.users.by_arm.setdefault(arm, np.zeros(CLUSTERS, np.int64)), clusters, 1)

    def look(self):
        return {row["arm"]: row for row in scorecard(DEFINITION, self.arms, self.users)}


def alarmed(experiment, rng):
    """The arms on which any look alarms, though all arms are equal."""
    watched, found = Watched(experiment, rng), set()
    for step in range(12):
        for arm in "AB" + "CDE"[: step // 3]:
            watched.come(arm, 150)
        rows = watched.look().values()
        found |= {
            row["arm"]
            for row in rows
            if row["role"] == "primary" and row["verdict"] in {"better", "worse"}
        }
    return found


@pytest.mark.long
@pytest.mark.parametrize("experiment", [UNNAMED, NAMED])
def test_any_arm_alarms_falsely_in_at_most_alpha_of_the_experiments(experiment):
    rng = np.random.default_rng(11)
    found = [alarmed(experiment, rng) for _ in range(120)]
    assert sum(map(bool, found)) <= experiment.alpha * len(found)
    if experiment is NAMED:
        assert any(found), "alarms can happen"
    assert set().union(*found) <= ({"B"} if experiment is UNNAMED else set("BCDE"))


def test_an_arm_that_comes_late_had_its_share_of_alpha_from_the_start():
    watched = Watched(NAMED, np.random.default_rng(1))
    for arm in "AB":
        watched.come(arm, 800)
    early = watched.look()
    for arm in "CDE":
        watched.come(arm, 800)
    late = watched.look()
    assert late["B"] == early["B"]
    alone = Watched(dataclasses.replace(UNNAMED, alpha=0.3 / 4), None)
    alone.arms.sums, alone.users = watched.arms.sums, watched.users
    alone.arms.sums = {arm: alone.arms.sums[arm] for arm in "AB"}
    assert alone.look()["B"] == late["B"]


def test_without_named_arms_stray_ones_change_nothing_and_a_second_one_leaves_none_judged():
    watched = Watched(UNNAMED, np.random.default_rng(2))
    watched.come("A", 800)
    watched.come("B", 99)
    assert (watched.look()["B"]["role"], watched.look()["B"]["low"]) == ("primary", None)
    watched.come("B", 701)
    alone = watched.look()["B"]
    assert alone["role"] == "primary"
    for number in range(15):
        watched.come(f"stray{number}", 1)
    watched.come("C", 99)
    strayed = watched.look()
    assert strayed["B"] == alone
    assert {row["role"] for arm, row in strayed.items() if arm != "B"} == {"exploratory"}
    watched.come("C", 1)
    assert {row["role"] for row in watched.look().values()} == {"exploratory"}
