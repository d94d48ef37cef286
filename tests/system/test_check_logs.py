"""Which part of Kafka's log a recount reads, and how: a fake topic, then a real one."""

import asyncio
import json
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import servers
import service

from streameval.base.errors import UnreachableError
from streameval.checks import event_log
from streameval.checks.evidence import Snapshot
from streameval.config.settings import Settings
from streameval.core.definition import Definition
from streameval.kafka import range_reader
from streameval.kafka.range_reader import RangeReader
from streameval.kafka.record_batches import RecordLists
from streameval.kafka.topic_identity import LogIdentity

HORIZON = Definition().horizon
SKEW = Definition().max_clock_skew
MINUTE = 60_000
SETTINGS = Settings(topic="t")
BUDGET = 32 << 20


class FakeTopic:
    """Partition 0: a record a minute, whose timestamp is its offset in minutes; from `start` on."""

    def __init__(self, end, start=0, topic_id="topic"):
        self.end, self.start, self.topic_id = end, start, topic_id

    async def identity(self):
        return LogIdentity("cluster", self.topic_id, 1)

    async def starts(self, partitions):
        return dict.fromkeys(partitions, self.start)

    async def since(self, times):
        first = {number: max(self.start, -(-time // MINUTE)) for number, time in times.items()}
        return {number: at if at < self.end else None for number, at in first.items()}

    async def read(self, partition, begin, end):
        assert partition == 0
        value = json.dumps({"type": "impression", "user_id": "u", "item_id": "i"})[:-1]
        offsets = list(range(begin, end))
        stamps = [at * MINUTE for at in offsets]
        values = [f'{value}, "ts": {1_700_000_000_000 + at}}}'.encode() for at in offsets]
        times = [1_700_000_000_000 + stamp for stamp in stamps]
        yield RecordLists(offsets, times, [None], values, sum(map(len, values)))


@pytest.fixture
def topic(monkeypatch):
    """A topic with a thousand records that a test may change."""
    fake = FakeTopic(1_000)

    @asynccontextmanager
    async def opened(*_):
        yield fake

    for module in (event_log, range_reader):
        monkeypatch.setattr(module, "open_range_reader", opened)
    return fake


def part(offset, watermark):
    """A manifest's facts of partition 0."""
    return {
        "partition": 0,
        "cluster_id": "cluster",
        "topic_id": "topic",
        "users_begin": offset,
        "users_end": offset,
        "checkpoint_offset": offset,
        "watermark": watermark,
    }


def later(offset=1_000, taken=1_000, name="later"):
    """A snapshot whose state counted `taken` events."""
    events = {"accepted": {"impression": taken - 1}, "rejected": {"late": 1}}
    return Snapshot(
        path=Path(name),
        fingerprint="f",
        definition={},
        pseudonymous=False,
        parts={0: part(offset, offset * MINUTE)},
        watermarks={},
        figures={0: {"events": events}},
        combined={},
    )


@pytest.fixture
def candidates(tmp_path, monkeypatch):
    """Earlier snapshots by their offsets; only their manifests are there."""
    monkeypatch.setattr(
        event_log, "read_snapshot", lambda path: SimpleNamespace(path=path, parts={})
    )

    def made(*offsets, fingerprint="f"):
        found = []
        for offset in offsets:
            folder = tmp_path / f"at-{offset}"
            folder.mkdir()
            document = {
                "format": 1,
                "fingerprint": fingerprint,
                "definition": {},
                "pseudonymous": False,
                "partitions": [part(offset, offset * MINUTE)],
                "files": {
                    name: {"sha256": "0"}
                    for name in ("users.parquet", "open.parquet", "figures.json")
                },
            }
            (folder / "manifest.json").write_text(json.dumps(document))
            found.append(folder)
        return found

    return made


def chosen(snapshot, candidates=(), most=10_000, earlier=None):
    return event_log.of_kafka(SETTINGS, candidates)(snapshot, earlier)(most)


def begin_after(offset):
    """Where reading begins for a snapshot at `offset`: by its watermark, back by 2 (A + L)."""
    return offset - (2 * HORIZON + SKEW) // MINUTE


# --- which part -----------------------------------------------------------------------------------


def test_a_log_that_is_all_there_is_read_since_a_snapshot_where_the_start_is_not_asked_for(
    topic, candidates
):
    recorded = event_log.of_kafka(SETTINGS, candidates(800), from_start=False)
    found = recorded(later(), None)(10_000)
    assert found[0].begin == begin_after(800)
    assert found[0].since.path.name == "at-800"


def test_a_log_that_is_all_there_and_all_counted_is_read_whole(topic, candidates):
    (log,) = chosen(later(), candidates(500)).values()
    assert (log.begin, log.end, log.since) == (0, 1_000, None)


@pytest.mark.parametrize("why", ["windows were started anew", "too long", "retention"])
def test_a_log_that_cannot_be_read_whole_gives_the_growth(topic, candidates, why):
    snapshot, most = later(), 10_000
    if why == "windows were started anew":
        snapshot = later(taken=400)
    elif why == "too long":
        most = 900
    else:
        topic.start = 10
    before = candidates(500, 700)
    (log,) = chosen(snapshot, before, most).values()
    assert (log.since.path, log.begin, log.end) == (before[0], begin_after(500), 1_000)
    assert log.before == 500 * MINUTE - 2 * HORIZON


def test_the_oldest_snapshot_is_taken_that_is_not_too_long_ago(topic, candidates):
    topic.start = 1
    before = candidates(200, 500, 700, 900)
    (log,) = chosen(later(), before, most=1_000 - begin_after(700)).values()
    assert log.since.path == before[2]


def test_a_snapshot_that_was_given_is_the_one_that_is_taken(topic, candidates):
    (given,) = candidates(900)
    (log,) = chosen(later(), [], earlier=SimpleNamespace(path=given)).values()
    assert log.since.path == given


def test_a_snapshot_from_before_the_first_event_needs_the_log_from_its_beginning(topic, candidates):
    (given,) = candidates(0)
    manifest = given / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"watermark": 0', '"watermark": null'))
    (log,) = chosen(later(taken=5), [given]).values()
    assert (log.begin, log.before) == (0, None)
    topic.start = 1
    assert "Kafka has deleted records" in chosen(later(taken=5), [given])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"topic_id": "another"}, "t at 127.0.0.1:9092 is not the topic of the snapshot"),
        ({"start": 440}, "Kafka has deleted records that it takes: all since at-500, and of"),
        ({"start": 1_000}, "Kafka has deleted records"),
    ],
)
def test_what_a_recount_lacks_is_said(topic, candidates, change, message):
    for name, value in change.items():
        setattr(topic, name, value)
    before = candidates(450, 500)
    assert chosen(later(taken=5), before).startswith(message)


