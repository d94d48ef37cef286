"""The command line: what each command prints, how it ends, and what an error looks like."""

import asyncio
import bz2
import dataclasses
import gzip
import json
import lzma
import os
import random
import re
import subprocess
import sys
from operator import itemgetter
from pathlib import Path

import cramjam
import numpy as np
import pytest
import scipy.stats
import servers
from command_line import streameval

from streameval import __version__
from streameval.base import extras
from streameval.base.errors import InputError
from streameval.base.limits import MAX_EVENT_BYTES
from streameval.cli import common
from streameval.config.settings import Settings
from streameval.core.events import REASONS
from streameval.core.experiments.users import Visit
from streameval.kafka.admin import create_topics
from streameval.store.redis_store import RedisStateStore
from streameval.store.stored_values import Commit

NOON = 1_735_732_800_000  # 2025-01-01T12:00:00Z
COMMANDS = ("demo", "worker", "replay", "snapshot", "check", "user", "doctor", "rules", "schema")

IMPRESSION = {
    "type": "impression",
    "ts": NOON,
    "user_id": "u1",
    "item_id": "a",
    "request_id": "r1",
    "position": 1,
    "variant": "A",
}
CLICK = {
    "type": "feedback",
    "ts": NOON + 1_000,
    "user_id": "u1",
    "item_id": "a",
    "request_id": "r1",
    "feedback": "click",
}


def lines(*events):
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


def written(path, *events):
    path.write_bytes(lines(*events))
    return path


def replayed(*arguments, **options):
    done = streameval("replay", *arguments, "--json", **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def assert_one_line(done, code, *parts):
    """It ended with `code`, printed nothing, and said one line that has all `parts`."""
    message = done.stderr.decode()
    assert done.returncode == code, message
    assert done.stdout == b""
    assert message.startswith("streameval: ")
    assert message.count("\n") == 1
    for part in parts:
        assert part in message


def test_the_version_is_printed():
    assert streameval("--version").stdout.decode() == f"streameval {__version__}\n"


def test_help_names_every_command():
    done = streameval("--help")
    assert done.returncode == 0
    for command in COMMANDS:
        assert f" {command} " in done.stdout.decode()


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_has_an_example(command):
    done = streameval(command, "--help")
    assert done.returncode == 0
    assert "Example: " in done.stdout.decode()


def test_help_loads_neither_servers_clients_nor_numpy():
    """Help is instant because nothing heavy is imported for it."""
    program = (
        "import sys, streameval.cli.app; from contextlib import suppress\n"
        "sys.argv = ['streameval', '--help']\n"
        "with suppress(SystemExit): streameval.cli.app.main()\n"
        "print(sorted({'numpy', 'pydantic', 'redis', 'aiokafka', 'faust'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=60, check=True
    )
    assert done.stdout.decode().splitlines()[-1] == "[]"


def test_evaluate_does_not_wait_for_pandas_where_that_is_installed():
    """pyarrow imports it with its datasets: most of a second, for tables that nobody makes."""
    pytest.importorskip("pandas")
    code = "import sys, streameval.evaluation.input_kinds; print('pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"


WITHOUT_DUCKDB = (
    "import sys; sys.modules['duckdb'] = sys.modules['matplotlib'] = None\n"
    "import streameval.worker.app, streameval.cli.app\n"
    "sys.argv = ['streameval', *sys.argv[1:]]; streameval.cli.app.main()"
)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("replay", "e.jsonl", "--json"), 0, ""),
        (("evaluate", "--list", "--json"), 0, ""),
        (("evaluate", "--ratings", "e.jsonl"), 2, "reading tables needs DuckDB"),
        (("check", "--schema"), 2, "streameval check needs DuckDB"),
    ],
)
def test_worker_and_replay_run_without_duckdb_and_others_say_what_to_install(
    tmp_path, arguments, code, message
):
    (tmp_path / "e.jsonl").write_bytes(lines(IMPRESSION, CLICK))
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_DUCKDB, *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    said = f"{message}, which is not installed: {extras.install('evaluate')}"
    assert done.stderr == (f"streameval: {said}\n" if message else "")


