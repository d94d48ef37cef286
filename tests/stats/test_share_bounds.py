"""Bounds of shares: each by its row, within 0 and 1, and as often right as they promise."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import pytest
from evaluating import run
from scipy.stats import beta

from streameval.core.metrics import LIST_MEANS, METRICS, RATES, VALUE_MEANS, MeanMetric
from streameval.stats.intervals import LEVEL, normal, wilson
from streameval.web.intervals import bounds

Rows = list[dict[str, Any]]
Z2 = normal(LEVEL) ** 2
COVERAGE = Path(__file__).parents[2] / "benchmarks" / "share_coverage.py"

# Errors, gains, counts, entropies, and distances, which may be above 1.
NO_SHARES = {
    "average_popularity", "average_popularity_users", "calibration", "catalogue_coverage_percent",
    "dcg", "dcg_binary", "dcg_exp", "dcg_ln", "diversity", "dm", "dr", "half_life", "ips",
    "log_loss", "mae", "mae_item", "mae_user", "mean_weight", "mse", "ndcg_sum", "nmae", "novelty",
    "novelty_self_information", "nrmse", "positives_over_expected", "rmse", "rmse_item",
    "rmse_user", "score_entropy", "serendipity_features",
}  # fmt: skip
# Of all lists at once: no sample of lists has their spread, so they have no bounds.
WITHOUT_BOUNDS = {
    "catalogue_coverage", "gini", "gini_listed", "item_bias", "personalization",
    "training_coverage", "user_bias",
}  # fmt: skip


def written(path: Path, rows: Rows) -> str:
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_every_share_is_declared_by_its_row():
    """A new metric says whether it is one, or is named above."""
    plain = [entry for entry in METRICS if not isinstance(entry, MeanMetric)]
    assert {one.name for one in plain if not one.is_share} == NO_SHARES | WITHOUT_BOUNDS
    rows = (*RATES, *VALUE_MEANS, *LIST_MEANS)
    assert {one.name for one in rows if not one.is_share} == {
        "latency_ms_mean", "mean_rank_of_positives", *(one.name for one in VALUE_MEANS),
    }  # fmt: skip


# --- Through the command


def index_recall(folder: Path, hits: int, lists: int) -> tuple[float, float, float]:
    """Of so many lists of one item, the first ones right."""
    found = [{"list": f"q{n}", "item": "a" if n < hits else "x", "rank": 1} for n in range(lists)]
    exact = [{"list": f"q{n}", "item": "a", "rank": 1} for n in range(lists)]
    figure = run(
        written(folder / "found.csv", found), "--exact", written(folder / "exact.csv", exact),
        "--metrics", "index_recall@1",
    )["figures"]["index_recall@1"]  # fmt: skip
    return figure["value"], figure["low"], figure["high"]


def test_two_lists_that_are_right_do_not_say_that_all_are(tmp_path: Path) -> None:
    assert index_recall(tmp_path, 2, 2) == (1.0, pytest.approx(2 / (2 + Z2)), 1.0)


def test_one_hit_in_400_lists_has_bounds_above_0(tmp_path: Path) -> None:
    """Of Clopper and Pearson's lower bound the 5 % quantile; from above Wilson's, both rounded by
    Student's t of the clusters."""
    value, low, high = index_recall(tmp_path, 1, 400)
    assert value == 1 / 400
    assert low == pytest.approx(beta.ppf(0.05, 1, 400), rel=0.3)
    assert high == pytest.approx(float(wilson(1 / 400, 400, normal(LEVEL))[1]), rel=0.03)


def test_no_positive_of_20_users_has_an_upper_bound(tmp_path: Path) -> None:
    events = [
        {"type": "impression", "user_id": f"u{n}", "item_id": "a", "ts": 1_700_000_000_000}
        for n in range(20)
    ]
    path = tmp_path / "events.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    names = "daily_positive_rate,daily_positive_rate_gorse_v05"
    found = run("--events", str(path), "--metrics", names)["figures"]
    figure = found["daily_positive_rate"]
    assert (figure["value"], figure["low"]) == (0.0, 0.0)
    assert figure["high"] == pytest.approx(Z2 / (20 + Z2))


