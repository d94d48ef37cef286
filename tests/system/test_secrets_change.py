"""Passwords, tokens and certificates that change while a worker runs: real Kafka and Redis.

Nothing is lost, nothing is counted twice, and what is refused is named.
"""

import asyncio
import base64
import contextlib
import json
import re
import sys
import time

import comparison
import programs
import pytest
import redis as redis_client
import servers
import service
from authorities import two_authorities
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from streameval.kafka.consumer import KafkaEventLog

pytestmark = [pytest.mark.servers, pytest.mark.slow]
OTHERS = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"
LOGIN = "org.apache.kafka.common.security"
OPERATIONS = (programs.ROOT / "docs/operations.md").read_text()
EVENT = '{"type":"impression","ts":%d,"user_id":"u%d","item_id":"i","request_id":"r"}'


def records(first, count):
    return [
        (b"u%d" % n, (EVENT % (1_700_000_000_000 + n, n)).encode())
        for n in range(first, first + count)
    ]


def compared(kafka, redis_url, topic, worker):
    """All of the topic is read, and equals the oracle; the worker is stopped."""
    log, ends = service.read_log(kafka.port, topic, 2)
    service.wait_until_read(redis_url, topic, ends, seconds=60)
    users, _ = comparison.compare_all(redis_url, topic, [worker], log)
    return users


def said(worker, text, seconds=60):
    service.wait_for(lambda: text in worker.logged(), seconds, text)


def topic_on(kafka):
    topic = servers.unique("secret")
    service.create_topic(kafka.port, topic, 2)
    return topic


# ------------------------------------------------------------------------------------------ Redis


@pytest.mark.parametrize("kind", ["one server", "cluster"])
def test_a_password_of_redis_changes(kind, tmp_path):
    kafka = servers.shared_kafka()
    topic, secret = topic_on(kafka), tmp_path / "secret"
    secret.write_text("one\n")
    with servers.redis_cluster() if kind == "cluster" else servers.redis() as redis:
        nodes = redis.nodes if kind == "cluster" else [redis]

        def each(*words):
            for node in nodes:
                with contextlib.closing(redis_client.Redis(port=node.port)) as client:
                    client.execute_command(*words)

        # The documented rights, and the one that a cluster needs besides.
        (line,) = re.findall(r"^ACL SETUSER \w+ (on >SECRET .*)$", OPERATIONS, re.MULTILINE)
        rights = ["reset", *line.replace(">SECRET", "").split(), "+cluster|slots"]
        each("ACL", "SETUSER", "worker", *rights, ">one")
        url = redis.url.replace("://", "://worker@")
        worker = service.Worker(kafka.port, url, topic)
        worker.environment["STREAMEVAL_REDIS_PASSWORD_FILE"] = str(secret)
        service.produce(kafka.port, topic, records(0, 50))
        with worker:
            _, ends = service.read_log(kafka.port, topic, 2)
            service.wait_until_read(redis.url, topic, ends)
            each("ACL", "SETUSER", "worker", *rights, ">two")
            each("CLIENT", "KILL", "USER", "worker")
            service.produce(kafka.port, topic, records(50, 50))
            said(worker, "refuses the password or user")
            said(worker, "which it took before: give `redis`, redis_password or their files")
            time.sleep(3)
            assert worker.running
            secret.write_text("two\n")
            assert compared(kafka, redis.url, topic, worker) == 100


def test_a_wrong_password_at_the_start_ends_the_worker_with_one_line():
    with servers.redis(password="right") as redis:
        url = redis.url.replace("://", "://:wrong@")
        with service.Worker(servers.shared_kafka().port, url, "any") as worker:
            assert worker.process.wait(30) == 2
    assert "refuses the password or user" in worker.logged()
    assert "wrong" not in worker.logged()


# ------------------------------------------------------------------------------------------ Kafka


@contextlib.contextmanager
def secure_kafka(protocol, **config):
    """Kafka with a listener of a protocol, and where it is."""
    port = servers.free_port()
    settings = {"listener.security.protocol.map": f"{OTHERS},SECURE:{protocol}"}
    with servers.kafka(secure_port=port, **settings, **config) as kafka:
        yield kafka, {"kafka": f"localhost:{port}", "kafka_security_protocol": protocol}