def test_a_log_that_is_too_long_is_said(topic, candidates):
    assert chosen(later(), candidates(900), most=50) == (
        "each partition's log since at-900 and of 1.03 h before it has more than `max_records`"
    )


def test_where_not_all_partitions_fit_others_are_read_each_time():
    sizes = dict.fromkeys(range(8), 100)
    turns = [event_log._fitting(sizes, 250, later(name=f"at-{n}")) for n in range(50)]
    assert {len(taken) for taken in turns} == {2}
    assert set().union(*turns) == set(range(8))
    assert event_log._fitting({0: 300, 1: 100}, 250, later()) == {1}


def test_snapshots_of_another_configuration_are_passed_over(topic, candidates):
    found = chosen(later(taken=5), candidates(900, fingerprint="other"))
    assert found == "no earlier snapshot has this configuration"


def test_before_anything_was_counted_there_is_nothing_to_read(topic):
    assert chosen(later(offset=0)) == "nothing was counted yet"


def test_the_part_comes_as_events_with_their_offsets(topic):
    (log,) = chosen(later()).values()
    ((first, *rest),) = log.read()
    assert (first[0], first[1].ts) == (0, 1_700_000_000_000)
    assert [offset for offset, _ in rest] == list(range(1, 1_000))


# --- a real topic ---------------------------------------------------------------------------------


