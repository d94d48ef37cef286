"""Files as other programs write them: ids that never meet, doubled keys, marks, pipes, frames."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cramjam
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from evaluating import refused, run
from test_cli import CLICK, IMPRESSION, lines
from typer.testing import CliRunner

import streameval as api
from streameval.base.errors import InputError
from streameval.cli.app import app, main
from streameval.config.load import load

SLATES = "list,item,rank\nu1,a,1\nu1,b,2\nu2,b,1\nu2,c,2\n"
LABELS = "list,item,gain\nu1,b,1\nu2,b,1\n"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are of files here."""
    monkeypatch.chdir(tmp_path)
    write(**{"s.csv": SLATES, "l.csv": LABELS})


def write(**files: str) -> None:
    for name, text in files.items():
        Path(name).write_text(text, encoding="utf-8", newline="")


def invoked(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def value(metric: str, *arguments: str) -> float | None:
    found: float | None = run(*arguments, "--metrics", metric)["figures"][metric]["value"]
    return found


# ---------------------------------------------------------------- ids that are written in two ways

WRITTEN = [
    ("10", "10.0"),
    ("7", "007"),
    ("u1", "u1 "),
    ("u1", "U1"),
    ("u1", "'u1'"),
    ("u1", "\ufeffu1"),
    ("u1", '"""u1"""'),
    ("u1", "v9"),
]


@pytest.mark.parametrize(("one", "other"), WRITTEN)
@pytest.mark.parametrize("column", ["list", "item"])
@pytest.mark.parametrize("metric", ["mrr", "serendipity"])
def test_labels_that_meet_no_slate_are_refused_with_an_id_of_each(
    one: str, other: str, column: str, metric: str
) -> None:
    ids = {"list": "l", "item": "i"}
    shown, told = ids | {column: one}, ids | {column: other}
    write(
        **{
            "s.csv": "list,item,rank\n" + ",".join(shown.values()) + ",1\n",
            "l.csv": "list,item\n" + ",".join(told.values()) + "\n",
            "t.csv": f"user,item\nw,{shown['item']}\n",
        }
    )
    more = ["--train", "t.csv", "--items", "t.csv"] if metric == "serendipity" else []
    meant = other.strip('"') if other.startswith('"""') else other
    meant = f'"{meant}"' if other.startswith('"""') else meant
    said = refused("s.csv", "--labels", "l.csv", "--metrics", metric, *more)
    assert f"s.csv and l.csv have no {column} in common" in said
    assert f"the first has {one!r}, the second {meant!r}; write ids alike in both" in said


def test_two_ids_that_mean_the_same_are_shown_where_there_are_any() -> None:
    write(
        **{
            "s.csv": "list,item,rank\n10,a,1\n11,a,1\n9,a,1\n",
            "l.csv": "list,item\n1.0,a\n11.0,a\n",
        }
    )
    assert "the first has '11', the second '11.0'" in refused("s.csv", "--labels", "l.csv")


def test_trec_topics_that_never_meet_are_refused() -> None:
    write(run="1 Q0 d1 1 2.0 x\n", qrels="01 0 d1 1\n", other="1 0 D1 1\n")
    assert "have no list in common: the first has '1', the second '01'" in refused(
        "--run", "run", "--qrels", "qrels"
    )
    assert "no item in common: the first has 'd1', the second 'D1'" in refused(
        "--run", "run", "--qrels", "other"
    )


def test_lists_without_a_hit_are_no_error_where_ids_are_alike() -> None:
    write(**{"l.csv": "list,item\nu1,c\nu2,a\n"})
    assert value("mrr", "s.csv", "--labels", "l.csv") == 0.0


OTHERS = {
    "ratings": ["--ratings", "r.csv", "--predictions", "p.csv", "--metrics", "rmse"],
    "features": ["s.csv", "--features", "f.csv", "--metrics", "diversity"],
    "similarities": [
        *("s.csv", "--features", "sim.csv", "--similarity", "table", "--metrics", "diversity"),
    ],
    "train": ["s.csv", "--train", "t.csv", "--metrics", "average_popularity"],
    "bias": ["s.csv", "--features", "f.csv", "--train", "t.csv", "--metrics", "item_bias"],
    "users": ["s.csv", "--user-features", "uf.csv", "--train", "t.csv", "--metrics", "user_bias"],
    "seen": ["s.csv", "--labels", "l.csv", "--exclude-seen", "t.csv", "--metrics", "mrr"],
    "exact": ["s.csv", "--exact", "e.csv", "--metrics", "index_recall@2"],
    "neighbours": ["--neighbours", "n.csv", "--train", "t.csv", "--metrics", "neighbour_coverage"],
}


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_no_other_two_files_may_miss_each_other(name: str) -> None:
    write(
        **{
            "r.csv": "user,item,rating\n1,1,3\n",
            "p.csv": "user,item,prediction\n1.0,1,3\n",
            "f.csv": "item,feature\nA,x\n",
            "sim.csv": "item,other,similarity\nA,B,0.5\n",
            "t.csv": "user,item\nU1,A\n",
            "uf.csv": "user,feature\nu1,x\n",
            "e.csv": "list,item,rank\nU1,a,1\n",
            "n.csv": "user,neighbour\nu1,u2\n",
        }
    )
    assert "in common: the first has" in refused(*OTHERS[name])


# ------------------------------------------------------------------------------ parts, and --strict


def test_what_only_one_file_has_is_counted_and_strict_refuses_it() -> None:
    write(**{"l.csv": "list,item,gain\nu1,b,1\nu3,b,1\nu4,b,1\n"})
    found = run("s.csv", "--labels", "l.csv", "--metrics", "mrr")
    assert found["figures"]["mrr"]["value"] == 0.125, "1/2, and three lists of 0"
    assert found["notes"]["lists_without_labels"] == 1
    assert found["notes"]["labels_without_list"] == 2
    said = refused("s.csv", "--labels", "l.csv", "--metrics", "mrr", "--strict")
    assert said == (
        "--strict: Without a label: 1 list, of 0 each. Only in labels: 2 lists, of 0 each."
    )
    write(**{"l.csv": LABELS})
    assert value("mrr", "s.csv", "--labels", "l.csv", "--strict") == 0.75


def test_topics_without_qrels_are_counted() -> None:
    write(run="1 Q0 d 1 2 x\n2 Q0 d 1 2 x\n", qrels="1 0 d 1\n")
    found = run("--run", "run", "--qrels", "qrels", "--metrics", "mrr")
    assert (found["figures"]["mrr"]["n"], found["notes"]["lists_without_labels"]) == (1, 1)
    assert "Left out, without qrels: 1 topic." in refused(
        "--run", "run", "--qrels", "qrels", "--strict"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--ratings", "r.csv", "--predictions", "p.csv"], "without a prediction: 1 rating."),
        (
            ["s.csv", "--features", "f.csv", "--metrics", "diversity"],
            "Not in f.csv: 1 item of 3 in lists",
        ),
        (
            ["s.csv", "--train", "t.csv", "--metrics", "average_popularity"],
            "Not in t.csv: 2 items of 3",
        ),
        (["--events", "e.jsonl"], "Left out, as no valid event: 1 line."),
    ],
)
def test_strict_refuses_a_part_of_any_input(arguments: list[str], said: str) -> None:
    write(
        **{
            "r.csv": "user,item,rating\n1,1,3\n1,2,3\n",
            "p.csv": "user,item,prediction\n1,1,3\n",
            "f.csv": "item,feature\na,x\nb,y\n",
            "t.csv": "user,item\nw,a\n",
            "e.jsonl": lines(IMPRESSION).decode() + "{broken\n",
        }
    )
    assert said in refused(*arguments, "--strict")
    run(*arguments)


