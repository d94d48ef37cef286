"""Sums of scores are exact at any scale: none wraps, whatever adds them up, and in any order."""

from __future__ import annotations

import math
import random
import zlib
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from evaluating import refused, run

from streameval.base.errors import InputError
from streameval.base.limits import CLUSTERS, NANO
from streameval.evaluation import spark as on_spark
from streameval.evaluation.sums import Asked, Evaluation
from streameval.stats import exact_sums

USERS = [user for user in map("u{}".format, range(5000)) if zlib.crc32(user.encode()) & 255 == 7]


def ratings_of(folder, errors, column=""):
    rows = [f"{user},{column},i,0,{error}" for user, error in zip(USERS, errors, strict=False)]
    (folder / "r.csv").write_text("\n".join(["user,model,item,rating,prediction", *rows]))
    return "--ratings", str(folder / "r.csv")


@pytest.mark.parametrize("error", [0.5, 70_000, 100_000, 3e7])
def test_errors_of_any_scale_give_their_own_figure(tmp_path, error):
    names = ("mse", "rmse", "mae", "rmse_item", "mae_item", "rmse_user")
    given = ratings_of(tmp_path, [error] * 4)
    found = run(*given, "--metrics", ",".join(names))["figures"]
    values = {name: figure["value"] for name, figure in found.items()}
    assert values == dict.fromkeys(names, error) | {"mse": error**2}


def test_segments_whose_sums_fill_the_integers_add_up(tmp_path):
    rows = [f"{user},{n},i,0,70000" for n, user in enumerate(USERS[:8])]
    (tmp_path / "r.csv").write_text("\n".join(["user,model,item,rating,prediction", *rows]))
    found = run("--ratings", str(tmp_path / "r.csv"), "--metrics", "mse", "--by", "model")
    assert found["figures"]["mse"]["value"] == 4.9e9
    assert [row["figures"]["mse"]["value"] for row in found["segments"]] == [4.9e9] * 8


@pytest.mark.parametrize(("metric", "error"), [("mse", 1e9), ("mae", 1e18), ("mae_item", 1e11)])
def test_what_cannot_be_summed_exactly_is_refused_in_words_of_ratings_too(tmp_path, metric, error):
    given = ratings_of(tmp_path, [error])
    assert "errors are too large to be summed exactly" in refused(*given, "--metrics", metric)


def test_batches_and_their_order_change_no_bit_of_sums_that_need_both_parts():
    scores = np.array([[random.Random(n).expovariate(1) * 10.0 ** (n % 17)] for n in range(500)])
    starts = np.array([0])
    whole = exact_sums.sums_of(scores, starts)
    parts = exact_sums.zeros(1, 1)
    for part in np.array_split(scores[::-1], 7):
        exact_sums.add(parts, [0], exact_sums.sums_of(part, starts))
    assert (parts == whole).all()
    exact = sum(int(np.rint(score * NANO)) for (score,) in scores)
    assert exact_sums.integers(whole[:, 0]) == [exact]
    assert exact > 2**63


def test_negative_scores_are_summed_as_exactly():
    scores = np.array([[-1.5], [2e12], [-3e12], [-0.25]])
    for rows in (scores, scores[:1], scores[::3]):
        (found,) = exact_sums.integers(exact_sums.sums_of(rows, np.array([0]))[:, 0])
        assert Fraction(found, NANO) == sum(Fraction(value) for (value,) in rows.tolist())


def test_sums_beyond_both_parts_are_refused():
    sums = exact_sums.zeros(1, 1)
    exact_sums.add(sums, [0], np.array([[[0]], [[2**53]]]))
    batch = exact_sums.sums_of(np.full((2**14, 1), 1e17), np.array([0]))
    with pytest.raises(InputError, match="too large to be summed exactly"):
        exact_sums.add(sums, [0], batch)


# --- Spark's partitions, without a Spark ----------------------------------------------------------

COLUMNS = pa.schema(
    [
        ("user", pa.string()),
        ("request", pa.string()),
        ("ranks", pa.list_(pa.int16())),
        ("gains", pa.list_(pa.float64())),
    ]
)
ROW = {"user": "u", "request": "r", "ranks": [1, 2], "gains": [0.0, 1.0]}


def scanned(*rows, metric="mrr"):
    """What one of Spark's partitions answers."""
    record = pa.RecordBatch.from_pylist(list(rows), COLUMNS)
    (answer,) = on_spark._scan(iter([record]), (metric,), ())
    (row,) = answer.to_pylist()
    return row


def test_sums_of_a_partition_of_spark_do_not_wrap():
    # 2^33 - 1 a list: a few of them fill an int64 of nano-units.
    row = scanned(*[{**ROW, "gains": [33.0, 0.0]}] * 9, metric="dcg_exp@10")
    evaluation = Evaluation([Asked.parse("dcg_exp@10")])
    sums = np.array(row["sums"]).reshape(2, CLUSTERS, 1)
    evaluation.add_sums((), np.arange(CLUSTERS), sums, np.array(row["counts"]).reshape(-1, 1))
    evaluation.add_cells((), np.array(row["cells"]))
    assert evaluation.figures()["dcg_exp@10"].value == pytest.approx(2.0**33 - 1, rel=1e-12)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"gains": [1.0]}, "lists of unequal lengths"),
        ({"gains": None}, "column gains has rows without a value"),
        ({"gains": [None, 1.0]}, "column gains has lists with a gap"),
        ({"gains": [0.0, math.inf]}, "not finite"),
        ({"user": None}, "column user has rows without a value"),
        ({"ranks": None}, "column ranks has rows without a value"),
    ],
)
def test_a_partition_of_spark_refuses_the_rows_that_the_command_refuses(changed, said):
    assert said in scanned(ROW, {**ROW, **changed})["refusal"]
    assert scanned(ROW)["refusal"] is None