def read_again(topic, begin, end, ask=None):
    """What `RangeReader.read` gives of partition 0: offsets and values."""
    kafka = servers.shared_kafka()

    async def read():
        async with range_reader.open_range_reader(
            Settings(kafka=kafka.address, topic=topic, read_memory=BUDGET)
        ) as log:
            if ask is not None:
                return await ask(log)
            parts = [columns async for columns in log.read(0, begin, end)]
            return [pair for one in parts for pair in zip(one.offsets, one.values, strict=True)]

    return asyncio.run(read())


@pytest.mark.servers
def test_only_what_was_asked_for_is_read_and_nothing_of_aborted_transactions():
    kafka, topic = servers.shared_kafka(), servers.unique()
    service.create_topic(kafka.port, topic, 1)
    records = [(b"u", b"%d" % number) for number in range(3_000)]
    service.produce_in_transactions(kafka.port, topic, records, size=1_000)
    log, ends = service.read_log(kafka.port, topic, 1)
    wanted = [(offset, value) for offset, _, _, value in log[0]]
    assert [value for _, value in wanted] == [value for _, value in records]
    # To the very end, which is a marker without a record.
    assert read_again(topic, 0, ends[0]) == wanted
    begin, end = wanted[1_500][0], wanted[2_500][0]
    assert read_again(topic, begin, end) == wanted[1_500:2_500]


@pytest.mark.servers
def test_where_records_begin_to_be_as_young_as_a_moment_is_asked_of_kafka():
    kafka, topic = servers.shared_kafka(), servers.unique()
    service.create_topic(kafka.port, topic, 1)
    service.produce(kafka.port, topic, [(b"u", b"old")] * 5)
    log, _ = service.read_log(kafka.port, topic, 1)
    first, last = log[0][0][1], log[0][-1][1]
    assert read_again(topic, 0, 0, lambda log: log.since({0: first})) == {0: 0}
    assert read_again(topic, 0, 0, lambda log: log.since({0: last + 1})) == {0: None}


@pytest.mark.servers
def test_a_topic_that_does_not_exist_has_no_identity():
    assert read_again("nowhere", 0, 0, lambda log: log.identity()) is None


@pytest.mark.servers
def test_a_log_that_gives_nothing_is_given_up(monkeypatch):
    """The end lies beyond what there is: as if nobody served it."""
    kafka, topic = servers.shared_kafka(), servers.unique()
    service.create_topic(kafka.port, topic, 1)
    monkeypatch.setattr(range_reader, "SILENCE_SECONDS", 1.0)
    with pytest.raises(UnreachableError, match="gave nothing for 1 s"):
        read_again(topic, 0, 5)


@pytest.mark.servers
def test_a_large_batch_is_read_and_one_that_does_not_fit_is_named(monkeypatch):
    """Some KB that are 12 MiB, and 28; a batch may have 14 MiB of the least budget."""
    kafka, topic = servers.shared_kafka(), servers.unique()
    service.create_topic(kafka.port, topic, 1)
    for size in (12 << 20, 28 << 20):
        service.produce_large(kafka.port, topic, bytes(size))
        service.produce(kafka.port, topic, [(b"u", b"after")])
    (large, *_), (_, value) = read_again(topic, 0, 2)
    assert (large, value) == (0, b"after")
    monkeypatch.setattr(range_reader, "SILENCE_SECONDS", 1.0)
    with pytest.raises(
        UnreachableError, match=r"gave nothing for 1 s: the batch at offsets 2 to 2"
    ):
        read_again(topic, 0, 4)


def test_where_no_broker_answers_it_is_unreachable():
    async def ask():
        settings = Settings(kafka=f"127.0.0.1:{servers.free_port()}", topic="t")
        async with range_reader.open_range_reader(settings) as log:
            assert isinstance(log, RangeReader)

    with pytest.raises(UnreachableError, match="does not answer"):
        asyncio.run(ask())
