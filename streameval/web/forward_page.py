"""The pages of `streameval forward`: /metrics and probes, for itself alone."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from streameval.web.connections import Hosts
from streameval.web.exposition import page
from streameval.web.figure_families import counter, gauge, single

_COUNTS: Final = {
    "records": "Records read and done with",
    "events": "Events written to the topic",
    "ignored": "Messages that no rule of the profile takes",
    "rejected": "Records rejected, which the dead-letter topic has",
    "dead_letters_refused": "Dead letters that Kafka refused for good",
    "lost": "Records that Kafka deleted before they were read",
}
_LEVELS: Final = {
    "waiting": "Records in memory, which wait for other topics to come nearer",
    "lag": "Records of this process' partitions that are not done with, waiting ones too",
}


class ForwardStatus(NamedTuple):
    """What a process does: `trouble`, "" for none, and by topic the numbers of the families."""

    trouble: str
    topics: Mapping[str, Mapping[str, int]]


class Families(Collector):
    """The families of a process, as its status is when they are asked for."""

    def __init__(self, status: Callable[[], ForwardStatus]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        status = self._status()
        yield single("forward_ready", "1 while all topics are read", not status.trouble)
        for families, make in ((_COUNTS, counter), (_LEVELS, gauge)):
            for name, text in families.items():
                samples = [([topic], each.get(name, 0)) for topic, each in status.topics.items()]
                yield make(f"forward_{name}", text, ["topic"], samples)


@contextlib.asynccontextmanager
async def serving(
    status: Callable[[], ForwardStatus], listening: socket.socket, hosts: Hosts
) -> AsyncIterator[None]:
    """Serve /healthz, /readyz and /metrics during the block."""
    registry = CollectorRegistry()
    registry.register(Families(status))

    async def metrics(request: web.Request) -> web.Response:
        accept = ",".join(request.headers.getall("Accept", []))
        body, content_type = page(registry, accept)
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        trouble = status().trouble
        return web.Response(text=f"{trouble or 'ok'}\n", status=503 if trouble else 200)

    app = web.Application(middlewares=[hosts.refuse_others])
    routes: dict[str, Any] = {"/metrics": metrics, "/healthz": healthz, "/readyz": readyz}
    for path, handler in routes.items():
        app.router.add_get(path, handler)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        yield
    finally:
        await runner.cleanup()
