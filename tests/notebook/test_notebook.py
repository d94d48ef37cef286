"""The public Python functions: for every library of frames the bits of the command line."""

from __future__ import annotations

import json
import math
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import matplotlib as mpl
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq
import pytest
from snapshots import Counters, write_snapshot
from typer.testing import CliRunner

import streameval
from streameval.base import extras
from streameval.base.errors import ConfigError, InputError
from streameval.cli.app import app
from streameval.core.outcome import FeedbackOutcome, Outcome
from streameval.files.outcome_files import table
from streameval.stats.intervals import LEVEL, student

START = 1_769_842_800_000  # 31 January 2026, 07:00 UTC

LIBRARIES: dict[str, Callable[[pa.Table], Any]] = {
    "pandas": lambda rows: rows.to_pandas(),
    "polars": pl.from_arrow,
    "pyarrow": lambda rows: rows,
    "reader": lambda rows: rows.to_reader(),
    "duckdb": duckdb.from_arrow,
}
"""How a table of Arrow becomes a frame of each library."""

SETTINGS = {"positives": ["click", "buy"], "ks": [3], "windows": [{"size": "1h", "slide": "1m"}]}


@pytest.fixture(params=LIBRARIES)
def frame(request: pytest.FixtureRequest) -> Callable[[pa.Table], Any]:
    return LIBRARIES[request.param]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("streameval.yaml").write_text("positives: [click, buy]\nks: [3]\n")


def printed(*arguments: str) -> Any:
    """The document of a command with `--json`."""
    done = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def of(found: Any) -> Any:
    """A result's document, as it comes out of JSON."""
    return json.loads(json.dumps(found.document(), allow_nan=False))


def outcome_rows(count: int = 400) -> Iterator[Outcome]:
    chance = random.Random(14)
    for number in range(count):
        size = chance.choice((0, 1, 3, 5, 5))
        hits = [index for index in range(size) if chance.random() < 0.3]
        feedback = [
            FeedbackOutcome(
                index, chance.choice(("click", "buy")), 1.0, 1_000 + index, retract=False
            )
            for index in hits
        ]
        yield Outcome(
            offset=number,
            user=f"u{chance.randrange(60)}",
            request=None if size == 1 else f"r{number}",
            labels=(chance.choice("AB"), chance.choice(("home", "", "straße"))),
            time=START + 60_000 * number,
            items=[f"i{index}" for index in range(size)],
            positions=[None if size == 3 else index + 1 for index in range(size)],
            ranks=list(range(1, size + 1)),
            shown=[START + 60_000 * number] * size,
            scores=[None if chance.random() < 0.1 else chance.random() for _ in range(size)],
            propensities=[None] * size,
            gains=[1.0 if index in hits else 0.0 for index in range(size)],
            feedback=feedback,
            fallback=chance.random() < 0.1,
            latency_ms=chance.choice((None, 12.5)),
        )


def outcomes() -> pa.Table:
    rows = table(0, list(outcome_rows()), ("variant", "surface"))
    Path("outcomes").mkdir()
    pq.write_table(rows.slice(0, 150), "outcomes/p0-0-1-a.parquet")
    pq.write_table(rows.slice(150), "outcomes/p0-1-2-a.parquet")
    return rows


def ranked() -> tuple[pa.Table, pa.Table, pa.Table]:
    """Lists of two models and labels, also as files; ids are numbers."""
    chance = random.Random(5)
    tables = []
    for name in ("old", "new"):
        rows = [
            {"user": user, "item": item, "score": round(chance.random(), 1), "group": user % 3}
            for user in range(50)
            for item in chance.sample(range(30), 8)
        ]
        tables.append(pa.Table.from_pylist(rows))
        pyarrow.csv.write_csv(tables[-1], f"{name}.csv")
    labels = [
        {"user": user, "item": item, "gain": chance.choice((1.0, 2.5))}
        for user in range(50)
        for item in chance.sample(range(30), 4)
    ]
    tables.append(pa.Table.from_pylist(labels))
    pyarrow.csv.write_csv(tables[-1], "labels.csv")
    old, new, judged = tables
    return old, new, judged


# --- evaluate