def let_in(kafka, user, password):
    """Give a user of SCRAM a password, from now on."""
    admin = AdminClient({"bootstrap.servers": kafka.address})
    form = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4_096)
    change = UserScramCredentialUpsertion(user, form, password.encode())
    for done in admin.alter_user_scram_credentials([change]).values():
        done.result(120)


def test_a_password_of_kafka_changes(tmp_path):
    """Connections end with their login (`connections.max.reauth.ms`), and log in anew."""
    redis, secret = servers.shared_redis(), tmp_path / "secret"
    config = {
        "listener.name.secure.sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "listener.name.secure.scram-sha-256.sasl.jaas.config": f"{LOGIN}.scram.ScramLoginModule"
        " required;",
        "connections.max.reauth.ms": 4_000,
    }
    with secure_kafka("SASL_PLAINTEXT", **config) as (kafka, told):
        let_in(kafka, "worker", "one")
        secret.write_text("one\n")
        topic = topic_on(kafka)
        told |= {"kafka_sasl_mechanism": "SCRAM-SHA-256", "kafka_username": "worker"}
        told["kafka_password"] = "of the configuration"  # the file comes first
        worker = service.Worker(kafka.port, redis.url, topic, **told)
        worker.environment["STREAMEVAL_KAFKA_PASSWORD_FILE"] = str(secret)
        with worker:
            service.produce(kafka.port, topic, records(0, 50))
            _, ends = service.read_log(kafka.port, topic, 2)
            service.wait_until_read(redis.url, topic, ends)
            let_in(kafka, "worker", "two")
            service.wait_for(
                lambda: "does not let us in" in service.refused(worker, "/readyz"), 60, "its line"
            )
            service.produce(kafka.port, topic, records(50, 50))
            assert worker.running
            secret.write_text("two\n")
            assert compared(kafka, redis.url, topic, worker) == 100


def token(seconds):
    """A token without a signature, as Kafka's validator for tests takes it."""
    now = time.time()
    parts = {"alg": "none"}, {"sub": "worker", "iat": now, "exp": now + seconds}
    packed = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts]
    return b".".join([*packed, b""]).decode()


@pytest.mark.parametrize("source", ["file", "command"])
def test_tokens_are_taken_anew_before_they_expire(source, tmp_path):
    redis, file = servers.shared_redis(), tmp_path / "token"
    config = {
        "listener.name.secure.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.secure.oauthbearer.sasl.jaas.config": f"{LOGIN}.oauthbearer"
        '.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";',
        "connections.max.reauth.ms": 60_000,
    }
    with secure_kafka("SASL_PLAINTEXT", **config) as (kafka, told):
        topic = topic_on(kafka)
        told["kafka_sasl_mechanism"] = "OAUTHBEARER"
        if source == "file":
            told["kafka_token_file"] = str(file)
        else:
            printed = (
                f"import json;print(json.dumps({{'access_token': open({str(file)!r}).read()}}))"
            )
            told["kafka_token_command"] = [sys.executable, "-c", printed]
        file.write_text(token(20))
        expires = time.time() + 20  # a slow machine needs 10 s to start a worker
        with service.Worker(kafka.port, redis.url, topic, **told) as worker:
            service.produce(kafka.port, topic, records(0, 50))
            _, ends = service.read_log(kafka.port, topic, 2)
            service.wait_until_read(redis.url, topic, ends)
            file.write_text(token(600))
            time.sleep(max(0, expires - time.time()) + 2)
            service.produce(kafka.port, topic, records(50, 50))
            assert compared(kafka, redis.url, topic, worker) == 100


@pytest.fixture(scope="module")
def authorities(tmp_path_factory):
    return two_authorities(tmp_path_factory.mktemp("authorities"))


