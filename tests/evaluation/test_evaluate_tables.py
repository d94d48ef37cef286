"""`streameval evaluate` of ratings, indexes, samples, events and what lists are made of."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from default_events import DIMENSIONS
from evaluating import invoke, refused, run
from msgspec.structs import replace as replace_outcome
from sklearn.metrics import (
    mean_absolute_error,
    mean_squared_error,
    precision_score,
    roc_auc_score,
    root_mean_squared_error,
)
from sklearn.metrics.pairwise import cosine_similarity

from streameval.cli import evaluate as evaluating_command
from streameval.core.metrics import METRICS, Lists, Scores
from streameval.core.metrics.inputs import Number
from streameval.core.outcome import FeedbackOutcome, Outcome
from streameval.evaluation import item_means, units
from streameval.evaluation.input_kinds import INPUT_KINDS
from streameval.evaluation.sums import BY_NAME
from streameval.files.outcome_files import table
from streameval.stats.intervals import student

Rows = list[dict[str, Any]]


def written(path: Path, rows: Rows) -> str:
    """A table in the format that the end of its name says."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def values(found: dict[str, Any]) -> dict[str, float]:
    return {name: figure["value"] for name, figure in found["figures"].items()}


# --- Ratings. User 0 rates items 0, 1 (errors -1, 3), user 1 item 0 (error 2).

RATED = [
    {"user": "u0", "item": "i0", "rating": 4, "prediction": 3},
    {"user": "u0", "item": "i1", "rating": 1, "prediction": 4},
    {"user": "u1", "item": "i0", "rating": 3, "prediction": 5},
]
ERRORS = {
    "mse": 14 / 3,
    "rmse": math.sqrt(14 / 3),
    "mae": 2.0,
    "rmse_user": (math.sqrt(5) + 2) / 2,
    "mae_user": 2.0,
    "rmse_item": (math.sqrt(5 / 2) + 3) / 2,
    "mae_item": (3 / 2 + 3) / 2,
    "nrmse": math.sqrt(14 / 3) / 4,
    "nmae": 1 / 2,
}


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
@pytest.mark.parametrize("together", [True, False])
def test_errors_by_hand_in_one_file_or_two(kind: str, tmp_path: Path, *, together: bool) -> None:
    if together:
        files = ["--ratings", written(tmp_path / f"r.{kind}", RATED)]
    else:
        keys = ("user", "item")
        halves = [
            [{name: row[name] for name in (*keys, column)} for row in RATED]
            for column in ("rating", "prediction")
        ]
        files = [
            *("--ratings", written(tmp_path / f"r.{kind}", halves[0])),
            *("--predictions", written(tmp_path / f"p.{kind}", halves[1][::-1])),
        ]
    found = run(*files, "--metrics", ",".join(ERRORS), "--scale", "1:5", "--per-list")
    assert values(found) == pytest.approx(ERRORS, abs=1e-9)
    counts = {name: figure["n"] for name, figure in found["figures"].items()}
    assert counts["rmse"] == counts["nmae"] == 3, "pairs"
    assert counts["rmse_user"] == 2, "users"
    assert counts["rmse_item"] == 2, "items"
    # Only means over users have a score of a user.
    assert found["lists"]["u1"] == pytest.approx({"rmse_user": 2.0, "mae_user": 2.0})
    assert found["notes"] == {"scale": [1.0, 5.0], "few_users": 2}


def ratings(seed: int, users: int = 60, items: int = 25) -> Rows:
    chance = random.Random(seed)
    rows = []
    for user in range(users):
        shift = chance.gauss(0, 1)
        for item in chance.sample(range(items), chance.randint(1, 12)):
            rating = chance.randint(1, 5)
            prediction = rating + shift + chance.gauss(0, 1)
            rows.append(
                {"user": f"u{user}", "item": f"i{item}", "rating": rating, "prediction": prediction}
            )
    return rows


def test_scikit_learn_gives_the_same_errors(tmp_path: Path) -> None:
    rows = ratings(1)
    names = ["mse", "rmse", "mae", "rmse_user", "mae_user", "rmse_item", "mae_item"]
    found = values(
        run("--ratings", written(tmp_path / "r.parquet", rows), "--metrics", ",".join(names))
    )

    def theirs(metric: Any, chosen: Rows) -> float:
        return float(metric(*([row[name] for row in chosen] for name in ("rating", "prediction"))))

    def mean_by(key: str, metric: Any) -> float:
        groups = [[row for row in rows if row[key] == name] for name in {row[key] for row in rows}]
        return math.fsum(theirs(metric, group) for group in groups) / len(groups)

    expected = {
        "mse": theirs(mean_squared_error, rows),
        "rmse": theirs(root_mean_squared_error, rows),
        "mae": theirs(mean_absolute_error, rows),
        "rmse_user": mean_by("user", root_mean_squared_error),
        "mae_user": mean_by("user", mean_absolute_error),
        "rmse_item": mean_by("item", root_mean_squared_error),
        "mae_item": mean_by("item", mean_absolute_error),
    }
    assert found == pytest.approx(expected, abs=1e-8)