def test_an_item_twice_in_a_list_is_said() -> None:
    write(**{"s.csv": "list,item,rank\nu1,a,1\nu1,b,2\nu1,b,3\nu2,b,1\n"})
    found = run("s.csv", "--labels", "l.csv", "--metrics", "mrr")
    assert found["figures"]["mrr"]["value"] == 0.75
    assert found["notes"]["repeated_items"] == 1
    write(**{"f.csv": "item,feature\na,x\nb,y\n"})
    found = run("s.csv", "--features", "f.csv", "--metrics", "diversity")
    assert found["notes"]["repeated_items"] == 1


def test_compare_and_notebooks_are_strict_too() -> None:
    write(**{"b.csv": "list,item,rank\nu1,b,1\nu2,b,1\nu5,b,1\n"})
    with pytest.raises(InputError, match="Without a label: 1 list,"):
        invoked("compare", "s.csv", "b.csv", "--labels", "l.csv", "--strict")
    with pytest.raises(InputError, match="Without a label: 1 list,"):
        api.evaluate("b.csv", "mrr", labels="l.csv", strict=True)


# -------------------------------------------------------------------- doubled keys that contradict


@pytest.mark.parametrize("order", [("0", "2"), ("2", "0"), ("1", "0.5")])
def test_two_labels_of_an_item_that_differ_are_refused(order: tuple[str, str]) -> None:
    one, other = order
    write(
        **{
            "l.csv": f"list,item,gain\nu1,b,{one}\nu2,b,1\nu1,b,{other}\n",
            "run": "u1 Q0 b 1 1 x\n",
            "qrels": f"u1 0 b {one}\nu1 0 b {other}\n",
            "t.csv": "user,item\nw,a\nw,b\nw,c\n",
        }
    )
    said = "list u1, item b: two labels with different gains; keep one of them"
    assert refused("s.csv", "--labels", "l.csv") == f"l.csv: {said}"
    assert refused("--run", "run", "--qrels", "qrels") == f"qrels: {said}"
    more = ["--train", "t.csv", "--items", "t.csv", "--metrics", "serendipity"]
    assert refused("s.csv", "--labels", "l.csv", *more) == f"l.csv: {said}"