def test_a_frame_of_outcomes_gives_the_bits_of_the_files(frame: Callable[[pa.Table], Any]) -> None:
    rows = outcomes()
    metrics = "ndcg@3,map,recall@5,auc,daily_positive_rate"
    wanted = printed("evaluate", "outcomes", "--metrics", metrics, "--per-list")
    found = streameval.evaluate(frame(rows), metrics, per_list=True)
    assert of(found) == wanted
    assert wanted["figures"]["auc"]["value"] is not None
    names = ("--by", "variant,surface", "--against", "A", "--metrics", "ndcg@3,hit_rate@5")
    split = streameval.evaluate(
        frame(rows), ["ndcg@3", "hit_rate@5"], by=["variant", "surface"], against="A"
    )
    assert of(split) == printed("evaluate", "outcomes", *names)
    assert split.differences is not None
    assert len(split.differences) == 6


def test_frames_of_lists_and_labels_give_the_bits_of_the_files(
    frame: Callable[[pa.Table], Any],
) -> None:
    old, _, labels = ranked()
    options = ("old.csv", "--labels", "labels.csv", "--metrics", "ndcg@5,map,diversity@5")
    features = pa.table({"item": list(range(30)), "feature": [f"f{n % 4}" for n in range(30)]})
    pyarrow.csv.write_csv(features, "features.csv")
    wanted = printed("evaluate", *options, "--features", "features.csv", "--by", "group")
    found = streameval.evaluate(
        frame(old),
        "ndcg@5,map,diversity@5",
        labels=frame(labels),
        features=frame(features),
        by="group",
    )
    assert of(found) == wanted
    assert [row["figure"] for row in found][:3] == ["ndcg@5", "map", "diversity@5"]


def test_frames_of_ratings_give_the_bits_of_the_files(frame: Callable[[pa.Table], Any]) -> None:
    chance = random.Random(3)
    rows = [
        {
            "user": f"u{user}",
            "item": f"i{item}",
            "rating": chance.randrange(1, 6),
            "prediction": None if item == 2 else chance.random() * 5,
        }
        for user in range(20)
        for item in range(4)
    ]
    ratings = pa.Table.from_pylist(rows)
    pq.write_table(ratings, "ratings.parquet")
    names = "rmse,mae_user,mae_item"
    wanted = printed("evaluate", "--ratings", "ratings.parquet", "--metrics", names)
    assert of(streameval.evaluate(ratings=frame(ratings), metrics=names)) == wanted


def test_frames_of_events_give_the_daily_rate_of_the_files(
    frame: Callable[[pa.Table], Any],
) -> None:
    rows = event_table()
    options = ("--events", "events.jsonl", "--metrics", "daily_positive_rate", "--by", "day")
    wanted = printed("evaluate", *options, "--config", "streameval.yaml")
    found = streameval.evaluate(
        events=frame(rows), metrics="daily_positive_rate", by="day", config=SETTINGS
    )
    assert of(found) == wanted


def test_parameters_have_the_names_and_the_bounds_of_the_options() -> None:
    old, _, labels = ranked()
    found = streameval.evaluate(old, "rbp@5", labels=labels, persistence=0.5)
    options = ("old.csv", "--labels", "labels.csv", "--metrics", "rbp@5", "--persistence", "0.5")
    assert of(found) == printed("evaluate", *options)


# --- compare


def test_arms_of_a_frame_have_the_bits_of_the_files(
    frame: Callable[[pa.Table], Any], tmp_path: Path
) -> None:
    rows = outcomes()
    past = {f"u{user}": Counters(10 + user, 4, user % 5, START - 1) for user in range(60)}
    write_snapshot(tmp_path / "before", past)
    wanted = printed(
        *("compare", "outcomes", "--by", "variant", "--against", "A", "--primary", "ndcg@3"),
        *("--guardrails", "empty_rate", "--metrics", "positive_rate", "--before", "before"),
        *("--since", str(START + 60_000), "--config", "streameval.yaml"),
    )
    found = streameval.compare(
        frame(rows),
        by="variant",
        against="A",
        primary="ndcg@3",
        guardrails="empty_rate",
        metrics=["positive_rate"],
        before="before",
        since=START + 60_000,
        config="streameval.yaml",
    )
    assert of(found) == wanted
    assert found.to_arrow().column("adjusted_theta").null_count == 0
    assert len(found.sentences) == 3


