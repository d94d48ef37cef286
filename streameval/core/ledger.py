"""The ledger: books changes, as rows for the windows and deltas for users' counters.

A slate is booked as it stands. When it changes, the difference is booked: rows may be negative. Two
things are booked at once, because nearly always nothing changes them: a list that comes whole as a
slate of its own, and the first feedback to a slate. All other slates are looked at once a flush.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from streameval.base.arrays import Ints
from streameval.base.limits import FLUSH_STEP, SCORE_SLICE
from streameval.core.definition import Definition
from streameval.core.delays import slots_of
from streameval.core.list_shapes import ListShapes
from streameval.core.marks import NEVER, several
from streameval.core.relevance import Judge
from streameval.core.segments import Segments
from streameval.core.slate import NO_FEEDBACK, Relevance, Slate
from streameval.core.users import User
from streameval.core.windows.aggregate import Aggregate, WorthRows
from streameval.core.windows.aggregates import CountRows, PositiveRows
from streameval.core.windows.lists import LatencyRows, ListRows
from streameval.core.windows.scores import ScoreRows
from streameval.core.windows.tables import Cells, Table, TimedTable

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
    """Bookings of one flush: impressions by segment, positives by segment and index of the kind.

    `latencies` (us) by segment come from the lists that were booked with one. `delays` are the
    delays added, by slot of `core.delays`.
    """

    impressions: dict[tuple[str, ...], Added]
    positives: dict[tuple[tuple[str, ...], int], Added]
    latencies: dict[tuple[str, ...], list[int]]
    delays: dict[int, int]


class Rows:
    """Rows that were booked since the last flush: in `buffers`, one for each aggregate in order.

    `changes` are told of every change of the worth of a slate. The other names are those of the
    buffers that are booked one by one.
    """

    __slots__ = ("buffers", "changes", "counts", "latencies", "lists", "positives", "scores")

    def __init__(self, aggregates: Sequence[Aggregate]) -> None:
        named: dict[str, Any] = {}
        for one in aggregates:
            shared = one.wanted and one.reads_rows_of
            named[one.name] = named[one.reads_rows_of] if shared else one.rows()
        self.buffers = list(named.values())
        self.counts: CountRows = named["counts"]
        self.positives: PositiveRows = named["positives"]
        self.scores: ScoreRows = named["scores"]
        self.lists: ListRows = named["lists"]
        self.latencies: LatencyRows = named["latencies"]
        self.changes = [
            named[one.name].change
            for one in aggregates
            if one.wanted and not one.reads_rows_of and isinstance(named[one.name], WorthRows)
        ]

    @property
    def size(self) -> int:
        """The number of rows."""
        return sum(map(len, self.buffers))


class Ledger:
    """The rows and deltas of one partition since the last flush, and the cells of its users.

    `gains` by index of the kind; `duplicate_feedback` counts over the life of the state.
    """

    def __init__(
        self, definition: Definition, segments: Segments, aggregates: Sequence[Aggregate]
    ) -> None:
        self.cells = Cells()
        self.aggregates = aggregates
        self.deltas: dict[str, UserDelta] = {}
        self.changes = SegmentChanges({}, {}, {}, {})
        self.duplicate_feedback = 0
        self.no_positives = (0,) * len(definition.kinds)
        self._segments = segments
        self.shapes = ListShapes(definition)
        self.has_lists = "lists" in definition.figures
        self.judge = Judge(definition, follows="nowcast" in definition.figures)
        self.gains = self.judge.gains
        self.rows = Rows(self.aggregates)

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

    def book_first(  # noqa: PLR0917  # on the hot path, in the order of a feedback's fields
        self,
        user: User,
        slate: Slate,
        item: str,
        kind: int,
        ts: int,
        packed: int,
        micro: int | None,
    ) -> None:
        """Book the first feedback to a slate whose impressions are booked; `micro` is its value."""
        time, cell = slate.time, self.cell(user, slate.segment)
        judged = self.judge.first(kind, slate.rank(item, packed), ts - time, micro)
        slate.booked = judged
        self.rows.positives.add(time, cell, kind, 1)
        for change in self.rows.changes:
            change(time, cell, NO_FEEDBACK, judged)
        known = slate.booked_list
        if known is not None:
            hits = judged.hits
            shape = self.shapes.of(known.size, known.ranks, fallback=known.fallback, hits=hits)
            self.rows.lists.add(time, cell, known, shape)
            slate.booked_list = shape

    def booking(
        self, slates: Iterable[Slate], users: Mapping[str, User], note: Callable[[Slate], None]
    ) -> Generator[None, None, list[list[TimedTable]]]:
        """Book each slate less its earlier bookings, in bounded steps.

        Returns the rows since the last flush in one part or several, each with a table for each
        aggregate. `note` is called for each slate.
        """
        work, has_lists = 0, self.has_lists
        parts: list[list[TimedTable]] = []
        booked: list[Rows] = []
        for slate in slates:
            work += 1
            if has_lists or slate.feedback or slate.provisional:
                # To judge costs as much as there is feedback, and to rank a long list counts too.
                work += several(slate.feedback) + several(slate.provisional) + slate.size() // 64
            if work >= FLUSH_STEP:
                yield
                work = 0
            slate.dirty = False
            note(slate)
            self._book(slate, users[slate.user])
            if len(self.rows.scores) >= SCORE_SLICE:
                parts.append(self._tables(booked))
                yield
        parts.append(self._tables(booked))
        whole = [
            Table.joined([part.table for part in tables]) for tables in zip(*parts, strict=True)
        ]
        self.changes = self._changes(whole, booked)
        return parts

    def take_deltas(self) -> list[UserDelta]:
        """Return what to add to the users' counters since the last call."""
        deltas, self.deltas = list(self.deltas.values()), {}
        return deltas

    def _tables(self, booked: list[Rows]) -> list[TimedTable]:
        """Return the rows so far as tables, put them to those `booked`, and begin anew."""
        rows, self.rows = self.rows, Rows(self.aggregates)
        booked.append(rows)
        return [
            aggregate.table(buffer, self.cells)
            for aggregate, buffer in zip(self.aggregates, rows.buffers, strict=True)
        ]

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
        has_list = self.has_lists and slate.request is not None
        ranks = None
        if slate.feedback or slate.provisional or slate.booked is not NO_FEEDBACK:
            if has_list and not slate.is_packed:
                ranks = slate.ranks()
            self._judge(slate, delta, cell, ranks)
        if has_list:
            self.book_list(slate, cell, ranks)

    def _retract(self, slate: Slate, delta: UserDelta) -> None:
        """Undo all bookings of a slate that moved to another time or segment."""
        cell = self.cells.of(slate.user, slate.booked_segment)
        is_slate = 0 if slate.request is None else 1
        self.rows.counts.add(slate.booked_time, cell, -slate.booked_impressions, -is_slate)
        delta[IMPRESSIONS] -= slate.booked_impressions
        delta[SLATES] -= is_slate
        self._book_worth(slate, delta, cell, NO_FEEDBACK)
        slate.booked = NO_FEEDBACK._replace(duplicates=slate.booked.duplicates)
        if slate.booked_list is not None:
            self.rows.lists.add(slate.booked_time, cell, slate.booked_list, None)
            self.rows.latencies.add(slate.booked_time, cell, slate.booked_extras, 0)
            slate.booked_list, slate.booked_extras = None, 0

    def _judge(
        self, slate: Slate, delta: UserDelta, cell: int, ranks: Mapping[str, int] | None
    ) -> None:
        judged = self.judge.relevance(slate, ranks)
        self.duplicate_feedback += judged.duplicates - slate.booked.duplicates
        self._book_worth(slate, delta, cell, judged)
        slate.booked = judged

    def _book_worth(self, slate: Slate, delta: UserDelta, cell: int, after: Relevance) -> None:
        """Book the change of a slate that is worth `after` now."""
        before, time, rows = slate.booked, slate.booked_time, self.rows
        if after.positives != before.positives:
            booked = before.positives or self.no_positives
            for kind, count in enumerate(after.positives or self.no_positives):
                change = count - booked[kind]
                if change:
                    rows.positives.add(time, cell, kind, change)
                    delta[POSITIVES + kind] += change
        for change in rows.changes:
            change(time, cell, before, after)

    def book_list(self, slate: Slate, cell: int, ranks: Mapping[str, int] | None = None) -> None:
        """Book shape and latency of the list of a slate with a request.

        `ranks` of its items, if they are known.
        """
        extras, known = slate.extras, slate.booked_list
        size, rising = slate.size(), None
        if ranks is None and not slate.is_in_order():
            ranks = slate.ranks()
        if ranks and max(ranks.values()) != size:
            rising = tuple(sorted(ranks.values()))
        shape = self.shapes.of(size, rising, fallback=extras & 1, hits=slate.booked.hits)
        if shape is not known:
            self.rows.lists.add(slate.time, cell, known, shape)
            slate.booked_list = shape
        if extras != slate.booked_extras:
            self.rows.latencies.add(slate.time, cell, slate.booked_extras, extras)
            slate.booked_extras = extras

    def _changes(self, tables: Sequence[Table], booked: Sequence[Rows]) -> SegmentChanges:
        named = {one.name: table for one, table in zip(self.aggregates, tables, strict=True)}
        counts, positives, delays = named["counts"], named["positives"], named["delays"]
        values = self._segments.values
        measured: dict[tuple[str, ...], list[int]] = {}
        for cell, latency in chain.from_iterable(rows.latencies.begun() for rows in booked):
            measured.setdefault(values[self.cells.segments[cell]], []).append(latency)
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
            measured,
            _added_slots(delays, slots_of(kinds)),
        )


def _added_slots(delays: Table, slots: int) -> dict[int, int]:
    """Return the delays added by slot, over all segments; retracted ones stay in a histogram."""
    changes = _by_key(delays.keys.astype(np.int64) % slots, delays.values[0])
    return {slot: added for slot, (added, _) in changes.items() if added}


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
