"""The event log on real Kafka: positions are ours, whatever the group and the brokers do."""

import asyncio
import contextlib
import logging
import random
import sys
import time

import pytest
import servers
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from proxy import Proxy

from streameval.base.errors import UnreachableError
from streameval.base.limits import MAX_DEAD_LETTER_BYTES
from streameval.config.settings import Settings
from streameval.core.events import Rejection
from streameval.core.record_mark import NO_RECORD, mark
from streameval.kafka import dead_letters
from streameval.kafka.consumer import KafkaEventLog, client_arguments, open_event_log
from streameval.kafka.records import DeadLetter

pytestmark = pytest.mark.servers


class Member:
    """A reader with the plainest listener: begins at `starts` (0), keeps what was read."""

    def __init__(self, server, topic, group="group", starts=None, **options):
        client = {"bootstrap_servers": server.address}
        self.reader = KafkaEventLog(client, topic, group, f"{topic}.dead", **options)
        self.starts = starts or {}
        self.owned, self.taken_away, self.values, self.next = set(), [], {}, {}

    async def assigned(self, partitions):
        for number in partitions:
            first, _ = await self.reader.bounds(number)
            at = max(self.next.get(number, self.starts.get(number, 0)), first)
            self.reader.seek(number, at)
            self.reader.resume(number)
            self.owned.add(number)

    async def unpacking(self, partition, first, last):
        return ""

    async def unpacked(self, partition):
        """Nothing waits for it."""

    async def revoked(self, partitions):
        self.taken_away.append(sorted(partitions))
        self.owned -= set(partitions)

    async def read(self, done, max_records=10_000):
        """Poll until `done()`; offsets rise and the next offset is beyond them."""
        while not done():
            for records in await self.reader.poll(0.1, max_records):
                at = self.next.get(records.partition, 0)
                assert list(records.offsets) == sorted(records.offsets)
                assert all(at <= offset < records.next_offset for offset in records.offsets)
                assert len(records.values) == len(records.keys) == len(records.timestamps)
                self.next[records.partition] = records.next_offset
                self.values.setdefault(records.partition, []).extend(records.values)

    def count(self):
        return sum(map(len, self.values.values()))


@contextlib.asynccontextmanager
async def member(server, topic, *args, **options):
    joined = Member(server, topic, *args, **options)
    await joined.reader.start(joined)
    try:
        yield joined
    finally:
        await joined.reader.close(5)


@contextlib.asynccontextmanager
async def administration(server):
    admin = AIOKafkaAdminClient(bootstrap_servers=server.address)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


async def new_topic(server, partitions=1, **config):
    topic = servers.unique()
    async with administration(server) as admin:
        await admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=config)])
    return topic


async def send(server, topic, values, partition=0, **options):
    producer = AIOKafkaProducer(bootstrap_servers=server.address, **options)
    await producer.start()
    try:
        for value in values:
            await producer.send(topic, value, key=b"k", partition=partition)
        await producer.flush()
    finally:
        await producer.stop()


def numbered(count, start=0):
    return [b"%d" % number for number in range(start, start + count)]


@pytest.fixture(scope="module")
def kafka():
    return servers.shared_kafka()


def test_everything_is_read_once_and_in_order(kafka):
    async def scenario():
        topic = await new_topic(kafka, 3)
        for partition in range(3):
            await send(kafka, topic, numbered(500), partition)
        async with member(kafka, topic) as one:
            await one.read(lambda: one.count() == 1500, max_records=70)
            assert one.values == dict.fromkeys(range(3), numbered(500))
            assert one.next == {0: 500, 1: 500, 2: 500}
            assert [one.reader.lag(partition, 500) for partition in range(3)] == [0, 0, 0]
            assert one.reader.lag(0, 450) == 50
            assert await one.reader.bounds(1) == (0, 500)
            assert one.reader.partitions == 3
            assert await one.reader.probe()

    asyncio.run(scenario())


