"""`streameval dead-letters` on real Kafka: what was rejected, and the same records sent once."""

import asyncio
import json

import pytest
import servers
import service
import trackers
from aiokafka import AIOKafkaConsumer
from command_line import streameval
from test_profiles_registry import answers

from streameval.base.errors import RefusedError, UnreachableError
from streameval.kafka import resend as resending
from streameval.kafka.records import SCHEMA_HEADER

pytestmark = pytest.mark.servers

EVERY = (lambda _: True, 1 << 16)


def command(worker, *arguments):
    return streameval("dead-letters", "--config", worker.config, *arguments, text=True)


def rejected(worker, **more):
    done = command(worker, "--json", *[f"--{name}={value}" for name, value in more.items()])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


PROFILE = """
rules:
  - when: {event: Product List Viewed}
    slate:
      ts: timestamp
      user_id: userId
      request_id: properties.request_id
      items: {each: properties.products, item_id: product_id}
  - when: {event: Product Clicked}
    feedback:
      kind: {const: click}
      ts: timestamp
      user_id: userId
      item_id: %s
      request_id: properties.request_id
"""


@pytest.fixture
def servers_and_topic():
    kafka, redis = servers.shared_kafka(), servers.shared_redis()
    topic = servers.unique("letters")
    service.create_topic(kafka.port, topic, 2, **{"message.timestamp.type": "CreateTime"})
    service.create_topic(kafka.port, f"{topic}.dead-letter", 1)
    return kafka, redis, topic


@pytest.mark.parametrize("beside", [False, True])
def test_after_a_cure_each_record_counts_once(servers_and_topic, tmp_path, beside):
    """Also where key and headers say what the value does not."""
    kafka, redis, topic = servers_and_topic
    events = [each for each in trackers.stream(4, count=200) if each.get("feedback") != "purchase"]
    clicks = sum(event["type"] == "feedback" for event in events)
    calls = [trackers.segment(event) for event in events]
    records = [(one["userId"].encode(), json.dumps(one).encode()) for one in calls]
    text = PROFILE
    if beside:
        headers = [[("topic", b"theirs"), ("type", one.pop("event").encode())] for one in calls]
        keys = [one.pop("userId").encode() for one in calls]
        records = [*zip(keys, map(str.encode, map(json.dumps, calls)), headers, strict=True)]
        text = text.replace("{event:", "{_headers.type:").replace("userId", "_key")
    profile = tmp_path / "shop.yaml"
    profile.write_text(text % "properties.item")
    settings = {"profile": str(profile), "group": topic, "user_ttl": None, "positives": ["click"]}
    settings |= {"attribution_window": "10m", "allowed_lateness": "10m"}
    with service.Worker(kafka.port, redis.url, topic, **settings) as worker:
        worker.wait_until_up()
        service.produce(kafka.port, topic, [*records, (b"u1", b"nope")])
        _, ends = service.read_log(kafka.port, topic, 2)
        service.wait_until_read(redis.url, topic, ends, group=topic)
        found = rejected(worker)
        assert found["letters"] == clicks + 1
        first, second = found["groups"]
        assert (first["reason"], first["profile"], first["rule"], first["letters"]) == (
            *("invalid", "shop", "Product Clicked"),
            clicks,
        )
        assert "properties.item finds nothing" in first["example"]["detail"]
        assert ('"event": "Product Clicked"' in first["example"]["value"]) is not beside
        assert (second["reason"], second["profile"], second["letters"]) == ("malformed", "", 1)
        assert rejected(worker, reason="malformed")["letters"] == 1
        assert rejected(worker, since="2099-01-01T00:00:00Z")["letters"] == 0
        worker.stop()
        profile.write_text(text % "properties.product_id")
        worker.start().wait_until_up()
        done = command(worker, "--reason", "invalid", "--resend")
        assert done.stderr.splitlines()[-1] == f"sent {clicks} records", done.stderr
        _, ends = service.read_log(kafka.port, topic, 2)
        service.wait_until_read(redis.url, topic, ends, group=topic)
        # A worker counts a batch when Redis has answered, a moment after the offset is stored.
        counted = f'streameval_events_total{{event="feedback"}} {clicks}.0'
        service.wait_for(lambda: counted in worker.page(), 30, counted)
        assert 'streameval_events_rejected_total{reason="invalid"} 0.0' in worker.page()
        again = command(worker, "--reason", "invalid", "--resend")
        assert again.stderr.splitlines() == [
            f"{clicks} of them were sent again before",
            "sent 0 records",
        ]
        found = rejected(worker)
        assert (found["letters"], found["resent"]) == (clicks + 1, clicks)


def test_a_letter_keeps_the_header_that_names_its_schema(servers_and_topic):
    """A registry that has lost a schema has it again: the record counts when it is sent again."""
    kafka, redis, topic = servers_and_topic
    (event, *_) = trackers.stream(4, count=20)
    header = (SCHEMA_HEADER, b"\0\0\0\0\x07")
    record = (event["user_id"].encode(), trackers.lines([event])[0], [header])
    with answers({}) as registry:
        settings = {"profile": "native", "registry": registry.url, "group": topic}
        with service.Worker(kafka.port, redis.url, topic, **settings) as worker:
            worker.wait_until_up()
            service.produce(kafka.port, topic, [record])
            service.wait_for(lambda: rejected(worker)["letters"] == 1, 60, "a letter")
            assert "no schema with the id 7" in rejected(worker)["groups"][0]["example"]["detail"]
            worker.stop()
            registry.by_path["/schemas/ids/7"] = (200, {"schemaType": "JSON", "schema": "{}"})
            worker.start().wait_until_up()
            assert command(worker, "--resend").stderr.splitlines()[-1] == "sent 1 record"
            counted = 'streameval_events_total{event="slate"} 1.0'
            service.wait_for(lambda: counted in worker.page(), 60, counted)


