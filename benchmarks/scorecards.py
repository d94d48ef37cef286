"""What a scorecard of several figures promises: false alarms, power, splits.

    python benchmarks/scorecards.py [--runs 2000] [--seed 1] [--json]

*False alarms*: experiments of equal arms. Their users return, some of them much more often than
others, and all figures are looked at after every 100 slates, from the sums by cluster of users that
the service keeps, and from the first list of each user. Any figure that is called better or worse
is a false alarm of its experiment.

*Power*: users that a change of 5 % of a 10 % rate needs, planned from the spread of users, and how
many experiments of that size found it, with the whole alpha and with what the bounds that need no
spread leave of it.

*Splits*: users until a split that is not the configured one is found.

The arithmetic of `stats.experiments` is written again for arrays of experiments;
tests/stats/test_scorecards.py holds both to the same verdicts.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass

import numpy as np

from streameval.stats.bounded_means import Means, difference_bounds
from streameval.stats.cluster_sums import ClusterSums
from streameval.stats.confidence_sequences import BurnIn, burn_in, radius
from streameval.stats.experiments import Rules, split_alpha
from streameval.stats.intervals import normal
from streameval.stats.plan import Plan, spread_of, users_for
from streameval.stats.regression_adjustment import compare_adjusted
from streameval.stats.sample_ratio import ALPHA as SPLIT_ALPHA
from streameval.stats.sample_ratio import log_evidence
from streameval.stats.verdicts import EACH, WITHOUT_SPREAD

ALPHA = 0.05
CLUSTERS = 256
# One experiment: 3,000 of these users come, the busiest of them for hundreds of slates.
USERS = 4_000
STEPS, SLATES = 100, 100
# Experiments at once: their users fit in a processor's cache.
SLICE = 50
SUMS = (
    *("slates", "impressions", "positives", "score", "empty", "fallback", "abandoned", "value"),
    *("users", "past_impressions", "past_positives"),
)
# Name: (numerator, denominator). The last one is adjusted by the past of users.
FIGURES = {
    "positives_per_impression": ("positives", "impressions"),
    "ndcg@10": ("score", "slates"),
    "value_per_user": ("value", "users"),
    "empty_rate": ("empty", "slates"),
    "fallback_rate": ("fallback", "slates"),
    "abandonment_rate": ("abandoned", "slates"),
}
# Figures whose first lists are observations in [0, 1].
SHARES = tuple(name for name in FIGURES if name != "value_per_user")
ADJUSTED = "positives_per_impression, adjusted"
PRIMARY, METRICS, GUARDRAILS = (
    "positives_per_impression",
    ("ndcg@10", "value_per_user"),
    ("empty_rate", "fallback_rate", "abandonment_rate"),
)


# ------------------------------------------------------------------------------- experiments


class World:
    """Some experiments side by side, and their sums: arrays (runs, 2 arms, clusters) by name."""

    def __init__(self, runs: int, chance: np.random.Generator) -> None:
        self.runs, self.chance = runs, chance
        shape = runs, USERS
        cell = chance.integers(0, 2, shape) * CLUSTERS + chance.integers(0, CLUSTERS, shape)
        self.cell = (np.arange(runs)[:, None] * 2 * CLUSTERS + cell).ravel()
        self.taste = chance.beta(2, 18, shape).ravel()
        activity = chance.lognormal(0, 1, USERS)
        self.often = np.cumsum(activity) / activity.sum()
        self.past = chance.poisson(20 * activity, shape).ravel()
        self.past_positives = chance.binomial(self.past, self.taste)
        self.seen = np.zeros(runs * USERS, bool)
        self.sums = {name: np.zeros((runs, 2, CLUSTERS)) for name in SUMS}
        # By figure: the users whose first list has it, and the sum of these, (runs, 2).
        self.firsts = {name: np.zeros((2, runs, 2)) for name in SHARES}

    def step(self) -> None:
        """Let some users come back, one slate each time."""
        chance = self.chance
        come = np.searchsorted(self.often, chance.random((self.runs, SLATES)))
        user = (np.arange(self.runs)[:, None] * USERS + come).ravel()
        fresh, first_list = np.unique(user, return_index=True)
        first_list, fresh = first_list[~self.seen[fresh]], fresh[~self.seen[fresh]]
        self.seen[fresh] = True
        items = np.where(chance.random(len(user)) < 0.01, 0, chance.integers(1, 11, len(user)))
        fallback = chance.random(len(user)) < 0.001
        positives = chance.binomial(items, self.taste[user])
        first = 1 / np.log2(2 + chance.integers(0, np.maximum(items, 1)))
        bought = chance.random(len(user)) < self.taste[user]
        for name, whose, what in (
            ("slates", user, None),
            ("impressions", user, items),
            ("positives", user, positives),
            ("score", user, (positives > 0) * first),
            ("empty", user, items == 0),
            ("fallback", user, fallback),
            ("abandoned", user, positives == 0),
            ("value", user, bought * chance.lognormal(0, 1, len(user))),
            ("users", fresh, None),
            ("past_impressions", fresh, self.past[fresh]),
            ("past_positives", fresh, self.past_positives[fresh]),
        ):
            sums = self.sums[name]
            sums += np.bincount(self.cell[whose], what, sums.size).reshape(sums.shape)
        one = np.ones(len(user))
        for name, above, below in (
            ("positives_per_impression", positives, items),
            ("ndcg@10", (positives > 0) * first, one),
            ("empty_rate", items == 0, one),
            ("fallback_rate", fallback, one),
            ("abandonment_rate", positives == 0, one),
        ):
            self._take_first(name, fresh, above[first_list], below[first_list])

    def _take_first(
        self, name: str, fresh: np.ndarray, above: np.ndarray, below: np.ndarray
    ) -> None:
        there = below > 0
        sums = self.firsts[name]
        arm = self.cell[fresh[there]] // CLUSTERS
        for row, what in enumerate((None, above[there] / below[there])):
            sums[row] += np.bincount(arm, what, sums[row].size).reshape(sums[row].shape)


@dataclass
class Look:
    """A figure of all experiments at one look: (runs, 2) each."""

    values: np.ndarray
    variance: np.ndarray
    skewness: np.ndarray
    users: np.ndarray

    def burn_ins(self) -> list[BurnIn]:
        """Return the burn-in of each arm."""
        one, other = (
            (self.variance[:, arm], self.skewness[:, arm], self.users[:, arm]) for arm in (0, 1)
        )
        return [burn_in(one, other), burn_in(other, one)]

    def ready(self) -> np.ndarray:
        """Tell which experiments are past their burn-in: (runs,)."""
        needed = np.stack([arm.needed for arm in self.burn_ins()], axis=1)
        return (self.users >= needed).all(axis=1)

    def called(self, alpha: float, planned: int = USERS) -> np.ndarray:
        """Return 1 where the treatment is higher, -1 where it is lower, 0 elsewhere: (runs,)."""
        variance = sum(arm.variance for arm in self.burn_ins())
        return self._called(self.ready(), radius(variance, self.users.sum(axis=1), alpha, planned))

    def naive(self) -> np.ndarray:
        """Return the same by a z test of one look, from 100 users an arm on."""
        reach = normal(1 - ALPHA) * np.sqrt(self.variance.sum(axis=1))
        return self._called(self.users.min(axis=1) >= 100, reach)

    def _called(self, ready: np.ndarray, reach: np.ndarray) -> np.ndarray:
        apart = self.values[:, 0] - self.values[:, 1]
        return np.sign(apart) * (ready & (np.abs(apart) > reach))


def look(sums: dict[str, np.ndarray], figure: str) -> Look:
    """Return a figure from the sums of all experiments."""
    users = sums["users"].sum(axis=-1)
    above, below = FIGURES.get(figure, FIGURES[PRIMARY])
    values, _, parts = parts_of(sums[above], sums[below])
    there = sums[below] > 0
    if figure == ADJUSTED:
        past, _, past_parts = parts_of(sums["past_positives"], sums["past_impressions"])
        both = [
            parts_of(*(sums[name].reshape(len(users), 1, -1) for name in pair))
            for pair in (FIGURES[PRIMARY], ("past_positives", "past_impressions"))
        ]
        theta = (both[0][1] * both[1][1]).sum(-1) / np.square(both[1][1]).sum(-1)
        values = values - theta * (past - both[1][0])
        parts = parts - theta[:, :, None] * past_parts
        there = there | (sums["past_impressions"] > 0)
    count, squares = there.sum(axis=-1), np.square(parts).sum(axis=-1)
    with np.errstate(all="ignore"):
        skewness = (parts**3).sum(axis=-1) * np.sqrt(users) / squares**1.5
    return Look(values, count / (count - 1) * squares, skewness, users)


def parts_of(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return Σx/Σy (runs, arms), and by cluster its linear form and parts in its error."""
    total = y.sum(axis=-1)
    values, counts = x.sum(axis=-1) / total, ((x != 0) | (y != 0)).sum(axis=-1)
    apart = x - values[:, :, None] * y
    others = np.where((y > 0).sum(axis=-1) > 1, total, np.inf)[:, :, None] - y
    share = ((counts - 1) / counts)[:, :, None]
    return values, apart / total[:, :, None], apart / others * share


