"""Snapshots: whole, each partition consistent, equal to the oracle; by command and by leader."""

import asyncio
import errno
import json
import os
import random
import subprocess
import sys
import time
from types import SimpleNamespace

import pyarrow.parquet
import pytest
from oracle.figures import oracle
from pydantic import SecretStr
from streams import cuts, hostile
from test_outcomes import expected, plain, with_ms
from test_partition_properties import Counters, assert_same, assert_same_rows

from streameval.base import extras
from streameval.base.errors import (
    ConfigError,
    InputError,
    RefusedError,
    UnreachableError,
    UnusableStateError,
)
from streameval.base.steps import drain
from streameval.core.checkpoint import checkpoint
from streameval.core.fingerprint import fingerprint
from streameval.core.partition import Partition
from streameval.files.outcome_days import COPIES
from streameval.files.outcome_files import pseudonyms
from streameval.files.snapshot_folder import last_daily, snapshots, taken_at
from streameval.files.snapshots import manifest_of, retire, retire_old, take, take_from
from streameval.store.stored_values import Stored
from streameval.store.user_scan import UserRow, UserScan, scan_users
from streameval.worker import snapshot_job
from streameval.worker.snapshot_job import SnapshotSchedule

SEEDS = 60
SEED = 17  # with several slates still open at its end
NOTHING = Stored(None, None, None, None, None, {}, None, None, None)


class FakeStore:
    """A store that holds partition 0 as a worker left it, and nothing of any other."""

    def __init__(self, definition, events, *, rng=None, keep_outcomes=True, idle=0, token=1):
        state = Partition(definition, journal=True, keep_outcomes=keep_outcomes)
        counters = Counters(definition.kinds)
        at = 0
        for batch in cuts(events, rng or random.Random(0)):
            state.apply(batch, range(at, at + len(batch)))
            at += len(batch)
            counters.add(state.flush())
        state.sums(state.watermark + idle)
        state.outcomes_of(drain(state.finalizing()))
        saved = checkpoint(state, "0")
        self.token = token
        rows = [UserRow(user, at, **row) for user, row in counters.users.items()]
        self.scan = UserScan(at, at, rows)
        self.stored = Stored(at, "cluster", "topic", "f", saved.header, saved.chunks, at, 0, "{}")

    async def load(self, partition):
        return NOTHING if partition else self.stored

    async def users(self, partition):
        return UserScan(0, 0, []) if partition else self.scan

    async def fence(self):
        return self.token


def some_settings(definition, root, **changes):
    values = {
        "definition": lambda: definition,
        "pseudonymize": None,
        "group": "g",
        "topic": "t",
        "owner": {"group": "g", "topic": "t"},
        "snapshots": root,
        "snapshot_keep": 3,
        "snapshot_interval": 60_000,
        "outcomes": None,
        "checks": None,
    }
    return SimpleNamespace(**values | changes)


def snapshot(root, *, seed=SEED, store=None, token=1, **changes):
    """A snapshot of two partitions, of which one has nothing yet."""
    definition, events = hostile(seed)
    store = store or FakeStore(definition, events)
    settings = some_settings(definition, root, **changes)
    return asyncio.run(take_from(store, settings, root, range(2), token))


def rows_of(folder, name):
    return pyarrow.parquet.read_table(folder / name).to_pylist()


# --- what is in it -------------------------------------------------------------------------------


def test_users_windows_and_open_slates_equal_the_oracle(seed, tmp_path):
    """Windows at the watermark, however far an idle stream had moved T on."""
    definition, events = hostile(seed)
    rng = random.Random(f"cuts of {seed}")
    store = FakeStore(definition, events, rng=rng, idle=rng.choice((0, 5_000)))
    folder = snapshot(tmp_path, seed=seed, store=store)
    wanted = oracle(definition, events)
    figures = json.loads((folder / "figures.json").read_text())
    users = {}
    for row in rows_of(folder, "users.parquet"):
        assert (row.pop("partition"), row.pop("offset")) == (0, len(events))
        row["positives"] = dict(row["positives"])
        name = row.pop("user")
        users[name] = row
    assert_same(figures["partitions"]["0"] | {"users": users}, wanted)
    for part in ("rates", "ranking", "values", "lists", "ranks", "maturity"):
        assert_same_rows(part, figures["combined"][part], wanted[part])
    found = [plain(definition, with_ms(row))[:-1] for row in rows_of(folder, "open.parquet")]
    slates = expected(definition, events, range(len(events)), closed=False)
    assert sorted(found) == [row[:-1] for row in slates]  # feedback is on its way


