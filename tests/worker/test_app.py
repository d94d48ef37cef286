"""The worker process: its pages, its exit codes, and that it always ends."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiohttp.http_exceptions import BadStatusLine, LineTooLong
from aiokafka.errors import GroupCoordinatorNotAvailableError, NodeNotReadyError

import streameval
from streameval.base.errors import InputError, UnreachableError
from streameval.base.limits import MAX_CONNECTIONS
from streameval.config.logs import REPEAT_SECONDS, Seldom
from streameval.core.definition import Definition
from streameval.web.pages import STUCK_AFTER, Pages
from streameval.web.status import PartitionStatus, ProcessCounters, ServiceStatus
from streameval.worker.app import FrameOptions, run
from streameval.worker.leadership import LEASE_SECONDS, Leadership

SCRIPT = Path(__file__).parents[1] / "fake_worker.py"

# Long enough that only a hang reaches it: a worker whose exit depends on it fails its test.
PATIENCE = 60


class Worker:
    """A fake worker in a process of its own."""

    def __init__(self, behaviour: str, seconds: float, port: int, **environment: str) -> None:
        package = str(Path(streameval.__file__).parents[1])
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(port), behaviour, str(seconds)],
            env={**os.environ, "PYTHONPATH": package, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for_pages(self) -> None:
        """Wait until the pages are served and the ingest runs."""
        for line in self.process.stderr:
            if found := re.search(r"http://127\.0\.0\.1:\d+/", line):
                self.url = found[0]
                break
        assert self.process.stdout.readline() == "running\n"

    def end(self) -> tuple[int, str, str]:
        """Wait for the end; exit code, standard output and standard error."""
        out, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, out, err

    def get(self, path: str, **headers: str) -> tuple[int, str, dict[str, str]]:
        """Fetch a page: status, text, headers."""
        request = urllib.request.Request(self.url + path, headers=headers)
        try:
            answer = urllib.request.urlopen(request, timeout=PATIENCE)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            return answer.status, answer.read().decode(), dict(answer.headers)


@contextmanager
def worker(
    behaviour: str, *, seconds: float = 2.0, port: int = 0, **environment: str
) -> Iterator[Worker]:
    running = Worker(behaviour, seconds, port, **environment)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.communicate()


def test_pages_are_ours_and_hardened():
    """Four pages answer with strict headers, Faust's own do not, whatever the environment says."""
    with worker("good", WEB_PORT="1", WEB_BIND="256.0.0.1") as running:
        running.wait_for_pages()
        for path in ("", "metrics", "healthz", "readyz"):
            status, text, headers = running.get(path)
            assert status == 200, path
            assert text.strip()
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Cache-Control"] == "no-store"
            assert headers["Content-Security-Policy"].startswith("default-src 'none'")
            assert headers["Server"] == "streameval"
        for path in ("table/", "router/", "graph/", "stats/", "production/", "metrics/x"):
            status, _, headers = running.get(path)
            assert status == 404, path
            assert headers["X-Content-Type-Options"] == "nosniff"


