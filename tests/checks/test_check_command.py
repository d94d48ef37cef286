"""Checks from outside: the command, and on the leader's schedule."""

import json
import os
import shutil
import time
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from clean_service import MINUTE, SPECIFICATION, clean, encoded, stream
from command_line import streameval
from default_events import DIMENSIONS
from test_metric_regression import experiment
from typer.testing import CliRunner

from streameval.base.errors import ConfigError, InputError
from streameval.checks import run
from streameval.checks import scheduled as scheduled_checks
from streameval.checks.catalogue import CHECKS
from streameval.checks.scheduled import check_snapshot, reference_for
from streameval.cli.app import app
from streameval.config.settings import Settings
from streameval.files import outcome_days
from streameval.files.outcome_files import table
from streameval.files.snapshot_folder import CHECKS as CHECKS_FILE
from streameval.worker import snapshot_job
from streameval.worker.snapshot_job import SnapshotSchedule


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """A clean service that no test changes."""
    return clean(tmp_path_factory.mktemp("clean"))


# --- the command ----------------------------------------------------------------------------------


def command(service, tmp_path, *arguments):
    """Run `streameval check` on what a service left, with its log as files."""
    config, spec = tmp_path / "streameval.yaml", tmp_path / "checks.yaml"
    config.write_text(
        "positives: [click, buy]\ngains: {buy: 3}\ndimensions: [variant, surface]\n"
        "windows: [{size: 1h, slide: 1m}, {size: 4h, slide: 10m}]\n"
    )
    spec.write_text(json.dumps(SPECIFICATION))
    logs = []
    for number, events in service.logs.items():
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(b"".join(encoded(event) + b"\n" for event in events))
        logs += ["--log", f"{number}={path}"]
    given = ["--outcomes", service.outcomes, "--snapshot", service.root / "later", *logs]
    given += ["--reference", service.root / "earlier", "--at", service.now(), "--spec", spec]
    return streameval("check", "--config", config, *given, *arguments, text=True)


def test_the_command_passes_with_exit_code_0(service, tmp_path):
    ran = command(service, tmp_path, "--json")
    assert (ran.returncode, ran.stderr) == (0, "")
    document = json.loads(ran.stdout)
    assert document["passed"] is True
    assert [(one["name"], one["passed"]) for one in document["checks"]] == [
        (check.name, True) for check in CHECKS
    ]


def test_the_command_fails_with_exit_code_1_and_a_line_that_says_why(tmp_path):
    def change(users):
        users[min(users)][0] += 7

    service = clean(tmp_path / "service", stream(slates=3_000), change=change)
    ran = command(service, tmp_path)
    assert ran.returncode == 1
    (line,) = [line for line in ran.stdout.splitlines() if line.startswith("fail")]
    assert line.startswith("fail counters_match_log: 1 of")
    assert "has impressions" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--log", "x.jsonl"], "write PARTITION=FILE"),
        (["--log", "0=nowhere.jsonl"], "cannot read nowhere.jsonl"),
        (["--snapshot", "nowhere"], "nowhere is not a snapshot"),
        (["--reference", "nowhere"], "reference: nowhere: no such folder: give a snap"),
    ],
)
def test_what_the_command_cannot_read_is_one_line_and_exit_code_2(
    service, tmp_path, arguments, message
):
    ran = command(service, tmp_path, *arguments)
    assert ran.returncode == 2
    assert message in ran.stderr
    assert ran.stderr.count("\n") == 1


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """Files and folders that are not what the options of the command ask for."""
    root = tmp_path_factory.mktemp("others")
    (root / "log.jsonl").write_text("")
    for name, columns in (("foreign", {"a": [1]}), ("mixed", {"user": ["u"], "items": [["i"]]})):
        (root / name / "dt=2026-01-01").mkdir(parents=True)
        pq.write_table(pa.table(columns), root / name / "dt=2026-01-01" / "z.parquet")
    pq.write_table(table(0, [], DIMENSIONS), root / "mixed" / "dt=2026-01-01" / "a.parquet")
    (root / "snapshot").mkdir()
    (root / "snapshot" / "manifest.json").write_text("[]")
    return root


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--log 0=log.jsonl --log 0=log.jsonl", "--log: partition 0 is given twice"),
        ("--log 99=log.jsonl", "--log 99=…: the snapshot has the partitions 0, 1, 2"),
        ("--log 0=" + "a" * 300, "is too long for the name of a file"),
        ("--reference log.jsonl", "reference: log.jsonl: is a file: give a snapshot, or a folder"),
        ("--reference foreign", "reference: foreign/dt=2026-01-01/z.parquet: no column user"),
        ("--reference " + "a" * 300, "is too long for the name of a file"),
        ("--reference s3://[x", "s3://[x is not a URI of a file system: "),
        ("--reference snapshot", "snapshot is not a snapshot, or not whole"),
        ("--outcomes mixed", "outcomes: mixed/dt=2026-01-01/z.parquet: no column ranks"),
        ("--outcomes " + "a" * 300, "is too long for the name of a file"),
        ("--outcomes s3://[x", "s3://[x is not a URI of a file system: "),
        ("--snapshot snapshot", "snapshot is not a snapshot, or not whole"),
        ("--snapshot " + "a" * 300, "is not a snapshot, or not whole"),
    ],
)
def test_what_is_given_and_something_else_is_one_line(
    service, others, monkeypatch, arguments, message
):
    monkeypatch.chdir(others)
    given = {"--outcomes": str(service.outcomes), "--snapshot": str(service.root / "later")}
    words = arguments.split()
    whole = [word for pair in given.items() if pair[0] not in words for word in pair]
    error = CliRunner().invoke(app, ["check", *whole, *words]).exception
    assert isinstance(error, InputError)
    assert message in str(error)
    assert "\n" not in str(error)