def test_a_note_names_the_segments_of_few_users(tmp_path: Path) -> None:
    """All users together are many; where they are few, all segments are."""

    def evaluated(many: int) -> tuple[dict[str, Any], str]:
        users = {"A": many, "B": 15}
        rows = [
            {"user": f"{name}{user}", "item": "i", "rating": 3, "prediction": 2, "variant": name}
            for name, count in users.items()
            for user in range(count)
        ]
        file = written(tmp_path / "r.csv", rows)
        arguments = ("--ratings", file, "--metrics", "mae", "--by", "variant")
        return run(*arguments)["notes"], invoke(*arguments)

    notes, printed = evaluated(600)
    assert notes == {"few_users_of": {"B": 15}}, "A is of many"
    assert "Segments of few users (B 15)" in " ".join(printed.split())
    assert evaluated(100)[0] == {"few_users": 115}


@pytest.mark.parametrize(
    ("users", "noted"), [(2, 2), (184, 184), (200, 200), (299, 299), (300, None), (502, None)]
)
@pytest.mark.parametrize("name", ["{}", "u{}", "user-{:05}"])
def test_users_are_counted_whatever_their_ids(
    tmp_path: Path, users: int, noted: int | None, name: str
) -> None:
    """CRC-32 spreads sequential ids evenly: 200 of them filled the clusters of 325."""
    rows: Rows = [
        {"user": name.format(user), "item": "i", "rating": 3, "prediction": 2}
        for user in range(users)
        for _ in range(2)
    ]
    found = run("--ratings", written(tmp_path / "r.csv", rows), "--metrics", "mae")
    assert found["notes"].get("few_users") == noted


def test_scikit_learn_gives_the_same_precision_at_a_threshold(tmp_path: Path) -> None:
    """With k beyond all pairs, those predicted above t are recommended."""
    rows = ratings(2)
    file = written(tmp_path / "r.csv", rows)
    found = run(
        "--ratings", file, "--metrics", "precision_threshold@99", "--threshold", "3.5", "--per-list"
    )
    for user, scores in found["lists"].items():
        mine = [row for row in rows if row["user"] == user]
        theirs = precision_score(
            [row["rating"] >= 3.5 for row in mine],
            [row["prediction"] > 3.5 for row in mine],
            zero_division=0,
        )
        assert scores["precision_threshold@99"] == pytest.approx(theirs, abs=1e-12)
    assert found["notes"] == {"threshold": 3.5, "few_users": 60}


def test_the_interval_of_an_error_is_clustered_by_user(tmp_path: Path) -> None:
    """Users have errors 1, 1 and 3: means of squares 1 and 9, over 3 pairs 11/3.

    Without a it is 9 and without b 1: se² = 1/2 · ((9 - 11/3)² + (1 - 11/3)²).
    """
    rows = [
        {"user": "a", "item": "i", "rating": 1, "prediction": 2},
        {"user": "a", "item": "j", "rating": 2, "prediction": 1},
        {"user": "b", "item": "i", "rating": 1, "prediction": 4},
    ]
    found = run("--ratings", written(tmp_path / "r.csv", rows), "--metrics", "mse,rmse")["figures"]
    reach = student(0.95, 1) * math.sqrt(((9 - 11 / 3) ** 2 + (1 - 11 / 3) ** 2) / 2)
    assert found["mse"]["high"] == pytest.approx(11 / 3 + reach, abs=1e-8)
    assert found["rmse"]["high"] == pytest.approx(math.sqrt(11 / 3 + reach), abs=1e-8)
    assert found["rmse"]["low"] == 0.0, "a mean of squares is not below 0"


def test_the_interval_of_a_mean_over_items_is_that_of_drawing_users_again(tmp_path: Path) -> None:
    """Beside one bootstrap of users by hand, whose spread is within its own error of 200 draws."""
    rows = ratings(3, users=200)
    found = run("--ratings", written(tmp_path / "r.parquet", rows), "--metrics", "mae_item")
    figure = found["figures"]["mae_item"]
    users = sorted({row["user"] for row in rows})
    chance = np.random.default_rng(1)
    means = []
    for _ in range(400):
        weight = dict(
            zip(users, chance.multinomial(len(users), [1 / len(users)] * len(users)), strict=True)
        )
        sums: dict[str, list[float]] = {}
        for row in rows:
            both = sums.setdefault(row["item"], [0.0, 0.0])
            both[0] += weight[row["user"]] * abs(row["prediction"] - row["rating"])
            both[1] += weight[row["user"]]
        means.append(np.mean([total / count for total, count in sums.values() if count]))
    theirs = 2 * 1.97 * np.std(means)
    assert figure["high"] - figure["low"] == pytest.approx(theirs, rel=0.25)
    assert figure["high"] + figure["low"] == pytest.approx(2 * figure["value"])


def test_neither_the_order_of_ratings_nor_their_files_change_a_bit(tmp_path: Path) -> None:
    rows = ratings(4)
    names = ["--metrics", ",".join(ERRORS), "--scale", "1:5"]
    whole = run("--ratings", written(tmp_path / "r.parquet", rows), *names)
    random.Random(1).shuffle(rows)
    parts = [written(tmp_path / f"{n}.parquet", rows[n::2]) for n in range(2)]
    assert run("--ratings", parts[0], "--ratings", parts[1], *names) == whole


def test_squares_on_a_wide_scale_are_summed_without_overflow(tmp_path: Path) -> None:
    """Twenty users, each with an error of 30,000: 1.8e10 in all, beyond 9.2e9 billionths."""
    rows = [{"user": f"u{n}", "item": "i", "rating": 0, "prediction": 3e4} for n in range(20)]
    found = run("--ratings", written(tmp_path / "r.parquet", rows), "--metrics", "mse")
    assert found["figures"]["mse"] == {"value": 9e8, "low": 9e8, "high": 9e8, "n": 20}


