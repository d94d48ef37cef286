"""Checks of the whole service on real Kafka and Redis: workers die, and all pass; then each fault
is planted, in the stores or in the traffic, and exactly the check that is about it fails.

One deployment for all tests. Traffic comes in periods of five hours of event time; at the end of
each, time moves on until every slate of it is final. A test looks at what was final since the
snapshot before (`--reference`), so it does not see the faults of the others.
"""

import asyncio
import json
import random
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pyarrow as pa
import pyarrow.parquet
import pytest
import redis as redis_client
import servers
import service
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from clean_service import LENGTH, MINUTE, SPECIFICATION, START, encoded, head_of, one_slate, stream
from command_line import streameval
from default_events import SlateEvent
from test_files_on_servers import compare_files

from streameval.checks.catalogue import CHECKS
from streameval.files.snapshot_folder import snapshots

pytestmark = [pytest.mark.servers]
PARTITIONS = 2
PERIOD = 8 * 60 * MINUTE
KILLS = 4
SETTINGS = {
    "positives": ["click", "buy"],
    "gains": {"buy": 3},
    "windows": [{"size": "1h", "slide": "1m"}, {"size": "4h", "slide": "10m"}],
    "checkpoint_interval": "1s",
    "session_timeout": "2s",
}


class Live:
    """A deployment whose outcome files and snapshots are below `root`."""

    def __init__(self, kafka, redis, root):
        self.kafka, self.redis, self.root = kafka, redis, root
        self.topic = servers.unique("checks")
        self.settings = SETTINGS | {"outcomes": str(root / "outcomes")}
        # Records have the time of their event, as in production, and not that of the test.
        service.create_topic(
            kafka.port,
            self.topic,
            PARTITIONS,
            **{"message.timestamp.type": "CreateTime", "retention.ms": "-1"},
        )
        self.periods = 0
        self.now = START
        self.workers = [self.worker(self.settings)]

    def worker(self, settings):
        return service.Worker(self.kafka.port, self.redis.url, self.topic, **settings).start()

    def write(self, name, document):
        path = self.root / name
        path.write_text(json.dumps(document))
        return path

    def produce(self, events, later, *, seconds=0, wire=None):
        """Send a stream `later` ms than it says; `wire` gives the values of an event."""
        asyncio.run(self._produce(sorted(events, key=lambda one: one.ts), later, seconds, wire))

    async def _produce(self, events, later, seconds, wire):
        producer = AIOKafkaProducer(
            bootstrap_servers=self.kafka.address, compression_type="lz4", linger_ms=5
        )
        await producer.start()
        try:
            for number, event in enumerate(events):
                for value in [encoded(event, later)] if wire is None else wire(event, later):
                    await producer.send(
                        self.topic,
                        value,
                        key=event.user_id.encode(),
                        timestamp_ms=event.ts + later,
                    )
                if seconds and number % 200 == 0:
                    await asyncio.sleep(seconds * 200 / len(events))
        finally:
            await producer.stop()

    def period(self, events=None, *, seconds=0, wire=None, meanwhile=lambda: None):
        """A period of traffic, by default a clean one; returns when all of it is in the files."""
        later = self.periods * PERIOD
        self.periods += 1
        events = stream(seed=self.periods, slates=2_000) if events is None else events
        with ThreadPoolExecutor() as pool:
            sending = pool.submit(self.produce, events, later, seconds=seconds, wire=wire)
            meanwhile()
            sending.result()
        # Now a checkpoint is due: it comes with what follows, and with it the rows of the period.
        time.sleep(1.1)
        self.produce(self.ticks(), START + LENGTH + 45 * MINUTE + later)
        self.wait_until_read()
        # The last slate of the period has just become final.
        self.now = START + LENGTH + 31 * MINUTE + later

    def ticks(self):
        """Some slates in every partition."""
        chance = random.Random(self.periods)
        for number in range(20):
            yield from one_slate(chance, -number, f"t{number}", 0, "AB"[number % 2])

    def wait_until_read(self):
        service.wait_until_read(self.redis.url, self.topic, asyncio.run(self.ends()))

    async def ends(self):
        """The end of each partition's log."""
        consumer = AIOKafkaConsumer(bootstrap_servers=self.kafka.address)
        await consumer.start()
        try:
            places = [TopicPartition(self.topic, number) for number in range(PARTITIONS)]
            found = await consumer.end_offsets(places)
            return {place.partition: end for place, end in found.items()}
        finally:
            await consumer.stop()

    def command(self, *arguments):
        """Run a command of streameval with the configuration of the worker."""
        name, *more = arguments
        return streameval(name, "--json", "--config", self.workers[-1].config, *more)

    def snapshot(self):
        """Take a snapshot; answers its folder."""
        ran = self.command("snapshot")
        assert ran.returncode == 0, ran.stderr
        return Path(json.loads(ran.stdout)["snapshot"])

    def check(self, snapshot=None, reference=None, **changes):
        """What all checks find, by name; by default of a new snapshot against the one before.

        The exit code says whether one failed.
        """
        reference = reference or snapshots(self.root / "snapshots")[-1]
        snapshot = snapshot or self.snapshot()
        spec = self.write("spec.yaml", SPECIFICATION | changes)
        given = ("--spec", spec, "--at", self.now, "--reference", reference, "--snapshot", snapshot)
        ran = self.command("check", *given)
        assert ran.stderr == b""
        found = {one["name"]: SimpleNamespace(**one) for one in json.loads(ran.stdout)["checks"]}
        assert list(found) == [check.name for check in CHECKS]
        assert ran.returncode == int(bool(failing(found)))
        return found