def test_open_slates_are_there_where_outcomes_are_not_kept(tmp_path):
    definition, events = hostile(SEED)
    folder = snapshot(tmp_path, store=FakeStore(definition, events, keep_outcomes=False))
    kept = rows_of(snapshot(tmp_path, token=2), "open.parquet")
    found = rows_of(folder, "open.parquet")
    assert {row["offset"] for row in found} == {-1}
    names = ("user", "request", "time", "items", "positions", "shown", "gains")
    assert [[row[name] for name in names] for row in found] == [
        [row[name] for name in names] for row in kept
    ]


def test_the_manifest_says_what_belongs_together(tmp_path):
    definition, events = hostile(SEED)
    folder = snapshot(tmp_path)
    manifest = manifest_of(folder)
    assert manifest["fingerprint"] == fingerprint(definition)
    assert (manifest["group"], manifest["topic"], manifest["token"]) == ("g", "t", 1)
    one, nothing = manifest["partitions"]
    assert one["watermark"] == oracle(definition, events)["watermark"]
    assert one["checkpoint_offset"] == one["users_begin"] == one["users_end"] == len(events)
    assert (nothing["offset"], nothing["watermark"], nothing["users"]) == (None, None, 0)
    for name in ("users.parquet", "open.parquet"):
        assert manifest["files"][name]["rows"] == len(rows_of(folder, name)) > 0


def test_users_have_pseudonyms_where_outcome_files_do(tmp_path):
    name = pseudonyms(b"a long key")
    plainly = snapshot(tmp_path)
    folder = snapshot(tmp_path, token=2, pseudonymize=SecretStr("a long key"))
    assert manifest_of(folder)["pseudonymous"]
    for file in ("users.parquet", "open.parquet"):
        known = {name(row["user"]) for row in rows_of(plainly, file)}
        assert {row["user"] for row in rows_of(folder, file)} == known


# --- how it appears and goes ---------------------------------------------------------------------


def test_a_file_that_changed_is_noticed(tmp_path):
    folder = snapshot(tmp_path)
    (folder / "figures.json").write_text("{}")
    with pytest.raises(InputError, match=r"figures\.json changed since"):
        manifest_of(folder)
    (folder / "figures.json").unlink()
    with pytest.raises(InputError, match="is not a snapshot, or not whole"):
        manifest_of(folder)


def test_a_leader_that_was_replaced_throws_its_snapshot_away(tmp_path):
    definition, events = hostile(SEED)
    with pytest.raises(RefusedError, match=r"another leader took over \(token 8, ours is 7\)"):
        snapshot(tmp_path, store=FakeStore(definition, events, token=8), token=7)
    assert list(tmp_path.iterdir()) == []


def test_no_snapshot_is_taken_of_a_damaged_checkpoint(tmp_path):
    store = FakeStore(*hostile(SEED))
    store.stored.chunks[next(iter(store.stored.chunks))] = b"?"
    with pytest.raises(UnusableStateError, match="is damaged: restore Redis from a backup"):
        snapshot(tmp_path, store=store)
    assert list(tmp_path.iterdir()) == []


def test_the_command_needs_no_lease(tmp_path):
    definition, events = hostile(SEED)
    folder = snapshot(tmp_path, store=FakeStore(definition, events, token=8), token=0)
    assert snapshots(tmp_path) == [folder]


def test_the_oldest_go_and_what_is_no_snapshot_stays(tmp_path):
    for day in range(10, 15):
        (tmp_path / f"202001{day}T000000Z-9").mkdir()
    (tmp_path / "notes").mkdir()
    dead, young = tmp_path / "_17-20200101T000000Z-9", tmp_path / "_18-20200101T000000Z-9"
    dead.mkdir()
    young.mkdir()
    os.utime(dead, (0, 0))
    folder = snapshot(tmp_path)
    retire(tmp_path, 3)
    kept = ["20200113T000000Z-9", "20200114T000000Z-9", folder.name]
    assert [path.name for path in snapshots(tmp_path)] == kept
    assert {path.name for path in tmp_path.iterdir()} == {*kept, "notes", young.name}


def test_one_that_was_just_taken_stays_beside_a_newer_one(tmp_path):
    """The command takes one in the second of the leader's, and has yet to say what is in it."""
    command, leader = (snapshot(tmp_path, token=token) for token in (0, 1))
    settings = some_settings(hostile(SEED)[0], tmp_path, snapshot_keep=1)
    retire_old(settings)
    assert sorted(snapshots(tmp_path)) == sorted([command, leader])
    assert manifest_of(command)["token"] == 0
    newest = snapshots(tmp_path)[-1]
    for folder in (command, leader):
        os.utime(folder, (time.time() - 61,) * 2)
    retire_old(settings)
    assert snapshots(tmp_path) == [newest]


