"""What `streameval forward` sends and holds, with clients of Kafka that only note it."""

import asyncio
import itertools
import json
from types import SimpleNamespace

import pytest
import servers
import trackers
from aiokafka import TopicPartition
from aiokafka.errors import (
    MessageSizeTooLargeError,
    UnknownError,
    UnsupportedForMessageFormatError,
)
from aiokafka.partitioner import murmur2

from streameval.base.errors import RefusedError, UnreachableError
from streameval.config.load import load
from streameval.kafka import admin, forwarder, unreadable_batches
from streameval.kafka.records import RecordLists
from streameval.kafka.resend import resender
from streameval.kafka.security import client_arguments

PLACES = [TopicPartition("shown", 0), TopicPartition("shown", 1), TopicPartition("done", 0)]
PROFILES = {"shown": "metarank", "done": "segment"}


class Pace:
    """The words of one process alone."""

    def __init__(self):
        self.words = {}

    async def tell(self, worker, said, lasts):
        self.words[worker] = said

    async def workers(self, lasts):
        return {name: (0, said) for name, said in self.words.items()}


class Batch(list):
    """Records of a partition, few enough that a commit takes several batches."""

    closed = False

    def append(self, timestamp, key, value):
        if self.closed or len(self) == 7:
            return None
        super().append((timestamp, key, value))
        return object()

    def close(self):
        self.closed = True


class Kafka:
    """A consumer, its reader and a producer: `done` has what was sent and committed, in order."""

    asked, broken = None, False
    begun = None

    def __init__(self, logs):
        self.unreadable = {}
        self.logs, self.at, self.done = logs, dict.fromkeys(logs, 0), []
        self.rests, self.silent, self.written = set(), set(), {0: [], 1: [], 2: []}

    async def read(self, seconds, max_records):
        read = {}
        for place, log in self.logs.items():
            if place in self.rests | self.silent:
                continue
            found = log[self.at[place] : self.at[place] + max_records]
            self.at[place] += len(found)
            read[place] = [RecordLists(*map(list, zip(*found, strict=True)), 0)] if found else []
        return read

    def share(self, partitions):
        assert partitions == len(self.logs)

    def highwater(self, place):
        return len(self.logs[place])

    async def position(self, place):
        return self.at[place]

    async def committed(self, place):
        return self.begun

    async def beginning_offsets(self, places):
        return dict.fromkeys(places, 0)

    async def topics(self):
        return set(PROFILES)

    def paused(self):
        return self.rests

    def pause(self, place):
        self.rests.add(place)

    def resume(self, place):
        self.rests.remove(place)

    def assignment(self):
        return set(self.logs)

    async def partitions_for(self, topic):
        return set(self.written)

    def create_batch(self):
        return Batch()

    async def send_batch(self, batch, topic, partition):
        assert batch.closed
        self.written[partition] += batch
        self.done += [timestamp for timestamp, _, _ in batch]
        return asyncio.sleep(0)

    async def commit(self, ends):
        self.done.append(dict(ends))


def logs_of(events):
    """The events as records of their topics, each user's lists in one partition."""
    logs = {place: [] for place in PLACES}
    for event in events:
        shown = event["type"] == "slate"
        place = PLACES[int(event["user_id"][1:]) % 2] if shown else PLACES[2]
        value = json.dumps((trackers.metarank if shown else trackers.segment)(event)).encode()
        at = len(logs[place])
        logs[place].append((at, event["ts"], b"k", value))
    return logs


def settings_in(folder, **keys):
    config = folder / "streameval.yaml"
    sources = [{"topic": topic, "profile": name} for topic, name in PROFILES.items()]
    config.write_text(json.dumps({"topic": "t", "forward": sources} | keys))
    return load(config)


async def forwarder_of(kafka, settings):
    """A forwarder that reads all partitions of `kafka`."""
    one = forwarder.Forwarder(settings, Pace())
    one._reader = kafka
    await one.on_partitions_assigned(PLACES)
    return one


