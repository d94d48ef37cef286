"""The ledger: books changes, as rows for the windows and deltas for users' counters.

A slate is booked as it stands. When it changes, the difference is booked: rows may be negative. Two
things are booked at once, because nearly always nothing changes them: a list that comes whole as a
slate of its own, and the first feedback to a slate. All other slates are looked at once a flush.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from streameval.base.arrays import Ints
from streameval.base.limits import FLUSH_STEP
from streameval.core.definition import Definition
from streameval.core.marks import NEVER, several
from streameval.core.metrics import RelevantItems
from streameval.core.relevance import of_one, relevance
from streameval.core.segments import Segments
from streameval.core.slate import NO_FEEDBACK, Slate
from streameval.core.users import User
from streameval.core.windows.aggregates import (
    Aggregate,
    CountRows,
    PositiveRows,
    ScoreRows,
)
from streameval.core.windows.cells import Cells
from streameval.core.windows.tables import Table, TimedTable

K = TypeVar("K", bound=Hashable)

UserDelta = list[Any]
"""Increments of a user's counters: the user's id, impressions, slates, first and last ts (ms),
positives by index of the kind. The numbers below are its indices."""
IMPRESSIONS: Final = 1
SLATES: Final = 2
FIRST_TS: Final = 3
LAST_TS: Final = 4
POSITIVES: Final = 5

Added = tuple[int, int]
"""The number that a flush added, and the number that it retracted (neither negative)."""


class SegmentChanges(NamedTuple):
    """Bookings of one flush: impressions by segment, positives by segment and index of the kind."""

    impressions: dict[tuple[str, ...], Added]
    positives: dict[tuple[tuple[str, ...], int], Added]


class Rows(NamedTuple):
    """Rows that were booked since the last flush: one buffer for each aggregate, in their order."""

    counts: CountRows
    positives: PositiveRows
    scores: ScoreRows

    @property
    def size(self) -> int:
        """The number of rows."""
        return sum(map(len, self))


class Ledger:
    """The rows and deltas of one partition since the last flush, and the cells of its users.

    `gains` by index of the kind; `duplicate_feedback` counts over the life of the state.
    """

    def __init__(
        self, definition: Definition, segments: Segments, aggregates: Sequence[Aggregate]
    ) -> None:
        self.gains = [definition.gain(kind) for kind in definition.kinds]
        self.cells = Cells()
        self.aggregates = aggregates
        self.rows = self._empty()
        self.deltas: dict[str, UserDelta] = {}
        self.changes = SegmentChanges({}, {})
        self.duplicate_feedback = 0
        self.no_positives = (0,) * len(self.gains)
        self._segments = segments

    def delta(self, user_id: str, ts: int) -> UserDelta:
        """Return the delta of a user, who has an event at `ts`."""
        delta = self.deltas.get(user_id)
        if delta is None:
            delta = self.deltas[user_id] = [user_id, 0, 0, ts, ts, *self.no_positives]
        elif ts > delta[LAST_TS]:
            delta[LAST_TS] = ts
        elif ts < delta[FIRST_TS]:
            delta[FIRST_TS] = ts
        return delta

    def cell(self, user: User, segment: int) -> int:
        """Return the number of (user, segment), and remember it for the next time."""
        if user.cell_segment != segment:
            user.cell = self.cells.of(user.id, segment)
            user.cell_segment = segment
        return user.cell

    def book_first(self, user: User, slate: Slate, item: str, kind: int, packed: int) -> None:
        """Book the first feedback to a slate whose impressions are booked."""
        gain = self.gains[kind]
        rank = slate.rank(item, packed) if gain > 0 else 0
        slate.booked = of_one(kind, len(self.gains), gain, rank, scored=True)
        _, relevant, _ = slate.booked
        assert relevant is not None, "a slate with a request is scored"
        cell = self.cell(user, slate.segment)
        self.rows.positives.add(slate.time, cell, kind, 1)
        self.rows.scores.add(slate.time, cell, relevant, 1)

    def booking(
        self, slates: Iterable[Slate], users: Mapping[str, User], note: Callable[[Slate], None]
    ) -> Generator[None, None, list[TimedTable]]:
        """Book each slate less its earlier bookings, in bounded steps.

        Returns the rows since the last flush, a table for each aggregate. `note` is called for
        each slate.
        """
        work = 0
        for slate in slates:
            # To judge a slate costs as much as it has feedback.
            work += 1 + several(slate.feedback)
            if work >= FLUSH_STEP:
                yield
                work = 0
            slate.dirty = False
            note(slate)
            self._book(slate, users[slate.user])
        rows, self.rows = self.rows, self._empty()
        tables = [
            TimedTable(np.array(buffer.times, np.int64), aggregate.table(buffer, self.cells))
            for aggregate, buffer in zip(self.aggregates, rows, strict=True)
        ]
        self.changes = self._changes(tables[0].table, tables[1].table)
        return tables

    def take_deltas(self) -> list[UserDelta]:
        """Return what to add to the users' counters since the last call."""
        deltas, self.deltas = list(self.deltas.values()), {}
        return deltas

    def _book(self, slate: Slate, user: User) -> None:
        delta = self.deltas.get(slate.user)
        if delta is None:  # only while a checkpoint is restored
            delta = self.delta(slate.user, slate.time)
        segment, time = slate.segment, slate.time
        moved = slate.booked_segment != segment or slate.booked_time != time
        if moved and slate.booked_segment != NEVER:
            self._retract(slate, delta)
        cell = self.cell(user, segment)
        if moved:
            is_slate = 0 if slate.request is None else 1
            more = slate.booked_impressions = slate.size()
            slate.booked_segment = segment
            slate.booked_time = time
            delta[SLATES] += is_slate
            delta[IMPRESSIONS] += more
            self.rows.counts.add(time, cell, more, is_slate)
        else:
            more = slate.grown()
            if more:
                slate.booked_impressions += more
                delta[IMPRESSIONS] += more
                self.rows.counts.add(time, cell, more, 0)
        if slate.feedback or slate.provisional or slate.booked is not NO_FEEDBACK:
            self._judge(slate, delta, cell)

    def _retract(self, slate: Slate, delta: UserDelta) -> None:
        """Undo all bookings of a slate that moved to another time or segment."""
        cell = self.cells.of(slate.user, slate.booked_segment)
        is_slate = 0 if slate.request is None else 1
        self.rows.counts.add(slate.booked_time, cell, -slate.booked_impressions, -is_slate)
        delta[IMPRESSIONS] -= slate.booked_impressions
        delta[SLATES] -= is_slate
        _, _, duplicates = slate.booked
        self._book_positives(slate, delta, cell, None)
        self._book_score(slate, cell, None)
        slate.booked = (None, None, duplicates)

    def _judge(self, slate: Slate, delta: UserDelta, cell: int) -> None:
        judged = relevance(slate, self.gains)
        positives, relevant, duplicates = judged
        before = slate.booked
        self.duplicate_feedback += duplicates - before[2]
        if positives != before[0]:
            self._book_positives(slate, delta, cell, positives)
        if relevant != before[1]:
            self._book_score(slate, cell, relevant)
        slate.booked = judged

    def _book_positives(
        self, slate: Slate, delta: UserDelta, cell: int, positives: tuple[int, ...] | None
    ) -> None:
        before, after = slate.booked[0] or self.no_positives, positives or self.no_positives
        for kind, count in enumerate(after):
            change = count - before[kind]
            if change:
                self.rows.positives.add(slate.booked_time, cell, kind, change)
                delta[POSITIVES + kind] += change

    def _book_score(self, slate: Slate, cell: int, relevant: RelevantItems | None) -> None:
        booked = slate.booked[1]
        if booked is not None:
            self.rows.scores.add(slate.booked_time, cell, booked, -1)
        if relevant is not None:
            self.rows.scores.add(slate.booked_time, cell, relevant, 1)

    def _empty(self) -> Rows:
        return Rows(*(aggregate.rows() for aggregate in self.aggregates))

    def _changes(self, counts: Table, positives: Table) -> SegmentChanges:
        values = self._segments.values
        segments, _ = self.cells.arrays()
        impressions = _by_key(segments[counts.keys], counts.values[0])
        kinds = len(self.gains)
        keys = segments[positives.keys // kinds] * kinds + positives.keys % kinds
        return SegmentChanges(
            _by_name((values[segment], added) for segment, added in impressions.items()),
            _by_name(
                ((values[key // kinds], key % kinds), added)
                for key, added in _by_key(keys, positives.values[0]).items()
            ),
        )


def _by_key(keys: Ints, changes: Any) -> dict[int, Added]:
    if not len(keys):
        return {}
    added = np.bincount(keys, weights=np.maximum(changes, 0)).astype(np.int64).tolist()
    retracted = np.bincount(keys, weights=np.maximum(-changes, 0)).astype(np.int64).tolist()
    pairs = enumerate(zip(added, retracted, strict=True))
    return {key: pair for key, pair in pairs if pair != (0, 0)}


def _by_name(found: Iterable[tuple[K, Added]]) -> dict[K, Added]:
    """Add up by name: a segment that came back has two indices until the first one is free."""
    named: dict[K, Added] = {}
    for name, (added, retracted) in found:
        before = named.get(name, (0, 0))
        named[name] = (before[0] + added, before[1] + retracted)
    return named
