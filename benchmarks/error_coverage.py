"""How often intervals for 95 % hold, by the jackknife and by the delta method.

Users have an activity of their own (Poisson, lognormal, Pareto) and a click rate that follows a
gamma law. Sums are kept by 256 clusters of users, as everywhere. *One* is the interval of a pooled
click rate, *difference* that of two variants without a difference, at one look. *Page* is the
interval of the page and the API. Prints the tables of docs/uncertainty.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import numpy as np
from delta_method import delta_arm

from streameval.base.limits import CLUSTERS
from streameval.stats.cluster_sums import ClusterSums
from streameval.stats.intervals import difference, interval
from streameval.web.intervals import bounds

ACTIVITY: Final[dict[str, Callable[[np.random.Generator, int], np.ndarray]]] = {
    "Poisson": lambda chance, users: chance.poisson(5, users) + 1,
    "lognormal (σ 1.5)": lambda chance, users: chance.lognormal(1, 1.5, users),
    "Pareto (1.5)": lambda chance, users: 3 * (chance.pareto(1.5, users) + 1),
    "Pareto (1.2)": lambda chance, users: 3 * (chance.pareto(1.2, users) + 1),
}


def an_arm(chance: np.random.Generator, activity: str, users: int, rate: float) -> ClusterSums:
    """Draw the sums of one variant."""
    shown = np.clip(ACTIVITY[activity](chance, users), 1, 1e6).astype(np.int64)
    clicks = chance.binomial(shown, np.minimum(chance.gamma(2, rate / 2, users), 1))
    clusters = chance.integers(0, CLUSTERS, users)
    sums = (np.bincount(clusters, each, CLUSTERS).astype(np.int64) for each in (clicks, shown))
    return ClusterSums(*sums, users)


def held(activity: str, users: int, rate: float, runs: int, seed: int) -> np.ndarray:
    """Return shares of runs: one by delta, one, page, difference by delta, difference."""
    chance, found = np.random.default_rng((seed, users)), np.zeros(5)
    for _ in range(runs):
        arms = [an_arm(chance, activity, users, rate) for _ in "AB"]
        ours = [each.arm() for each in arms]
        delta = [delta_arm(each.x, each.y) for each in arms]
        if None in ours:
            continue
        row = {"positives_per_impression": ours[0].value, "impressions": int(arms[0].y.sum())}
        row["positives_per_impression_stderr"] = ours[0].stderr
        shown = bounds(row, "positives_per_impression", users)
        one = [interval(delta[0]), interval(ours[0])]
        ends = [(each.low, each.high, rate) for each in one] + [(*(shown or (1, 0)), rate)]
        ends += [(each.low, each.high, 0.0) for each in (difference(*delta), difference(*ours))]
        found += [low <= truth <= high for low, high, truth in ends]
    return found / runs


def main() -> None:
    """Print a row for each activity, rate and number of users."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_500)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print("| activity of users | clicks | users | one: delta | jackknife | page", end="")
    print(" | difference: delta | jackknife |")
    print("| --- " * 8 + "|")
    for activity in ACTIVITY:
        for rate in (0.01, 0.1):
            for users in (40, 100, 300, 2_000):
                shares = held(activity, users, rate, given.runs, given.seed)
                cells = " | ".join(f"{100 * share:.1f} %" for share in shares)
                print(f"| {activity} | {rate:.0%} | {users:,} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
