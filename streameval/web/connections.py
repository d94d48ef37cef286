"""Connections to the pages: bounds for their number and their time.

aiohttp waits for ever for the rest of a request. So connections are accepted here. Each ends after
`seconds`, whatever its client does: send half a request, read the response slowly, or nothing.
When `most` are open, the oldest one makes room. Every page is one short response, so ordinary
clients do not notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast


class Connections:
    """A factory of protocols for `loop.create_server`, around the factory of a web server."""

    def __init__(self, web: Callable[[], asyncio.Protocol], seconds: float, most: int) -> None:
        self._web, self._seconds, self._most = web, seconds, most
        self._open: dict[asyncio.Transport, asyncio.TimerHandle] = {}  # oldest first

    def __call__(self) -> asyncio.Protocol:
        """Make the protocol of a connection that is about to be accepted."""
        return _Accepted(self)

    def accept(self, transport: asyncio.Transport) -> None:
        """Hand a new connection to the web server, and set its end."""
        for known in [known for known in self._open if known.is_closing()]:
            self._forget(known)
        while len(self._open) >= self._most:
            self._end(next(iter(self._open)))
        loop = asyncio.get_running_loop()
        self._open[transport] = loop.call_later(self._seconds, self._end, transport)
        handler = self._web()
        transport.set_protocol(handler)
        handler.connection_made(transport)

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
        self._connections.accept(cast("asyncio.Transport", transport))
