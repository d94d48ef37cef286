"""The doctor names the fault and the cure: its judgements alone, then seven faults on servers."""

import asyncio
import json
import os
import subprocess
import sys
import time

import pytest
import servers
import service
from aiokafka import AIOKafkaProducer

from streameval.cli.diagnosis import (
    Finding,
    Log,
    judge_clock,
    judge_cluster,
    judge_records,
    judge_redis,
    judge_stored,
    judge_timestamps,
)
from streameval.cli.doctor import examine, exit_code
from streameval.config.settings import Settings
from streameval.core.fingerprint import describe, fingerprint
from streameval.kafka.admin import Cluster, Extent, Sampled, cluster, create_topics
from streameval.store.redis_store import RedisStateStore
from streameval.store.stored_values import Commit, Facts, Stored

NOON = 1_735_732_800_000
MINUTE = 60_000
SETTINGS = Settings(kafka="broker:9092")


def event(ts=NOON, user_id="u1", **more):
    head = {"type": "impression", "ts": ts, "user_id": user_id, "item_id": "a"}
    return json.dumps(head | more).encode()


def record(*, partition=0, stamp=NOON, key=b"u1", value=None):
    return Sampled(partition, stamp, key, event() if value is None else value)


def by_check(findings):
    return {finding.check: finding for finding in findings}


def levels(findings):
    return {finding.check: finding.level for finding in findings}


def judged(*records, now=NOON):
    return by_check(judge_records(SETTINGS, records, now))


def test_the_worst_finding_decides_the_exit_code():
    assert exit_code([]) == 0
    warned = [Finding("a", "ok", ""), Finding("b", "warn", "")]
    assert exit_code(warned) == 0
    refused = [*warned, Finding("c", "fail", "", "", 1), Finding("d", "fail", "", "", 2)]
    assert exit_code(refused) == 2
    assert exit_code([*refused, Finding("e", "fail", "", "", 3)]) == 3


def test_a_missing_topic_comes_with_the_command_that_creates_it():
    findings = by_check(judge_cluster(SETTINGS, Cluster("c", {"other": 1})))
    topic = findings["topic"]
    assert (topic.level, topic.code) == ("fail", 2)
    assert topic.cure.startswith(
        "kafka-topics.sh --bootstrap-server broker:9092 --create --topic recsys-events "
    )
    assert findings["dead letters"].level == "warn"
    assert "--topic recsys-events.dead-letter " in findings["dead letters"].cure


def test_a_misspelt_topic_is_told_the_near_ones():
    topics = dict.fromkeys(("recsys-event", "Recsys-Events", "payments"), 1)
    findings = by_check(judge_cluster(SETTINGS, Cluster("c", topics)))
    assert "if Recsys-Events or recsys-event is meant, correct `topic`" in findings["topic"].message
    assert "payments" not in findings["topic"].message


@pytest.mark.parametrize("count", [100, 1000])
def test_a_kind_and_a_dimension_that_no_event_has_are_warned_of_once(count):
    settings = Settings(positives=["purchase"], dimensions=["country"])
    records = [
        *[record(value=event(geo="de"))] * count,
        *[record(value=event(type="feedback", feedback="buy"))] * count,
    ]
    told = [f for f in judge_records(settings, records, NOON) if f.check == "fields"]
    assert [finding.level for finding in told] == ["warn", "warn"]
    assert told[0].message == (
        f"`positives` has 'purchase', and none of {count:,} feedback events looked at is of"
        " that kind; further kinds are 'buy'"
    )
    assert told[1].message.startswith(
        f"none of {count:,} impressions and slates looked at has the field 'country'; further"
        " fields are 'geo': correct `dimensions`"
    )


def test_topics_that_exist_are_good():
    topics = {SETTINGS.topic: 3, SETTINGS.dead_letter_topic: 3}
    findings = judge_cluster(SETTINGS, Cluster("c", topics))
    assert set(levels(findings).values()) == {"ok"}


def test_dead_letters_with_fewer_replicas_than_events_are_warned_of():
    topics = {SETTINGS.topic: 3, SETTINGS.dead_letter_topic: 2}
    finding = by_check(judge_cluster(SETTINGS, Cluster("c", topics)))["dead letters"]
    assert finding.level == "warn"
    assert "fewer replicas (2) than recsys-events (3)" in finding.message
    assert "kafka-reassign-partitions.sh" in finding.cure


