"""What was shown: users and their open slates in one partition.

The half of `attribution` that needs no feedback; its rules stand there. `show` and `show_whole` put
impressions into slates, `closing` gives up slates that can no longer change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

from streameval.base.limits import FLUSH_STEP, MANY_SLATES, MAX_ITEMS
from streameval.core.definition import Definition
from streameval.core.events import ImpressionEvent, SlateEvent
from streameval.core.slate import (
    BETWEEN,
    FIRST_TS,
    IMPRESSIONS,
    LAST_TS,
    MAX_LISTED,
    NEVER,
    POSITION_BITS,
    POSITION_MASK,
    SLATES,
    Particulars,
    Segments,
    Slate,
    Slates,
    User,
    UserDelta,
    keep_scores,
    sharing,
)
from streameval.core.timeline import ItemShowings
from streameval.core.windows.panes import Rows


class Closing(NamedTuple):
    """Slates that can be given up at about the same time, and the user of each: parallel lists."""

    slates: list[Slate]
    users: list[User]


def _placed(event: SlateEvent) -> dict[str, int]:
    share = sharing()
    return {share(item, item): position for item, position in event.positions.items()}


def showings_of(slate: Slate, first: int = 0) -> Iterator[tuple[str, tuple[int, str]]]:
    """The items of a slate with a request, from number `first` on, with the key of each showing."""
    request, anchor, shown = slate.request, slate.anchor, slate.shown
    assert request is not None, "only those stand in an index"
    if isinstance(shown, str):
        key = (-anchor, request)
        for item in shown.split(BETWEEN)[first:]:
            yield item, key
    else:
        for item, packed in islice(shown.items(), first, None):
            yield item, (-anchor - (packed >> POSITION_BITS), request)


# Slates that are known by their request at a time: some 300 bytes each.
MAX_RECENT: Final = 4_096

Recent: TypeAlias = tuple[
    str, str | None, str | None, int, int, int, dict[str, int], UserDelta, int, Slate
]
"""User, variant, surface, first and last ts, anchor, items, delta of the user, segment, slate.

