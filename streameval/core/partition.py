"""The state of one partition: events in, counters and figures out.

The data's way through the core:

1. `apply` hands events to `attribution`, which records what was shown and what came back.
2. `flush` has it attribute, judges the slates that changed (`verdict`) and books the difference to
   what was booked before: rows for the `windows`, deltas for the users' counters. Then it gives up
   what can no longer change.
3. `update_windows` has the rows of several flushes scored (`metrics`) and hands them to the
   windows; `sums` reads them at a time T; `figures` turns sums into rows.
4. `checkpoint` and `restore` are in `checkpoint`.

Everything is a function of the log: where a batch or a flush ends changes no figure.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from streameval.base.limits import FLUSH_STEP
from streameval.core.attribution import Attribution
from streameval.core.definition import Definition
from streameval.core.events import REASONS, Event
from streameval.core.figures import Sums, document, sums_of
from streameval.core.metrics import Scorer
from streameval.core.outcome import Outcome, outcome
from streameval.core.relevance import verdict
from streameval.core.slate import (
    IMPRESSIONS,
    NEVER,
    NOTHING,
    POSITIVES,
    SLATES,
    Ranking,
    Slate,
    UserDelta,
)
from streameval.core.windows.panes import Cells, Rows, WindowState, renumber

SMALLEST_RENUMBERING = 4096
MOST_BOOKED = 30_000  # rows that wait for the windows

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

Added = tuple[int, int]
"""What a flush added and what it took back (both not negative)."""


class SegmentChanges(NamedTuple):
    """What one flush booked: impressions by segment, positives by segment and index of the kind."""

    impressions: dict[tuple[str, ...], Added]
    positives: dict[tuple[tuple[str, ...], int], Added]


class Partition:
    """The state of one Kafka partition under a definition.

    `journal` keeps what changed for the next checkpoint; a finite replay needs none.
    `keep_outcomes` keeps what becomes of every slate for `outcomes_of`.
    """

    def __init__(
        self, definition: Definition, *, journal: bool = False, keep_outcomes: bool = False
    ) -> None:
        self.definition = definition
        self.cells = Cells()
        self.attribution = Attribution(
            definition,
            self.cells.of,
            journal=journal,
            keep_outcomes=keep_outcomes,
        )
        self.scorer = Scorer(definition.ks, definition.ndcg_gain)
        self.gains = self.attribution.gains
        columns = 1 + len(self.scorer.columns)
        self.windows = [
            WindowState(window, definition.horizon, len(self.gains), columns)
            for window in definition.windows
        ]
        self.reading_time: int | None = None
        self.rejected = dict.fromkeys(REASONS, 0)
        self.duplicate_feedback = 0
        self.journal = journal
        self.unsaved_panes: list[tuple[int, int]] = []
        self.chunks: list[Any] = []
        self.changes = SegmentChanges({}, {})
        self._booked = Rows()
        self._flushed: int | None = None
        self._renumber_at = SMALLEST_RENUMBERING

    # ---------------------------------------------------------------- reading

    @property
    def watermark(self) -> int | None:
        """The largest accepted ts (ms); None before the first event."""
        return self.attribution.watermark

    @property
    def users_touched(self) -> int:
        """Users with something to commit, at most (feedback not yet flushed counts as one)."""
        return len(self.attribution.deltas) + len(self.attribution.inbox)

    @property
    def events(self) -> dict[str, Any]:
        """The event counters of `replay`'s document; exact after a flush."""
        attribution = self.attribution
        return {
            "accepted": dict(attribution.accepted),
            "rejected": self.rejected | {"late": attribution.late},
            "duplicates": attribution.duplicate_impressions + self.duplicate_feedback,
            "unattributed": dict(attribution.unattributed),
            "waiting": attribution.waiting,
            "ignored": attribution.ignored,
        }

    def sums(self, reading_time: int | None = None) -> Sums:
        """The windows at T = max(watermark, `reading_time`, every T before); flush first."""
        if self.watermark is None:
            return {}
        self.update_windows()
        self.read_at(max(self.watermark, reading_time or 0))
        return sums_of(self.windows, self.cells, self.attribution.segments.values)

    def document(
        self, reading_time: int | None = None, users: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """What `streameval replay` prints of this partition."""
        sums = self.sums(reading_time)
        return document(self.definition, sums, self.watermark, self.events, users)

    # ---------------------------------------------------------------- writing

    def apply(self, events: Sequence[Event], offsets: Sequence[int] | None = None) -> list[int]:
        """Take in events in log order; answers the indices of the late ones (not applied).

        `offsets` of their records, parallel, stand in outcomes.
        """
        return self.attribution.apply(events, offsets)

    def reject(self, reason: str, count: int = 1) -> None:
        """Count events that could not be decoded."""
        self.rejected[reason] += count

    def take_given_up(self) -> list[Slate]:
        """The slates given up since the last call, which nothing changes any more.

        Call it right after a flush. Every slate that can be given up is: those that a restored
        state would give up at once.
        """
        return drained(self.giving_up())

    def giving_up(self) -> Generator[None, None, list[Slate]]:
        """Take what is given up in steps of bounded work, with the same answer."""
        yield from self.attribution.closing_exactly()
        slates = self.attribution.given_up
        self.attribution.given_up = []
        return [
            slate
            for slate in slates
            if slate.particulars is not None and slate.particulars.ts != NEVER
        ]

    def outcomes_of(self, slates: Sequence[Slate]) -> list[Outcome]:
        """Their rows; touches nothing of the state, so another thread may do it (15 us each)."""
        return [outcome(slate, self.gains, self.definition.kinds) for slate in slates]

    def flush(self) -> list[UserDelta]:
        """Attribute and book what came in since; answers what to add to the users' counters."""
        return drained(self.flushing())

    def flushing(self) -> Generator[None, None, list[UserDelta]]:
        """Flush in steps of bounded work, with the same answer; apply nothing until the end.

        Whoever reads figures in between sees some of what is being booked; reading changes nothing.
        """
        yield from self.attribution.resolving()
        rows = yield from self._book()
        self._booked.extend(rows)
        self.changes = self._changes(rows)
        deltas, self.attribution.deltas = list(self.attribution.deltas.values()), {}
        yield from self.attribution.closing()
        self._flushed = self.watermark
        if self.watermark is not None:
            self.reading_time = max(self.watermark, self.reading_time or 0)
        crowded = len(self.cells) > self._renumber_at
        segments = self.attribution.segments
        if crowded or len(self._booked) > MOST_BOOKED or segments.leaving:
            self.update_windows()
            segments.release()
        if crowded:
            self.cells = renumber(self.windows, self.cells)
            self.attribution.number_cells(self.cells.of)
            self._renumber_at = max(SMALLEST_RENUMBERING, 2 * len(self.cells))
        return deltas

    def update_windows(self) -> None:
        """Hand what was booked to the windows, and settle the panes that can no longer change.

        A flush leaves this undone until there is much: rows of many flushes cost little more
        than those of one. Whoever reads the windows calls it first. What was applied since the
        last flush is not booked, so it is that watermark by which panes settle.
        """
        if self._flushed is None:
            return
        rows, self._booked = self._booked, Rows()
        if len(rows):
            columns = rows.columns(self.cells, self.scorer)
            for state in self.windows:
                state.fit(len(self.cells))
                state.add(columns)
        self.read_at(self._flushed)
        for index, state in enumerate(self.windows):
            settled = state.settle(self._flushed)
            if self.journal:
                self.unsaved_panes += [(index, number) for number in settled]

    def read_at(self, time: int) -> None:
        """Move T on to `time` (ms), never back."""
        self.reading_time = max(time, self.reading_time or 0)
        for state in self.windows:
            state.fit(len(self.cells))
            state.read_at(self.reading_time)

    def _book(self) -> Generator[None, None, Rows]:
        """Book the difference between each dirty slate and what is booked of it."""
        rows, self.attribution.rows = self.attribution.rows, Rows()
        users = self.attribution.users
        cell_of = self.attribution.cell
        # Bound once: this loop sees every slate made of single impressions.
        note = self.attribution.note
        add_time, add_cell = rows.times.append, rows.cells.append
        add_impressions, add_slates = rows.impressions.append, rows.slates.append
        work = 0
        for slate in self.attribution.dirty:
            # To judge a slate costs as much as it has feedback.
            work += 1 + (len(slate.feedback) if isinstance(slate.feedback, dict) else 0)
            if work >= FLUSH_STEP:
                yield
                work = 0
            slate.dirty = False
            note(slate)
            user = users[slate.user]
            delta = self.attribution.deltas.get(slate.user)
            if delta is None:  # only while a checkpoint is restored
                delta = self.attribution.delta(slate.user, slate.time)
            segment, time = slate.segment, slate.time
            booked = slate.booked_segment
            moved = booked != segment or slate.booked_time != time
            if moved and booked != NEVER:
                self._take_back(slate, delta, rows)
            cell = user.cell if user.cell_segment == segment else cell_of(user, segment)
            if moved:
                shown = slate.size()
                slate.booked_segment = segment
                slate.booked_time = time
                is_slate = 0 if slate.request is None else 1
                delta[SLATES] += is_slate
                add_time(time)
                add_cell(cell)
                add_impressions(shown)
                add_slates(is_slate)
                delta[IMPRESSIONS] += shown
                slate.booked_impressions = shown
            elif isinstance(slate.shown, dict):  # a list kept as it came has not grown
                more = len(slate.shown) - slate.booked_impressions
                if more:
                    add_time(time)
                    add_cell(cell)
                    add_impressions(more)
                    add_slates(0)
                    delta[IMPRESSIONS] += more
                    slate.booked_impressions += more
            if slate.feedback or slate.soft or slate.booked_verdict is not NOTHING:
                self._judge(slate, delta, cell, rows)
        self.attribution.dirty.clear()
        return rows

    def _changes(self, rows: Rows) -> SegmentChanges:
        values = self.attribution.segments.values
        segment_of = self.cells.segments
        impressions = _by_key([segment_of[cell] for cell in rows.cells], rows.impressions)
        kinds = len(self.gains)
        keys = [
            segment_of[cell] * kinds + kind
            for cell, kind in zip(rows.positive_cells, rows.positive_kinds, strict=True)
        ]
        positives = _by_key(keys, rows.positives)
        return SegmentChanges(
            _by_name((values[segment], added) for segment, added in impressions.items()),
            _by_name(
                ((values[key // kinds], key % kinds), added) for key, added in positives.items()
            ),
        )

    def _take_back(self, slate: Slate, delta: UserDelta, rows: Rows) -> None:
        """Undo all that is booked of a slate that moved to another time or segment."""
        cell = self.cells.of(slate.user, slate.booked_segment)
        is_slate = 0 if slate.request is None else 1
        rows.times.append(slate.booked_time)
        rows.cells.append(cell)
        rows.impressions.append(-slate.booked_impressions)
        rows.slates.append(-is_slate)
        delta[IMPRESSIONS] -= slate.booked_impressions
        delta[SLATES] -= is_slate
        _, _, duplicates = slate.booked_verdict
        self._book_positives(slate, delta, cell, None, rows)
        self._book_ranking(slate, cell, None, rows)
        slate.booked_verdict = (None, None, duplicates)

    def _judge(self, slate: Slate, delta: UserDelta, cell: int, rows: Rows) -> None:
        judged = verdict(slate, self.gains)
        positives, ranking, duplicates = judged
        before = slate.booked_verdict
        self.duplicate_feedback += duplicates - before[2]
        if positives != before[0]:
            self._book_positives(slate, delta, cell, positives, rows)
        if ranking != before[1]:
            self._book_ranking(slate, cell, ranking, rows)
        slate.booked_verdict = judged

    def _book_positives(
        self,
        slate: Slate,
        delta: UserDelta,
        cell: int,
        positives: tuple[int, ...] | None,
        rows: Rows,
    ) -> None:
        nothing = self.attribution.no_positives
        before, after = slate.booked_verdict[0] or nothing, positives or nothing
        for kind, count in enumerate(after):
            change = count - before[kind]
            if change:
                rows.add_positives(slate.booked_time, cell, kind, change)
                delta[POSITIVES + kind] += change

    def _book_ranking(self, slate: Slate, cell: int, ranking: Ranking | None, rows: Rows) -> None:
        booked = slate.booked_verdict[1]
        if booked is not None:
            rows.add_ranking(slate.booked_time, cell, booked, -1)
        if ranking is not None:
            rows.add_ranking(slate.booked_time, cell, ranking, 1)


def drained(steps: Generator[None, None, T]) -> T:
    """Take all steps in one go; answers what they come to."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            answer: T = end.value
            return answer


def _by_key(keys: list[int], values: list[int]) -> dict[int, Added]:
    if not keys:
        return {}
    index, changes = np.array(keys, np.int64), np.array(values, np.int64)
    added = np.bincount(index, weights=np.maximum(changes, 0)).astype(np.int64).tolist()
    taken = np.bincount(index, weights=np.maximum(-changes, 0)).astype(np.int64).tolist()
    return {key: pair for key, pair in enumerate(zip(added, taken, strict=True)) if pair != (0, 0)}


def _by_name(found: Iterable[tuple[K, Added]]) -> dict[K, Added]:
    """What was added by name: a segment that came back has two indices until its first is free."""
    named: dict[K, Added] = {}
    for name, (added, taken) in found:
        before = named.get(name, (0, 0))
        named[name] = (before[0] + added, before[1] + taken)
    return named
