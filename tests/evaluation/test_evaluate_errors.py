"""`streameval evaluate` on wrong input: one line that names what is wrong, and no warning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from default_events import DIMENSIONS
from evaluating import invoke, refused, run
from test_metric_regression import experiment

from streameval.files.outcome_files import schema_of, table

TABLES = {
    "slates.csv": "list,item,rank\nu1,a,1\nu1,b,2\n",
    "labels.csv": "list,item,gain\nu1,a,1\n",
    "grades.csv": "list,item,gain\nu1,a,2000\n",
    "huge.csv": "list,item,gain\nu1,a,1e308\nu1,b,1e308\n",
    "ratings.csv": "user,item,rating,prediction\nu1,a,4,3\nu2,a,2,2\nu2,a,3,2\n",
    "zeros.csv": "item,feature,value\na,x,0\nb,x,0\n",
    "nan.csv": "item,feature,value\na,x,nan\nb,x,1\n",
    "tiny.csv": "item,feature,value\na,x,1e-300\nb,x,1e300\n",
    "neighbours.csv": "user,neighbour\nu1,u2\n",
    "bad.json": "[1",
    "other.json": '{"checks": [{"passed": true}]}',
    "run.txt": "q1 Q0 a 1 2.0 x\n",
}
LISTS = ("slates.csv", "--labels", "labels.csv")


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all tables, which is the working folder."""
    for name, text in TABLES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--ratings", "ratings.csv", "--threshold", "nan"), "--threshold nan: give a finite"),
        (("--ratings", "ratings.csv", "--scale", "1:inf"), "--scale 1:inf: give finite numbers"),
        ((*LISTS, "--half-life", "inf"), "--half-life inf: give a finite number"),
        ((*LISTS, "--neutral", "nan"), "--neutral nan: give a finite number"),
        ((*LISTS, "--metrics", "ndgc@5"), "ndgc@5: no such figure; did you mean ndcg@5?"),
        ((*LISTS, "--metrics", "Precison"), "Precison: no such figure; did you mean precision@10?"),
        ((*LISTS, "--metrics", "ndcg@k"), "ndcg@k: no such figure; did you mean ndcg@10?"),
        ((*LISTS, "--metrics", "ndcg@"), "ndcg@: no such figure; did you mean ndcg@10?"),
        ((*LISTS, "--metrics", "mapq"), "mapq: no such figure; did you mean map?"),
        ((*LISTS, "--metrics", "auc@k"), "auc@k: no such figure; did you mean auc?"),
        (
            (*LISTS, "--metrics", "interpolated_precison@5"),
            "did you mean interpolated_precision@0.3?",
        ),
        (
            (*LISTS, "--metrics", "map_blog@1000001"),
            "a cutoff is a whole number from 1 to 1,000",
        ),
        ((*LISTS, "--metrics", "zzz"), "zzz: no such figure: write the name of a metric"),
        ((*LISTS, "--report", "r.html", "--checks", "bad.json"), "--checks bad.json: not the res"),
        ((*LISTS, "--report", "r.html", "--checks", "other.json"), "--checks other.json: not the"),
        ((*LISTS, "--report", "r.html", "--checks", "none.json"), "--checks none.json: No such"),
        (("--run", "folder", "--qrels", "run.txt"), "--run folder: is a folder: give the file"),
        (("--run", "run.txt", "--qrels", "folder"), "--qrels folder: is a folder: give the file"),
        (("--neighbours", "neighbours.csv"), "--neighbours alone has no figure: give "),
        (("--predictions", "ratings.csv"), "--predictions alone has no figure: give --ratings"),
        (("--features", "tiny.csv"), "--features alone has no figure: novelty needs outcome"),
    ],
)
@pytest.mark.usefixtures("tables")
def test_wrong_options_are_one_line(arguments: tuple[str, ...], message: str) -> None:
    assert message in refused(*arguments)


RATED = ("--ratings", "ratings.csv", "--metrics", "rmse")
READ = ("--events", "events.jsonl", "--metrics", "daily_positive_rate")


@pytest.mark.parametrize(
    ("arguments", "unused"),
    [
        (("slates.csv", *RATED), "slates.csv"),
        (("slates.csv", "none", *RATED), "slates.csv and 1 more"),
        ((*RATED, "--labels", "labels.csv"), "--labels"),
        ((*RATED, "--run", "none"), "--run"),
        ((*RATED, "--qrels", "none"), "--qrels"),
        ((*RATED, "--ties", "trec"), "--ties"),
        ((*RATED, "--no-complete"), "--no-complete"),
        ((*RATED, "--half-life", "3"), "--half-life"),
        ((*RATED, "--scale", "1:5"), "--scale"),
        ((*LISTS, "--metrics", "mrr", "--neutral", "1"), "--neutral"),
        ((*LISTS, "--metrics", "diversity", "--features", "tiny.csv"), "--labels"),
        (("o.parquet", "--ties", "input"), "--ties"),
        (("o.parquet", "--no-complete"), "--no-complete"),
        (("o.parquet", *READ), "o.parquet"),
        (("--neighbours", "neighbours.csv", "--train", "t", "--ratings", "r"), "--ratings"),
    ],
)
def test_what_no_figure_uses_is_refused(
    tables: Path, arguments: tuple[str, ...], unused: str
) -> None:
    outcome_file(tables / "o.parquet")
    assert refused(*arguments) == f"{unused}: no figure that was asked for uses it"


@pytest.mark.usefixtures("tables")
def test_what_some_figure_uses_is_taken() -> None:
    names = ("--metrics", "rmse,half_life", "--half-life", "3", "--ties", "input", "--no-complete")
    assert len(run(*LISTS, "--ratings", "ratings.csv", *names)["figures"]) == 2


