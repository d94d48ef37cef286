"""The state of one partition: events in, counters and figures out.

The way of an event through the core:

1. `apply` hands events to `attribution`: impressions go into `open_slates`, feedback into a list.
2. `flush` attributes the feedback, judges the slates that changed (`relevance`), and has the
   `ledger` book the difference to earlier bookings: rows for the `windows`, deltas for the
   users' counters. Then it finalizes slates that can no longer change.
3. `update_windows` hands the rows of several flushes to the windows; `sums` reads the windows at a
   time T; `figures` turns sums into rows.
4. `checkpoint` writes and restores the parts.

Everything is a function of the log: no figure depends on where a batch or a flush ends.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any

from streameval.base.arrays import Ints
from streameval.base.steps import drain
from streameval.core.attribution import Attribution
from streameval.core.definition import Definition
from streameval.core.events import REASONS, Event
from streameval.core.experiments.sums import ExperimentSums
from streameval.core.figures import document
from streameval.core.final_slates import FinalConsumer
from streameval.core.ledger import Ledger, SegmentChanges, UserDelta
from streameval.core.marks import NEVER
from streameval.core.nowcast import ArrivalCurves, delays_of
from streameval.core.open_slates import OpenSlates
from streameval.core.outcome import Outcome, outcome
from streameval.core.segments import Segments
from streameval.core.slate import Slate
from streameval.core.sums import Sums, SumsReader
from streameval.core.windows.aggregates import AGGREGATES
from streameval.core.windows.panes import Windows
from streameval.core.windows.tables import TimedTable

MOST_BOOKED = 30_000  # rows that wait for the windows
FORGOTTEN = 10_000  # users whose number in the windows is forgotten in one step: 1 ms
HANDED_OVER = 1_000  # final slates taken in together: 2 ms


class Partition:
    """The state of one Kafka partition under a definition.

    `journal` keeps what changed for the next checkpoint; a finite replay needs none.
    `keep_outcomes` keeps final slates for `outcomes_of`. `finals` take in each final slate once,
    and their state is part of the checkpoint: the sums of the `experiments`, if there are any.
    """

    def __init__(
        self,
        definition: Definition,
        *,
        journal: bool = False,
        keep_outcomes: bool = False,
    ) -> None:
        self.definition = definition
        self.journal = journal
        self.keep_outcomes = keep_outcomes
        self.segments = Segments(
            definition.dimensions,
            definition.max_segments,
            definition.segment_span,
            len(definition.labels),
        )
        aggregates = [aggregate(definition) for aggregate in AGGREGATES]
        self.ledger = Ledger(definition, self.segments, aggregates)
        self.slates = OpenSlates(
            definition,
            self.segments,
            self.ledger,
            journal=journal,
            keep_outcomes=keep_outcomes,
        )
        self.experiments = ExperimentSums(definition, self.segments, aggregates)
        self.finals: list[FinalConsumer] = [self.experiments] if definition.experiments else []
        self.slates.keep_finalized = keep_outcomes or bool(self.finals)
        self.attribution = Attribution(definition, self.slates, self.ledger)
        self.windows = Windows(definition, self.ledger.cells, aggregates, journal=journal)
        self._sums = SumsReader(self.windows, self.segments.values)
        self.rejected = dict.fromkeys(REASONS, 0)
        self.chunks: list[Any] = []
        self._booked: list[list[TimedTable]] = []
        self._booked_rows = 0
        self._flushed: int | None = None
        self._outcomes: list[Slate] = []

    # ---------------------------------------------------------------- reading

    @property
    def watermark(self) -> int | None:
        """The largest accepted ts (ms); None before the first event."""
        return self.attribution.watermark

    @property
    def reading_time(self) -> int | None:
        """The time T (ms) at which the windows were read last; None before that."""
        return self.windows.reading_time

    @property
    def users_touched(self) -> int:
        """Users with something to commit, at most (feedback not yet flushed counts as one)."""
        return len(self.ledger.deltas) + len(self.attribution.inbox)

    @property
    def changes(self) -> SegmentChanges:
        """The bookings of the last flush."""
        return self.ledger.changes

    @property
    def events(self) -> dict[str, Any]:
        """The event counters of `replay`'s document; exact after a flush."""
        attribution = self.attribution
        duplicates = self.slates.duplicate_impressions + self.ledger.duplicate_feedback
        return {
            "accepted": dict(attribution.accepted),
            "rejected": self.rejected | {"late": attribution.late},
            "duplicates": duplicates,
            "unattributed": dict(attribution.unattributed),
            "waiting": attribution.waiting,
            "ignored": attribution.ignored,
        }

    @property
    def waiting_outcomes(self) -> int:
        """The number of final slates that `finalizing` would return."""
        return len(self._outcomes)

    @property
    def overflow(self) -> dict[str, int]:
        """The number beyond each bound, by the bound."""
        return {
            "feedback": self.attribution.overflow_feedback,
            "items": self.slates.overflow_items,
            "segments": self.segments.overflowed,
        }

    def delays(self, reading_time: int | None = None) -> dict[tuple[str, ...], Ints]:
        """Return the delays that nowcasts take, by segment; T is as for `sums`; flush first."""
        if not self._read(reading_time):
            return {}
        return delays_of(self.windows, self.segments.values)

    def sums(self, reading_time: int | None = None, curves: ArrivalCurves | None = None) -> Sums:
        """Return the windows at T = max(watermark, `reading_time`, every T before); flush first.

        `curves` come from this partition if none are given. Sums of partitions add up if all took
        the same `curves`, made from all of them together.
        """
        if not self._read(reading_time):
            return {}
        if curves is None:
            curves = ArrivalCurves(self.definition, [self.delays(reading_time)])
        return self._sums.read(curves)

    def _read(self, reading_time: int | None) -> bool:
        """Move the windows to T; False before the first event."""
        if self.watermark is None:
            return False
        self.update_windows()
        self.windows.read_at(max(self.watermark, reading_time or 0))
        return True

    def document(
        self, reading_time: int | None = None, users: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return what `streameval replay` prints of this partition."""
        sums = self.sums(reading_time)
        return document(self.definition, sums, self.watermark, self.events, users)

    # ---------------------------------------------------------------- writing

    def apply(self, events: Sequence[Event], offsets: Sequence[int] | None = None) -> list[int]:
        """Take in events in log order; returns the indices of the late ones (not applied).

        `offsets` of their records, parallel, stand in outcomes.
        """
        return self.attribution.apply(events, offsets)

    def reject(self, reason: str, count: int = 1) -> None:
        """Count events that could not be decoded."""
        self.rejected[reason] += count

    def finalizing(self) -> Generator[None, None, list[Slate]]:
        """Finalize every slate that can be, in steps of bounded work; call it after a flush.

        Returns the slates finalized since the last call, in the form for `outcomes_of`: without
        those that are older than their details. None where no outcomes are kept.
        """
        yield from self._closing(exactly=True)
        for consumer in self.finals:
            yield from consumer.settling()
        slates, self._outcomes = self._outcomes, []
        return [slate for slate in slates if slate.details is not None and slate.details.is_whole]

    def _closing(self, *, exactly: bool = False) -> Iterator[None]:
        """Finalize slates, and hand them to the consumers while their segments are known."""
        if self.watermark is None:
            return
        for _ in self.slates.closing(self.watermark, exactly=exactly):
            if len(self.slates.finalized) >= HANDED_OVER:
                self._hand_over()
            yield
        self._hand_over()

    def _hand_over(self) -> None:
        slates, self.slates.finalized = self.slates.finalized, []
        if slates:
            for consumer in self.finals:
                consumer.add(slates)
        if self.keep_outcomes:
            self._outcomes += slates

    def outcomes_of(self, slates: Sequence[Slate]) -> list[Outcome]:
        """Return their rows; it touches no state, so another thread may do it (15 us each)."""
        return [outcome(slate, self.ledger.gains, self.definition.kinds) for slate in slates]

    def flush(self) -> list[UserDelta]:
        """Attribute and book all that came in since; returns what to add to users' counters."""
        return drain(self.flushing())

    def flushing(self) -> Generator[None, None, list[UserDelta]]:
        """Flush in steps of bounded work, with the same result; apply nothing until the end.

        Figures that are read in between show a part of the bookings; reading changes nothing.
        """
        yield from self.attribution.resolving()
        slates = self.slates
        parts = yield from self.ledger.booking(slates.dirty, slates.users, slates.note)
        slates.dirty.clear()
        self._booked += parts
        self._booked_rows += sum(len(table.times) for tables in parts for table in tables)
        deltas = self.ledger.take_deltas()
        if self.watermark is not None:
            yield from self._closing()
            self.windows.reading_time = max(self.watermark, self.reading_time or 0)
        self._flushed = self.watermark
        yield from self.windows.fitting()
        crowded = self.windows.crowded
        if crowded or self._booked_rows > MOST_BOOKED or self.segments.leaving:
            self.update_windows()
            self.segments.release()
        if crowded:
            yield from self._renumbering()
        return deltas

    def _renumbering(self) -> Iterator[None]:
        yield from self.windows.renumbering()
        for number, user in enumerate(self.slates.users.values(), 1):
            user.cell_segment = NEVER
            if number % FORGOTTEN == 0:
                yield

    def emptying(self) -> Iterator[None]:
        """Free what is open, in bounded steps, where nobody goes on with this state.

        Millions of slates that are freed at once hold the loop for seconds. The windows stay as
        they are: somebody may still read them.
        """
        yield from self.slates.emptying()
        yield from self.attribution.emptying()

    def update_windows(self) -> None:
        """Hand the booked rows to the windows, and settle the panes that can no longer change.

        A flush leaves this undone until there is much: rows of many flushes cost little more
        than rows of one. Call it before you read the windows. Events applied since the last
        flush are not booked, so panes settle by the watermark of that flush.
        """
        if self._flushed is None:
            return
        if self._booked_rows:
            self.windows.add(self._booked)
        self._booked, self._booked_rows = [], 0
        self.windows.read_at(self._flushed)
        self.windows.settle(self._flushed)