def test_two_labels_of_an_item_that_agree_are_one() -> None:
    write(**{"l.csv": LABELS + "u1,b,1\n"})
    assert value("recall@5", "s.csv", "--labels", "l.csv") == 1.0


@pytest.mark.parametrize(
    ("rows", "measure", "said"),
    [
        ("item,feature,value\na,x,1\nb,x,1\na,x,2", "cosine", "f.csv: a, x: two different values"),
        (
            "item,other,similarity\na,b,0.1\na,b,0.9",
            "table",
            "f.csv: a, b: two different values",
        ),
    ],
)
def test_two_facts_of_one_item_that_differ_are_refused(rows: str, measure: str, said: str) -> None:
    write(**{"f.csv": rows})
    arguments = ["s.csv", "--features", "f.csv", "--metrics", "diversity", "--similarity", measure]
    assert said in refused(*arguments)


# ------------------------------------------------------------------------ names of columns of gains

NAMES = ["gain", "relevance", "rel", "grade", "label", "rating", "relevant", "clicked", "click"]


@pytest.mark.parametrize("name", [*NAMES, "score", "is_relevant", "target", "Clicked"])
def test_gains_are_found_by_the_names_of_the_field(name: str) -> None:
    """One of three items is relevant: a third. Each row counted 1 before, the zeros too."""
    write(
        **{
            "s.csv": "list,item,rank\nu,a,1\nu,b,2\nu,c,3\n",
            "l.csv": f"list,item,{name}\nu,a,0\nu,b,1\nu,c,0\n",
        }
    )
    done = invoked("evaluate", "s.csv", "--labels", "l.csv", "--metrics", "precision@3")
    assert done.stderr == f"Gains of l.csv: column {name}.\n"
    found = run("s.csv", "--labels", "l.csv", "--metrics", "precision@3")
    assert found["figures"]["precision@3"]["value"] == pytest.approx(1 / 3, abs=1e-9)
    assert found["notes"]["gain_column"] == name


@pytest.mark.parametrize("more", ["", ",when"])
def test_labels_without_a_column_of_gains_are_said_to_count_1(more: str) -> None:
    cell = more and ",0"
    write(**{"l.csv": f"list,item{more}\nu1,b{cell}\nu2,b{cell}\n"})
    done = invoked("evaluate", "s.csv", "--labels", "l.csv", "--metrics", "mrr", "--json")
    assert done.stderr == "Gains of l.csv: no column of them, so each label counts 1.\n"
    assert json.loads(done.stdout)["notes"]["gain_column"] is None


# ------------------------------------------------------------------------------ cells and columns

FRAMES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "pandas": pd.DataFrame,
    "polars": lambda columns: pl.DataFrame(columns, strict=False),
    "arrow": pa.table,
}


@pytest.mark.parametrize("library", sorted(FRAMES))
@pytest.mark.parametrize("column", ["rank", "score"])
@pytest.mark.parametrize("empty", [None, float("nan")])
def test_an_item_without_a_place_is_refused(library: str, column: str, empty: Any) -> None:
    """It stood last in its list, or ended the run, by the library that had made the frame."""
    frame = FRAMES[library]({"list": ["u1"] * 2, "item": ["a", "b"], column: [1.0, empty]})
    with pytest.raises(InputError, match=f"files: row 2, list u1: column {column}: is empty"):
        api.evaluate(frame, "mrr", labels="l.csv")


