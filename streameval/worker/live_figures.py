"""The figures of a worker's partitions, computed anew as often as they are worth it.

`Pace` spaces repeated work out so that it takes at most a share of a worker's time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Mapping
from typing import Final, TypeVar

from streameval.core.definition import Definition
from streameval.core.figures import Figures, ShownSegments, figuring
from streameval.core.merged_segments import Segment
from streameval.core.nowcast import ArrivalCurves, DelaysBySegment, PastNowcasts
from streameval.core.sums import Sums, merge
from streameval.web.status import ProcessCounters
from streameval.worker.assigned_partition import Appended, AssignedPartition
from streameval.worker.ports import EventLog
from streameval.worker.sharing import SumsToShare

T = TypeVar("T")


class Pace:
    """Says when repeated work is due again: the longer a turn took, the later.

    Turns begin at least `seconds` apart. A turn is measured in processor time. Neither other tasks
    at its pauses count, nor time that the machine gave to other programs.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds
        self._began = self._spent = self._since = 0.0

    def begins(self, share: float) -> bool:
        """Begin a turn if one is due at this share of the clock's time (0 to 1); whether it is."""
        now = time.monotonic()
        if now < self._began + max(self._seconds, self._spent / share):
            return False
        self._began, self._spent, self._since = now, 0.0, time.thread_time()
        return True

    async def pause(self) -> None:
        """Let other tasks go on."""
        self._spent += time.thread_time() - self._since
        await asyncio.sleep(0)
        self._since = time.thread_time()

    async def take(self, steps: Generator[None, None, T]) -> T:
        """Take all steps, and pause after each; returns their result."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            await self.pause()

    def end(self) -> None:
        """End the turn."""
        self._spent += time.thread_time() - self._since


# Figures take at most this share of the time (a tick gets rarer with many segments). They may take
# more for records that were appended within the last `NEWS_SECONDS`, and for the last ones of a
# backlog: somebody may wait for them, and the worker has time. A record waits for three to four
# ticks' time then: less than 2 s while a tick takes half a second.
TICK_SHARE: Final = 0.05
NEWS_SHARE: Final = 0.33
NEWS_SECONDS: Final = 5.0


class LiveFigures:
    """The figures of `partitions`, by number, that are not being restored.

    `figures` come from the last tick, None before; `sums_to_share` are for other workers. `flush`
    books the applied events of a partition, `broker_up` says whether Kafka answers, and `all_here`
    whether no partition is on its way to this worker.
    """

    def __init__(
        self,
        definition: Definition,
        event_log: EventLog,
        partitions: Mapping[int, AssignedPartition],
        counters: ProcessCounters,
        seconds: float,
        *,
        flush: Callable[[AssignedPartition], object],
        broker_up: Callable[[], bool],
        all_here: Callable[[], bool],
    ) -> None:
        self.figures: Figures | None = None
        self.past_nowcasts = PastNowcasts(definition)
        self.sums_to_share = SumsToShare(definition)
        self._definition = definition
        self._event_log = event_log
        self._partitions = partitions
        self._counters = counters
        self._flush = flush
        self._broker_up = broker_up
        self._all_here = all_here
        self._segments = ShownSegments(definition.max_segments)
        self._pace = Pace(seconds)

    async def tick(self) -> bool:
        """Compute the figures of all partitions anew where that is due; return whether it was."""
        if not self._pace.begins(NEWS_SHARE if self._has_news() else TICK_SHARE):
            return False
        began = time.monotonic()
        sums: Sums = {}
        present: set[Segment] = set()
        fresh: list[Appended] = []
        for partition in list(self._partitions.values()):
            # Figures hold flushed events. A commit flushes, nearly always at once.
            if partition.uncommitted:
                self._flush(partition)
                await self._pace.pause()
        curves = await self._curves(began)
        windows = self.sums_to_share.due(time.time())
        for partition in list(self._partitions.values()):
            if not partition.restoring:
                found = partition.state.sums(self._reading_time(partition, began), curves)
                fresh += partition.take_flushed()
                present.update(*(each.names for each in found.values()))
                self.sums_to_share.take(partition, found, windows)
                sums = merge((sums, found), self._segments)
                await self._pace.pause()
        if self._all_here():
            self._segments.keep(present)
            self._counters.keep(present)
        self.figures = await self._pace.take(figuring(self._definition, sums))
        times = [each.state.reading_time or 0 for each in self._partitions.values()]
        self.past_nowcasts.note(max(times, default=0), self.figures)
        now = time.time()
        for earliest, count in fresh:
            self._counters.freshness_seconds.observe(max(0.0, now - earliest / 1000), count)
        self.sums_to_share.packed(windows, time.time())
        self._pace.end()
        return True

    def _has_news(self) -> bool:
        """Whether figures lack records that are new, or all that there are."""
        newest = max((each.newest for each in self._partitions.values()), default=0)
        behind = any(
            self._event_log.lag(number, each.next_offset) != 0
            for number, each in self._partitions.items()
        )
        return newest > (time.time() - NEWS_SECONDS) * 1000 or (newest > 0 and not behind)

    async def _curves(self, now: float) -> ArrivalCurves:
        """Return the curves of all partitions together: with the same ones their sums add up."""
        found: list[DelaysBySegment] = []
        for partition in list(self._partitions.values()):
            if not partition.restoring:
                found.append(partition.state.delays(self._reading_time(partition, now)))
                await self._pace.pause()
        return ArrivalCurves(self._definition, found)

    def _reading_time(self, partition: AssignedPartition, now: float) -> int | None:
        """Return T of a partition that is caught up and idle: the watermark plus the time since."""
        watermark = partition.state.watermark
        idle = now - partition.idle_since
        lag = self._event_log.lag(partition.number, partition.next_offset)
        if watermark is None or partition.backlog or lag != 0 or not self._broker_up() or idle < 1:
            return None
        return watermark + int(idle * 1000)