def test_a_damaged_file_is_one_line_and_exit_code_2(tmp_path):
    service = clean(tmp_path / "service", stream(slates=500))
    for path in service.outcomes.glob("dt=*/hour=*/*.parquet"):
        path.write_bytes(b"not Parquet")
    ran = command(service, tmp_path)
    assert ran.returncode == 2
    assert "outcomes: a file cannot be read (" in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_a_damaged_file_of_the_reference_is_called_so(tmp_path):
    service = clean(tmp_path / "service", stream(slates=500))
    damaged = tmp_path / "damaged" / "dt=2026-01-31" / "hour=07"
    damaged.mkdir(parents=True)
    (damaged / "p0-0-1-a.parquet").write_bytes(b"not Parquet")
    ran = command(service, tmp_path, "--reference", str(tmp_path / "damaged"))
    assert ran.returncode == 2
    assert "streameval: reference: a file cannot be read (" in ran.stderr


def test_a_folder_that_is_called_like_a_file_is_passed_over(tmp_path):
    service = clean(tmp_path / "service", stream(slates=500))
    hour = next(service.outcomes.glob("dt=*/hour=*"))
    (hour / "x.parquet").mkdir()
    assert "cannot" not in command(service, tmp_path).stderr


@pytest.fixture(scope="module")
def variants(tmp_path_factory):
    """A folder of outcome rows of the variants A and B, of which one has a propensity of 1.5."""
    root = tmp_path_factory.mktemp("outcomes")
    rows = experiment(1, {"A": 0.3, "B": 0.3}, users=200)
    rows[7].propensities[0] = 1.5
    folder = root / "dt=2023-11-14" / "hour=22"
    folder.mkdir(parents=True)
    pq.write_table(table(0, rows, DIMENSIONS), folder / "p0-0-999-aaaa.parquet")
    return root


def checked(outcomes, *arguments):
    return CliRunner().invoke(app, ["check", "--outcomes", str(outcomes), "--json", *arguments])


def test_a_check_that_cannot_answer_says_so_and_the_others_go_on(variants, tmp_path):
    spec = tmp_path / "checks.yaml"
    spec.write_text("metric_regression: {control: Z}\noff_policy: {catalogue_size: 50}\n")
    answer = checked(variants, "--spec", str(spec))
    found = {one["name"]: one for one in json.loads(answer.stdout)["checks"]}
    assert list(found) == [check.name for check in CHECKS]
    assert found["metric_regression"]["passed"] is None
    assert "no rows of control 'Z'; there are 'A', 'B'" in found["metric_regression"]["message"]
    assert found["off_policy"]["passed"] is False
    assert "1.5 in the row of partition 0, offset 7" in found["off_policy"]["message"]