def test_models_in_frames_have_the_bits_of_the_files(frame: Callable[[pa.Table], Any]) -> None:
    old, new, labels = ranked()
    wanted = printed("compare", "old.csv", "new.csv", "--labels", "labels.csv")
    found = streameval.compare({"old": frame(old), "new": frame(new)}, labels=frame(labels))
    text = json.dumps(wanted).replace("old.csv", "old").replace("new.csv", "new")
    assert of(found) == json.loads(text)
    names = "file:///a", "\0" + "é" * 300
    hostile = streameval.compare(
        dict(zip(names, (frame(old), frame(new)), strict=True)), labels=frame(labels)
    )
    assert {(row["control"], row["arm"]) for row in hostile} == {names}
    assert [row["value"] for row in hostile] == [row["value"] for row in found]
    unnamed = streameval.compare([frame(old), frame(new)], labels=frame(labels))
    assert {(row["arm"], row["control"]) for row in unnamed} == {("files[1]", "files[0]")}


# --- replay


def event_table() -> pa.Table:
    """Events as rows, and as lines of `events.jsonl`."""
    chance = random.Random(8)
    events: list[dict[str, Any]] = []
    for number in range(200):
        ts, user = START + 10_000 * number, f"u{chance.randrange(20)}"
        items = chance.sample([f"i{n}" for n in range(9)], 4)
        common = {"ts": ts, "user_id": user, "request_id": f"r{number}"}
        events.append({"type": "slate", **common, "variant": chance.choice("AB"), "items": items})
        if chance.random() < 0.5:
            kind, value = chance.choice(("click", "buy")), chance.choice((None, 2.5))
            feedback = {"item_id": chance.choice(items), "feedback": kind, "value": value}
            events.append({"type": "feedback", **common, **feedback})
    events.append({"type": "impression", "ts": START + 1_999_000, "user_id": "u1", "item_id": "i1"})
    events[-1] |= {"position": 2, "variant": "A"}
    events.append({"type": "slate", "ts": START, "user_id": ""})
    lines = [json.dumps({k: v for k, v in event.items() if v is not None}) for event in events]
    Path("events.jsonl").write_text("\n".join(lines))
    return pa.Table.from_pandas(pd.DataFrame(events))


def test_a_frame_of_events_gives_the_bits_of_the_file(frame: Callable[[pa.Table], Any]) -> None:
    rows = event_table()
    wanted = printed("replay", "events.jsonl", "--config", "streameval.yaml", "--users")
    assert wanted["events"]["rejected"]["invalid"] == 1
    assert rows.schema.field("position").type == pa.float64(), "as pandas has it"
    found = streameval.replay(frame(rows), config="streameval.yaml", users=True)
    assert of(found) == wanted
    assert wanted["events"]["accepted"]["impression"] == 1
    (said,) = found.rejected
    assert said.startswith(f"events:{len(rows)}: invalid: ")


def test_instants_in_a_frame_are_instants() -> None:
    rows = event_table()
    wanted = streameval.replay("events.jsonl", **SETTINGS)
    ts = rows.column("ts").cast(pa.timestamp("ms", "Europe/Berlin"))
    at = rows.schema.get_field_index("ts")
    for unit in ("ms", "us", "ns"):
        kind = pa.timestamp(unit, "Europe/Berlin")
        found = streameval.replay(rows.set_column(at, "ts", ts.cast(kind)), **SETTINGS)
        assert of(found) == of(wanted)


def test_dicts_bytes_and_paths_of_events_are_the_same() -> None:
    event_table()
    lines = Path("events.jsonl").read_bytes().splitlines()
    wanted = of(streameval.replay("events.jsonl", config=SETTINGS))
    for events in (
        lines,
        map(json.loads, lines),
        (line for line in lines),
        Path("events.jsonl"),
        [Path("events.jsonl")],
    ):
        assert of(streameval.replay(events, **SETTINGS)) == wanted
    Path("a.jsonl").write_bytes(b"\n".join(lines[:100]))
    Path("b.jsonl").write_bytes(b"\n".join(lines[100:]))
    assert of(streameval.replay(["a.jsonl", "b.jsonl"], config=SETTINGS)) == wanted
    pandas = pd.DataFrame([json.loads(line) for line in lines]).to_dict("records")
    del pandas[-2:]  # NaN, and a position with a decimal point
    assert of(streameval.replay(pandas, **SETTINGS)) == of(
        streameval.replay(lines[:-2], **SETTINGS)
    )