@pytest.mark.parametrize(
    "arguments", [["--help"], ["schema"], ["rules"], ["evaluate", "--list", "--json"]]
)
def test_a_full_disk_is_one_line(arguments):
    """What stands in the buffer until the end is as lost as what was refused at once."""
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "streameval.cli.app", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    line = "streameval: the output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr.decode()) == (1, line)


def test_nothing_of_a_document_is_printed_where_a_figure_of_it_is_not_finite(capsys):
    with pytest.raises(InputError, match="not a finite number"):
        common.print_json({"figures": {"good": 1.0, "bad": float("nan")}})
    assert capsys.readouterr().out == ""


def test_rules_follow_the_dimensions_of_the_configuration(tmp_path):
    config = tmp_path / "streameval.yaml"
    config.write_text("dimensions: [surface]")
    rules = streameval("rules", "--config", config)
    assert rules.returncode == 0
    assert b"sum by (job, namespace, window, basis, surface) (" in rules.stdout
    board = streameval("rules", "--dashboard", "quality", "--config", config)
    assert {variable["name"] for variable in json.loads(board.stdout)["templating"]["list"]} == {
        *("datasource", "namespace", "job", "window", "basis", "feedback", "k", "surface"),
        "control",
    }


def test_a_dashboard_has_a_name_that_exists():
    assert_one_line(streameval("rules", "--dashboard", "everything"), 2, "quality")


def test_alerts_link_the_runbook_of_the_site():
    rules = streameval("rules", "--runbook", "https://wiki.example/streameval")
    assert b"runbook_url: https://wiki.example/streameval#streamevalabsent" in rules.stdout


def test_no_command_shows_help_and_is_an_error():
    done = streameval()
    assert done.returncode == 2
    assert b"Usage" in done.stdout


@pytest.mark.parametrize("arguments", [["nonsense"], ["replay"], ["demo", "--rate", "many"]])
def test_a_wrong_command_line_is_one_line(arguments):
    assert_one_line(streameval(*arguments), 2, "--help")


@pytest.mark.parametrize(
    ("arguments", "command"),
    [(["experiment"], "streameval experiment"), (["nonsense"], "streameval")],
)
def test_a_wrong_command_line_names_the_help_of_its_command(arguments, command):
    assert f"({command} --help shows how)".encode() in streameval(*arguments).stderr


def test_replay_prints_the_documented_document(tmp_path):
    document = replayed(written(tmp_path / "e.jsonl", IMPRESSION, CLICK), "--users")
    assert list(document) == [
        *(
            "watermark",
            "events",
            "rates",
            "ranking",
            "values",
            "lists",
            "ranks",
            "nowcast",
            "maturity",
            "users",
            "experiments",
            "splits",
        )
    ]
    assert document["experiments"] == document["splits"] == []
    assert document["watermark"] == NOON + 1_000
    assert document["events"] == {
        "accepted": {"impression": 1, "slate": 0, "feedback": 1},
        "rejected": dict.fromkeys(REASONS, 0),
        "duplicates": 0,
        "unattributed": {"no_impression": 0, "expired": 0},
        "waiting": 0,
        "ignored": 0,
    }
    [click] = [
        row for row in document["rates"] if row["feedback"] == "click" and row["window"] == "1h"
    ]
    assert click == {
        "window": "1h",
        "basis": "live",
        "variant": "A",
        "feedback": "click",
        "users": 1,
        "impressions": 1,
        "positives": 1,
        "positive_rate": 1.0,
        "positive_rate_stderr": None,
        "positives_per_impression": 1.0,
        "positives_per_impression_stderr": None,
    }
    assert document["users"] == {
        "u1": {
            "impressions": 1,
            "slates": 1,
            "positives": {"click": 1, "like": 0},
            "first_ts": NOON,
            "last_ts": NOON + 1_000,
        }
    }