def test_users_and_not_their_lists_bound_a_share_without_spread(tmp_path: Path) -> None:
    """Ten users with 30 lists each, all misses: 0 of 10, and not of 300."""
    slates = [
        {"list": f"q{n}", "user": f"u{n % 10}", "item": item, "rank": rank}
        for n in range(300)
        for rank, item in ((1, "a"), (2, "b"))
    ]
    labels = [{"list": f"q{n}", "item": "b"} for n in range(300)]
    figure = run(
        written(tmp_path / "slates.csv", slates), "--labels",
        written(tmp_path / "labels.csv", labels), "--metrics", "hit_rate@1",
    )["figures"]["hit_rate@1"]  # fmt: skip
    assert (figure["low"], figure["high"]) == (0.0, pytest.approx(Z2 / (10 + Z2)))


def test_shares_of_samples_and_thresholds_stay_within_0_and_1(tmp_path: Path) -> None:
    sampled = [
        {"list": f"s{n}", "score": score, "positive": positive}
        for n in range(30)
        for score, positive in ((0.9 if n else 0.1, 1), (0.5, 0), (0.4, 0))
    ]
    ratings = [
        {"user": f"u{n}", "item": item, "rating": rating, "prediction": 5 if n else 1}
        for n in range(30)
        for item, rating in (("a", 5), ("b", 4))
    ]
    ratings[0]["rating"] = 1
    ratings.append({"user": "u9", "item": "c", "rating": 2, "prediction": 1})
    found = run(
        "--sampled", written(tmp_path / "sampled.csv", sampled),
        "--ratings", written(tmp_path / "ratings.csv", ratings), "--threshold", "3", "--metrics",
        "sampled_hit_rate@1,sampled_ndcg@3,precision_threshold@5,recall_threshold_surprise@5,"
        "f1_threshold_strict@5,precision_pairs,recall_pairs,auc_pairs,auc_pairs_strict",
    )["figures"]  # fmt: skip
    assert len(found) == 9
    for name, figure in found.items():
        assert 0 < figure["low"] < figure["value"], name
        assert figure["value"] <= figure["high"] <= 1, name


def test_wilson_is_exact_at_both_ends() -> None:
    """Rounding left 5.55e-17 there."""
    for trials in (2, 20, 33.3, 400, 1e6):
        assert float(wilson(0.0, trials, normal(LEVEL))[0]) == 0.0
        assert float(wilson(1.0, trials, normal(LEVEL))[1]) == 1.0
    low, high = wilson([0.0, 1.0], [7, 7], normal(LEVEL))
    assert (low[0], high[1]) == (0.0, 1.0)


def test_a_mean_that_may_exceed_1_is_bounded_as_one() -> None:
    row = {"mean_rank_of_positives": 0.5, "mean_rank_of_positives_stderr": 0.4, "positive_items": 9}
    found = bounds(row, "mean_rank_of_positives", 9)
    assert found is not None
    assert found[0] < 0


# --- Simulated, smaller than benchmarks/share_coverage.py


@pytest.fixture(name="simulated", scope="module")
def _simulated() -> Any:
    if not COVERAGE.exists():
        pytest.skip("the benchmarks are not here")
    spec = importlib.util.spec_from_file_location("share_coverage", COVERAGE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("kind", "mean", "units"),
    [
        ("hits", 0.002, 300),  # 47 % with symmetric bounds
        ("hits", 0.002, 88),  # 84 % with Wilson's alone: e^-0.176 of the samples have no hit
        ("hits", 0.998, 88),
        ("tenths", 0.995, 100),
        ("reciprocal ranks", 0.005, 300),
        ("hits of returning users", 0.01, 150),
        ("five lists alike", 0.01, 300),
        ("rates of users", 0.002, 300),
        ("pairs", 0.998, 150),
        ("areas", 0.99, 100),
        ("stream", 0.002, 300),
    ],
)
def test_bounds_hold_as_often_as_they_promise(
    simulated: Any, kind: str, mean: float, units: int
) -> None:
    """At least 90 %; 1,000 runs miss that by chance by three standard errors, 3 %, at most."""
    held = simulated.coverage(kind, mean, units, runs=1_000, seed=4)
    assert held >= 0.9 - 3 * math.sqrt(0.9 * 0.1 / 1_000)
