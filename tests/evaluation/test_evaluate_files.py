"""Files as people have them: `streameval evaluate` reads what is written, or says what is wrong."""

from __future__ import annotations

import gzip
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from default_events import DIMENSIONS
from evaluating import invoke, refused, run

from streameval.core.outcome import Outcome
from streameval.evaluation.report.curves import curves
from streameval.files import tables
from streameval.files.outcome_files import table
from streameval.files.table_scans import TableFile, table_file

SLATES = "list,item,rank\nu1,a,1\nu1,b,2\nu2,b,1\n"
LABELS = "list,item\nu1,b\nu2,b\n"
RUN = "q1 Q0 d1 1 2.0 x\nq1 Q0 d2 2 1.0 x\n"
QRELS = "q1 0 d2 1\n"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are of files here."""
    monkeypatch.chdir(tmp_path)
    write(**{"s.csv": SLATES, "l.csv": LABELS, "run": RUN, "qrels": QRELS})


def write(**files: str) -> None:
    for name, text in files.items():
        Path(name).write_text(text, encoding="utf-8", newline="")


def mrr(*arguments: str) -> float | None:
    found: float | None = run(*arguments, "--metrics", "mrr")["figures"]["mrr"]["value"]
    return found


IDS = [
    "007",
    "9B2E0A4C-11AA-4F0E-8A57-0D4B1C9C7E11",
    "1234567890123456789012345",
    "1e5",
    "true",
    "2024-01-01",
    "NULL",
]


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("labels", ["csv", "jsonl", "parquet"])
def test_an_id_is_the_text_that_is_written(name: str, labels: str) -> None:
    write(**{"i.csv": f"list,item,rank\n{name},x,1\n{name},{name},2\n"})
    row = {"list": name, "item": name}
    if labels == "parquet":
        pq.write_table(pa.Table.from_pylist([row]), "i.parquet")
    else:
        write(**{"i.jsonl": json.dumps(row), "il.csv": f"list,item\n{name},{name}\n"})
    file = {"csv": "il.csv"}.get(labels, f"i.{labels}")
    found = run("i.csv", "--labels", file, "--metrics", "mrr", "--per-list")
    assert found["lists"] == {name: {"mrr": 0.5}}
    assert found["notes"] == {"gain_column": None}


@pytest.mark.parametrize("number", ["7", "1234567890123456789012345"])
def test_a_number_in_json_is_an_id_by_its_digits(number: str) -> None:
    write(**{"n.csv": f"list,item,rank\nu,{number},1\n"})
    write(**{"n.jsonl": f'{{"list": "u", "item": {number}}}\n{{"list": "v", "item": "x"}}\n'})
    assert run("n.csv", "--labels", "n.jsonl", "--metrics", "mrr", "--per-list")["lists"] == {
        "u": {"mrr": 1.0},
        "v": {"mrr": 0.0},
    }


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_ids_may_stop_to_look_like_numbers_late(kind: str) -> None:
    ids = [*map(str, range(30_000)), "late"]
    if kind == "csv":
        text = "list,item,rank\n" + "".join(f"{name},a,1\n" for name in ids)
    else:
        text = "".join(
            f'{{"list": {name if name != "late" else json.dumps(name)}, "item": "a", "rank": 1}}\n'
            for name in ids
        )
    write(**{f"t.{kind}": text, "tl.csv": "list,item\nlate,a\n17,a\n"})
    found = run(f"t.{kind}", "--labels", "tl.csv", "--metrics", "hit_rate@1")["figures"]
    assert found["hit_rate@1"] | {"low": 0, "high": 0} == {
        "value": pytest.approx(2 / 30_001, abs=1e-9),
        "low": 0,
        "high": 0,
        "n": 30_001,
    }


@pytest.mark.parametrize("name", ["s[1].csv", "s*.csv", "s?.csv", "s'.csv", "S.CSV", "s.Csv.GZ"])
def test_a_name_is_one_file_whatever_it_holds(name: str) -> None:
    write(**{"s1.csv": "list,item,rank\nwrong,a,1\n"})
    Path(name).write_bytes(
        gzip.compress(SLATES.encode()) if name.endswith("GZ") else SLATES.encode()
    )
    assert list(run(name, "--labels", "l.csv", "--per-list")["lists"]) == ["u1", "u2"]


@pytest.mark.parametrize(
    "text",
    [
        SLATES.replace("\n", "\r\n"),
        "\ufeff" + SLATES,
        SLATES.replace(",", ";"),
        SLATES.replace("u1", '"u1"') + "\n\n",
        SLATES.removesuffix("\n"),
    ],
)
def test_csv_may_be_written_in_other_ways(text: str) -> None:
    write(**{"w.csv": text})
    assert mrr("w.csv", "--labels", "l.csv") == 0.75


def test_files_of_several_formats_are_one_table() -> None:
    pq.write_table(pa.table({"rank": [1], "item": ["c"], "list": ["u3"]}), "p.parquet")
    write(**{"m.jsonl": '{"list": "u3", "item": "c"}\n'})
    assert mrr("s.csv", "p.parquet", "--labels", "l.csv", "--labels", "m.jsonl") == pytest.approx(
        (0.5 + 1 + 1) / 3
    )
    write(**{"n.csv": "list,item,score\nu4,a,1\n"})
    assert "s.csv: no column score (it has list, item, rank)" in refused(
        "s.csv", "n.csv", "--labels", "l.csv"
    )


CELLS = {
    "row 2, list u1: column rank: 0 is not a whole number": "list,item,rank\nu1,a,1\nu1,b,0\n",
    "column rank: 1.5 is not a whole": "list,item,rank\nu1,a,1.5\n",
    "column rank: is empty": "list,item,rank\nu1,a,nan\n",
    "column rank: first is not a whole": "list,item,rank\nu1,a,first\n",
    "column score: is empty": "list,item,score\nu1,a,nan\n",
    "column score: -inf is not a finite": "list,item,score\nu1,a,-inf\n",
    "row 1: column list: is empty": "list,item,rank\n,a,1\n",
    "list u1: column item: is empty": "list,item,rank\nu1,,1\n",
    "column user: is empty": "list,user,item,rank\nr,,a,1\n",
    "line 3: 4 fields, but the first line names 3 columns": "list,item,rank\nu1,a,1\nu1,b,2,3\n",
    "line 3: Value with unterminated quote": 'list,item,rank\nu1,a,1\nu1,"b,2\n',
    "lines end in several ways": "list,item,rank\nu1,a,1\r\nu1,b,2\n",
    "two columns are named item": "list,item,item,rank\nu1,a,a,1\n",
    "x.csv: is empty": "",
}


@pytest.mark.parametrize("said", CELLS)
def test_what_is_wrong_with_a_table_is_said_with_its_place(said: str) -> None:
    write(**{"x.csv": CELLS[said]})
    told = refused("x.csv", "--labels", "l.csv")
    assert told.startswith("x.csv: ")
    assert said in told


@pytest.mark.parametrize(
    ("column", "cell", "said"),
    [
        ("list", None, "column list: is empty"),
        ("item", "", "list u2000: column item: is empty"),
        ("rank", 0, "list u2000: column rank: 0 is not a whole number from 1 to 1,000,000"),
        ("rank", None, "list u2000: column rank: is empty"),
        ("score", math.inf, "list u2000: column score: inf is not a finite number"),
    ],
)
def test_a_wrong_cell_late_in_parquet_is_said_with_its_place(
    column: str, cell: object, said: str
) -> None:
    """Rows of Parquet are checked while lists are already scored."""
    columns: dict[str, list[object]] = {
        "list": [f"u{number // 5}" for number in range(10_005)],
        "item": [f"i{number % 5}" for number in range(10_005)],
        "rank": [number % 5 + 1 for number in range(10_005)],
        "score": [1.0] * 10_005,
    }
    columns[column][10_002] = cell
    whole = pa.table(columns)
    pq.write_table(whole.slice(0, 9_000), "one.parquet")
    pq.write_table(whole.slice(9_000), "two.parquet")
    told = refused("one.parquet", "two.parquet", "--labels", "l.csv")
    assert told.startswith("two.parquet: row 1003")
    assert told.endswith(said)


def test_a_broken_file_is_named() -> None:
    write(**{"x.jsonl": '{"list": "u1", "item": "b"}\n{"list": "u1", \n', "x.parquet": "PAR1"})
    assert refused("s.csv", "--labels", "x.jsonl").startswith("x.jsonl: line 2: ")
    assert refused("s.csv", "--labels", "x.parquet").startswith("x.parquet: ")
    write(**{"deep.jsonl": LINE + "[" * 100_000})
    assert refused("s.csv", "--labels", "deep.jsonl") == "deep.jsonl: line 2: nested too deep"
    write(**{"x.csv.gz": SLATES})
    assert refused("x.csv.gz", "--labels", "l.csv").startswith("x.csv.gz: ")


LINE = '{"list": "u1", "item": "b"}\n'


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"list": "u1" "item": "b"}\n', 1),
        (LINE + '{"list":\n', 2),
        (LINE + "\n\n" + '{"list": }\n' + LINE, 4),
        (LINE + LINE + '{"list": "u1"', 3),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_the_line_of_json_that_is_broken_is_counted_from_one(
    text: str, line: int, *, packed: bool
) -> None:
    name = "x.jsonl.gz" if packed else "x.jsonl"
    Path(name).write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    assert refused("s.csv", "--labels", name).startswith(f"{name}: line {line}: ")


def test_json_that_is_no_table_is_told_what_a_table_is() -> None:
    write(
        **{
            "x.json": '{"u1": {"b": 1}}',
            "y.json": '[{"list": "u1" "item": "b"}]',
        }
    )
    said = refused("s.csv", "--labels", "x.json")
    assert said.endswith("a table in JSON is a .jsonl file, one object a line")
    assert "write one object a line (jq -c), as .jsonl" in refused("s.csv", "--labels", "y.json")


@pytest.mark.parametrize(
    "header",
    ["List,ITEM,Rank", "list_id,itemId,rank", "requestId,itemID,position", "List Id,movieId,rank"],
)
def test_columns_are_found_however_their_words_are_parted(header: str) -> None:
    named = SLATES.replace("list,item,rank", header)
    assert named != SLATES
    write(**{"w.csv": named})
    assert mrr("w.csv", "--labels", "l.csv") == 0.75


def test_a_column_of_the_very_name_comes_before_one_that_is_alike() -> None:
    head, *rows = SLATES.splitlines()
    lines = [head.replace("list,", "listId,list_id,"), *(f"x,{row}" for row in rows)]
    write(**{"w.csv": "\n".join(lines)})
    assert mrr("w.csv", "--labels", "l.csv") == 0.75


def test_lists_of_two_models_in_one_file_are_told_what_to_do() -> None:
    write(**{"w.csv": "list,item,rank,model\nu1,a,1,A\nu1,b,1,B\n"})
    said = refused("w.csv", "--labels", "l.csv", "--by", "model")
    assert "list u1 has several values of model: write a file for each model" in said


def an_outcome(offset: int = 0, *, gain: float = 1.0, **other: Any) -> Outcome:
    return Outcome(
        **{
            "offset": offset,
            "user": f"u{offset}",
            "request": f"r{offset}",
            "labels": ("", ""),
            "time": 1_700_000_000_000 + offset,
            "items": ["a"],
            "positions": [1],
            "ranks": [1],
            "shown": [1_700_000_000_000],
            "scores": [None],
            "propensities": [None],
            "gains": [gain],
            "feedback": [],
            **other,
        }
    )


def test_an_outcome_file_that_is_given_twice_is_read_once() -> None:
    Path("o").mkdir()
    pq.write_table(table(0, [an_outcome()], DIMENSIONS), "o/o.parquet")
    found = run("o/o.parquet", "o", "./o/o.parquet", "--metrics", "hit_rate@1")
    assert found["figures"]["hit_rate@1"]["n"] == 1


@pytest.mark.parametrize(
    ("gain", "said"),
    [("nan", "is empty"), ("inf", "inf is not a finite number"), ("much", "much is not a finite")],
)
def test_a_gain_is_a_finite_number(gain: str, said: str) -> None:
    write(**{"g.csv": f"list,item,gain\nu1,a,{gain}\n", "g": f"q1 0 d1 {gain}\n"})
    assert f"column gain: {said}" in refused("s.csv", "--labels", "g.csv")
    assert f"g:1: {gain} is not a finite number" in refused("--run", "run", "--qrels", "g")


def test_float_ids_are_refused() -> None:
    pq.write_table(pa.table({"list": [1.0], "item": ["a"]}), "f.parquet")
    write(**{"f.jsonl": '{"list": 1.5, "item": "a"}\n'})
    assert "column list: ids are floats; write them as text or integers" in refused(
        "s.csv", "--labels", "f.parquet"
    )
    assert "column list: 1.5 is not an id but a float" in refused("s.csv", "--labels", "f.jsonl")


def test_an_empty_id_is_refused_in_every_table() -> None:
    write(
        **{
            "ui.csv": "user,item\nu1,\n",
            "un.csv": "user,neighbour\n,u1\n",
            "ok.csv": "user,item\nu1,a\n",
            "e.csv": "list,item,rank\nu1,,1\n",
            "sm.csv": "list,item,score,positive\n,a,1,1\n",
            "r.csv": "user,item,rating,prediction\n,a,1,1\n",
        }
    )
    coverage = ["--metrics", "neighbour_coverage"]
    for said, arguments in {
        "e.csv: row 1, list u1: column item: is empty": ["s.csv", "--exact", "e.csv"],
        "sm.csv: row 1: column list: is empty": ["--sampled", "sm.csv"],
        "un.csv: row 1: column user: is empty": [
            *("--neighbours", "un.csv", "--train", "ok.csv", *coverage)
        ],
        "ui.csv: row 1: column item: is empty": [
            *("s.csv", "--train", "ui.csv", "--metrics", "novelty_self_information@5")
        ],
        "r.csv: row 1: column user: is empty": ["--ratings", "r.csv"],
    }.items():
        assert said in refused(*arguments)


def test_a_list_lies_in_one_segment() -> None:
    write(**{"v.csv": "list,item,rank,v\nu1,a,1,x\nu1,b,2,y\n"})
    assert "v.csv: list u1 has several values of v" in refused(
        *("v.csv", "--labels", "l.csv", "--by", "v")
    )


def test_trec_files_may_begin_with_a_mark_or_be_compressed() -> None:
    write(marked="\ufeff" + RUN)
    Path("qrels.gz").write_bytes(gzip.compress(QRELS.encode()))
    assert mrr("--run", "marked", "--qrels", "qrels.gz") == 0.5
    shutil.copy("run", "run.gz")
    assert "run.gz: Not a gzipped file" in refused("--run", "run.gz", "--qrels", "qrels")
    write(empty="\n")
    assert refused("--run", "run", "--qrels", "empty") == "empty: is empty"


def test_latest_ratings_count_by_numbers_and_dates() -> None:
    for early, late in [("9", "10"), ("2024-01-09", "2024-01-10T00:00:00Z")]:
        write(**{"t.csv": f"user,item,rating,prediction,ts\nu,i,1,1,{late}\nu,i,5,1,{early}\n"})
        assert run("--ratings", "t.csv", "--metrics", "mae")["figures"]["mae"]["value"] == 0.0
    write(**{"t.csv": "user,item,rating,prediction,ts\nu,i,1,1,soon\n"})
    assert "column ts: soon is not a number or a date" in refused("--ratings", "t.csv")


@pytest.mark.parametrize("folder", ["item=7", "list=z", "rank=3", "user=w", "variant=A"])
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_the_name_of_a_folder_is_no_column(folder: str, kind: str) -> None:
    rows = [{"list": "u1", "item": item, "rank": n} for n, item in enumerate("ab", start=1)]
    Path(folder).mkdir()
    name = f"{folder}/s.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), name)
    elif kind == "jsonl":
        write(**{name: "".join(json.dumps(row) + "\n" for row in rows)})
    else:
        write(**{name: "list,item,rank\nu1,a,1\nu1,b,2\n"})
    answer = run(name, "--labels", "l.csv", "--metrics", "mrr", "--per-list")
    assert answer["lists"] == {"u1": {"mrr": 0.5}, "u2": {"mrr": 0.0}}
    assert "no column variant" in refused(name, "--labels", "l.csv", "--by", "variant")


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("columns", [("line",), ("LINE", "line_")])
def test_a_table_may_have_columns_named_line(kind: str, columns: tuple[str, ...]) -> None:
    # Equal scores keep the order of the file, and of two ratings the later one counts.
    slates = [{"list": "u1", "item": item, "score": 1.0} for item in "ba"]
    ratings = [{"user": "u", "item": "i", "rating": r, "prediction": 1.0} for r in (1, 5)]
    for name, found in (("t", slates), ("r", ratings)):
        rows = [row | dict.fromkeys(columns, 9 - n) for n, row in enumerate(found)]
        if kind == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), f"{name}.parquet")
        elif kind == "jsonl":
            write(**{f"{name}.jsonl": "".join(json.dumps(row) + "\n" for row in rows)})
        else:
            lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
            write(**{f"{name}.csv": "\n".join(lines)})
    write(**{"u1.csv": "list,item\nu1,b\n"})
    assert mrr(f"t.{kind}", "--labels", "u1.csv") == 1.0
    errors = run("--ratings", f"r.{kind}", "--metrics", "mae")
    assert errors["figures"]["mae"]["value"] == 4.0
    assert len(run("--ratings", f"r.{kind}", "--by", columns[0])["segments"]) == 2


def test_a_wrong_cell_is_named_by_its_row_beside_a_column_named_line() -> None:
    write(**{"w.csv": "list,item,rank,line\nu1,a,1,7\nu1,b,x,8\n"})
    assert "row 2" in refused("w.csv", "--labels", "l.csv")


def test_the_report_draws_the_charts_of_its_own_files() -> None:
    rows = [an_outcome(n, gain=1.0) for n in range(4)], [an_outcome(n, gain=0.0) for n in range(4)]
    for name, found in zip(("g[1].parquet", "g1.parquet"), rows, strict=True):
        pq.write_table(table(0, found, DIMENSIONS), name)
    assert curves(["g[1].parquet"], []).rank == [(1, 1.0)]


def test_json_lines_are_looked_through_once_for_their_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[str] = []

    def look(connection: Any, file: str) -> TableFile:
        looked.append(file)
        return table_file(connection, file)

    monkeypatch.setattr(tables, "table_file", look)
    row = {"user": "u", "item": "b", "list": "u1", "rank": 1, "rating": 3, "prediction": 3}
    write(**{"j.jsonl": json.dumps(row) + "\n"})
    invoke("--ratings", "j.jsonl")
    invoke("j.jsonl", "--labels", "l.csv")
    assert looked == ["j.jsonl", "j.jsonl", "l.csv"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["{}"],
        ["--run", "{}.txt", "--qrels", "{}"],
        ["--ratings", "{}.csv", "--predictions", "{}.csv", "--metrics", "rmse"],
    ],
)
def test_a_path_that_no_file_can_have_is_one_line(arguments: list[str]) -> None:
    given = [argument.format("a" * 300) for argument in arguments]
    assert "is too long for the name of a file" in refused(*given)
