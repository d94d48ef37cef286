"""Rules for thresholds of ratings, and figures over all pairs at once, against other code."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from hashlib import md5
from pathlib import Path
from statistics import harmonic_mean
from typing import Any

import numpy as np
import pytest
from evaluating import refused, run
from sklearn.metrics import precision_score, recall_score, roc_auc_score

from streameval.base.limits import CLUSTERS

Rows = list[dict[str, Any]]


def rated(seed: int, users: int = 50) -> Rows:
    """Pairs whose ratings and predictions often lie on the threshold, and often tie."""
    chance = random.Random(seed)
    return [
        {
            "user": f"u{user}",
            "item": f"i{item}",
            "rating": chance.choice([1, 2, 3, 3.5, 4, 5]),
            "prediction": chance.choice([2, 3, 3.5, 4, 4.5]),
            "model": chance.choice("ab"),
        }
        for user in range(users)
        for item in range(chance.randint(1, 12))
    ]


def written(path: Path, rows: Rows) -> str:
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def recipe(rows: Rows, k: int, threshold: float, *, above: tuple[bool, bool]) -> list[float]:
    """Precision, recall and F1 as recipes of libraries compute them, a loop over users' pairs.

    `above`: whether predictions, and ratings, have to be above the threshold.
    """
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        pairs[row["user"]].append((row["prediction"], row["rating"]))

    def high(value: float, *, strictly: bool) -> bool:
        return value > threshold if strictly else value >= threshold

    precisions, recalls, harmonic = [], [], []
    for of_user in pairs.values():
        of_user.sort(key=lambda pair: pair[0], reverse=True)
        relevant = sum(high(true, strictly=above[1]) for _, true in of_user)
        chosen = [true for guess, true in of_user[:k] if high(guess, strictly=above[0])]
        hits = sum(high(true, strictly=above[1]) for true in chosen)
        precisions.append(hits / len(chosen) if chosen else 0)
        recalls.append(hits / relevant if relevant else 0)
        both = (precisions[-1], recalls[-1])
        harmonic.append(harmonic_mean(both) if hits else 0)
    return [math.fsum(found) / len(pairs) for found in (precisions, recalls, harmonic)]


@pytest.mark.parametrize(
    ("suffix", "above"),
    [("", (True, False)), ("_surprise", (False, False)), ("_strict", (True, True))],
)
def test_each_rule_for_a_threshold_has_a_name(
    suffix: str, above: tuple[bool, bool], tmp_path: Path
) -> None:
    rows = rated(1)
    names = [f"{name}_threshold{suffix}@3" for name in ("precision", "recall", "f1")]
    found = run(
        "--ratings", written(tmp_path / "r.csv", rows), "--metrics", ",".join(names),
        "--threshold", "3.5",
    )  # fmt: skip
    expected = recipe(rows, 3, 3.5, above=above)
    assert [found["figures"][name]["value"] for name in names] == pytest.approx(expected, abs=1e-9)


def strict_auc(labels: list[bool], scores: list[float]) -> float:
    """The share of pairs in the right order, as Gorse counts them: a tie is not."""
    chosen, hits = np.array(scores), np.array(labels)
    return float((chosen[hits][:, None] > chosen[~hits]).mean())


def test_over_pairs_scikit_learn_gives_the_same_precision_recall_and_auc(tmp_path: Path) -> None:
    rows = rated(2)
    file = written(tmp_path / "r.csv", rows)
    names = "precision_pairs,recall_pairs,auc_pairs,auc_pairs_strict"
    found = run("--ratings", file, "--metrics", names, "--threshold", "3", "--by", "model")
    figures = {"": found["figures"]}
    figures |= {segment["model"]: segment["figures"] for segment in found["segments"]}
    for model, mine in figures.items():
        chosen = [row for row in rows if row["model"] == model or not model]
        labels = [row["rating"] > 3 for row in chosen]
        high = [row["prediction"] > 3 for row in chosen]
        scores = [row["prediction"] for row in chosen]
        assert {name: figure["value"] for name, figure in mine.items()} == pytest.approx(
            {
                "precision_pairs": precision_score(labels, high),
                "recall_pairs": recall_score(labels, high),
                "auc_pairs": roc_auc_score(labels, scores),
                "auc_pairs_strict": strict_auc(labels, scores),
            },
            abs=1e-12,
        )
        assert mine["auc_pairs"]["n"] == len(chosen)


def test_the_error_of_the_auc_is_that_of_the_clusters_placements(tmp_path: Path) -> None:
    """Obuchowski 1997 by hand: every pair of a relevant and another one compared."""
    rows = rated(3)
    found = run(
        "--ratings", written(tmp_path / "r.csv", rows), "--metrics", "auc_pairs",
        "--threshold", "3",
    )["figures"]["auc_pairs"]  # fmt: skip
    cluster = np.array([cluster_of(row["user"]) for row in rows])
    score = np.array([row["prediction"] for row in rows])
    positive = np.array([row["rating"] > 3 for row in rows])
    wins = np.heaviside(score[positive][:, None] - score[~positive], 0.5)
    auc = wins.mean()
    spread = 0.0
    for one in set(cluster):
        of_relevant = wins.mean(axis=1)[cluster[positive] == one] - auc
        of_others = wins.mean(axis=0)[cluster[~positive] == one] - auc
        spread += (of_relevant.sum() / len(wins) + of_others.sum() / wins.shape[1]) ** 2
    clusters = len(set(cluster))
    stderr = math.sqrt(spread * clusters / (clusters - 1))
    assert found["value"] == pytest.approx(auc, abs=1e-12)
    half = (found["high"] - found["low"]) / 2
    # Student's t of 40 to 50 clusters.
    assert 1.95 < half / stderr < 2.1


def cluster_of(user: str) -> int:
    digest = md5(user.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[8:], "little") % CLUSTERS


def test_neither_order_nor_files_change_a_bit_of_pooled_figures(tmp_path: Path) -> None:
    rows = rated(4)
    for number, row in enumerate(rows):
        row["timestamp"] = number
    arguments = ["--metrics", "auc_pairs,precision_pairs", "--threshold", "3.5", "--by", "model"]
    whole = run("--ratings", written(tmp_path / "r.csv", rows), *arguments)
    random.Random(5).shuffle(rows)
    parts = [written(tmp_path / f"{n}.csv", rows[n::3]) for n in range(3)]
    assert run(*(word for part in parts for word in ("--ratings", part)), *arguments) == whole


def test_without_both_classes_there_is_no_auc(tmp_path: Path) -> None:
    file = written(tmp_path / "r.csv", rated(6))
    arguments = ["--ratings", file, "--metrics", "auc_pairs,recall_pairs"]
    found = run(*arguments, "--threshold", "9")["figures"]
    nothing = {"value": None, "low": None, "high": None, "n": 0}
    assert found == {"auc_pairs": nothing, "recall_pairs": nothing}
    assert "--threshold" in refused(*arguments)