@pytest.mark.parametrize(
    ("settings", "level", "part"),
    [
        ({"message.timestamp.type": "LogAppendTime"}, "ok", "LogAppendTime"),
        (
            {
                "message.timestamp.type": "CreateTime",
                "message.timestamp.after.max.ms": "3600000",
            },
            "warn",
            "1h ahead",
        ),
        (
            {
                "message.timestamp.type": "CreateTime",
                "message.timestamp.after.max.ms": str(2**63 - 1),
            },
            "warn",
            "any time ahead",
        ),
        ({}, "warn", "does not tell"),
    ],
)
def test_who_stamps_records_is_said(settings, level, part):
    [finding] = judge_timestamps(SETTINGS, settings)
    assert finding.level == level
    assert part in finding.message


def test_it_is_said_that_no_limit_of_kafka_holds_for_a_record_without_a_timestamp():
    settings = {"message.timestamp.type": "CreateTime", "message.timestamp.after.max.ms": "1000"}
    [finding] = judge_timestamps(SETTINGS, settings)
    assert "1s ahead, and up to the year 2100 in a record without" in finding.message


def test_a_good_topic_has_only_good_findings():
    found = judged(record(), record(key=b"u2", value=event(user_id="u2"), partition=1))
    assert set(levels(found.values()).values()) == {"ok"}


def test_an_empty_topic_is_a_warning():
    assert levels(judge_records(SETTINGS, [], NOON)) == {"events": "warn"}


@pytest.mark.parametrize(("value", "warned"), [(0, True), (-3, True), (0.1, False)])
def test_values_that_count_though_they_are_not_above_0_are_a_warning(value, warned):
    found = judged(record(value=event(type="feedback", feedback="click", value=value)))
    assert ("values" in found) is warned
    if warned:
        assert found["values"].level == "warn"
        assert "write `click>0`" in found["values"].cure


EXPERIMENT = {"name": "e", "arm": "bucket", "control": "Z", "primary": "ndcg@10"}


@pytest.mark.parametrize(
    ("arms", "changes", "level", "part"),
    [
        ([None] * 3, {}, "warn", "e: of 3 slates and impressions none has the field bucket"),
        (["A", "B"] * 50, {}, "warn", "of 100 users with a bucket none is in the control Z, they"),
        (["A", "B"] * 49, {}, "ok", "e: bucket has A, B"),
        (["A", "Z"] * 60, {}, "ok", "e: bucket has A, Z"),
        ([None] * 3, {"until": "2024-12-31T00:00:00Z"}, None, ""),
    ],
)
def test_an_experiment_whose_arms_do_not_come_is_a_warning(arms, changes, level, part):
    """Few users may all be in one arm by chance, and an experiment that ended needs no arm."""
    settings = Settings(kafka="broker:9092", experiments=[EXPERIMENT | changes])
    users = [f"u{number}" for number in range(len(arms))]
    records = [
        record(key=user.encode(), value=event(user_id=user, **({"bucket": arm} if arm else {})))
        for user, arm in zip(users, arms, strict=True)
    ]
    found = by_check(judge_records(settings, records, NOON))
    assert "arms" not in found if level is None else found["arms"].level == level
    assert part in (found["arms"].message if level else "")


def test_a_few_broken_records_are_a_warning_and_many_a_failure():
    good, broken = [record()] * 199, record(value=b"{")
    few = judged(*good, broken)["events"]
    assert few.level == "warn"
    assert "1 malformed" in few.message
    many = judged(*good[:50], broken)["events"]
    assert (many.level, many.code) == ("fail", 1)


def test_tombstones_are_judged_like_any_broken_record():
    assert judged(Sampled(0, NOON, b"u1", None))["events"].level == "fail"


def test_records_not_keyed_by_user_are_counted_with_the_users_they_scatter():
    found = judged(record(key=None), record(key=b"x", partition=1), record())["keys"]
    assert (found.level, found.code) == ("fail", 1)
    assert "2 of 3 records" in found.message
    assert "1 of 1 users" in found.message


