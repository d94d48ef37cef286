"""The curves that the report draws of any input, against scikit-learn, numpy and plain code."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluating import run
from sklearn.metrics import roc_auc_score
from test_evaluate_tables import values
from test_report import Elements, outcomes, report

from streameval.core.definition import Definition
from streameval.core.metrics.inputs import ITEMS
from streameval.core.metrics.rating_thresholds import THRESHOLD
from streameval.evaluation.report import charts
from streameval.evaluation.report.more_charts import BINS, PlacementCurves, placement_curves
from streameval.evaluation.request import FILES, LABELS, QRELS, RATINGS, RELEVANT, RUN, Given

Rows = list[dict[str, Any]]


def written(path: Path, rows: Rows) -> str:
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def drawn(kind: str, tables: dict[Any, list[str]], **values: Any) -> PlacementCurves:
    parameters = {"threshold": THRESHOLD, "relevant": RELEVANT}
    chosen = {parameters[name]: value for name, value in values.items()}
    found = placement_curves(Given(definition=Definition, tables=tables, values=chosen), {kind})
    assert found is not None
    return found[0]


def slates(seed: int) -> tuple[Rows, Rows]:
    """Rows in the order of scores, many of which are equal, and graded labels."""
    chance = random.Random(seed)
    rows, labels = [], []
    for number in range(60):
        items = [f"i{min(int(chance.expovariate(0.1)), 39)}" for _ in range(12)]
        scores = sorted((chance.randint(0, 30) / 10 for _ in items), reverse=True)
        for item, score in dict(zip(items, scores, strict=True)).items():
            rows.append({"list": f"l{number}", "item": item, "score": score})
            labels.append({"list": f"l{number}", "item": item, "gain": chance.randint(0, 3)})
    return rows, labels


@pytest.mark.parametrize("level", [None, 2.0])
def test_curves_of_slates_are_scikit_learns_and_numpys(level: float | None, tmp_path: Path) -> None:
    rows, labels = slates(1)
    found = drawn(
        "lists",
        {
            FILES: [written(tmp_path / "s.csv", rows)],
            LABELS: [written(tmp_path / "l.csv", labels)],
            ITEMS: [written(tmp_path / "i.csv", [{"item": f"i{n}"} for n in range(50)])],
        },
        relevant=level,
    )
    gains = {(row["list"], row["item"]): row["gain"] for row in labels}
    relevant = np.array([gains[row["list"], row["item"]] >= (level or 1) for row in rows])
    scores = np.array([row["score"] for row in rows])
    assert found.auc == pytest.approx(roc_auc_score(relevant, scores), abs=1e-12)
    expected = [(0.0, 0.0)] + [
        ((scores[~relevant] >= one).mean(), (scores[relevant] >= one).mean())
        for one in sorted(set(scores), reverse=True)
    ]
    assert found.roc[0] == (0.0, 0.0)
    assert found.roc[-1] == (1.0, 1.0)
    assert all(min(np.hypot(x - a, y - b) for a, b in expected) < 1e-12 for x, y in found.roc)
    for name, chosen in (("relevant", relevant), ("others", ~relevant)):
        counts, _ = np.histogram(scores[chosen], BINS, (scores.min(), scores.max()))
        mine = [share for _, share in found.separation[name]]
        # Where a bin begins may be one double apart.
        assert np.abs(np.cumsum(mine) - np.cumsum(counts) / counts.sum()).max() < 0.1
        assert sum(mine) == pytest.approx(1)
    times = sorted(Counter(row["item"] for row in rows).values(), reverse=True)
    for share, part in found.tail:
        assert part == pytest.approx(sum(times[: round(share * len(times))]) / len(rows))
    lists = [[row for row in rows if row["list"] == f"l{n}"] for n in range(60)]
    first = {max(one, key=lambda row: row["score"])["item"] for one in lists}
    assert found.coverage[0] == (1, len(first) / 50)


def rated(seed: int) -> Rows:
    chance = random.Random(seed)
    return [
        {"user": f"u{n % 30}", "item": f"i{n}", "rating": chance.randint(1, 5),
         "prediction": chance.randint(2, 9) / 2}
        for n in range(300)
    ]  # fmt: skip


def test_the_curve_by_cutoff_has_the_figures_of_ratings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rule that was asked for has its lines, as far as the longest of them grows."""
    found: dict[str, Any] = {}

    def kept(name: str, series: Any, **_axes: Any) -> str:
        found[name] = series
        return "<svg ></svg>"

    monkeypatch.setattr(charts, "chart", kept)
    file = written(tmp_path / "r.csv", rated(6))
    names = [f"{name}_threshold_surprise" for name in ("precision", "recall", "f1")]
    given = ("--ratings", file, "--threshold", "3")
    report(tmp_path / "r.html", *given, "--metrics", f"{names[0]}@2")
    at = [f"{name}@{k}" for name in names for k in (1, 2, 3, 4, 5, 6, 8, 10)]
    figures = values(run(*given, "--metrics", ",".join(at)))
    assert found["by-cutoff"] == {
        name: [(k, figures[f"{name}@{k}"]) for k, _ in found["by-cutoff"][name]] for name in names
    }
    assert [k for k, _ in found["by-cutoff"][names[0]]][:5] == [1, 2, 3, 4, 5]