def test_a_partition_that_waits_for_its_state_disturbs_no_other(kafka, monkeypatch):
    """No read fails, which would have all that is fetched of the others fetched again."""
    failed = []

    class Waiting(KafkaEventLog):
        async def _recover(self, consumer, error):
            failed.append(error)
            await super()._recover(consumer, error)

    monkeypatch.setattr(sys.modules[__name__], "KafkaEventLog", Waiting)

    async def scenario():
        topic = await new_topic(kafka, 2)
        one = Member(kafka, topic)
        assigned = one.assigned
        one.assigned = lambda numbers: assigned([number for number in numbers if number == 0])
        await one.reader.start(one)
        try:
            await one.read(lambda: one.owned)
            await send(kafka, topic, numbered(10), 1)
            for number in range(10):
                await send(kafka, topic, numbered(10, 10 * number))
                await one.read(lambda: one.count() == 10 * number + 10)  # noqa: B023 - at once
            assert one.values == {0: numbered(100)}
        finally:
            await one.reader.close(5)

    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert failed == []


def test_nothing_is_handed_out_before_it_is_sought(kafka):
    async def scenario():
        topic = await new_topic(kafka)
        await send(kafka, topic, numbered(10))
        async with member(kafka, topic) as one:
            await one.read(lambda: one.count() == 10)
            await one.reader.commit({0: 5})  # the group's offset is not to be begun at
        two = Member(kafka, topic)
        assigned = asyncio.Event()

        async def idle(_):
            assigned.set()

        two.assigned = idle
        await two.reader.start(two)
        while not assigned.is_set():
            assert await two.reader.poll(0.1, 100) == []
        for _ in range(5):
            assert await two.reader.poll(0.1, 100) == []
        two.reader.seek(0, 7)
        two.reader.resume(0)
        await two.read(lambda: two.count() == 3)
        assert two.values == {0: numbered(3, 7)}
        await two.reader.close(5)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("size", "count", "codec"),
    [(10, 5, None), (100, 20_000, "lz4"), (900_000, 2, "zstd"), (1_500_000, 1, "zstd")],
)
def test_a_record_is_known_again_as_it_was_handed_out(kafka, size, count, codec):
    """Small, one of many of a batch, one of few large ones, and one whose value nobody keeps."""

    async def scenario():
        topic = await new_topic(kafka, **{"max.message.bytes": "4194304"})
        limits = {"max_batch_size": 4 << 20, "max_request_size": 4 << 20, "linger_ms": 50}
        values = [bytes([number % 251]) * size for number in range(count)]
        await send(kafka, topic, values, compression_type=codec, **limits)
        async with member(kafka, topic) as one:
            seen = {}
            while len(seen) < count:
                for records in await one.reader.poll(0.1, 10_000):
                    seen |= {row[0]: mark(*row) for row in zip(*records[1:5], strict=True)}
            for offset in {0, count // 2, count - 1}:
                assert await one.reader.mark_at(0, offset) == seen[offset]
            assert await one.reader.mark_at(0, count) is None

    asyncio.run(scenario())


def test_a_marker_of_a_transaction_is_no_record(kafka):
    async def scenario():
        topic = await new_topic(kafka)
        producer = AIOKafkaProducer(bootstrap_servers=kafka.address, transactional_id=topic)
        await producer.start()
        async with producer.transaction():
            await producer.send(topic, b"v", partition=0)
        await producer.stop()
        async with member(kafka, topic) as one:
            await one.read(lambda: one.count() == 1)
            assert (await one.reader.mark_at(0, 0)).checksum != NO_RECORD
            assert await one.reader.mark_at(0, 1) == (1, NO_RECORD)

    asyncio.run(scenario())


def test_what_was_fetched_before_a_seek_is_not_handed_out(kafka):
    async def scenario():
        topic = await new_topic(kafka)
        async with member(kafka, topic) as one:
            await one.read(lambda: one.owned)
            assert await one.reader.poll(0, 100) == []
            # A read is under way and finds these; the seek comes before its result is taken.
            reading = asyncio.ensure_future(one.reader.poll(5, 3))
            await asyncio.sleep(0.05)
            reading.cancel()
            await asyncio.wait({reading})
            await send(kafka, topic, numbered(10))
            await asyncio.sleep(0.5)
            one.reader.seek(0, 8)
            await one.read(lambda: one.count() == 2)
            assert one.values == {0: numbered(2, 8)}

    asyncio.run(scenario())


def test_a_paused_partition_stands_still_and_goes_on_where_it_was(kafka):
    async def scenario():
        topic = await new_topic(kafka)
        await send(kafka, topic, numbered(100))
        async with member(kafka, topic) as one:
            await one.read(lambda: one.count() >= 10, max_records=10)
            one.reader.pause(0)
            before = one.count()
            for _ in range(5):
                assert await one.reader.poll(0.05, 10) == []
            one.reader.resume(0)
            await one.read(lambda: one.count() == 100)
            assert before < 100
            assert one.values == {0: numbered(100)}

    asyncio.run(scenario())


def test_the_lag_of_a_paused_partition_grows_with_the_log(kafka):
    """Nothing is fetched of it that would tell: the probe asks."""

    async def scenario():
        topic = await new_topic(kafka, 2)
        await send(kafka, topic, numbered(10))
        async with member(kafka, topic) as one:
            await one.read(lambda: one.count() == 10)
            one.reader.pause(0)
            for _ in range(10):  # a fetch that is under way would bring the new end
                await one.reader.poll(0.1, 10)
            await send(kafka, topic, numbered(7))
            await one.reader.poll(0.1, 10)
            assert await one.reader.probe()
            assert one.reader.lag(0, 10) == 7
            assert one.reader.lag(1, 0) == 0
            one.reader.resume(0)
            await one.read(lambda: one.count() == 17)
            assert one.reader.lag(0, 17) == 0

    asyncio.run(scenario())


def test_partitions_move_when_a_member_joins_and_when_it_leaves(kafka):
    async def scenario():
        topic = await new_topic(kafka, 4)
        async with member(kafka, topic) as one:
            await one.read(lambda: len(one.owned) == 4)
            async with member(kafka, topic) as two:
                both = [
                    asyncio.create_task(one.read(lambda: len(one.owned) == len(two.owned) == 2)),
                    asyncio.create_task(two.read(lambda: len(one.owned) == len(two.owned) == 2)),
                ]
                await asyncio.gather(*both)
                assert one.owned | two.owned == {0, 1, 2, 3}
                assert one.taken_away[-1] == [0, 1, 2, 3], "all go before they are shared anew"
            for partition in range(4):
                await send(kafka, topic, numbered(5), partition)
            # (What was given first is read while the rest is still given.)
            await one.read(lambda: one.count() == 20 and one.owned == {0, 1, 2, 3})

    asyncio.run(scenario())


def test_a_standby_without_partitions_takes_over_after_the_longest_pause(kafka):
    """Longer without partitions than max_poll_interval_ms: aiokafka's issue 1187."""

    async def scenario():
        topic = await new_topic(kafka)
        options = {"session_ms": 2000, "max_poll_ms": 1500}
        async with member(kafka, topic, **options) as owner:
            await owner.read(lambda: owner.owned)
            async with member(kafka, topic, **options) as standby:
                until = time.monotonic() + 4
                while time.monotonic() < until:
                    await owner.reader.poll(0.1, 10)
                    await standby.reader.poll(0.1, 10)
                idle = standby if owner.owned else owner
                holder = owner if owner.owned else standby
                assert not idle.owned
                await holder.reader.close(5)
                await send(kafka, topic, numbered(3))
                await idle.read(lambda: idle.count() == 3)

    asyncio.run(scenario())


def test_a_worker_that_does_not_read_loses_its_partitions_and_comes_back(kafka):
    async def scenario():
        topic = await new_topic(kafka)
        async with member(kafka, topic, session_ms=2000, max_poll_ms=1000) as one:
            await one.read(lambda: one.owned)
            while not one.taken_away[1:]:  # noqa: ASYNC110 - the group takes it away
                await asyncio.sleep(0.1)
            await send(kafka, topic, numbered(3))
            await one.read(lambda: one.count() == 3)

    asyncio.run(scenario())


@pytest.mark.parametrize("codec", ["lz4", "zstd", "snappy", "gzip"])
def test_aborted_transactions_leave_gaps_that_count_as_read(kafka, codec):
    async def scenario():
        topic = await new_topic(kafka)
        producer = AIOKafkaProducer(
            bootstrap_servers=kafka.address,
            transactional_id=topic,
            compression_type=codec,
        )
        await producer.start()
        for number in range(4):
            await producer.begin_transaction()
            for _ in range(5):
                await producer.send(topic, b"%d" % number, partition=0)
            if number in {1, 3}:
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
        await producer.stop()
        async with member(kafka, topic) as one:
            _, end = await one.reader.bounds(0)
            assert end == 24, "20 records and 4 markers"
            await one.read(lambda: one.next.get(0) == end)
            assert one.values == {0: [b"0"] * 5 + [b"2"] * 5}
            assert one.reader.lag(0, end) == 0

    asyncio.run(scenario())


def test_a_position_that_the_log_no_longer_holds_makes_the_listener_begin_anew(kafka):
    async def scenario():
        topic = await new_topic(kafka)
        await send(kafka, topic, numbered(100))
        async with administration(kafka) as admin:
            await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(60)})
        one = Member(kafka, topic)
        begin = one.assigned

        async def careless(partitions):
            one.assigned = begin
            for number in partitions:
                one.reader.seek(number, 20)
                one.reader.resume(number)

        one.assigned = careless
        await one.reader.start(one)
        await one.read(lambda: one.count() == 40)
        assert one.values == {0: numbered(40, 60)}
        assert one.taken_away[-1] == [0]
        assert await one.reader.bounds(0) == (60, 100)
        await one.reader.close(5)

    asyncio.run(scenario())


