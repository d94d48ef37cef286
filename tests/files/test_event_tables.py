"""Event files that are tables: the events of the same rows as JSON lines, errors in words."""

import json
import sys
from datetime import datetime

import duckdb
import fastavro
import pandas as pd
import pytest
import trackers
from command_line import streameval

from streameval import replay
from streameval.base import extras
from streameval.files import tables
from streameval.files.event_tables import with_rows

LISTS = [
    {"seen": "2026-01-05 12:00:00+00", "who": "ann", "list_id": "007", "shown": ["a1", "b-2", "c"]},
    {"seen": "2026-01-05 12:00:05+00", "who": "bob", "list_id": "8", "shown": ["d"]},
]
CLICKS = [
    {"seen": "2026-01-05 12:00:09+00", "who": "ann", "list_id": "007", "clicked": "b-2"},
    {"seen": "2026-01-05 12:00:12+00", "who": "bob", "list_id": "8", "clicked": None},
]
NATIVE = [
    {
        "type": "slate",
        "ts": 1767614400000,
        "user_id": "ann",
        "request_id": "q1",
        "items": [{"item_id": "i1", "position": 1}, {"item_id": "i2"}],
        "variant": "A",
    },
    {"type": "slate", "ts": 1767614400500, "user_id": "bob", "request_id": "q2", "items": []},
    {"type": "impression", "ts": 1767614401000, "user_id": "ann", "item_id": "i7", "position": 3},
    {
        "type": "feedback",
        "ts": 1767614402000,
        "user_id": "ann",
        "item_id": "i2",
        "feedback": "click",
        "request_id": "q1",
    },
]
PROFILE = """\
rules:
  - when: shown
    slate:
      ts: {from: seen, unit: auto}
      user_id: who
      request_id: list_id
      items: ITEMS
  - when: clicked
    feedback:
      ts: {from: seen, unit: auto}
      user_id: who
      request_id: list_id
      item_id: clicked
      kind: {const: click}
"""
# Lists as programs write them into a cell: the text of one, and how a profile reads it.
CELLS = {
    "JSON": (json.dumps, "from_json(shown)"),
    "bars": ("|".join, "split(shown, '|')"),
    "DuckDB": (lambda ids: f"[{', '.join(ids)}]", "split(shown, ',')"),
    "PostgreSQL": (lambda ids: f"{{{','.join(ids)}}}", "split(shown, ',')"),
    "pandas": (str, "split(shown, ',')"),
    "numpy": (lambda ids: f"[{' '.join(map(repr, ids))}]", "split(shown, '')"),
}


def written(folder, name, rows, options="", **types):
    """Write rows as a table by DuckDB, with the types of its columns; return the file's name."""
    source = folder / f"{name}.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = f", columns = {types}" if types else ""
    duckdb.sql(f"COPY (FROM read_json('{source}'{read})) TO '{folder}/{name}' {options}")
    return name


def mapped(folder, *names, items="shown"):
    (folder / "mine.yaml").write_text(PROFILE.replace("ITEMS", f'"{items}"'))
    done = streameval("map", *names, "--profile", "mine.yaml", folder=folder, text=True)
    assert (done.returncode, done.stderr.count("rejected")) == (0, 0), done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    for event in events:
        if isinstance(event["ts"], str):
            event["ts"] = 1000 * int(datetime.fromisoformat(event["ts"]).timestamp())
    return events


