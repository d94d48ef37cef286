"""The life of a worker, and one way to stop it: one deadline for all steps, an end that comes.

One thread takes SIGTERM and SIGINT (`base.signals`). So they are heard while the event loop is
blocked, while Kafka or Redis is away, and while the worker starts. This thread asks the loop to
stop and arms a timer. When the time is up, the process ends at once. Nothing is lost: records that
are not committed are read again from the log. `streameval.__main__` answers earlier signals, while
Python imports.

Exit codes: 0 when everything read was committed, 75 (EX_TEMPFAIL: run me again) when not, the
error's own code where an error ended the worker.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from streameval.base import signals

log = logging.getLogger(__name__)

Result = TypeVar("Result")

EXIT_FLUSHED: Final = 0
EXIT_UNFLUSHED: Final = os.EX_TEMPFAIL


class Shutdown:
    """The deadline of a stop (`seconds` after it begins) and the exit code it will end with."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.exit_code = EXIT_UNFLUSHED
        self.begun = False
        self._end = 0.0
        self._lock = threading.Lock()

    def begin(self) -> bool:
        """Start the clock; False when it runs already. Safe from any thread."""
        with self._lock:
            if self.begun:
                return False
            self.begun = True
        self._end = time.monotonic() + self.seconds
        timer = threading.Timer(self.seconds, self.end_now)
        timer.daemon = True
        timer.start()
        return True

    def deadline(self, reserve: float = 0.0) -> float:
        """Give the `time.monotonic()` time to be done by, `reserve` seconds before the end."""
        assert self.begun, "no deadline before a stop begins"
        return self._end - reserve

    def end_now(self) -> None:
        """End the process at once, without waiting for anything."""
        if self.exit_code == EXIT_UNFLUSHED:
            _say("streameval: stopped before everything was committed; it will be read again")
        os._exit(self.exit_code)

    async def bounded(self, step: Awaitable[Result], until: float) -> Result | None:
        """Wait for a step of the stop `until` a `time.monotonic()` time; None when it failed.

        `asyncio.wait` and not `wait_for`: aiokafka leaks `CancelledError` when Kafka is away, and
        a step that swallows its cancellation must not hold the others up.
        """
        task = asyncio.ensure_future(step)
        left = max(0.0, until - time.monotonic())
        done, _ = await asyncio.wait([task], timeout=left)
        if not done:
            task.cancel()
            log.warning("a step of the stop took longer than its time and was left")
            return None
        if task.cancelled():
            return None
        if error := task.exception():
            log.error("a step of the stop failed", exc_info=error)
            return None
        return task.result()


def take_signals(shutdown: Shutdown, on_stop: Callable[[str], None]) -> None:
    """Let SIGTERM and SIGINT stop the worker, until the process ends.

    `on_stop` is called in a thread with the signal's name, once. A second Ctrl-C ends the process
    at once.
    """

    def stop(taken: signal.Signals) -> None:
        if shutdown.begin():
            on_stop(taken.name)
        elif taken == signal.SIGINT:
            shutdown.end_now()

    signals.take(stop)


def _say(line: str) -> None:
    """Write past every buffer and lock: the main thread may be stuck in any of them."""
    os.write(2, f"{line}\n".encode())


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
