"""The measurements: each starts its processes, and answers numbers."""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Final

import servers
import service
from installed import program
from log import Filled, extend, fill
from machine import cores, cpu_seconds, memory_bytes, on_core
from workload import SLATE, Shape, records

GROUP: Final = "bench"
# The last batch of each partition waits for its second, so the clock stops before.
COUNTED_SHARE: Final = 0.9
POLL_SECONDS: Final = 0.02
PATIENCE_SECONDS: Final = 300
SCRAPES: Final = 20


@dataclass(frozen=True)
class Run:
    """One run: `records` in `seconds`, CPU seconds of the process, its peak memory (bytes)."""

    records: int
    seconds: float
    cpu_seconds: float
    peak_bytes: int
    checkpoints: int = 0

    @property
    def rate(self) -> float:
        """Records a second."""
        return self.records / self.seconds

    @property
    def cpu_cost(self) -> float:
        """CPU seconds a record."""
        return self.cpu_seconds / self.records


@dataclass(frozen=True)
class Stack:
    """The servers of a benchmark."""

    kafka: servers.Server
    redis: servers.Server


def peer(stack: Stack, name: str, topic: str, count: int, *options: str) -> Run:
    """One run of the peer NAME over the first `count` records of `topic`."""
    flush(stack)
    given = ["--kafka", stack.kafka.address, "--redis", stack.redis.url, "--topic", topic]
    given += ["--group", servers.unique(name), "--records", str(count), *options]
    # A folder that is gone after the run: several keep state on a disk.
    with tempfile.TemporaryDirectory() as folder, on_core(cores()[0]):
        done = subprocess.run(
            [*program(name, folder), *given],
            cwd=folder,
            check=False,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError(f"{name} measured nothing:\n{done.stderr[-2000:]}")
    return Run(**json.loads(lines[-1]))


@contextmanager
def worker(
    stack: Stack, topic: str, program: Sequence[str] = ("-m", "streameval"), **settings: object
) -> Iterator[service.Worker]:
    """A real `streameval worker` on a core of its own and an empty Redis."""
    flush(stack)
    started = service.Worker(stack.kafka.port, stack.redis.url, topic, group=GROUP, **settings)
    with on_core(cores()[0]):
        started.start(program=program)
    try:
        yield started
        if not started.running:
            raise RuntimeError(f"the worker ended:\n{started.logged()[-2000:]}")
    finally:
        if started.running:
            started.kill()


def flush(stack: Stack) -> None:
    """Empty Redis: each run begins alike."""
    with service.redis_client.Redis.from_url(stack.redis.url) as client:
        client.flushall()


def committed(stack: Stack, topic: str) -> list[int]:
    """The stored offset of each partition that has committed."""
    offsets = service.stored_offsets(stack.redis.url, topic, 4, GROUP)
    return [int(offset) for offset in offsets.values() if offset is not None]


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Poll until `condition()`; the clock is the caller's."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"waited {PATIENCE_SECONDS} s for {what}")
        time.sleep(POLL_SECONDS)


def throughput(
    stack: Stack,
    log: Filled,
    checkpoint_interval: str,
    *,
    beside: Callable[[service.Worker], AbstractContextManager[object]] = nullcontext,
    **settings: object,
) -> Run:
    """A worker with these settings over the whole of `log`, by the offsets that it commits.

    Within `beside(worker)` others use it meanwhile. The clock runs from when each partition has
    committed once to when nine tenths are committed. The worker then reads the rest, and must have
    accepted every record.
    """
    with worker(stack, log.topic, checkpoint_interval=checkpoint_interval, **settings) as running:
        pid = running.process.pid
        wait_for(lambda: len(committed(stack, log.topic)) == 4, "the first commits")
        with beside(running):
            first, began, cpu = sum(committed(stack, log.topic)), time.monotonic(), cpu_seconds(pid)
            last = first
            while last < COUNTED_SHARE * log.records:
                time.sleep(POLL_SECONDS)
                last = sum(committed(stack, log.topic))
                if time.monotonic() > began + PATIENCE_SECONDS or not running.running:
                    raise RuntimeError(f"the worker does not go on:\n{running.logged()[-2000:]}")
            seconds, cpu = time.monotonic() - began, cpu_seconds(pid) - cpu
        wait_for(lambda: sum(committed(stack, log.topic)) == log.records, "the last commit")
        page = counted(running, log.records)
        checkpoints = int(page["streameval_checkpoints_total", frozenset()])
        return Run(last - first, seconds, cpu, memory_bytes(pid), checkpoints)


def counted(running: service.Worker, expected: int) -> dict[tuple[str, frozenset[object]], float]:
    """The worker's page once it shows all events accepted; what was lost would be a lie above."""

    def accepted() -> int:
        return int(sum(v for (name, _), v in running.metrics().items() if name == EVENTS))

    wait_for(lambda: accepted() >= expected, f"{expected} accepted events on /metrics")
    if accepted() != expected:
        raise RuntimeError(f"{accepted()} events accepted, {expected} written")
    return running.metrics()


EVENTS: Final = "streameval_events_total"


def memory(stack: Stack, sent: str, impressions: int) -> float:
    """Bytes of resident memory for each open impression, everything that grows with it included.

    The worker first reads a third as much, so that buffers and code are there before. All event
    time lies within the attribution window, so all slates stay open.
    """
    topic = servers.unique(f"memory-{sent}")
    warm = Shape(impressions // 3 // SLATE * SLATE, sent, per_second=impressions // 1_000, seed=2)
    more = Shape(impressions, sent, per_second=warm.per_second, seed=2)
    with worker(stack, topic, checkpoint_interval="1s") as running:
        # (The topic is there before the worker asks for it again.)
        total = _settled(stack, running, fill(stack.kafka.port, topic, records(warm)), 0)
        before = memory_bytes(running.process.pid, "VmRSS")
        grown = extend(
            stack.kafka.port, topic, records(more, first_slate=warm.impressions // SLATE)
        )
        _settled(stack, running, grown, total)
        after = memory_bytes(running.process.pid, "VmRSS")
    return (after - before) / more.impressions


def _settled(stack: Stack, running: service.Worker, added: Filled, before: int) -> int:
    """Wait until all is committed and the figures are computed; the records so far."""
    total = before + added.records
    wait_for(lambda: sum(committed(stack, added.topic)) == total, "the last commit")
    counted(running, total)
    return total


@dataclass(frozen=True)
class Scrapes:
    """Seconds of each scrape, users in the longest window at the first of them, bytes a page."""

    seconds: list[float]
    users: int
    page_bytes: int

    @property
    def median(self) -> float:
        """Median seconds of a scrape."""
        return statistics.median(self.seconds)


def scrapes(stack: Stack, log: Filled, users: int) -> tuple[Scrapes, Scrapes]:
    """How long `/metrics` takes with `users` in the windows: while loading, and after."""
    with worker(stack, log.topic) as running:
        wait_for(lambda: _window_users(running) >= users, f"{users} users in the windows")
        loading = _scrape(running)
        if sum(committed(stack, log.topic)) == log.records:
            raise RuntimeError("the log ended before the scrapes did: write more events")
        wait_for(lambda: sum(committed(stack, log.topic)) == log.records, "the last commit")
        counted(running, log.records)
        return loading, _scrape(running)


def _window_users(running: service.Worker) -> int:
    by_window: dict[object, float] = {}
    try:
        page = running.metrics()
    except OSError:  # it is starting
        return 0
    for (name, labels), value in page.items():
        if name == "streameval_window_users" and ("basis", "live") in labels:
            window = dict(labels)["window"]
            by_window[window] = by_window.get(window, 0) + value
    return int(max(by_window.values(), default=0))


def _scrape(running: service.Worker) -> Scrapes:
    users = _window_users(running)
    seconds = []
    size = 0
    for _ in range(SCRAPES):
        began = time.monotonic()
        with urllib.request.urlopen(f"http://127.0.0.1:{running.port}/metrics") as page:
            size = len(page.read())
        seconds.append(time.monotonic() - began)
        time.sleep(0.05)
    return Scrapes(seconds, users, size)