def scorecards() -> dict[str, dict[str, float]]:
    """The alpha of each figure of a scorecard that names six, and of one that names four."""
    six, four = split_alpha(ALPHA, len(FIGURES) - 1), split_alpha(ALPHA, len(GUARDRAILS))
    return {
        "alone": dict.fromkeys([*FIGURES, ADJUSTED], ALPHA),
        "six named": {PRIMARY: six.primary} | dict.fromkeys([*METRICS, *GUARDRAILS], six.guardrail),
        "four named": {PRIMARY: four.primary} | dict.fromkeys(GUARDRAILS, four.guardrail),
        "four named, two exploratory": {PRIMARY: four.primary}
        | dict.fromkeys(GUARDRAILS, four.guardrail)
        | dict.fromkeys(METRICS, four.exploratory),
    }


def false_alarms(runs: int, seed: int, steps: int = STEPS) -> list[dict]:
    """Watch equal arms: the share of experiments with an alarm, by figure and by scorecard."""
    chance = np.random.default_rng(seed)
    names = [*FIGURES, ADJUSTED]
    found = [
        watched(World(min(SLICE, runs - start), chance), names, steps)
        for start in range(0, runs, SLICE)
    ]
    shares = {card: np.concatenate([one[card] for one in found], axis=1) for card in found[0]}
    rows = [
        {
            "what": name,
            "alarms": float(shares["alone"][row].mean()),
            "naive": float(shares["z"][row].mean()),
            "past_burn_in": float(shares["ready"][row].mean()),
            "first_lists": float(shares["first"][row].mean()),
        }
        for row, name in enumerate(names)
    ]
    return rows + [
        {"what": f"scorecard: {card}", "alarms": float(shares[card].any(axis=0).mean())}
        for card in scorecards()
        if card != "alone"
    ]