def test_users_and_items_are_not_cut_where_batches_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--ratings", written(tmp_path / "r.parquet", ratings(6))]
    arguments += ["--metrics", ",".join(ERRORS), "--scale", "1:5"]
    whole = run(*arguments)
    monkeypatch.setattr(units, "ROWS", 7)
    monkeypatch.setattr(item_means, "_ITEMS", 3)
    assert values(run(*arguments)) == values(whole)


def test_segments_of_ratings_have_their_own_figures(tmp_path: Path) -> None:
    rows = [row | {"variant": "A" if row["user"] == "u0" else "B"} for row in RATED]
    file = written(tmp_path / "r.csv", rows)
    found = run("--ratings", file, "--metrics", "mae,mae_item,mae_user", "--by", "variant")
    assert {part["variant"]: values(part) for part in found["segments"]} == {
        "A": pytest.approx({"mae": 2.0, "mae_item": 2.0, "mae_user": 2.0}),
        "B": pytest.approx({"mae": 2.0, "mae_item": 2.0, "mae_user": 2.0}),
    }
    # With segments an item counts once in each.
    assert found["figures"]["mae_item"]["n"] == 3


def test_models_in_one_table_of_predictions_are_told_apart(tmp_path: Path) -> None:
    predictions = [
        {"user": row["user"], "item": row["item"], "prediction": row["rating"] + error, "model": m}
        for row in RATED
        for m, error in (("knn", 1), ("svd", 2))
    ]
    found = run(
        *("--ratings", written(tmp_path / "r.csv", [{**row, "prediction": 0} for row in RATED])),
        *("--predictions", written(tmp_path / "p.csv", predictions)),
        *("--metrics", "mae", "--by", "model"),
    )
    assert [values(part) for part in found["segments"]] == [{"mae": 1.0}, {"mae": 2.0}]


def test_a_pair_rated_twice_counts_with_its_latest_rating(tmp_path: Path) -> None:
    rows = [
        {"user": "u", "item": "i", "rating": 1, "prediction": 1, "timestamp": 20},
        {"user": "u", "item": "i", "rating": 5, "prediction": 1, "timestamp": 10},
    ]
    found = run("--ratings", written(tmp_path / "r.csv", rows), "--metrics", "mae")
    assert found["figures"]["mae"] == {"value": 0.0, "low": None, "high": None, "n": 1}
    assert found["notes"] == {"ratings_replaced": 1}


def test_ratings_without_a_prediction_are_left_out_and_counted(tmp_path: Path) -> None:
    predictions = [{"user": "u0", "item": "i0", "prediction": 4.5}]
    rated = [{name: row[name] for name in ("user", "item", "rating")} for row in RATED]
    files = [
        *("--ratings", written(tmp_path / "r.csv", rated)),
        *("--predictions", written(tmp_path / "p.csv", predictions)),
    ]
    found = run(*files, "--metrics", "mae")
    assert found["figures"]["mae"]["value"] == 0.5
    assert found["notes"] == {"ratings_without_prediction": 2}
    assert "without a prediction: 2 ratings" in invoke(*files)


def test_the_terminal_shows_what_the_json_has(tmp_path: Path) -> None:
    file = written(tmp_path / "r.csv", RATED)
    lines = [line.split() for line in invoke("--ratings", file).splitlines() if line.strip()]
    assert lines[0] == ["figure", "value", "n"]
    assert lines[2:4] == [["rmse", "2.1602", "3"], ["mae", "2.0000", "3"]]
    assert lines[4][:4] == ["2", "users:", "with", "fewer"]


# --- What lists are made of

SLATES = [
    *({"list": "l1", "item": item, "rank": rank} for rank, item in enumerate("abc", 1)),
    *({"list": "l2", "item": item, "rank": rank} for rank, item in enumerate("ba", 1)),
]
FEATURES = [
    {"item": item, "category": category} for item, categories in
    {"a": "x", "b": "xy", "c": "y"}.items() for category in categories
]  # fmt: skip


def slates_as(kind: str, folder: Path) -> str:
    if kind != "outcomes":
        return written(folder / "s.csv", SLATES)
    rows = []
    for number, name in enumerate(("l1", "l2", None)):
        items = [row["item"] for row in SLATES if row["list"] == name] or ["z"]
        rows.append(slate(number, name, items))
    pq.write_table(table(0, rows, DIMENSIONS), folder / "o.parquet")
    return str(folder / "o.parquet")


def slate(
    number: int,
    request: str | None,
    items: list[str],
    *,
    gains: list[float] | None = None,
    scores: list[float | None] | None = None,
    user: str = "u",
    time: int = 1_700_000_000_000,
) -> Outcome:
    size = len(items)
    return Outcome(
        offset=number,
        user=user,
        request=request,
        labels=("", ""),
        time=time,
        items=items,
        positions=[None] * size,
        ranks=list(range(1, size + 1)),
        shown=[time] * size,
        scores=scores or [None] * size,
        propensities=[None] * size,
        gains=gains or [0.0] * size,
        feedback=[],
    )