def test_a_topic_made_anew_has_another_id(kafka):
    async def scenario():
        topic = await new_topic(kafka)
        async with member(kafka, topic) as one:
            cluster, before = one.reader.cluster_id, one.reader.topic_id
            async with administration(kafka) as admin:
                await admin.delete_topics([topic])
                while topic in await admin.list_topics():  # noqa: ASYNC110 - the broker does it
                    await asyncio.sleep(0.1)
                assert not await one.reader.probe(), "no such topic"
                await admin.create_topics([NewTopic(topic, 2, 1)])
            while not await one.reader.probe():  # noqa: ASYNC110 - the broker does it
                await asyncio.sleep(0.1)
            assert one.reader.cluster_id == cluster != ""
            assert one.reader.topic_id != before != ""
            assert one.reader.partitions == 2

    asyncio.run(scenario())


def test_the_group_is_told_offsets_for_tools(kafka):
    async def scenario():
        topic = await new_topic(kafka)
        await send(kafka, topic, numbered(10))
        async with member(kafka, topic, "told") as one:
            await one.read(lambda: one.count() == 10)
            await one.reader.commit({0: 10, 7: 3})
        async with administration(kafka) as admin:
            told = await admin.list_consumer_group_offsets("told")
        assert {place.partition: meta.offset for place, meta in told.items()} == {0: 10}

    asyncio.run(scenario())


