"""The log once through the core, and the figures at each step.

At the step T a partition has applied its records before the first event that is later than T: just
as a worker without delay when its watermark passed T. `replay --at T` of those records
gives the same figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

from streameval.backfill.logs import Log
from streameval.backfill.work_folder import WorkFolder
from streameval.core.definition import Definition
from streameval.core.events import Event, EventDecoder
from streameval.core.figures import ShownSegments, figures
from streameval.core.merged_segments import Segment
from streameval.core.nowcast import ArrivalCurves
from streameval.core.partition import Partition
from streameval.core.sums import Sums, merge
from streameval.web.openmetrics import figure_samples

# A kill loses this much work, or twenty times what saving takes: at most 5 % go into saving.
SAVE_SECONDS: Final = 10.0
SAVE_SHARE: Final = 20
# Steps of reading before the first figure, so that the bar moves and a kill loses little.
_LEAD_STEPS: Final = 64
_FLUSH_EVENTS: Final = 20_000

Advance = Callable[[int], None]
"""Called with the event time (ms) that was read since its last call."""


@dataclass(frozen=True, slots=True)
class Span:
    """The steps: multiples of `step` from `begin` to `end` (ms); `lookback` is read before them."""

    begin: int
    end: int
    step: int
    lookback: int

    @classmethod
    def of(cls, definition: Definition, begin: int, end: int, step: int) -> Span:
        """Return the span whose windows are whole at each step."""
        return cls(-(-begin // step) * step, end // step * step, step, definition.segment_span)

    @property
    def first_read(self) -> int:
        """The time of the first event that a figure may depend on."""
        return self.begin - self.lookback

    def times(self) -> list[int]:
        """Return the times to read up to: some before the first step, then the steps."""
        lead = range(self.first_read, self.begin, max(1, self.lookback // _LEAD_STEPS))
        return [*lead, *range(self.begin, self.end + 1, self.step)]


class Follower:
    """One partition that follows its log; `next` is the number of its next record.

    It flushes at the steps, and after so many events since the last flush: the same wherever a
    killed run goes on.
    """

    def __init__(self, log: Log, partition: Partition, begin: int, decoder: EventDecoder) -> None:
        self.partition, self.next = partition, begin
        self._decoder = decoder
        self._records = log.read(begin)
        self._events: list[Event] = []
        self._numbers: list[int] = []
        self._at = 0

    def follow(self, until: int) -> Iterator[None]:
        """Apply the records before the first event later than `until`, a flush at a time."""
        room = _FLUSH_EVENTS
        while self._at < len(self._events) or self._read():
            begin, end = self._at, min(self._at + room, len(self._events))
            later = (index for index in range(begin, end) if self._events[index].ts > until)
            self._at = next(later, end)
            self.partition.apply(self._events[begin : self._at])
            self.next = self._numbers[self._at]
            if self._at < end:
                break
            room -= end - begin
            if not room:
                self.partition.flush()
                yield
                room = _FLUSH_EVENTS
        self.partition.flush()
        yield

    def close(self) -> None:
        """Close the files and connections of the log."""
        self._records.close()

    def _read(self) -> bool:
        """Decode the next records; False at the end of the log."""
        for records in self._records:
            events, found, *_ = self._decoder.decode_records(records.values, records.timestamps)
            self._events, self._at = events, 0
            self._numbers = [*(records.numbers[index] for index in found), records.numbers[-1] + 1]
            self.next = self._numbers[0]
            if events:
                return True
        return False


def backfill(
    definition: Definition,
    span: Span,
    logs: Sequence[Log],
    work: WorkFolder,
    *,
    labels: Mapping[str, str],
    advance: Advance,
    decoder: EventDecoder,
) -> None:
    """Put the figures of every step into the work folder, from where a killed run was.

    `labels` stand in every series. Experiments are left out: they are no figures of windows.
    """
    definition = replace(definition, experiments=())
    segments = ShownSegments(definition.max_segments)
    fresh = 0, [(Partition(definition), log.begin) for log in logs], segments
    done, partitions, segments = work.load() or fresh
    followers = [
        Follower(log, partition, begin, decoder)
        for log, (partition, begin) in zip(logs, partitions, strict=True)
    ]
    times = span.times()
    work.forget_from(times[done])
    advance(times[done] - times[0])
    save_at = time.monotonic() + SAVE_SECONDS
    with ExitStack() as closing:
        for each in followers:
            closing.callback(each.close)
        for index in range(done, len(times)):
            moment = times[index]
            for _ in chain.from_iterable(each.follow(moment) for each in followers):
                if time.monotonic() >= save_at:
                    kept = [(each.partition, each.next) for each in followers]
                    seconds = work.save((index, kept, segments))
                    save_at = time.monotonic() + max(SAVE_SECONDS, SAVE_SHARE * seconds)
            if moment >= span.begin:
                there = [each.partition for each in followers]
                sums = _sums(definition, there, moment, segments)
                work.add(moment, figure_samples(definition, figures(definition, sums), labels))
            advance(moment - times[max(index - 1, done)])


def _sums(
    definition: Definition, partitions: Sequence[Partition], moment: int, segments: ShownSegments
) -> Sums:
    """Return the sums of all partitions at T, as a worker with all of them has them."""
    curves = ArrivalCurves(definition, (partition.delays(moment) for partition in partitions))
    sums: Sums = {}
    present: set[Segment] = set()
    for partition in partitions:
        found = partition.sums(moment, curves)
        present.update(*(each.names for each in found.values()))
        sums = merge((sums, found), segments)
    segments.keep(present)
    return sums