@pytest.mark.parametrize("kind", ["outcomes", "slates"])
def test_what_lists_are_made_of_by_hand(kind: str, tmp_path: Path) -> None:
    """Distances ab, bc: 1 - 1/√2; ac: 1. Of 4 items 3 are shown, 2 of them in the top 1.

    a is had by 2 of 4 users (1 bit), b and c by one (2 bits).
    """
    names = ["catalogue_coverage", "catalogue_coverage@1", "diversity", "novelty", "diversity@2"]
    names.append("novelty_self_information")
    train = [{"user": user, "item": item} for user, item in ("1a", "2a", "3b", "4c", "4c")]
    found = run(
        slates_as(kind, tmp_path),
        *("--features", written(tmp_path / "f.csv", FEATURES)),
        *("--train", written(tmp_path / "t.csv", train)),
        *("--items", written(tmp_path / "c.csv", [{"item": item} for item in "abcd"])),
        *("--metrics", ",".join(names), "--per-list"),
    )
    half = 1 - 1 / math.sqrt(2)
    first = (2 * half + 1) / 3
    assert values(found) == pytest.approx(
        {
            "catalogue_coverage": 3 / 4,
            "catalogue_coverage@1": 2 / 4,
            "diversity": (first + half) / 2,
            "novelty": (3 * first + 2 * half) / 5,
            "diversity@2": half,
            "novelty_self_information": ((1 + 2 + 2) / 3 + (2 + 1) / 2) / 2,
        },
        abs=1e-9,
    )
    assert found["figures"]["novelty"]["n"] == 5, "items"
    assert found["lists"]["l1"]["diversity"] == pytest.approx(first)
    assert found["notes"]["catalogue"] == 4


def test_scikit_learns_cosines_give_the_same_diversity(tmp_path: Path) -> None:
    chance = random.Random(7)
    items = [f"i{n}" for n in range(30)]
    matrix = np.array([[chance.choice([0, 0, 1, 2.5]) for _ in range(6)] for _ in items])
    matrix[:, 0] += 0.5  # no item is without features
    features = [
        {"item": item, "feature": f"f{n}", "value": value}
        for item, row in zip(items, matrix.tolist(), strict=True)
        for n, value in enumerate(row)
    ]
    distances = 1 - cosine_similarity(matrix)
    lists = {f"l{n}": chance.sample(range(30), chance.randint(2, 12)) for n in range(40)}
    rows = [
        {"list": name, "item": items[item], "rank": rank}
        for name, shown in lists.items()
        for rank, item in enumerate(shown, 1)
    ]
    found = run(
        written(tmp_path / "s.parquet", rows),
        *("--features", written(tmp_path / "f.parquet", features)),
        *("--metrics", "diversity@5,novelty@5", "--per-list"),
    )
    sums = []
    for name, shown in lists.items():
        top = distances[np.ix_(shown[:5], shown[:5])]
        size = len(top)
        sums.append((top.sum() / (size - 1), size))
        mine = found["lists"][name]["diversity@5"]
        assert mine == pytest.approx(top.sum() / (size * (size - 1)), abs=1e-12)
    total, shown_items = np.sum(sums, axis=0)
    assert found["figures"]["novelty@5"]["value"] == pytest.approx(total / shown_items, abs=1e-8)


def test_an_item_outside_the_catalogue_is_named(tmp_path: Path) -> None:
    catalogue = written(tmp_path / "c.csv", [{"item": "a"}, {"item": "b"}])
    said = refused(
        slates_as("slates", tmp_path), "--metrics", "catalogue_coverage", "--items", catalogue
    )
    assert "c is in a list but not in this table" in said


def test_neighbours_reach_what_the_user_has_not_rated(tmp_path: Path) -> None:
    """u has a of abcd; its neighbours v, w have a, b and c: 2/3. v (no neighbour) has 0 of 2."""
    rated = [{"user": user, "item": item} for user, item in ("ua", "va", "vb", "wc", "xd")]
    pairs = [{"user": "u", "neighbour": name} for name in "vw"]
    found = run(
        *("--train", written(tmp_path / "t.csv", rated)),
        *("--neighbours", written(tmp_path / "n.csv", pairs), "--per-list"),
    )
    assert {name: row["neighbour_coverage"] for name, row in found["lists"].items()} == {
        "u": pytest.approx(2 / 3), "v": 0.0, "w": 0.0, "x": 0.0,
    }  # fmt: skip
    assert found["figures"]["neighbour_coverage"]["n"] == 4


def test_coverage_by_neighbours_is_that_of_sets(tmp_path: Path) -> None:
    chance = random.Random(8)
    users = [f"u{n}" for n in range(25)]
    rated = {user: set(chance.sample(range(20), chance.randint(1, 9))) for user in users}
    near = {user: chance.sample(users, 3) for user in users[:20]}
    catalogue = set(range(2, 24))
    found = run(
        "--ratings",
        written(tmp_path / "r.csv", [{"user": u, "item": i} for u in users for i in rated[u]]),
        "--neighbours",
        written(tmp_path / "n.csv", [{"user": u, "neighbor": v} for u in near for v in near[u]]),
        "--items",
        written(tmp_path / "c.csv", [{"item": item} for item in catalogue]),
        "--per-list",
    )
    for user in users:
        unrated = catalogue - rated[user]
        reached = set().union(*(rated[name] for name in near.get(user, ())))
        mine = found["lists"][user]["neighbour_coverage"]
        assert mine == pytest.approx(len(unrated & reached) / len(unrated), abs=1e-12)


# --- Indexes, samples, reads