An impression of all this that shows another item changes nothing else: the slate neither begins nor
moves, its segment is not in question, and whoever looks for what was shown knows of it already.
"""


class Showings:
    """The users and open slates of one partition.

    `cell_of` numbers a (user, segment) for the windows. With `journal`, `unsaved` takes the slates
    that the next checkpoint has to write. `dirty` are the slates that the next flush looks at,
    `deltas` what it adds to users' counters, `offset` is that of the record being applied.
    """

    def __init__(
        self,
        definition: Definition,
        cell_of: Callable[[str, int], int],
        *,
        journal: bool = False,
        keep_outcomes: bool = False,
    ) -> None:
        self.definition = definition
        self.journal = journal
        self.keep_outcomes = keep_outcomes
        self.segments = Segments(
            definition.dimensions, definition.max_segments, definition.segment_span
        )
        self.watermark: int | None = None
        self.users: dict[str, User] = {}
        self.deltas: dict[str, UserDelta] = {}
        self.no_positives = (0,) * len(definition.kinds)
        self.dirty: list[Slate] = []
        # Open slates by their request since the last flush: what it takes to add an item to one.
        self.recent: dict[str | None, Recent] = {}
        self.rows = Rows()  # what was booked since the last flush
        # What watched users were shown since the last flush: how many items the slate had before.
        self.fresh: dict[Slate, int] = {}
        # Items that turned out to be shown earlier than known, and that feedback waits for: the
        # user and the name of the feedback among its pending, and the earliest new ts.
        self.earlier: dict[tuple[str, str | tuple[str, str]], int] = {}
        self.unsaved: list[Slate] = []
        self.given_up: list[Slate] = []
        self.open_slates = 0
        self.duplicate_impressions = 0
        self.overflow_items = 0
        self.overflow_feedback = 0  # since this object was made
        # How long the log of a slate may get before it is bounded again, where that was done.
        self.log_limits: dict[Slate, int] = {}
        self.offset = NEVER
        self._cell_of = cell_of
        # Slates by the slice of time in which they can be given up; a slate that has moved since
        # is only given up a little late, which changes nothing (rule 4).
        self._closing: dict[int, Closing] = {}
        self._window = definition.attribution_window
        self._closing_width = max(1, definition.horizon // 64)

    # ------------------------------------------------------------------- show

    def delta(self, user_id: str, ts: int) -> UserDelta:
        """What the next flush adds to the counters of a user, who has an event at `ts`."""
        delta = self.deltas.get(user_id)
        if delta is None:
            delta = self.deltas[user_id] = [user_id, 0, 0, ts, ts, *self.no_positives]
        elif ts > delta[LAST_TS]:
            delta[LAST_TS] = ts
        elif ts < delta[FIRST_TS]:
            delta[FIRST_TS] = ts
        return delta

    def user(self, user_id: str) -> User:
        """The user of that id, a new one if need be."""
        user = self.users.get(user_id)
        if user is None:
            user = self.users[user_id] = User(user_id, Slates())
        return user

    def show(self, event: ImpressionEvent) -> Slate:
        """Put an impression into its slate."""
        ts = event.ts
        user = self.user(event.user_id)
        self.delta(user.id, ts)
        segment = self.segments.of(event.variant, event.surface, ts)
        if event.request_id is None:
            slate = self._single(user, event.item_id, ts, segment)
        else:
            slate = self._join(user, event.request_id, ts, segment)
        if self.keep_outcomes:
            self._label(slate, event)
            keep_scores(slate, event.item_id, event.score, event.propensity)
        if user.pending or user.by_item is not None:
            self.fresh.setdefault(slate, slate.size())
        self._show(user, slate, event.item_id, ts, event.position or 0)
        return slate

    def recall(self, event: ImpressionEvent) -> Recent | None:
        """Have `recent` know the slate that `event` may be added to, and answer what it holds.

        None where none was shown since the last flush, where a request began anew, and for a
        segment beyond `max_segments`, which is counted.
        """
        user = self.users.get(event.user_id)
        if user is None:
            return None
        request, variant, surface = event.request_id, event.variant, event.surface
        slate = user.slates.get(request)  # type: ignore[arg-type]  # None is no key
        if not isinstance(slate, Slate) or not slate.dirty or not isinstance(slate.shown, dict):
            return None
        segment = self.segments.known.get(variant, {}).get(surface)
        if segment is None:
            return None
        labels = slate.particulars
        decides = segment != slate.segment or (
            labels is not None and (labels.variant, labels.surface) != (variant, surface)
        )
        if len(self.recent) >= MAX_RECENT:
            self.recent.clear()
        found = self.recent[request] = (
            user.id,
            variant,
            surface,
            slate.time + decides,
            slate.time + self._window,
            slate.anchor,
            slate.shown,
            self.deltas[user.id],
            segment,
            slate,
        )
        return found

    def show_whole(self, events: Sequence[SlateEvent], offsets: Sequence[int]) -> None:
        """Lists that came whole: each nearly always a slate of its own, which is booked at once."""
        # Bound once, and `user`, `delta` and `Segments.of` written out: this loop sees every slate,
        # and three calls are 3 % of all that it costs to count one.
        join: Callable[[Iterable[Any]], str] = BETWEEN.join
        users, deltas, no_positives = self.users, self.deltas, self.no_positives
        known_segments, segment_of = self.segments.known, self.segments.of
        segment_shown = self.segments.shown
        width, number, closing = self._closing_width, NEVER, Closing([], [])
        journal, unsaved, keep_outcomes = self.journal, self.unsaved, self.keep_outcomes
        add_time, add_cell = self.rows.times.append, self.rows.cells.append
        add_impressions, add_slate = self.rows.impressions.append, self.rows.slates.append
        for index, event in enumerate(events):
            ts, request = event.ts, event.request_id
            user = users.get(event.user_id) or self.user(event.user_id)
            delta = deltas.get(user.id)
            if delta is None:
                delta = deltas[user.id] = [user.id, 0, 0, ts, ts, *no_positives]
            elif ts > delta[LAST_TS]:
                delta[LAST_TS] = ts
            elif ts < delta[FIRST_TS]:
                delta[FIRST_TS] = ts
            try:
                segment = known_segments[event.variant][event.surface]
            except KeyError:
                segment = segment_of(event.variant, event.surface, ts)
            if ts > segment_shown[segment]:  # noqa: PLR1730  # as is said above
                segment_shown[segment] = ts
            if keep_outcomes and offsets:
                self.offset = offsets[index]
            if request in user.slates:
                self._add_whole(user, event, segment)
                continue
            self.open_slates += 1
            count = len(event.items)
            shown: dict[str, int] | str
            try:
                shown = join(event.items) if count <= MAX_LISTED else _placed(event)
            except TypeError:  # not only ids
                shown = _placed(event)
            slate = Slate(user.id, request, ts, segment, ts, shown, ts, segment, count, journal)
            user.slates[request] = slate
            delta[SLATES] += 1
            delta[IMPRESSIONS] += count
            add_time(ts)
            add_cell(user.cell if user.cell_segment == segment else self.cell(user, segment))
            add_impressions(count)
            add_slate(1)
            if journal:
                unsaved.append(slate)
            if user.pending or user.by_item is not None:
                self.fresh[slate] = 0
                self.mark(slate)
            if ts // width != number:
                number = ts // width
                closing = self._closes(number)
            closing.slates.append(slate)
            closing.users.append(user)
            if keep_outcomes:
                self._label(slate, event)
                self._keep_details(slate, event)

    def _add_whole(self, user: User, event: SlateEvent, segment: int) -> None:
        """The same where its request is known: its items join that slate, or begin a new one."""
        slate = self._join(user, event.request_id, event.ts, segment)
        if user.watched:
            self.fresh.setdefault(slate, slate.size())
        for item, position in event.positions.items():
            self._show(user, slate, item, event.ts, position)
        if self.keep_outcomes:
            self._label(slate, event)
            self._keep_details(slate, event)

    def _keep_details(self, slate: Slate, event: SlateEvent) -> None:
        for item, (score, propensity) in event.details.items():
            keep_scores(slate, item, score, propensity)

    def cell(self, user: User, segment: int) -> int:
        """The number of (user, segment), remembered for the next time."""
        user.cell = self._cell_of(user.id, segment)
        user.cell_segment = segment
        return user.cell

    def number_cells(self, cell_of: Callable[[str, int], int]) -> None:
        """Cells are numbered anew, by `cell_of`: look them up again."""
        self._cell_of = cell_of
        for user in self.users.values():
            user.cell_segment = NEVER

    def _label(self, slate: Slate, event: ImpressionEvent | SlateEvent) -> None:
        """Keep variant and surface of the slate's earliest event (ties: the smaller values)."""
        known = slate.particulars
        if known is None:
            slate.particulars = Particulars(
                self.offset, event.ts, event.variant, event.surface, {}, []
            )
            return
        theirs = (event.variant or "", event.surface or "")
        if event.ts < known.ts or (
            event.ts == known.ts and theirs < (known.variant or "", known.surface or "")
        ):
            known.ts, known.variant, known.surface = event.ts, event.variant, event.surface

    def _join(self, user: User, request: str, ts: int, segment: int) -> Slate:
        """The slate of (user, request) that an impression at `ts` belongs to (rule 1)."""
        if request not in user.slates:
            first = user.slates[request] = self._open(user, request, ts, segment)
            return first
        slate = user.slates.begun(request, ts)
        if slate is None or ts > slate.time + self.definition.attribution_window:
            younger = user.slates.beginning_after(request, ts)
            if younger is None:
                user.chained += 1
                slate = self._open(user, request, ts, segment)
                user.slates.add(request, slate)
                return slate
            slate = younger
            assert slate.time - ts <= self.definition.attribution_window
            slate.time = ts
            slate.segment = segment
        elif ts == slate.time and segment != slate.segment:
            values = self.segments.values
            if values[segment] < values[slate.segment]:
                slate.segment = segment
        self.mark(slate)
        return slate

    def _single(self, user: User, item: str, ts: int, segment: int) -> Slate:
        """The slate of an impression without a request: (user, item, ts)."""
        if user.singles is None:
            user.singles = Slates()
        slate = user.singles.find(item, ts)
        if slate is None:
            slate = self._open(user, None, ts, segment)
            user.singles.add(item, slate)
            return slate
        values = self.segments.values
        if values[segment] < values[slate.segment]:
            slate.segment = segment
        self.mark(slate)
        return slate

    def _open(self, user: User, request: str | None, ts: int, segment: int) -> Slate:
        slate = Slate(user.id, request, ts, segment, ts, {}, dirty=True)
        self.dirty.append(slate)
        self.adopt(slate, user)
        return slate

    def adopt(self, slate: Slate, user: User) -> None:
        """Take a slate of `user` among the open ones and note when it can be given up."""
        self.open_slates += 1
        closing = self._closes(slate.time // self._closing_width)
        closing.slates.append(slate)
        closing.users.append(user)

    def enter(self, slate: Slate, user: User) -> None:
        """Take in a slate that was stored; those of one request come in order of time."""
        request = slate.request
        if request is None:
            if user.singles is None:
                user.singles = Slates()
            (item,) = slate.names()
            user.singles.add(item, slate)
        else:
            user.chained += request in user.slates
            user.slates.add(request, slate)
        self.adopt(slate, user)
        self.mark(slate)

    def _closes(self, number: int) -> Closing:
        """What can be given up in one slice of time."""
        closing = self._closing.get(number)
        if closing is None:
            closing = self._closing[number] = Closing([], [])
        return closing

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

    def _show(self, user: User, slate: Slate, item: str, ts: int, position: int) -> None:
        """Put an item into a slate: of duplicates the lowest position, the earliest ts stay."""
        since = ts - slate.anchor
        packed = slate.items.get(item)
        if packed is not None:
            self.duplicate_impressions += 1
            known = packed & POSITION_MASK
            position = min(position, known) if position and known else position or known
            if since >= packed >> POSITION_BITS:
                since = packed >> POSITION_BITS
            elif user.watched:
                self._shown_earlier(user, slate, item, slate.anchor + (packed >> POSITION_BITS), ts)
        elif len(slate.items) >= MAX_ITEMS:
            self.overflow_items += 1
            return
        slate.items[sharing()(item, item)] = (since << POSITION_BITS) + position

    def _shown_earlier(self, user: User, slate: Slate, item: str, before: int, ts: int) -> None:
        """Note that a slate showed an item at `ts` already, not only at `before`."""
        request = slate.request
        assert request is not None, "a slate without one is of one moment"
        for name in (item, (request, item)):
            if user.pending and name in user.pending:
                known = self.earlier.get((user.id, name), ts)
                self.earlier[user.id, name] = min(known, ts)
        showings = None if user.by_item is None else user.by_item.get(item)
        if showings is not None and showings.get((-before, request)) is slate:
            showings.discard((-before, request))
            showings.add((-ts, request), slate)

    # ------------------------------------------------------------------ close

    def closing(self) -> Iterator[None]:
        """Give up the slates that can no longer change (rule 4), in steps of bounded work."""
        if self.watermark is None:
            return
        width = self._closing_width
        closed = (self.watermark - self.definition.horizon) // width
        for bucket in sorted(bucket for bucket in self._closing if bucket < closed):
            slates, users = self._closing.pop(bucket)
            for start in range(0, len(slates), FLUSH_STEP):
                part = slice(start, start + FLUSH_STEP)
                yield from self._give_up(slates[part], users[part])
                yield

    def closing_exactly(self) -> Iterator[None]:
        """Give up every slate that can be: `closing` leaves some of them for a little later."""
        if self.watermark is None:
            return
        over = self.watermark - self.definition.horizon
        # A slate lies in the slice of the time it was opened with, and moved by at most L since.
        last = (over + self.definition.allowed_lateness) // self._closing_width
        for bucket in sorted(bucket for bucket in self._closing if bucket <= last):
            slates, users = self._closing.pop(bucket)
            for start in range(0, len(slates), FLUSH_STEP):
                part = slice(start, start + FLUSH_STEP)
                over_now = Closing([], [])
                for slate, user in zip(slates[part], users[part], strict=True):
                    if slate.time < over:
                        over_now.slates.append(slate)
                        over_now.users.append(user)
                    else:
                        self.open_slates -= 1
                        self.adopt(slate, user)
                yield from self._give_up(*over_now)
                yield

    def _give_up(self, slates: Sequence[Slate], users: Sequence[User]) -> Iterator[None]:
        """Close slates; those of an index are a piece of work for each of their items."""
        dropped = 0
        self.open_slates -= len(slates)
        if self.keep_outcomes:
            self.given_up += slates
            if self.log_limits:
                for slate in slates:
                    self.log_limits.pop(slate, None)
        for slate, user in zip(slates, users, strict=True):
            request = slate.request
            if request is None:
                assert user.singles is not None
                (item,) = slate.names()
                user.singles.discard(item, slate)
            else:
                user.slates.discard(request, slate)
                if user.chained and request in user.slates:
                    user.chained -= 1
                if user.by_item is not None:
                    self._drop(user, user.by_item, slate)
                    dropped += slate.size()
            self.forget(user)
            if dropped >= FLUSH_STEP:
                dropped = 0
                yield

    def _drop(self, user: User, by_item: dict[str, ItemShowings], slate: Slate) -> None:
        """Take a slate out of its user's index, which goes when slates are few again."""
        if len(user.slates) + user.chained <= MANY_SLATES // 2:
            user.by_item = None
            return
        for item, key in showings_of(slate):
            showings = by_item.get(item)
            if showings is not None:
                showings.discard(key)
                if not showings:
                    del by_item[item]

    def forget(self, user: User) -> None:
        """Drop a user with nothing open."""
        if not (user.slates or user.singles or user.pending):
            self.users.pop(user.id, None)