def test_an_event_dated_beyond_the_skew_after_its_record_is_a_failure():
    """The limit itself is still fine, a millisecond more is not."""
    assert judged(record(value=event(NOON + MINUTE)))["event time"].level == "ok"
    found = judged(record(value=event(NOON + MINUTE + 1)))["event time"]
    assert (found.level, found.code) == ("fail", 1)
    assert "`future`" in found.message


def test_an_event_dated_more_than_the_lateness_before_its_record_is_a_warning():
    assert judged(record(value=event(NOON - MINUTE)))["event time"].level == "ok"
    found = judged(record(value=event(NOON - MINUTE - 1)))["event time"]
    assert found.level == "warn"
    assert "60s before" in found.message


def test_a_record_stamped_after_now_shows_a_wrong_clock_and_an_old_one_does_not():
    late = NOON + 3_600_000
    assert judged(record(), now=late)["record clock"].level == "ok"
    assert judged(record(stamp=late, value=event(late)))["record clock"].level == "fail"


@pytest.mark.parametrize(
    ("gap", "level"),
    [(2_000, "ok"), (-2_000, "ok"), (2_001, "warn"), (-60_000, "warn"), (60_001, "fail")],
)
def test_clocks_are_compared(gap, level):
    found = judge_clock("redis clock", "Redis", NOON + gap, NOON, MINUTE)
    assert found.level == level
    if level != "ok":
        assert ("ahead of" if gap > 0 else "behind") in found.message


def test_redis_that_evicts_is_refused_and_redis_that_forgets_is_a_warning():
    good = Facts("7.0.15", "noeviction", persistent=True, now=NOON)
    assert set(levels(judge_redis("redis:6379", good, NOON, MINUTE)).values()) == {"ok"}
    bad = Facts("7.0.15", "allkeys-lru", persistent=False, now=NOON, evicts=True)
    findings = by_check(judge_redis("redis:6379", bad, NOON, MINUTE))
    assert (findings["eviction"].level, findings["eviction"].code) == ("fail", 2)
    assert "maxmemory-policy noeviction" in findings["eviction"].cure
    assert findings["persistence"].level == "warn"


def stored(offset, *, cluster="c", under=SETTINGS):
    known = {
        "offset": offset,
        "cluster_id": cluster,
        "fingerprint": fingerprint(under.definition()),
        "definition": json.dumps(describe(under.definition())),
    }
    return Stored(**dict.fromkeys(Stored._fields) | known)


def stored_findings(*states, start=10, end=100, cluster="c"):
    log = Log(cluster, {number: Extent(start, end) for number in range(len(states))})
    return by_check(judge_stored(SETTINGS, log, dict(enumerate(states))))


def test_what_is_stored_tells_the_lag():
    """Partition 0 has 60 to read, partition 1 (never begun) all of its 90."""
    findings = stored_findings(stored(40), stored(None))
    assert set(levels(findings.values()).values()) == {"ok"}
    assert findings["offsets"].message == "150 records to read"


def test_a_group_that_has_not_begun_is_good():
    assert levels(stored_findings(stored(None)).values()) == {"offsets": "ok"}


def test_offsets_of_another_cluster_are_refused():
    found = stored_findings(stored(40, cluster="other"))["origin"]
    assert (found.level, found.code) == ("fail", 2)
    assert "other" in found.message


@pytest.mark.parametrize(("theirs", "ours"), [(None, ""), (None, "c"), ("c", "")])
def test_a_cluster_that_does_not_say_which_it_is_is_not_another_one(theirs, ours):
    assert stored_findings(stored(40, cluster=theirs), cluster=ours)["origin"].level == "ok"
    answers = judge_cluster(SETTINGS, Cluster(ours, {}))[0].message
    assert answers == f"broker:9092 answers{' (cluster c)' if ours else ''}"


def test_state_of_another_definition_is_refused_as_a_worker_refuses_it():
    other = stored(40, under=Settings(kafka="broker:9092", ks=(3,)))
    found = stored_findings(other)["definition"]
    assert (found.level, found.code) == ("fail", 2)
    assert found.message.endswith("another configuration: ks was [3] and is [5, 10]")
    assert "--reset-windows" in found.cure
    version = stored(40)._replace(
        fingerprint="g",
        definition=json.dumps(describe(SETTINGS.definition()) | {"metrics": ["precision"]}),
    )
    found = stored_findings(version)["definition"]
    assert "another version of streameval: metrics was ['precision']" in found.message
    assert found.cure.startswith("Run that version")


