"""The leader's periodic job: a snapshot every `snapshot_interval`, in a process of its own.

A snapshot restores each partition's state: in the worker it would cost memory and stop commits for
seconds. The process gets the leader's fencing token, so it can tell when it was replaced. The time
of the last snapshot is that of the newest folder: a new leader does not begin the interval anew.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import time
from typing import TYPE_CHECKING, Final

from streameval.core.errors import StreamevalError
from streameval.stream import logs

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

    from streameval.settings import Settings

log = logging.getLogger(__name__)

# A snapshot that fails is tried again after so long, or after the interval if that is shorter.
RETRY_SECONDS: Final = 60.0
# Beside a worker that is busy.
NICENESS: Final = 10


class SnapshotSchedule:
    """Starts a snapshot when one is due, if this worker leads; looked after every few seconds."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._interval = settings.snapshot_interval / 1000
        self._process: SpawnProcess | None = None
        self._not_before = 0.0

    def turn(self, token: int | None) -> None:
        """Look after a snapshot under way, or begin one; `token` None: this worker leads not."""
        if self._process is not None:
            if self._process.is_alive():
                return
            if self._process.exitcode != 0:
                log.warning("the snapshot failed (exit code %s)", self._process.exitcode)
                self._not_before = time.time() + min(RETRY_SECONDS, self._interval)
            self._process.join()
            self._process = None
        if token is not None and self._due(time.time()):
            self._process = self._begin(token)

    def _begin(self, token: int) -> SpawnProcess:
        spawning = multiprocessing.get_context("spawn")
        process = spawning.Process(
            target=_take, args=(self._settings, token), name="snapshot", daemon=True
        )
        process.start()
        return process

    def stop(self) -> None:
        """End a snapshot under way; what it began is never looked at."""
        if self._process is not None:
            self._process.kill()

    def _due(self, now: float) -> bool:
        if self._settings.snapshots is None or now < self._not_before:
            return False
        from streameval.offline.snapshots import snapshots, taken_at

        known = snapshots(self._settings.snapshots)
        return not known or now >= taken_at(known[-1]) + self._interval


def _take(settings: Settings, token: int) -> None:
    """The process: one snapshot, and an exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker, which ends this one
    os.nice(NICENESS)
    logs.configure(settings.log_level, settings.log_format)
    from streameval.offline.snapshots import take

    try:
        folder = asyncio.run(take(settings, token))
    except StreamevalError as error:
        log.warning("no snapshot: %s", error)
        raise SystemExit(error.exit_code) from None
    log.info("snapshot %s", folder)