def test_users_are_left_out_unless_asked_for(tmp_path):
    assert "users" not in replayed(written(tmp_path / "e.jsonl", IMPRESSION))


def test_a_users_counters_are_summed_over_many_flushes(tmp_path):
    """25,000 events need two flushes; the users' counters span both."""
    many = [
        IMPRESSION | {"ts": NOON + n, "user_id": f"u{n % 3}", "request_id": f"r{n}"}
        for n in range(25_000)
    ]
    users = replayed(written(tmp_path / "e.jsonl", *many), "--users")["users"]
    assert {user: row["impressions"] for user, row in users.items()} == {
        "u0": 8_334,
        "u1": 8_333,
        "u2": 8_333,
    }
    assert users["u1"]["first_ts"] == NOON + 1
    assert users["u1"]["last_ts"] == NOON + 24_997


def test_plain_gzip_zstd_and_standard_input_give_the_same(tmp_path):
    content = lines(IMPRESSION, CLICK)
    plain, packed, zstd = (tmp_path / f"e.jsonl{end}" for end in ("", ".gz", ".zst"))
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content))
    zstd.write_bytes(bytes(cramjam.zstd.compress(content)))
    expected = replayed(plain)
    assert replayed(packed) == expected
    assert replayed(zstd) == expected
    assert replayed("-", stdin=content) == expected


def test_several_files_are_one_stream_in_the_order_given(tmp_path):
    """Read second, the impression is an hour behind the watermark: late."""
    old = written(tmp_path / "old.jsonl", IMPRESSION)
    new = written(tmp_path / "new.jsonl", CLICK | {"ts": NOON + 3_600_000})
    assert replayed(old, new)["events"]["rejected"]["late"] == 0
    assert replayed(new, old)["events"]["rejected"]["late"] == 1


def test_files_that_are_not_in_order_of_time_are_put_in_it(tmp_path):
    chance = random.Random(3)
    shown = [
        IMPRESSION | {"ts": NOON + 20_000 * at, "user_id": f"u{at % 9}", "request_id": f"r{at}"}
        | {"variant": chance.choice("AB")}
        for at in range(400)
    ]  # fmt: skip
    clicked = [CLICK | {key: one[key] for key in ("user_id", "request_id")} for one in shown]
    clicked = [one | {"ts": NOON + 20_000 * at + 700} for at, one in enumerate(clicked) if at % 3]
    config = tmp_path / "c.yaml"
    config.write_text(
        "positives: [click]\nexperiments:\n"
        "- {name: r, arm: variant, control: A, primary: ndcg@5, crossed_users: leave_out}\n"
    )
    in_order = sorted([*shown, *clicked], key=itemgetter("ts"))
    wanted = replayed(written(tmp_path / "e.jsonl", *in_order), "--config", config)
    assert wanted["events"]["rejected"]["late"] == 0
    assert wanted["splits"], "the files are read again without the users who crossed"
    files = [written(tmp_path / "clicks.jsonl", *clicked, {"type": "view"})]
    files.append(written(tmp_path / "lists.jsonl", *chance.sample(shown, len(shown))))
    done = streameval("replay", *files, "--config", config)
    late = re.search(r"late ([\d,]+)", done.stdout.decode())[1]
    assert done.stderr.decode().splitlines()[-1] == (
        f"{late} late: the events are not in order of time; --sort orders them"
    )
    found = replayed(*files, "--config", config, "--sort")
    assert found["events"]["rejected"]["invalid"] == 1
    assert found | {"events": 0} == wanted | {"events": 0}
    assert found["events"]["accepted"] == wanted["events"]["accepted"]


def test_blank_lines_are_skipped_and_broken_ones_counted(tmp_path):
    path = tmp_path / "e.jsonl"
    path.write_bytes(b"\n  \n{broken\n\r\n" + lines(IMPRESSION | {"position": 0}, IMPRESSION)[:-1])
    events = replayed(path)["events"]
    assert events["accepted"]["impression"] == 1
    assert {reason: n for reason, n in events["rejected"].items() if n} == {
        "malformed": 1,
        "invalid": 1,
    }