def test_folders_of_others_stay_however_old_they_are(tmp_path):
    """Somebody put an archive there, or gave the outcome files the same folder."""
    ours = [tmp_path / f"_{prefix}20200101T000000Z-9" for prefix in ("", "17-")]
    others = [
        tmp_path / name for name in ("_archive", "_pending", "_2020", "_x-20200101T000000Z-9")
    ]
    for path in (*ours, *others):
        (path / "below").mkdir(parents=True)
        os.utime(path, (0, 0))
    retire(tmp_path, 3)
    assert sorted(tmp_path.iterdir()) == sorted(others)


def test_without_a_folder_there_is_none():
    settings = SimpleNamespace(snapshots=None)
    with pytest.raises(ConfigError, match="snapshots: name the folder"):
        asyncio.run(take(settings))


# --- the users of a busy partition ---------------------------------------------------------------


class BusyRedis:
    """Users u0 to u1499, counted once more at each of `commits` between two calls."""

    def __init__(self, commits, moved=0):
        self.offset, self.commits, self.moved = 100, commits, moved

    async def names(self, prefix):
        assert prefix == "p:user:"
        return None if self.moves() else [f"u{number}" for number in range(1_500)]

    def moves(self):
        self.moved -= 1
        return self.moved >= 0

    async def script(self, _script, key, arguments):
        assert key == "p:partition"
        if self.commits and len(arguments) > 1:
            self.commits -= 1
            self.offset += 1
        row = [b"impressions", b"%d" % self.offset, b"first_ts", b"1", b"last_ts", b"2"]
        return [b"%d" % self.offset, *(row for _ in arguments[1:])]


@pytest.mark.parametrize(
    ("commits", "consistent"),
    [
        pytest.param(0, True, id="idle"),
        pytest.param(1, True, id="a commit during the first try"),
        pytest.param(99, False, id="always busy"),
    ],
)
def test_each_user_is_exact_at_the_offset_beside_it(commits, consistent):
    redis = BusyRedis(commits)
    scan = asyncio.run(scan_users(redis.names, redis.script, "p:partition", "p:user:"))
    assert (scan.begin == scan.end) == consistent
    assert len({row.user for row in scan.rows}) == 1_500
    assert all(row.impressions == row.offset for row in scan.rows)
    assert all(scan.begin <= row.offset <= scan.end for row in scan.rows)


def test_users_whose_keys_move_are_read_again_or_not_at_all():
    redis = BusyRedis(0, moved=2)
    scan = asyncio.run(scan_users(redis.names, redis.script, "p:partition", "p:user:"))
    assert len(scan.rows) == 1_500
    redis = BusyRedis(0, moved=3)
    with pytest.raises(UnreachableError, match="move from server to server"):
        asyncio.run(scan_users(redis.names, redis.script, "p:partition", "p:user:"))


# --- the leader's schedule -----------------------------------------------------------------------


def test_two_may_retire_snapshots_at_a_time(tmp_path, monkeypatch):
    for day in (10, 11, 12):
        (tmp_path / f"202001{day}T000000Z-9").mkdir()
    known = snapshots(tmp_path)
    known[0].rmdir()
    listed = {tmp_path: known}
    monkeypatch.setattr("streameval.files.snapshots.snapshots", lambda root: listed.get(root, []))
    retire(tmp_path, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["20200112T000000Z-9"]


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        ("[]", "is not a snapshot, or not whole"),
        ('{"files": {}}', "is not a snapshot, or not whole"),
        ('{"files": {"a": 1}, "format": 1}', "is not a snapshot, or not whole"),
        ('{"format": 9}', "has format 9, this version reads 1"),
        (lambda whole: whole | {"files": {}}, "is not whole: no figures.json, open.parquet, users"),
        (lambda whole: whole | {"partitions": [{}]}, "is not a snapshot, or not whole"),
    ],
)
def test_a_damaged_manifest_is_one_line(tmp_path, manifest, said):
    path = snapshot(tmp_path) / "manifest.json"
    if not isinstance(manifest, str):
        manifest = json.dumps(manifest(json.loads(path.read_text())))
    path.write_text(manifest)
    with pytest.raises(InputError, match=said) as error:
        manifest_of(path.parent)
    assert "\n" not in str(error.value)


class FakeProcess:
    code = None

    def poll(self):
        return self.code


@pytest.fixture
def schedule(tmp_path, monkeypatch):
    """A schedule whose processes are lists of the tokens they were given."""
    made = SnapshotSchedule(some_settings(None, tmp_path))
    made.begun = []

    def begin(token, folder=None):
        made.begun.append(token if folder is None else folder.name)
        return FakeProcess()

    monkeypatch.setattr(made, "_begin", begin)
    return made


