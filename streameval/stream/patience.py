"""Waiting for the world: no longer than agreed, and without filling the log."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any, Final

log = logging.getLogger(__name__)

COMPLAINT_SECONDS: Final = 3.0


class Complaints:
    """Warnings about one server that is away: one line every few seconds, the first at once."""

    def __init__(self, logger: logging.Logger, server: str) -> None:
        self._logger, self._server = logger, server
        self._last = -COMPLAINT_SECONDS

    def say(self, doing: str, error: BaseException) -> None:
        """Log what we do about `error`, unless a line was logged a moment ago."""
        if time.monotonic() - self._last >= COMPLAINT_SECONDS:
            self._last = time.monotonic()
            self._logger.warning("%s: %s: %s", self._server, doing, str(error) or repr(error))


async def within(work: Coroutine[Any, Any, Any], seconds: float) -> None:
    """Do `work` if it takes no longer than `seconds`; its failure is of no consequence.

    `asyncio.wait` and not `wait_for`: aiokafka's stop can swallow its cancellation.
    """
    task = asyncio.ensure_future(work)
    await asyncio.wait({task}, timeout=seconds)
    if not task.done():
        task.cancel()
    elif not task.cancelled() and task.exception() is not None:
        log.debug("failed: %r", task.exception())