def test_settings_come_before_those_of_the_configuration() -> None:
    event_table()
    found = streameval.replay("events.jsonl", config="streameval.yaml", ks=[1, 2])
    assert {row["k"] for row in found["ranking"]} == {1, 2}
    later = streameval.replay("events.jsonl", config=SETTINGS, at="2026-02-10T00:00:00Z")
    assert len(later["rates"]) == 0


# --- outcomes


def test_outcome_files_are_a_table_of_every_library() -> None:
    rows = outcomes()
    found = streameval.outcomes("outcomes")
    assert found.to_arrow().equals(rows)
    assert pa.table(found).equals(rows)
    assert found.to_polars().equals(pl.from_arrow(rows))
    assert found.to_pandas()["user"].tolist() == rows.column("user").to_pylist()
    counts = found.to_duckdb().aggregate("variant, count(*) AS n").order("variant").fetchall()
    assert sum(count for _, count in counts) == len(rows)
    with duckdb.connect() as connection:
        assert found.to_duckdb(connection).filter("user = 'u1'").fetchall()
    assert repr(found).startswith("400 slates in 2 outcome files; the first 5:")
    assert of(streameval.evaluate(found, "ndcg@3")) == of(streameval.evaluate(rows, "ndcg@3"))


def test_columns_that_a_file_of_a_former_version_lacks_are_null() -> None:
    rows = outcomes()
    old = rows.drop_columns(["fallback", "surface"]).slice(0, 10)
    pq.write_table(old, "outcomes/o.parquet")
    found = streameval.outcomes(["outcomes/o.parquet", "outcomes/p0-0-1-a.parquet"])
    assert found.to_arrow().column("fallback").null_count == 10
    relation = found.to_duckdb().filter("surface IS NULL AND fallback IS NULL")
    assert len(relation.fetchall()) == 10


def test_outcomes_may_be_named_by_a_uri(tmp_path: Path) -> None:
    rows = outcomes()
    assert streameval.outcomes(f"file://{tmp_path}/outcomes").to_arrow().equals(rows)


# --- Results ----------------------------------------------------------------------------------


def test_results_become_frames_of_every_library() -> None:
    found = streameval.evaluate(outcomes(), "ndcg@3,map", by="variant")
    rows = found.to_arrow()
    assert rows.column_names == ["variant", "figure", "value", "low", "high", "n"]
    assert len(rows) == len(found) == 6
    assert found.to_pandas()["value"].tolist() == rows.column("value").to_pylist()
    assert found.to_polars().equals(pl.from_arrow(rows))
    assert pl.DataFrame(found).equals(found.to_polars())
    assert duckdb.from_arrow(pa.table(found)).fetchall() == duckdb.from_arrow(rows).fetchall()
    assert found["map"].value == rows.column("value")[1].as_py()
    empty = streameval.replay([], **SETTINGS)
    assert len(empty.to_arrow()) == len(empty["ranking"].to_arrow()) == 0
    assert "No window holds an impression." in repr(empty)


def test_a_row_of_replay_has_the_name_that_experiments_use() -> None:
    event_table()
    found = streameval.replay("events.jsonl", **SETTINGS)
    names = {row["figure"] for row in found}
    assert {"ndcg@3", "positive_rate{feedback=buy}", "empty_rate"} <= names
    ranking = found["ranking"].to_pandas()
    value, stderr = ranking["ndcg"][0], ranking["ndcg_stderr"][0]
    row = next(row for row in found if row["figure"] == "ndcg@3")
    assert (row["value"], row["stderr"]) == (value, stderr)
    trials = value * (1 - value) / stderr**2
    users = found["rates"].to_pandas()["users"][0]
    t = student(LEVEL, round(256 * (1 - (255 / 256) ** users)) - 1)
    for bound in (row["low"], row["high"]):  # as Wilson defined them, on trials cut by (z/t)²
        distance = abs(value - bound) / math.sqrt(bound * (1 - bound) / trials)
        assert distance == pytest.approx(t, rel=1e-6)
    rank = next(row for row in found if row["figure"] == "mean_rank_of_positives" and row["stderr"])
    assert rank["high"] - rank["value"] == pytest.approx(t * rank["stderr"])
    certain = {row["figure"]: row for row in found if row["stderr"] == 0}
    assert certain["empty_rate"]["low"] == 0 < certain["empty_rate"]["high"] < 1


