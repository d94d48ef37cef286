"""Calls to Redis: tried again or once, never cut off half-way, with errors as our own."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from redis import exceptions

from streameval.base.errors import RefusedError, UnreachableError
from streameval.base.retry import Complaints
from streameval.base.urls import split_url
from streameval.store.redis_servers import Command, Url, servers_of

logger = logging.getLogger(__name__)
T = TypeVar("T")

# While the store is away: the pauses between tries, the first and the longest.
RETRY_SECONDS: Final = (0.05, 1.0)

# Errors that stand for a state of the server that passes, so the same command may work later.
_PASSING: Final = (
    *("OOM", "MISCONF", "LOADING", "READONLY", "MASTERDOWN", "NOREPLICAS", "BUSY"),
    "Script attempted to",  # in a cluster: the slot is moving, or other nodes are away
)
_CROSS_SLOT: Final = "do not hash to the same slot"


# What servers of another kind say, and what to write for them.
_OTHER_KIND: Final = {
    "cluster support disabled": "it is no cluster, write redis:// or rediss://",
    "unknown command 'CLUSTER'": "it is no cluster, write redis:// or rediss://",
    "unknown command 'TIME'": "is it a Sentinel? Write redis+sentinel://HOST:PORT/NAME",
}
# What is said of a server that speaks no TLS, and of one that speaks nothing else.
_NO_TLS: Final = ("Timeout connecting", "WRONG_VERSION_NUMBER", "record layer failure")
_ONLY_TLS: Final = ("reset by peer", "Connection closed by server", "Connection lost")
# What servers say to a client that names no password.
_NO_PASSWORD: Final = ("Authentication required", "NOAUTH")


class RedisCalls:
    """Connections to the servers at `url`, and ways to call them.

    A function returns the URL as it is now: its login is read at each new connection.
    """

    def __init__(self, url: str | Url) -> None:
        self._servers = servers_of((lambda: url) if isinstance(url, str) else url)
        scheme = split_url(url if isinstance(url, str) else url()).scheme
        self._tls = scheme.startswith("rediss")
        self.address = self._servers.address
        self._let_in = False
        self._in_flight: set[asyncio.Task[Any]] = set()
        self._complaints = Complaints(logger, f"Redis at {self.address}")

    async def _script(self, script: str, key: str, arguments: Sequence[Any]) -> Any:
        """Run a script by its digest; send the script to a server that does not know it."""
        try:
            return await self._raw("EVALSHA", _sha(script), 1, key, *arguments)
        except exceptions.NoScriptError:
            return await self._raw("EVAL", script, 1, key, *arguments)

    async def _raw(self, *command: Any) -> Any:
        return await self._servers.call(*command)

    async def _calls(self, *commands: Command) -> list[Any]:
        """Send several commands together, once."""
        return await self._once(lambda: self._servers.calls(commands))

    async def _run_once(self, script: str, key: str, arguments: Sequence[Any]) -> Any:
        return await self._once(functools.partial(self._script, script, key, arguments))

    async def _once(self, call: Callable[[], Awaitable[T]]) -> T:
        """Try `call` once, never cut off half-way; raise our own errors."""
        try:
            return await self._shielded(call)
        except (exceptions.RedisError, OSError) as error:
            raise self._ours(error) from error

    async def _persistently(
        self, doing: str, call: Callable[[], Awaitable[T]], give_up_after: float | None = None
    ) -> T:
        """Try `call` until it goes through, or for `give_up_after` seconds.

        An error that cannot pass by itself is raised at once.
        """
        end = None if give_up_after is None else time.monotonic() + give_up_after
        pause = RETRY_SECONDS[0]
        while True:
            try:
                return await self._shielded(call)
            except (exceptions.RedisError, OSError) as error:
                if not self._passes(error) or (end is not None and time.monotonic() + pause > end):
                    raise self._ours(error) from error
                if _is_login(error):
                    self._complaints.tell(f"{self._ours(error)}. Trying on.")
                else:
                    self._complaints.say(f"{doing} not possible, trying on", error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, RETRY_SECONDS[1])

    async def _shielded(self, call: Callable[[], Awaitable[T]]) -> T:
        """Await `call` so that a cancelled caller does not cut it off.

        A call cut off half-way could leave its answer to the next one on the connection; it
        runs on to its own end or time limit, and `close` waits for it.
        """

        async def run() -> T:
            found = await call()
            self._let_in = True
            return found

        task = asyncio.create_task(run())
        self._in_flight.add(task)
        task.add_done_callback(self._landed)
        return await asyncio.shield(task)

    def _landed(self, task: asyncio.Task[Any]) -> None:
        self._in_flight.discard(task)
        if not task.cancelled():
            task.exception()  # the caller may be gone: nobody else would look at it

    def _ours(self, error: Exception) -> RefusedError | UnreachableError:
        """Translate an error of redis-py or of the network into our own."""
        where = f"Redis at {self.address}"
        if _is_login(error):
            return self._not_let_in(where, error)
        if self._passes(error):
            return UnreachableError(f"{where} cannot be used now ({error}): {self._cure(error)}")
        if isinstance(error, exceptions.NoPermissionError):
            return RefusedError(f"{where}: {error}: extend the rights of the user (ACL SETUSER)")
        if self._is_node(error):
            return RefusedError(f"{where} is a node of a cluster: write redis+cluster://")
        cure = next((f"; {cure}" for said, cure in _OTHER_KIND.items() if said in str(error)), "")
        return RefusedError(f"{where} answers: {str(error).strip()}{cure}")

    def _not_let_in(self, where: str, error: Exception) -> RefusedError | UnreachableError:
        if self._let_in:
            return UnreachableError(
                f"{where} refuses the password or user ({error}), which it took before: give"
                " `redis`, redis_password or their files the new one"
            )
        if any(word in str(error) for word in _NO_PASSWORD):
            return RefusedError(
                f"{where} wants a password, and none is configured: set redis_password (or"
                " STREAMEVAL_REDIS_PASSWORD)"
            )
        return RefusedError(
            f"{where} refuses the password or user ({error}): correct `redis` and redis_password"
        )

    def _cure(self, error: Exception) -> str:
        """Say what to look at; where no server has let us in yet, it may speak another way."""
        said = str(error)
        if "CERTIFICATE_VERIFY_FAILED" in said:
            return "correct ssl_ca_certs of `redis`, or the host that its certificate names"
        if self._let_in:
            return "is it running?"
        if said.startswith("No master found") and " : " not in said:  # all Sentinels answer
            return "is it running, and known to them by this name?"
        if self._tls and any(word in said for word in _NO_TLS):
            return "is it running, and does it speak TLS?"
        if not self._tls and any(word in said for word in _ONLY_TLS):
            return "is it running, or does it want rediss://?"
        return "is it running?"

    def _is_node(self, error: Exception) -> bool:
        """Tell whether a single server sends us on to another one."""
        return isinstance(error, exceptions.AskError) and not self._servers.has_slots

    def _passes(self, error: Exception) -> bool:
        """Whether the same call may work later without anybody changing this process.

        A login that was taken before may be again: whoever changes a password changes two places.
        """
        if _is_login(error):
            return self._let_in
        return _passes(error) and not self._is_node(error)

    async def close(self, deadline: float = 1.0) -> None:
        """Wait up to `deadline` seconds for calls under way, then close the connections."""
        if self._in_flight:
            await asyncio.wait(set(self._in_flight), timeout=deadline)
        for task in self._in_flight:
            task.cancel()
        closing = asyncio.ensure_future(self._servers.close())
        await asyncio.wait({closing}, timeout=deadline)


@functools.cache
def _sha(script: str) -> str:
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()


def _is_login(error: Exception) -> bool:
    said = str(error)
    return isinstance(error, exceptions.AuthenticationError) or any(
        word in said for word in _NO_PASSWORD
    )


def _passes(error: Exception) -> bool:
    if isinstance(error, exceptions.NoPermissionError) or _CROSS_SLOT in str(error):
        return False
    if isinstance(error, exceptions.ConnectionError | exceptions.TimeoutError | OSError):
        return True
    kinds = exceptions.BusyLoadingError | exceptions.OutOfMemoryError | exceptions.ReadOnlyError
    moving = exceptions.ClusterDownError | exceptions.TryAgainError | exceptions.MovedError
    return isinstance(error, kinds | moving) or str(error).startswith(_PASSING)