def test_certificates_of_kafka_and_of_the_worker_change(authorities, tmp_path):
    """mTLS: another authority signs both sides, and the files are replaced under a worker."""
    redis, (first, second) = servers.shared_redis(), authorities
    files = {name: tmp_path / f"{name}.pem" for name in ("ca", "server", "worker", "trusted")}

    def write(found, *which):
        for name in which:
            files[name].write_text(found["ca" if name == "trusted" else name].read_text())

    write(first, *files)
    config = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": files["server"],
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": files["trusted"],
        "listener.name.secure.ssl.client.auth": "required",
    }
    with secure_kafka("SSL", **config) as (kafka, told):
        topic = topic_on(kafka)
        told |= {"kafka_ca_file": str(files["ca"]), "kafka_cert_file": str(files["worker"])}
        with service.Worker(kafka.port, redis.url, topic, **told) as worker:
            service.produce(kafka.port, topic, records(0, 50))
            _, ends = service.read_log(kafka.port, topic, 2)
            service.wait_until_read(redis.url, topic, ends)
            kafka.kill()
            write(second, "server", "trusted")
            kafka.start()
            service.produce(kafka.port, topic, records(50, 50))
            service.wait_for(
                lambda: "cannot be verified" in service.refused(worker, "/readyz"), 60, "its line"
            )
            write(second, "ca", "worker")
            assert compared(kafka, redis.url, topic, worker) == 100


def test_a_worker_without_a_certificate_is_refused_and_says_so(authorities):
    first, _ = authorities
    config = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": first["server"],
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": first["ca"],
        "listener.name.secure.ssl.client.auth": "required",
    }
    with secure_kafka("SSL", **config) as (kafka, told):
        told["kafka_ca_file"] = str(first["ca"])
        with service.Worker(kafka.port, servers.shared_redis().url, "any", **told) as worker:
            said(worker, "closes the connection")
            assert "kafka_cert_file" in worker.logged()


def test_a_named_member_that_comes_back_has_its_partitions_without_a_rebalance():
    kafka, redis = servers.shared_kafka(), servers.shared_redis()
    topic = topic_on(kafka)
    told = {"session_timeout": "45s", "group": topic}
    workers = [
        service.Worker(kafka.port, redis.url, topic, **told, kafka_instance_id=f"w{number}")
        for number in range(2)
    ]

    def owned(worker):
        return {
            dict(labels)["partition"]
            for (name, labels), _ in worker.metrics().items()
            if name == "streameval_lag"
        }

    with workers[0], workers[1]:
        for worker in workers:
            service.wait_for(lambda one=worker: len(owned(one)) == 1, 90, "one partition each")
        before = [owned(worker) for worker in workers]
        workers[0].kill()
        workers[0].start()
        service.wait_for(lambda: owned(workers[0]) == before[0], 30, "its partition again")
        assert owned(workers[1]) == before[1]
        assert "assigned partitions" not in workers[1].logged().split("assigned partitions")[-1]
        assert workers[1].logged().count("assigned partitions") <= 2


class Member:
    """A member of a group of the name `same`, which reads what it is given."""

    def __init__(self, address, topic):
        client = {"bootstrap_servers": address}
        self.log = KafkaEventLog(client, topic, topic, "letters", instance="same")
        self.assignments = 0

    async def assigned(self, partitions):
        self.assignments += bool(partitions)
        for number in partitions:
            self.log.seek(number, 0)
            self.log.resume(number)

    async def revoked(self, _):
        """Nothing is kept."""

    async def read_until_assigned(self, times):
        for _ in range(300):
            await self.log.poll(0.1, 100)
            if self.assignments == times:
                return
        pytest.fail(f"assigned {self.assignments} times")


def test_a_member_whose_name_another_one_took_joins_again():
    """It comes with its old id, which Kafka fences, before a heartbeat has told it."""
    kafka = servers.shared_kafka()
    topic = topic_on(kafka)

    async def scenario():
        first, second = Member(kafka.address, topic), Member(kafka.address, topic)
        await first.log.start(first)
        await first.read_until_assigned(1)
        await second.log.start(second)
        await second.read_until_assigned(1)
        first.log._consumer._coordinator.request_rejoin()
        await first.read_until_assigned(2)
        await first.log.close(5)
        await second.log.close(5)

    asyncio.run(scenario())


def test_two_members_of_one_name_are_told():
    kafka, redis = servers.shared_kafka(), servers.shared_redis()
    topic = topic_on(kafka)
    told = {"group": topic, "kafka_instance_id": "same"}
    workers = [service.Worker(kafka.port, redis.url, topic, **told) for _ in range(2)]
    line = "has another worker the kafka_instance_id same, too? Give each one of its own"
    with workers[0], workers[1]:
        service.wait_for(lambda: any(line in one.logged() for one in workers), 60, line)
        service.produce(kafka.port, topic, records(0, 50))
        _, ends = service.read_log(kafka.port, topic, 2)
        service.wait_until_read(redis.url, topic, ends, group=topic)