def test_index_recall_by_hand(tmp_path: Path) -> None:
    """q1: of bcd, bc are found; q2 has no answer."""
    approximate = [{"query": "q1", "item": item, "score": -n} for n, item in enumerate("abcx")]
    exact = [
        *({"query": "q1", "item": item, "rank": n} for n, item in enumerate("bcde", 1)),
        {"query": "q2", "item": "a", "rank": 1},
    ]
    found = run(
        written(tmp_path / "a.csv", approximate),
        *("--exact", written(tmp_path / "e.csv", exact)),
        *("--metrics", "index_recall@3,index_recall@1", "--per-list"),
    )
    assert found["lists"] == {
        "q1": {"index_recall@3": pytest.approx(2 / 3), "index_recall@1": 0.0},
        "q2": {"index_recall@3": 0.0, "index_recall@1": 0.0},
    }
    assert found["notes"]["ties"] == {"lists": 0, "of": 1, "rule": "input"}
    assert values(found)["index_recall@3"] == pytest.approx(1 / 3)


SAMPLES = [
    {"list": name, "item": f"i{n}", "score": score, "positive": int(n == 0)}
    for name, scores in {"l1": [0.5, 0.9, 0.5, 0.1], "l2": [0.7, 0.6, 0.2]}.items()
    for n, score in enumerate(scores)
]


def test_the_positive_of_a_sample_ranks_below_its_equals(tmp_path: Path) -> None:
    """l1: 0.9 and the equal 0.5 stand before it, rank 3; l2: rank 1."""
    file = written(tmp_path / "s.jsonl", SAMPLES)
    found = run("--sampled", file, "--metrics", "sampled_hit_rate@2,sampled_ndcg@3", "--per-list")
    assert found["lists"] == {
        "l1": {"sampled_hit_rate@2": 0.0, "sampled_ndcg@3": 0.5},
        "l2": {"sampled_hit_rate@2": 1.0, "sampled_ndcg@3": 1.0},
    }
    assert found["notes"] == {"negatives": [2, 3], "few_users": 2}
    assert set(run("--sampled", file)["figures"]) == {"sampled_hit_rate@10", "sampled_ndcg@10"}


def test_a_sample_has_one_positive(tmp_path: Path) -> None:
    two = [row | {"positive": 1} for row in SAMPLES]
    assert "l1: 4 positives" in refused("--sampled", written(tmp_path / "s.csv", two))


DAY = 86_400_000


def event(day: int, user: str, item: str, kind: str = "", **more: Any) -> dict[str, Any]:
    ts = 1_700_006_400_000 + day * DAY + more.pop("at", 0)
    if not kind:
        return {"type": "impression", "ts": ts, "user_id": user, "item_id": item} | more
    return {"type": "feedback", "ts": ts, "user_id": user, "item_id": item, "feedback": kind} | more


TOY = [event(0, user, item) for user in ("u1", "u2", "u4") for item in "ab"]
TOY += [event(0, "u1", "a", "like", at=5), event(0, "u3", "c", "like")]
RATES = ["--metrics", "daily_positive_rate,daily_positive_rate_gorse_v05"]


def test_gorses_toy_case_of_a_log_has_both_of_its_answers(tmp_path: Path) -> None:
    found = run("--events", written(tmp_path / "e.jsonl", TOY), *RATES)
    assert values(found) == pytest.approx(
        {"daily_positive_rate": 1 / 6, "daily_positive_rate_gorse_v05": 1 / 2}, abs=1e-9
    )
    assert found["figures"]["daily_positive_rate"]["n"] == 3, "u3 read nothing"


def test_days_are_told_apart_and_what_was_taken_back_does_not_count(tmp_path: Path) -> None:
    """Day 0: 1/6. Day 1: u1 reads a twice and b, likes a and takes it back: 0 of 2.

    Its like of b comes on day 2, which has no read. Kinds that are no positive say nothing.
    """
    log = [
        *TOY,
        *(event(1, "u1", item) for item in "aab"),
        event(1, "u1", "a", "like", at=1),
        event(1, "u1", "a", "like", at=2, retract=True),
        event(1, "u1", "b", "dwell"),
        event(2, "u1", "b", "like"),
    ]
    file = written(tmp_path / "e.jsonl", log)
    found = run("--events", file, "--by", "day", "--per-list", *RATES)
    days = {part["day"]: values(part)["daily_positive_rate"] for part in found["segments"]}
    assert days == {"2023-11-15": pytest.approx(1 / 6, abs=1e-9), "2023-11-16": 0.0}
    assert found["lists"]["u1 2023-11-16"] == {
        "daily_positive_rate": 0.0, "daily_positive_rate_gorse_v05": None,
    }  # fmt: skip


def test_kinds_of_feedback_have_their_rates_in_one_run(tmp_path: Path) -> None:
    """Each as a run of its own that only knows this kind; together a read counts once."""
    log = [*TOY, event(0, "u1", "a", "buy"), event(0, "u2", "b", "buy"), event(1, "u1", "a"),
           event(1, "u1", "a", "buy")]  # fmt: skip
    file = written(tmp_path / "e.jsonl", log)
    (tmp_path / "both.yaml").write_text("positives: [like, buy]\n")
    both = ["--events", file, "--config", str(tmp_path / "both.yaml"), *RATES]
    found = run(*both, "--by", "feedback,day", "--per-list")
    assert found["figures"] == run(*both)["figures"]
    assert found["figures"]["daily_positive_rate"]["value"] == pytest.approx(
        (1 / 2 + 1 / 2 + 1) / 4
    )
    for kind in ("like", "buy"):
        (tmp_path / "one.yaml").write_text(f"positives: [{kind}]\n")
        alone = run("--events", file, "--config", str(tmp_path / "one.yaml"), *RATES, "--by", "day")
        mine = [part for part in found["segments"] if part["feedback"] == kind]
        mine = [{name: part[name] for name in ("day", "figures")} for part in mine]
        assert mine == alone["segments"]


