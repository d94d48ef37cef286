"""Real servers that want TLS and passwords, and a Redis user with the documented rights only."""

import contextlib
import json
import pathlib
import re
import subprocess
import time

import comparison
import programs
import pytest
import redis as redis_client
import servers
import service
from command_line import streameval

pytestmark = pytest.mark.servers
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
OTHERS = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate that `localhost` gave itself, its key, and both in one file."""
    openssl = programs.need("openssl")
    folder = tmp_path_factory.mktemp("certificate")
    certificate, key, both = (folder / name for name in ("certificate.pem", "key.pem", "both.pem"))
    command = [openssl, "req", "-x509", "-nodes", "-newkey", "rsa:2048", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command += ["-out", certificate, "-keyout", key]
    subprocess.run(command, check=True, capture_output=True)
    both.write_text(key.read_text() + certificate.read_text())
    return certificate, key, both


@pytest.fixture(scope="module")
def secured(certificate):
    """Kafka, Redis, and what a worker has to be told to reach them."""
    file, key, both = certificate
    broker, store = servers.free_port(), servers.free_port()
    user = f'{PLAIN} required user_worker="right";'
    config = {
        "listener.security.protocol.map": f"{OTHERS},SECURE:SASL_SSL",
        "listener.name.secure.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.secure.plain.sasl.jaas.config": user,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": both,
    }
    options = {"tls_cert_file": file, "tls_key_file": key, "tls_auth_clients": "no"}
    told = {
        "kafka": f"localhost:{broker}",
        "kafka_security_protocol": "SASL_SSL",
        "kafka_sasl_mechanism": "PLAIN",
        "kafka_username": "worker",
        "kafka_password": "right",
        "kafka_ca_file": str(file),
        "redis": f"rediss://localhost:{store}/0?ssl_ca_certs={file}",
    }
    with (
        servers.kafka(secure_port=broker, **config) as kafka,
        servers.redis(tls_port=store, **options) as redis,
    ):
        yield kafka, redis, told


def test_a_worker_reads_and_commits_over_tls(secured):
    kafka, redis, told = secured
    topic = servers.unique("secure")
    service.create_topic(kafka.port, topic)
    event = b'{"type":"impression","ts":%d,"user_id":"u%d","item_id":"i","request_id":"r"}'
    sent = [(b"u%d" % n, event % (1_700_000_000_000 + n, n)) for n in range(50)]
    assert service.produce(kafka.port, topic, [*sent, (b"u", b"no JSON")]) == 51
    log, ends = service.read_log(kafka.port, topic, 4)
    with service.Worker(kafka.port, redis.url, topic, **told) as worker:
        service.wait_until_read(redis.url, topic, ends)
        users, _ = comparison.compare_all(redis.url, topic, [worker], log)
        assert users == 50
        assert worker.stop() == 0


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"kafka_password": "no"}, "does not let us in ([Error 58] SaslAuthenticationFailed: Auth"),
        ({"kafka_sasl_mechanism": "SCRAM-SHA-512"}, "does not let us in ([Error 33] Unsupported"),
        ({"kafka_ca_file": None}, "cannot be verified ([SSL: CERTIFICATE_VERIFY_FAILED]"),
        ({"kafka": "127.0.0.1:{kafka}"}, "correct `kafka`, or see kafka_check_hostname"),
        (
            {"kafka": "127.0.0.1:{kafka}", "kafka_check_hostname": False},
            "ok   kafka: 127.0.0.1:{kafka} answers",
        ),
        ({"kafka_security_protocol": "SASL_PLAINTEXT"}, "closes the connection (KafkaConnecti"),
        ({"redis": "rediss://localhost:{}/0"}, "certificate verify failed"),
        ({"redis": "rediss://localhost:{}/0?ssl_cert_reqs=none"}, "ok   redis: localhost:{} "),
    ],
)
def test_the_doctor_says_which_secret_is_wrong(secured, changed, said):
    kafka, redis, told = secured
    ports = told["redis"].split(":")[2].split("/")[0], told["kafka"].split(":")[1]

    def at(text):
        return text.format(ports[0], kafka=ports[1]) if isinstance(text, str) else text

    changed = {key: at(value) for key, value in changed.items()}
    worker = service.Worker(kafka.port, redis.url, "any", **told | changed)
    ran = streameval("doctor", "--config", worker.config, text=True)
    assert at(said) in ran.stdout, ran.stdout
    assert "Traceback" not in ran.stderr


def test_servers_that_are_down_hide_no_other_reason(secured):
    """The first one asked is drawn; twice the one that is up is 1 in 36."""
    kafka, redis, _ = secured
    down = [f"127.0.0.1:{servers.free_port()}" for _ in range(5)]
    several = ",".join([*down, f"127.0.0.1:{kafka.port}"])
    with service.Worker(kafka.port, redis.url, "absent", kafka=several) as worker:
        service.wait_for(lambda: worker.logged().count("waiting for it") == 2, 30, "two lines")
        lines = [line for line in worker.logged().splitlines() if "waiting for it" in line]
    assert all("the topic absent does not exist: " in line for line in lines)


OPERATIONS = pathlib.Path(__file__).parents[2] / "docs" / "operations.md"
REFUSED = [
    "FLUSHALL",
    "FLUSHDB",
    "KEYS *",
    "CONFIG GET requirepass",
    "CONFIG SET requirepass x",
    "ACL LIST",
    "ACL SETUSER streameval +@all",
    "SHUTDOWN NOSAVE",
    "REPLICAOF NO ONE",
    "SCRIPT FLUSH",
    "MODULE LIST",
    "CLIENT KILL TYPE normal",
    "MONITOR",
    "SUBSCRIBE any",
    "PUBLISH any x",
    "GET foreign",
    "SET foreign x",
    "DEL foreign",
    "HGETALL foreign",
    "RENAME streameval:a foreign",
]
REFUSED_SCRIPTS = [
    "return redis.call('GET', 'foreign')",
    "return redis.call('SET', 'foreign', 'x')",
    "return redis.call('KEYS', '*')",
    "return redis.call('FLUSHALL')",
]


@pytest.fixture(scope="module")
def limited():
    """A Redis with a password, and the URL of a user made by the line in the docs."""
    (line,) = re.findall(r"^ACL SETUSER .*$", OPERATIONS.read_text(), re.MULTILINE)
    with servers.redis(password="administrator", aof="everysec") as redis:
        url = f"redis://:administrator@{redis.address}"
        with contextlib.closing(redis_client.Redis.from_url(url)) as administrator:
            assert administrator.execute_command(*line.replace("SECRET", "right").split())
            administrator.set("foreign", "secret")
        yield redis, f"redis://streameval:right@{redis.address}", url


def test_every_command_works_with_the_documented_rights(limited, tmp_path):
    """Worker, snapshot, check, user, doctor, and windows that start anew: no right is missing."""
    kafka, (_, url, administrator) = servers.shared_kafka(), limited
    topic, group = servers.unique("rights"), servers.unique("rights")
    service.create_topic(kafka.port, topic)
    now = round(time.time() * 1000)
    event = b'{"type":"impression","ts":%d,"user_id":"u%d","item_id":"i","request_id":"r"}'
    service.produce(kafka.port, topic, [(b"u%d" % n, event % (now + n, n)) for n in range(50)])
    _, ends = service.read_log(kafka.port, topic, 4)
    folders = {"snapshots": str(tmp_path / "snapshots"), "outcomes": str(tmp_path / "outcomes")}
    told = {"group": group, "user_ttl": "30d", **folders}
    with service.Worker(kafka.port, url, topic, **told) as worker:
        service.wait_until_read(administrator, topic, ends, group=group)
        for command in ("snapshot", "check", "doctor", "user u7"):
            ran = run(command, worker.config)
            assert ran.returncode == 0, f"{command}: {ran.stdout}{ran.stderr}"
        assert json.loads(ran.stdout)["impressions"] == 1
        service.wait_for(lambda: shown_by(worker) == list(range(4)), 60, "figures are shared")
        assert worker.stop() == 0
    with service.Worker(kafka.port, url, topic, **told, ks=[3]) as changed:
        changed.process.wait(60)
        assert changed.process.returncode == 2
        changed.start("--reset-windows")
        service.produce(kafka.port, topic, [(b"u7", event % (now + 99, 7))])
        _, ends = service.read_log(kafka.port, topic, 4)
        service.wait_until_read(administrator, topic, ends, group=group)
        assert "its windows start anew" in changed.logged()
        assert changed.stop() == 0
    assert json.loads(run("user u7", changed.config).stdout)["impressions"] == 2
    assert "extend the rights" not in worker.logged() + changed.logged()


def shown_by(worker):
    """The partitions whose figures the API gives."""
    assert json.loads(worker.page("/api/v1/checks"))["checks"] == []
    return json.loads(worker.page("/api/v1/figures"))["partitions"]["shown"]


def run(command, config):
    """Run a command of the command line."""
    name, *arguments = command.split()
    return streameval(name, *arguments, "--config", config, "--json", text=True)


@pytest.mark.parametrize("command", REFUSED)
def test_what_no_worker_needs_is_refused(limited, command):
    """Nothing but our keys, and nothing that makes an administrator of the user."""
    redis, url, _ = limited
    with (
        contextlib.closing(redis_client.Redis.from_url(url)) as client,
        pytest.raises(redis_client.exceptions.NoPermissionError),
    ):
        client.execute_command(*command.split())
    assert redis.process.poll() is None


@pytest.mark.parametrize("script", REFUSED_SCRIPTS)
def test_what_no_worker_needs_is_refused_to_its_scripts_too(limited, script):
    """A script has the rights of the user who sends it."""
    _, url, administrator = limited
    with (
        contextlib.closing(redis_client.Redis.from_url(url)) as client,
        pytest.raises(
            redis_client.exceptions.ResponseError, match=r"can't run|can't access|ACL failure"
        ),
    ):
        client.eval(script, 0)
    with contextlib.closing(redis_client.Redis.from_url(administrator)) as client:
        assert client.get("foreign") == b"secret"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cluster", "sentinel"])
def test_a_worker_counts_on_through_a_fail_over_by_tls(kind, certificate):
    """Every node and Sentinel is reached by TLS, and told apart by its name."""
    file, key, _ = certificate
    kafka, topic = servers.shared_kafka(), servers.unique("secure")
    service.create_topic(kafka.port, topic)
    event = b'{"type":"impression","ts":%d,"user_id":"u%d","item_id":"i","request_id":"r"}'
    sent = [(b"u%d" % n, event % (1_700_000_000_000 + n, n)) for n in range(100)]
    made = servers.redis_cluster if kind == "cluster" else servers.redis_sentinels
    with made(certificate=(file, key)) as redis:
        plain = lambda: (  # noqa: E731
            redis.url if kind == "cluster" else redis.primaries()[0].url
        )
        with service.Worker(kafka.port, redis.secure_url, topic) as worker:
            for part in (sent[:50], sent[50:]):
                service.produce(kafka.port, topic, part)
                log, ends = service.read_log(kafka.port, topic, 4)
                service.wait_until_read(plain(), topic, ends)
                if part[0] == sent[0]:
                    count = len(redis.primaries())
                    redis.primaries()[-1].kill()
                    service.wait_for(lambda n=count: len(redis.primaries()) == n, 60, "another one")
            users, _ = comparison.compare_all(plain(), topic, [worker], log)
            assert users == 100
            assert worker.stop() == 0