def test_a_check_that_breaks_has_failed_and_the_others_go_on(variants, monkeypatch):
    def broken(*_):
        raise InputError("no such thing")

    changed = [replace(check, run=broken) if check.name == "drift" else check for check in CHECKS]
    monkeypatch.setattr(run, "CHECKS", changed)
    found = {one["name"]: one for one in json.loads(checked(variants).stdout)["checks"]}
    assert list(found) == [check.name for check in CHECKS]
    assert found["drift"]["passed"] is False
    assert found["drift"]["message"] == "cannot be run: no such thing"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sample_ratio: {split: {A: .inf, B: 1}}", "sample_ratio.split: the weight of 'A' is"),
        ("sample_ratio: {split: {A: 0, B: 1}}", "sample_ratio.split: the weight of 'A' is"),
        ("sample_ratio: {split: {A: 1}}", "sample_ratio.split: name two variants or more"),
        ("sample_rato: {}", "sample_rato: no such key; did you mean sample_ratio?"),
        ("drift: {max_distanse: 1}", "drift.max_distanse: no such key; did you mean max_"),
        ("sample_ratio: {since: 2026-01-31}", "line 1: sample_ratio.since: write a time with"),
        ("- drift", "write keys and values"),
        ("sample_ratio: {since: 2026-02-30T00:00:00Z}", "checks.yaml: line 1: '2026-02-30T00:"),
        ("drift: {}\nperiod: 1h\ndrift: {}", "checks.yaml: line 3: the key 'drift' stands there"),
        (None, "no such file: correct the path, or write one with `streameval init`"),
    ],
)
def test_a_wrong_specification_is_an_error_that_names_the_key(variants, tmp_path, text, message):
    spec = tmp_path / "checks.yaml"
    if text is not None:
        spec.write_text(text)
    error = checked(variants, "--spec", str(spec)).exception
    assert isinstance(error, ConfigError)
    assert message in str(error)


def test_a_wrong_folder_of_outcome_files_is_an_error(variants, tmp_path):
    other, file = tmp_path / "dt=2023-11-14" / "x.parquet", tmp_path / "rows.csv"
    other.parent.mkdir()
    pq.write_table(table(0, [], DIMENSIONS).drop_columns(["gains"]), other)
    file.write_text("user,item\n")
    cases = [
        ([tmp_path / "nowhere"], "no such folder"),
        ([file], "rows.csv: is a file: give the folder"),
        ([tmp_path], "x.parquet: no column gains: not an outcome file"),
        ([variants, "--log", f"0={file}"], "give --snapshot too"),
    ]
    for arguments, message in cases:
        error = checked(*arguments).exception
        assert isinstance(error, InputError)
        assert message in str(error)


# --- on schedule ----------------------------------------------------------------------------------


def scheduled(service, tmp_path):
    """Settings and the two snapshots of a service, as the leader's schedule has them."""
    root, spec = tmp_path / "snapshots", tmp_path / "checks.yaml"
    root.mkdir()
    names = ("20231114T230000Z-1", "20231115T010000Z-1")
    for name, known in zip(names, ("earlier", "later"), strict=True):
        shutil.copytree(service.root / known, root / name)
    spec.write_text(json.dumps(SPECIFICATION))
    settings = Settings(
        positives=("click", "buy"),
        dimensions=("variant", "surface"),
        gains={"buy": 3.0},
        windows=({"size": "1h", "slide": "1m"}, {"size": "4h", "slide": "10m"}),
        outcomes=str(service.outcomes),
        snapshots=root,
        checks=spec,
    )
    return settings, root / names[0], root / names[1]


def test_the_leader_shows_how_the_checks_of_the_newest_snapshot_ended(service, tmp_path):
    """The rows are of 2023, so freshness fails; the log is not at hand; all others pass."""
    settings, _, later = scheduled(service, tmp_path)
    assert SnapshotSchedule(settings).results() == []
    before = time.time()
    check_snapshot(settings, later)
    shown = {status.name: status for status in SnapshotSchedule(settings).results()}
    assert list(shown) == [check.name for check in CHECKS]
    ended = {name: status.passed for name, status in shown.items()}
    assert ended == dict.fromkeys(ended, True) | {"freshness": False, "counters_match_log": None}
    assert before - 1 < shown["drift"].time < time.time() + 1
    assert shown["drift"].seconds > 0


