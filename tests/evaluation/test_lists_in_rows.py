"""Tables with a list in each row have the figures of the same rows written one by one."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from evaluating import refused

import streameval as api

METRICS = "ndcg@5,map,mrr,precision@3,recall@3,auc"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are of files here."""
    monkeypatch.chdir(tmp_path)


def lists_of(seed: int) -> tuple[dict[str, dict[str, float]], dict[str, list[str]]]:
    """Scores of each user's items, best first, and which of some items are relevant."""
    rng = random.Random(seed)
    items = [str(number) for number in range(30)]
    scores = {
        f"u{user}": dict(
            zip(
                rng.sample(items, rng.randint(1, 12)),
                sorted((rng.random() for _ in range(12)), reverse=True),
                strict=False,
            )
        )
        for user in range(rng.randint(2, 20))
    }
    return scores, {user: rng.sample(items, rng.randint(1, 8)) for user in scores}


def jsonl(name: str, rows: list[dict[str, Any]]) -> str:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


def parquet(name: str, rows: list[dict[str, Any]]) -> str:
    pq.write_table(pa.Table.from_pylist(rows), name)
    return name


def figures(slates: Any, labels: Any) -> dict[str, Any]:
    found = api.evaluate(slates, METRICS.split(","), labels=labels)
    return {name: found[name] for name in METRICS.split(",")}


SHAPES: dict[str, Any] = {
    "lists of ids": lambda scores: {"item_ids": [*scores], "scores": [*scores.values()]},
    "objects": lambda scores: {
        "recommendations": [{"itemId": item, "score": score} for item, score in scores.items()]
    },
    "a column of the same name": lambda scores: {
        "each": "x",
        "score": 5,
        "items": [*scores],
        "scores": [*scores.values()],
    },
    "a name of our own": lambda scores: {
        "top": [{"item": item, "score": score} for item, score in scores.items()]
    },
    "one list is no list of items": lambda scores: {
        "tags": ["x", "y", "z"],
        "items": [{"item": item, "score": score} for item, score in scores.items()],
    },
}


def csv(name: str, rows: list[dict[str, Any]]) -> str:
    """What pandas writes of lists, and of arrays."""
    texts = {"list": str, "numpy": lambda one: str(np.array(one)), "json": json.dumps}
    write = [*texts.values()][len(rows) % 3]
    cells = [{a: write(b) if isinstance(b, list) else b for a, b in row.items()} for row in rows]
    pd.DataFrame(cells).to_csv(name, index=False)
    return name


WRITERS: dict[str, Any] = {
    "csv": lambda name, rows: csv(f"{name}.csv", rows),
    "jsonl": lambda name, rows: jsonl(f"{name}.jsonl", rows),
    "parquet": lambda name, rows: parquet(f"{name}.parquet", rows),
    "pandas": lambda _, rows: pd.DataFrame(rows),
    "polars": lambda _, rows: pl.DataFrame(rows),
}


def test_lists_in_rows_are_the_rows_of_their_items(seed: int) -> None:
    scores, relevant = lists_of(seed)
    shape, write = [(a, b) for a in SHAPES.values() for b in WRITERS.values()][seed % 25]
    slates = [
        {"user": user, "item": item, "rank": rank, "score": score}
        for user, each in scores.items()
        for rank, (item, score) in enumerate(each.items(), 1)
    ]
    labels = [{"user": user, "item": one} for user, each in relevant.items() for one in each]
    expected = figures(jsonl("s.jsonl", slates), jsonl("l.jsonl", labels))
    rows = [{"user": user} | shape(each) for user, each in scores.items()]
    if write is WRITERS["csv"]:  # objects are no texts there
        rows = [{"user": user} | SHAPES["lists of ids"](each) for user, each in scores.items()]
    wanted = [{"user": user, "relevant": each} for user, each in relevant.items()]
    assert figures(write("many", rows), write("wanted", wanted)) == expected


def test_the_order_of_a_list_counts_where_no_score_does() -> None:
    rows = [{"user": "ann", "items": ["a", "b", "c"]}, {"user": "bob", "items": []}]
    labels = jsonl("l.jsonl", [{"user": "ann", "items": ["b"]}, {"user": "bob", "items": ["c"]}])
    found = api.evaluate(jsonl("s.jsonl", rows), ["mrr", "recall@3"], labels=labels)
    assert found["mrr"].value == 0.25, "of bob, who saw nothing, 0"
    assert found["recall@3"].value == 0.5


def test_labels_in_lists_have_gains_beside_them() -> None:
    slates = jsonl("s.jsonl", [{"qid": 1, "docs": ["a", "b"]}])
    objects = [{"qid": 1, "docs": [{"doc": "a", "rel": 3}, {"doc": "b", "rel": 1}]}]
    beside = [{"qid": 1, "docs": ["a", "b"], "grades": [3, 1]}]
    for rows in (objects, beside):
        labels = jsonl("l.jsonl", rows)
        found = api.evaluate(slates, "dcg", labels=labels)["dcg"].value
        assert found == pytest.approx(3 + 1 / math.log2(3), abs=1e-8)