def failing(found):
    return {name for name, one in found.items() if one.passed is False}


def unsaid(found):
    """Messages of the checks that did not pass."""
    return {name: one.message for name, one in found.items() if one.passed is not True}


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """A deployment whose workers were killed while a period of clean traffic came in."""
    root = tmp_path_factory.mktemp("live")
    with servers.redis(aof="always") as redis:
        deployment = Live(servers.shared_kafka(), redis, root)
        try:
            deployment.period(seconds=8, meanwhile=lambda: kill(deployment.workers[0]))
            yield deployment
        finally:
            for worker in deployment.workers:
                if worker.running:
                    worker.kill()


def kill(worker):
    rng = random.Random(1)
    for _ in range(KILLS):
        time.sleep(rng.uniform(1.3, 2.3))
        worker.kill()
        worker.start()


@pytest.fixture(scope="module")
def before(live):
    """The snapshot that the leader took after the kills, and checked."""
    checks = live.write("scheduled.yaml", SPECIFICATION | {"freshness": {"severity": "off"}})
    live.workers[0].kill()
    live.settings |= {
        "snapshots": str(live.root / "snapshots"),
        "snapshot_interval": "1h",
        "checks": str(checks),
    }
    live.workers.append(live.worker(live.settings))
    service.wait_for(
        lambda: any((path / "checks.json").exists() for path in snapshots(live.root / "snapshots")),
        180,
        "the leader has checked a snapshot",
    )
    (folder,) = snapshots(live.root / "snapshots")
    return folder


def test_after_kills_each_slate_stands_in_the_files_once(live):
    log, _ = service.read_log(live.kafka.port, live.topic, PARTITIONS)
    # Files become visible a moment after the commit that they belong to.
    service.wait_for(lambda: (same_files(live, log) or 0) > 1_500, 10, "files are the oracle's")


def same_files(live, log):
    """How many slates the files hold; None where they are not those of the log."""
    try:
        return compare_files(live, log)
    except AssertionError:
        return None


def test_the_leader_recounts_the_log_and_shows_what_it_found(live, before):
    document = json.loads((before / "checks.json").read_text())
    found = {one["name"]: SimpleNamespace(**one) for one in document["checks"]}
    assert document["passed"] is True
    # Nothing is there to compare with yet.
    assert set(unsaid(found)) == {"drift"}
    assert found["counters_match_log"].message.endswith("agree with the log")
    key = (
        "streameval_check_passed",
        frozenset({("check", "counters_match_log"), ("severity", "error")}),
    )
    service.wait_for(lambda: live.workers[-1].metrics().get(key) == 1, 20, "the leader shows it")


@pytest.fixture(scope="module")
def clean(live, before):
    """The snapshot at the end of a second period of clean traffic."""
    live.period()
    return live.snapshot()


def test_all_checks_pass_on_the_next_period(live, before, clean):
    found = live.check(clean, before)
    assert unsaid(found) == {}
    assert f"agree with the log since {before.name}" in found["counters_match_log"].message


# --- faults in the stores -------------------------------------------------------------------------


def test_a_counter_changed_in_redis_fails_the_recount_and_nothing_else(live, before, clean):
    with redis_client.Redis.from_url(live.redis.url, decode_responses=True) as client:
        key = min(client.scan_iter(f"streameval:{{test:{live.topic}:*}}:user:u1*"))
        client.hincrby(key, "positives:click", 2)
        changed = live.snapshot()
        client.hincrby(key, "positives:click", -2)
    found = live.check(changed, before)
    shutil.rmtree(changed)
    assert failing(found) == {"counters_match_log"}
    message = found["counters_match_log"].message
    assert message.startswith("1 of ")
    assert f"user {key.rpartition(':')[2]!r} has positives {{'click': " in message
    assert "Somebody else writes to these keys of Redis" in message