HELD = {
    "nothing is sent": b"",
    "half a request is sent": b"GET /metrics HTTP/1.1\r\nHost: loc",
    "a body is missing": b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\nhalf",
    "the answers are not read": b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 500,
    "one request is sent": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


def connect(running: Worker, sent: bytes) -> socket.socket:
    """A connection on which `sent` was sent and nothing was read."""
    host, port = re.search(r"//([^:]+):(\d+)/", running.url).groups()
    connection = socket.create_connection((host, int(port)), PATIENCE)
    connection.sendall(sent)
    return connection


def wait_for_its_end(connection: socket.socket) -> bytes:
    """What arrives until the other side ends the connection."""
    found = b""
    with connection:
        try:
            while more := connection.recv(1 << 16):
                found += more
        except ConnectionResetError:
            pass
    return found


@pytest.mark.parametrize("sent", HELD.values(), ids=HELD)
def test_a_connection_ends_whatever_its_client_does(sent):
    """Forty clients that hold a connection in the same way are let go, and pages answer on."""
    with worker("good", CONNECTION_SECONDS="0.5") as running:
        running.wait_for_pages()
        held = [connect(running, sent) for _ in range(40)]
        assert running.get("healthz")[0] == 200
        answers = {wait_for_its_end(connection)[:12] for connection in held}
        assert running.get("healthz")[0] == 200
    assert answers <= {b"", b"HTTP/1.1 200", b"HTTP/1.1 405"}


def test_the_oldest_connections_make_room_for_new_ones():
    """More clients than there may be connections: those that came first are let go at once."""
    with worker("good", CONNECTION_SECONDS="3600") as running:
        running.wait_for_pages()
        held = [connect(running, HELD["half a request is sent"]) for _ in range(200)]
        for connection in held[: 200 - MAX_CONNECTIONS]:
            assert wait_for_its_end(connection) == b""
        assert running.get("healthz")[0] == 200
        for connection in held:
            connection.close()


def test_an_answer_ends_its_connection():
    """A client that keeps connections is told, so that it does not send into a closed one."""
    with worker("good") as running:
        running.wait_for_pages()
        answer = wait_for_its_end(connect(running, HELD["one request is sent"]))
    assert answer.endswith(b"\r\n\r\nok\n")
    assert b"\r\nConnection: close\r\n" in answer


def test_metrics_negotiates_openmetrics():
    """A scraper that accepts OpenMetrics gets it; any other gets the text format."""
    with worker("good") as running:
        running.wait_for_pages()
        _, text, headers = running.get("metrics", Accept="application/openmetrics-text")
        assert headers["Content-Type"].startswith("application/openmetrics-text")
        assert text.endswith("# EOF\n")
        _, text, headers = running.get("metrics", Accept="text/html")
        assert headers["Content-Type"].startswith("text/plain; version=")
        assert "streameval_commits_total" in text


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_worker_that_flushes_with_0(sent):
    """Both signals stop the worker in order; what was read is committed, so the code is 0."""
    with worker("good", seconds=PATIENCE) as running:
        running.wait_for_pages()
        running.process.send_signal(sent)
        code, _, err = running.end()
    assert (code, "Traceback" in err) == (0, False)


@pytest.mark.parametrize("behaviour", ["unflushed", "hangs", "stubborn", "blocked"])
def test_a_worker_that_cannot_flush_ends_with_75(behaviour):
    """The deadline holds when a step hangs, swallows its cancellation, or blocks the loop."""
    with worker(behaviour) as running:
        running.wait_for_pages()
        running.process.send_signal(signal.SIGTERM)
        code, _, err = running.end()
    assert (code, "Traceback" in err) == (75, False)


def blocks_sigterm(task: Path) -> bool:
    """Whether a thread blocks SIGTERM; one that waits for it does not."""
    status = (task / "status").read_text()
    return bool(int(re.search(r"SigBlk:\s*(\w+)", status)[1], 16) >> (signal.SIGTERM - 1) & 1)


def maps(process: subprocess.Popen, library: str) -> bool:
    """Whether a process has loaded a library."""
    return library in Path(f"/proc/{process.pid}/maps").read_text()


STAGES = {
    "its first line has run": lambda process: blocks_sigterm(Path(f"/proc/{process.pid}")),
    "it imports the settings": lambda process: maps(process, "_pydantic_core"),
    "it imports the web server": lambda process: maps(process, "aiohttp"),
    "it imports numpy": lambda process: maps(process, "_multiarray"),
}
EXPERIMENT = {"name": "ranker", "arm": "variant", "control": "A", "primary": "ndcg@10"}


@contextmanager
def alone(**environment: str) -> Iterator[subprocess.Popen]:
    """A worker that starts where neither Kafka nor Redis is there."""
    command = [sys.executable, "-m", "streameval", "worker"]
    away = {"STREAMEVAL_KAFKA": "127.0.0.1:1", "STREAMEVAL_REDIS": "redis://127.0.0.1:1/0"}
    environment = {**os.environ, **away, "STREAMEVAL_LISTEN": "127.0.0.1:0", **environment}
    environment["PYTHONPATH"] = str(Path(streameval.__file__).parents[1])
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("reached", STAGES.values(), ids=STAGES)
def test_a_signal_while_a_worker_starts_ends_it_with_0(reached, sent):
    """Nothing was read, so nothing is left over; Kafka and Redis are not even there."""
    with alone() as process:
        while not reached(process):
            assert process.poll() is None
            time.sleep(0.001)
        process.send_signal(sent)
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    assert "Traceback" not in said


def test_no_thread_of_a_library_hears_the_signals():
    """An experiment makes the configuration import numpy, whose threads would end the process."""
    with alone(STREAMEVAL_EXPERIMENTS=json.dumps([EXPERIMENT])) as process:
        for line in process.stderr:
            if "pages and /metrics on" in line:
                break
        tasks = list(Path(f"/proc/{process.pid}/task").iterdir())
        hearing = [task for task in tasks if not blocks_sigterm(task)]
        assert maps(process, "_multiarray")
        assert (len(tasks) > 2, len(hearing)) == (True, 1)


def test_nothing_large_is_imported_before_signals_are_taken():
    """What the program imports before its first line of code would be time without a handler."""
    code = "import sys; before = set(sys.modules); import streameval.__main__;"
    code += "print(len(set(sys.modules) - before))"
    command = [sys.executable, "-S", "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(Path(streameval.__file__).parents[1])}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert int(ran.stdout) < 50
    with (Path(__file__).parents[2] / "pyproject.toml").open("rb") as project:
        assert tomllib.load(project)["project"]["scripts"] == {
            "streameval": "streameval.__main__:main"
        }


def test_a_second_interrupt_ends_at_once():
    """Ctrl-C twice does not wait for the deadline, which is an hour away here."""
    with worker("blocked", seconds=3600) as running:
        running.wait_for_pages()
        running.process.send_signal(signal.SIGTERM)
        while running.process.poll() is None:
            running.process.send_signal(signal.SIGINT)
            time.sleep(0.05)
        code, _, err = running.end()
    assert code == 75
    assert "read again" in err


def test_an_error_of_ingest_ends_the_worker_with_its_code_in_one_line():
    """A refusal is one line and exit code 2, with no traceback."""
    with worker("refused") as running:
        code, _, err = running.end()
    assert code == 2
    assert "redis: the eviction policy is allkeys-lru; set it to noeviction" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("behaviour", ["bug", "bug in tick", "bug in lease", "ends"])
def test_a_bug_ends_the_worker_with_1(behaviour):
    """A bug anywhere in the tree ends the worker with exit code 1 and says where it is."""
    with worker(behaviour) as running:
        code, _, err = running.end()
    assert code == 1
    assert ("ingest ended by itself" if behaviour == "ends" else "ZeroDivisionError") in err


def test_a_port_that_is_taken_is_one_clear_line():
    """Two workers on one machine: the second says which key to change, and exits with 2."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with worker("good", port=port) as running:
            code, _, err = running.end()
    assert code == 2
    assert err.count("\n") == 1
    assert err.startswith(f"listen: cannot listen on 127.0.0.1:{port}")


def test_an_address_of_another_machine_is_refused():
    """`listen` must be an address of this machine."""
    with pytest.raises(InputError, match=r"listen: cannot listen on 192\.0\.2\.1:0"):
        run(FrameOptions("fake", "192.0.2.1", 0), build=None)


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [("no-broker", "Kafka does not answer"), ("restoring", "restoring partitions 0")],
)
def test_readyz_says_why_in_one_line(behaviour, reason):
    """Not ready is 503 and one line; alive it is all the same."""
    with worker(behaviour) as running:
        running.wait_for_pages()
        assert running.get("readyz")[:2] == (503, f"{reason}\n")
        assert running.get("healthz")[:2] == (200, "ok\n")


def test_the_leader_shows_itself_and_gives_the_lease_up():
    """The lease is taken by a timer, shown with its token, and released by a stop."""
    with worker("good") as running:
        running.wait_for_pages()
        for _ in range(PATIENCE * 10):
            if "streameval_leader_fencing_token 7.0" in (text := running.get("metrics")[1]):
                break
            time.sleep(0.1)
        assert "streameval_leader 1.0" in text
        running.process.send_signal(signal.SIGTERM)
        code, out, _ = running.end()
    assert (code, out) == (0, "released\n")


def test_healthz_notices_a_loop_that_no_longer_ticks():
    """The site has a thread of its own, so it must ask when the loop last ticked."""

    class Stuck:
        status = status()
        described_at = time.monotonic() - STUCK_AFTER - 1
        stopping = False

    answer = asyncio.run(Pages(Stuck()).healthz(None))
    assert (answer.status, answer.text) == (503, f"no tick for {STUCK_AFTER + 1:.0f} s\n")


def test_nothing_starts_a_thread_before_signals_are_taken():
    """A thread that exists earlier (numpy starts some) would let SIGTERM through."""
    code = (
        "import os, sys, streameval.cli.app, streameval.config.load, streameval.worker.app;"
        "print(len(os.listdir('/proc/self/task')), 'numpy' in sys.modules)"
    )
    package = str(Path(streameval.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": package}
    command = [sys.executable, "-c", code]
    out = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert out == "1 False\n"


def status(**given) -> ServiceStatus:
    definition = Definition()
    return ServiceStatus(
        version="1.0",
        topic="recsys-events",
        group="streameval",
        started_at=0.0,
        definition=definition,
        counters=ProcessCounters(definition),
        **given,
    )


def test_unready_names_the_first_thing_to_repair():
    """The service's own reason while it starts, then Kafka, Redis, and partitions."""
    partitions = [PartitionStatus(partition, restoring=True) for partition in (3, 1)]
    assert status().unready() == "starting"
    assert status(reason="two\nlines").unready() == "two lines"
    assert status(ready=True).unready() == "Kafka does not answer"
    assert status(ready=True, broker_up=True).unready() == "Redis does not answer"
    good = {"ready": True, "broker_up": True, "store_up": True}
    assert status(**good, partitions=partitions).unready() == "restoring partitions 1, 3"
    assert status(**good).unready() is None


class Lease:
    """A lease whose answers are given beforehand: a token, None, or an error."""

    def __init__(self, *answers) -> None:
        self.answers = list(answers)
        self.released = 0

    async def acquire(self):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def release(self):
        self.released += 1


def test_a_leader_believes_in_its_lease_no_longer_than_redis_does():
    """A leader that was paused past its lease is none, before anybody told it."""
    now = [100.0]
    leadership = Leadership(Lease(1, 1), clock=lambda: now[0])
    asyncio.run(leadership.renew(None))
    now[0] += LEASE_SECONDS - 0.1
    assert leadership.token == 1
    now[0] += 0.1
    assert leadership.token is None
    asyncio.run(leadership.renew(None))
    assert leadership.token == 1


def test_a_leader_that_loses_a_server_steps_down():
    """Redis away: nothing to release. Kafka away: released, for another to take."""
    for answers, unfit, released in (
        ((UnreachableError("Redis does not answer"),), None, 0),
        ((), "Kafka does not answer", 1),
        ((None,), None, 0),
    ):
        lease = Lease(1, *answers)
        leadership = Leadership(lease)
        asyncio.run(leadership.renew(None))
        assert leadership.token == 1
        asyncio.run(leadership.renew(unfit))
        assert leadership.token is None
        assert lease.released == released


def test_a_json_log_is_one_object_a_line(capsys):
    """Programs read the log: a traceback does not break its lines."""
    code = (
        "import logging; from streameval.config import logs; logs.configure('info', 'json');"
        "logging.getLogger('streameval').info('a\\nb'); logging.getLogger('mode').info('no')"
    )
    package = str(Path(streameval.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": package}
    command = [sys.executable, "-c", code]
    err = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stderr
    (line,) = err.splitlines()
    said = json.loads(line)
    assert (said["level"], said["logger"], said["message"]) == ("info", "streameval", "a\nb")


def test_what_a_library_repeats_is_said_once_in_a_while():
    """Kafka away is not 50 lines a second; our own lines always pass."""
    seldom = Seldom()

    def passes(name, message, created, error=None, *arguments):
        record = logging.LogRecord(name, logging.ERROR, "", 0, message, arguments, error)
        record.created = created
        return seldom.filter(record)

    assert passes("aiokafka.conn", "node %s is away", 100.0, None, 1)
    assert not passes("aiokafka.conn", "node %s is away", 100.0 + REPEAT_SECONDS - 1, None, 2)
    assert passes("aiokafka.conn", "another", 100.1)
    assert passes("aiokafka.conn", "node %s is away", 100.0 + REPEAT_SECONDS, None, 1)
    assert passes("streameval.worker.app", "stopping", 100.0)
    assert passes("streameval.worker.app", "stopping", 100.0)


def logged(name: str, level: int, message: str, *arguments: object, error=None) -> str | None:
    """What becomes of a library's line: its text with a traceback, None where it is left out."""
    info = (type(error), error, None) if error is not None else None
    record = logging.LogRecord(name, level, "", 0, message, arguments, info)
    return logging.Formatter().format(record) if Seldom().filter(record) else None


def test_a_traceback_of_a_library_is_one_line():
    """With the error at its end; those of asyncio are whole, because they are of our own code."""
    error = NodeNotReadyError("node 1")
    text = logged("aiokafka.fetcher", logging.ERROR, "Unexpected error in %s", "it", error=error)
    assert text == "Unexpected error in it: NodeNotReadyError('node 1')"
    never = "Task exception was never retrieved\nfuture: <Task finished>"
    assert "ZeroDivisionError" in logged("asyncio", logging.ERROR, never, error=ZeroDivisionError())
    assert "\n" in logged("asyncio", logging.ERROR, never, error=ZeroDivisionError())
    assert logged("asyncio", logging.ERROR, never, error=error) is None
    assert logged("asyncio", logging.ERROR, never, error=ConnectionResetError()) is None


def test_a_client_that_sends_no_http_makes_one_line_and_no_traceback():
    """Anybody who reaches the pages can send some. An error of a handler of ours stays whole."""
    message = "Error handling request from %s"
    text = logged("aiohttp.server", logging.ERROR, message, "1.2.3.4", error=BadStatusLine("BLAH"))
    assert text == "a request to the pages is no valid HTTP (BadStatusLine)"
    seldom = Seldom()
    found = [BadStatusLine("BLAH"), BadStatusLine("BLUH"), LineTooLong("x")]
    records = [
        logging.LogRecord("aiohttp.server", logging.ERROR, "", 0, message, (), (None, error, None))
        for error in found
    ]
    assert [seldom.filter(record) for record in records] == [True, False, False]
    assert {record.levelname for record in records} == {"WARNING"}
    ours = logged("aiohttp.server", logging.ERROR, message, "1.2.3.4", error=ZeroDivisionError())
    assert "\nZeroDivisionError" in ours


def test_what_only_a_librarys_author_understands_is_said_in_our_words():
    for name, message in (
        ("faust", "[^---ServerThread]: Thread keepalive is not responding..."),
        ("mode.timers", "Timer %s is overlapping (interval=%r runtime=%r)"),
    ):
        arguments = ("tick", 1.0, 2.0) if "%s" in message else ()
        text = logged(name, logging.ERROR, message, *arguments)
        assert "too busy" in text
        assert "Thread" not in text and "Timer" not in text


def test_the_error_that_every_first_start_of_a_group_brings_is_said_only_if_it_lasts():
    """Kafka has no coordinator before somebody has asked for it; no other error is held back."""
    seldom = Seldom()

    def passes(error, created):
        name, message = (
            "aiokafka.consumer.group_coordinator",
            "Group Coordinator Request failed: %s",
        )
        record = logging.LogRecord(name, logging.ERROR, "", 0, message, (error,), None)
        record.created = created
        return seldom.filter(record)

    assert not passes(GroupCoordinatorNotAvailableError(), 100.0)
    assert not passes(GroupCoordinatorNotAvailableError(), 101.0)
    assert passes(GroupCoordinatorNotAvailableError(), 100.0 + REPEAT_SECONDS)
    seldom = Seldom()
    assert passes(NodeNotReadyError(), 100.0)
