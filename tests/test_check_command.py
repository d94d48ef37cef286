"""Checks from outside: the command, and on the leader's schedule."""

import json
import shutil
import subprocess
import sys
import time

import pytest
from clean_service import (
    MINUTE,
    SPECIFICATION,
    clean,
    encoded,
    stream,
)

from streameval.core.errors import ConfigError
from streameval.offline.checks.scheduled import check_snapshot, reference_for
from streameval.offline.checks.table import CHECKS
from streameval.settings import Settings
from streameval.stream import schedule
from streameval.stream.schedule import SnapshotSchedule


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """A clean service that no test changes."""
    return clean(tmp_path_factory.mktemp("clean"))


# --- the command ----------------------------------------------------------------------------------


def command(service, tmp_path, *arguments):
    """Run `streameval check` on what a service left, with its log as files."""
    config, spec = tmp_path / "streameval.yaml", tmp_path / "checks.yaml"
    config.write_text(
        "positives: [click, buy]\ngains: {buy: 3}\n"
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
    return subprocess.run(
        [sys.executable, "-m", "streameval.cli", "check", "--config", config]
        + [str(argument) for argument in (*given, *arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


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
        (["--snapshot", "nowhere"], "nowhere is no snapshot"),
        (["--reference", "nowhere"], "neither a snapshot nor outcome files"),
    ],
)
def test_what_the_command_cannot_read_is_one_line_and_exit_code_2(
    service, tmp_path, arguments, message
):
    ran = command(service, tmp_path, *arguments)
    assert ran.returncode == 2
    assert message in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_a_damaged_file_is_one_line_and_exit_code_2(tmp_path):
    service = clean(tmp_path / "service", stream(slates=500))
    for path in service.outcomes.glob("dt=*/hour=*/*.parquet"):
        path.write_bytes(b"not Parquet")
    ran = command(service, tmp_path)
    assert ran.returncode == 2
    assert "outcomes: a file cannot be read (" in ran.stderr
    assert ran.stderr.count("\n") == 1


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
        schedule._check(settings, later)
        schedule._check(settings.model_copy(update={"outcomes": None}), later)
    ours = [record for record in caplog.records if record.name.startswith("streameval")]
    lines = [record.getMessage() for record in ours]
    assert lines[0].startswith("check freshness failed: the newest outcome row has been final for")
    assert lines[1] == "11 checks ran"
    assert lines[2].startswith("no checks: outcomes: name the folder")
    assert len(lines) == 3