def test_text_and_html_hold_the_figures_and_no_foreign_markup() -> None:
    rows = outcomes().to_pandas()
    rows["variant"] = rows["variant"].replace({"B": "<script>alert(1)</script>[bold]"})
    found = streameval.evaluate(rows, "ndcg@3", by="variant", per_list=True)
    shown = found._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert f"{found['ndcg@3'].value:.4f}" in shown
    assert "[bold]" in repr(found)
    assert "\x1b" not in repr(found)
    assert found.lists is not None
    assert repr(found.lists).endswith("more rows")
    other = streameval.compare(rows, by="variant", against="A", metrics="ndcg@10")
    assert "<script>" not in other._repr_html_()
    event = json.dumps({"<b>": "<i>"}).encode()
    assert "<b>" not in streameval.replay([event], **SETTINGS)._repr_html_()
    event_table()
    played = streameval.replay("events.jsonl", **SETTINGS)._repr_html_()
    assert "<caption>Ranking</caption>" in played
    assert "stderr" not in played


def test_charts_are_pictures_with_every_interval(tmp_path: Path) -> None:
    rows = outcomes()
    found = streameval.evaluate(rows, "ndcg@3,map", by="variant")
    chart = found.chart()
    again = streameval.evaluate(rows, "ndcg@3,map", by="variant").chart()
    assert chart._repr_svg_() == again._repr_svg_()
    panels = chart.figure.axes
    assert [panel.get_title(loc="left") for panel in panels] == ["ndcg@3", "map"]
    assert [text.get_text() for text in panels[0].get_yticklabels()] == ["all", "A", "B"]
    drawn = [line.get_xdata() for line in panels[0].lines if len(line.get_xdata()) == 2]
    assert [tuple(ends) for ends in drawn] == [
        (row["low"], row["high"]) for row in found if row["figure"] == "ndcg@3"
    ]
    chart.save(tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
    compared = streameval.compare(rows, by="variant", against="A", metrics="ndcg@5,empty_rate")
    assert len(compared.chart("ndcg@5").figure.axes[0].get_yticks()) == 1
    event_table()
    assert streameval.replay("events.jsonl", **SETTINGS).chart("ndcg@3", "map@3").figure.axes
    assert mpl.rcParams["svg.hashsalt"] is None, "the settings of the notebook stay as they are"


def test_outcome_files_draw_what_evaluate_says_of_them() -> None:
    outcomes()
    rows = streameval.outcomes("outcomes")
    for figures, by in ((("ndcg@3", "map"), "variant"), (("mrr",), ["variant", "surface"])):
        expected = streameval.evaluate("outcomes", figures, by=by)
        drawn = rows.chart(*figures, by=by)
        assert drawn._repr_svg_() == expected.chart()._repr_svg_()
        assert len(drawn.figure.axes) == len(figures)
    assert rows.chart()._repr_svg_() == streameval.evaluate("outcomes").chart()._repr_svg_()
    with pytest.raises(streameval.StreamevalError, match="ndgc@3"):
        rows.chart("ndgc@3")


def test_the_page_runs_as_it_is_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    outcomes()
    past = {f"u{user}": Counters(10 + user, 4, user % 5, START - 1) for user in range(60)}
    write_snapshot(tmp_path / "before", past)
    page = (Path(__file__).parents[2] / "docs/notebooks.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", page, re.DOTALL)
    names: dict[str, Any] = {}
    for program, expected in blocks:
        exec(program, names)  # the blocks of the page are one session
        said = capsys.readouterr().out
        assert said.strip()
        if expected:
            assert said == expected
    assert len([expected for _, expected in blocks if expected]) == 3
    assert Path("notebook.png").stat().st_size > 10_000


# --- Bad input


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda _: streameval.evaluate(3), "files: give a path, or a frame of pandas"),
        (lambda _: streameval.evaluate([3]), r"files[0]: give a path, or a frame"),
        (lambda t: streameval.evaluate({"a": "b.csv"}, labels=t), "files['a']: give a path, or a"),
        (lambda t: streameval.evaluate(t, labls=t), "labls: no such option; did you mean labels?"),
        (lambda t: streameval.evaluate(t, "ndcg", labels=t), "files: no column item"),
        (lambda _: streameval.evaluate(pl.LazyFrame({"a": [1]})), "not LazyFrame: collect it"),
        (streameval.evaluate, "files: not an outcome file"),
        (lambda t: streameval.evaluate(run=t, qrels="q"), "run: give the path of a TREC file"),
        (lambda t: streameval.evaluate(t, labels=t, against="A"), "--against: name the column"),
        (
            lambda t: streameval.evaluate(t, labels=pd.DataFrame({"a": [1, "b"]})),
            "labels: cannot be read as Arrow: Could not convert 'b'",
        ),
        (
            lambda t: streameval.evaluate(t, labels=t.append_column("LIST", t.column(0))),
            "files: no column item",
        ),
        (streameval.compare, "give --by and --against"),
        (lambda t: streameval.compare([t], labels=t), "files of slates: give at least two"),
        (
            lambda t: streameval.evaluate(t, "rbp", labels=t, persistence="a"),
            "--persistence a: give",
        ),
        (lambda _: streameval.replay(b"{}"), "events: give paths, a frame, or events in a list"),
        (lambda _: streameval.replay([1]), "events[0]: an event is a dict, or JSON as bytes"),
        (
            lambda _: streameval.replay([{"a": object()}, {}]),
            "events[0]: cannot be written as JSON",
        ),
        (lambda _: streameval.replay(["a", {}]), "events: give either paths or events, not both"),
        (lambda _: streameval.replay([], at="noon"), "--at noon: give milliseconds"),
        (lambda _: streameval.outcomes("none"), "none: no such file or folder"),
        (lambda _: streameval.replay([], **SETTINGS).chart(), "chart: there is nothing to draw"),
    ],
)
def test_bad_input_is_one_line(call: Callable[[pa.Table], Any], said: str) -> None:
    lists = pa.table({"list": ["a"], "x": ["b"], "rank": [1]})
    with pytest.raises(InputError) as error:
        call(lists)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert isinstance(error.value, streameval.StreamevalError)