def test_rejected_lines_are_named_with_their_file_line_field_and_reason(tmp_path):
    late = IMPRESSION | {"ts": NOON - 3_600_000}
    more = b'{"type": "impression"}\n' * 3
    first = tmp_path / "first.jsonl"
    first.write_bytes(lines(IMPRESSION) + b"\n" + lines(CLICK | {"ts": "noon"}, late) + b"nope\n")
    second = tmp_path / "second.jsonl"
    second.write_bytes(b"\n" * 1_000 + more)
    all_of_them = tmp_path / "rejected.jsonl"

    done = streameval("replay", first, second, "--rejected", all_of_them)
    assert done.returncode == 0
    rows = [json.loads(line) for line in all_of_them.read_text().splitlines()]
    assert [(Path(row["file"]).name, row["line"], row["reason"]) for row in rows] == [
        ("first.jsonl", 3, "invalid"),
        ("first.jsonl", 4, "late"),
        ("first.jsonl", 5, "malformed"),
        *(("second.jsonl", line, "invalid") for line in (1_001, 1_002, 1_003)),
    ]
    assert rows[0]["detail"].startswith('`ts` is "noon"')
    assert rows[2]["value"] == "nope"
    said = done.stderr.decode().splitlines()
    assert said[0].startswith(f"{first}:3: invalid: ")
    assert "`ts`" in said[0]
    sort = "1 late: the events are not in order of time; --sort orders them"
    assert said[5:] == ["... and 1 more", sort]
    shorter = streameval("replay", first, second).stderr.decode().splitlines()
    assert shorter[5:] == ["... and 1 more; --rejected FILE writes all of them", sort]


