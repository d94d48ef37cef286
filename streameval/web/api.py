"""The API of a worker: what the page, notebooks and agents read, of the whole topic (docs/api.md).

All of it is read-only and comes from Redis, so every worker of the group gives the same answers. It
runs in the site's thread with connections of its own.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

from aiohttp import web

from streameval.base.errors import InputError, StreamevalError
from streameval.core.definition import Definition
from streameval.experiments.words import document_of
from streameval.web.health import health
from streameval.web.status import ServiceStatus
from streameval.web.whole_topic import Document, SharedState, WholeTopic, document

PREFIX: Final = "/api/v1"
BASES: Final = ("live", "matured", "nowcast")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Described(Protocol):
    """The worker's last description of itself."""

    status: ServiceStatus


class NotFoundError(StreamevalError):
    """What a request names does not exist."""


class Api:
    """The handlers of the API."""

    def __init__(self, described: Described, definition: Definition, store: SharedState) -> None:
        self._described, self._definition, self._store = described, definition, store
        self._topic = WholeTopic(store, definition, lambda: described.status.topic_partitions)

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        routes = {
            "/figures": self.figures,
            "/experiments": self.experiments,
            "/experiments/{name}": self.experiment,
            "/checks": self.checks,
            "/health": self.health,
        }
        for path, handler in routes.items():
            app.router.add_get(f"{PREFIX}{path}", _answered(handler))
        app.router.add_get(f"{PREFIX}/{{rest:.*}}", _answered(self.unknown))

    async def figures(self, request: web.Request) -> Document:
        """Return the figures of all partitions."""
        _known(request, ("window", "basis"))
        names = [window.name for window in self._definition.windows]
        window, basis = _choice(request, "window", names), _choice(request, "basis", BASES)
        return await self._topic.figures(window, basis)

    async def experiments(self, request: web.Request) -> Document:
        """Return the scorecards of all experiments."""
        _known(request, ())
        return document({"experiments": self._cards()})

    async def experiment(self, request: web.Request) -> Document:
        """Return the scorecard of one experiment."""
        _known(request, ())
        name = request.match_info["name"]
        cards = self._cards()
        for card in cards:
            if card["name"] == name:
                return document(card)
        listed = ", ".join(card["name"] for card in cards) or "none is configured"
        raise NotFoundError(f"no experiment has this name: {listed}")

    async def checks(self, request: web.Request) -> Document:
        """Return how the checks of the newest checked snapshot ended."""
        _known(request, ())
        found = await self._store.reported("checks")
        none: dict[str, Any] = {
            "checks": [],
            "interval_seconds": None,
            "running_seconds": None,
            "daily": None,
        }
        return document(none if found is None else json.loads(found))

    async def health(self, request: web.Request) -> Document:
        """Return how the workers, and the partitions that they have, are doing."""
        _known(request, ())
        said = await self._store.workers()
        return document(health(self._described.status, said, round(time.time() * 1000)))

    async def unknown(self, _request: web.Request) -> Document:
        """Refuse a path that does not exist."""
        raise NotFoundError(f"no such path: {PREFIX}/openapi.json lists all of them")

    def _cards(self) -> list[dict[str, Any]]:
        """Return the scorecards, which every worker makes of all partitions."""
        return [document_of(card) for card in self._described.status.scorecards]


def _known(request: web.Request, names: Sequence[str]) -> None:
    """Refuse parameters that do not exist, because they were meant to change something."""
    for name in request.query:
        if name not in names:
            listed = f"has {', '.join(names)}" if names else "has no parameters"
            raise InputError(f"unknown parameter: {request.path} {listed}")


def _choice(request: web.Request, name: str, values: Sequence[str]) -> str | None:
    given = request.query.get(name)
    if given is not None and given not in values:
        raise InputError(f"{name}: write one of {', '.join(values)}")
    return given


def _answered(handler: Callable[[web.Request], Awaitable[Document]]) -> Handler:
    """Make a response of a document, with 304 for one that the client has, or of an error."""

    @functools.wraps(handler)
    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            found = await handler(request)
        except InputError as error:
            return failure(400, str(error))
        except NotFoundError as error:
            return failure(404, str(error))
        except StreamevalError as error:
            return failure(503, str(error))
        known = request.headers.get("If-None-Match", "")
        headers = {"ETag": found.etag, "Cache-Control": "no-cache"}
        if found.etag in [tag.strip().removeprefix("W/") for tag in known.split(",")]:
            return web.Response(status=304, headers=headers)
        return web.Response(body=found.body, content_type="application/json", headers=headers)

    return answer


def failure(status: int, message: str) -> web.Response:
    """Make the response of an error: one line that says what to do."""
    text = json.dumps({"error": " ".join(message.split())}, ensure_ascii=False)
    return web.Response(text=f"{text}\n", status=status, content_type="application/json")