@pytest.mark.parametrize(
    ("end", "options", "cells"),
    [
        *(("csv", "", cells) for cells in CELLS),
        ("CSV", "(FORMAT csv, DELIMITER ';')", "DuckDB"),
        ("tsv", "(FORMAT csv, DELIMITER '\t')", "JSON"),
        ("csv.gz", "", "bars"),
        ("csv.zst", "", "bars"),
        ("parquet", "", "bars"),
    ],
)
def test_rows_are_the_events_of_the_same_rows_as_json(tmp_path, end, options, cells):
    text, path = CELLS[cells]
    rows = [row | {"shown": text(row["shown"])} for row in LISTS]
    (tmp_path / "lists.jsonl").write_text("".join(json.dumps(row) + "\n" for row in LISTS))
    (tmp_path / "clicks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in CLICKS))
    types = {"seen": "TIMESTAMPTZ", "who": "TEXT", "list_id": "TEXT"}
    tables = [
        written(tmp_path, f"lists.{end}", rows, options, **types, shown="TEXT"),
        written(tmp_path, f"clicks.{end}", CLICKS, options, **types, clicked="TEXT"),
    ]
    events = mapped(tmp_path, *tables, items=path)
    assert events == mapped(tmp_path, "lists.jsonl", "clicks.jsonl")
    assert (events[0]["request_id"], events[0]["items"]) == ("007", ["a1", "b-2", "c"])


def test_a_draft_of_tables_is_a_profile_of_theirs(tmp_path):
    rows = [
        {
            "shown_at": f"2026-01-05 12:00:{n:02}",
            "user_id": f"u{n % 3}",
            "request_id": f"r{n}",
            "items": f"[{n}01, {n}02]",
        }
        for n in range(10, 30)
    ]
    clicks = [
        {
            "clicked_at": f"2026-01-05 12:00:{n + 5:02}",
            "user_id": f"u{n % 3}",
            "request_id": f"r{n}",
            "item_id": f"{n}02",
        }
        for n in range(10, 30, 2)
    ]
    names = written(tmp_path, "lists.csv", rows), written(tmp_path, "clicks.parquet", clicks)
    drafted = streameval("map", *names, "--init", folder=tmp_path, text=True)
    (tmp_path / "mine.yaml").write_text(drafted.stdout)
    arguments = ("--profile", "mine.yaml", "--sort", "--json")
    found = json.loads(streameval("replay", *names, *arguments, folder=tmp_path).stdout)
    assert found["events"]["accepted"] == {
        "impression": 0,
        "slate": 20,
        "feedback": 10,
    }


def test_cells_of_parquet_are_what_json_has(tmp_path):
    cells = {
        "TIMESTAMP_NS '2026-01-05 12:00:00.123456789'": "2026-01-05T12:00:00.123456",
        "TIMESTAMPTZ '2026-01-05 12:00:00+00'": "2026-01-05T12:00:00Z",
        "DATE '2026-01-05'": "2026-01-05",
        "MAP {'list': 'l1'}": {"list": "l1"},
        "[{'id': 7, 'tags': ['a']}]": [{"id": 7, "tags": ["a"]}],
        "12.50::DECIMAL(10, 2)": "12.50",
        "12345678901234567890::UBIGINT": 12345678901234567890,
        "'x'::ENUM('x', 'y')": "x",
    }
    named = ", ".join(f"{cell} AS c{number}" for number, cell in enumerate(cells))
    duckdb.sql(f"COPY (SELECT NULL AS none, {named}) TO '{tmp_path}/a.parquet'")
    (name,) = with_rows([f"{tmp_path}/a.parquet"])
    (line,) = name.data
    assert list(json.loads(line).values()) == list(cells.values())


def test_bytes_of_parquet_are_texts(tmp_path):
    """Spark, Hive and Impala long wrote texts without saying that they are some."""
    cells = {
        "'i7'::BLOB": "i7",
        "'\\xC3\\xA9'::BLOB": "é",
        "'\\xFF\\x00'::BLOB": "ff00",
        "['a'::BLOB, 'b'::BLOB]": ["a", "b"],
        "{'id': 'x'::BLOB, 'n': 1}": {"id": "x", "n": 1},
        "MAP {'k': 'v'::BLOB}": {"k": "v"},
        "TIMESTAMP '2026-01-05 12:00:00'": "2026-01-05T12:00:00",
    }
    named = ", ".join(f"{cell} AS c{number}" for number, cell in enumerate(cells))
    duckdb.sql(f"COPY (SELECT {named}) TO '{tmp_path}/a.parquet'")
    (name,) = with_rows([f"{tmp_path}/a.parquet"])
    (line,) = name.data
    assert list(json.loads(line).values()) == list(cells.values())


def test_a_folder_stands_for_its_parts(tmp_path, monkeypatch):
    """Spark's folders, with a mark of success, checksums, and a folder for each day."""
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps(event) + "\n" for event in NATIVE]
    for number, line in enumerate(lines):
        part = tmp_path / f"export/day={number // 2}/part-{number:05}.json"
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(line)
    for junk in ("_SUCCESS", ".part-00000.json.crc", "_delta_log/0.json", "day=0/._x.json"):
        (tmp_path / "export" / junk).parent.mkdir(exist_ok=True)
        (tmp_path / "export" / junk).write_text("junk")
    (tmp_path / "whole.jsonl").write_text("".join(lines))
    found, wanted = (
        streameval("replay", name, "--json", folder=tmp_path).stdout
        for name in ("export", "whole.jsonl")
    )
    assert found == wanted
    assert repr(replay("export")) == repr(replay("whole.jsonl"))
    (tmp_path / "rows").mkdir()
    written(tmp_path, "rows/1.parquet", LISTS)
    written(tmp_path, "rows/2.csv.gz", [row | {"shown": "a1"} for row in LISTS])
    assert [event["request_id"] for event in mapped(tmp_path, "rows")] == ["007", "8"] * 2
    (tmp_path / "none").mkdir()
    (tmp_path / "none/_SUCCESS").touch()
    done = streameval("map", "none", "--init", folder=tmp_path, text=True)
    assert (done.returncode, done.stderr) == (
        2,
        "streameval: none: a folder without files of events\n",
    )


