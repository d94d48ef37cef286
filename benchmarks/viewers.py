"""What people at the live page cost a worker: its CPU time with viewers and without, in turns.

    make viewers                              ten viewers of a demo of its own
    VIEWERS=50 make viewers                   more of them: what one costs stands out of the noise
    make viewers ARGS="http://host:8080/ PID"   of a worker that runs
    make viewers ARGS=--full                  of a worker that reads as fast as it can: its rate

A worker works through one log on one core, so CPU time that pages take is taken from its rate. A
viewer asks for what the page asks for, as often as the page does, and holds a stream of changes.
With `--full` a worker reads a whole log on real Kafka and Redis, and the viewers have a process and
a core of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from html import unescape
from pathlib import Path
from statistics import mean, median
from urllib.parse import quote

import aiohttp

from streameval.store.shared_store import ASKED_TTL_MS

VIEWERS = int(os.environ.get("VIEWERS", "10"))
TURNS = 3
TURN_SECONDS = 12.0
WARM_UP_SECONDS = 25.0
# So long after the last viewer, workers share their sums for nobody any more.
FORGOTTEN_SECONDS = ASKED_TTL_MS / 1_000 + 2


def cpu_seconds(pid):
    """CPU time that a process has used, with its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Viewer:
    """Asks as `static/page.js` does: what is due, with the entity tag of the last answer.

    When experiments have changed, it asks for the bounds of each over time.
    """

    def __init__(self, session, address, settings):
        self._session, self._address = session, address
        choice = f"window={settings['longest']}&basis=matured"
        first = settings["figures"][0]
        chart = f"section={first['section']}&figure={first['figure']}&kind={first['key']}&hours=6"
        self._every = {
            f"figures?{choice}": settings["refresh_seconds"],
            "health": settings["refresh_seconds"],
            "experiments": 15,
            "checks": 60,
            f"history?{choice}&{chart}": 30,
        }
        self._stream = f"stream?window={settings['longest']}"
        self._tags, self.answers = {}, Counter()

    async def watch(self):
        """Poll and listen until cancelled."""
        await asyncio.gather(self._listen(), *map(self._poll, self._every.items()))

    async def _listen(self):
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with self._session.get(f"{self._address}api/v1/{self._stream}") as answer:
                    async for _ in answer.content:
                        self.answers["events"] += 1
            await asyncio.sleep(1)

    async def _poll(self, asked):
        path, seconds = asked
        while True:
            found = await self._ask(path)
            if found and path == "experiments":
                await asyncio.gather(*map(self._ask, bounds_of(found["experiments"])))
            await asyncio.sleep(seconds)

    async def _ask(self, path):
        """The document of a path; None where it is the one before, or an error."""
        known = {"If-None-Match": self._tags[path]} if path in self._tags else {}
        async with self._session.get(f"{self._address}api/v1/{path}", headers=known) as answer:
            body = await answer.read()
            self.answers[answer.status] += 1
            self._tags[path] = answer.headers.get("ETag", "")
            return json.loads(body) if answer.status == 200 else None


def bounds_of(cards):
    """The paths that have the bounds of experiments over time, of the primary metric of each."""
    for card in cards:
        for row in card["experiments"]:
            if row["role"] == "primary":
                yield f"experiments/{quote(card['name'], safe='')}?metric={quote(row['metric'])}"
                break


