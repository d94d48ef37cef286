"""The values that a worker shares with the others, so that each can show the figures of all.

Each tick may pack the sums of this worker's partitions; `Sharing.turn` writes them to Redis every
two seconds. Sums are packed once a minute, for the history, and every few seconds while somebody
looks at figures. Packing takes at most `SHARE` of the time, so with many segments sums are older.

The leader also writes the last checks, and adds a point a minute to the history.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Sequence
from dataclasses import asdict
from typing import Any, Final

from streameval.base.errors import RefusedError
from streameval.base.retry import answer_within
from streameval.core.definition import Definition
from streameval.core.fingerprint import fingerprint
from streameval.core.shared_sums import pack, share
from streameval.core.sums import Sums
from streameval.store.shared_store import SharedStore
from streameval.store.stored_values import PackedSums
from streameval.web.health import describe
from streameval.web.status import ServiceStatus
from streameval.web.whole_topic import WholeTopic
from streameval.worker.assigned_partition import AssignedPartition
from streameval.worker.history_job import HistoryJob

log = logging.getLogger(__name__)

# Figures that somebody looks at need not be newer.
FRESH_SECONDS: Final = 2.0
# Redis that is away keeps a turn no longer than this: the next one tries again.
TURN_SECONDS: Final = 5.0
# Of a worker's time, see docs/operations.md.
SHARE: Final = 0.004
# A minute of history may take as long as Redis needs, since nothing waits for it.
HISTORY_SECONDS: Final = 50.0


class SumsToShare:
    """The sums that ticks pack and turns write; the newest of a partition and window wait."""

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self._indexes = {window.name: at for at, window in enumerate(definition.windows)}
        self._asked: set[str] = set()
        self._not_before, self._minute, self._seconds = 0.0, -1, 0.0
        self._packed: dict[tuple[int, str], PackedSums] = {}

    def ask(self, windows: set[str]) -> None:
        """Pack these windows from now on, besides all of them once a minute."""
        self._asked = windows

    def due(self, now: float) -> list[str]:
        """Return the windows to pack at this tick; `now` in seconds since the epoch."""
        if int(now // 60) != self._minute:
            return list(self._indexes)
        if now < self._not_before:
            return []
        return [window for window in self._indexes if window in self._asked]

    def take(self, partition: AssignedPartition, sums: Sums, windows: Sequence[str]) -> None:
        """Pack the sums of one partition."""
        state, began = partition.state, time.thread_time()
        for window in windows:
            shared = share(
                sums, self._indexes[window], state.reading_time, state.watermark, state.events
            )
            self._packed[partition.number, window] = PackedSums(
                partition.number,
                window,
                partition.next_offset,
                state.reading_time or 0,
                pack(shared),
                time.monotonic(),
            )
        self._seconds += time.thread_time() - began

    def packed(self, windows: Sequence[str], now: float) -> None:
        """Note that a tick has packed these windows of all partitions."""
        seconds, self._seconds = self._seconds, 0.0
        if not windows or not seconds:
            return
        self._not_before = now + max(FRESH_SECONDS, seconds / SHARE)
        if len(windows) == len(self._indexes):
            self._minute = int(now // 60)

    def taken(self) -> list[PackedSums]:
        """Take all that is to be written."""
        packed, self._packed = list(self._packed.values()), {}
        return packed


class Sharing:
    """Writes what this worker shares; `worker` is its name in the group."""

    def __init__(self, store: SharedStore, sums: SumsToShare, worker: str) -> None:
        self._store, self._worker, self._sums = store, worker, sums
        definition = sums.definition
        self._fingerprint = fingerprint(definition)
        self._windows = [window.name for window in definition.windows]
        self._partitions = 0
        topic = WholeTopic(store, definition, lambda: self._partitions)
        self._history = HistoryJob(store, topic, definition)
        self._remembering: asyncio.Task[None] | None = None
        self._refused = ""

    async def turn(self, status: ServiceStatus, token: int | None) -> None:
        """Write all that has changed; `token` is None unless this worker leads."""
        if not status.store_up:
            return
        self._partitions = status.topic_partitions
        await answer_within(self._told(self._turn(status, token)), TURN_SECONDS)
        if token is not None and (self._remembering is None or self._remembering.done()):
            minute = self._told(self._history.turn(time.time(), status.scorecards))
            self._remembering = asyncio.create_task(answer_within(minute, HISTORY_SECONDS))

    async def close(self) -> None:
        """Say that this worker has gone, so that nobody waits for its word."""
        if self._remembering is not None:
            self._remembering.cancel()
        await answer_within(self._store.tell(self._worker, ""), 1.0)
        await self._store.close(1.0)

    async def _told(self, work: Awaitable[None]) -> None:
        """Do `work`, and log what Redis refuses: once, since every turn meets it again."""
        try:
            await work
        except RefusedError as error:
            if str(error) != self._refused:
                self._refused = str(error)
                log.warning("pages of all workers together may be incomplete: %s", error)

    async def _turn(self, status: ServiceStatus, token: int | None) -> None:
        self._sums.ask(await self._store.asked(self._windows))
        for each in self._sums.taken():
            await self._store.publish(each, self._fingerprint)
        await self._store.tell(self._worker, json.dumps(describe(status, time.time())))
        if token is not None:
            await self._store.report("checks", token, json.dumps(checks_of(status)))


def checks_of(status: ServiceStatus) -> dict[str, Any]:
    """Return the document of `/api/v1/checks`."""
    daily = None if status.daily is None else asdict(status.daily)
    return {
        "checks": [check.document() for check in status.checks],
        "interval_seconds": status.check_interval,
        "running_seconds": status.check_running,
        "daily": daily,
    }
