"""Parquet files of all types of columns: the lists of the same rows in JSON, errors in words."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from evaluating import refused, run
from pyarrow import parquet as pq

TEXTS = [
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.dictionary(pa.int32(), pa.string()),
    pa.dictionary(pa.int8(), pa.large_string()),
]
NUMBERS = [pa.int8(), pa.uint32(), pa.int64(), pa.uint64()]
DELTAS = {4: "DELTA_BYTE_ARRAY", 6: "DELTA_LENGTH_BYTE_ARRAY", 10: "DELTA_BYTE_ARRAY"}
METRICS = ("--metrics", "ndcg@3,auc,recall,map@10", "--per-list")


def table(chance, lists, id_type, rank_type, score_type):
    """Lists one after the other; a row in ten repeats an item of its list."""
    rows = [(number, item) for number in lists for item in chance.choices(range(20), k=6)]
    whole = pa.types.is_integer(id_type)

    def ids(values):
        texts = [value if whole else f"é{value}" for value in values]
        return pa.array(texts).cast(id_type)

    return pa.table(
        {
            "List": ids([row[0] for row in rows]),
            "item": ids([row[1] for row in rows]),
            "user": ids([row[0] % 7 for row in rows]),
            "model": pa.array([f"m{row[0] % 2}" for row in rows]),
            "rank": pa.array([chance.randrange(1, 9) for _ in rows], rank_type),
            "score": pa.array([chance.choice([None, 0.5, 1.5, 2.5]) for _ in rows], score_type),
        }
    )


def two_files(folder, lists, labelled="y"):
    """The paths of a file of lists, and of one with a label of an item of list a."""
    shown, told = str(folder / "shown.parquet"), str(folder / "labels.parquet")
    pq.write_table(lists, shown)
    pq.write_table(pa.table({"list": ["a"], "item": [labelled]}), told)
    return shown, told


@pytest.mark.parametrize("case", range(16))
def test_lists_of_parquet_are_those_of_json(case, tmp_path):
    """Ids of every type, in two files of different ones, in small row groups and encodings."""
    chance = random.Random(case)
    whole = case % 2
    files, plain, types = [], [], NUMBERS if whole else TEXTS
    for number, lists in enumerate([range(12), range(12, 30)]):
        shown = table(
            chance,
            lists,
            chance.choice(types),
            chance.choice([pa.int8(), pa.uint16(), pa.int64()]),
            chance.choice([pa.float32(), pa.float64()]),
        )
        files.append(str(tmp_path / f"shown{number}.parquet"))
        packed = DELTAS.get(case)
        delta = {"use_dictionary": False, "column_encoding": {"item": packed}}
        pq.write_table(
            shown,
            files[-1],
            row_group_size=chance.choice([5, 1000]),
            store_schema=case % 3 > 0,
            **(delta if packed and not whole else {}),
        )
        plain.append(as_json(tmp_path / f"shown{number}.jsonl", shown.to_pylist()))
    chosen = (*METRICS, "--ties", chance.choice(["trec", "input"]))
    chosen += chance.choice([(), ("--by", "model"), ("--by", "user")])
    pairs = chance.sample([(name, item) for name in range(35) for item in range(25)], 90)
    kind = (lambda value: value) if whole else "é{}".format
    labels = [
        {"list": kind(name), "item": kind(item), "gain": chance.randrange(3)}
        for name, item in pairs
    ]
    told, plainly_told = (), ()
    for number, part in enumerate((labels[:40], labels[40:])):
        file = str(tmp_path / f"labels{number}.parquet")
        pq.write_table(pa.Table.from_pylist(part), file)
        told += ("--labels", file)
        plainly_told += ("--labels", as_json(tmp_path / f"labels{number}.jsonl", part))
    found = run(*files, *told, *chosen)
    wanted = run(*plain, *plainly_told, *chosen)
    for answer in (found, wanted):
        del answer["notes"]  # they name the files
    assert found == wanted
    assert len(found["lists"]) >= 30


def as_json(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize(
    ("column", "wrong", "said"),
    [
        ("item", "", "row 14, list b: column item: is empty"),
        ("item", None, "row 14, list b: column item: is empty"),
        ("user", "", "row 14, list b: column user: is empty"),
        ("rank", 0, "row 14, list b: column rank: 0 is not a whole number from 1 to 1,000,000"),
        ("rank", 1_000_001, "row 14, list b: column rank: 1000001 is not a whole number"),
        ("score", float("inf"), "row 14, list b: column score: inf is not a finite number"),
        ("rank", None, "row 14, list b: column rank: is empty"),
    ],
)
def test_a_wrong_cell_is_named_in_words(column, wrong, said, tmp_path):
    rows = [
        {"list": name, "item": f"i{number}", "user": name, "rank": number, "score": 0.5}
        for name in "abc"
        for number in range(1, 9)
    ]
    rows[13][column] = wrong
    shown, told = two_files(tmp_path, pa.Table.from_pylist(rows), "i1")
    found = refused(shown, "--labels", told)
    assert said in found


def test_a_name_that_no_row_has_may_be_empty(tmp_path):
    """A dictionary may hold more than the rows use."""
    item = pa.DictionaryArray.from_arrays(pa.array([1, 2, 1], pa.int32()), ["", "x", "y"])
    shown, told = two_files(
        tmp_path, pa.table({"list": ["a", "a", "b"], "item": item, "rank": [1, 2, 1]})
    )
    found = run(shown, "--labels", told, "--metrics", "mrr")
    assert found["figures"]["mrr"]["value"] == 0.25


def test_ids_that_are_no_text_are_named(tmp_path):
    broken = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.array([0, 1, 2], pa.int32()).buffers()[1], pa.py_buffer(b"x\xff")]
    )
    shown, told = two_files(
        tmp_path, pa.table({"list": ["a", "a"], "item": broken, "rank": [1, 2]})
    )
    found = refused(shown, "--labels", told)
    assert "UTF-8" in found or "utf-8" in found or "string" in found


def test_a_broken_file_is_named(tmp_path):
    """The pages of its items are damaged; another file is sound."""
    files = [str(tmp_path / f"shown{number}.parquet") for number in range(2)]
    for number, file in enumerate(files):
        rows = {"list": [f"l{number}"] * 500, "item": [f"i{item}" for item in range(500)]}
        pq.write_table(pa.table({**rows, "rank": list(range(1, 501))}), file)
    chunk = pq.read_metadata(files[1]).row_group(0).column(1)
    with Path(files[1]).open("r+b") as broken:
        broken.seek(chunk.data_page_offset + 40)
        broken.write(b"\xff" * 40)
    told = tmp_path / "labels.parquet"
    pq.write_table(pa.table({"list": ["l0"], "item": ["i1"]}), told)
    assert refused(*files, "--labels", str(told)).startswith(f"{files[1]}: ")


@pytest.mark.parametrize("kind", [pa.decimal128(5, 1), pa.float64(), pa.string()])
def test_ranks_of_any_type_are_numbers(kind, tmp_path):
    ranks = pa.array(["1", "2"]).cast(kind)
    shown, told = two_files(
        tmp_path, pa.table({"list": ["a", "a"], "item": ["x", "y"], "rank": ranks})
    )
    found = run(shown, "--labels", told, "--metrics", "mrr")
    assert found["figures"]["mrr"]["value"] == 0.5


def test_pandas_is_not_imported_for_tables(tmp_path):
    """It takes a fifth of a second, and few of Arrow's functions can do without it."""
    pytest.importorskip("pandas")
    shown, told = two_files(
        tmp_path, pa.table({"list": ["a", "a"], "item": ["x", "y"], "rank": [1, 2]})
    )
    code = (
        "import sys\n"
        "from streameval.cli.app import main\n"
        f"sys.argv = ['streameval', 'evaluate', {shown!r}, '--labels', {told!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_no_library_holds_up_the_end_once_pyarrow_reaches_stores(tmp_path):
    """Its own handler at the end of Python may wait for threads of S3 that never end."""
    shown, told = two_files(
        tmp_path, pa.table({"list": ["a", "a"], "item": ["x", "y"], "rank": [1, 2]})
    )
    code = (
        "import atexit, sys, time\n"
        "from pyarrow import fs\n"
        "from streameval.__main__ import main\n"
        "atexit.register(time.sleep, 3600)\n"
        f"sys.argv = ['streameval', 'evaluate', {shown!r}, '--labels', {told!r}]\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=300
    )
    assert "mrr@10" in done.stdout