def test_strict_is_for_programs_that_accept_no_rejected_line(tmp_path):
    good = written(tmp_path / "good", IMPRESSION)
    bad = written(tmp_path / "bad", IMPRESSION, {"type": "view"})
    assert streameval("replay", good, "--strict").returncode == 0
    assert streameval("replay", bad).returncode == 0
    done = streameval("replay", bad, "--strict", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["events"]["rejected"]["invalid"] == 1
    nowhere = tmp_path / "no" / "folder"
    assert_one_line(streameval("replay", bad, "--rejected", nowhere), 2, "--rejected", str(nowhere))


def test_events_of_another_tracker_are_called_by_its_name(tmp_path):
    segment = {"type": "track", "messageId": "m", "userId": "u", "event": "Product Clicked"}
    done = streameval("replay", written(tmp_path / "events", segment))
    assert done.stderr.decode().splitlines()[-1] == (
        "this looks like Segment or RudderStack: map it by the profile segment (docs/profiles.md)"
    )


def test_tables_are_ordered_by_the_size_of_the_window(tmp_path):
    table = streameval("replay", written(tmp_path / "events", IMPRESSION)).stdout.decode()
    places = [table.index(window) for window in (" 5m live", " 1h live", " 24h live")]
    assert places == sorted(places)


def test_below_a_mean_stands_its_interval(tmp_path):
    """Of 30 users with an impression each 12 click: Wilson's interval on 29 trials, by Student."""
    shown = [IMPRESSION | {"user_id": f"u{n}", "request_id": f"r{n}"} for n in range(30)]
    clicked = [CLICK | {"user_id": f"u{n}", "request_id": f"r{n}"} for n in range(12)]
    text = streameval("replay", written(tmp_path / "events", *shown, *clicked)).stdout.decode()
    rows = text[text.index("5m live") :].splitlines()
    assert rows[0].split()[-2] == "0.4000"
    t = scipy.stats.t.ppf(0.975, 29)
    # The ends e are the roots of (0.4 - e)² = t² · e · (1 - e) / 29.
    ends = np.roots([1 + t * t / 29, -0.8 - t * t / 29, 0.16])
    low, high = sorted(f"{end:.4f}" for end in ends)
    assert (rows[1].split()[0], rows[2].split()[0]) == (f"{low}–", high)
    assert "±" not in text
    assert text.rstrip().endswith("stands its 95 % interval, which holds at one look.")


def test_without_an_interval_none_is_explained(tmp_path):
    assert (
        "interval" not in streameval("replay", written(tmp_path / "e", IMPRESSION)).stdout.decode()
    )


def test_no_table_of_figures_is_cut_in_a_pipe(tmp_path):
    """Every column has an interval, and the window's name is the longest."""
    events = []
    for number in range(600):
        own = {"user_id": f"u{number}", "request_id": f"r{number}", "variant": "treatment"}
        ts = NOON + 8_000 * number
        events.append({"type": "slate", "ts": ts, "items": [f"i{n}" for n in range(12)], **own})
        for item in {number % 5, number % 11}:
            events += [CLICK | own | {"ts": ts + 1, "item_id": f"i{item}"}]
    text = streameval("replay", written(tmp_path / "events", *events)).stdout.decode()
    assert "24h matured" in text
    assert "…" not in text


def test_a_line_of_many_megabytes_is_one_event_that_is_too_large(tmp_path):
    path = tmp_path / "e.jsonl"
    huge = b'"' + b"x" * (3 * MAX_EVENT_BYTES) + b'"\n'
    path.write_bytes(huge + lines(IMPRESSION))
    events = replayed(path)["events"]
    assert events["rejected"]["too_large"] == 1
    assert events["accepted"]["impression"] == 1
    assert sum(events["rejected"].values()) == 1


def test_an_event_of_exactly_the_largest_size_is_taken(tmp_path):
    path = tmp_path / "e.jsonl"
    event = lines(IMPRESSION).rstrip()
    padded = event[:-1] + b" " * (MAX_EVENT_BYTES - len(event)) + b"}\n"
    path.write_bytes(padded)
    assert replayed(path)["events"]["accepted"]["impression"] == 1


def test_no_event_is_from_the_future_in_a_replay(tmp_path):
    """There is no record whose timestamp could say so."""
    path = written(tmp_path / "e.jsonl", IMPRESSION, IMPRESSION | {"ts": NOON + 10**10})
    assert replayed(path)["events"]["rejected"]["future"] == 0


def test_replay_prints_the_scorecards_of_experiments(tmp_path):
    slates = [
        IMPRESSION | {"ts": 1_767_614_400_000 + 20_000 * at, "user_id": f"u{at % 100}"}
        | {"request_id": f"r{at}", "variant": "AB"[at % 2]}
        for at in range(800)
    ]  # fmt: skip
    config = tmp_path / "c.yaml"
    config.write_text(
        "experiments:\n- {name: ranker, arm: variant, control: A, primary: ndcg@5}\n"
        "- {name: nobody, arm: other, control: A, primary: ndcg@5}"
    )
    ran = streameval("replay", written(tmp_path / "e.jsonl", *slates), "--config", config)
    assert ran.returncode == 0, ran.stderr
    _, ranker, nobody = ran.stdout.decode().split("\nExperiment ")
    assert ranker.startswith("ranker\nB against A (since 5 January, 100 users): NDCG@5: ")
    assert nobody.splitlines()[:2] == ["nobody", "No arm has a final slate yet."]


@pytest.mark.parametrize("at", [str(NOON + 7_200_000), "2025-01-01T15:00:00+01:00"])
def test_at_moves_an_idle_stream_on(tmp_path, at):
    """Two hours later no live window but the longest holds the impression."""
    path = written(tmp_path / "e.jsonl", IMPRESSION)
    live = {row["window"] for row in replayed(path, "--at", at)["rates"] if row["basis"] == "live"}
    assert live == {"24h"}


@pytest.mark.parametrize("at", ["noon", "2025-01-01", "2025-01-01T12:00:00", "12", "9" * 30])
def test_an_instant_that_cannot_be_meant_is_one_line(tmp_path, at):
    path = written(tmp_path / "e.jsonl", IMPRESSION)
    assert_one_line(streameval("replay", path, "--at", at), 2, "--at", at)


def test_no_events_give_an_empty_document(tmp_path):
    document = replayed(written(tmp_path / "e.jsonl"))
    assert document["watermark"] is None
    assert document["rates"] == document["ranking"] == []
    assert b"No window holds an impression" in streameval("replay", tmp_path / "e.jsonl").stdout


def test_people_get_tables(tmp_path):
    path = written(tmp_path / "e.jsonl", IMPRESSION | {"variant": "[bold]A"}, CLICK)
    output = streameval("replay", path, "--users").stdout.decode()
    assert "2025-01-01 12:00:01" in output
    assert "[bold]A" in output  # a name is text, never markup
    assert "1h live" in output
    assert "1.0000" in output
    assert "u1" in output


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("none.jsonl", None),
        ("too-long" * 40, None),
        ("torn.gz", gzip.compress(b"{}\n" * 1000, mtime=0)[:-20]),
        ("wrong.gz", b"no gzip at all"),
        ("wrong.zst", b"no zstd at all"),
        ("torn.zst", bytes(cramjam.zstd.compress(os.urandom(100_000)))[:-20]),
        ("empty.zst", b""),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(tmp_path, name, content):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    assert_one_line(streameval("replay", path), 2, "cannot read", name)


def test_a_folder_needs_files(tmp_path):
    assert_one_line(streameval("replay", tmp_path), 2, "a folder without files of events")


@pytest.mark.parametrize(
    ("content", "cure"),
    [
        (b"PAR1\x15\n\x15", "is a Parquet file: let its name end in .parquet"),
        (b"Obj\x01\x04\n", "is an Avro file: let its name end in .avro"),
        (b"PK\x03\x04\n", "is a zip archive: unpack it"),
        (bz2.compress(b"{}"), "is packed by bzip2: unpack it before (bzip2 -dc)"),
        (lzma.compress(b"{}"), "is packed by xz: unpack it before (xz -dc)"),
        (b"\x04\x22\x4d\x18\n", "is packed by lz4"),
        (b"7z\xbc\xaf\x27\x1c\n", "is a 7z archive"),
        (gzip.compress(b"{}\n"), "is packed by gzip: let its name end in .gz"),
        (bytes(cramjam.zstd.compress(b"{}\n")), "is packed by zstd: let its name end in .zst"),
    ],
)
def test_a_file_without_lines_is_refused_once_with_the_cure(tmp_path, content, cure):
    path = tmp_path / "events"
    path.write_bytes(content)
    assert_one_line(streameval("replay", path), 2, cure)


def test_a_link_to_itself_is_no_file(tmp_path):
    path = tmp_path / "loop"
    path.symlink_to(path)
    assert_one_line(streameval("replay", path), 2, "cannot read", "loop")


def test_the_definition_comes_from_the_configuration(tmp_path):
    path = written(tmp_path / "e.jsonl", IMPRESSION, CLICK)
    config = tmp_path / "streameval.yaml"
    config.write_text("dimensions: []\nks: [3]\nwindows: [{size: 2h, slide: 1h}]\n")
    for document in (
        replayed(path, "--config", config),
        replayed(path, STREAMEVAL_CONFIG=str(config)),
    ):
        assert {row["window"] for row in document["rates"]} == {"2h"}
        assert [row["k"] for row in document["ranking"]] == [3]
        assert "variant" not in document["rates"][0]


@pytest.mark.parametrize("command", ["replay", "worker", "user"])
def test_a_bad_configuration_is_one_line_that_names_the_key(tmp_path, command):
    config = tmp_path / "streameval.yaml"
    config.write_text("windoes: []\n")
    arguments = {"replay": ["-"], "user": ["u1"]}.get(command, [])
    done = streameval(command, *arguments, "--config", config, stdin=b"")
    assert_one_line(done, 2, "windoes", "windows")


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path):
    path = written(tmp_path / "e.jsonl", IMPRESSION)
    command = f"{sys.executable} -m streameval.cli.app replay {path} --json | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=60, check=False)
    assert done.stderr == b""