def test_only_a_leader_begins_a_snapshot_and_one_at_a_time(schedule):
    schedule.turn(None)
    assert schedule.begun == []
    schedule.turn(4)
    schedule.turn(4)
    assert schedule.begun == [4]


def test_the_interval_counts_from_the_newest_snapshot_whoever_took_it(schedule, tmp_path):
    newest = tmp_path / time.strftime("%Y%m%dT%H%M%SZ-3", time.gmtime())
    newest.mkdir()
    assert abs(taken_at(newest) - time.time()) < 60
    schedule.turn(4)
    assert schedule.begun == []
    newest.rename(tmp_path / "20200101T000000Z-3")
    schedule.turn(4)
    assert schedule.begun == [4]


def test_one_that_failed_is_not_tried_again_at_once(schedule):
    schedule.turn(4)
    schedule._process.code = 3
    schedule.turn(4)
    assert schedule.begun == [4]


def taken(schedule, folder):
    """The snapshot under way ends and is there."""
    folder.mkdir()
    schedule._process.code = 0
    schedule.turn(4)


def test_what_follows_a_snapshot_does_not_hold_up_the_next(schedule, tmp_path, monkeypatch, caplog):
    schedule._settings.checks = "x"
    schedule._interval = 0.0
    names = [f"2020010{day}T000000Z-4" for day in (1, 2, 3)]
    schedule.turn(4)
    for name in names:
        taken(schedule, tmp_path / name)
    assert schedule.begun == [4, 4, names[0], 4, 4]
    assert schedule.running_seconds is not None
    assert caplog.text.count("the checks take longer than snapshot_interval") == 1
    # Those of the first are through: the newest is next, and the one between is left out.
    schedule._following.code = 0
    schedule.turn(4)
    assert schedule.begun[-1] == names[2]


def test_without_outcome_files_and_checks_nothing_follows_a_snapshot(schedule, tmp_path):
    schedule.turn(4)
    taken(schedule, tmp_path / time.strftime("%Y%m%dT%H%M%SZ-4", time.gmtime()))
    assert schedule.begun == [4]
    assert schedule.running_seconds is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("checks.json", ""),
        ("checks.json", '{"time": 1, "checks": [{"name": "drift"}]}'),
        ("daily.json", '{"day": "2026-'),
        ("daily.json", "[]"),
        ("daily.json", '{"day": "2026-02-30", "fingerprint": "", "users": 1, "rates": []}'),
    ],
)
def test_damaged_results_do_not_end_the_leader(tmp_path, caplog, name, content):
    """They are said once in a while; of the rest what is there is shown."""
    folder = tmp_path / "20200101T000000Z-3"
    leave(folder)
    (folder / name).write_text(content)
    made = SnapshotSchedule(some_settings(None, tmp_path, checks="x", outcomes="y"))
    for _ in range(3):
        assert (bool(made.results()), bool(made.daily())) == (
            name != "checks.json",
            name != "daily.json",
        )
    assert caplog.text.count("results beside the snapshots are not shown") == 1


def leave(folder, *, value=0.0):
    """What a leader's process leaves in the folder of a snapshot."""
    folder.mkdir(parents=True, exist_ok=True)
    one = {"name": "drift", "severity": "error", "passed": True, "value": value, "seconds": 1.0}
    one |= {"message": "", "unanswered_since": None}
    day = {"day": "2026-01-31", "fingerprint": "", "users": 1, "rates": []}
    (folder / "checks.json").write_text(json.dumps({"time": 1, "checks": [one]}))
    (folder / "daily.json").write_text(json.dumps(day))


def test_a_worker_that_leads_again_shows_what_others_left_meanwhile(schedule, tmp_path):
    schedule._settings.checks = schedule._settings.outcomes = "x"
    name = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    for number, tokens in enumerate(([1], [None, 2], [4])):
        leave(tmp_path / f"{name}-{number}", value=float(number))
        for token in tokens:
            schedule.turn(token)
        assert [status.value for status in schedule.results()] == [number]