@pytest.mark.parametrize("library", sorted(FRAMES))
def test_nan_beside_a_rank_is_no_score_in_any_library(library: str) -> None:
    frame = FRAMES[library](
        {"list": ["u1"] * 2, "item": ["a", "b"], "rank": [1, 2], "score": [1.0, float("nan")]}
    )
    found = api.evaluate(frame, ["mrr", "auc"], labels="l.csv").document()["figures"]
    assert (found["mrr"]["value"], found["auc"]["n"]) == (0.25, 0)


def test_nan_in_a_file_is_an_empty_cell(tmp_path: Path) -> None:
    frame = pl.DataFrame({"user": ["1", "1"], "item": ["a", "b"], "rating": [3.0, 4.0]})
    frame.with_columns(prediction=pl.Series([3.0, float("nan")])).write_parquet("r.parquet")
    frame.with_columns(prediction=pl.Series([3.0, float("nan")])).write_csv("r.csv")
    for name in ("r.parquet", "r.csv"):
        found = run("--ratings", name, "--metrics", "mae")
        assert found["figures"]["mae"] == {"value": 0.0, "low": None, "high": None, "n": 1}
        assert found["notes"]["ratings_without_prediction"] == 1


NESTED: dict[str, list[Any]] = {"lists": [["a"], ["b"]], "objects": [{"id": "a"}, {"id": "b"}]}


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "pandas", "polars", "arrow"])
@pytest.mark.parametrize("several", sorted(NESTED))
@pytest.mark.parametrize("column", ["list", "item"])
@pytest.mark.parametrize("metric", ["personalization", "mrr"])
def test_a_column_of_several_values_is_refused_with_the_cure(
    kind: str, several: str, column: str, metric: str
) -> None:
    columns: dict[str, Any] = {"list": ["u1", "u2"], "item": ["b", "b"], "rank": [1, 1]}
    columns[column] = NESTED[several]
    given: Any = f"n.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table(columns), given)
    elif kind == "jsonl":
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        write(**{given: "".join(json.dumps(row) + "\n" for row in rows)})
    else:
        given = FRAMES[kind](columns)
    with pytest.raises(InputError) as error:
        api.evaluate(given, metric, labels="l.csv" if metric == "mrr" else None)
    assert f"column {column}" in str(error.value)
    assert "write one value a row (explode the lists, take a field of the objects)" in str(
        error.value
    )


@pytest.mark.parametrize("make", [pd.Series, pl.Series, pd.Index])
@pytest.mark.parametrize("argument", ["files", "labels"])
def test_one_column_is_no_frame_and_no_name_of_a_file(make: Any, argument: str) -> None:
    given = {"files": "s.csv", "labels": "l.csv"} | {argument: make(["s.csv", "l.csv"])}
    with pytest.raises(InputError, match=rf"{argument}: is one column \({make.__name__}\): give"):
        api.evaluate(given["files"], "mrr", labels=given["labels"])


# ----------------------------------------------------------------------- marks, other encodings

EVENTS = lines(IMPRESSION, CLICK)
ENCODED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": lambda content: bytes(cramjam.zstd.compress(content)),
}


@pytest.mark.parametrize("end", sorted(ENCODED))
@pytest.mark.parametrize(
    "content",
    [
        codecs.BOM_UTF8 + EVENTS,
        codecs.BOM_UTF8 + EVENTS.replace(b"\n", b"\r\n"),
        codecs.BOM_UTF8 + lines(IMPRESSION) + codecs.BOM_UTF8 + lines(CLICK),
    ],
)
def test_no_event_is_lost_behind_a_mark(end: str, content: bytes) -> None:
    name = f"e.jsonl{end}"
    Path(name).write_bytes(ENCODED[end](content))
    document = api.replay(name).document()
    assert document["events"]["accepted"] == {"impression": 1, "slate": 0, "feedback": 1}
    assert sum(document["events"]["rejected"].values()) == 0
    assert value("daily_positive_rate", "--events", name) == 1.0


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
@pytest.mark.parametrize("end", sorted(ENCODED))
def test_events_in_another_encoding_are_refused(encoding: str, end: str) -> None:
    name = f"e.jsonl{end}"
    Path(name).write_bytes(ENCODED[end](EVENTS.decode().encode(encoding)))
    with pytest.raises(InputError, match=r"is UTF-16 or UTF-32: write it as UTF-8 \(iconv"):
        api.replay(name)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("name", ["s.csv", "s.tsv", "s.jsonl"])
