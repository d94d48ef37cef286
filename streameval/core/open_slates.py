"""Open slates: impressions become slates, and slates that can no longer change are finalized.

This half of `attribution` needs no feedback; the rules stand there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from streameval.base.limits import FLUSH_STEP, MAX_ITEMS
from streameval.core.definition import Definition
from streameval.core.events import ImpressionEvent, Labels, SlateEvent, label_reader, label_values
from streameval.core.ledger import FIRST_TS, IMPRESSIONS, LAST_TS, SLATES, Ledger, UserDelta
from streameval.core.marks import NEVER
from streameval.core.segments import Segments
from streameval.core.slate import (
    POSITION_BITS,
    POSITION_MASK,
    Slate,
    SlateDetails,
    sharing,
    whole_items,
)
from streameval.core.users import Slates, User


class Closing(NamedTuple):
    """Slates that can be finalized at about the same time, and their users: parallel lists."""

    slates: deque[Slate]
    users: deque[User]


class SlateRun(msgspec.Struct, gc=False, eq=False):
    """An open slate that was shown since the flush: most impressions add an item to the last one.

    An impression of the same user, request and labels, at a time from `first` to `last` (ms), that
    shows another item changes nothing else: the slate neither begins nor moves, its segment is not
    in question, and the next flush looks at it in any case. Its last impression had `ts`.
    `shown` has the newest ts of each segment.
    """

    slate: Slate
    items: dict[str, int]
    user: str
    labels: Labels
    anchor: int
    details: SlateDetails | None
    first: int
    last: int
    delta: UserDelta
    segment: int
    shown: list[int]
    ts: int = NEVER

    def goes_on(self, ts: int) -> bool:
        """Go on at another time; return False, and do nothing, where it decides or is too late."""
        if not self.first <= ts <= self.last:
            return False
        self.ts = ts
        delta = self.delta
        if ts > delta[LAST_TS]:  # `max` takes a tenth of an event
            delta[LAST_TS] = ts
        elif ts < delta[FIRST_TS]:
            delta[FIRST_TS] = ts
        if ts > self.shown[self.segment]:  # noqa: PLR1730  # the same
            self.shown[self.segment] = ts
        return True

    def note(self, event: Any) -> None:
        """Note what an impression says beside its item."""
        if event.latency_ms is not None or event.fallback:
            self.slate.note_extras(event)
        if self.details is not None:
            self.details.keep_score(event.item_id, event.score, event.propensity)


# Slates that are known by their request at a time: some 300 bytes each.
MAX_RECENT: Final = 4_096


class OpenSlates:
    """The users and open slates of one partition.

    With `journal`, `unsaved` takes the slates that the next checkpoint has to write; with
    `keep_outcomes` slates keep the fields of outcome files, and with arms of experiments
    (`keep_details`) the labels alone. So do slates beyond `max_segments`, whose segment does not
    tell them. `dirty` are the slates that the next flush looks at, `offset` belongs to the record
    being applied.
    """

    def __init__(
        self,
        definition: Definition,
        segments: Segments,
        ledger: Ledger,
        *,
        journal: bool = False,
        keep_outcomes: bool = False,
    ) -> None:
        self.definition = definition
        self.segments = segments
        self.ledger = ledger
        self.journal = journal
        self.keep_outcomes = keep_outcomes
        self.keep_details = keep_outcomes or bool(definition.arm_fields)
        self.labels_of = label_reader(definition.labels)
        self._labels = len(definition.labels)
        self._label_values: dict[Labels, tuple[str, ...]] = {}
        self.users: dict[str, User] = {}
        self.dirty: list[Slate] = []
        # Open slates by their request since the last flush.
        self.recent: dict[str | None, SlateRun] = {}
        # New impressions of watched users since the last flush: the size of the slate before.
        self.fresh: dict[Slate, int] = {}
        # Items that turned out to be shown earlier than known, and that feedback waits for: the
        # user and the name of the feedback among its pending, and the earliest new ts.
        self.earlier: dict[tuple[str, str | tuple[str, str]], int] = {}
        # Items of indexed users that turned out to be shown earlier, with the time before and now.
        self.moved: list[tuple[Slate, str, int, int]] = []
        self.unsaved: list[Slate] = []
        self.finalized: list[Slate] = []
        self.keep_finalized = False
        self.count = 0
        self.duplicate_impressions = 0
        self.overflow_items = 0
        self.offset = NEVER
        # Slates by the slice of time in which they can be finalized; a slate that has moved since
        # is finalized a little late, which changes nothing (rule 4).
        self._closing: dict[int, Closing] = {}
        self._window = definition.attribution_window
        self._closing_width = max(1, definition.horizon // 64)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the compiled reader of labels, which no other process can load."""
        return {key: value for key, value in self.__dict__.items() if key != "labels_of"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Compile the reader of labels again."""
        self.__dict__.update(state)
        self.labels_of = label_reader(self.definition.labels)

    def user(self, user_id: str) -> User:
        """Return the user of that id, a new one if need be."""
        user = self.users.get(user_id)
        if user is None:
            user = self.users[user_id] = User(user_id, Slates())
        return user

    def note(self, slate: Slate) -> None:
        """Have the next checkpoint write `slate`."""
        if self.journal and not slate.unsaved:
            slate.unsaved = True
            self.unsaved.append(slate)

    def mark(self, slate: Slate) -> None:
        """Have the next flush look at `slate`."""
        if not slate.dirty:
            slate.dirty = True
            self.dirty.append(slate)

    # ------------------------------------------------------------------- show

    def show(self, event: ImpressionEvent, labels: Labels) -> None:
        """Put an impression into its slate."""
        ts = event.ts
        user = self.user(event.user_id)
        delta = self.ledger.delta(user.id, ts)
        segment = self.segments.of(labels, ts)
        if event.request_id is None:
            slate = self._requestless(user, event.item_id, ts, segment)
        else:
            slate = self._join(user, event.request_id, ts, segment)
        if self.keep_details or segment == self.segments.other or slate.details is not None:
            self._detail(slate, event, labels)
            if self.keep_outcomes and slate.details is not None:
                slate.details.keep_score(event.item_id, event.score, event.propensity)
        if event.latency_ms is not None or event.fallback:
            slate.note_extras(event)
        if user.watched:
            self.fresh.setdefault(slate, slate.size())
        self._show(user, slate, event.item_id, ts, event.position or 0)
        if event.request_id is not None:
            self._run(slate, labels, delta)

    def recall(self, event: ImpressionEvent, labels: Labels) -> SlateRun | None:
        """Return how to add `event`, and more, to a slate that was shown before.

        None where no slate was shown since the last flush, and where a request began anew.
        """
        user = self.users.get(event.user_id)
        if user is None:
            return None
        slate = user.slates.get(event.request_id)  # type: ignore[arg-type]  # None is no key
        if not isinstance(slate, Slate) or not slate.dirty or slate.is_packed:
            return None
        return self._run(slate, labels, self.ledger.deltas[user.id])

    def _run(self, slate: Slate, labels: Labels, delta: UserDelta) -> SlateRun | None:
        """Remember how to add to a slate that was shown just now.

        None for a segment beyond `max_segments`: each of its impressions is counted.
        """
        segment = self.segments.known.get(labels)
        if segment is None:
            self.recent.pop(slate.request, None)
            return None
        if len(self.recent) >= MAX_RECENT:
            self.recent.clear()
        details = slate.details
        decides = segment != slate.segment or (
            details is not None and details.labels != self._values(labels)
        )
        run = self.recent[slate.request] = SlateRun(
            slate,
            slate.items,
            slate.user,
            labels,
            slate.anchor,
            details if self.keep_outcomes else None,
            slate.time + decides,
            slate.time + self._window,
            delta,
            segment,
            self.segments.newest,
        )
        return run

    def show_whole(self, events: Sequence[SlateEvent], offsets: Sequence[int]) -> None:
        """Lists that came whole: each nearly always a slate of its own, which is booked at once."""
        users, ledger, labels_of = self.users, self.ledger, self.labels_of
        book, has_lists = ledger.rows.counts.add, ledger.has_lists
        for index, event in enumerate(events):
            ts, request = event.ts, event.request_id
            user = users.get(event.user_id) or self.user(event.user_id)
            delta = ledger.delta(user.id, ts)
            labels = labels_of(event)
            segment = self.segments.of(labels, ts)
            if offsets:
                self.offset = offsets[index]
            if request in user.slates:
                slate = self._add_whole(user, event, segment)
            else:
                slate = self._open_whole(user, event, segment)
                size, cell = slate.booked_impressions, ledger.cell(user, segment)
                delta[SLATES] += 1
                delta[IMPRESSIONS] += size
                book(ts, cell, size, 1)
                if has_lists:
                    ledger.book_list(slate, cell)
            if self.keep_details or segment == self.segments.other or slate.details is not None:
                self._detail(slate, event, labels)
            if self.keep_outcomes and slate.details is not None:
                for item, (score, propensity) in event.details.items():
                    slate.details.keep_score(item, score, propensity)

    def _open_whole(self, user: User, event: SlateEvent, segment: int) -> Slate:
        """Open a slate of its own, with everything booked."""
        ts, request = event.ts, event.request_id
        size = len(event.items)
        items = whole_items(event)
        slate = Slate(user.id, request, ts, segment, ts, items, ts, segment, size, self.journal)
        if event.latency_ms is not None or event.fallback:
            slate.note_extras(event)
        user.slates[request] = slate
        if self.journal:
            self.unsaved.append(slate)
        if user.watched:
            self.fresh[slate] = 0
            self.mark(slate)
        self._adopt(slate, user)
        return slate

    def _add_whole(self, user: User, event: SlateEvent, segment: int) -> Slate:
        """Add a list whose request is known: its items join that slate, or begin a new one."""
        slate = self._join(user, event.request_id, event.ts, segment)
        if event.latency_ms is not None or event.fallback:
            slate.note_extras(event)
        if user.watched:
            self.fresh.setdefault(slate, slate.size())
        for item, position in event.positions.items():
            self._show(user, slate, item, event.ts, position)
        return slate

    def _detail(self, slate: Slate, event: ImpressionEvent | SlateEvent, labels: Labels) -> None:
        """Keep the labels of the slate's earliest event (ties: the smaller values).

        Of two segments the smaller stays as a whole. Arms of experiments are compared field by
        field, so none depends on the fields of another experiment.
        """
        known = slate.details
        values = self._values(labels)
        if known is None:
            if self.keep_outcomes:
                slate.details = SlateDetails(self.offset, event.ts, values, {}, [])
            elif event.ts == slate.time:  # else its segment tells the labels of its earliest event
                slate.details = SlateDetails.arms(event.ts, values)
        elif event.ts < known.ts:
            known.ts, known.labels = event.ts, values
        elif event.ts == known.ts and values != known.labels:
            arms = len(self.segments.dimensions)
            segment = min(values[:arms], known.labels[:arms])
            known.labels = (*segment, *map(min, values[arms:], known.labels[arms:]))

    def _values(self, labels: Labels) -> tuple[str, ...]:
        """Return `label_values`, one tuple for all slates with these labels."""
        values = self._label_values.get(labels)
        if values is None:
            if len(self._label_values) >= MAX_RECENT:
                self._label_values.clear()
            values = self._label_values[labels] = label_values(labels, self._labels)
        return values

    def _join(self, user: User, request: str, ts: int, segment: int) -> Slate:
        """Return the slate of (user, request) that an impression at `ts` belongs to (rule 1)."""
        if request not in user.slates:
            first = user.slates[request] = self._open(user, request, ts, segment)
            return first
        slate = user.slates.begun(request, ts)
        if slate is None or ts > slate.time + self._window:
            younger = user.slates.beginning_after(request, ts)
            if younger is None:
                user.chained += 1
                slate = self._open(user, request, ts, segment)
                user.slates.add(request, slate)
                return slate
            slate = younger
            assert slate.time - ts <= self._window
            slate.time = ts
            slate.segment = segment
        elif ts == slate.time and segment != slate.segment:
            self._lower(slate, segment)
        self.mark(slate)
        return slate

    def _requestless(self, user: User, item: str, ts: int, segment: int) -> Slate:
        """Return the slate of an impression without a request: (user, item, ts)."""
        if user.requestless is None:
            user.requestless = Slates()
        slate = user.requestless.find(item, ts)
        if slate is None:
            slate = self._open(user, None, ts, segment)
            user.requestless.add(item, slate)
            return slate
        self._lower(slate, segment)
        self.mark(slate)
        return slate

    def _lower(self, slate: Slate, segment: int) -> None:
        """Give a slate another segment of its earliest ts, if that has the smaller values."""
        values = self.segments.values
        if segment == self.segments.other and slate.details is None:
            slate.details = SlateDetails.arms(slate.time, values[slate.segment])
        if values[segment] < values[slate.segment]:
            slate.segment = segment

    def _open(self, user: User, request: str | None, ts: int, segment: int) -> Slate:
        slate = Slate(user.id, request, ts, segment, ts, {}, dirty=True)
        self.dirty.append(slate)
        self._adopt(slate, user)
        return slate

    def _show(self, user: User, slate: Slate, item: str, ts: int, position: int) -> None:
        """Put an item into a slate: of duplicates the lowest position, the earliest ts stay."""
        since = ts - slate.anchor
        items = slate.items
        packed = items.get(item)
        if packed is not None:
            self.duplicate_impressions += 1
            known = packed & POSITION_MASK
            position = min(position, known) if position and known else position or known
            if since >= packed >> POSITION_BITS:
                since = packed >> POSITION_BITS
            elif user.watched:
                self._shown_earlier(user, slate, item, slate.anchor + (packed >> POSITION_BITS), ts)
        elif len(items) >= MAX_ITEMS:
            self.overflow_items += 1
            return
        items[sharing()(item, item)] = (since << POSITION_BITS) + position

    def _shown_earlier(self, user: User, slate: Slate, item: str, before: int, ts: int) -> None:
        """Note that a slate showed an item at `ts` already, not only at `before`."""
        request = slate.request
        assert request is not None, "a slate without one is of one moment"
        for name in (item, (request, item)):
            if user.pending and name in user.pending:
                known = self.earlier.get((user.id, name), ts)
                self.earlier[user.id, name] = min(known, ts)
        if user.by_item is not None and item in user.by_item:
            self.moved.append((slate, item, before, ts))

    # --------------------------------------------------------------- finalize

    def enter(self, slate: Slate) -> None:
        """Take in a slate that was stored; slates of one request come in order of time."""
        user = self.user(slate.user)
        request = slate.request
        if request is None:
            if user.requestless is None:
                user.requestless = Slates()
            (item,) = slate.names()
            user.requestless.add(item, slate)
        else:
            user.chained += request in user.slates
            user.slates.add(request, slate)
        self._adopt(slate, user)
        self.mark(slate)

    def closing(self, watermark: int, *, exactly: bool = False) -> Iterator[None]:
        """Finalize the slates that can no longer change (rule 4), in steps of bounded work.

        Some are left for a little later, unless it is to be done `exactly`.
        """
        over = watermark - self.definition.horizon
        # A slate lies in the slice of the time it was opened with, and moved by at most L since.
        beyond = over + self.definition.allowed_lateness + self._closing_width if exactly else over
        first_open = beyond // self._closing_width
        for number in sorted(number for number in self._closing if number < first_open):
            slates, users = self._closing.pop(number)
            while slates:  # to free a million of them at the end would hold the loop
                size = min(FLUSH_STEP, len(slates))
                final = Closing(
                    deque(slates.popleft() for _ in range(size)),
                    deque(users.popleft() for _ in range(size)),
                )
                yield from self._finalize(self._over(final, over) if exactly else final)
                yield

    def _over(self, some: Closing, over: int) -> Closing:
        """Return the slates whose time is before `over`, and keep the others open."""
        final = Closing(deque(), deque())
        for slate, user in zip(*some, strict=True):
            if slate.time < over:
                final.slates.append(slate)
                final.users.append(user)
            else:
                self.count -= 1
                self._adopt(slate, user)
        return final

    def _finalize(self, final: Closing) -> Iterator[None]:
        """Close slates; for an indexed user each item of a slate is a piece of work."""
        dropped = 0
        self.count -= len(final.slates)
        if self.keep_finalized:
            self.finalized += final.slates
        for slate, user in zip(*final, strict=True):
            request = slate.request
            if request is None:
                assert user.requestless is not None
                (item,) = slate.names()
                user.requestless.discard(item, slate)
            else:
                user.slates.discard(request, slate)
                if user.chained and request in user.slates:
                    user.chained -= 1
                if user.by_item is not None:
                    user.leave(slate)
                    dropped += slate.size()
            self.forget(user)
            if dropped >= FLUSH_STEP:
                dropped = 0
                yield

    def emptying(self) -> Iterator[None]:
        """Free all slates in bounded steps, where nobody goes on with them."""
        self.unsaved.clear()
        self.dirty.clear()
        while self.users:
            for _ in range(min(FLUSH_STEP, len(self.users))):
                self.users.popitem()
            yield
        for slates, users in self._closing.values():
            while slates:
                for _ in range(min(FLUSH_STEP, len(slates))):
                    slates.popleft()
                    users.popleft()
                yield

    def forget(self, user: User) -> None:
        """Drop a user with nothing open."""
        if user.idle:
            self.users.pop(user.id, None)

    def _adopt(self, slate: Slate, user: User) -> None:
        """Take a slate among the open ones, and note when it can be finalized."""
        self.count += 1
        number = slate.time // self._closing_width
        closing = self._closing.get(number)
        if closing is None:
            closing = self._closing[number] = Closing(deque(), deque())
        closing.slates.append(slate)
        closing.users.append(user)
