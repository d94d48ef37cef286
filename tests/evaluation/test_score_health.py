"""Health of scores against TorchEval's documentation, scikit-learn, and plain loops."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest
from default_events import DIMENSIONS
from evaluating import refused, run
from msgspec import structs
from sklearn.metrics import log_loss, roc_auc_score
from test_evaluate_tables import slate, values, written
from test_report import report
from test_report_charts import titles

from streameval.checks.catalogue import logged_scores
from streameval.checks.evidence import Evidence
from streameval.core.definition import Definition
from streameval.core.outcome import Outcome
from streameval.files.outcome_files import table

NAMES = "calibration,calibration_error,log_loss,normalized_entropy,auc_weighted,auc_strict"

Items = list[tuple[float, bool]]


def outcomes(folder: Path, rows: list[Outcome], size: int = 1_000) -> str:
    pq.write_table(table(0, rows, DIMENSIONS), folder / "o.parquet", row_group_size=size)
    return str(folder / "o.parquet")


def served(lists: list[list[tuple[float | None, bool]]], users: int = 40) -> list[Outcome]:
    return [
        structs.replace(
            slate(
                number,
                f"r{number}",
                [f"i{n}" for n in range(len(items))],
                scores=[score for score, _ in items],
                gains=[float(positive) for _, positive in items],
                user=f"u{number % users}",
            ),
            labels=("AB"[number % 2], "home"),
        )
        for number, items in enumerate(lists)
    ]


def drawn(seed: int, count: int = 400) -> list[Items]:
    """Lists with scores that tie within a list and promise too much."""
    chance = random.Random(seed)
    return [
        [
            (score := chance.choice([0.0, 0.05, 0.1, 0.3, 0.7, 0.95, 1.0, chance.random()]),
             chance.random() < 0.1 + 0.6 * score)
            for _ in range(chance.randint(1, 9))
        ]
        for _ in range(count)
    ]  # fmt: skip


def expected_error(items: Items) -> float:
    bins: list[Items] = [[] for _ in range(10)]
    for score, positive in items:
        bins[min(math.floor(score * 10), 9)].append((score, positive))
    return sum(abs(sum(score - positive for score, positive in one)) for one in bins) / len(items)


def strict(items: Items) -> float:
    """The share of pairs in the right order, as Gorse counts them: a tie is not."""
    pairs = [(above, below) for above, hit in items for below, other in items if hit and not other]
    return sum(above > below for above, below in pairs) / len(pairs)


def theirs(lists: list[Items]) -> dict[str, float]:
    """All figures by scikit-learn and by loops."""
    items = [item for one in lists for item in one]
    scores, labels = zip(*items, strict=True)
    share = sum(labels) / len(labels)
    loss = log_loss(labels, scores)
    both = [one for one in lists if 0 < sum(positive for _, positive in one) < len(one)]
    counts = [(sum(positive for _, positive in one), len(one)) for one in both]
    return {
        "calibration": sum(scores) / sum(labels),
        "calibration_error": expected_error(items),
        "log_loss": loss,
        "normalized_entropy": loss / log_loss(labels, [share] * len(labels)),
        "auc_weighted": float(
            np.average(
                [roc_auc_score([p for _, p in one], [s for s, _ in one]) for one in both],
                weights=[hits * (size - hits) for hits, size in counts],
            )
        ),
        "auc_strict": float(np.mean([strict(one) for one in both])),
    }


@pytest.mark.parametrize(
    ("figure", "items", "expected"),
    [
        ("normalized_entropy", [(0.2, True), (0.3, False)], 1.4183),
        # A weight of 5 is five such items.
        ("normalized_entropy", [*[(0.2, True)] * 5, (0.3, False)], 3.1087),
        (
            "calibration",
            list(zip([0.8, 0.4, 0.3, 0.8, 0.7, 0.6], map(bool, [1, 1, 0, 0, 1, 0]), strict=True)),
            1.2,
        ),
    ],
)
def test_torchevals_documentation_has_the_same_values(
    figure: str, items: Items, expected: float, tmp_path: Path
) -> None:
    file = outcomes(tmp_path, served([[item] for item in items]))
    assert values(run(file, "--metrics", figure))[figure] == pytest.approx(expected, abs=5e-5)


def test_figures_by_variant_are_scikit_learns_and_those_of_loops(tmp_path: Path) -> None:
    lists = drawn(1)
    found = run(outcomes(tmp_path, served(lists)), "--metrics", NAMES, "--by", "variant")
    assert values(found) == pytest.approx(theirs(lists), abs=1e-8)
    by_variant = {part["variant"]: values(part) for part in found["segments"]}
    assert by_variant["A"] == pytest.approx(theirs(lists[0::2]), abs=1e-8)
    assert by_variant["B"] == pytest.approx(theirs(lists[1::2]), abs=1e-8)
    items = [item for one in lists for item in one]
    counts = {name: figure["n"] for name, figure in found["figures"].items()}
    assert counts["log_loss"] == counts["calibration_error"] == len(items)
    assert counts["calibration"] == sum(positive for _, positive in items)
    for name in ("calibration", "log_loss", "auc_weighted"):
        figure = found["figures"][name]
        assert figure["low"] < figure["value"] < figure["high"]
    for name in ("calibration_error", "normalized_entropy"):
        assert found["figures"][name]["low"] is None


def test_neither_row_groups_nor_order_change_a_bit(tmp_path: Path) -> None:
    rows = served(drawn(2))
    whole = run(outcomes(tmp_path, rows), "--metrics", NAMES, "--by", "variant")
    random.Random(3).shuffle(rows)
    assert run(outcomes(tmp_path, rows, 7), "--metrics", NAMES, "--by", "variant") == whole


def test_slates_with_labels_and_ratings_have_the_figures_of_outcome_files(tmp_path: Path) -> None:
    lists = drawn(4, 60)
    rows: list[dict[str, Any]] = [
        {"list": f"l{number}", "user": f"u{number % 40}", "item": f"i{n}", "score": score,
         "gain": int(positive)}
        for number, items in enumerate(lists)
        for n, (score, positive) in enumerate(items)
    ]  # fmt: skip
    wanted = run(outcomes(tmp_path, served(lists)), "--metrics", NAMES)["figures"]
    slates = written(tmp_path / "s.csv", [{**row, "gain": ""} for row in rows])
    labels = written(tmp_path / "l.csv", [row for row in rows if row["gain"]])
    assert run(slates, "--labels", labels, "--metrics", NAMES)["figures"] == wanted
    ratings = [
        {"user": row["list"], "item": row["item"], "label": 2 * row["gain"],
         "prediction": row["score"]}
        for row in rows
    ]  # fmt: skip
    file = written(tmp_path / "r.csv", ratings)
    for more in ((), ("--relevant", "2")):
        found = run("--ratings", file, "--metrics", NAMES, *more)
        assert values(found) == {name: figure["value"] for name, figure in wanted.items()}
    found = run("--ratings", file, "--metrics", "log_loss", "--relevant", "3")
    assert values(found)["log_loss"] > wanted["log_loss"]["value"]


def test_items_without_a_score_are_left_out_and_requestless_impressions_are_not(
    tmp_path: Path,
) -> None:
    rows = served([[(0.2, True), (None, True), (0.4, False)], [(None, True)], [(0.3, False)]])
    rows[2] = structs.replace(rows[2], request=None)
    found = run(outcomes(tmp_path, rows), "--metrics", NAMES)["figures"]
    assert found["calibration"]["value"] == pytest.approx(0.9)
    assert found["log_loss"]["n"] == 3
    assert found["auc_weighted"] == {"value": None, "low": None, "high": None, "n": 0}


def test_what_has_no_value_is_absent(tmp_path: Path) -> None:
    names = NAMES.split(",")
    file = outcomes(tmp_path, served([[(0.2, False), (0.9, False)]]))
    found = values(run(file, "--metrics", NAMES, "--per-list"))
    assert [name for name in names if found[name] is None] == [
        "calibration",
        "normalized_entropy",
        "auc_weighted",
        "auc_strict",
    ]
    file = outcomes(tmp_path, served([[(None, True)]]))
    assert values(run(file, "--metrics", NAMES)) == dict.fromkeys(names)


def test_scores_that_are_no_probabilities_are_refused_where_they_must_be(tmp_path: Path) -> None:
    file = outcomes(tmp_path, served([[(-1.5, False), (3.0, True)]]))
    for name in NAMES.split(",")[:-2]:
        assert "a score is -1.5, no probability" in refused(file, "--metrics", name)
    assert values(run(file, "--metrics", "auc_weighted")) == {"auc_weighted": 1.0}


def test_users_without_a_positive_count_in_the_error_of_the_calibration(tmp_path: Path) -> None:
    """The jackknife by hand: each cluster of users is left out once."""
    lists = [[(0.1 + 0.05 * n, n in {2, 5, 6})] for n in range(8)]
    found = run(outcomes(tmp_path, served(lists, users=8)), "--metrics", "calibration")
    scores = np.array([one[0][0] for one in lists])
    labels = np.array([one[0][1] for one in lists])
    left = (scores.sum() - scores) / (labels.sum() - labels)
    value = scores.sum() / labels.sum()
    stderr = math.sqrt(7 / 8 * np.square(left - value).sum())
    figure = found["figures"]["calibration"]
    # Student's t with the 2 degrees of freedom of three clusters with a positive.
    assert (figure["high"] - figure["low"]) / 2 == pytest.approx(4.3027 * stderr, rel=1e-4)


def test_variants_are_compared_by_every_figure(tmp_path: Path) -> None:
    file = outcomes(tmp_path, served(drawn(5)))
    rows = run(file, "--metrics", NAMES, "--by", "variant", "--against", "A")["differences"]
    found = {row["metric"]: row for row in rows}
    assert found.keys() == set(NAMES.split(","))
    assert found["log_loss"]["once_low"] < found["log_loss"]["difference"]
    assert found["normalized_entropy"]["once_low"] is None


def test_the_check_of_logged_scores_has_the_values_of_evaluate(tmp_path: Path) -> None:
    lists = drawn(6)
    found = values(run(outcomes(tmp_path, served(lists)), "--metrics", NAMES))
    with duckdb.connect() as connection:
        rows = f"SELECT ['']::VARCHAR[] AS segment, * FROM '{tmp_path}/o.parquet'"
        connection.execute(f"CREATE VIEW current AS {rows}")
        evidence = Evidence(connection, Definition(), now=0)
        settings = logged_scores.Settings(probabilities=True, min_items=2, max_calibration_error=1)
        result = logged_scores.check(evidence, settings)
    assert result.value == found["calibration_error"]
    assert f"log loss {found['log_loss']:.4f}; " in result.message


def test_the_report_draws_how_scores_meet_labels(tmp_path: Path) -> None:
    rows = [
        {"user": f"u{n % 9}", "item": f"i{n}", "label": n % 3 // 2, "prediction": n % 7 / 7}
        for n in range(80)
    ]
    file = written(tmp_path / "r.csv", rows)
    page = report(tmp_path / "r.html", "--ratings", file, "--metrics", "log_loss")
    assert {"ROC", "Scores by class"} < set(titles(page))
    file = outcomes(tmp_path, served(drawn(7)))
    page = report(tmp_path / "r.html", file, "--metrics", "log_loss")
    assert {"ROC", "Scores by class"} < set(titles(page))
