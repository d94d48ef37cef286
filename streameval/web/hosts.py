"""The names that a request may call a worker by.

A page of another site may read what it likes from a name of its own site, and let that name stand
for this machine (DNS rebinding). The browser sends the name as `Host`, and no address: so addresses
are let through, and names only where they are ours.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Iterable
from functools import cache
from ipaddress import ip_address
from typing import Final

from aiohttp import web

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