def test_what_was_shown_is_not_what_was_wanted() -> None:
    """A file may hold both, and flags of what was clicked are no ids."""
    both = [{"user": "ann", "recs": ["a", "b", "c"], "relevant": ["b"]}]
    file = jsonl("both.jsonl", both)
    assert api.evaluate(file, "mrr", labels=file)["mrr"].value == 0.5
    flags = jsonl("flags.jsonl", [{"user": "ann", "items": ["a", "b", "c"], "clicked": [0, 1, 0]}])
    assert api.evaluate(flags, "mrr", labels=flags)["mrr"].value == 0.5
    jsonl("ids.jsonl", [{"user": "ann", "items": ["a", "b", "c"], "clicked": ["b"]}])
    said = refused("ids.jsonl", "--labels", "ids.jsonl", "--metrics", "mrr")
    assert "column clicked: " in said


def test_histories_features_and_neighbours_may_be_lists() -> None:
    slates = jsonl("s.jsonl", [{"user": "ann", "items": ["a", "b", "c"]}])
    labels = jsonl("l.jsonl", [{"user": "ann", "items": ["c"]}])
    seen = jsonl("seen.jsonl", [{"user": "ann", "items": ["a"]}])
    found = api.evaluate(slates, "mrr", labels=labels, exclude_seen=seen)
    assert found["mrr"].value == 0.5
    tags = {"a": ["x", "y"], "b": ["x"], "c": ["z"]}
    many = jsonl("many.jsonl", [{"item": item, "tags": each} for item, each in tags.items()])
    one = jsonl("one.jsonl", [{"item": a, "tag": tag} for a, each in tags.items() for tag in each])
    values = [
        api.evaluate(slates, "diversity@3", features=each)["diversity@3"].value
        for each in (many, one)
    ]
    assert values[0] == values[1] is not None


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"user": "ann", "items": ["a", None]}, "column item: is empty"),
        ({"user": "ann", "items": [["a"]]}, "column item: holds several values"),
        ({"user": "ann", "items": [{"name": "a"}]}, "no column item or item_id"),
        ({"user": "ann", "tags": ["a"], "words": ["b"]}, "no column rank or position"),
        ({"user": "ann", "items": ["a"], "rank": 1}, "no column item or item_id"),
        ({"user": "ann", "items": [1.5]}, "not an id but a float"),
    ],
)
def test_what_is_no_list_of_items_is_refused_in_a_line(row: dict[str, Any], said: str) -> None:
    jsonl("s.jsonl", [row])
    jsonl("l.jsonl", [{"user": "ann", "item": "a"}])
    assert said in refused("s.jsonl", "--labels", "l.jsonl", "--metrics", "mrr")


def test_a_list_in_a_text_is_read_as_python_json_or_numpy_wrote_it() -> None:
    labels = jsonl("l.jsonl", [{"user": "ann", "item": "O'Hara"}, {"user": "bob", "item": "7"}])
    cells = [["x", "O'Hara", "a b, c"], None]
    pd.DataFrame({"user": ["ann", "cyd"], "items": cells}).to_csv("python.csv", index=False)
    Path("numpy.csv").write_text('user,items\nbob,"[3   9\n 7]"\nann,"[""O\'Hara"" \'x\']"\n')
    found = api.evaluate("python.csv", "mrr", labels=labels)["mrr"].value
    assert found == 0.25, "of bob, who saw nothing, 0"
    found = api.evaluate("numpy.csv", "mrr", labels=labels)["mrr"].value
    assert found == pytest.approx((1 + 1 / 3) / 2, abs=1e-8)
    Path("cut.csv").write_text("user,items\nbob,[1 2 ... 7 8]\n")
    said = refused("cut.csv", "--labels", "l.jsonl", "--metrics", "mrr")
    assert "cut.csv: column items: values were left out (...): write whole lists" in said


def test_a_text_in_brackets_beside_items_is_no_list_of_them() -> None:
    rows = "user,item,rank,title\nann,a,1,[One]\nann,b,2,[Two words]\n"
    Path("s.csv").write_text(rows)
    labels = jsonl("l.jsonl", [{"user": "ann", "item": "b"}])
    assert api.evaluate("s.csv", "mrr", labels=labels)["mrr"].value == 0.5


@pytest.mark.parametrize(
    ("names", "gain"),
    [
        (("customer_id", "article_id", "score"), None),
        (("User-ID", "ISBN", "score"), "Book-Rating"),
        (("uid", "iid", "est"), "r_ui"),
        (("user_id", "business_id", "pred"), "stars"),
        (("reviewerID", "asin", "predicted_rating"), "overall"),
        (("query_id", "document_id", "score"), "relevance_label"),
        (("session_id", "item_id", "score"), None),
        (("visitorid", "itemid", "probability"), None),
    ],
)
def test_columns_have_the_names_of_known_data(names: tuple[str, ...], gain: str | None) -> None:
    who, item, score = names
    slates = pd.DataFrame({who: ["u", "u"], item: ["a", "b"], score: [0.5, 0.9]})
    labels = pd.DataFrame({who: ["u"], item: ["a"]} | ({gain: [2]} if gain else {}))
    assert api.evaluate(slates, "mrr", labels=labels)["mrr"].value == 0.5


def test_what_a_row_is_about_is_no_list_beside_its_user() -> None:
    """News with the name of their topic, and documents with their text."""
    about = {"topic": ["sport", "war"], "document": ["The text", "Another"]}
    columns = {"user_id": ["u", "u"], "document_id": ["a", "b"], "score": [0.5, 0.9]}
    labels = pd.DataFrame({"user_id": ["u"], "document_id": ["a"]})
    found = api.evaluate(pd.DataFrame(about | columns), "mrr", labels=labels)
    assert found["mrr"].value == 0.5
