"""Figures of what lists are made of, against other tools' values and plain code."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from default_events import DIMENSIONS
from evaluating import refused, run
from msgspec import structs
from scipy.spatial import distance
from scipy.stats import entropy
from sklearn.metrics.pairwise import cosine_similarity
from test_evaluate_files import an_outcome

from streameval.files.outcome_files import table as outcome_table

Rows = list[dict[str, Any]]
ITEMS = [f"i{number}" for number in range(30)]


class World:
    """Lists of random lengths, labels, training interactions (some twice) and features."""

    def __init__(self) -> None:
        chance = random.Random(7)
        self.lists = {f"u{user}": chance.sample(ITEMS, chance.randint(1, 9)) for user in range(40)}
        self.labels = {
            (user, item) for user, items in self.lists.items() for item in chance.sample(ITEMS, 9)
        }
        weights = [1 / (number + 1) for number in range(25)]
        self.train = [
            (f"u{chance.randrange(60)}", item)
            for item in chance.choices(ITEMS[:25], weights, k=400)
        ]
        self.features = {item: set(chance.sample("abcdef", chance.randint(1, 4))) for item in ITEMS}
        self.kinds = {f"u{user}": chance.choice(["old", "new", "lost"]) for user in range(60)}
        self.scores = {
            (user, item): 5 - rank / 2 + chance.random() / 4
            for user, items in self.lists.items()
            for rank, item in enumerate(items)
        }

    def files(self, folder: Path) -> dict[str, str]:
        tables = {
            "slates": [
                {"user": user, "item": item, "rank": rank, "score": self.scores[user, item]}
                for user, items in self.lists.items()
                for rank, item in enumerate(items, 1)
            ],
            "labels": [{"user": user, "item": item} for user, item in sorted(self.labels)],
            "train": [{"user": user, "item": item} for user, item in self.train],
            "items": [{"item": item} for item in ITEMS],
            "features": [
                {"item": item, "feature": name}
                for item, names in self.features.items()
                for name in sorted(names)
            ],
            "kinds": [{"user": user, "category": kind} for user, kind in self.kinds.items()],
        }
        return {name: written(folder / f"{name}.csv", rows) for name, rows in tables.items()}


def written(path: Path, rows: Rows) -> str:
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture(name="world", scope="module")
def _world() -> World:
    return World()


@pytest.fixture(name="files")
def _files(world: World, tmp_path: Path) -> dict[str, str]:
    return world.files(tmp_path)


def figure(*arguments: str) -> float:
    found = run(*arguments)["figures"]
    (one,) = found.values()
    value: float = one["value"]
    return value


# RecTools 0.19.0 on the lists of `World`: calc(reco, [interactions,] prev_interactions, [catalog]).
RECTOOLS = {
    "average_popularity@3": 11.758333333333335,
    "average_popularity@9": 11.637152777777777,
    "average_popularity_normalized@3": 0.029395833333333333,
    "serendipity@3": 0.13777777777777778,
    "serendipity@9": 0.11759259259259261,
}


def test_popularity_and_serendipity_are_rectools(files: dict[str, str]) -> None:
    found = run(
        files["slates"], "--labels", files["labels"], "--train", files["train"],
        "--items", files["items"], "--metrics", ",".join(RECTOOLS),
    )["figures"]  # fmt: skip
    mine = {name: one["value"] for name, one in found.items()}
    assert mine == pytest.approx(RECTOOLS, abs=1e-8)
    assert {one["n"] for one in found.values()} == {40}


# Evidently 0.7.23 on the lists of `World`, k = 3: PopularityBiasMetric (arp, normalize_arp, gini,
# coverage) and Serendipity, with the features as six columns of 0 and 1.
EVIDENTLY = {
    "average_popularity_users@3": 10.427350427350428,
    "average_popularity_max@3": 0.200525969756739,
    "gini_listed@3": 0.25192519251925194,
    "training_coverage@3": 0.96,
    "serendipity_features@3": 0.41077542835194275,
}


def test_figures_that_name_evidently_have_its_values(files: dict[str, str]) -> None:
    found = run(
        files["slates"], "--labels", files["labels"], "--train", files["train"],
        "--features", files["features"], "--metrics", ",".join(EVIDENTLY),
    )["figures"]  # fmt: skip
    mine = {name: one["value"] for name, one in found.items()}
    assert mine == pytest.approx(EVIDENTLY, abs=1e-8)


# The same of the lists of at least 3 items, whose labels are only items of the list, and with
# no_feedback_users: the figures that Evidently is a source of. The code of recmetrics 0.1.5 has the
# first two: recommender_precision (of the first 3 items) and personalization.
EVIDENTLY_OF_WHOLE_LISTS = {
    "precision_over_length@3": 0.3095238095238095,
    "personalization@3": 0.9065255731922399,
    "recall@3": 0.4934523809523809,
    "f1_mean@3": 0.3804228882064315,
    "map@3": 0.3063492063492064,
    "mar@3": 0.3743849206349206,
    "mrr@3": 0.41666666666666663,
    "ndcg@3": 0.3966870549613972,
    "hit_rate@3": 0.6785714285714286,
    "diversity@3": 0.6350373370644309,
}


def test_whole_lists_have_evidentlys_values(world: World, files: dict[str, str]) -> None:
    long = {user: items for user, items in world.lists.items() if len(items) >= 3}
    slates = written(
        Path(files["slates"]).parent / "long.csv",
        [{"user": user, "item": item, "rank": rank} for user, items in long.items()
         for rank, item in enumerate(items, 1)],
    )  # fmt: skip
    labels = written(
        Path(files["labels"]).parent / "listed.csv",
        [{"user": user, "item": item} for user, item in sorted(world.labels)
         if item in long.get(user, ())],
    )  # fmt: skip
    found = run(
        slates, "--labels", labels, "--features", files["features"],
        "--metrics", ",".join(EVIDENTLY_OF_WHOLE_LISTS),
    )["figures"]  # fmt: skip
    mine = {name: one["value"] for name, one in found.items()}
    assert mine == pytest.approx(EVIDENTLY_OF_WHOLE_LISTS, abs=1e-8)


def test_coverage_in_per_cent_is_100_times_coverage(files: dict[str, str]) -> None:
    names = "catalogue_coverage@3,catalogue_coverage_percent@3"
    found = run(files["slates"], "--items", files["items"], "--metrics", names)["figures"]
    assert found["catalogue_coverage@3"]["value"] == pytest.approx(28 / 30)
    assert found["catalogue_coverage_percent@3"]["value"] == pytest.approx(2_800 / 30)


@pytest.mark.parametrize("k", [1, 4, 9])
def test_personalization_is_the_mean_over_pairs_of_lists(
    k: int, world: World, files: dict[str, str]
) -> None:
    tops = [items[:k] for items in world.lists.values()]
    matrix = [[item in top for item in ITEMS] for top in tops]
    cosines = cosine_similarity(np.array(matrix, float))
    expected = 1 - np.mean([cosines[pair] for pair in permutations(range(len(tops)), 2)])
    mine = figure(files["slates"], "--metrics", f"personalization@{k}")
    assert mine == pytest.approx(expected, abs=1e-12)


def test_gini_is_the_mean_difference_of_all_pairs_of_items(
    world: World, files: dict[str, str]
) -> None:
    """Of the catalogue: half the mean absolute difference of two counts over the mean count."""
    times = Counter(item for items in world.lists.values() for item in items[:5])
    counts = [times[item] for item in ITEMS]
    differences = [abs(one - other) for one in counts for other in counts]
    expected = np.mean(differences) / np.mean(counts) / 2
    mine = figure(files["slates"], "--metrics", "gini@5", "--items", files["items"])
    assert mine == pytest.approx(expected, abs=1e-12)


def shares(names: list[str]) -> dict[str, float]:
    counts = Counter(names)
    return {name: count / len(names) for name, count in counts.items()}


def test_biases_compare_the_mix_of_features_with_training(
    world: World, files: dict[str, str]
) -> None:
    listed = [
        name for items in world.lists.values() for item in items[:4]
        for name in world.features[item]
    ]  # fmt: skip
    trained = [name for item in {item for _, item in world.train} for name in world.features[item]]
    users = [world.kinds[user] for user in world.lists]
    of_training = [world.kinds[user] for user in {user for user, _ in world.train}]
    mine = run(
        files["slates"], "--train", files["train"], "--features", files["features"],
        "--user-features", files["kinds"], "--metrics", "item_bias@4,user_bias",
    )["figures"]  # fmt: skip
    for name, found, expected in (
        ("item_bias@4", shares(listed), shares(trained)),
        ("user_bias", shares(users), shares(of_training)),
    ):
        names = found.keys() | expected.keys()
        apart = sum(abs(found.get(one, 0) - expected.get(one, 0)) for one in names) / 2
        assert mine[name]["value"] == pytest.approx(apart, abs=1e-12)
    assert mine["user_bias"]["n"] == len(world.lists)


@pytest.mark.parametrize("kind", ["slates", "outcomes"])
def test_users_of_a_segment_are_compared_with_all_of_training(kind: str, tmp_path: Path) -> None:
    """In training half are old. Of A's users (u1 twice) two of three are old, of B's none."""
    rows = [("l1", "u1", "A"), ("l2", "u1", "A"), ("l3", "u2", "A"), ("l4", "u3", "A"),
            ("l5", "u3", "B")]  # fmt: skip
    slates = [{"list": name, "user": user, "variant": variant, "item": "a", "rank": 1}
              for name, user, variant in rows]  # fmt: skip
    kinds = {"u1": "old", "u2": "old", "u3": "new", "u4": "new"}
    if kind == "outcomes":
        lists = [
            structs.replace(an_outcome(number), request=name, user=user, labels=(variant, ""))
            for number, (name, user, variant) in enumerate(rows)
        ]
        pq.write_table(outcome_table(0, lists, DIMENSIONS), tmp_path / "slates.parquet")
    found = run(
        str(tmp_path / "slates.parquet") if kind == "outcomes"
        else written(tmp_path / "slates.csv", slates),
        "--train", written(tmp_path / "t.csv", [{"user": u, "item": "a"} for u in kinds]),
        "--user-features",
        written(tmp_path / "u.csv", [{"user": u, "category": k} for u, k in kinds.items()]),
        "--metrics", "user_bias", "--by", "variant",
    )  # fmt: skip
    apart = {part["variant"]: part["figures"]["user_bias"] for part in found["segments"]}
    assert apart["A"]["value"] == pytest.approx(2 / 3 - 1 / 2)
    assert apart["B"]["value"] == pytest.approx(1 / 2)
    assert found["figures"]["user_bias"]["value"] == apart["A"]["value"]
    assert (apart["A"]["n"], apart["B"]["n"]) == (3, 1)


def test_the_entropy_of_scores_is_scipys(world: World, files: dict[str, str]) -> None:
    expected = []
    for user, items in world.lists.items():
        scores = np.array([world.scores[user, item] for item in items[:6]])
        expected.append(entropy(np.exp(scores)))
    mine = figure(files["slates"], "--metrics", "score_entropy@6")
    assert mine == pytest.approx(np.mean(expected), abs=1e-8)


@pytest.mark.parametrize("measure", ["jaccard", "hamming", "correlation", "cosine"])
def test_similarities_are_scipys(measure: str, world: World, files: dict[str, str]) -> None:
    vectors = {item: [name in world.features[item] for name in "abcdef"] for item in ITEMS}
    apart = getattr(distance, measure)
    means = [
        np.mean([apart(*(np.array(vectors[item], float) for item in pair))
                 for pair in combinations(items[:5], 2)])
        for items in world.lists.values()
        if len(items) > 1
    ]  # fmt: skip
    mine = run(
        files["slates"], "--features", files["features"], "--metrics", "diversity@5,novelty@5",
        "--similarity", measure,
    )["figures"]  # fmt: skip
    assert mine["diversity@5"]["value"] == pytest.approx(np.mean(means), abs=1e-8)
    sizes = [len(items[:5]) for items in world.lists.values() if len(items) > 1]
    assert mine["novelty@5"]["value"] == pytest.approx(np.average(means, weights=sizes), abs=1e-8)


def test_similarities_of_ones_own_come_from_a_table(tmp_path: Path) -> None:
    """Distances ab 0.9, ac 0.5 and bc 0.2 (from both rows); d is in no pair."""
    slates = [
        {"list": name, "item": item, "rank": rank}
        for name, items in {"x": "abc", "y": "ab", "z": "ad"}.items()
        for rank, item in enumerate(items, 1)
    ]
    table = [
        {"item": "a", "other": "b", "similarity": 0.1},
        {"item": "c", "other": "a", "similarity": 0.5},
        {"item": "b", "other": "c", "similarity": 0.9},
        {"item": "c", "other": "b", "similarity": 0.7},
    ]
    found = run(
        written(tmp_path / "slates.csv", slates), "--metrics", "diversity", "--similarity", "table",
        "--features", written(tmp_path / "pairs.csv", table),
    )["figures"]["diversity"]  # fmt: skip
    assert found["value"] == pytest.approx(((0.9 + 0.5 + 0.2) / 3 + 0.9) / 2, abs=1e-9)
    assert found["n"] == 2


def test_seen_items_are_left_out_and_others_move_up(world: World, files: dict[str, str]) -> None:
    """The figures of lists that were written without what their user has."""
    seen = set(world.train)
    rest = [
        {"user": user, "item": item, "rank": rank}
        for user, items in world.lists.items()
        for rank, item in enumerate([item for item in items if (user, item) not in seen], 1)
    ]
    folder = Path(files["slates"]).parent
    names = ["--metrics", "precision@3,map,ndcg@5,bpref", "--labels", files["labels"]]
    with_option = run(files["slates"], "--exclude-seen", files["train"], *names)
    left_out = sum((user, item) in seen for user, items in world.lists.items() for item in items)
    assert with_option["notes"].pop("seen") == left_out > 20
    assert with_option == run(written(folder / "rest.csv", rest), *names)
    counts = ["--metrics", "personalization@3,average_popularity@2", "--train", files["train"]]
    assert run(files["slates"], "--exclude-seen", files["train"], *counts) == run(
        str(folder / "rest.csv"), *counts
    )


def test_seen_items_leave_gaps_and_ties_of_ranks_as_they_are(tmp_path: Path) -> None:
    """Seen: a (rank 1) and d (rank 4, twice). Left: b at 1, c at 1 moves to 2, e at 9 to 7."""
    ranks = [("a", 1), ("b", 2), ("c", 2), ("d", 4), ("d", 6), ("e", 9)]
    slates = [{"user": "u", "item": item, "rank": rank} for item, rank in ranks]
    seen = [{"user": "u", "item": "a"}, {"user": "u", "item": "d"}, {"user": "v", "item": "b"}]
    for item, rank in (("b", 1), ("c", 2), ("e", 7)):
        found = figure(
            written(tmp_path / "slates.csv", slates), "--metrics", "mrr",
            "--labels", written(tmp_path / "labels.csv", [{"user": "u", "item": item}]),
            "--exclude-seen", written(tmp_path / "seen.csv", seen),
        )  # fmt: skip
        assert found == pytest.approx(1 / rank, abs=1e-9)


def test_a_run_leaves_out_what_its_topic_has_seen(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("q Q0 a 0 3 x\nq Q0 b 0 2 x\n")
    (tmp_path / "qrels").write_text("q 0 b 1\n")
    arguments = ["--run", str(tmp_path / "run"), "--qrels", str(tmp_path / "qrels")]
    seen = written(tmp_path / "seen.csv", [{"user": "q", "item": "a"}])
    assert figure(*arguments, "--metrics", "mrr", "--exclude-seen", seen) == 1.0


def test_labels_of_seen_items_stay_or_drop_out_with_them(tmp_path: Path) -> None:
    """u1 lists a, b, c and likes a, b, z, having seen a and z; u2 lists d and e, likes and has seen
    d; u3 lists nothing, likes p and q and has seen p. Kept: (1/3 + 0 + 0) / 3. Dropped: u1 has b
    alone, u2 nothing and stays with 0, u3 only q: (1 + 0 + 0) / 3.
    """
    rows = [("l1", "u1", "a"), ("l1", "u1", "b"), ("l1", "u1", "c"), ("l2", "u2", "d"),
            ("l2", "u2", "e")]  # fmt: skip
    slates = [{"list": name, "user": user, "item": item, "rank": rank}
              for rank, (name, user, item) in enumerate(rows, 1)]  # fmt: skip
    liked = [("l1", "a"), ("l1", "b"), ("l1", "z"), ("l2", "d"), ("u3", "p"), ("u3", "q")]
    seen = [("u1", "a"), ("u1", "z"), ("u2", "d"), ("u3", "p"), ("u9", "b")]
    arguments = [
        written(tmp_path / "slates.csv", slates),
        "--labels",
        written(tmp_path / "labels.csv", [{"list": name, "item": item} for name, item in liked]),
        "--exclude-seen",
        written(tmp_path / "seen.csv", [{"user": user, "item": item} for user, item in seen]),
        *("--metrics", "recall@10"),
    ]
    kept, dropped = run(*arguments), run(*arguments, "--seen-labels", "drop")
    assert kept == run(*arguments, "--seen-labels", "keep")
    assert kept["figures"]["recall@10"]["value"] == pytest.approx(1 / 9)
    assert dropped["figures"]["recall@10"]["value"] == pytest.approx(1 / 3)
    assert kept["figures"]["recall@10"]["n"] == dropped["figures"]["recall@10"]["n"] == 3
    assert (dropped["notes"]["seen"], dropped["notes"]["seen_labels"]) == (2, 4)


def test_a_topic_whose_labels_are_all_seen_stays(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("q Q0 a 0 3 x\nq Q0 c 0 2 x\nr Q0 b 0 2 x\ns Q0 b 0 2 x\n")
    (tmp_path / "qrels").write_text("q 0 a 1\nr 0 b 1\n")
    seen = written(tmp_path / "seen.csv", [{"user": "q", "item": "a"}])
    found = run(
        "--run", str(tmp_path / "run"), "--qrels", str(tmp_path / "qrels"),
        "--exclude-seen", seen, "--seen-labels", "drop", "--metrics", "recall",
    )["figures"]["recall"]  # fmt: skip
    assert (found["value"], found["n"]) == (0.5, 2)


def test_neither_order_nor_files_change_a_bit_of_what_lists_hold(
    files: dict[str, str], tmp_path: Path
) -> None:
    names = "personalization@3,gini@4,item_bias@2,user_bias,score_entropy@5,serendipity@3,diversity"
    more = [
        "--labels", files["labels"], "--train", files["train"], "--items", files["items"],
        "--features", files["features"], "--user-features", files["kinds"],
        "--similarity", "jaccard", "--metrics", names, "--per-list",
    ]  # fmt: skip
    whole = run(files["slates"], *more)
    head, *lines = Path(files["slates"]).read_text().splitlines()
    random.Random(1).shuffle(lines)
    parts = []
    for number in range(3):
        path = tmp_path / f"part{number}.csv"
        path.write_text("\n".join([head, *lines[number::3]]) + "\n")
        parts.append(str(path))
    assert json.dumps(run(*parts, *more)) == json.dumps(whole)


def test_what_these_figures_lack_is_said_in_one_line(files: dict[str, str], tmp_path: Path) -> None:
    slates = files["slates"]
    more = ["--train", files["train"], "--items", files["items"]]
    assert "--labels" in refused(slates, "--metrics", "serendipity@3", *more)
    assert "--train" in refused(slates, "--metrics", "average_popularity@3")
    assert "cosine or jaccard" in refused(
        slates, "--metrics", "diversity", "--features", files["features"], "--similarity", "x"
    )
    few = written(tmp_path / "few.csv", [{"item": "i1"}])
    said = refused(slates, "--metrics", "gini", "--items", few)
    assert "is in a list but not in this table" in said
    assert not math.isnan(figure(slates, "--metrics", "personalization"))
