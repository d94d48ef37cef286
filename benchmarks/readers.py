"""Whether many readers of a page starve the probes: answer times of /healthz under load.

    make readers                              100 and 2,000 readers a second, for ten seconds each
    make readers ARGS="--rates 50 --seconds 5"
    PYTHONPATH=../before make readers         the same on another copy of the code

A site in a process of its own serves a page of about 19,000 series, as a worker with a thousand
segments does. Readers ask for it, each on a connection of its own, and read it to the end. A probe
asks for /healthz ten times a second. Each has a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import resource
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import SimpleNamespace

SEGMENTS = 950
PATIENCE = 60.0


def site() -> None:
    """Serve the page until standard input ends; print the port."""
    from aiohttp import web

    from streameval.base.limits import CONNECTION_SECONDS, MAX_CONNECTIONS
    from streameval.core.definition import Definition
    from streameval.web import connections
    from streameval.web.pages import Pages
    from streameval.web.status import ProcessCounters, ServiceStatus

    definition = replace(Definition(), max_segments=SEGMENTS)
    counters = ProcessCounters(definition)
    for number in range(SEGMENTS):
        segment = (f"variant-{number}",) + ("",) * (len(definition.dimensions) - 1)
        counters.impressions.add(segment, number)
        counters.impressions_retracted.add(segment, 1)
        for tenths in range(0, 120, 10):
            counters.add_latency(segment, 100_000 * tenths)
        for kind in definition.kinds:
            counters.positives.add((segment, kind), 1)
            counters.positives_retracted.add((segment, kind), 1)
    status = ServiceStatus("0", "topic", "group", time.time(), definition, counters)
    described = SimpleNamespace(status=status, described_at=time.monotonic(), stopping=False)

    def tick() -> None:
        while True:
            time.sleep(1.0)
            described.described_at = time.monotonic()

    async def serve() -> None:
        app = web.Application()
        bounds = [CONNECTION_SECONDS, MAX_CONNECTIONS]
        with contextlib.suppress(AttributeError, ImportError):  # older copies have no bound
            from streameval.base.limits import MAX_READERS

            bounds.append(readers := connections.Readers(MAX_READERS))
            app.middlewares.append(readers.count)
        Pages(described).add_to(app)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        factory = connections.Connections(runner.server, *bounds)
        listening = socket.create_server(("127.0.0.1", 0))
        if hasattr(factory, "listen"):
            await factory.listen(listening)
        else:
            await asyncio.get_running_loop().create_server(factory, sock=listening)
        print(listening.getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)

    threading.Thread(target=tick, daemon=True).start()
    asyncio.run(serve())


async def get(port: int, path: str) -> tuple[str, float, bytes]:
    """Return the status ("none" without an answer), the seconds it took, and the response."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            found = await reader.read(-1)
            writer.close()
            status = found[9:12].decode() or "none"
    except (OSError, TimeoutError) as error:
        found, status = b"", type(error).__name__
    return status, time.monotonic() - began, found


async def read(port: int, rate: int, seconds: float) -> None:
    """Send `rate` readers a second; print how many got which status."""
    reading = []
    began = time.monotonic()
    while (now := time.monotonic()) < began + seconds:
        due = int((now - began) * rate) - len(reading)
        reading += [asyncio.create_task(get(port, "/metrics")) for _ in range(due)]
        await asyncio.sleep(0.005)
    print(dict(Counter(status for status, *_ in await asyncio.gather(*reading))))


async def probe(port: int, seconds: float) -> list[float]:
    """Return the answer times of probes, ten a second; one without an answer took `PATIENCE`."""
    probing = []
    for _ in range(int(10 * seconds)):
        probing.append(asyncio.create_task(get(port, "/healthz")))
        await asyncio.sleep(0.1)
    return [
        took if status == "200" else PATIENCE for status, took, _ in await asyncio.gather(*probing)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rates", type=int, nargs="+", default=[100, 2_000])
    parser.add_argument("--seconds", type=float, default=10.0)
    chosen = parser.parse_args()
    for rate in chosen.rates:
        command = [sys.executable, __file__, "site"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
            port = int(server.stdout.readline())
            page = asyncio.run(get(port, "/metrics"))[2]
            series = sum(not line.startswith(b"#") for line in page.splitlines())
            command = [sys.executable, __file__, "read", *map(str, (port, rate, chosen.seconds))]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
                taken = asyncio.run(probe(port, chosen.seconds))
                statuses = load.communicate()[0].strip()
            state = Path(f"/proc/{server.pid}/status").read_text()
            server.stdin.close()
            server.wait()
        peak = int(re.search(r"VmHWM:\s+(\d+)", state)[1]) // 1024
        print(
            f"{rate} readers a second of {series:,} series: /healthz median"
            f" {median(taken) * 1000:.0f} ms, worst {max(taken):.2f} s of {len(taken)};"
            f" readers {statuses}; peak {peak} MB"
        )


if __name__ == "__main__":
    if sys.argv[1:] == ["site"]:
        site()
    elif sys.argv[1:2] == ["read"]:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        asyncio.run(read(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
    else:
        main()