def test_kinds_of_feedback_are_told_apart_in_outcome_files(tmp_path: Path) -> None:
    """Of two items a has a click, a like that was taken back, and a dwell that is too short.

    Of the next slate b has a like after one that was taken back, at the same time as another.
    """
    first = [(0, "click", 1.0, 5, False), (0, "like", 1.0, 7, False), (0, "like", 1.0, 9, True),
             (0, "dwell", 9.0, 9, False), (1, "other", 1.0, 9, False)]  # fmt: skip
    second = [(0, "like", 1.0, 4, True), (0, "like", 1.0, 6, False), (1, "like", 1.0, 6, False),
              (1, "like", 1.0, 6, True), (1, "dwell", 10.0, 8, False)]  # fmt: skip
    rows = [
        replace_outcome(
            slate(number, f"r{number}", items, gains=gains),
            feedback=[FeedbackOutcome(*entry) for entry in feedback],
        )
        for number, (items, gains, feedback) in enumerate(
            [(["a", "b"], [1.0, 0.0], first), (["c", "d"], [1.0, 1.0], second)]
        )
    ]
    path = tmp_path / "o.parquet"
    pq.write_table(table(0, rows, DIMENSIONS), path)
    (tmp_path / "c.yaml").write_text('positives: [click, like, "dwell>=10"]\n')
    found = run(
        str(path), "--metrics", "daily_positive_rate", "--by", "feedback",
        "--config", str(tmp_path / "c.yaml"),
    )  # fmt: skip
    assert values(found) == {"daily_positive_rate": 3 / 4}, "one user, and four items"
    rates = {part["feedback"]: values(part)["daily_positive_rate"] for part in found["segments"]}
    assert rates == {"click": 1 / 4, "like": 1 / 4, "dwell": 1 / 4}


def test_a_whole_slate_of_a_log_is_a_read_of_each_of_its_items(tmp_path: Path) -> None:
    """Ids and objects, as producers send them: the toy case as lists."""
    ts = TOY[0]["ts"]
    shown = {"u1": ["a", "b"], "u2": ["a", {"item_id": "b", "score": 0.5}],
             "u4": [{"item_id": "a", "position": 2}, {"item_id": "b"}]}  # fmt: skip
    log = [
        {"type": "slate", "ts": ts, "user_id": user, "request_id": "r", "items": items}
        for user, items in shown.items()
    ]
    log += [each for each in TOY if each["type"] == "feedback"]
    found = run("--events", written(tmp_path / "e.jsonl", log), *RATES)
    assert values(found) == pytest.approx(
        {"daily_positive_rate": 1 / 6, "daily_positive_rate_gorse_v05": 1 / 2}, abs=1e-9
    )