def test_a_wrong_column_of_an_outcome_frame_is_named() -> None:
    rows = outcomes().to_pandas()
    with pytest.raises(InputError, match=r"^files: column gains has lists with a gap"):
        streameval.evaluate(rows.assign(gains=[[None, 1.0]] * len(rows)))
    with pytest.raises(InputError, match=r"^files: column ranks is int64, and list"):
        streameval.evaluate(rows.assign(ranks=1))
    with pytest.raises(InputError, match=r"^files: column ranks is not list<item: int16>: "):
        streameval.evaluate(rows.assign(ranks=[[70_000]] * len(rows)))


def test_a_wrong_setting_is_named_as_it_was_given() -> None:
    with pytest.raises(ConfigError, match=r"^k: no such key; did you mean ks"):
        streameval.replay([], config="streameval.yaml", k=3)
    Path("streameval.yaml").write_text("ks: a")
    with pytest.raises(ConfigError, match=r"^streameval.yaml: line 1: ks: "):
        streameval.replay([], config="streameval.yaml")


# --- Imports


def alone(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_import_streameval_imports_nothing_else() -> None:
    code = "import sys; known = set(sys.modules); import streameval; dir(streameval)\n"
    code += "new = set(sys.modules) - known\n"
    code += "print({name for name in new if name.split('.')[0] not in sys.stdlib_module_names})"
    assert alone(code) == "{'streameval'}"


@pytest.mark.parametrize(
    ("missing", "call", "said"),
    [
        ("duckdb", "evaluate(ratings='e.csv')", "reading tables needs DuckDB, which is not"),
        ("matplotlib", "replay([]).chart()", "chart needs matplotlib, which is not installed"),
        ("pyarrow", "replay([]).to_arrow()", "to_arrow needs pyarrow, which is not installed"),
        ("pyarrow", "evaluate('e.csv')", "streameval.evaluate needs pyarrow, which is not"),
        ("pyarrow", "outcomes('.')", "streameval.outcomes needs pyarrow, which is not installed"),
        ("pandas", "replay([]).to_pandas()", "to_pandas needs pandas, which is not installed"),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    missing: str, call: str, said: str
) -> None:
    Path("e.csv").write_text("user,item,rating,prediction\na,b,1,1\n")
    code = f"import sys; sys.modules[{missing!r}] = None\nimport streameval\n"
    code += f"try: streameval.{call}\nexcept streameval.StreamevalError as error: print(error)"
    found = alone(code)
    assert found.startswith(said)
    extra = "evaluate" if missing == "duckdb" else "notebook"
    wanted = "pip install pandas" if missing == "pandas" else extras.install(extra)
    assert found.endswith(f": {wanted}")
