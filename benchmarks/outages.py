"""How soon an experiment says that an arm is broken, and what a ramp does to its verdict.

    python benchmarks/outages.py [--runs 1000] [--seed 1]

*Outages*: users come to A and B by chance, some return, and a part of B's lists is broken. The
scorecard is read after every ten users an arm up to 100, every 50 up to 1,000, every 500 up to the
end. Told are users an arm at the first `worse`, by the figure's own bounds with all of alpha and by
all bounds together, and how many streams ever went back from `worse`.

*Never*: no list is ever broken in either arm. Told are users an arm at which the gate lets it pass.

*Ramps*: B has 5 %, then 20 %, then 50 % of the new users while the base rate rises, and the true
difference is 0 or −2 points. Told are wrong verdicts, and experiments whose verdict is withheld;
beside them experiments with a steady share.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from streameval.base.limits import CLUSTERS, NANO
from streameval.core.definition import Definition, Positive
from streameval.core.experiments.definition import Experiment, Guardrail
from streameval.core.experiments.first_lists import first_rows
from streameval.core.experiments.metrics import metrics_of, row_names
from streameval.core.experiments.sums import ArmSums
from streameval.core.experiments.users import ArmUsers
from streameval.experiments.judge import Judge
from streameval.experiments.scorecard import judges_of, ratio_sums
from streameval.stats.cluster_sums import ClusterSums
from streameval.stats.experiments import compare_ratios

RATE = "positives_per_impression{feedback=click}"
EMPTY, FALLBACK, LATENCY = "empty_rate", "fallback_rate", "latency_ms_mean"
EXPERIMENT = Experiment(
    "broken",
    "variant",
    "A",
    RATE,
    (Guardrail(EMPTY), Guardrail(FALLBACK), Guardrail(LATENCY)),
    arms=("B",),
)
DEFINITION = Definition(positives=(Positive("click"),), experiments=(EXPERIMENT,))
ROWS, FIRST, METRICS = row_names(DEFINITION), first_rows(DEFINITION), list(metrics_of(DEFINITION))
NOON, MINUTE, DAY = 1_769_860_800_000, 60_000, 86_400_000
MOST_USERS = 5_000


@dataclass
class Broken:
    """What is wrong with B: the metric that shows it, and the share of its lists."""

    name: str
    metric: str
    share: float


OUTAGES = (
    Broken("every list empty", EMPTY, 1.0),
    Broken("99 % of the lists empty", EMPTY, 0.99),
    Broken("half of the lists empty", EMPTY, 0.5),
    Broken("every list a fallback", FALLBACK, 1.0),
    Broken("latency 5,000 ms, not 100 ms", LATENCY, 1.0),
)


@dataclass
class Lists:
    """Some lists in order of time, as arrays (n,); `clicks` on ten items, 1 where `empty` has none.

    `fresh` are those of users who come for the first time.
    """

    user: np.ndarray
    time: np.ndarray
    is_b: np.ndarray
    fresh: np.ndarray
    empty: np.ndarray
    fallback: np.ndarray
    latency: np.ndarray
    clicks: np.ndarray

    def part(self, begin: int, end: int) -> Lists:
        """Return the lists from `begin` to `end`."""
        return Lists(*(getattr(self, name)[begin:end] for name in self.__dataclass_fields__))


@dataclass
class State:
    """The sums of the experiment, as the stream leaves them."""

    arms: ArmSums = field(default_factory=lambda: ArmSums(EXPERIMENT))
    users: ArmUsers = field(default_factory=ArmUsers)

    def add(self, lists: Lists) -> None:
        """Add lists to the sums of both arms."""
        for arm, chosen in (("A", ~lists.is_b), ("B", lists.is_b)):
            if chosen.any():
                self._add(arm, Lists(*(getattr(lists, n)[chosen] for n in Lists.__annotations__)))

    def _add(self, arm: str, lists: Lists) -> None:
        shown = np.where(lists.empty, 0, 10)
        rows = {
            "slates": np.ones(len(shown), np.int64),
            "impressions": shown,
            "positives{feedback=click}": lists.clicks,
            "empty": lists.empty,
            "fallback": lists.fallback,
            "latencies": np.ones(len(shown), np.int64),
            "latency": 1_000 * lists.latency,
        }
        sums, cluster = self.arms.of(arm, len(ROWS)), lists.user % CLUSTERS
        for name, values in rows.items():
            np.add.at(sums[ROWS.index(name)], cluster, values)
        figures = {EMPTY: lists.empty, FALLBACK: lists.fallback, LATENCY: lists.latency}
        extremes = np.full((2, len(METRICS)), np.nan)
        for name, values in figures.items():
            extremes[:, METRICS.index(name)] = values.min(), values.max()
        self.arms.widen(arm, extremes)
        self._add_users(arm, lists)

    def _add_users(self, arm: str, lists: Lists) -> None:
        fresh = lists.fresh
        known = self.users.by_arm.setdefault(arm, np.zeros(CLUSTERS, np.int64))
        np.add.at(known, lists.user[fresh] % CLUSTERS, 1)
        self.users.exactly[arm] = self.users.exactly.get(arm, 0) + int(fresh.sum())
        minutes = lists.time // MINUTE
        for minute in np.unique(minutes[fresh]):
            here = fresh & (minutes == minute)
            shown = here & ~lists.empty
            first = dict.fromkeys(FIRST, 0)
            first |= {"users": here.sum(), "slates": here.sum(), "impressions": shown.sum()}
            first[EMPTY] = NANO * (here & lists.empty).sum()
            first[FALLBACK] = NANO * (here & lists.fallback).sum()
            first[RATE] = NANO // 10 * lists.clicks[shown].sum()
            values = np.array(list(first.values()), np.int64)
            self.users.first.change(arm, int(minute) * MINUTE, values, 1)

    def sides(self, metric: str) -> list[ClusterSums]:
        """Return the sums of a metric in B and in A."""
        entry = metrics_of(DEFINITION)[metric]
        return [ratio_sums(DEFINITION, entry, self.arms, self.users, arm) for arm in "BA"]

    def judge(self) -> Judge:
        """Return the judge of B."""
        (found,) = judges_of(DEFINITION, self.arms, self.users)
        return found


def drawn(chance: np.random.Generator, users: int, share_of_b: np.ndarray, gap: int) -> Lists:
    """Draw the lists of new users, one after each `gap` ms, and of some who return.

    `share_of_b` (users,) is B's share of the new users.
    """
    visits = chance.geometric(0.5, users)
    user = np.repeat(np.arange(users), visits)
    since = np.where(np.arange(len(user)) == np.repeat(visits.cumsum() - visits, visits), 0, 1)
    time = NOON + gap * user + since * chance.integers(1, 200 * gap, len(user))
    order = np.argsort(time, kind="stable")
    is_b = chance.random(users) < share_of_b
    nothing = np.zeros(len(user), bool)
    return Lists(
        user[order], time[order], is_b[user[order]], (since == 0)[order], nothing, nothing,
        np.full(len(user), 100), np.zeros(len(user), np.int64),
    )  # fmt: skip


def looks(most: int) -> Iterator[int]:
    """Yield the users of both arms at each look."""
    yield from range(20, 200, 20)
    yield from range(200, 2_000, 100)
    yield from range(2_000, 2 * most + 1, 1_000)


def broken_lists(broken: Broken, chance: np.random.Generator, users: int) -> Lists:
    """Draw the lists of an experiment in which B is broken."""
    lists = drawn(chance, users, np.full(users, 0.5), 6_000)
    lists.clicks = chance.binomial(10, 0.1, len(lists.user))
    wrong = lists.is_b & (chance.random(len(lists.user)) < broken.share)
    if broken.metric == EMPTY:
        lists.empty, lists.clicks = wrong, np.where(wrong, 0, lists.clicks)
    elif broken.metric == FALLBACK:
        lists.fallback = wrong
    else:
        lists.latency = np.where(wrong, 5_000, 100)
    return lists


def outage(broken: Broken, seed: int, most: int) -> tuple[float, float, bool]:
    """Return the users an arm at the first `worse`, and whether a later look went back from it.

    The first number is by the figure's own bounds with all of alpha, the second by all bounds.
    """
    lists = broken_lists(broken, np.random.default_rng(seed), 2 * most)
    state, done, alone, first, back = State(), 0, np.inf, np.inf, False
    at = np.append(np.flatnonzero(lists.fresh), len(lists.user))
    for users in looks(most):
        state.add(lists.part(done, int(at[users])))
        done, judge, sides = int(at[users]), state.judge(), state.sides(broken.metric)
        whole = compare_ratios(*sides, replace(judge.rules(broken.metric), reserved=0.0))
        verdict = judge.scored(broken.metric, *sides).verdict
        if whole.verdict == "worse":
            alone = min(alone, users / 2)
        if verdict == "worse":
            first = min(first, users / 2)
        else:
            back |= first < np.inf
    return alone, first, back


def passes(margin: float, most: int) -> float:
    """Return the users an arm at which a guardrail that never happens passes; inf for none."""
    guarded = replace(EXPERIMENT, guardrails=(Guardrail(FALLBACK, margin),))
    for users in looks(most):
        state, chance = State(ArmSums(guarded)), np.random.default_rng(users)
        state.add(drawn(chance, users, np.arange(users) % 2.0, 6_000))
        verdict = state.judge().scored(FALLBACK, *state.sides(FALLBACK)).verdict
        if verdict == "no difference shown":
            return users / 2
    return np.inf


def ramp(shares: tuple[float, ...], effect: float, seed: int, users: int) -> list[tuple[str, bool]]:
    """Return the verdict on the click rate at 40 looks, and whether it was withheld."""
    chance = np.random.default_rng(seed)
    phase = np.arange(users) * len(shares) // users
    lists = drawn(chance, users, np.array(shares)[phase], 6 * DAY // users)
    rate = np.array([0.10, 0.15, 0.20])[phase[lists.user]] + effect * lists.is_b
    lists.clicks = chance.binomial(10, rate)
    state, found = State(), []
    ends = np.linspace(0, len(lists.user), 41).astype(int)
    for begin, end in pairwise(ends.tolist()):
        state.add(lists.part(begin, end))
        scored = state.judge().scored(RATE, *state.sides(RATE))
        found.append((scored.verdict, scored.withheld is not None))
    return found


def report_outages(runs: int, seed: int, most: int) -> None:
    print(f"{runs:,} streams an outage, seeds {seed} to {seed + runs - 1}; users an arm\n")
    print("| outage of B | own bounds alone, median | all bounds, median | 99th in 100 | back |")
    print("| --- | --- | --- | --- | --- |")
    for broken in OUTAGES:
        found = [outage(broken, at, most) for at in range(seed, seed + runs)]
        alone, first, back = map(np.array, zip(*found, strict=True))
        quantiles = [np.median(alone), np.median(first), np.quantile(first, 0.99, method="higher")]
        cells = " | ".join("never" if np.isinf(one) else f"{one:,.0f}" for one in quantiles)
        print(f"| {broken.name} | {cells} | {back.sum()} of {runs:,} |", flush=True)


def report_ramps(runs: int, seed: int, users: int) -> None:
    print(f"\n{runs:,} experiments of {users:,} users, 40 looks, base rate 10, 15, 20 %\n")
    print(
        "| shares of B | true difference | wrong verdict | withheld at the end | right at the end |"
    )
    print("| --- | --- | --- | --- | --- |")
    for shares in ((0.05, 0.2, 0.5), (0.01, 0.1, 0.5), (0.5, 0.2, 0.05), (0.5,) * 3, (0.05,) * 3):
        for effect in (0.0, -0.02):
            rightly = "worse" if effect else "no difference shown"
            found = [ramp(shares, effect, at, users) for at in range(seed, seed + runs)]
            allowed = {"not yet", "no difference shown", rightly}
            wrong = np.mean([any(verdict not in allowed for verdict, _ in one) for one in found])
            ends = [one[-1] for one in found]
            told = [np.mean([end[1] for end in ends]), np.mean([end[0] == rightly for end in ends])]
            name = " → ".join(f"{share:.0%}" for share in dict.fromkeys(shares))
            cells = " | ".join(f"{one:.1%}" for one in (wrong, *told))
            print(f"| {name} | {100 * effect:+.0f} points | {cells} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=1_000, help="streams of an outage")
    parser.add_argument("--ramps", type=int, default=200)
    parser.add_argument("--users", type=int, default=20_000, help="users of a ramp")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    report_outages(given.runs, given.seed, MOST_USERS)
    print("\n| margin of a guardrail that never happens | users an arm until it passes |")
    print("| --- | --- |")
    for margin in (0.0, 0.01, 0.005):
        users = passes(margin, MOST_USERS)
        print(f"| {f'{margin:.1%}' if margin else 'none'} | {users:,.0f} |")
    report_ramps(given.ramps, given.seed, given.users)


if __name__ == "__main__":
    main()