def test_the_schema_is_one_json_document_that_knows_the_events():
    schema = json.loads(streameval("schema").stdout)
    assert schema["$schema"].startswith("https://json-schema.org/draft/2020-12")
    text = json.dumps(schema)
    for kind in ("impression", "slate", "feedback"):
        assert f'"{kind}"' in text


def test_a_server_that_is_away_is_one_line_and_code_3():
    done = streameval("user", "u1", STREAMEVAL_KAFKA="127.0.0.1:1")
    assert_one_line(done, 3, "Kafka at 127.0.0.1:1", "is it running?")


def test_an_experiment_that_is_not_configured_is_refused_with_those_that_are():
    done = streameval("experiment", "rnaker")
    assert_one_line(done, 2, "no experiment is called rnaker", "with --config")
    experiment = {"name": "ranker", "arm": "variant", "control": "A", "primary": "ndcg@10"}
    configured = {"STREAMEVAL_EXPERIMENTS": json.dumps([experiment])}
    done = streameval("experiment", "rnaker", "--gate", **configured)
    assert_one_line(done, 2, "the configuration has ranker")
    done = streameval("experiment", "ranker", STREAMEVAL_KAFKA="127.0.0.1:1", **configured)
    assert_one_line(done, 3, "Kafka at 127.0.0.1:1")