def test_the_day_is_shown_while_the_checks_of_its_snapshot_run(schedule, tmp_path, monkeypatch):
    """They may take long: on a busy machine, or over much. The folder is read when it is there."""
    reads = []

    def read(root):
        reads.append(root)
        return last_daily(root)

    monkeypatch.setattr(snapshot_job, "last_daily", read)
    schedule._settings.checks = schedule._settings.outcomes = "x"
    folder = tmp_path / time.strftime("%Y%m%dT%H%M%SZ-4", time.gmtime())
    schedule.turn(4)
    taken(schedule, folder)
    for _ in range(3):
        schedule.turn(4)
        assert schedule.daily() is None
    assert len(reads) == 1
    leave(folder)
    (folder / "checks.json").unlink()
    for _ in range(3):
        schedule.turn(4)
        assert schedule.daily().users == 1
    assert len(reads) == 2
    assert schedule.results() == []
    assert schedule.running_seconds is not None


def test_a_leader_looks_at_snapshots_and_results_without_pyarrow_and_duckdb(tmp_path):
    """They would take memory, and time in which nothing is counted."""
    leave(tmp_path / "s" / time.strftime("%Y%m%dT%H%M%SZ-1", time.gmtime()))
    code = (
        "import sys, streameval.cli.app, streameval.worker.app, streameval.worker.worker_loop\n"
        "from streameval.config.settings import Settings\n"
        "from streameval.worker.snapshot_job import SnapshotSchedule\n"
        "folders = {'snapshots': sys.argv[1], 'outcomes': sys.argv[1] + '-o'}\n"
        "settings = Settings(**folders, checks=sys.executable)\n"
        "schedule = SnapshotSchedule(settings)\n"
        "schedule.turn(1)\n"
        "print(len(schedule.results()), schedule.daily().users)\n"
        "print({'pyarrow', 'duckdb'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "s")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "1 1\nset()\n"


def test_a_worker_without_duckdb_takes_snapshots_and_says_that_checks_need_it(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    for given, warnings in (({}, 0), ({"outcomes": tmp_path, "checks": sys.executable}, 1)):
        caplog.clear()
        SnapshotSchedule(some_settings(None, tmp_path, **given))
        assert len(caplog.messages) == warnings
    assert extras.install("evaluate") in caplog.messages[0]


def test_a_worker_without_duckdb_removes_the_copies_that_its_snapshots_do_not_use(
    tmp_path, monkeypatch
):
    """No checks follow that would."""
    monkeypatch.setitem(sys.modules, "duckdb", None)
    settings = some_settings(None, tmp_path)
    ages = {"used": 1, "unused": 3}  # in intervals
    hour = tmp_path / COPIES / "dt=2026-01-31" / "hour=07"
    hour.mkdir(parents=True)
    for name, age in ages.items():
        (hour / name).touch()
        then = time.time() - age * settings.snapshot_interval / 1000
        os.utime(hour / name, (then, then))

    async def taken(*_, **__):
        return tmp_path / "a snapshot"

    monkeypatch.setattr("streameval.files.snapshots.take", taken)
    assert snapshot_job._snapshot(settings, 1, tidy=True) == 0
    assert [path.name for path in hour.iterdir()] == ["used"]


def test_a_folder_that_is_away_does_not_end_the_leader(schedule, monkeypatch, caplog):
    def away(_):
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr("pathlib.Path.iterdir", away)
    for _ in range(3):
        schedule.turn(4)
        schedule.turn(4)
    schedule._settings.checks = schedule._settings.outcomes = "x"
    for _ in range(3):
        assert (schedule.results(), schedule.daily()) == ([], None)
    assert schedule.begun == []
    assert caplog.text.count("no snapshot: snapshots: ") == 1
    assert caplog.text.count("Stale file handle") == 3


def test_a_folder_of_another_deployment_is_refused_by_worker_and_command(tmp_path):
    """Each would take the other's snapshots for its own, show its checks, and remove old ones."""
    mine = some_settings(None, tmp_path / "root")
    SnapshotSchedule(mine)
    SnapshotSchedule(mine)
    other = some_settings(None, tmp_path / "root", owner={"group": "h", "topic": "t"})
    said = r'holds the files of another deployment \(\{"group": "g", "topic": "t"\}\)'
    with pytest.raises(RefusedError, match=said):
        SnapshotSchedule(other)
    with pytest.raises(RefusedError, match=said):
        asyncio.run(take(other))
    (tmp_path / "root" / "_streameval.json").write_bytes(b"\xff")
    with pytest.raises(RefusedError, match="another deployment"):
        SnapshotSchedule(mine)


def test_a_folder_that_cannot_be_made_ours_yet_does_not_end_the_worker(tmp_path):
    (tmp_path / "file").touch()
    SnapshotSchedule(some_settings(None, tmp_path / "file" / "root"))


def test_without_a_folder_there_is_no_schedule(monkeypatch):
    schedule = SnapshotSchedule(some_settings(None, None))
    monkeypatch.setattr(schedule, "_begin", pytest.fail)
    schedule.turn(4)