def test_curves_of_ratings_take_the_threshold_as_the_figures_do(tmp_path: Path) -> None:
    rows = rated(2)
    file = written(tmp_path / "r.csv", rows)
    found = drawn("ratings", {RATINGS: [file]}, threshold=3.0)
    labels = [row["rating"] > 3 for row in rows]
    assert found.auc == pytest.approx(roc_auc_score(labels, [row["prediction"] for row in rows]))
    assert (found.items, found.coverage) == (300, [])
    without = drawn("ratings", {RATINGS: [file]})
    assert (without.roc, without.auc, list(without.separation)) == ([], None, ["all"])


def test_curves_of_a_run_are_those_of_the_same_slates(tmp_path: Path) -> None:
    rows, labels = slates(3)
    for number, row in enumerate(rows):
        row["score"] += number / 1e6
    lines = [f"{row['list']} Q0 {row['item']} 0 {row['score']!r} x" for row in rows]
    (tmp_path / "run").write_text("\n".join(lines) + "\n")
    lines = [f"{row['list']} 0 {row['item']} {row['gain']}" for row in labels]
    (tmp_path / "qrels").write_text("\n".join(lines) + "\n")
    of_run = drawn("lists", {RUN: [str(tmp_path / "run")], QRELS: [str(tmp_path / "qrels")]})
    random.Random(1).shuffle(rows)
    parts = [written(tmp_path / f"{n}.csv", rows[n::2]) for n in range(2)]
    of_slates = drawn("lists", {FILES: parts, LABELS: [written(tmp_path / "l.csv", labels)]})
    assert of_run == of_slates


def titles(page: str) -> list[str]:
    elements = Elements(page)
    return [value for name, value in elements.attributes if name == "aria-label"]


def test_each_input_has_its_charts(tmp_path: Path) -> None:
    rows, labels = slates(4)
    page = report(
        tmp_path / "r.html", written(tmp_path / "s.csv", rows),
        "--labels", written(tmp_path / "l.csv", labels), "--metrics", "ndcg@5",
    )  # fmt: skip
    of_lists = ["Precision and recall", "Figures by cutoff", "Precision at recall"]
    of_items = ["Long tail of places in lists", "Coverage", "ROC", "Scores by class"]
    assert set(titles(page)) == {*of_lists, *of_items}
    page = report(tmp_path / "r.html", str(tmp_path / "s.csv"), "--metrics", "personalization@5")
    assert titles(page) == ["Long tail of places in lists", "Coverage", "Scores"]
    ratings = rated(5)
    file, tail = written(tmp_path / "r.csv", ratings), "Long tail of ratings"
    page = report(tmp_path / "r.html", "--ratings", file, "--metrics", "rmse")
    assert titles(page) == [tail, "Scores"]
    figure = ("--ratings", file, "--metrics", "recall_threshold_strict@3", "--threshold", "3")
    page = report(tmp_path / "r.html", *figure)
    assert titles(page) == [tail, "ROC", "Scores by class", "Figures by cutoff"]
    lines = page[page.index('aria-label="Figures by cutoff"') :].partition("</svg>")[0]
    for name in ("precision", "recall", "f1"):
        assert f">{name}_threshold_strict</text>" in lines
    page = report(tmp_path / "r.html", outcomes(tmp_path / "out"), "--metrics", "ndcg@5")
    assert {"Long tail", "Coverage", "Calibration"} < set(titles(page))
    assert "ROC" in titles(page)


def test_the_daily_rate_is_drawn_of_each_kind(tmp_path: Path) -> None:
    start = 1_700_006_400_000
    log = [
        {"type": kind, "ts": start + day * 86_400_000 + at, "user_id": "u", "item_id": f"i{n}"}
        | ({"feedback": "click"} if kind == "feedback" else {})
        for day in (0, 1, 3)
        for n in range(4)
        for at, kind in enumerate(["impression", "feedback"][: 1 + (n <= day)])
    ]
    (tmp_path / "e.jsonl").write_text("".join(json.dumps(one) + "\n" for one in log))
    page = report(tmp_path / "r.html", "--events", str(tmp_path / "e.jsonl"))
    assert titles(page) == ["Positive rate by day"]
    again = report(tmp_path / "s.html", "--events", str(tmp_path / "e.jsonl"), "--by", "feedback")
    assert titles(again) == ["Positive rate by day"]
    assert "click" in again
