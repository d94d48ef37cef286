"""Outcome files and snapshots of the whole service, on real Kafka and Redis, with kills."""

import json
import random
from pathlib import Path
from time import sleep

import comparison
import pyarrow.parquet
import pytest
import redis as redis_client
import servers
import service
from command_line import streameval
from default_events import DIMENSIONS, decode_batch
from scene import Scene
from test_outcomes import expected, plain, read
from test_partition_properties import assert_same

from streameval.files.outcome_files import OutcomeFolder
from streameval.files.snapshot_folder import snapshots
from streameval.files.snapshots import manifest_of

pytestmark = [pytest.mark.servers]
KILLS = 6


def test_each_slate_stands_in_the_files_once_whatever_is_killed(tmp_path):
    """And snapshots, the leader's and the command's, hold what the oracle says."""
    rng = random.Random(1)
    root = tmp_path / "snapshots"
    files = {
        "outcomes": str(tmp_path / "outcomes"),
        "snapshots": str(root),
        "snapshot_interval": "10s",
        "checkpoint_interval": "1s",
    }
    with (
        servers.redis(aof="always") as redis,
        Scene(servers.shared_kafka(), redis, settings=files) as scene,
    ):
        scene.worker()
        scene.worker()
        sending = scene.producing(30_000, KILLS * 3)
        for number in range(KILLS):
            sleep(rng.uniform(1.5, 3.5))
            kill(redis if number == KILLS // 2 else rng.choice(scene.workers))
        sending.result()
        log, ends = service.read_log(scene.kafka.port, scene.topic, scene.partitions)
        service.wait_until_read(redis.url, scene.topic, ends)
        service.wait_for(lambda: len(snapshots(root)) >= 2, 60, "snapshots of the leader")
        by_leader = manifest_of(snapshots(root)[-1])
        for worker in scene.workers:
            assert worker.stop() == 0, worker.logged()[-3000:]
        slates = compare_files(scene, log)
        users = compare_snapshot(scene, log)
    print(f"{slates} slates in files, {users} users in the snapshot")
    assert by_leader["token"] > 0
    assert slates > 1_000 and users > 100


def kill(what):
    what.kill()
    sleep(0.3)
    what.start()


def until(log, offsets):
    """The log as it was at the offsets of its partitions."""
    return {
        number: [record for record in records if record[0] < offsets[number]]
        for number, records in log.items()
    }


def compare_files(scene, log):
    """Each slate that was given up before the last checkpoint, once; answers how many."""
    definition = scene.workers[0].definition
    found = {number: [] for number in log}
    for row in read(OutcomeFolder(scene.settings["outcomes"], {}, {}, DIMENSIONS)):
        found[row["partition"]].append(plain(definition, row))
    with redis_client.Redis.from_url(scene.redis.url) as client:
        key = f"streameval:{{test:{scene.topic}:%d}}:partition"
        offsets = {number: int(client.hget(key % number, "checkpoint_offset")) for number in log}
    for number, records in until(log, offsets).items():
        events, rejected = decode_batch(
            [value for _, _, _, value in records],
            [timestamp for _, timestamp, _, _ in records],
            definition.max_clock_skew,
        )
        bad = {at for at, _ in rejected}
        numbers = [record[0] for at, record in enumerate(records) if at not in bad]
        assert sorted(found[number]) == expected(definition, events, numbers), number
    return sum(map(len, found.values()))


def compare_snapshot(scene, log):
    """What the command takes: counters at the end, windows at the checkpoints; how many users."""
    worker = scene.workers[0]
    done = streameval("snapshot", "--config", worker.config, "--json", text=True)
    assert done.returncode == 0, done.stderr
    manifest = json.loads(done.stdout)
    folder = Path(manifest["snapshot"])
    rows = pyarrow.parquet.read_table(folder / "users.parquet").to_pylist()
    windows = json.loads((folder / "figures.json").read_text())["partitions"]
    parts = {part["partition"]: part for part in manifest["partitions"]}
    assert all(part["users_begin"] == part["users_end"] for part in parts.values())
    saved = {number: part["checkpoint_offset"] for number, part in parts.items()}
    ends = comparison.expected(worker.definition, log)
    for number, document in comparison.expected(worker.definition, until(log, saved)).items():
        users = {}
        for row in rows:
            if row["partition"] == number:
                names = ("impressions", "slates", "first_ts", "last_ts")
                counters = {name: row[name] for name in names}
                zero = dict.fromkeys(worker.definition.kinds, 0)
                users[row["user"]] = counters | {"positives": zero | dict(row["positives"])}
        assert users == ends[number]["users"]
        assert_same(windows[str(number)] | {"users": None}, document | {"users": None})
    return len(rows)