def test_counters_are_recounted_since_the_newest_snapshot_at_which_they_were_right(tmp_path):
    names = [f"2023111{day}T230000Z-1" for day in range(5)]
    first, second, third, fourth, last = (tmp_path / name for name in names)
    for path in (first, second, third, fourth, last):
        path.mkdir()
    assert scheduled_checks._candidates(last) == ([first, second, third, fourth], True)
    for path in (first, third):
        (path / "counters_match_log.memory").touch()
    assert scheduled_checks._candidates(last) == ([third, fourth], False)
    assert scheduled_checks._candidates(third) == ([first, second], False)


def test_the_leader_shows_for_how_long_an_answer_has_been_missing(service, tmp_path):
    """Kafka is not there, so the counters are not compared; the time goes on over snapshots."""
    settings, earlier, later = scheduled(service, tmp_path)
    check_snapshot(settings, earlier)
    document = json.loads((earlier / CHECKS_FILE).read_text())
    assert {one["name"] for one in document["checks"] if one["unanswered_since"]} == {
        "counters_match_log"
    }
    check_snapshot(settings, later)
    newer = json.loads((later / CHECKS_FILE).read_text())
    assert newer["checks"][0]["unanswered_since"] == document["time"] < newer["time"]
    shown = {status.name: status for status in SnapshotSchedule(settings).results()}
    missing = (newer["time"] - document["time"]) / 1000
    assert shown.pop("counters_match_log").unanswered_seconds == missing
    assert {status.unanswered_seconds for status in shown.values()} == {None}


def test_the_reference_is_the_newest_snapshot_of_the_age_that_was_asked_for(tmp_path):
    names = ("20231114T010000Z-1", "20231114T020000Z-1", "20231114T030000Z-1", "20231114T040000Z-1")
    first, second, third, fourth = (tmp_path / name for name in names)
    for path in (first, second, third, fourth):
        path.mkdir()
    hour = 60 * MINUTE
    assert reference_for(fourth, 2 * hour) == second
    assert reference_for(fourth, hour) == third
    assert reference_for(fourth, 24 * hour) == first
    assert reference_for(first, hour) is None


def test_checks_on_schedule_need_outcome_files(service, tmp_path):
    settings, _, later = scheduled(service, tmp_path)
    with pytest.raises(ConfigError, match="outcomes: name the folder"):
        check_snapshot(settings.model_copy(update={"outcomes": None}), later)


def test_what_goes_wrong_with_checks_is_said_and_the_snapshot_stays_good(service, tmp_path, caplog):
    settings, _, later = scheduled(service, tmp_path)
    with caplog.at_level("INFO"):
        snapshot_job._check(settings, later)
        snapshot_job._check(settings.model_copy(update={"outcomes": None}), later)
    ours = [record for record in caplog.records if record.name.startswith("streameval")]
    lines = [record.getMessage() for record in ours]
    assert lines[0].startswith("check freshness failed: the newest outcome row has been final for")
    assert lines[1] == f"{len(CHECKS)} checks ran"
    assert lines[2].startswith("no checks: outcomes: name the folder")
    assert len(lines) == 3


def test_copies_stay_until_checks_ran_that_do_not_use_them(service, tmp_path, monkeypatch):
    monkeypatch.setattr(outcome_days, "FEW", 0)
    settings, _, later = scheduled(service, tmp_path)
    copies = later.parent / outcome_days.COPIES
    unused = copies / "dt=2023-11-14" / "hour=00" / "unused.parquet"
    recent = copies / "dt=2023-11-13" / "hour=00" / "of-the-last-snapshot.parquet"
    interval = settings.snapshot_interval / 1000
    for path, age in ((unused, 3 * interval), (recent, interval)):
        path.parent.mkdir(parents=True)
        path.touch()
        os.utime(path, (time.time() - age,) * 2)
    away = settings.model_copy(update={"outcomes": str(tmp_path / "away")})
    assert snapshot_job._followers(away, 1, later) == 0
    assert sorted(copies.rglob("*.parquet")) == [recent, unused]
    assert snapshot_job._followers(settings, 1, later) == 0
    assert not unused.parent.exists()
    assert recent.exists()
    assert len(list(copies.rglob("*.parquet"))) > 2