def test_tables_in_another_encoding_are_one_line_of_text(encoding: str, name: str) -> None:
    text = '{"list": "u1", "item": "a", "rank": 1}\n' if name.endswith("jsonl") else SLATES
    Path(name).write_bytes(text.encode(encoding))
    assert refused(name, "--labels", "l.csv") == (
        f"{name}: is UTF-16 or UTF-32: write it as UTF-8 (iconv -f UTF-16 -t UTF-8)"
    )


def test_settings_and_secrets_may_begin_with_a_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    write(**{"c.yaml": "\ufeffks: [3]\r\n", "secret": "\ufeffsesame-open\r\n"})
    monkeypatch.setenv("STREAMEVAL_PSEUDONYMIZE_FILE", "secret")
    settings = load(Path("c.yaml"))
    assert settings.ks == (3,)
    assert settings.pseudonymize is not None
    assert settings.pseudonymize.get_secret_value() == "sesame-open"


def test_files_of_recbole_name_the_types_of_their_columns() -> None:
    """https://recbole.io/docs/user_guide/data/atomic_files.html."""
    head = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    write(**{"ml.test.inter": head + "u1\tb\t1\t9\nu2\tb\t1.0\t9\n"})
    assert value("ndcg@2", "s.csv", "--labels", "ml.test.inter") == value(
        "ndcg@2", "s.csv", "--labels", "l.csv"
    )
    write(**{"film.item": "item_id:token\tgenre:token_seq\na\tx y\nb\ty\nc\tz\n"})
    assert value("catalogue_coverage@2", "s.csv", "--items", "film.item") == 1.0
    write(**{"odd.csv": "list,item,gain:\nu1,b,1\n"})
    found = run("s.csv", "--labels", "odd.csv", "--metrics", "ndcg@2")
    assert found["notes"]["gain_column"] is None


# ------------------------------------------------------------------- output that lacks characters


def printed(
    monkeypatch: pytest.MonkeyPatch, encoding: str, *arguments: str
) -> tuple[int, str, str]:
    """Run the command line with output in an encoding; return exit code, output and errors."""
    streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2)]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "argv", ["streameval", *arguments])
        patch.setattr(sys, "stdout", streams[0])
        patch.setattr(sys, "stderr", streams[1])
        with pytest.raises(SystemExit) as end:
            main()
    code = end.value.code
    assert isinstance(code, int)
    for stream in streams:
        stream.flush()
    out, err = (stream.buffer.getvalue().decode(encoding) for stream in streams)  # type: ignore[attr-defined]
    return code, out, err


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["replay", "e.jsonl"],
        ["replay", "e.jsonl", "--users", "--json"],
        ["replay", "é→.jsonl"],
        ["evaluate", "m.csv", "--labels", "l.csv", "--by", "model"],
        ["evaluate", "m.csv", "--labels", "l.csv", "--by", "model", "--json"],
        ["evaluate", "--list"],
        ["evaluate", "--list", "--json"],
        ["evaluate", "--help"],
        ["compare", "s.csv", "t→.csv", "--labels", "l.csv"],
        ["schema"],
    ],
)
def test_characters_that_cannot_be_written_are_escaped(
    monkeypatch: pytest.MonkeyPatch, encoding: str, arguments: list[str]
) -> None:
    names = {"variant": "né→😀", "user_id": "ü→"}
    write(
        **{
            "e.jsonl": lines(IMPRESSION | names, CLICK | {"user_id": "ü→"}, {}).decode(),
            "m.csv": "list,item,rank,model\nu1,b,1,né→\nu2,b,1,né→\n",
            "t→.csv": "list,item,rank\nu1,b,2\nu2,b,1\n",
        }
    )
    code, out, err = printed(monkeypatch, encoding, *arguments)
    assert code == (2 if "é→.jsonl" in arguments else 0), err
    whole = printed(monkeypatch, "utf-8", *arguments)[1]
    if "--json" in arguments or arguments == ["schema"]:
        assert json.loads(out) == json.loads(whole)
    elif "→" in whole:
        assert "\\u2192" in out


