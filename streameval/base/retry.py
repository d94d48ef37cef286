"""Waiting for servers, no longer than agreed and without filling the log."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from streameval.base.errors import UnreachableError

log = logging.getLogger(__name__)
T = TypeVar("T")

COMPLAINT_SECONDS: Final = 3.0
# After so much silence a complaint is about something new.
ANEW_SECONDS: Final = 30.0
RETRY_SECONDS: Final = 0.5


class Complaints:
    """Warnings about a server that is away: one line every few seconds, the first at once.

    After the first second they say since when.
    """

    def __init__(self, logger: logging.Logger = log, server: str = "") -> None:
        self._logger, self._server = logger, server
        self._last = -math.inf
        self._begin()

    def _begin(self) -> None:
        self._began = time.monotonic()
        self.since = time.strftime("%H:%M:%S UTC", time.gmtime())

    def say(self, doing: str, error: BaseException) -> None:
        """Log our reaction to `error`, unless a line was logged a moment ago."""
        self.tell(f"{self._server}: {doing}: {str(error) or repr(error)}")

    def tell(self, line: str) -> None:
        """Log the line, unless one was logged a moment ago."""
        now = time.monotonic()
        if now - self._last < COMPLAINT_SECONDS:
            return
        if now - self._last > ANEW_SECONDS:
            self._begin()
        self._last = now
        lasting = now - self._began
        since = f" (since {self.since}, {lasting:.0f} s ago)" if lasting >= 1 else ""
        self._logger.warning("%s%s", line, since)


async def persist(call: Callable[[], Awaitable[T]]) -> T:
    """Await `call()`, and repeat it while a server is away, with a line every few seconds."""
    complaints = Complaints()
    while True:
        try:
            return await call()
        except UnreachableError as error:
            complaints.tell(f"{error} Trying on.")
        await asyncio.sleep(RETRY_SECONDS)


async def persist_in_thread(call: Callable[..., T], *arguments: Any) -> T:
    """Call in a thread, again and again while a disk or an object store is away."""
    return await persist(lambda: asyncio.to_thread(call, *arguments))


async def answer_within(work: Awaitable[Any], seconds: float) -> Any:
    """Return the result of `work`, or None when it fails or takes longer than `seconds`.

    `asyncio.wait` and not `wait_for`: a task that swallows its cancellation, as aiokafka's stop
    can, must not hold us.
    """
    task = asyncio.ensure_future(work)
    await asyncio.wait({task}, timeout=seconds)
    if not task.done():
        task.cancel()
        return None
    if task.cancelled():
        return None
    if (error := task.exception()) is not None:
        log.debug("failed: %r", error)
        return None
    return task.result()


class Waiting:
    """Calls that must be answered before some work can go on, one for each key.

    A call runs in a thread, and again until its server answers. `why` says what each key waits for.
    """

    def __init__(self) -> None:
        self.why: dict[Any, str] = {}
        self._tasks: dict[Any, asyncio.Task[None]] = {}
        self._complaints = Complaints()

    def holds(self, key: Any, call: Callable[[], None] | None) -> bool:
        """Tell whether the work of `key` has to wait for `call`, which begins here; None: for none.

        Raises what the call before raised, except that a server is away.
        """
        task = self._tasks.get(key)
        if task is not None and not task.done():
            return True
        if task is not None:
            del self._tasks[key]
            self.why.pop(key, None)
            task.result()
        if call is None:
            return False
        self._tasks[key] = asyncio.create_task(self._until_answered(key, call))
        return True

    def __contains__(self, key: object) -> bool:
        """Tell whether a call of `key` is under way."""
        task = self._tasks.get(key)
        return task is not None and not task.done()

    async def _until_answered(self, key: Any, call: Callable[[], None]) -> None:
        while True:
            try:
                return await asyncio.to_thread(call)
            except UnreachableError as error:
                self.why[key] = str(error)
                self._complaints.tell(f"{key}: {error} Waiting for it.")
            await asyncio.sleep(RETRY_SECONDS)

    def close(self) -> None:
        """Ask no more, until `holds` begins anew."""
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()
        self.why.clear()