def test_records_of_avro_are_rows(tmp_path):
    text = {"type": "array", "items": "string"}
    at = {"type": "long", "logicalType": "timestamp-micros"}
    fields = {"seen": at, "who": "string", "list_id": "string", "shown": ["null", text]}
    schema = {
        "type": "record",
        "name": "row",
        "fields": [{"name": name, "type": kind} for name, kind in fields.items()],
    }
    rows = [row | {"seen": datetime.fromisoformat(row["seen"])} for row in LISTS]
    for codec in ("null", "deflate"):
        with (tmp_path / f"{codec}.avro").open("wb") as file:
            fastavro.writer(file, schema, rows, codec=codec)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in LISTS))
    wanted = mapped(tmp_path, "a.jsonl")
    assert mapped(tmp_path, "null.avro") == mapped(tmp_path, "deflate.avro") == wanted
    whole = (tmp_path / "null.avro").read_bytes()
    for number, damaged in enumerate((b"", b"junk", whole[:30], whole[:-5], whole + b"more")):
        (tmp_path / "b.avro").write_bytes(damaged)
        done = streameval("map", "b.avro", "--profile", "mine.yaml", folder=tmp_path, text=True)
        assert done.returncode == 2, number
        assert done.stderr.startswith("streameval: b.avro: cannot be read as Avro: "), number


@pytest.mark.parametrize("profile", ["ga4_export", "snowplow", "segment", "personalize"])
def test_exports_of_trackers_may_be_rows_of_parquet(tmp_path, profile):
    messages = [getattr(trackers, profile)(event) for event in trackers.stream(3, count=40)]
    name = written(tmp_path, "rows.parquet", [one for one in messages if one])
    found, wanted = (
        json.loads(
            streameval("replay", each, "--profile", profile, "--json", folder=tmp_path).stdout
        )
        for each in (name, f"{name}.jsonl")
    )
    assert found == wanted
    assert found["events"]["accepted"]["feedback"] > 0


def test_lists_of_pandas_in_csv_are_drafted_also_where_some_are_empty(tmp_path):
    rows = [
        {
            "user_id": f"u{n % 3}",
            "request_id": f"r{n}",
            "ts": 1767614400000 + n,
            "shown_items": str([f"{n}01", f"{n}02"]),
            "clicked_items": str([f"{n}02"] if n % 3 else []),
        }
        for n in range(10, 30)
    ]
    text = streameval("map", written(tmp_path, "a.csv", rows), "--init", folder=tmp_path, text=True)
    (tmp_path / "mine.yaml").write_text(text.stdout)
    done = streameval("map", "a.csv", "--profile", "mine.yaml", folder=tmp_path)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    clicks = [event for event in events if event["type"] == "feedback"]
    assert [event["item_id"] for event in clicks] == [f"{n}02" for n in range(10, 30) if n % 3]
    assert len(events) - len(clicks) == 20


@pytest.mark.parametrize("name", ["a.csv", "a.parquet"])
def test_ids_that_pandas_made_floats_are_the_numbers_they_were(tmp_path, name):
    """It does so where cells of the column are missing: 4002 is 4002.0, or is in no list."""
    user = {"user_id": 7, "request_id": "r1"}
    rows = [
        user | {"kind": "shown", "ts": 1767614400000, "items": "[4001, 4002]"},
        user | {"kind": "click", "ts": 1767614405000, "item_id": 4002},
        user | {"kind": "click", "ts": 1767614406000, "item_id": 4001, "ratio": 0.5},
    ]
    frame = pd.DataFrame(rows)
    frame.to_csv(tmp_path / name) if name.endswith("csv") else frame.to_parquet(tmp_path / name)
    drafted = streameval("map", name, "--init", folder=tmp_path, text=True)
    (tmp_path / "mine.yaml").write_text(drafted.stdout)
    done = streameval("map", name, "--profile", "mine.yaml", folder=tmp_path)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert found[0]["items"] == ["4001", "4002"]
    assert [event["item_id"] for event in found[1:]] == ["4002", "4001"]


def test_numbers_like_7_0_stay_in_a_column_without_gaps(tmp_path):
    (tmp_path / "a.csv").write_text("id,version,ratio\n1.0,1.0,1.5\n,2.0,2.0\n3.0,3.0,\n")
    (name,) = with_rows([f"{tmp_path}/a.csv"])
    assert [json.loads(line) for line in name.data if line] == [
        {"id": "1", "version": "1.0", "ratio": "1.5"},
        {"version": "2.0", "ratio": "2.0"},
        {"id": "3", "version": "3.0"},
    ]