async def turn(pid, address, settings, viewers):
    """The share of a core that the process used while so many viewers watched."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        watching = [Viewer(session, address, settings) for _ in range(viewers)]
        tasks = [asyncio.create_task(viewer.watch()) for viewer in watching]
        await asyncio.sleep(1)  # the first look of each is no steady cost
        began, used = time.monotonic(), cpu_seconds(pid)
        await asyncio.sleep(TURN_SECONDS)
        share = (cpu_seconds(pid) - used) / (time.monotonic() - began)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return share, sum((viewer.answers for viewer in watching), Counter())


async def settings_of(address):
    """What the page tells its script."""
    async with aiohttp.ClientSession() as session, session.get(address) as answer:
        found = re.search(r"data-settings='([^']*)'", await answer.text())
    return json.loads(unescape(found[1]))


async def measure(address, pid):
    settings = await settings_of(address)
    shares = {0: [], VIEWERS: []}
    for _ in range(TURNS):
        for viewers, measured in shares.items():
            await asyncio.sleep(0 if viewers else FORGOTTEN_SECONDS)
            share, answers = await turn(pid, address, settings, viewers)
            measured.append(share)
            print(f"{viewers:>3} viewers: {share:.1%} of a core {dict(answers) or ''}")
    cost = mean(shares[VIEWERS]) - mean(shares[0])
    print(f"{VIEWERS} viewers cost {cost:.2%} of a core, {cost / VIEWERS:.3%} each")


async def watch(address):
    """Watch until the process is ended."""
    settings = await settings_of(address)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        viewers = [Viewer(session, address, settings) for _ in range(VIEWERS)]
        await asyncio.gather(*(viewer.watch() for viewer in viewers))


@contextlib.contextmanager
def watching(worker):
    """Ten viewers of a worker, in a process of their own."""
    worker.wait_until_up()
    command = [sys.executable, __file__, "--watch", f"http://127.0.0.1:{worker.port}/"]
    with subprocess.Popen(command) as viewers:
        try:
            yield
            if viewers.poll() is not None:
                raise RuntimeError("the viewers ended")
        finally:
            viewers.terminate()


def full_rate(impressions):
    """The rate of a worker that reads a log, with viewers and without, in turns."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    import servers
    from log import fill
    from machine import cores
    from measure import Stack, throughput
    from workload import Shape, records

    os.sched_setaffinity(0, {cores()[1]})
    with servers.kafka() as kafka, servers.redis() as redis:
        stack = Stack(kafka, redis)
        log = fill(kafka.port, "watched", records(Shape(impressions, per_second=1_000)))
        ratios, costs = [], []
        for _ in range(TURNS):
            alone = throughput(stack, log, "30s")
            watched = throughput(stack, log, "30s", beside=watching)
            ratios.append(watched.rate / alone.rate)
            costs.append(watched.cpu_cost / alone.cpu_cost)
            print(
                f"{alone.rate:,.0f} events/s alone, {watched.rate:,.0f} with {VIEWERS} viewers;"
                f" CPU an event {alone.cpu_cost * 1e6:.2f} and {watched.cpu_cost * 1e6:.2f} us",
                flush=True,
            )
    print(
        f"with {VIEWERS} viewers: {median(ratios):.3f} of the rate, {median(costs):.3f} of the CPU"
    )


def worker_at(address):
    """The process that listens at an address of this machine."""
    port = f"{int(re.search(r':([0-9]+)/', address)[1]):04X}"
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inode = next(row[9] for row in rows if row[1].endswith(f":{port}") and row[3] == "0A")
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if link.readlink().name == f"socket:[{inode}]":
                return int(link.parts[2])
    raise SystemExit(f"no process of ours listens at {address}")


def main():
    if sys.argv[1:2] == ["--full"]:
        full_rate(int(sys.argv[2]) if len(sys.argv) > 2 else 3_000_000)
        return
    if sys.argv[1:2] == ["--watch"]:
        asyncio.run(watch(sys.argv[2]))
        return
    if len(sys.argv) == 3:
        asyncio.run(measure(sys.argv[1], int(sys.argv[2])))
        return
    seconds = round(WARM_UP_SECONDS + TURNS * (2 * TURN_SECONDS + FORGOTTEN_SECONDS + 4) + 30)
    command = [sys.executable, "-m", "streameval", "demo", "--seconds", str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as demo:
        try:
            address = next(
                found[0] for line in demo.stdout if (found := re.search(r"http://[\d.:]+/", line))
            )
            time.sleep(WARM_UP_SECONDS)
            asyncio.run(measure(address, worker_at(address)))
        finally:
            demo.terminate()


if __name__ == "__main__":
    main()
