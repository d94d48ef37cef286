"""The reward of another policy from a table of rounds: the values of zr-obp, and by hand."""

from __future__ import annotations

import csv
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from evaluating import refused, run
from test_open_bandit import DATA

Rows = list[dict[str, Any]]
NAMES = "ips,snips,dm,dr"


def written(path: Path, rows: Rows) -> str:
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def values(found: dict[str, Any]) -> dict[str, float]:
    return {name: figure["value"] for name, figure in found["figures"].items()}


# zr-obp 0.4.1 (InverseProbabilityWeighting, SelfNormalizedInverseProbabilityWeighting,
# DirectMethod, DoublyRobust) for the random policy's log, with the policy and model of `rounds`.
OF_OBP = {
    "ips": 0.00565626670083546,
    "snips": 0.005739864701951363,
    "dm": 0.007903742295137937,
    "dr": 0.0057583928596865105,
}


def rounds() -> Rows:
    """The random policy's log; the target chooses as often as the other log did, by position.

    The model of rewards is (clicks + 1) / (impressions + 100) by item and position.
    """
    log, other = (read(variant) for variant in ("random", "bts"))
    chosen = Counter((row["item_id"], row["position"]) for row in other)
    of_position = Counter(row["position"] for row in other)
    impressions = Counter((row["item_id"], row["position"]) for row in log)
    clicks = Counter((row["item_id"], row["position"]) for row in log if row["click"] == "1")
    items = {row["item_id"] for row in [*log, *other]}

    def target(item: str, position: str) -> float:
        return chosen[item, position] / of_position[position]

    def model(item: str, position: str) -> float:
        return (clicks[item, position] + 1) / (impressions[item, position] + 100)

    expected = {
        position: sum(target(item, position) * model(item, position) for item in items)
        for position in of_position
    }
    return [
        {
            "reward": row["click"],
            "propensity": row["propensity_score"],
            "target": target(row["item_id"], row["position"]),
            "predicted": model(row["item_id"], row["position"]),
            "expected": expected[row["position"]],
            "position": row["position"],
        }
        for row in log
    ]


def read(variant: str) -> list[dict[str, str]]:
    with (DATA / variant / "men" / "men.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.skipif(not DATA.is_dir(), reason="the Open Bandit sample is not here")
def test_estimates_of_a_real_campaign_are_zr_obps(tmp_path: Path) -> None:
    rows = rounds()
    found = run("--rounds", written(tmp_path / "r.csv", rows), "--metrics", NAMES)
    # Scores are rounded to integer billionths, one a round.
    assert values(found) == pytest.approx(OF_OBP, abs=1e-9)
    assert {figure["n"] for figure in found["figures"].values()} == {10_000}
    weights = found["notes"]["weights"]
    ratios = [row["target"] / float(row["propensity"]) for row in rows]
    assert weights["largest"] == max(ratios)
    kish = sum(ratios) ** 2 / sum(ratio**2 for ratio in ratios)
    assert weights["effective"] == pytest.approx(kish)
    for name in ("ips", "dm", "dr"):
        figure = found["figures"][name]
        assert figure["low"] < figure["value"] < figure["high"]
    parts = [written(tmp_path / f"{n}.csv", rows[n * 4_000 :][:4_000]) for n in range(3)]
    again = run(*(word for part in parts for word in ("--rounds", part)), "--metrics", NAMES)
    assert again == found


def some(count: int, seed: int = 1) -> Rows:
    chance = random.Random(seed)
    return [
        {
            "user": f"u{chance.randrange(40)}",
            "reward": chance.choice([0, 1]),
            "propensity": 0.5,
            "target": chance.choice([0.25, 0.75]),
            "model": chance.choice("ab"),
        }
        for _ in range(count)
    ]


def test_segments_and_users_of_rounds_are_told_apart(tmp_path: Path) -> None:
    rows = some(400)
    found = run("--rounds", written(tmp_path / "r.csv", rows), "--by", "model", "--metrics", "ips")
    for part in found["segments"]:
        chosen = [row for row in rows if row["model"] == part["model"]]
        mean = sum(row["reward"] * row["target"] / 0.5 for row in chosen) / len(chosen)
        assert part["figures"]["ips"]["value"] == pytest.approx(mean, abs=1e-9)
    assert found["notes"]["few_users"] < 60


def test_what_is_wrong_with_rounds_is_said_in_one_line(tmp_path: Path) -> None:
    few = written(tmp_path / "few.csv", some(20))
    assert "effective rounds of 20" in refused("--rounds", few)
    rows = some(100)
    file = written(tmp_path / "r.csv", rows)
    assert "no column expected" in refused("--rounds", file, "--metrics", "dm")
    assert "--rounds" in refused("--metrics", "dr")
    rows[7]["target"] = 1.5
    bad = written(tmp_path / "bad.csv", rows)
    assert "not in [0, 1]" in refused("--rounds", bad, "--metrics", "ips")
    rows[7]["target"] = ""
    holes = written(tmp_path / "holes.csv", rows)
    assert "row 8: each round needs its target" in refused("--rounds", holes)