def watched(world: World, names: list[str], steps: int) -> dict[str, np.ndarray]:
    """Tell which experiments ever alarmed, (figures, runs) by scorecard: a look after each step."""
    cards = scorecards()
    flags = {
        card: np.zeros((len(names), world.runs), bool) for card in [*cards, "z", "ready", "first"]
    }
    firsts = {name: [] for name in SHARES}
    for _ in range(steps):
        world.step()
        for name, looks in firsts.items():
            looks.append(world.firsts[name].copy())
        for row, name in enumerate(names):
            found = look(world.sums, name)
            flags["z"][row] |= found.naive() != 0
            flags["ready"][row] = found.ready()
            for card, alphas in cards.items():
                if name in alphas:
                    flags[card][row] |= found.called(alphas[name] * (1 - WITHOUT_SPREAD)) != 0
    for name, looks in firsts.items():
        row, sums = names.index(name), np.stack(looks, axis=-1)
        flags["first"][row] = apart(sums, ALPHA)
        for card, alphas in cards.items():
            if name in alphas:
                flags[card][row] |= apart(sums, alphas[name] * EACH)
    return flags


def apart(sums: np.ndarray, alpha: float) -> np.ndarray:
    """Tell where first lists, (2, runs, 2, looks), ever called the arms different: (runs,)."""
    number, total = sums
    arms = (Means(number[:, arm], np.minimum(total[:, arm], number[:, arm])) for arm in (0, 1))
    low, high = difference_bounds(*arms, alpha)
    return ((low > 0) | (high < 0)).any(axis=-1)


