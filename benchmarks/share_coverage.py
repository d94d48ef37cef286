"""How often the 95 % bounds of each kind of share hold the truth, next to 0 and 1 above all.

    python benchmarks/share_coverage.py [--runs 2000] [--seed 1] [--json]

A run draws users and the values of a share whose mean is known, adds them up by cluster of users,
and asks the functions of `evaluate` for bounds. A cell is a kind of share, a mean and a number of
units (lists, or users who have several values). Cells below 90 % are a fault.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import NormalDist

import numpy as np

from streameval.base.limits import CLUSTERS
from streameval.core.metrics import METRICS
from streameval.core.metrics.rating_thresholds import PairMetric, auc_of_pairs
from streameval.evaluation.sums import with_bounds
from streameval.stats.cluster_sums import ratio_arm
from streameval.stats.intervals import Arm, Interval, linear_count, share_interval
from streameval.web.intervals import bounds

SHARES = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.3, 0.5)
MEANS = (*SHARES, *(round(1 - share, 3) for share in reversed(SHARES[:-1])))
UNITS = (40, 60, 88, 100, 150, 300, 500, 1_000)
LEAST = 0.9

Chance = np.random.Generator
Drawn = tuple[np.ndarray, np.ndarray, np.ndarray]
"""x, y and user of each unit: the share is the sum of x over the sum of y."""
Draw = Callable[[Chance, float, int], Drawn]


def hits(chance: Chance, mean: float, units: int) -> Drawn:
    """Draw one hit or miss a user: `hit_rate`, `index_recall@1`, `sampled_hit_rate`."""
    return (chance.random(units) < mean) * 1.0, np.ones(units), np.arange(units)


def tenths(chance: Chance, mean: float, units: int) -> Drawn:
    """Draw one list a user with ten items that are relevant or not: `precision@10`."""
    return chance.binomial(10, mean, units) / 10, np.ones(units), np.arange(units)


def reciprocal_ranks(chance: Chance, mean: float, units: int) -> Drawn:
    """Draw one list a user, the first relevant item at a geometric rank, cut at 10: `mrr@10`."""
    low, high = 1e-9, 1.0
    ranks = np.arange(1, 11)
    for _ in range(60):
        middle = (low + high) / 2
        worth = (middle * (1 - middle) ** (ranks - 1) / ranks).sum()
        low, high = (middle, high) if worth < mean else (low, middle)
    drawn = chance.geometric(high, units)
    return np.where(drawn <= 10, 1.0 / drawn, 0.0), np.ones(units), np.arange(units)


def tastes(chance: Chance, mean: float, users: int, together: float = 0.3) -> np.ndarray:
    """Draw the share of each user; two values of one user correlate by `together`."""
    spread = 1 / together - 1
    return chance.beta(mean * spread, (1 - mean) * spread, users)


def returning(chance: Chance, mean: float, units: int) -> Drawn:
    """Draw three lists a user on average, hits that go together: `hit_rate` of returning users."""
    lists = 1 + chance.poisson(2, units)
    user = np.repeat(np.arange(units), lists)
    hit = chance.random(len(user)) < tastes(chance, mean, units)[user]
    return hit * 1.0, np.ones(len(user)), user


def alike(chance: Chance, mean: float, units: int) -> Drawn:
    """Draw five lists a user that all hit or all miss: as far from independence as lists can be."""
    user = np.repeat(np.arange(units), 5)
    return (chance.random(units) < mean)[user] * 1.0, np.ones(len(user)), user


def rates(chance: Chance, mean: float, units: int) -> Drawn:
    """Draw a rate of each user on two days: `daily_positive_rate`, `precision_threshold@k`."""
    user = np.repeat(np.arange(units), 2)
    read = 1 + chance.poisson(4, len(user))
    rate = chance.binomial(read, tastes(chance, mean, units, 0.1)[user]) / read
    return rate, np.ones(len(user)), user


def pairs(chance: Chance, mean: float, units: int) -> Drawn:
    """Draw the positives of all pairs of users: `precision_pairs`, positives per impression."""
    count = chance.geometric(0.2, units)
    hit = chance.binomial(count, tastes(chance, mean, units, 0.1))
    return hit * 1.0, count * 1.0, np.arange(units)


KINDS: dict[str, Draw] = {
    "hits": hits,
    "tenths": tenths,
    "reciprocal ranks": reciprocal_ranks,
    "hits of returning users": returning,
    "five lists alike": alike,
    "rates of users": rates,
    "pairs": pairs,
}


def of_evaluate(x: np.ndarray, y: np.ndarray, cluster: np.ndarray, units: int) -> Interval:
    """Bound a share as `evaluate` does, from its sums by cluster."""
    above = np.bincount(cluster, x, CLUSTERS)
    below = np.bincount(cluster, y, CLUSTERS)
    arm = ratio_arm(above, below)
    assert arm is not None, "there are more than one user"
    return share_interval(replace(arm, units=units), int(y.sum()))


def areas(chance: Chance, mean: float, units: int) -> tuple[float, float]:
    """Bound an AUC over the pairs of all users, half of whose items are relevant: `auc_pairs`."""
    entry = next(one for one in METRICS if isinstance(one, PairMetric) and one.halves == 1)
    user = np.repeat(np.arange(units), 1 + chance.poisson(2, units))
    positive = chance.random(len(user)) < 0.5
    # Two normal scores whose order is right with probability `mean`.
    apart = NormalDist().inv_cdf(mean) * np.sqrt(2)
    scores = chance.normal(size=len(user)) + apart * positive
    cluster = chance.integers(0, CLUSTERS, units)[user]
    ours, others = np.sort(scores[positive]), np.sort(scores[~positive])
    below = np.searchsorted(others, scores, "left")
    above = len(ours) - np.searchsorted(ours, scores, "right")
    here, there = cluster[positive], cluster[~positive]
    known = np.unique(cluster)

    def counted(of: np.ndarray, weights: np.ndarray | None = None) -> list[int]:
        return np.bincount(of, weights, CLUSTERS)[known].astype(int).tolist()

    none = [0] * len(known)
    placements = entry.placements(
        counted(here), counted(there), counted(here, below[positive]), none,
        counted(there, above[~positive]), none,
    )  # fmt: skip
    found = auc_of_pairs(placements, 0.0)
    if found is None:
        return 0.0, 1.0
    fewer = int(min(map(np.count_nonzero, (placements.relevant, placements.others))))
    arm = Arm(*found, float("nan"), linear_count(fewer, CLUSTERS), fewer)
    figure = with_bounds(arm, len(user), entry)
    assert figure.low is not None, "there are more than one user"
    assert figure.high is not None, "there are more than one user"
    return figure.low, figure.high


def of_stream(chance: Chance, mean: float, units: int) -> tuple[float, float]:
    """Bound the empty rate of returning users as page and API do, from the clustered error."""
    x, y, user = returning(chance, mean, units)
    cluster = chance.integers(0, CLUSTERS, units)[user]
    above, below = np.bincount(cluster, x, CLUSTERS), np.bincount(cluster, y, CLUSTERS)
    value, filled = x.sum() / y.sum(), np.count_nonzero(below)
    spread = np.square(above - value * below).sum() * filled / max(filled - 1, 1)
    row = {"empty_rate": value, "empty_rate_stderr": np.sqrt(spread) / y.sum(), "slates": len(y)}
    found = bounds(row, "empty_rate", units)
    assert found is not None, "there are more than one user"
    return found


def coverage(kind: str, mean: float, units: int, runs: int, seed: int) -> float:
    """Return the share of runs whose bounds hold the mean."""
    chance = np.random.default_rng([seed, sum(kind.encode()), int(1e6 * mean), units])
    held = 0
    for _ in range(runs):
        if kind == "areas":
            low, high = areas(chance, mean, units)
        elif kind == "stream":
            low, high = of_stream(chance, mean, units)
        else:
            x, y, user = KINDS[kind](chance, mean, units)
            found = of_evaluate(x, y, chance.integers(0, CLUSTERS, units)[user], units)
            low, high = found.low, found.high
        held += low <= mean <= high
    return held / runs


def cells(runs: int, seed: int) -> Iterator[tuple[str, dict[tuple[float, int], float]]]:
    """Yield each kind with its cells."""
    for kind in (*KINDS, "areas", "stream"):
        yield (
            kind,
            {
                (mean, units): coverage(kind, mean, units, runs, seed)
                for mean in MEANS
                for units in UNITS
            },
        )


def main() -> None:
    """Print a table a kind, and the least of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    print(f"# seed {given.seed}, {given.runs:,} runs a cell")
    least = 1.0
    for kind, found in cells(given.runs, given.seed):
        (mean, units), worst = min(found.items(), key=lambda cell: cell[1])
        least = min(least, worst)
        if given.json:
            rows = [[mean, units, share] for (mean, units), share in found.items()]
            print(json.dumps({"kind": kind, "cells": rows}), flush=True)
            continue
        print(f"\n{kind}: at least {worst:.1%} (mean {mean}, {units} units)")
        print("mean  " + "".join(f"{units:>8,}" for units in UNITS))
        for mean in MEANS:
            row = "".join(f"{found[mean, units]:>8.1%}" for units in UNITS)
            print(f"{mean:<6}{row}", flush=True)
    print(f"\nleast of all: {least:.1%}")
    raise SystemExit(least < LEAST)


if __name__ == "__main__":
    main()
