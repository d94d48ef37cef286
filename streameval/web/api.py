"""The API of a worker for the page, notebooks and agents, of the whole topic (docs/api.md).

All of it is read-only and comes from Redis, so every worker of the group gives the same answers. It
runs in the site's thread with connections of its own. `openapi` describes it.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import json
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from aiohttp import web

from streameval.base.errors import InputError, RefusedError, StreamevalError
from streameval.base.limits import CONNECTION_SECONDS, MAX_LISTENERS
from streameval.core.definition import Definition
from streameval.core.figures import SECTIONS
from streameval.experiments.words import document_of
from streameval.web import experiment_history, history, intervals
from streameval.web.health import health
from streameval.web.openapi import CHARTED, MAX_HOURS, MAX_ROWS, PREFIX, filters, openapi
from streameval.web.status import ServiceStatus
from streameval.web.whole_topic import Document, SharedState, WholeTopic, document

# A stream of changes ends before its connection does; browsers connect again by themselves.
STREAM_SECONDS: Final = CONNECTION_SECONDS - 5
LOOK_SECONDS: Final = 2.0
# Charts that are kept until the next minute, for the people at a page.
KEPT_CHARTS: Final = 64
# The share of time that charts take. Several may come at once: a minute's worth of people.
CHART_SHARE: Final = 0.004
CHART_DEBT_SECONDS: Final = 300.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Described(Protocol):
    """The worker's last description of itself."""

    status: ServiceStatus