# ------------------------------------------------------------------------------------- power


def population(
    count: int, chance: np.random.Generator, lift: float, *, returning: bool
) -> np.ndarray:
    """Users with a rate of 10 %, shape (count, 4): positives and impressions, now and before."""
    if not returning:
        clicked = (chance.random(count) < 0.1 * (1 + lift)) * 1.0
        return np.stack((clicked, np.ones(count), np.zeros(count), np.ones(count)), axis=1)
    taste, activity = chance.beta(2, 18, count), chance.lognormal(0, 1, count)
    now, before = 1 + chance.poisson(10 * activity), chance.poisson(20 * activity)
    positives = chance.binomial(now, np.minimum(taste * (1 + lift), 1))
    return np.stack((positives, now, chance.binomial(before, taste), before), axis=1) * 1.0


def plans(lift: float, alpha: float, seed: int, *, returning: bool) -> tuple[Plan, Plan | None]:
    """Users that a relative `lift` needs with 80 % power, plain and with CUPED."""
    chance = np.random.default_rng(seed)
    users = population(400_000, chance, 0.0, returning=returning)
    now = ClusterSums(users[:, 0], users[:, 1], len(users))
    plain, effect = spread_of(now), lift * now.value
    planned = users_for(effect, plain, alpha)
    if not returning:
        return planned, None
    parts = users[::2], users[1::2]
    sides = [
        tuple(ClusterSums(part[:, at], part[:, at + 1], len(part)) for part in parts)
        for at in (0, 2)
    ]
    saved = compare_adjusted(*sides, Rules(alpha=alpha)).users_saved
    return planned, users_for(effect, plain * (1 - saved), alpha)


@dataclass
class Found:
    """Shares of experiments that found the change at the last look, at any; users at the median."""

    last: float
    any_look: float
    median_users: float