def letter(offset, value, key=b"k", reason="invalid", detail="bad"):
    return DeadLetter(3, offset, 1_700_000_000_000, key, value, Rejection(reason, detail))


def test_dead_letters_say_what_was_wrong_and_where_it_was(kafka):
    async def scenario():
        topic = await new_topic(kafka)
        letters = [
            letter(5, b"\xff{", detail="not \ud800 UTF-8"),
            letter(6, None, key=None, reason="malformed"),
            letter(7, bytes(MAX_DEAD_LETTER_BYTES + 1), reason="too_large"),
        ]
        async with member(kafka, topic) as one:
            await asyncio.gather(
                one.reader.write_dead_letters(letters[:2]),
                one.reader.write_dead_letters(letters[2:]),
            )
        consumer = AIOKafkaConsumer(
            f"{topic}.dead", bootstrap_servers=kafka.address, auto_offset_reset="earliest"
        )
        await consumer.start()
        found = {}
        while len(found) < 3:
            record = await consumer.getone()
            found[int(dict(record.headers)["offset"])] = record
        await consumer.stop()
        assert found[5].value == b"\xff{"
        assert found[5].key == b"k"
        assert dict(found[5].headers) == {
            "reason": b"invalid",
            "detail": rb"not \ud800 UTF-8",
            "topic": topic.encode(),
            "partition": b"3",
            "offset": b"5",
            "timestamp": b"1700000000000",
        }
        assert (found[6].key, found[6].value) == (None, b""), "aiokafka sends no empty record"
        assert len(found[7].value) == MAX_DEAD_LETTER_BYTES

    asyncio.run(scenario())


async def limited_dead_topic(server, topic, **config):
    """A topic of dead letters that takes less than they are."""
    async with administration(server) as admin:
        await admin.create_topics([NewTopic(f"{topic}.dead", 1, 1, topic_configs=config)])


def noise(size):
    """Bytes that no codec packs."""
    return random.Random(size).randbytes(size)