class StatusError(StreamevalError):
    """An error with a status of HTTP of its own."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """The handlers of the API. Without a `user_token` nobody may ask for a user."""

    def __init__(
        self,
        described: Described,
        definition: Definition,
        store: SharedState,
        user_token: str | None = None,
    ) -> None:
        self._described, self._definition, self._store = described, definition, store
        self._user_token = user_token
        self._listeners = 0
        self._charts: dict[tuple[Any, ...], Document] = {}
        self._charting = asyncio.Lock()
        self._charts_paid_at = 0.0
        self._openapi = document(openapi(definition))
        self._topic = WholeTopic(store, definition, lambda: described.status.topic_partitions)

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        routes = {
            "/figures": self.figures,
            "/history": self.history,
            "/experiments": self.experiments,
            "/experiments/{name}": self.experiment,
            "/checks": self.checks,
            "/health": self.health,
            "/users/{id:.+}": self.user,
            "/openapi.json": self.openapi,
        }
        for path, handler in routes.items():
            app.router.add_get(f"{PREFIX}{path}", _respond(handler))
        app.router.add_get(f"{PREFIX}/stream", self.stream)
        app.router.add_get(f"{PREFIX}/{{rest:.*}}", _respond(self.unknown))

    async def figures(self, request: web.Request) -> Document:
        """Return the figures of all partitions, or some rows of one section."""
        _refuse_unknown(request, ("window", "basis", "section", "limit", "after"))
        window, basis = self._window(request), _choice(request, "basis", history.BASES)
        section = _choice(request, "section", SECTIONS)
        if section is None and request.query.keys() & {"limit", "after"}:
            raise InputError(f"limit, after: they need a section, one of {', '.join(SECTIONS)}")
        after = _number(request, "after", 0, MAX_ROWS, 0)
        limit = _number(request, "limit", 1, MAX_ROWS, MAX_ROWS)
        found = await self._topic.figures(window, basis)
        return found if section is None else _rows(found, section, after, limit)

    async def history(self, request: web.Request) -> Document:
        """Return one figure over the last hours, with a series for each row that is asked for."""
        rows = filters(self._definition)
        _refuse_unknown(request, (*CHARTED, *rows))
        section = _choice(request, "section", intervals.SECTIONS) or "rates"
        figure = request.query.get("figure", "positives_per_impression")
        window = self._window(request) or self._definition.windows[0].name
        basis = _choice(request, "basis", history.BASES) or "live"
        hours = _number(request, "hours", 1, MAX_HOURS, 6)
        wanted = {row: request.query[name] for name, row in rows.items() if name in request.query}

        async def drawn(minute: int) -> Document:
            name = history.name_of(window, basis)
            points = await self._store.history(name, minute - 60 * hours, minute)
            make = functools.partial(_chart, points, section, figure, wanted)
            return await asyncio.to_thread(self._charged, make)

        chosen = (section, figure, window, basis, hours, *sorted(wanted.items()))
        return await self._of_this_minute(chosen, drawn)

    async def experiments(self, request: web.Request) -> Document:
        """Return the scorecards of all experiments."""
        _refuse_unknown(request, ())
        # Every worker makes them of all partitions.
        cards = self._described.status.scorecards
        return document({"experiments": [document_of(card) for card in cards]})

    async def experiment(self, request: web.Request) -> Document:
        """Return the scorecard of one experiment, and bounds over time of one metric or all."""
        _refuse_unknown(request, ("metric",))
        name = request.match_info["name"]
        cards = {card.name: card for card in self._described.status.scorecards}
        if name not in cards:
            listed = ", ".join(cards) or "none is configured"
            raise StatusError(404, f"no experiment has this name: {listed}")
        (found,) = (each for each in self._definition.experiments if each.name == name)
        metric = _choice(request, "metric", found.named_metrics)
        drawn = functools.partial(self._bounds, found.key, metric)
        bounds = await self._of_this_minute(("experiment", name, metric), drawn)
        return document({**document_of(cards[name]), **bounds.value})

    async def checks(self, request: web.Request) -> Document:
        """Return how the checks of the newest checked snapshot ended."""
        _refuse_unknown(request, ())
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
        _refuse_unknown(request, ())
        said = await self._store.workers()
        return document(health(self._described.status, said, round(time.time() * 1000)))

    async def user(self, request: web.Request) -> Document:
        """Return the lifetime counters of one user to holders of the token."""
        _refuse_unknown(request, ())
        if self._user_token is None:
            raise StatusError(403, "users are not shown: set user_token in the configuration")
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        same = hmac.compare_digest(
            given.strip().encode(errors="surrogateescape"), self._user_token.encode()
        )
        if scheme.lower() != "bearer" or not same:
            raise StatusError(401, "send the header Authorization: Bearer TOKEN, see user_token")
        user_id = request.match_info["id"]
        partitions = self._described.status.topic_partitions
        if not partitions:
            raise StatusError(503, "the worker is starting: ask again")
        found = await self._store.user(user_id, partitions)
        if found is None:
            raise StatusError(404, "nothing is stored of this user: check the id")
        names = {each.key: each.name for each in self._definition.experiments}
        return document(found.document(user_id, names))

    async def openapi(self, request: web.Request) -> Document:
        """Return the description of this API."""
        _refuse_unknown(request, ())
        return self._openapi

    async def unknown(self, _request: web.Request) -> Document:
        """Refuse a path that does not exist."""
        raise StatusError(404, f"no such path: {PREFIX}/openapi.json lists all of them")

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Send an event whenever there are new figures; it carries nothing but their id."""
        try:
            _refuse_unknown(request, ("window",))
            window = self._window(request)
            if self._listeners >= MAX_LISTENERS:
                raise StatusError(503, f"{MAX_LISTENERS} clients wait for changes: ask /figures")
            version = await self._topic.version(window)
        except StreamevalError as error:
            return _failure(error)
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
        headers["X-Accel-Buffering"] = "no"  # or nginx would keep events back
        response = web.StreamResponse(headers=headers)
        self._listeners += 1
        try:
            await response.prepare(request)
            await response.write(b"retry: 1000\n\n")
            await self._tell(response, window, version, request.headers.get("Last-Event-ID"))
        except (ConnectionError, StreamevalError):
            pass  # the client has gone, or Redis has: it connects again
        finally:
            self._listeners -= 1
        return response

    async def _tell(
        self, response: web.StreamResponse, window: str | None, version: str, known: str | None
    ) -> None:
        end = time.monotonic() + STREAM_SECONDS
        while time.monotonic() < end:
            if version != known:
                await response.write(f"event: changed\nid: {version}\ndata: {{}}\n\n".encode())
                known = version
            await asyncio.sleep(LOOK_SECONDS)
            version = await self._topic.version(window)

    async def _bounds(self, key: str, metric: str | None, _minute: int) -> Document:
        """Return the bounds of an experiment over time, older ones from the coarser history."""
        points: list[bytes] = []
        for period in experiment_history.RINGS:
            last = round(time.time() * 1000) // period
            name = experiment_history.name_of(key, period)
            points += await self._store.history(name, 0, last)

        def made() -> Document:
            return document({"history": experiment_history.over_time(points, metric)})

        return await asyncio.to_thread(self._charged, made)

    async def _of_this_minute(
        self, chosen: tuple[Any, ...], drawn: Callable[[int], Awaitable[Document]]
    ) -> Document:
        """Return a chart, which is drawn once a minute for all who ask."""
        minute = int(time.time() // 60)
        key = (minute, *chosen)
        async with self._charting:
            if key not in self._charts:
                self._refuse_beyond_share()
                found = await drawn(minute)
                kept = [one for one in self._charts.items() if one[0][0] == minute]
                self._charts = dict(kept[1 - KEPT_CHARTS :]) | {key: found}
            return self._charts[key]

    def _charged(self, make: Callable[[], Document]) -> Document:
        """Make a chart, and charge its time to the share of all charts."""
        began = time.thread_time()
        try:
            return make()
        finally:
            paid_at = max(time.monotonic(), self._charts_paid_at)
            self._charts_paid_at = paid_at + (time.thread_time() - began) / CHART_SHARE

    def _refuse_beyond_share(self) -> None:
        """Refuse further charts while earlier ones have taken too much of the time."""
        debt = self._charts_paid_at - time.monotonic()
        if debt > CHART_DEBT_SECONDS:
            wait = math.ceil(debt - CHART_DEBT_SECONDS)
            raise StatusError(503, f"too many different charts: ask again in {wait} s")

    def _window(self, request: web.Request) -> str | None:
        return _choice(request, "window", [window.name for window in self._definition.windows])


def _chart(
    points: Sequence[bytes], section: str, figure: str, wanted: Mapping[str, str]
) -> Document:
    """Return the document of a chart. Raises `InputError` for a figure that no point has."""
    found = [point for point in map(history.unpack, points) if point is not None]
    figures = sorted({name for point in found for name in point.sections[section].figures})
    if figures and figure not in figures:
        raise InputError(f"figure: write one of {', '.join(figures)}")
    return document(history.chart(found, section, figure, wanted))


def _refuse_unknown(request: web.Request, names: Sequence[str]) -> None:
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


def _number(request: web.Request, name: str, least: int, most: int, default: int) -> int:
    given = request.query.get(name, str(default))
    if not (given.isascii() and given.isdecimal() and least <= int(given[:9]) <= most):
        raise InputError(f"{name}: write a number from {least} to {most}")
    return int(given[:9])


def _rows(found: Document, section: str, after: int, limit: int) -> Document:
    """Return some rows of one section; `next` is the `after` of the rows that follow them."""
    rows = found.value[section]
    end = after + limit
    rest = {name: value for name, value in found.value.items() if name not in SECTIONS}
    following = end if end < len(rows) else None
    return document(rest | {section: rows[after:end], "next": following})


def _respond(handler: Callable[[web.Request], Awaitable[Document]]) -> Handler:
    """Make a response of a document, with 304 for one that the client has, or of an error."""

    @functools.wraps(handler)
    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            found = await handler(request)
        except StreamevalError as error:
            return _failure(error)
        known = request.headers.get("If-None-Match", "")
        headers = {"ETag": found.etag, "Cache-Control": "no-cache"}
        if found.etag in [tag.strip().removeprefix("W/") for tag in known.split(",")]:
            return web.Response(status=304, headers=headers)
        return web.Response(body=found.body, content_type="application/json", headers=headers)

    return answer


def _failure(error: StreamevalError) -> web.Response:
    """Make the response of an error: one line that says what to do."""
    if isinstance(error, StatusError):
        status = error.status
    else:
        wrong = isinstance(error, InputError) and not isinstance(error, RefusedError)
        status = 400 if wrong else 503
    text = json.dumps({"error": " ".join(str(error).split())}, ensure_ascii=False)
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return web.Response(
        text=f"{text}\n", status=status, content_type="application/json", headers=headers
    )