def found(
    users: int, lift: float, alpha: float, runs: int, *, returning: bool, adjust: bool, seed: int
) -> Found:
    """Run experiments of so many users with a true `lift`, looked at 100 times."""
    chance = np.random.default_rng(seed)
    looks, firsts, lasts = 100, [], 0
    each = users // (2 * looks)
    for _ in range(runs):
        arms = [
            _sequence(population(each * looks, chance, change, returning=returning), looks)
            for change in (lift, 0.0)
        ]
        value, variance = _differences(arms, adjust=adjust)
        seen = 2 * each * np.arange(1, looks + 1)
        hit = (value / lift > 0) & (np.abs(value) > radius(variance, seen, alpha, users))
        hit &= seen >= 200
        lasts += bool(hit[-1])
        if hit.any():
            firsts.append(seen[hit.argmax()])
    waits = sorted(firsts) + [np.inf] * (runs - len(firsts))
    return Found(lasts / runs, len(firsts) / runs, float(waits[runs // 2]))


def _sequence(users: np.ndarray, looks: int) -> tuple[np.ndarray, np.ndarray]:
    """Return sums (looks, 4) and sums of products (looks, 4, 4) up to each look."""
    chunks = users.reshape(looks, -1, 4)
    products = np.einsum("lui,luj->lij", chunks, chunks)
    return chunks.sum(axis=1).cumsum(axis=0), products.cumsum(axis=0)


def _differences(arms: list, *, adjust: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the difference of the arms and its squared standard error at each look."""
    total, products = (one + other for one, other in zip(*arms, strict=True))
    theta = np.zeros(len(total))
    if adjust:
        now, past = _weights(total, 0), _weights(total, 2)
        theta = _form(now, products, past) / _form(past, products, past)
    values, variances = [], []
    for sums, squares in arms:
        weights = _weights(sums, 0) - theta[:, None] * _weights(sums, 2)
        values.append(sums[:, 0] / sums[:, 1] - theta * sums[:, 2] / sums[:, 3])
        variances.append(_form(weights, squares, weights))
    return values[0] - values[1], variances[0] + variances[1]


def _weights(sums: np.ndarray, at: int) -> np.ndarray:
    """Return the weights (looks, 4) that make a user's sums its part in the error of the ratio."""
    weights = np.zeros_like(sums)
    weights[:, at] = 1 / sums[:, at + 1]
    weights[:, at + 1] = -sums[:, at] / sums[:, at + 1] ** 2
    return weights


def _form(one: np.ndarray, products: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.einsum("li,lij,lj->l", one, products, other)


def power(runs: int, seed: int) -> list[dict]:
    """Users for a change of 5 %, and how many experiments with so many users found it."""
    rows = []
    for name, returning, lift, alpha in (
        ("one impression a user", False, 0.05, ALPHA),
        ("returning users", True, 0.05, ALPHA),
        ("returning users", True, -0.05, split_alpha(ALPHA, 4).primary),
    ):
        for adjust, plan in enumerate(plans(lift, alpha, seed, returning=returning)):
            if plan is None:
                continue
            given = {"returning": returning, "adjust": adjust, "seed": seed}
            seen, whole = (
                found(plan.all_looks, lift, part, runs, **given)
                for part in (alpha * (1 - WITHOUT_SPREAD), alpha)
            )
            rows.append(
                {
                    "users": f"{name}{', CUPED' * adjust}",
                    "lift": lift,
                    "alpha": alpha,
                    "one_look": plan.one_look,
                    "all_looks": plan.all_looks,
                    "found_at_last": seen.last,
                    "found": seen.any_look,
                    "median_users": seen.median_users,
                    "found_with_all_of_alpha": whole.any_look,
                }
            )
    return rows


# ------------------------------------------------------------------------------------ splits


def splits(runs: int, seed: int, most: int = 200_000, every: int = 100) -> list[dict]:
    """Say when a split that should be 50/50 is found, looked at after every 100 users."""
    rows = []
    for share in (0.5, 0.51, 0.52):
        chance = np.random.default_rng(seed)
        counts = chance.binomial(every, share, (runs, most // every)).cumsum(axis=1)
        users = every * np.arange(1, most // every + 1)
        alarm = log_evidence(np.stack((counts, users - counts), -1), [0.5, 0.5]) >= -np.log(
            SPLIT_ALPHA
        )
        firsts = np.where(alarm.any(axis=1), users[alarm.argmax(axis=1)], np.inf)
        rows.append(
            {
                "split": f"{share * 100:.0f}/{100 - share * 100:.0f}",
                "found": float(alarm.any(axis=1).mean()),
                "median_users": float(np.median(firsts)),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=2_000, help="experiments of equal arms")
    parser.add_argument("--power-runs", type=int, default=200, help="experiments with a change")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    alarms = false_alarms(given.runs, given.seed)
    changes = power(given.power_runs, given.seed)
    shares = splits(given.power_runs, given.seed)
    if given.json:
        print(json.dumps({"false_alarms": alarms, "power": changes, "splits": shares}))
        return
    print(
        f"{given.runs:,} A/A experiments of {STEPS * SLATES:,} slates, {STEPS} looks, alpha 5 %\n"
    )
    print("| figure | false alarms | first lists alone | z test | past burn-in |")
    print("| --- | --- | --- | --- | --- |")
    parts = ("first_lists", "naive", "past_burn_in")
    for row in alarms:
        more = [f"{row[name]:.1%}" if name in row else "" for name in parts]
        print(f"| {row['what']} | {row['alarms']:.1%} | {' | '.join(more)} |")
    print(f"\n{given.power_runs:,} experiments of the users that all looks need, 80 % power\n")
    print(
        "| users | change | α | users, one look | users, all looks | found at the last look |"
        " found at any | with all of α | users at the median |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in changes:
        print(
            f"| {row['users']} | {row['lift']:+.0%} | {row['alpha']:.1%} | {row['one_look']:,} |"
            f" {row['all_looks']:,} | {row['found_at_last']:.0%} | {row['found']:.0%} |"
            f" {row['found_with_all_of_alpha']:.0%} | {row['median_users']:,.0f} |"
        )
    print("\n| split of 50/50 | found within 200,000 users | users at the median |")
    print("| --- | --- | --- |")
    for row in shares:
        users = "never" if np.isinf(row["median_users"]) else f"{row['median_users']:,.0f}"
        print(f"| {row['split']} | {row['found']:.0%} | {users} |")


if __name__ == "__main__":
    main()