async def letters_of(server, topic):
    """The dead letters of a topic by the offset that they name: key and value."""
    place = TopicPartition(f"{topic}.dead", 0)
    consumer = AIOKafkaConsumer(bootstrap_servers=server.address, auto_offset_reset="earliest")
    await consumer.start()
    consumer.assign([place])
    found = {}
    end = (await consumer.end_offsets([place]))[place]
    while await consumer.position(place) < end:
        for records in (await consumer.getmany(timeout_ms=500)).values():
            found |= {int(dict(r.headers)["offset"]): (r.key, r.value) for r in records}
    await consumer.stop()
    return found


def test_letters_that_are_too_large_for_their_topic_are_shortened_and_the_others_are_whole(
    kafka, caplog
):
    """Also those that were in one batch with them; the log says so once."""

    async def scenario():
        topic = await new_topic(kafka)
        await limited_dead_topic(kafka, topic, **{"max.message.bytes": "900"})
        sizes = [50, 20_000, 2_000, 60, 500, 100_000, 70, 80]
        letters = [letter(at, noise(size)) for at, size in enumerate(sizes)]
        async with member(kafka, topic) as one:
            refused = await asyncio.gather(
                one.reader.write_dead_letters(letters[:4]),
                one.reader.write_dead_letters(letters[4:]),
            )
        assert refused == [0, 0]
        kept = {at: min(size, 256) if size > 500 else size for at, size in enumerate(sizes)}
        found = await letters_of(kafka, topic)
        assert {at: len(value) for at, (_, value) in found.items()} == kept
        assert {key for key, _ in found.values()} == {b"k"}

    asyncio.run(scenario())
    (line,) = [line.message for line in caplog.records if "refuses dead letters" in line.message]
    assert "they are shortened; raise max.message.bytes" in line


def test_letters_that_are_refused_as_headers_only_are_given_up_and_counted(kafka, caplog):
    async def scenario():
        topic = await new_topic(kafka)
        await limited_dead_topic(kafka, topic, **{"max.message.bytes": "100"})
        async with member(kafka, topic) as one:
            assert (
                await one.reader.write_dead_letters([letter(at, noise(50)) for at in range(5)]) == 5
            )
        assert await letters_of(kafka, topic) == {}

    asyncio.run(scenario())
    said = [line.message for line in caplog.records if "refuses dead letters" in line.message]
    assert len(said) == 2
    assert "they are given up, and counted" in said[1]


def test_letters_that_wait_for_long_are_told_where_readiness_is_asked(monkeypatch):
    async def scenario():
        nobody = {"bootstrap_servers": f"127.0.0.1:{servers.free_port()}"}
        reader = KafkaEventLog(nobody, "t", "g", "t.dead")
        assert reader.trouble == ""
        burying = asyncio.create_task(reader.write_dead_letters([letter(1, b"v")]))
        await asyncio.sleep(0)
        assert reader.trouble == "Kafka does not take dead letters for the topic t.dead"
        burying.cancel()
        await asyncio.wait({burying})
        assert reader.trouble == ""

    monkeypatch.setattr(dead_letters, "WAITING_SECONDS", 0)
    asyncio.run(scenario())


def test_a_compacted_topic_of_dead_letters_takes_those_with_a_key(kafka):
    """Kafka refuses the others with an answer that aiokafka does not know."""

    async def scenario():
        topic = await new_topic(kafka)
        await limited_dead_topic(kafka, topic, **{"cleanup.policy": "compact"})
        letters = [letter(at, b"v", key=b"k%d" % at if at % 2 else None) for at in range(6)]
        async with member(kafka, topic) as one:
            assert await one.reader.write_dead_letters(letters) == 3
        assert sorted(await letters_of(kafka, topic)) == [1, 3, 5]

    asyncio.run(scenario())


def test_a_reader_waits_for_brokers_and_topic_and_says_so(caplog):
    async def scenario():
        with Proxy(server.port, proxy_port) as proxy:
            proxy.refuse = True
            waiting = Member(proxied, topic)
            starting = asyncio.create_task(waiting.reader.start(waiting))
            await until_logged("waiting for it")
            caplog.clear()
            proxy.refuse = False
            await asyncio.sleep(3)
            await until_logged("does not exist: ")
            async with administration(server) as admin:
                await admin.create_topics([NewTopic(topic, 1, 1)])
            await starting
            await waiting.read(lambda: waiting.owned)
            await waiting.reader.close(5)

    async def until_logged(text):
        while text not in caplog.text:  # noqa: ASYNC110 - the log has no event
            await asyncio.sleep(0.1)

    caplog.set_level(logging.WARNING, "streameval")
    topic, proxy_port = servers.unique(), servers.free_port()
    with servers.kafka(advertised_port=proxy_port) as server:
        proxied = servers.Server("proxy", [], None, proxy_port, server.folder)
        # An administration client is told the proxy's address, too: it is up by then.
        asyncio.run(scenario())