def test_what_is_positive_is_the_configurations(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text('positives: ["dwell>=10"]\n')
    log = [event(0, "u", "a"), event(0, "u", "b"), event(0, "u", "a", "dwell", value=10.0),
           event(0, "u", "b", "dwell", value=9.0), event(0, "u", "b", "like")]  # fmt: skip
    file = written(tmp_path / "e.jsonl", log)
    found = run("--events", file, "--config", str(tmp_path / "c.yaml"))
    assert values(found) == {"daily_positive_rate": 0.5}


def test_lines_that_are_no_event_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "e.jsonl"
    file.write_text(json.dumps(event(0, "u", "a")) + "\n{}\n")
    assert run("--events", str(file))["notes"] == {"rejected": 1}


def test_outcome_files_have_a_daily_rate_of_distinct_items(tmp_path: Path) -> None:
    """u saw a (twice) and b, and a has a gain once: 1/2; v saw a the day after: 0."""
    start = 1_700_006_400_000
    rows = [
        slate(0, "r0", ["a", "b"], gains=[0.0, 0.0], time=start),
        slate(1, None, ["a"], gains=[1.0], time=start + 5),
        slate(2, "r2", ["a"], user="v", time=start + DAY),
    ]
    pq.write_table(table(0, rows, DIMENSIONS), tmp_path / "o.parquet")
    found = run(str(tmp_path / "o.parquet"), "--metrics", "daily_positive_rate", "--by", "day")
    assert [values(part)["daily_positive_rate"] for part in found["segments"]] == [0.5, 0.0]
    assert values(found) == {"daily_positive_rate": 0.25}


# --- Scores and ties of ranked lists


def test_auc_of_outcome_files_goes_by_the_scores_that_were_logged(tmp_path: Path) -> None:
    """By place the relevant items stand first; by score they do not. One slate lacks a score."""
    scores = [0.2, 0.5, 0.5, 0.9]
    gains = [1.0, 1.0, 0.0, 0.0]
    rows = [
        slate(0, "all", list("abcd"), gains=gains, scores=[*scores]),
        slate(1, "some", list("abcd"), gains=gains, scores=[0.2, None, 0.5, 0.9]),
        slate(2, "none", list("abcd"), gains=gains),
        slate(3, "empty", ["a"], scores=[0.3]),
    ]
    pq.write_table(table(0, rows, DIMENSIONS), tmp_path / "o.parquet")
    found = run(str(tmp_path / "o.parquet"), "--metrics", "auc,mrr", "--per-list")
    theirs = roc_auc_score([1, 1, 0, 0], scores)
    assert found["lists"]["all"]["auc"] == pytest.approx(theirs)
    assert [found["lists"][name]["auc"] for name in ("some", "none", "empty")] == [None] * 3
    assert found["figures"]["auc"]["n"] == 1
    assert found["lists"]["all"]["mrr"] == 1.0, "ranks stay those that were shown"


def test_impressions_without_a_request_have_no_auc(tmp_path: Path) -> None:
    rows = [slate(0, None, ["a"], gains=[1.0], scores=[0.5])]
    pq.write_table(table(0, rows, DIMENSIONS), tmp_path / "o.parquet")
    found = run(str(tmp_path / "o.parquet"), "--metrics", "auc")
    assert found["figures"]["auc"] == {"value": None, "low": None, "high": None, "n": 0}


def test_auc_of_many_outcomes_equals_scikit_learns(tmp_path: Path) -> None:
    chance = random.Random(5)
    rows = []
    for number in range(300):
        size = chance.randint(2, 12)
        gains = [1.0, 0.0, *(float(chance.random() < 0.4) for _ in range(size - 2))]
        scores: list[float | None] = [chance.randint(0, 5) / 4 for _ in range(size)]
        items = [f"i{n}" for n in range(size)]
        rows.append(slate(number, f"r{number}", items, gains=gains, scores=scores))
    pq.write_table(table(0, rows, DIMENSIONS), tmp_path / "o.parquet", row_group_size=77)
    lists = run(str(tmp_path / "o.parquet"), "--metrics", "auc", "--per-list")["lists"]
    for row in rows:
        theirs = roc_auc_score([gain > 0 for gain in row.gains], row.scores)
        assert lists[row.request]["auc"] == pytest.approx(theirs, abs=1e-12)


def test_scores_beside_ranks_are_for_auc_only(tmp_path: Path) -> None:
    rows = [
        {"list": "l", "item": "a", "rank": 1, "score": 0.1},
        {"list": "l", "item": "b", "rank": 2, "score": 0.9},
    ]
    found = run(
        written(tmp_path / "s.csv", rows),
        *("--labels", written(tmp_path / "l.csv", [{"list": "l", "item": "b"}])),
        *("--metrics", "auc,mrr"),
    )
    assert values(found) == {"auc": 1.0, "mrr": 0.5}
    assert found["notes"] == {"gain_column": None}, "ranks decided, so nothing tied"


@pytest.mark.parametrize("figure", ["diversity", "catalogue_coverage", "index_recall@2"])
def test_equal_scores_are_counted_whatever_lists_are_looked_at_for(
    figure: str, tmp_path: Path
) -> None:
    rows = [{"list": "l", "item": item, "score": 1.0} for item in "ab"]
    file = written(tmp_path / "s.csv", rows)
    needs = {
        "diversity": ["--features", written(tmp_path / "f.csv", FEATURES)],
        "catalogue_coverage": ["--items", file],
        "index_recall@2": ["--exact", file],
    }
    found = run(file, "--metrics", figure, *needs[figure])
    assert found["notes"]["ties"] == {"lists": 1, "of": 1, "rule": "input"}


@pytest.mark.parametrize(("ties", "count"), [("input", 1), ("trec", 2)])
def test_lists_with_equal_scores_are_counted(ties: str, count: int, tmp_path: Path) -> None:
    """l1 ties; l2 does in single precision only; l3 does not."""
    rows = [
        {"list": name, "item": f"i{n}", "score": score}
        for name, scores in {
            "l1": [2.0, 1.0, 1.0],
            "l2": [1.0, 1.0 + 1e-9],
            "l3": [2.0, 1.0],
        }.items()
        for n, score in enumerate(scores)
    ]
    files = [
        written(tmp_path / "s.parquet", rows),
        *("--labels", written(tmp_path / "l.csv", [{"list": "l3", "item": "i0"}])),
        *("--ties", ties),
    ]
    assert run(*files)["notes"]["ties"] == {"lists": count, "of": 3, "rule": ties}
    assert f"{count} of 3 lists that are in order of score have equal scores" in invoke(*files)


def test_the_parameters_of_half_life_are_options(tmp_path: Path) -> None:
    """Half-life 2, neutral 1, gains 5, 1, 3 at ranks 1 to 3: 4/1 + 0/2 + 2/4 = 4.5."""
    labels = [
        {"list": "l", "item": item, "gain": gain}
        for item, gain in zip("abc", (5, 1, 3), strict=True)
    ]
    files = [
        written(tmp_path / "s.csv", [{**row, "list": "l"} for row in SLATES[:3]]),
        *("--labels", written(tmp_path / "l.csv", labels), "--metrics", "half_life"),
    ]
    assert values(run(*files, "--half-life", "2", "--neutral", "1")) == {"half_life": 4.5}
    assert "--half-life 1.0: give a number above 1" in refused(*files, "--half-life", "1")


# --- The catalogue, and what is refused


def test_the_catalogue_has_every_name_and_says_what_each_takes() -> None:
    rows = {row["name"]: row for row in run("--list")["catalogue"]}
    ranked = (
        "precision recall recall_capped f1_user f1_mean map map_capped map_over_k map_blog mrr"
        " hit_rate r_precision ndcg ndcg_exp ndcg_binary ndcg_binary_full dcg dcg_exp dcg_binary"
        " auc half_life catalogue_coverage novelty novelty_self_information diversity"
    )
    rated = (
        "mse rmse mae rmse_user mae_user rmse_item mae_item nrmse nmae precision_threshold"
        " recall_threshold f1_threshold"
    )
    others = "index_recall sampled_hit_rate sampled_ndcg daily_positive_rate neighbour_coverage"
    assert {*ranked.split(), *rated.split(), *others.split()} <= set(rows)
    assert {entry.input_kind for entry in METRICS} == set(INPUT_KINDS)
    assert rows["rmse"]["input"].startswith("--ratings")
    assert "; --features, features of items" in rows["diversity"]["input"]
    assert "precision_threshold@k" in invoke("--list")


def test_a_metrics_own_parameter_needs_nothing_but_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row of a new metric is enough for its option, its bounds, its note and its value."""
    share = Number(name="top_share", meaning="the share of k", above=0, note="Share {:g}.")

    def score(lists: Lists, k: int, top_share: float) -> Scores:
        return lists.hits(round(k * top_share)).astype(float)

    row = replace(BY_NAME["hit_rate"], name="top_hits", parameters=(share,), score=score)
    monkeypatch.setattr("streameval.evaluation.input_kinds.METRICS", (*METRICS, row))
    monkeypatch.setitem(BY_NAME, "top_hits", row)
    evaluating_command._command.cache_clear()
    try:
        slates = slates_as("slates", tmp_path)
        labels = written(tmp_path / "l.csv", [{"list": "l1", "item": "b"}])
        asked = (slates, "--labels", labels, "--metrics", "top_hits@2")
        assert "The share of k: above 0." in invoke("--help")
        found = run(*asked, "--top-share", "0.5")
        assert found["notes"]["top_share"] == 0.5
        assert found["figures"].keys() == {"top_hits@2"}
        assert "--top-share -1.0: give a number above 0" in refused(*asked, "--top-share", "-1")
        assert refused(*asked) == "top_hits@2: needs --top-share, the share of k (above 0)"
    finally:
        evaluating_command._command.cache_clear()


def test_a_figure_of_lists_and_one_of_ratings_stand_side_by_side(tmp_path: Path) -> None:
    found = run(
        slates_as("slates", tmp_path),
        *("--labels", written(tmp_path / "l.csv", [{"list": "l1", "item": "b"}])),
        *("--features", written(tmp_path / "f.csv", FEATURES)),
        *("--ratings", written(tmp_path / "r.csv", RATED)),
        *("--metrics", "rmse,mrr,diversity@2", "--per-list"),
    )
    assert list(found["figures"]) == ["rmse", "mrr", "diversity@2"]
    assert found["lists"]["l1"].keys() == {"mrr", "diversity@2"}


def test_what_a_figure_lacks_is_said_in_one_line(tmp_path: Path) -> None:
    slates = slates_as("slates", tmp_path)
    rated = written(tmp_path / "r.csv", RATED)
    bare = [{name: row[name] for name in ("user", "item", "rating")} for row in RATED]
    twice = written(tmp_path / "p.csv", [RATED[0], RATED[0]])
    broken = written(tmp_path / "b.csv", [RATED[0] | {"rating": "nan"}])
    cases = {
        "rmse: needs --ratings": [slates, "--metrics", "rmse"],
        "no column prediction": ["--ratings", written(tmp_path / "n.csv", bare)],
        "predicted twice": ["--ratings", rated, "--predictions", twice],
        "u0, i0: each row needs a rating": ["--ratings", broken],
        "nrmse: needs --scale": ["--ratings", rated, "--metrics", "nrmse"],
        "lower number first": ["--ratings", rated, "--scale", "5:1"],
        "such as 1:5": ["--ratings", rated, "--scale", "5"],
        "f1_threshold@5: needs --threshold": ["--ratings", rated, "--metrics", "f1_threshold@5"],
        "recall_threshold: needs a cutoff": ["--ratings", rated, "--metrics", "recall_threshold"],
        "rmse has no cutoff": ["--ratings", rated, "--metrics", "rmse@5"],
        "needs a level of recall": [slates, "--metrics", "interpolated_precision@0.35"],
        "a cutoff is a whole number": [slates, "--metrics", "ndcg@0.5"],
        "diversity: needs --features": [slates, "--metrics", "diversity"],
        "--train, who has which item": [slates, "--metrics", "novelty_self_information"],
        "needs --items": [slates, "--metrics", "catalogue_coverage@5"],
        "index_recall@5: needs an index's results": [slates, "--metrics", "index_recall@5"],
        "sampled_ndcg@5: needs --sampled": [slates, "--metrics", "sampled_ndcg@5"],
        "daily_positive_rate: needs --events": ["--metrics", "daily_positive_rate"],
        "s.csv: not an outcome file": [slates, "--metrics", "daily_positive_rate"],
        "neighbour_coverage: needs --neighbours": ["--metrics", "neighbour_coverage"],
        "--threshold: no figure": ["--ratings", rated, "--metrics", "mae", "--threshold", "3"],
        "neighbour_coverage is one figure of all users": [
            *("--neighbours", rated, "--train", rated, "--by", "item", "--metrics"),
            "neighbour_coverage",
        ],
        "s3://b/r.csv: only outcome files": ["--ratings", "s3://key:word@b/r.csv"],
        "--by shop": ["--events", rated, "--by", "shop"],
        "no column shop": ["--ratings", rated, "--by", "shop"],
    }  # fmt: skip
    for said, arguments in cases.items():
        assert said in refused(*arguments), said
