"""The life of a worker: its tasks beside the loop, the error that ends it, the wish to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Life:
    """Runs tasks in the background; the first error of any of them is the worker's `failure`."""

    def __init__(self) -> None:
        self.stopping = asyncio.Event()
        self.failure: BaseException | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    def fail(self, error: BaseException) -> None:
        """Note the error that ends the worker; only the first counts."""
        if self.failure is None:
            self.failure = error

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run `work` in the background."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """End the worker where a task in the background failed: nobody else would notice."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.fail(error)

    async def unless_stopping(self, work: Coroutine[Any, Any, Any]) -> None:
        """Await `work`, but no longer than until the worker is told to stop."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self.stopping.wait())
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if task.done():
            await task
        else:
            task.cancel()

    def cancel(self) -> None:
        """Cancel what runs in the background."""
        for task in self._tasks:
            task.cancel()
