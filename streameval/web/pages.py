"""The pages of a worker, as routes of aiohttp: `/`, its files, `/metrics`, probes, and the API.

They only read the last description of the service and run in the site's own thread. `/healthz`
says whether the process should live (its loop still ticks), `/readyz` whether it works (servers
answer, state is restored, it is not stopping). Both respond in one line.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Final, Protocol

from aiohttp import web

from streameval.web import exposition, overview, runbook
from streameval.web.api import Api
from streameval.web.connections import Hosts
from streameval.web.openapi import PREFIX
from streameval.web.static_files import STATIC
from streameval.web.status import ServiceStatus

# A description that is this old (seconds) means a stuck loop: it is made each second.
STUCK_AFTER: Final = 30.0

PAGES: Final = ("/", "/metrics", "/healthz", "/readyz", "/runbook")
API_PATHS: Final = ("figures", "history", "experiments", "checks", "health", "users", "stream")

HEADERS: Final = {
    "Cache-Control": "no-store",
    "Connection": "close",
    "Content-Security-Policy": overview.POLICY,
    "Referrer-Policy": "no-referrer",
    "Server": "streameval",
    "X-Content-Type-Options": "nosniff",
}


class Described(Protocol):
    """The description that the pages read; each attribute is replaced whole."""

    status: ServiceStatus
    described_at: float  # time.monotonic()

    @property
    def stopping(self) -> bool:
        """Whether the worker has begun to stop."""


class Pages:
    """The handlers of the pages; `hosts` are names of this worker besides its own."""

    def __init__(
        self, described: Described, api: Api | None = None, hosts: Iterable[str] = ()
    ) -> None:
        self._described, self._api, self._hosts = described, api, Hosts(hosts)
        self._registry = exposition.registry(lambda: described.status)
        self._overview = 0.0, ""  # described_at, and the page written for it
        self._metrics: dict[str, tuple[float, bytes]] = {}  # the same, by content type
        self._rendering = asyncio.Lock()

    def add_to(self, app: web.Application) -> None:
        """Add the routes, and the headers of every response."""
        app.router.add_get("/", self.overview)
        app.router.add_get("/static/{name}", self.static)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/healthz", self.healthz)
        app.router.add_get("/readyz", self.readyz)
        app.router.add_get("/runbook", self.runbook)
        if self._api is not None:
            self._api.add_to(app)
        app.router.add_get("/{path:.*}", self.unknown)
        app.middlewares.append(self._hosts.refuse_others)
        app.on_response_prepare.append(_harden)

    async def overview(self, _request: web.Request) -> web.Response:
        """Show how the recommender does to a person; written once for all viewers."""
        described_at = self._described.described_at
        if self._overview[0] != described_at:
            self._overview = described_at, overview.render(self._described.status, time.time())
        return web.Response(text=self._overview[1], content_type="text/html")

    async def static(self, request: web.Request) -> web.Response:
        """Answer a file of the live page, or 304 where the browser has it."""
        found = STATIC.get(request.match_info["name"])
        if found is None:
            raise web.HTTPNotFound
        headers = {"Cache-Control": "no-cache", "ETag": f'"{found.etag}"'}
        if any(each.value == found.etag for each in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        return web.Response(
            body=found.body, content_type=found.content_type, charset="utf-8", headers=headers
        )

    async def runbook(self, _request: web.Request) -> web.Response:
        """Show what to do about an alert."""
        text = await asyncio.to_thread(runbook.page)
        return web.Response(text=text, content_type="text/html")

    async def unknown(self, request: web.Request) -> web.Response:
        """Refuse a path that does not exist, with the one that may be meant."""
        name = request.match_info["path"].strip("/").partition("/")[0]
        meant = f", is {PREFIX}/{name} meant?" if name in API_PATHS else "."
        said = f"no such page{meant} There are {', '.join(PAGES)} and {PREFIX}/openapi.json\n"
        return web.Response(text=said, status=404)

    async def metrics(self, request: web.Request) -> web.Response:
        """Answer a scrape in the format its Accept header asks for; written once for all."""
        accept = ",".join(request.headers.getall("Accept", []))
        write, content_type = exposition.writer(accept)
        async with self._rendering:
            described_at, body = self._metrics.get(content_type, (0.0, b""))
            if described_at != self._described.described_at:
                described_at = self._described.described_at
                # With very many series it takes a fifth of a second: probes go on meanwhile.
                body = await asyncio.to_thread(write, self._registry)
                self._metrics[content_type] = described_at, body
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def healthz(self, _request: web.Request) -> web.Response:
        """Answer 200 while the event loop ticks: a supervisor restarts a stuck worker."""
        age = time.monotonic() - self._described.described_at
        stuck = age > STUCK_AFTER
        return _line(f"no tick for {age:.0f} s" if stuck else None)

    async def readyz(self, _request: web.Request) -> web.Response:
        """Answer 200 while the worker does its work, else 503 and why."""
        stopping = "stopping" if self._described.stopping else None
        status = self._described.status
        return _line(stopping or status.unready(), status.waiting())


def _line(problem: str | None, remark: str = "") -> web.Response:
    fine = f"ok, but {remark}" if remark else "ok"
    return web.Response(text=f"{problem or fine}\n", status=503 if problem else 200)


async def _harden(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(
        HEADERS | {"Cache-Control": response.headers.get("Cache-Control", "no-store")}
    )
    response.force_close()  # one that waits for the next request would be held
