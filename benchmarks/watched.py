"""Watched A/A experiments through the live path: events, final slates, accumulators, verdicts.

    python benchmarks/watched.py [--runs 200] [--seed 1]

`scorecards.py` judges sums that it has drawn. Here the same kind of experiment goes as events
through the partition of a worker. After every 100 slates its scorecard is compared with one from
plain sums of the slates that are final then: every difference has the same bits, and so has every
bound and verdict that is of all lists. At the end of a run, `replay` of the events as a file gives
the same rows as well.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from streameval.base.limits import CLUSTERS
from streameval.base.steps import drain
from streameval.core.definition import Definition, Positive, Window
from streameval.core.events import EventDecoder
from streameval.core.experiments.definition import Experiment, Guardrail
from streameval.core.experiments.users import UserArms
from streameval.core.partition import Partition
from streameval.core.replay import replay
from streameval.core.windows.tables import cluster_of
from streameval.experiments.scorecard import scorecard, sections
from streameval.stats.cluster_sums import ClusterSums
from streameval.stats.experiments import Rules, compare_ratios, split_alpha
from streameval.stats.verdicts import WITHOUT_SPREAD

USERS, STEPS, SLATES = 4_000, 100, 100
BEGIN, STEP = 1_767_225_600_000, 10_000
PRIMARY = "positives_per_impression{feedback=click}"
# Name: numerator, denominator, unit, whether less is better.
FIGURES = {
    PRIMARY: ("positives", "impressions", 1, False),
    "ndcg@10": ("score", "slates", 10**9, False),
    "value_per_user{feedback=purchase}": ("value", "users", 10**6, False),
    "empty_rate": ("empty", "slates", 1, True),
    "abandonment_rate": ("abandoned", "slates", 1, True),
}
EXPERIMENT = Experiment(
    "equal",
    "variant",
    "A",
    PRIMARY,
    tuple(map(Guardrail, [*FIGURES][1:])),
    split={"A": 1, "B": 1},
    planned_users=USERS,
)
DEFINITION = Definition(
    positives=(Positive("click"), Positive("purchase", value="sum")),
    gains={"purchase": 0.0},
    dimensions=("variant",),
    ks=(10,),
    attribution_window=2_000,
    allowed_lateness=0,
    windows=(Window("10m", 600_000, 60_000),),
    experiments=(EXPERIMENT,),
)
Slate = dict[str, Any]


def slates(chance: np.random.Generator) -> Iterator[Slate]:
    """Draw the slates of an experiment of equal arms, in order of time."""
    taste = chance.beta(2, 18, USERS)
    arm = chance.integers(0, 2, USERS)
    activity = chance.lognormal(0, 1, USERS)
    often = np.cumsum(activity) / activity.sum()
    for number in range(STEPS * SLATES):
        user = int(np.searchsorted(often, chance.random()))
        size = 0 if chance.random() < 0.03 else int(chance.integers(1, 11))
        clicked = np.flatnonzero(chance.random(size) < taste[user]).tolist()
        bought = size and chance.random() < taste[user]
        yield {
            "user": f"u{user}",
            "number": number,
            "ts": BEGIN + number * STEP,
            "arm": "AB"[arm[user]],
            "size": size,
            "clicked": clicked,
            # A millionth is the unit of values.
            "micro": round(chance.lognormal(0, 1) * 1e6) if bought else 0,
        }


def events(slate: Slate) -> list[bytes]:
    """Return the events of a slate."""
    head = {"user_id": slate["user"], "request_id": f"r{slate['number']}"}
    items = [f"i{place}" for place in range(slate["size"])]
    made: list[dict[str, Any]] = [
        {"type": "slate", "ts": slate["ts"], "variant": slate["arm"], "items": items}
    ]
    feedback = {"type": "feedback", "ts": slate["ts"] + 1_000}
    made += [{**feedback, "feedback": "click", "item_id": f"i{n}"} for n in slate["clicked"]]
    if slate["micro"]:
        value = slate["micro"] / 1e6
        made.append({**feedback, "feedback": "purchase", "item_id": "i0", "value": value})
    return [json.dumps(head | event).encode() for event in made]


class PlainSums:
    """The sums of both arms by cluster, without the engine."""

    def __init__(self) -> None:
        names = ("positives", "impressions", "score", "slates", "value", "empty", "abandoned")
        self.sums = {name: {arm: [0] * CLUSTERS for arm in "AB"} for name in (*names, "users")}
        self.seen: set[str] = set()

    def add(self, slate: Slate) -> None:
        """Add a slate that is final."""
        user, arm = slate["user"], slate["arm"]
        ideal = sum(1 / math.log2(place + 2) for place in range(len(slate["clicked"])))
        score = sum(1 / math.log2(place + 2) for place in slate["clicked"])
        for name, what in (
            ("positives", len(slate["clicked"])),
            ("impressions", slate["size"]),
            ("score", round(score / ideal * 1e9) if ideal else 0),
            ("slates", 1),
            ("value", slate["micro"]),
            ("empty", slate["size"] == 0),
            ("abandoned", not slate["clicked"] and not slate["micro"]),
            ("users", user not in self.seen),
        ):
            self.sums[name][arm][cluster_of(user)] += what
        self.seen.add(user)

    def rows(self) -> dict[str, tuple[Any, ...]]:
        """Judge each named figure."""
        alphas = split_alpha(EXPERIMENT.alpha, len(FIGURES) - 1)
        found = {}
        for name, (above, below, unit, is_lower_better) in FIGURES.items():
            alpha = alphas.primary if name == PRIMARY else alphas.guardrail
            rules = Rules(alpha, USERS, lower_is_better=is_lower_better, reserved=WITHOUT_SPREAD)
            sides = [
                ClusterSums(
                    np.array(self.sums[above][arm], object),
                    np.array(self.sums[below][arm]),
                    sum(self.sums["users"][arm]),
                    unit,
                )
                for arm in "BA"
            ]
            scored = compare_ratios(*sides, rules)
            found[name] = scored.difference, scored.low, scored.high, scored.verdict
        return found


def watched(seed: int) -> set[str]:
    """Run one experiment; return the named figures that ever alarmed."""
    state, decoder = Partition(DEFINITION), EventDecoder.of(DEFINITION)
    arms, plain = UserArms(), PlainSums()
    alarmed: set[str] = set()
    waiting: list[Slate] = []
    lines: list[bytes] = []
    for slate in slates(np.random.default_rng(seed)):
        waiting.append(slate)
        lines += events(slate)
        state.apply(decoder.decode_batch(events(slate))[0])
        if (slate["number"] + 1) % SLATES:
            continue
        state.flush()
        drain(state.finalizing())
        arms.add(state.experiments.take_visits())
        assert state.watermark is not None
        while waiting and waiting[0]["ts"] < state.watermark - DEFINITION.horizon:
            plain.add(waiting.pop(0))
        (sums,) = state.experiments.arm_sums
        rows = list(scorecard(DEFINITION, sums, arms.counts[EXPERIMENT.key]))
        wanted = plain.rows()
        for row in rows:
            if row["role"] == "exploratory":
                continue
            same = 4 if row["bounds"] == "all lists" else 1
            found = row["difference"], row["low"], row["high"], row["verdict"]
            where = f"seed {seed}, slate {slate['number']}, {row['metric']}"
            assert found[:same] == wanted[row["metric"]][:same], where
            if row["verdict"] in {"better", "worse"}:
                alarmed.add(row["metric"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.jsonl"
        path.write_bytes(b"\n".join(lines))
        document = replay(DEFINITION, [str(path)], lambda _: None, judged=sections)
    assert document["experiments"] == rows, f"seed {seed}: replay"
    return alarmed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    began = time.process_time()
    seeds = range(given.seed, given.seed + given.runs)
    found = {seed: alarmed for seed in seeds if (alarmed := watched(seed))}
    alarms = len(found)
    for seed, alarmed in found.items():
        print(f"seed {seed}: {', '.join(sorted(alarmed))}")
    print(
        f"{given.runs} A/A experiments of {STEPS * SLATES:,} slates and {len(FIGURES)} figures,"
        f" {STEPS} looks each through the partition: the bits of the sums at every look, and of"
        f" replay at the end; {alarms} alarmed ({alarms / given.runs:.1%}, at most 5 %);"
        f" {time.process_time() - began:.0f} s of processor time, load {os.getloadavg()[0]:.0f}"
    )


if __name__ == "__main__":
    main()