@pytest.mark.parametrize("rank", ["1000001", "3000000000", "1e15", "0", "1.5", "x"])
def test_a_rank_that_nobody_reaches_is_named_with_its_place(tables: Path, rank: str) -> None:
    (tables / "slates.csv").write_text(f"list,item,rank\nu1,a,1\nu1,b,{rank}\n")
    said = refused(*LISTS, "--metrics", "ndcg,half_life,recall")
    assert said == (
        f"slates.csv: row 2, list u1: column rank: {rank} is not a whole number from 1 to 1,000,000"
    )


@pytest.mark.parametrize(
    ("metric", "value"),
    [("ndcg", 1 / 19.931570012018494), ("half_life@1000000", 0.0), ("map_blog@1000000", 1e-12)],
)
def test_the_deepest_rank_and_cut_cost_neither_time_nor_memory(
    tables: Path, metric: str, value: float
) -> None:
    (tables / "slates.csv").write_text("list,item,rank\nu1,b,1\nu1,a,1000000\n")
    found = run(*LISTS, "--metrics", metric)["figures"][metric]
    assert found["value"] == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize(
    ("labels", "metric", "message"),
    [
        ("grades.csv", "ndcg_exp@10", "a gain of 2000: exponential gains"),
        ("grades.csv", "dcg_exp", "a gain of 2000: exponential gains"),
        ("huge.csv", "dcg", "gains or ratings are too large to be added up"),
        ("huge.csv", "half_life", "gains or ratings are too large to be added up"),
    ],
)
@pytest.mark.usefixtures("tables")
def test_gains_too_large_for_a_figure_are_one_line(labels: str, metric: str, message: str) -> None:
    assert message in refused("slates.csv", "--labels", labels, "--metrics", metric)


@pytest.mark.usefixtures("tables")
def test_features_need_values_that_are_finite_and_not_all_0() -> None:
    for name, message in (
        ("zeros.csv", "no item has a feature"),
        ("nan.csv", "column value: is empty"),
    ):
        arguments = ("slates.csv", "--metrics", "diversity", "--features", name)
        assert message in refused(*arguments)
    found = run("slates.csv", "--metrics", "diversity", "--features", "tiny.csv")
    # However long, both point the same way.
    assert found["figures"]["diversity"]["value"] == 0.0


def outcome_file(path: Path, **changed: Any) -> str:
    """Rows of which the third has changed values; a pyarrow type changes a column's type."""
    rows = table(0, experiment(1, {"A": 0.3}, users=5), DIMENSIONS).to_pylist()
    types = {name: value for name, value in changed.items() if isinstance(value, pa.DataType)}
    rows[2].update({name: value for name, value in changed.items() if name not in types})
    for row in rows:
        row.update(dict.fromkeys(types, None))
    schema = pa.schema(
        [(each.name, types.get(each.name, each.type)) for each in schema_of(DIMENSIONS)]
    )
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    return str(path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"ranks": pa.string()}, "column ranks is string, and list<item: int16> in outcome files"),
        ({"gains": pa.list_(pa.int64())}, "column gains is list<element: int64>, and list<item: "),
        ({"user": pa.int64()}, "column user is int64, and string in outcome files"),
        ({"user": None}, "column user has rows without a value"),
        ({"gains": None}, "column gains has rows without a value"),
        ({"gains": [1.0, None, 0.0]}, "column gains has lists with a gap"),
        ({"gains": [1.0]}, "columns ranks and gains have lists of unequal lengths"),
        ({"gains": [float("inf"), 0.0, 0.0]}, "column gains has values that are not finite"),
    ],
)
def test_damaged_outcome_files_are_one_line(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    path = outcome_file(tmp_path / "outcomes.parquet", **changed)
    assert refused(path).startswith(f"{path}: {message}")


def test_outcome_files_need_the_column_request_wherever_it_stands(tmp_path: Path) -> None:
    """Impressions without a request are no list, whatever column stands before that."""
    path = outcome_file(tmp_path / "o.parquet", request=None)
    rows = pq.read_table(path)
    others = [name for name in rows.column_names if name != "request"]
    whole = run(path, "--metrics", "mrr")
    for names in ([*others, "request"], ["feedback", "items", "request", *others]):
        pq.write_table(rows.select(dict.fromkeys(names)), path)
        assert run(path, "--metrics", "mrr") == whole
    assert whole["figures"]["mrr"]["n"] == len(rows) - 1
    pq.write_table(rows.drop_columns(["request"]), path)
    for arguments in ((), ("--per-list",)):
        assert refused(path, "--metrics", "mrr", *arguments).endswith(
            "no column request: not an outcome file"
        )


def test_names_of_columns_and_figures_may_stand_apart(tmp_path: Path) -> None:
    path = outcome_file(tmp_path / "o.parquet")
    apart = run(path, "--metrics", "mrr, map ,", "--by", "variant, surface ")
    assert apart == run(path, "--metrics", "mrr,map", "--by", "variant,surface")


@pytest.mark.usefixtures("tables")
def test_long_names_are_whole_where_no_terminal_reads_them(tmp_path: Path) -> None:
    name = "n" * 200
    (tmp_path / "slates.csv").write_text(f"list,item,score\n{name},a,2\nu1,b,1\n")
    shown = invoke(*LISTS, "--per-list")
    assert name in shown
    assert "equal scores" not in shown


@pytest.mark.usefixtures("tables")
def test_one_rating_is_a_rating() -> None:
    assert "Left out, as rated again: 1 rating.\n" in invoke("--ratings", "ratings.csv")
