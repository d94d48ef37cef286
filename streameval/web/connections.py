"""Connections to the pages: bounds for their number and their time, and probes first.

aiohttp waits for ever for the rest of a request. So connections are accepted here. Each ends after
`seconds`, whatever its client does: send half a request, read the response slowly, or nothing.
When `most` are open, the oldest one makes room. Every page is one short response, so ordinary
clients do not notice.

A supervisor kills a worker whose probes are not answered, and a page takes a thousand times as
long as a probe. So a bounded number of pages is served at a time (`Readers`). Further requests get
503 at once, and probes are always served.

A page of another site may read what it likes from a name of its own site, and let that name stand
for this machine (DNS rebinding). The browser sends the name as `Host`, and no address: so addresses
are let through, and names only where they are ours (`Hosts`).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import Awaitable, Callable, Iterable
from functools import cache
from ipaddress import ip_address
from typing import Final, cast

from aiohttp import web

from streameval.base.errors import InputError

# Probes and load balancers send any name, and hear nothing but one line of state.
PROBES: Final = ("/healthz", "/readyz")
_HOST: Final = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\[\]:@/\\\s]+))(?::\d*)?")


class Hosts:
    """The check of `Host`. `names` are let through besides our own; `.example` is all below it."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = {name.lower().rstrip(".") for name in names}
        self._names |= {"localhost", socket.gethostname().lower()}

    async def know(self, hosts: list[str]) -> bool:
        """Return whether a request with these `Host` headers is for us; one without is."""
        if len(hosts) != 1:
            return not hosts
        found = _HOST.fullmatch(hosts[0].lower())
        if found is None:
            return False
        name = (found[1] or found[2]).rstrip(".")
        if _is_address(name) or name in self._names or "*" in self._names:
            return True
        if any(one.startswith(".") and f".{name}".endswith(one) for one in self._names):
            return True
        return name == await asyncio.to_thread(_own_name)

    @web.middleware
    async def refuse_others(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Answer 421 to a request for another host."""
        if request.path in PROBES or await self.know(request.headers.getall("Host", [])):
            return await handler(request)
        raise web.HTTPMisdirectedRequest(
            text="this is no name of this worker: add it to allowed_hosts in the configuration\n"
        )


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


@cache
def _own_name() -> str:
    """Return the full name of this machine; the first question may take a second."""
    return socket.getfqdn().lower()


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
    """Bind before anything starts; `::` takes IPv4 too. Raises `InputError` for a port in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = host == "::" and socket.has_dualstack_ipv6()
    try:
        return socket.create_server((host, port), family=family, dualstack_ipv6=both)
    except OSError as error:
        cause = error.strerror or str(error)
        raise InputError(
            f"listen: cannot listen on {host}:{port} ({cause}); choose another"
        ) from error


def url_of(listening: socket.socket) -> str:
    """Return the address at which a socket listens, as a browser takes it, without a path."""
    host, port, *_ = listening.getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


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
