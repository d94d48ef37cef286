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
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from streameval.base.errors import RefusedError, UnreachableError
from streameval.base.retry import Complaints

logger = logging.getLogger(__name__)
T = TypeVar("T")

# One connection is busy for a commit of one partition; more wait for a free one.
CONNECTIONS: Final = 8
# Redis that is silent for longer is asked again, which the comparison of offsets makes safe.
REPLY_SECONDS: Final = 10.0
CONNECT_SECONDS: Final = 3.0
# While the store is away: the pauses between tries, the first and the longest.
RETRY_SECONDS: Final = (0.05, 1.0)

# Errors that stand for a state of the server that passes, so the same command may work later.
_PASSING: Final = ("OOM", "MISCONF", "LOADING", "READONLY", "MASTERDOWN", "NOREPLICAS", "BUSY")


# What servers say to a client that names no password.
_NO_PASSWORD: Final = ("HELLO must be called", "Authentication required", "NOAUTH")


class RedisCalls:
    """Connections to one server at `url`, and ways to call it.

    redis-py's own retries are off: a retried increment counts twice.
    """

    def __init__(self, url: str) -> None:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=CONNECTIONS,
            timeout=REPLY_SECONDS,
            socket_timeout=REPLY_SECONDS,
            socket_connect_timeout=CONNECT_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )
        self._redis: Redis = Redis.from_pool(pool)  # closes the pool with itself
        options = pool.connection_kwargs
        self.address = options.get("path") or f"{options['host']}:{options.get('port', 6379)}"
        self._in_flight: set[asyncio.Task[Any]] = set()
        self._complaints = Complaints(logger, f"Redis at {self.address}")

    async def _script(self, script: str, key: str, arguments: Sequence[Any]) -> Any:
        """Run a script by its digest; send the script to a server that does not know it."""
        try:
            return await self._redis.evalsha(_sha(script), 1, key, *arguments)
        except exceptions.NoScriptError:
            return await self._redis.eval(script, 1, key, *arguments)

    async def _raw(self, *command: str) -> Any:
        return await self._redis.execute_command(*command)  # type: ignore[no-untyped-call]

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
                if not _passes(error) or (end is not None and time.monotonic() + pause > end):
                    raise self._ours(error) from error
                self._complaints.say(f"{doing} not possible, trying on", error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, RETRY_SECONDS[1])

    async def _shielded(self, call: Callable[[], Awaitable[T]]) -> T:
        """Await `call` so that a cancelled caller does not cut it off.

        A call cut off half-way could leave its answer to the next one on the connection; it
        runs on to its own end or time limit, and `close` waits for it.
        """

        async def run() -> T:
            return await call()

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
        if any(word in str(error) for word in _NO_PASSWORD):
            return RefusedError(
                f"{where} wants a password, and none is configured: set redis_password (or"
                " STREAMEVAL_REDIS_PASSWORD)"
            )
        if isinstance(error, exceptions.AuthenticationError):
            return RefusedError(
                f"{where} refuses the password or user ({error}): correct `redis` and"
                " redis_password"
            )
        if isinstance(error, exceptions.NoPermissionError):
            return RefusedError(f"{where}: {error}: extend the rights of the user (ACL SETUSER)")
        if _passes(error):
            return UnreachableError(f"{where} cannot be used now ({error}): is it running?")
        return RefusedError(f"{where} answers: {error}")

    async def close(self, deadline: float = 1.0) -> None:
        """Wait up to `deadline` seconds for calls under way, then close the connections."""
        if self._in_flight:
            await asyncio.wait(set(self._in_flight), timeout=deadline)
        for task in self._in_flight:
            task.cancel()
        closing = asyncio.ensure_future(self._redis.aclose())
        await asyncio.wait({closing}, timeout=deadline)


@functools.cache
def _sha(script: str) -> str:
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()


def _passes(error: Exception) -> bool:
    """Whether the same call may work later without anybody changing it."""
    if isinstance(error, exceptions.AuthenticationError | exceptions.NoPermissionError):
        return False
    if isinstance(error, exceptions.ConnectionError | exceptions.TimeoutError | OSError):
        return True
    kinds = exceptions.BusyLoadingError | exceptions.OutOfMemoryError | exceptions.ReadOnlyError
    return isinstance(error, kinds) or str(error).startswith(_PASSING)