def test_the_first_numbers_of_a_column_tell_for_a_file_of_any_length(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "BATCH_ROWS", 2048)
    shown = "shown,\n" * 5000
    (tmp_path / "a.csv").write_text(f"kind,item\n{shown}click,7.0\n{shown}click,8.0\nclick,9.5\n")
    (name,) = with_rows([f"{tmp_path}/a.csv"])
    items = [json.loads(line).get("item") for line in name.data if line]
    assert [item for item in items if item] == ["7", "8", "9.5"]


@pytest.mark.parametrize("crossed_users", ["keep", "leave_out"])
def test_our_own_events_may_be_rows_of_parquet(tmp_path, crossed_users):
    """They are read twice where users in several arms are left out."""
    crossed = NATIVE[0] | {"ts": 1767614405000, "request_id": "q3", "variant": "B"}
    written(tmp_path, "events.parquet", [*NATIVE, crossed])
    arms = {"arm": "variant", "control": "A", "crossed_users": crossed_users}
    experiment = {"name": "e", "primary": "positives_per_impression{feedback=click}", **arms}
    config = {"dimensions": ["variant"], "experiments": [experiment]}
    (tmp_path / "streameval.yaml").write_text(json.dumps(config))
    figures = [
        json.loads(streameval("replay", name, "--json", folder=tmp_path).stdout)
        for name in ("events.parquet.jsonl", "events.parquet")
    ]
    assert figures[0] == figures[1]
    found = replay(tmp_path / "events.parquet", config=tmp_path / "streameval.yaml")
    assert json.loads(json.dumps(found.document())) == figures[0]


def test_a_rejected_row_is_named_by_its_line(tmp_path):
    (tmp_path / "a.csv").write_text("type,ts\nimpression,1\nshop,2\n")
    done = streameval("replay", "a.csv", folder=tmp_path, text=True)
    assert done.returncode == 1
    assert [line.partition(": ")[0] for line in done.stderr.splitlines()[1:3]] == [
        "a.csv:2",
        "a.csv:3",
    ]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", 'ts,user_id\n1,"a\n', "a.csv: line 2: Value with unterminated quote found."),
        ("a.csv", "ts,user\n1,a,b\n", "a.csv: line 2: 3 fields, but the first line names 2"),
        ("a.csv", "", "a.csv: is empty"),
        ("a.csv", "ts,user_id\n", "a.csv: no line to map"),
        ("a.tsv", '{"ts": 1}\n', "a.tsv: line 1 is JSON and names no columns: rename it to .jsonl"),
        ("a.csv", "u1,1767614400,click\n", "a.csv: line 1 has values (1767614400) where the names"),
        ("a.tsv", "7\tu1\n", "a.tsv: line 1 has values (7) where the names of columns belong"),
        ("a.csv", "u,1/5/2026 1:00 PM\n", "line 1 has values (1/5/2026 1:00 PM) where the names"),
        ("a.parquet", "junk", "a.parquet: "),
        ("b.csv", "", "cannot read a.csv: No such file or directory"),
        ("a", "ts,user_id\n1,u\n", "a:1: malformed: this looks like a table (CSV or TSV): "),
        ("a.txt", "PAR1\n", "it is a Parquet file: let its name end in .parquet"),
    ],
)
def test_what_is_no_table_is_one_line(tmp_path, name, content, said):
    (tmp_path / name).write_text(content)
    asked = name if name[0] == "a" else "a.csv"
    done = streameval("map", asked, "--profile", "segment", folder=tmp_path, text=True)
    assert done.returncode != 0
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_without_what_reads_tables_only_they_need_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name in [name for name in sys.modules if name.startswith("streameval.files.table")]:
        monkeypatch.delitem(sys.modules, name)
    written(tmp_path, "a.b", NATIVE, "(FORMAT parquet)")
    done = streameval("replay", "a.b.jsonl", folder=tmp_path, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    (tmp_path / "a.csv").write_text("ts\n1\n")
    done = streameval("replay", "a.csv", folder=tmp_path, text=True)
    assert done.returncode == 2
    assert "needs pyarrow, which is not installed: pip install" in done.stderr


def test_without_duckdb_a_table_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(extras, "is_installed", lambda _: False)
    (tmp_path / "a.csv").write_text("ts\n1\n")
    done = streameval("map", "a.csv", "--profile", "segment", folder=tmp_path, text=True)
    assert done.returncode == 2
    assert "reading tables needs DuckDB, which is not installed" in done.stderr