def test_an_outcome_row_removed_fails_the_windows_and_nothing_else(live, before, clean):
    path, original = remove_a_row(live, live.now - 60 * MINUTE)
    found = live.check(clean, before)
    path.write_bytes(original)
    assert failing(found) == {"windows_match_outcomes"}
    message = found["windows_match_outcomes"].message
    assert "matured figures differ from the outcome rows: " in message
    assert "the rows give" in message
    assert "Rows were lost" in message


def remove_a_row(live, moment):
    """Remove the first row after `moment` (ms) from the files; the file and what it held."""
    for path in sorted(Path(live.settings["outcomes"]).glob("dt=*/hour=*/*.parquet")):
        rows = pa.parquet.ParquetFile(path).read()
        times = [time.timestamp() * 1000 for time in rows["time"].to_pylist()]
        at = next((at for at, known in enumerate(times) if known >= moment), None)
        if at is not None:
            original = path.read_bytes()
            kept = pa.concat_tables([rows.slice(0, at), rows.slice(at + 1)])
            pa.parquet.write_table(kept, path)
            return path, original
    raise AssertionError("there is a row after that moment")


# --- faults in the traffic ------------------------------------------------------------------------


def without_positions(event, later):
    """One slate of ten comes as impressions that do not say where their items stood."""
    if not isinstance(event, SlateEvent) or int(event.request_id[1:]) % 10:
        yield encoded(event, later)
        return
    for item, (score, propensity) in event.details.items():
        own = {"item_id": item, "score": score, "propensity": propensity}
        head = head_of(event) | {"ts": event.ts + later}
        yield msgspec.json.encode({"type": "impression", **head, **own})


def test_positions_that_are_not_sent_fail_the_positions_and_nothing_else(live, clean):
    live.period(wire=without_positions)
    found = live.check()
    assert failing(found) == {"positions_complete"}
    message = found["positions_complete"].message
    assert "items of slates have no position, most in variant" in message
    assert 0.08 < found["positions_complete"].value < 0.12


def test_a_bot_fails_the_traffic_and_nothing_else(live, clean):
    chance = random.Random(5)
    minute = (START + LENGTH // 2) // MINUTE * MINUTE
    bot = [
        event
        for number in range(100)
        for event in one_slate(chance, 10**6 + number, "bot", minute + 500 * number, "A")
    ]
    live.period([*stream(seed=21, slates=2_000), *bot])
    found = live.check()
    assert failing(found) == {"traffic_sane"}
    assert "user 'bot' had 100 slates in a minute" in found["traffic_sane"].message


def test_a_shifted_score_fails_the_scores_and_nothing_else(live, clean):
    live.period(stream(seed=22, slates=2_000, score_shift=0.2))
    found = live.check()
    assert failing(found) == {"logged_scores"}
    assert "scores are shifted" in found["logged_scores"].message
    assert found["logged_scores"].value == pytest.approx(0.2, abs=0.02)


def test_a_split_of_52_to_48_fails_the_sample_ratio(live, clean):
    """The experiment begins with the period."""
    begin = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime((START + live.periods * PERIOD) / 1000))
    live.period(stream(seed=3, users=1_000_000, slates=20_000, share_of_b=0.52))
    found = live.check(
        sample_ratio=SPECIFICATION["sample_ratio"] | {"since": begin},
        metric_regression=SPECIFICATION["metric_regression"] | {"since": begin},
        counters_match_log={"sample": 0.1},
    )
    assert failing(found) == {"sample_ratio", "traffic_alike"}
    assert "are in no other slate" in found["traffic_alike"].message, "users of a million"
    message = found["sample_ratio"].message
    assert "the split is not the configured one" in message
    assert "'B' 51.9 % (split 50 %)" in message


# --- the log is gone ------------------------------------------------------------------------------


def test_a_log_that_retention_has_deleted_is_neither_pass_nor_fail(live, clean):
    """The last test here: the deployment's log does not come back."""
    service.truncate(live.kafka.port, live.topic, asyncio.run(live.ends())[0] - 1)
    found = live.check()
    assert found["counters_match_log"].passed is None
    assert found["counters_match_log"].message.startswith("no answer: Kafka has deleted records")
