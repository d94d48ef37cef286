"""Connections to the pages: bounds for their number and their time, and probes first.

aiohttp waits for ever for the rest of a request. So connections are accepted here. Each ends after
`seconds`, whatever its client does: send half a request, read the response slowly, or nothing.
When `most` are open, the oldest one makes room. Every page is one short response, so ordinary
clients do not notice.

A supervisor kills a worker whose probes are not answered, and a page takes a thousand times as
long as a probe. So a bounded number of pages is served at a time (`Readers`). Further requests get
503 at once, and probes are always served.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from typing import Final, cast

from aiohttp import web

from streameval.base.errors import InputError
from streameval.web.hosts import PROBES

# A reader who takes longer makes room for others: a page is read in milliseconds.
READ_SECONDS: Final = 5.0
# A connection takes five turns of the loop until it is served. All that come meanwhile have room.
ACCEPTED_AT_ONCE: Final = 8
# Connections that wait to be accepted: half a second of many readers.
WAITING: Final = 1_024
_PROBES: Final = tuple(f"GET {path}".encode() for path in PROBES)
_TEXT: Final = b"too many readers at a time: ask again\n"
_BUSY: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Cache-Control: no-store\r\nServer: streameval\r\nX-Content-Type-Options: nosniff\r\n"
    b"Content-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n\r\n%b" % (len(_TEXT), _TEXT)
)


def bind(host: str, port: int) -> socket.socket:
    """Bind before anything starts. Raises `InputError` for a port that is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        cause = error.strerror or str(error)
        raise InputError(
            f"listen: cannot listen on {host}:{port} ({cause}); choose another"
        ) from error


class Readers:
    """The connections whose page is being made or sent, `most` at a time."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._since: dict[asyncio.BaseTransport, float] = {}  # oldest first

    def full(self) -> bool:
        """Return whether no more can be served. Whoever has read for long makes room."""
        self._since = {each: at for each, at in self._since.items() if not each.is_closing()}
        if len(self._since) < self._most:
            return False
        oldest = next(iter(self._since))
        if asyncio.get_running_loop().time() - self._since[oldest] < READ_SECONDS:
            return True
        cast("asyncio.Transport", oldest).abort()
        del self._since[oldest]
        return False

    def enter(self, transport: asyncio.BaseTransport) -> None:
        """Count a connection until its response is sent."""
        self._since.setdefault(transport, asyncio.get_running_loop().time())

    @web.middleware
    async def count(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Count a request until its response is sent."""
        transport = request.transport
        if request.path in PROBES or transport is None:
            return await handler(request)
        self.enter(transport)
        try:
            response = await handler(request)
            with contextlib.suppress(ConnectionError):  # its reader has gone
                await response.prepare(request)
                await response.write_eof()
            return response
        finally:
            self._since.pop(transport, None)


class Connections:
    """The connections of a site, around the factory of a web server's protocols."""

    def __init__(
        self, server: Callable[[], asyncio.Protocol], seconds: float, most: int, readers: Readers
    ) -> None:
        self._server, self._seconds, self._most, self._readers = server, seconds, most, readers
        self._open: dict[asyncio.Transport, asyncio.TimerHandle] = {}  # oldest first

    async def listen(self, listening: socket.socket) -> asyncio.Server:
        """Accept connections: a few at a time, so that those before them are served first."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: _Accepted(self), sock=listening, backlog=ACCEPTED_AT_ONCE
        )
        listening.listen(WAITING)
        return server

    def accept(self, transport: asyncio.Transport) -> None:
        """Wait for the request of a new connection, and set its end."""
        for known in [known for known in self._open if known.is_closing()]:
            self._forget(known)
        while len(self._open) >= self._most:
            self._end(next(iter(self._open)))
        loop = asyncio.get_running_loop()
        self._open[transport] = loop.call_later(self._seconds, self._end, transport)

    def serve(self, transport: asyncio.Transport, data: bytes) -> None:
        """Hand a connection with the beginning of its request to the web server, or refuse it."""
        if data.startswith(_PROBES):
            self._open[transport] = self._open.pop(transport)  # the last one to make room
        elif self._readers.full():
            transport.write(_BUSY)
            transport.close()
            return
        elif data.endswith(b"\r\n\r\n"):  # a whole request, which will be answered
            self._readers.enter(transport)
        handler = self._server()
        transport.set_protocol(handler)
        handler.connection_made(transport)
        handler.data_received(data)

    def _end(self, transport: asyncio.Transport) -> None:
        self._forget(transport)
        transport.abort()  # and not `close`, which waits for a client that does not read

    def _forget(self, transport: asyncio.Transport) -> None:
        self._open.pop(transport).cancel()


class _Accepted(asyncio.Protocol):
    """The first protocol of a connection."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._connections.accept(self._transport)

    def data_received(self, data: bytes) -> None:
        self._connections.serve(self._transport, data)