@pytest.mark.servers
def test_a_users_counters_come_from_all_partitions_in_redis():
    """A user who moved when partitions were added has counters in two; they are summed."""
    kafka, redis, topic = servers.shared_kafka(), servers.shared_redis(), servers.unique("users")
    asyncio.run(create_topics({"bootstrap_servers": kafka.address}, {topic: 3}))

    experiment = {"name": "ranker", "arm": "variant", "control": "A", "primary": "ndcg@10"}
    (configured,) = Settings(experiments=[experiment]).definition().experiments
    arms = {0: [(configured.key, "A")], 2: [(configured.key, "B"), ("0123456789abcdef", "C")]}

    async def commit():
        store = RedisStateStore(redis.url, "streameval", topic, ("click", "like"))
        for partition, delta in (
            (0, ["u1", 20, 2, NOON, NOON + 5, 3, 0]),
            (2, ["u1", 10, 1, NOON - 5, NOON, 1, 1]),
        ):
            visits = [Visit("u1", key, arm, NOON, (1, 0)) for key, arm in arms[partition]]
            commit = Commit(partition, None, 1, [delta], "cluster", "topic", "print", "{}", NOON)
            await store.commit(dataclasses.replace(commit, visits=visits))
        await store.close()

    asyncio.run(commit())
    settings = {
        "STREAMEVAL_KAFKA": kafka.address,
        "STREAMEVAL_REDIS": redis.url,
        "STREAMEVAL_TOPIC": topic,
        "STREAMEVAL_EXPERIMENTS": json.dumps([experiment]),
    }
    done = streameval("user", "u1", "--json", **settings)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "user_id": "u1",
        "partitions": [0, 2],
        "impressions": 30,
        "slates": 3,
        "positives": {"click": 4, "like": 1},
        "first_ts": NOON - 5,
        "last_ts": NOON + 5,
        "arms": {"ranker": ["A", "B"], "0123456789abcdef": ["C"]},
    }
    table = streameval("user", "u1", **settings).stdout.decode()
    assert "positives: click" in table
    assert "2025-01-01 12:00:00" in table
    assert_one_line(streameval("user", "u2", **settings), 1, "'u2'", "check the id")
    assert_one_line(
        streameval("user", "u1", **settings | {"STREAMEVAL_TOPIC": servers.unique("no")}),
        2,
        "does not exist",
    )