def test_users_are_in_the_partition_that_any_producer_takes_in_order_of_time(tmp_path):
    events = trackers.stream(7, count=600)
    kafka = Kafka(logs_of(events))

    async def turns():
        one = await forwarder_of(kafka, settings_in(tmp_path))
        for _ in range(5):
            await one._turn(kafka, kafka)

    asyncio.run(turns())
    written = [record for log in kafka.written.values() for record in log]
    sent = sorted((timestamp, key.decode()) for timestamp, key, _ in written)
    assert sent == sorted((event["ts"], event["user_id"]) for event in events)
    for number, log in kafka.written.items():
        for _, key, value in log:
            assert json.loads(value)["user_id"].encode() == key
            assert number == (murmur2(key) & 0x7FFFFFFF) % len(kafka.written)
    for log in kafka.written.values():
        times = [timestamp for timestamp, _, _ in log]
        assert times == sorted(times)
        assert len(times) > 7


def test_large_records_that_wait_are_bounded_in_bytes(tmp_path, monkeypatch):
    """A partition with a backlog that is not read yet holds the others, and these rest."""
    monkeypatch.setattr(forwarder, "_MOST_BYTES", 20_000)
    kafka = Kafka(logs_of(trackers.stream(7, count=600)))
    kafka.silent.add(PLACES[2])

    async def turns():
        one = await forwarder_of(kafka, settings_in(tmp_path))
        await one._turn(kafka, kafka)
        assert kafka.rests == set(PLACES[:2])
        assert kafka.done == []
        kafka.silent.clear()
        for _ in range(5):
            await one._turn(kafka, kafka)
        assert kafka.rests == set()
        assert [source.size for source in one._sources.values()] == [0, 0, 0]

    asyncio.run(turns())
    ends = {place: end for one in kafka.done if isinstance(one, dict) for place, end in one.items()}
    assert ends == {place: len(log) for place, log in kafka.logs.items()}


def test_a_turn_ends_while_the_words_of_others_are_fresh(tmp_path, monkeypatch):
    """A commit that takes long ends the turn: the next one tells how far it has come, and stops."""
    kafka, now = Kafka(logs_of(trackers.stream(7, count=600))), [0.0]
    monkeypatch.setattr(forwarder, "time", SimpleNamespace(monotonic=lambda: now[0]))
    commit = kafka.commit

    async def slow(ends):
        now[0] += 2
        await commit(ends)

    kafka.commit = slow

    async def turns():
        one = await forwarder_of(kafka, settings_in(tmp_path, allowed_lateness="20s"))
        for number in range(1, 4):
            await one._turn(kafka, kafka)
            assert sum(isinstance(each, dict) for each in kafka.done) == number

    asyncio.run(turns())