def test_an_offset_beyond_the_log_is_refused_and_one_below_it_means_lost_records():
    beyond = stored_findings(stored(101))["offsets"]
    assert (beyond.level, beyond.code) == ("fail", 2)
    below = stored_findings(stored(7))["offsets"]
    assert (below.level, below.code) == ("fail", 1)
    assert below.message.startswith("3 records")


# --- On servers ---------------------------------------------------------------------------------


def doctor(**settings):
    """Run `streameval doctor --json`; gives its findings by check, and the exit code."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("STREAMEVAL_")}
    environment = {f"STREAMEVAL_{key.upper()}": value for key, value in settings.items()}
    done = subprocess.run(
        [sys.executable, "-m", "streameval.cli.app", "doctor", "--json"],
        capture_output=True,
        env=clean | environment,
        timeout=60,
        check=False,
    )
    assert done.stderr == b""
    findings = json.loads(done.stdout)["findings"]
    return {finding["check"]: finding for finding in findings}, done.returncode


def topic_with(address, *records, **configs):
    """A topic and its dead-letter topic that hold (key, value, timestamp) records."""
    topic = servers.unique("doctor")

    async def fill():
        client = {"bootstrap_servers": address}
        await create_topics(client, {topic: 4, f"{topic}.dead-letter": 1})
        producer = AIOKafkaProducer(**client)
        await producer.start()
        for key, value, stamp in records:
            await producer.send_and_wait(topic, value, key, timestamp_ms=stamp)
        await producer.stop()

    asyncio.run(fill())
    return topic


def now():
    return time.time_ns() // 1_000_000


@pytest.mark.servers
def test_everything_in_order_ends_with_0():
    kafka, redis = servers.shared_kafka(), servers.shared_redis()
    topic = topic_with(
        kafka.address, *((b"u%d" % n, event(now(), f"u{n}"), now()) for n in range(30))
    )
    findings, code = doctor(kafka=kafka.address, redis=redis.url, topic=topic)
    assert code == 0
    assert {f["check"] for f in findings.values() if f["level"] == "warn"} == {
        "timestamps",
        "persistence",
    }
    assert findings["events"]["message"] == "the last 30 records are events"
    assert "has not begun" in findings["offsets"]["message"]


@pytest.mark.servers
def test_kafka_absent():
    redis = servers.shared_redis()
    findings, code = doctor(kafka="127.0.0.1:1", redis=redis.url)
    assert code == 3
    assert findings["kafka"]["level"] == "fail"
    assert "127.0.0.1:1 does not answer" in findings["kafka"]["message"]
    assert "start Kafka" in findings["kafka"]["cure"]
    assert findings["redis"]["level"] == "ok"


def test_keys_of_kafka_that_no_client_takes_hide_nothing_of_redis(tmp_path):
    no_certificate = tmp_path / "ca.pem"
    no_certificate.write_text("-----BEGIN CERTIFICATE-----")
    security = {"kafka_security_protocol": "SSL", "kafka_ca_file": str(no_certificate)}
    findings, code = doctor(**security, redis="redis+sentinel://127.0.0.1:1,127.0.0.1:2/master")
    assert code == 3
    assert "no certificates in PEM" in findings["kafka"]["message"]
    said = findings["redis"]["message"]
    assert "No master found for 'master'" in said
    assert len(said) < 400  # redis-py writes out its clients, and 5.1 their errors


@pytest.mark.servers
def test_topic_absent():
    kafka, redis = servers.shared_kafka(), servers.shared_redis()
    topic = servers.unique("nowhere")
    findings, code = doctor(kafka=kafka.address, redis=redis.url, topic=topic)
    assert code == 2
    assert f"{topic} does not exist, or this user may not see it" in findings["topic"]["message"]
    assert "kafka-topics.sh" in findings["topic"]["cure"]
    assert doctor(kafka=kafka.address, redis=redis.url, topic=topic)[1] == 2  # it made none


@pytest.mark.servers
def test_topics_of_forward_are_judged_each_by_its_profile():
    kafka, redis = servers.shared_kafka(), servers.shared_redis()
    call = {"event": "Product Clicked", "timestamp": "2026-11-01T12:00:00Z", "userId": "u1"}
    value = json.dumps(call | {"type": "track", "properties": {"product_id": "i1"}}).encode()
    topic = topic_with(kafka.address)
    good, wrong, empty = (
        topic_with(kafka.address, *[(b"k", value, now())] * count) for count in (3, 3, 0)
    )
    compacted = servers.unique("doctor")
    service.create_topic(kafka.port, compacted, 1, **{"cleanup.policy": "compact"})
    named = {good: "segment", wrong: "ubi", f"{empty}x": "segment", empty: "segment"}
    named[compacted] = "segment"
    sources = [{"topic": name, "profile": profile} for name, profile in named.items()]
    keys = {"kafka": kafka.address, "redis": redis.url, "topic": topic}
    findings, code = doctor(**keys, forward=json.dumps(sources))
    assert code == 2
    of = {name: findings[f"forward {name}"] for name in named}
    assert [each["level"] for each in of.values()] == ["ok", "fail", "fail", "warn", "warn"]
    assert findings["compaction"]["message"].startswith(f"{compacted} is compacted")
    assert of[good]["message"] == "the last 3 records are events"
    assert "no record becomes an event; ubi: no rule takes 3 " in of[wrong]["message"]
    assert of[f"{empty}x"]["cure"] == f"if {empty} is meant, correct `forward`"
    assert of[empty]["message"] == f"{empty} holds no record yet"


@pytest.mark.servers
def test_redis_absent():
    kafka = servers.shared_kafka()
    topic = topic_with(kafka.address)
    findings, code = doctor(kafka=kafka.address, redis="redis://127.0.0.1:1/0", topic=topic)
    assert code == 3
    assert "127.0.0.1:1" in findings["redis"]["message"]
    assert "start Redis" in findings["redis"]["cure"]
    assert findings["kafka"]["level"] == "ok"


@pytest.mark.servers
def test_redis_with_an_eviction_policy():
    kafka = servers.shared_kafka()
    topic = topic_with(kafka.address)
    with servers.redis(policy="allkeys-lru") as redis:
        findings, code = doctor(kafka=kafka.address, redis=redis.url, topic=topic)
    assert code == 2
    assert "allkeys-lru" in findings["eviction"]["message"]
    assert "noeviction" in findings["eviction"]["cure"]


@pytest.mark.servers
@pytest.mark.parametrize("password", [None, "wrong"])
def test_wrong_password(password):
    kafka = servers.shared_kafka()
    topic = topic_with(kafka.address)
    given = {} if password is None else {"redis_password": password}
    with servers.redis(password="right") as redis:
        findings, code = doctor(kafka=kafka.address, redis=redis.url, topic=topic, **given)
        right, _ = doctor(kafka=kafka.address, redis=redis.url, topic=topic, redis_password="right")
    assert code == 2
    wanted = "refuses the password" if password else "wants a password, and none is configured"
    assert wanted in findings["redis"]["message"]
    assert "redis_password" in findings["redis"]["message"]
    assert "wrong" not in findings["redis"]["message"]
    assert right["redis"]["level"] == "ok"


@pytest.mark.servers
def test_clock_skew():
    """One producer dates its events ten minutes ahead, another stamps records so, too."""
    kafka, redis = servers.shared_kafka(), servers.shared_redis()
    ahead = now() + 10 * MINUTE
    events = topic_with(kafka.address, (b"u1", event(now()), now()), (b"u1", event(ahead), now()))
    findings, code = doctor(kafka=kafka.address, redis=redis.url, topic=events)
    assert code == 1
    assert "1 of 2 events" in findings["event time"]["message"]
    assert "NTP" in findings["event time"]["cure"]
    stamps = topic_with(kafka.address, (b"u1", event(ahead), ahead))
    findings, code = doctor(kafka=kafka.address, redis=redis.url, topic=stamps)
    assert code == 1
    assert "ahead of this machine's" in findings["record clock"]["message"]


@pytest.mark.parametrize(("scattered", "level"), [(0, "ok"), (1, "warn"), (2, "fail")])
def test_users_in_several_partitions_though_records_are_keyed_by_them(scattered, level):
    """As where clients of two families send, or partitions were added a moment ago."""
    records = [
        record(partition=partition, key=b"u%d" % user, value=event(user_id=f"u{user}"))
        for user in range(100)
        for partition in (0, 1)[: 1 + (user < scattered)]
    ]
    found = judged(*records)["keys"]
    assert found.level == level
    assert f"{scattered} of 100 users are in several partitions" in found.message or not scattered


@pytest.mark.servers
def test_a_topic_not_keyed_by_user():
    kafka, redis = servers.shared_kafka(), servers.shared_redis()
    records = [(b"item%d" % n, event(now(), f"u{n % 3}"), now()) for n in range(40)]
    topic = topic_with(kafka.address, *records)
    findings, code = doctor(kafka=kafka.address, redis=redis.url, topic=topic)
    assert code == 1
    assert "40 of 40 records are not keyed by their user_id" in findings["keys"]["message"]
    assert "3 of 3 users are in several partitions" in findings["keys"]["message"]
    assert "user_id" in findings["keys"]["cure"]


def stored_at(settings, cluster_id, start, end):
    """The commit that moves partition 0 from one stored offset to another."""
    return Commit(
        partition=0,
        start=start,
        end=end,
        users=[],
        cluster_id=cluster_id,
        topic_id="t",
        fingerprint=fingerprint(settings.definition()),
        definition="{}",
        now=1,
    )


async def examined_beside(tmp_path, work, times=1):
    """What the doctor finds, several times, while `work` goes on in the background."""
    kafka, redis = servers.shared_kafka(), servers.shared_redis()
    topic = servers.unique("doctor")
    client = {"bootstrap_servers": kafka.address}
    await create_topics(client, {topic: 1, f"{topic}.dead-letter": 1})
    given = {"kafka": kafka.address, "redis": redis.url, "topic": topic, "group": topic}
    config = tmp_path / "streameval.yaml"
    config.write_text(json.dumps(given))
    settings = Settings(**given)
    store = RedisStateStore(settings.redis_url, topic, topic, settings.definition().kinds)
    cluster_id = (await cluster(client)).cluster_id
    begun = asyncio.Event()
    working = asyncio.create_task(work(settings, store, cluster_id, begun))
    waiting = asyncio.create_task(begun.wait())
    await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if working.done():
        working.result()
    found = [await examine(config) for _ in range(times)]
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    await store.close()
    return found


@pytest.mark.servers
def test_a_busy_deployment_in_order_has_no_finding_that_failed(tmp_path):
    """Records come and are committed all the time: the log's end read too early lies before them.

    STREAMEVAL_DOCTOR_RUNS=50 for a longer look.
    """

    async def serve(settings, store, cluster_id, begun):
        producer = AIOKafkaProducer(bootstrap_servers=settings.kafka)
        await producer.start()
        offset = None
        try:
            while True:
                for user in range(20):
                    value = event(now(), f"u{user}")
                    sent = await producer.send(settings.topic, value, b"u%d" % user)
                end = (await sent).offset + 1
                await store.commit(stored_at(settings, cluster_id, offset, end))
                offset = end
                begun.set()
        finally:
            await producer.stop()

    runs = int(os.environ.get("STREAMEVAL_DOCTOR_RUNS", "8"))
    for findings in asyncio.run(examined_beside(tmp_path, serve, runs)):
        assert [finding for finding in findings if finding.level == "fail"] == []
        assert "offsets" in by_check(findings)


@pytest.mark.servers
def test_an_offset_beyond_the_log_is_found_and_the_advice_deletes_nothing(tmp_path):
    async def store_too_much(settings, store, cluster_id, begun):
        await store.commit(stored_at(settings, cluster_id, None, 77))
        begun.set()

    (findings,) = asyncio.run(examined_beside(tmp_path, store_too_much))
    found = by_check(findings)["offsets"]
    assert (found.level, found.code) == ("fail", 2)
    assert "partitions [0] lie beyond the log, in several readings" in found.message
    assert "delete" not in found.cure


def test_the_doctor_speaks_in_lines_to_people():
    clean = {k: v for k, v in os.environ.items() if not k.startswith("STREAMEVAL_")}
    done = subprocess.run(
        [sys.executable, "-m", "streameval.cli.app", "doctor"],
        capture_output=True,
        env=clean | {"STREAMEVAL_KS": "[0]"},
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    [line] = done.stdout.decode().splitlines()
    assert line.startswith("fail config: ")
    assert "→" not in line, "the message says what to do"