# ------------------------------------------------------------------------------------------ pipes


@pytest.fixture
def pipe() -> Iterator[Callable[[bytes], str]]:
    """Return a function that puts bytes into a pipe and returns its name, as `<(...)` has one."""
    with contextlib.ExitStack() as stack:

        def filled(content: bytes) -> str:
            end, entry = os.pipe()
            stack.callback(os.close, end)
            os.write(entry, content)
            os.close(entry)
            return f"/dev/fd/{end}"

        yield filled


def test_events_come_from_a_pipe(pipe: Callable[[bytes], str]) -> None:
    accepted = {"impression": 1, "slate": 0, "feedback": 1}
    assert api.replay(pipe(EVENTS)).document()["events"]["accepted"] == accepted
    assert value("daily_positive_rate", "--events", pipe(EVENTS)) == 1.0


def test_a_shell_gives_pipes_to_commands() -> None:
    Path("e.jsonl").write_bytes(gzip.compress(EVENTS))
    command = f'"{sys.executable}" -m streameval.cli.app replay <(zcat < e.jsonl) --json'
    done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=60, check=True)
    assert json.loads(done.stdout)["events"]["accepted"]["feedback"] == 1


def test_a_packed_pipe_is_unpacked_or_told_how() -> None:
    for name, content in (("p.gz", gzip.compress(EVENTS)), ("p.zst", b"")):
        os.mkfifo(name)
        writer = threading.Thread(target=Path(name).write_bytes, args=(content,))
        writer.start()
        if name == "p.gz":
            assert api.replay(name).document()["events"]["accepted"]["feedback"] == 1
        else:
            with pytest.raises(InputError, match=r"p.zst: it is a pipe: unpack it before"):
                api.replay(name)
        writer.join()


@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate", "{}", "--labels", "l.csv"],
        ["evaluate", "s.csv", "--labels", "{}"],
        ["evaluate", "--run", "{}", "--qrels", "l.csv"],
        ["evaluate", "--ratings", "{}"],
        ["evaluate", "-", "--labels", "l.csv"],
        ["compare", "s.csv", "{}", "--labels", "l.csv"],
        ["compare", "{}", "--by", "variant", "--against", "A"],
        ["check", "--snapshot", ".", "--outcomes", ".", "--log", "0={}"],
        [
            *("backfill", "--files", "{}", "--output", "out", "--from", "2025-01-01T00:00:00Z"),
            *("--to", "2025-01-02T00:00:00Z"),
        ],
    ],
)
def test_other_files_cannot_be_pipes_and_say_so_in_one_line(
    pipe: Callable[[bytes], str], arguments: list[str]
) -> None:
    name = pipe(SLATES.encode())
    with pytest.raises(InputError) as error:
        invoked(*(one.format(name) for one in arguments))
    assert str(error.value).endswith(
        ": is a pipe, which can be read only once: write the data to a file before"
    )


# ----------------------------------------------------------------------- values that count anyway


@pytest.mark.parametrize(("cell", "warned"), [(0, 1), (-2.5, 1), (0.5, 0), (None, 0)])
def test_a_value_that_is_not_above_0_is_warned_of_once_by_kind(
    cell: float | None, warned: int
) -> None:
    odd = CLICK | {"value": cell}
    taken_back = CLICK | {"retract": True, "value": 0, "ts": CLICK["ts"] + 9, "item_id": "z"}
    Path("e.jsonl").write_bytes(lines(IMPRESSION, odd, odd | {"ts": odd["ts"] + 5}, taken_back))
    said = (
        "feedback 'click' with a value of 0 or less counts as positive: write `click>0` in"
        " `positives` if it should not\n"
    )
    done = invoked("replay", "e.jsonl", "--json")
    assert done.stderr == said * warned
    assert json.loads(done.stdout)["rates"][0]["positives"] == 1
    done = invoked("evaluate", "--events", "e.jsonl", "--json")
    assert done.stderr == said * warned
    assert api.replay("e.jsonl").warnings == [said.strip()] * warned


@pytest.mark.parametrize(("threshold", "positives"), [("click>0", 0), ("click>=0", 1)])
def test_a_threshold_says_what_counts_and_nobody_is_warned(threshold: str, positives: int) -> None:
    found = api.replay([IMPRESSION, CLICK | {"value": 0}], positives=[threshold])
    assert found.document()["rates"][0]["positives"] == positives
    assert found.warnings == []