@pytest.mark.parametrize("lateness", ["20s", "2m", "0s"])
def test_a_kill_before_a_commit_sends_nothing_again_that_is_late(lateness, tmp_path):
    settings = settings_in(tmp_path, allowed_lateness=lateness)
    events = trackers.stream(7, count=600)
    kafka = Kafka(logs_of(events))

    async def turns():
        one = await forwarder_of(kafka, settings)
        for _ in range(5):
            await one._turn(kafka, kafka)

    asyncio.run(turns())
    runs = [
        list(times)
        for sent, times in itertools.groupby(kafka.done, lambda one: isinstance(one, int))
        if sent
    ]
    assert sum(map(len, runs)) == len(events)
    most = max(settings.allowed_lateness // 2, 1_000)
    for times in runs:
        assert max(times) - min(times) <= most
    assert len(runs) > 1
    commits = [one for one in kafka.done if isinstance(one, dict)]
    assert len(commits) == len(runs), "each run ends with a commit"
    ends = {place: end for commit in commits for place, end in commit.items()}
    assert ends == {place: len(log) for place, log in kafka.logs.items()}


def test_a_topic_that_takes_no_event_so_large_is_named(tmp_path):
    kafka = Kafka(logs_of(trackers.stream(7, count=60)))

    async def refused():
        raise MessageSizeTooLargeError

    async def refuse(batch, topic, partition):
        return refused()

    kafka.send_batch = refuse

    async def turns():
        one = await forwarder_of(kafka, settings_in(tmp_path))
        await one._turn(kafka, kafka)

    with pytest.raises(RefusedError, match=r"the topic t refuses .* max\.message\.bytes"):
        asyncio.run(turns())
    assert kafka.done == [], "nothing is committed"


def test_records_that_kafka_deleted_before_they_were_read_are_counted(tmp_path, caplog):
    """The log begins at 0 here, and the group had read up to 7 records before that."""
    kafka = Kafka(logs_of(trackers.stream(7, count=60)))
    kafka.begun = -7

    async def turns():
        one = await forwarder_of(kafka, settings_in(tmp_path))
        for _ in range(3):
            await one._turn(kafka, kafka)
        return one.counts()

    counts = asyncio.run(turns())
    assert {topic: each["lost"] for topic, each in counts.items()} == {"shown": 14, "done": 7}
    said = "partition 0 of done: 7 records were deleted before they were read"
    assert sum(said in line for line in caplog.messages) == 1


def test_it_stops_though_nobody_takes_its_dead_letters(tmp_path, monkeypatch):
    monkeypatch.setattr(forwarder, "_STOP_SECONDS", 0.01)
    stop = asyncio.Event()

    async def turn():
        stop.set()
        await asyncio.Event().wait()

    async def fails():
        raise RefusedError("a turn that fails")

    async def turns():
        await forwarder._until(stop, turn())
        stop.clear()
        with pytest.raises(RefusedError, match="a turn that fails"):
            await forwarder._until(stop, fails())

    asyncio.run(turns())


def test_its_consumer_has_what_the_configuration_says_of_consumers(tmp_path, monkeypatch):
    """A rack near by is read, and partitions that are added are noticed as soon as by a worker."""
    asked = {}

    def consumer(**arguments):
        asked.update(arguments)
        raise RefusedError("enough")

    async def topics(_):
        pass

    monkeypatch.setattr(forwarder, "AIOKafkaConsumer", consumer)
    monkeypatch.setattr(forwarder.Forwarder, "_find_topics", topics)
    settings = settings_in(tmp_path, kafka_rack="a", session_timeout="6s", read_memory=32 << 20)
    with pytest.raises(RefusedError, match="enough"):
        asyncio.run(forwarder.Forwarder(settings, Pace()).run(asyncio.Event()))
    assert asked["client_rack"] == "a"
    assert (asked["session_timeout_ms"], asked["heartbeat_interval_ms"]) == (6_000, 2_000)
    assert asked["fetch_max_bytes"] == 2 << 20
    assert asked["metadata_max_age_ms"] == 30_000


@pytest.mark.parametrize("error", [UnsupportedForMessageFormatError, UnknownError])
def test_events_are_sent_unpacked_where_kafka_refuses_packed_ones(tmp_path, monkeypatch, error):
    kafka, asked = Kafka(logs_of(trackers.stream(7, count=60))), []

    async def refused(batch, topic, partition):
        async def answer():
            raise error

        return answer()

    async def topics(_):
        pass

    def producer(**arguments):
        assert arguments["acks"] == "all"
        asked.append(arguments["compression_type"])
        raise RefusedError("enough")

    kafka.send_batch = refused
    monkeypatch.setattr(forwarder.Forwarder, "_find_topics", topics)
    monkeypatch.setattr(forwarder, "AIOKafkaConsumer", lambda **_: kafka)
    monkeypatch.setattr(forwarder, "AIOKafkaProducer", producer)

    async def turns():
        one = await forwarder_of(kafka, settings_in(tmp_path))
        with pytest.raises(RefusedError, match="enough"):
            await one.run(asyncio.Event())
        with pytest.raises(UnreachableError, match=r"refuses events packed by zstd .* unpacked"):
            await one._turn(kafka, kafka)
        with pytest.raises(RefusedError, match="enough"):
            await one.run(asyncio.Event())
        one._reader = kafka
        with pytest.raises(error):  # it has another cause
            await one._turn(kafka, kafka)

    asyncio.run(turns())
    assert asked == ["zstd", None]
    assert not any(isinstance(each, dict) for each in kafka.done), "nothing is committed"


def test_a_server_without_idempotent_producers_will_do(tmp_path):
    """As the embedded broker. Each event comes, though one may come twice."""
    events = trackers.stream(7, count=60)
    sent = [(b"k", json.dumps(trackers.segment(event)).encode()) for event in events]

    async def run(server):
        sources = [{"topic": "calls", "profile": "segment"}]
        settings = settings_in(tmp_path, kafka=f"127.0.0.1:{server.port}", forward=sources)
        client = client_arguments(settings)
        await admin.create_topics(client, {"calls": 1, "t": 1})
        async with admin.sender(client, "calls") as send:
            for key, value in sent:
                await send(key, value)
        one, stop, found = forwarder.Forwarder(settings, Pace()), asyncio.Event(), []
        running = asyncio.create_task(one.run(stop))
        async with asyncio.timeout(60):
            while len(found) < len(sent):
                await asyncio.sleep(0.5)
                _, found = await admin.sample(client, "t", 1_000)
        stop.set()
        await running
        return found

    with servers.tansu() as server:
        found = asyncio.run(run(server))
    users = sorted(json.loads(record.value)["user_id"] for record in found)
    assert users == sorted(event["user_id"] for event in events)


def test_a_server_without_transactions_resends_nothing(tmp_path):
    async def resend(server):
        client = client_arguments(settings_in(tmp_path, kafka=f"127.0.0.1:{server.port}"))
        async with resender(client, "group"):
            raise AssertionError("it has none")

    with (
        servers.tansu() as server,
        pytest.raises(RefusedError, match="begins no transaction"),
    ):
        asyncio.run(resend(server))


def test_letters_that_wait_are_trouble_and_those_refused_are_counted(tmp_path):
    """A turn that waits for its dead letters says so meanwhile."""
    logs = logs_of(trackers.stream(7, count=60))
    at, timestamp, *_ = logs[PLACES[2]][-1]
    logs[PLACES[2]].append((at + 1, timestamp, b"k", b"no call"))
    kafka, said = Kafka(logs), []

    async def turns():
        one = await forwarder_of(kafka, settings_in(tmp_path))

        class Letters:
            trouble = ""

            async def write(self, letters):
                self.trouble = "Kafka does not take dead letters"
                said.append(one.trouble)
                self.trouble = ""
                return len(letters)

        one._letters["done"] = Letters()
        for _ in range(3):
            await one._turn(kafka, kafka)
        assert one.trouble == ""
        return one.counts()["done"]

    counts = asyncio.run(turns())
    assert (counts["rejected"], counts["dead_letters_refused"]) == (1, 1)
    assert said[0].endswith("Kafka does not take dead letters")


def test_records_that_compaction_took_are_counted(tmp_path):
    kafka = Kafka(logs_of(trackers.stream(7, count=60)))
    whole = kafka.read

    async def read(seconds, most):
        return {
            place: [part._replace(missing=[(len(part.offsets), len(part.offsets) + 3)])]
            for place, parts in (await whole(seconds, most)).items()
            for part in parts
        }

    kafka.read = read

    async def turns():
        one = await forwarder_of(kafka, settings_in(tmp_path))
        for _ in range(3):
            await one._turn(kafka, kafka)
        return one.counts()

    counts = asyncio.run(turns())
    assert {topic: each["lost"] for topic, each in counts.items()} == {"shown": 6, "done": 3}


def test_a_batch_that_cannot_be_read_is_named_and_holds_only_its_partition(tmp_path, monkeypatch):
    """The others go on when they have waited for it; when it can be read, so does this one."""
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(forwarder, "time", clock)
    monkeypatch.setattr(unreadable_batches, "time", clock)
    events = trackers.stream(7, count=600)
    kafka = Kafka(logs_of(events))
    bad = PLACES[2]
    kafka.silent.add(bad)

    async def turns():
        one = await forwarder_of(kafka, settings_in(tmp_path, allowed_lateness="1s"))
        kafka.unreadable[bad] = "offset 0 (it is damaged)"
        await one._turn(kafka, kafka)
        assert kafka.unreadable == {}
        assert bad in kafka.rests
        assert "partition 0 of done waits before the batch at offset 0" in one.trouble
        assert all(isinstance(each, dict) or each <= events[0]["ts"] + 500 for each in kafka.done)
        now[0] += forwarder.HOLD_SECONDS + 1
        await one._turn(kafka, kafka)
        assert bad not in kafka.rests, "it is tried again"
        for _ in range(5):
            await one._turn(kafka, kafka)
        sent = [each for each in kafka.done if isinstance(each, int)]
        assert len(sent) == sum(len(kafka.logs[place]) for place in PLACES[:2])
        kafka.silent.clear()
        for _ in range(5):
            await one._turn(kafka, kafka)
        assert one.trouble == ""

    asyncio.run(turns())
    assert sum(isinstance(each, int) for each in kafka.done) == len(events)
