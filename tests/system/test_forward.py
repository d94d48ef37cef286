"""`streameval forward` on real servers: several topics, other keys, a backlog, kills."""

import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
import servers
import service
import trackers
from command_line import streameval
from test_dead_letter_topic import ACLS, allow
from test_profiles_registry import answers

from streameval.base.errors import UnreachableError
from streameval.base.in_memory import InMemory
from streameval.config.load import load
from streameval.core.replay import replay

pytestmark = pytest.mark.servers

LATENESS = 20_000
SETTINGS = {
    "positives": ["click", "purchase"],
    "dimensions": [],
    "windows": [{"size": "2h", "slide": "10m"}],
    "attribution_window": "5m",
    "allowed_lateness": "20s",
}


class Forward:
    """One `streameval forward` in a process of its own."""

    def __init__(self, config, log):
        self.log = log
        with log.open("ab") as output:
            command = [sys.executable, "-m", "streameval", "forward", "--config", config]
            self.process = subprocess.Popen(command, stdout=output, stderr=output)

    def page(self, path="/metrics"):
        """A page of it, and its status; (0, "") before it serves pages."""
        found = re.findall("/metrics on (http://[^/]+)/", self.log.read_text())
        if not found:
            return 0, ""
        try:
            with urllib.request.urlopen(found[-1] + path, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(30)


@pytest.fixture
def topics(tmp_path):
    """Kafka, Redis, the names of two sources and of the topic, and a configuration."""
    kafka, redis = servers.shared_kafka(), servers.shared_redis()
    topic = servers.unique("forward")
    names = {"shown": f"{topic}.shown", "done": f"{topic}.done"}
    for name in (*names.values(), topic):
        service.create_topic(kafka.port, name, 2, **{"message.timestamp.type": "CreateTime"})
    service.create_topic(kafka.port, f"{topic}.dead-letter", 1)
    config = tmp_path / "streameval.yaml"
    sources = [
        {"topic": names["shown"], "profile": "metarank"},
        {"topic": names["done"], "profile": "segment"},
    ]
    where = {"kafka": f"127.0.0.1:{kafka.port}", "redis": redis.url, "topic": topic, "group": topic}
    where["listen"] = "127.0.0.1:0"
    config.write_text(json.dumps(SETTINGS | where | {"forward": sources}))
    return kafka, redis, topic, names, config


def split(events):
    """Records of both sources: lists keyed by request, feedback without a key's meaning."""
    shown = [
        (event["request_id"].encode(), json.dumps(trackers.metarank(event)).encode())
        for event in events
        if event["type"] == "slate"
    ]
    done = [
        (event["item_id"].encode(), json.dumps(trackers.segment(event)).encode())
        for event in events
        if event["type"] == "feedback"
    ]
    return shown, done


def log_of(kafka, topic):
    return service.read_log(kafka.port, topic, 2)[0]


def figures(lines, config):
    definition = load(config).definition()
    return replay(definition, [InMemory.of("log", lines)], lambda _: None, with_users=True)


def test_two_topics_with_other_keys_and_a_backlog_under_kills(topics, tmp_path):
    """Half an hour of lists and of feedback lies in topics that are keyed by neither user."""
    kafka, _, topic, names, config = topics
    events = trackers.stream(6, count=3_000)
    shown, done = split(events)
    service.produce(kafka.port, names["shown"], shown)
    service.produce(kafka.port, names["done"], [*done, (b"k", b"nope")])
    running = [Forward(config, tmp_path / f"log{number}") for number in range(3)]
    try:
        for part in range(3):
            service.wait_for(
                lambda at=300 * (part + 1): sum(map(len, log_of(kafka, topic).values())) > at,
                120,
                "events are forwarded",
            )
            running[part].end(signal.SIGKILL)
            running[part] = Forward(config, tmp_path / f"again{part}")
        wanted = {(event["user_id"], event["request_id"], event.get("item_id")) for event in events}

        def arrived():
            found = set()
            for records in log_of(kafka, topic).values():
                for *_, value in records:
                    event = json.loads(value)
                    found.add((event["user_id"], event["request_id"], event.get("item_id")))
            return found >= wanted

        service.wait_for(arrived, 120, "all events are in the topic")
        assert [each.end() for each in running] == [0, 0, 0]
    finally:
        for each in running:
            each.process.kill()
    homes = {}
    for number, records in log_of(kafka, topic).items():
        lines = [value for *_, value in records]
        users = {json.loads(line)["user_id"] for line in lines}
        assert all(key == json.loads(value)["user_id"].encode() for *_, key, value in records)
        for user in users:
            assert homes.setdefault(user, number) == number
        found = figures(lines, config)
        own = trackers.lines(event for event in events if event["user_id"] in users)
        plain = figures(own, config)
        assert found["events"]["rejected"] == plain["events"]["rejected"]
        assert found["users"] == plain["users"]
        assert found["ranking"] == plain["ranking"]
        # `positive_rate` is a sum of ratios in the order of the users.
        for ours, theirs in zip(found["rates"], plain["rates"], strict=True):
            assert ours == pytest.approx(theirs, rel=1e-12)
    letters = service.dead_letters(kafka.port, topic)
    assert {value for _, _, value in letters} == {b"nope"}
    assert {headers["topic"] for headers, _, _ in letters} == {names["done"]}


def test_its_pages_tell_what_it_does(topics, tmp_path):
    kafka, *_, names, config = topics
    shown, done = split(trackers.stream(6, count=50))
    service.produce(kafka.port, names["shown"], shown)
    service.produce(kafka.port, names["done"], [*done, (b"k", b"nope")])
    one = Forward(config, tmp_path / "log")
    wanted = [
        f'streameval_forward_events_total{{topic="{names["shown"]}"}} {len(shown)}.0',
        f'streameval_forward_records_total{{topic="{names["done"]}"}} {len(done) + 1}.0',
        f'streameval_forward_rejected_total{{topic="{names["done"]}"}} 1.0',
        f'streameval_forward_lag{{topic="{names["shown"]}"}} 0.0',
        "streameval_forward_ready 1.0",
    ]
    try:
        service.wait_for(lambda: all(line in one.page()[1] for line in wanted), 60, "the counts")
        assert one.page("/readyz") == (200, "ok\n")
        assert one.page("/healthz") == (200, "ok\n")
        assert one.page("/other")[0] == 404
        assert one.end() == 0
    finally:
        one.process.kill()


def test_a_source_waits_for_the_schemas_of_its_records(topics, tmp_path):
    """Nothing is rejected for a registry that answers 500, and nothing goes meanwhile."""
    kafka, _, topic, names, config = topics
    shown, done = split(trackers.stream(6, count=50))
    framed = [(key, b"\0\0\0\0\x07" + value) for key, value in shown]
    service.produce(kafka.port, names["shown"], framed)
    service.produce(kafka.port, names["done"], done)
    with answers({"/schemas/ids/7": (500, "")}) as registry:
        given = json.loads(config.read_text()) | {"registry": registry.url}
        config.write_text(json.dumps(given))
        one = Forward(config, tmp_path / "log")
        try:
            service.wait_for(lambda: "answers 500" in one.page("/readyz")[1], 60, "its line")
            registry.by_path["/schemas/ids/7"] = (200, {"schemaType": "JSON", "schema": "{}"})
            service.wait_for(
                lambda: sum(map(len, log_of(kafka, topic).values())) == len(shown) + len(done),
                60,
                "all events",
            )
            service.wait_for(lambda: one.page("/readyz") == (200, "ok\n"), 30, "it is ready")
            assert one.end() == 0
        finally:
            one.process.kill()
    assert service.dead_letters(kafka.port, topic) == []


def test_a_batch_too_large_to_unpack_is_named_and_can_be_skipped(topics, tmp_path):
    """It takes no memory, and holds its partition alone."""
    kafka, _, topic, names, config = topics
    shown, done = split(trackers.stream(6, count=50))
    config.write_text(json.dumps(json.loads(config.read_text()) | {"read_memory": 32 << 20}))
    service.produce(kafka.port, names["shown"], shown)
    service.produce_large(kafka.port, names["done"], bytes(28 << 20))
    service.produce(kafka.port, names["done"], done)
    count = len(log_of(kafka, names["done"])[0])
    one = Forward(config, tmp_path / "log")
    try:
        named = f"partition 0 of {names['done']} waits before the batch at offsets 0 to 0 ("
        service.wait_for(lambda: one.page("/readyz")[1].startswith(named), 60, "it is named")
        said = f"partition 0 of {names['done']}: the batch at offsets 0 to 0 ("
        assert said in one.log.read_text()
        assert one.page("/readyz")[0] == 503
        service.truncate(kafka.port, names["done"], 1)
        service.wait_for(
            lambda: sum(map(len, log_of(kafka, topic).values())) == len(shown) + len(done),
            60,
            "all events",
        )
        assert count > 1, "some come after the batch"
        lost = f'streameval_forward_lost_total{{topic="{names["done"]}"}} 1.0'
        service.wait_for(lambda: lost in one.page()[1], 30, lost)
        service.wait_for(lambda: one.page("/readyz") == (200, "ok\n"), 30, "it waits no longer")
        assert one.end() == 0
    finally:
        one.process.kill()


@pytest.mark.slow
def test_a_source_that_is_deleted_is_named_and_the_other_goes_on(topics, tmp_path):
    kafka, _, topic, names, config = topics
    shown, done = split(trackers.stream(6, count=50))
    service.produce(kafka.port, names["shown"], shown[:20])
    service.produce(kafka.port, names["done"], done)
    one = Forward(config, tmp_path / "log")
    try:
        service.wait_for(
            lambda: sum(map(len, log_of(kafka, topic).values())) == 20 + len(done), 60, "events"
        )
        service.delete_topic(kafka.port, names["done"])
        said = f"the topic {names['done']} was deleted: make it anew, or drop it from `forward`"
        service.wait_for(lambda: one.page("/readyz") == (503, f"{said}\n"), 60, said)
        assert said in one.log.read_text()
        service.produce(kafka.port, names["shown"], shown[20:])
        service.wait_for(
            lambda: sum(map(len, log_of(kafka, topic).values())) == len(shown) + len(done),
            90,
            "the other topic's events",
        )
        assert one.end() == 0
    finally:
        one.process.kill()


@pytest.mark.slow
def test_it_waits_while_kafka_and_redis_are_away(tmp_path):
    shown, _ = split(trackers.stream(6, count=200))

    def arrived(count):
        # Events may come twice where a broker was away.
        values = {v for each in log_of(kafka, "topic").values() for *_, v in each}
        return len(values) == count

    with servers.kafka() as kafka, servers.redis(aof="always") as redis:
        for name in ("shown", "topic", "topic.dead-letter"):
            service.create_topic(kafka.port, name, 2)
        config = tmp_path / "streameval.yaml"
        where = {"kafka": f"127.0.0.1:{kafka.port}", "redis": redis.url, "topic": "topic"}
        where |= {"listen": "127.0.0.1:0", "allowed_lateness": "1m"}
        sources = [{"topic": "shown", "profile": "metarank"}]
        config.write_text(json.dumps(where | {"forward": sources}))
        kafka.pause()
        one = Forward(config, tmp_path / "log")
        try:
            service.wait_for(lambda: "Waiting for it." in one.log.read_text(), 60, "a line")
            kafka.resume()
            service.produce(kafka.port, "shown", shown[:100])
            service.wait_for(lambda: arrived(100), 60, "half")
            kafka.kill()
            redis.kill()
            time.sleep(60)  # longer than any request of aiokafka
            assert one.process.poll() is None, one.log.read_text()[-3000:]
            assert one.page("/readyz")[0] == 503
            redis.start()
            kafka.start()
            service.produce(kafka.port, "shown", shown[100:])

            service.wait_for(lambda: arrived(len(shown)), 120, "all")
            service.wait_for(lambda: one.page("/readyz") == (200, "ok\n"), 30, "it is ready")
            assert one.end() == 0
        finally:
            one.process.kill()


def test_a_missing_source_is_named_and_so_is_a_near_one(topics, tmp_path):
    *_, names, config = topics
    given = json.loads(config.read_text())
    given["forward"][0]["topic"] = names["shown"].replace("shown", "showm")
    config.write_text(json.dumps(given))
    one = Forward(config, tmp_path / "log")
    assert one.process.wait(60) == 2
    said = one.log.read_text()
    unseen = "showm does not exist, or this user may not see it"
    assert f"{unseen}; did you mean {names['shown']}?" in said


def test_it_names_the_rights_that_it_lacks_and_needs_no_others(tmp_path):
    """The rights of docs/operations.md, one after the other."""
    port, topics = servers.free_port(), ("t", "t.dead-letter", "clicks")
    login = {"kafka_username": "worker", "kafka_password": "right"}
    login |= {"kafka_security_protocol": "SASL_PLAINTEXT", "kafka_sasl_mechanism": "PLAIN"}
    with servers.kafka(secure_port=port, **ACLS) as kafka:
        for topic in topics:
            service.create_topic(kafka.port, topic, 1)
        events = trackers.stream(4, count=20)
        records = [(b"k", json.dumps(trackers.segment(event)).encode()) for event in events]
        service.produce(kafka.port, "clicks", [*records, (b"k", b"nope")])
        where = {"kafka": f"localhost:{port}", "redis": servers.shared_redis().url, **login}
        where |= {"topic": "t", "group": servers.unique("rights"), "listen": "127.0.0.1:0"}
        config, log = tmp_path / "streameval.yaml", tmp_path / "log"
        sources = [{"topic": "clicks", "profile": "segment"}]
        config.write_text(json.dumps(SETTINGS | where | {"forward": sources}))
        group = f"{where['group']}.forward"
        for rights, said in (
            ((), "clicks does not exist, or this user may not see it"),
            (("--operation", "Describe", "--topic", "clicks"), "the topic t does not exist, or"),
            (
                ("--operation", "Write", "--operation", "Describe", "--topic", "t"),
                "Kafka forbids to forward",
            ),
            (("--operation", "Read", "--group", group), "grant READ on clicks"),
            (
                ("--operation", "Read", "--topic", "clicks"),
                "topic t.dead-letter does not exist, or",
            ),
        ):
            if rights:
                allow(kafka, *rights)
            log.write_text("")
            assert Forward(config, log).process.wait(60) == 2
            assert said in log.read_text().splitlines()[-1], log.read_text()
        allow(kafka, "--operation", "Write", "--operation", "Describe", "--topic", "t.dead-letter")
        one = Forward(config, log)
        letters = lambda: service.read_log(kafka.port, "t.dead-letter", 1)[0][0]  # noqa: E731
        service.wait_for(letters, 60, "a dead letter")
        assert one.end() == 0
        assert len(service.read_log(kafka.port, "t", 1)[0][0]) >= len(events)


@pytest.mark.parametrize(
    ("forward", "said"),
    [
        ([], "forward: name the topics to read"),
        ([{"topic": "t", "profile": "segment"}], "forward: t is `topic`, which it writes to"),
        (
            [{"topic": "t.dead-letter", "profile": "native"}],
            "forward: t.dead-letter is `dead_letter_topic`, which it writes to",
        ),
        ([{"topic": "a", "profile": "segmnt"}], "did you mean segment?"),
        ([{"topic": "a", "profile": "ubi"}] * 2, "'a' stands there twice"),
    ],
)
def test_a_wrong_configuration_is_one_line(forward, said, tmp_path):
    config = tmp_path / "streameval.yaml"
    config.write_text(json.dumps({"topic": "t", "forward": forward}))
    one = Forward(config, tmp_path / "log")
    assert one.process.wait(60) == 2
    assert said in one.log.read_text()


def test_a_kafka_that_cannot_have_groups_is_told(tmp_path):
    """A single broker with the default of three replicas for its topic of groups."""
    with servers.kafka(offsets_topic_replication_factor=3) as kafka:
        for topic in ("to", "from"):
            service.create_topic(kafka.port, topic, 1)
        config = tmp_path / "streameval.yaml"
        where = {"kafka": kafka.address, "redis": servers.shared_redis().url, "group": "nobodys"}
        where |= {"topic": "to", "listen": "127.0.0.1:0"}
        config.write_text(
            json.dumps(where | {"forward": [{"topic": "from", "profile": "segment"}]})
        )
        one = Forward(config, tmp_path / "log")
        try:
            found = streameval("doctor", "--config", config, text=True)
            assert found.returncode == UnreachableError.exit_code
            assert "no broker coordinates the group nobodys (GroupCoordinatorNot" in found.stdout
            assert "offsets.topic.replication.factor" in found.stdout
            said = "the group nobodys.forward does not say which partitions are this worker's"
            service.wait_for(lambda: said in one.page("/readyz")[1], 60, "its line")
            assert said in one.log.read_text()
            assert one.end() == 0
        finally:
            one.process.kill()
