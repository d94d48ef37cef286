"""How often equal variants are called different when somebody watches every user arrive.

    python benchmarks/false_alarms.py [--runs 2000] [--users 10000] [--seed 1] [--json]

A/A experiments: both variants are the same, so every alarm is false. Each run is looked at after
every user; a run with an alarm at any look counts. The tests are the library's own functions; the
naive ones beside them are a z test and Pearson's χ², looked at as often and after the same floor
of users.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import numpy as np

from streameval.stats.confidence_sequences import FLOOR, FLOOR_UNEQUAL, UNEQUAL, burn_in, radius
from streameval.stats.intervals import normal
from streameval.stats.sample_ratio import log_evidence

ALPHA = 0.05
# Experiments simulated at once: ten cumulative sums of this many runs fit in 100 MB.
SLICE = 50
# Users before the first look at a split: χ² is not defined for a handful.
FIRST_SPLIT_LOOK = 20
# χ² at 5 %, by degrees of freedom.
CHI_SQUARE = {1: 3.841, 2: 5.991}

Draw = Callable[[np.random.Generator, tuple[int, int]], tuple[np.ndarray, np.ndarray]]


def clicks(rate: float) -> Draw:
    """One impression a user, clicked with probability `rate`."""
    return lambda chance, shape: ((chance.random(shape) < rate) * 1.0, np.ones(shape))


def user_rates(chance: np.random.Generator, shape: tuple[int, int]):
    """Mean over users of positives / impressions: 1 to 20 impressions, users differ in taste."""
    shown = chance.integers(1, 21, shape)
    return chance.binomial(shown, chance.beta(0.5, 4.5, shape)) / shown, np.ones(shape)


def slate_scores(chance: np.random.Generator, shape: tuple[int, int]):
    """Mean over slates, clustered: 1 to many slates a user, whose level is the user's own."""
    slates = chance.geometric(0.25, shape)
    return chance.binomial(slates, chance.beta(1, 9, shape)) * 1.0, slates * 1.0


def spending(chance: np.random.Generator, shape: tuple[int, int]):
    """A heavy right tail: lognormal values, skewness 6."""
    return chance.lognormal(0, 1, shape), np.ones(shape)


FIGURES: tuple[tuple[str, Draw, float], ...] = (
    ("clicks, 10 %", clicks(0.1), 0.5),
    ("clicks, 1 %", clicks(0.01), 0.5),
    ("positive rate, mean over users", user_rates, 0.5),
    ("mean over slates, by user", slate_scores, 0.5),
    ("lognormal values", spending, 0.5),
    ("clicks, 10 %, split 10/90", clicks(0.1), 0.1),
    ("mean over slates, split 10/90", slate_scores, 0.1),
)
SPLITS: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("50/50", (0.5, 0.5)),
    ("10/90", (0.1, 0.9)),
    ("80/10/10", (0.8, 0.1, 0.1)),
)


def compare_runs(
    draw: Draw, share: float, runs: int, users: int, seed: int
) -> tuple[float, float, float]:
    """Shares of runs with a false alarm: (sequence, z test), and of runs past their burn-in."""
    chance = np.random.default_rng(seed)
    alarms = np.zeros(3)
    for start in range(0, runs, SLICE):
        shape = (min(SLICE, runs - start), users)
        x, y = draw(chance, shape)
        treated = chance.random(shape) < share
        alarms += _watched(x, y, treated, users)
    return tuple((alarms / runs).tolist())


def _growing(x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    """Σx/Σy of the users so far, its squared standard error, their skewness, and their number."""
    products = (y != 0, x, y, x * x, x * y, y * y, x**3, x * x * y, x * y * y, y**3)
    users, x, y, xx, xy, yy, xxx, xxy, xyy, yyy = (np.cumsum(each, axis=1) for each in products)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = x / y
        squares = np.maximum(xx - 2 * ratio * xy + ratio**2 * yy, 0)
        # Smaller squares are only rounding.
        seen = np.where(squares > 1e-12 * xx, squares, 0)
        cubes = xxx - 3 * ratio * xxy + 3 * ratio**2 * xyy - ratio**3 * yyy
        variance = users * squares / ((users - 1) * y**2)
        return [ratio, variance, cubes * np.sqrt(users) / seen**1.5, users]


def _watched(x: np.ndarray, y: np.ndarray, treated: np.ndarray, planned: int) -> np.ndarray:
    (one, *known), (other, *beside) = (_growing(x * mine, y * mine) for mine in (treated, ~treated))
    apart, variance = np.abs(one - other), known[0] + beside[0]
    first, second = known[-1], beside[-1]
    burn_ins = [burn_in(known, beside), burn_in(beside, known)]
    ready = (first >= burn_ins[0].needed) & (second >= burn_ins[1].needed)
    spread = burn_ins[0].variance + burn_ins[1].variance
    sequence = ready & (apart > radius(spread, first + second, ALPHA, planned))
    smaller, larger = np.minimum(first, second), np.maximum(first, second)
    floor = np.where(smaller < UNEQUAL * larger, FLOOR_UNEQUAL, FLOOR)
    naive = (smaller >= floor) & (apart > normal(1 - ALPHA) * np.sqrt(variance))
    return np.array([flags.any(axis=1).sum() for flags in (sequence, naive, ready)])


def split_runs(split: tuple[float, ...], runs: int, users: int, seed: int) -> tuple[float, float]:
    """Shares of runs with a false alarm of the sequential split test and of Pearson's χ²."""
    chance = np.random.default_rng(seed)
    shares = np.array(split)
    alarms = np.zeros(2)
    seen = np.arange(1, users + 1)[:, None]
    looked = seen[:, 0] >= FIRST_SPLIT_LOOK
    critical = CHI_SQUARE[len(split) - 1]
    for _ in range(runs):
        drawn = np.searchsorted(np.cumsum(shares)[:-1], chance.random(users), side="right")
        counts = np.cumsum(drawn[:, None] == np.arange(len(split)), axis=0)
        expected = seen * shares
        chi_square = (np.square(counts - expected) / expected).sum(axis=1)
        evidence = log_evidence(counts, shares)
        alarms += (evidence >= -np.log(ALPHA)).any(), (looked & (chi_square > critical)).any()
    return tuple((alarms / runs).tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=2_000, help="experiments of each kind")
    parser.add_argument("--users", type=int, default=10_000, help="users of each experiment")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = []
    for name, draw, share in FIGURES:
        ours, naive, ready = compare_runs(draw, share, given.runs, given.users, given.seed)
        rows.append({"test": name, "sequential": ours, "naive": naive, "past_burn_in": ready})
    for name, split in SPLITS:
        ours, naive = split_runs(split, given.runs, given.users, given.seed)
        rows.append({"test": f"split {name}", "sequential": ours, "naive": naive})
    if given.json:
        print(json.dumps(rows))
        return
    print(f"{given.runs:,} A/A runs of {given.users:,} users, watched at every user, alpha 5 %\n")
    print("| test | false alarms | naive test | runs past burn-in |")
    print("| --- | --- | --- | --- |")
    for row in rows:
        ready = f"{row['past_burn_in']:.1%}" if "past_burn_in" in row else ""
        print(f"| {row['test']} | {row['sequential']:.1%} | {row['naive']:.1%} | {ready} |")


if __name__ == "__main__":
    main()