def letters_of(kafka, topic, *values, source):
    """Put letters into a dead-letter topic, as a worker does."""

    async def put():
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(bootstrap_servers=f"127.0.0.1:{kafka.port}")
        await producer.start()
        for offset, value in enumerate(values):
            headers = {"reason": "invalid", "detail": "d", "topic": source, "partition": "1"}
            headers |= {"offset": str(offset), "timestamp": str(trackers.BEGIN)}
            await producer.send(
                f"{topic}.dead-letter",
                value,
                b"k",
                headers=[(name, text.encode()) for name, text in headers.items()],
            )
        await producer.stop()

    asyncio.run(put())


def client(kafka):
    return {"bootstrap_servers": f"127.0.0.1:{kafka.port}"}


def test_parts_of_records_are_not_sent_and_repeated_letters_are_one(servers_and_topic):
    kafka, redis, topic = servers_and_topic
    for _ in range(2):  # a worker that dies before its commit writes them again
        letters_of(kafka, topic, b"{}", b"x" * 1_024, b"", b"y" * 65_536, source=topic)
    worker = service.Worker(kafka.port, redis.url, topic)
    done = command(worker, "--resend", "--json")
    found = json.loads(done.stdout)
    assert (found["letters"], found["cut"], found["sent"]) == (4, 3, 1)
    log, _ = service.read_log(kafka.port, topic, 2)
    assert [record[1:] for record in log[1]] == [(trackers.BEGIN, b"k", b"{}")]
    assert log[0] == []


def test_letters_of_another_topic_are_refused(servers_and_topic):
    kafka, redis, topic = servers_and_topic
    letters_of(kafka, topic, b"{}", source="another")
    done = command(service.Worker(kafka.port, redis.url, topic), "--resend")
    assert done.returncode == 2
    assert "these letters come from another, and `topic` is" in done.stderr


def test_letters_of_a_forwarded_topic_go_where_it_is_asked(servers_and_topic):
    kafka, redis, topic = servers_and_topic
    source = f"{topic}.clicks"
    service.create_topic(kafka.port, source, 2)
    letters_of(kafka, topic, b"{}", source=topic)
    letters_of(kafka, topic, b"[]", b"[1]", source=source)
    forward = [{"topic": source, "profile": "segment"}]
    worker = service.Worker(kafka.port, redis.url, topic, forward=forward)
    assert rejected(worker)["letters"] == 3
    assert rejected(worker, topic=source)["letters"] == 2
    mixed = command(worker, "--resend")
    assert mixed.returncode == 2 and "choose one topic with --topic" in mixed.stderr
    unknown = command(worker, "--resend", "--topic", "another")
    assert unknown.returncode == 2
    assert f"--topic: another is none of this configuration: {topic}, {source}" in unknown.stderr
    for sent in (2, 0):
        done = command(worker, "--resend", "--topic", source)
        assert done.stderr.splitlines()[-1] == f"sent {sent} records", done.stderr
    log, _ = service.read_log(kafka.port, source, 2)
    assert sorted(value for records in log.values() for *_, value in records) == [b"[1]", b"[]"]
    assert service.read_log(kafka.port, topic, 2)[0] == {0: [], 1: []}


def test_a_second_resend_ends_the_first(servers_and_topic):
    """The first had read the marks, and sends nothing after the second has begun."""
    kafka, _, topic = servers_and_topic
    letters_of(kafka, topic, b"{}", b"[]", source=topic)

    async def both():
        async with resending.resender(client(kafka), topic) as second_to_come:
            found = await resending.read(client(kafka), f"{topic}.dead-letter", EVERY[0], most=9)
            async with resending.resender(client(kafka), topic) as other:
                sent = await resending.resend(other, found.letters, topic, f"{topic}.dead-letter")
            assert sent == 2
            await resending.resend(second_to_come, found.letters, topic, f"{topic}.dead-letter")

    with pytest.raises(RefusedError, match="another resend of this group has begun"):
        asyncio.run(both())
    found = asyncio.run(resending.read(client(kafka), f"{topic}.dead-letter", EVERY[0], most=9))
    assert len(found.resent) == 2


def test_a_missing_topic_is_named(servers_and_topic):
    kafka, redis, topic = servers_and_topic
    worker = service.Worker(kafka.port, redis.url, topic, dead_letter_topic=f"{topic}.none")
    done = command(worker)
    assert done.returncode == 2
    assert f"the topic {topic}.none does not exist: nothing was rejected" in done.stderr


def test_letters_that_do_not_come_are_given_up(servers_and_topic, monkeypatch):
    """The end lies beyond what there is: as if nobody served the rest."""
    kafka, _, topic = servers_and_topic
    letters_of(kafka, topic, b"{}", source=topic)
    ends = AIOKafkaConsumer.end_offsets

    async def beyond(consumer, places):
        return {place: end + 1 for place, end in (await ends(consumer, places)).items()}

    monkeypatch.setattr(AIOKafkaConsumer, "end_offsets", beyond)
    monkeypatch.setattr(resending, "SILENCE_SECONDS", 1.0)
    with pytest.raises(UnreachableError, match=rf"0 of {topic}\.dead-letter gave nothing for 1 s"):
        asyncio.run(resending.read(client(kafka), f"{topic}.dead-letter", EVERY[0], most=9))