def test_a_start_is_cancelled_while_it_waits():
    async def scenario():
        waiting = KafkaEventLog(
            {"bootstrap_servers": f"127.0.0.1:{servers.free_port()}"}, "t", "g", "d"
        )
        starting = asyncio.create_task(waiting.start(None))
        await asyncio.sleep(0.3)
        starting.cancel()
        await asyncio.wait({starting}, timeout=10)
        assert starting.cancelled()
        assert not await waiting.probe()
        await waiting.close(1)

    asyncio.run(scenario())


def test_a_broker_killed_and_started_again_loses_and_repeats_nothing():
    async def scenario(server):
        topic = await new_topic(server, 2)
        await send(server, topic, numbered(100), 0)
        async with member(server, topic) as one:
            await one.read(lambda: one.count() == 100 and one.owned == {0, 1})
            await asyncio.to_thread(server.kill)
            assert not await one.reader.probe()
            with pytest.raises(UnreachableError):
                await one.reader.bounds(0)
            for _ in range(20):
                assert await one.reader.poll(0.1, 100) == []
            await asyncio.to_thread(server.start)
            await send(server, topic, numbered(100, 100), 0)
            await send(server, topic, numbered(50), 1)
            await one.read(lambda: one.count() == 250)
            assert one.values == {0: numbered(200), 1: numbered(50)}
            assert await one.reader.probe()

    asyncio.run(scenario(servers.mortal_kafka()))


def test_a_reader_closes_in_time_while_the_broker_is_silent():
    async def scenario(server):
        topic = await new_topic(server)
        one = Member(server, topic)
        await one.reader.start(one)
        await one.read(lambda: one.owned)
        server.pause()
        try:
            assert await one.reader.poll(0.1, 10) == []
            closing = asyncio.create_task(one.reader.close(1))
            done, _ = await asyncio.wait({closing}, timeout=10)
            assert done
            closing.result()
        finally:
            server.resume()

    asyncio.run(scenario(servers.mortal_kafka()))


def test_a_reader_whose_client_broke_down_joins_anew(kafka):
    async def scenario():
        topic = await new_topic(kafka)
        async with member(kafka, topic) as one:
            await one.read(lambda: one.owned)
            one.reader._consumer._fetcher._fetch_task.cancel()
            for part in range(3):  # the first may come by a fetch that is under way
                await send(kafka, topic, numbered(10, part * 10))
                await one.read(lambda seen=part: one.count() == 10 + seen * 10)
            assert one.values == {0: numbered(30)}
            assert [0] in one.taken_away

    asyncio.run(scenario())


def test_the_embedded_broker_will_do():
    async def scenario(server):
        topic = await new_topic(server, 2)
        await send(server, topic, numbered(100), 1)
        settings = Settings(kafka=server.address, topic=topic)
        one = Member(server, topic)
        one.reader = open_event_log(settings)
        await one.reader.start(one)
        await one.read(lambda: one.count() == 100)
        assert one.values == {1: numbered(100)}
        assert await one.reader.bounds(1) == (0, None), "its end offsets count batches"
        assert one.reader.lag(1, 100) == 0
        assert one.reader.lag(1, 90) == 10
        assert one.reader.cluster_id != ""
        await one.reader.write_dead_letters([letter(5, b"bad")])
        await one.reader.close(5)

    with servers.tansu() as server:
        asyncio.run(scenario(server))


def test_clients_get_the_security_of_the_settings(tmp_path):
    secured = Settings(
        kafka_security_protocol="SASL_SSL", kafka_username="u", kafka_password="hunter2"
    )
    arguments = client_arguments(secured)
    assert arguments["ssl_context"].check_hostname
    assert arguments["sasl_mechanism"] == "SCRAM-SHA-512"
    assert arguments["sasl_plain_password"] == "hunter2"
    assert client_arguments(Settings()) == {
        "bootstrap_servers": "127.0.0.1:9092",
        "security_protocol": "PLAINTEXT",
        "connections_max_idle_ms": 180_000,  # less than balancers allow: Azure's takes 4 minutes
    }
