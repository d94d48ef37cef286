"""Slates, waiting feedback, and who gets the credit: DESIGN section 2 for one partition.

Rules of this file (A is the attribution window, L the allowed lateness, wm the watermark):

1. Impressions of one (user, request) join the slate whose time lies at most A before them; an
   earlier one that arrives later becomes the slate's time. Because nothing accepted is older than
   wm - L, and L <= A, at most one slate begins after such an impression, and all of it lies
   within A of it: the slate *moves*, slates never merge or split.
2. Feedback that names a request, once attributed, stays: whatever arrives later joins the same
   slate, and moving the slate's time leaves accepted feedback within A (it is at most L younger).
3. Feedback without a request can be taken over by a nearer showing until wm passes ts + L. Until
   then it is *pending*, attributed or not, and is matched again whenever its user's slates change.
4. A slate is given up once wm passes its time + A + L: by rules 1-3 nothing can change it then.

Hot path: `apply` only records (what was shown goes into the slate, feedback into a list);
attribution happens once per flush, in `resolve`, for the slates and users that changed. By the
order-invariance of the rules the answer does not depend on where a flush falls. A list that comes
whole as a slate of its own is booked as it comes (`whole`): no flush looks at it again, unless
something of it changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from streameval.core.definition import Definition
from streameval.core.events import Event, FeedbackEvent, ImpressionEvent, SlateEvent
from streameval.core.limits import MAX_FEEDBACK_KINDS, MAX_ITEMS, OTHER
from streameval.core.slates import (
    MAX_LISTED,
    NEVER,
    POSITION_BITS,
    POSITION_MASK,
    Particulars,
    Pending,
    Segments,
    Slate,
    User,
    add_mark,
    keep_scores,
    precedes,
)


class Whole(NamedTuple):
    """The slates that came whole since the last flush: columns of rows for the windows."""

    times: list[int]
    cells: list[int]
    impressions: list[int]


class Attribution:
    """The open slates and pending feedback of one partition.

    `cell_of` numbers a (user, segment) for the windows. With `journal`, `unsaved` takes the slates
    that the next checkpoint has to write.

    `apply` takes accepted-or-late events in log order, `resolve` attributes what came in since,
    `close` gives up what can no longer change. All times in ms of event time.
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
        self.unsaved: list[Slate] = []
        self.whole = Whole([], [], [])
        self._cell_of = cell_of
        self.segments = Segments(definition.dimensions, definition.max_segments)
        self.watermark: int | None = None
        self.users: dict[str, User] = {}
        self.dirty: list[Slate] = []
        self.touched: list[User] = []
        self.inbox: list[FeedbackEvent] = []
        self.accepted = {"impression": 0, "slate": 0, "feedback": 0}
        self.late = 0
        self.duplicate_impressions = 0
        self.overflow_items = 0
        self.ignored = 0
        self.unattributed = {"no_impression": 0, "expired": 0}
        self.waiting = 0
        self.feedback_kinds: dict[str, int] = {}
        self.open_slates = 0
        self.given_up: list[Slate] = []
        self.keep_outcomes = keep_outcomes
        self._offset = NEVER
        self._by_surface = "surface" in definition.dimensions
        self._kinds = {positive.kind: i for i, positive in enumerate(definition.positives)}
        self._thresholds = [positive.threshold for positive in definition.positives]
        self._due: list[tuple[int, int, Pending]] = []
        self._number = 0
        # Slates by the slice of time in which they can be given up; a slate that has moved since
        # is only given up a little late, which changes nothing (rule 4).
        self._closing: dict[int, list[Slate]] = {}
        self._closing_width = max(1, definition.horizon // 64)

    # ------------------------------------------------------------------ apply

    def apply(self, events: Sequence[Event], offsets: Sequence[int] | None = None) -> list[int]:
        """Record `events` (in log order); answers the indices of the late ones, not applied.

        `offsets` of their records, parallel, are only for outcomes.
        """
        late: list[int] = []
        lateness = self.definition.allowed_lateness
        watermark = NEVER if self.watermark is None else self.watermark
        by_surface = self._by_surface
        keep_outcomes = self.keep_outcomes
        inbox = self.inbox
        feedbacks = slates = 0
        whole: list[SlateEvent] = []  # since the last impression
        whole_offsets: list[int] = []
        # The slate of the event before: nearly always also that of the next impression.
        ts = NEVER
        user_id: str | None = None
        request_id: str | None = None
        variant: str | None = None
        surface: str | None = None
        offset = 0
        slate: Slate | None = None
        items: dict[str, int] = {}
        for index, event in enumerate(events):
            if event.ts != ts:
                if event.ts > watermark:
                    watermark = event.ts
                elif event.ts < watermark - lateness:
                    late.append(index)
                    continue
                ts = event.ts
                user_id = None
            if isinstance(event, ImpressionEvent):
                item = event.item_id
                if (
                    event.user_id == user_id
                    and event.request_id == request_id
                    and event.variant == variant
                    and item not in items
                    and len(items) < MAX_ITEMS
                    and not (by_surface and event.surface != surface)
                ):
                    items[item] = offset + (event.position or 0)
                    if keep_outcomes and slate is not None:
                        keep_scores(slate, item, event.score, event.propensity)
                    continue
                if whole:
                    self._take_whole(whole, whole_offsets)
                    whole, whole_offsets = [], []
                if keep_outcomes and offsets is not None:
                    self._offset = offsets[index]
                slate = self._impression(event)
                if slate.request is None:
                    user_id = None
                    continue
                user_id = slate.user
                request_id = slate.request
                variant = event.variant
                surface = event.surface
                items = slate.items
                offset = (ts - slate.anchor) << POSITION_BITS
            elif isinstance(event, FeedbackEvent):
                feedbacks += 1
                inbox.append(event)
            else:
                slates += 1
                whole.append(event)
                if keep_outcomes and offsets is not None:
                    whole_offsets.append(offsets[index])
                user_id = None
        if whole:
            self._take_whole(whole, whole_offsets)
        if watermark != NEVER:
            self.watermark = watermark
        self.late += len(late)
        self.accepted["feedback"] += feedbacks
        self.accepted["slate"] += slates
        self.accepted["impression"] += len(events) - len(late) - feedbacks - slates
        return late

    def _touch(self, user_id: str, ts: int) -> User:
        user = self.users.get(user_id)
        if user is None:
            user = self.users[user_id] = User(user_id, {})
        if user.touched:
            if ts > user.last_ts:
                user.last_ts = ts
            elif ts < user.first_ts:
                user.first_ts = ts
        else:
            user.touched = True
            user.first_ts = user.last_ts = ts
            self.touched.append(user)
        return user

    def _impression(self, event: ImpressionEvent) -> Slate:
        ts = event.ts
        user = self._touch(event.user_id, ts)
        segment = self.segments.of(event.variant, event.surface)
        if event.request_id is None:
            slate = self._single(user, event.item_id, ts, segment)
        else:
            slate = self._join(user, event.request_id, ts, segment)
        if self.keep_outcomes:
            self._label(slate, event)
            keep_scores(slate, event.item_id, event.score, event.propensity)
        self._show(slate, event.item_id, ts, event.position or 0)
        return slate

    def _take_whole(self, events: Sequence[SlateEvent], offsets: Sequence[int]) -> None:
        """Lists that came whole: each nearly always a slate of its own, which is booked at once."""
        # Bound once: this loop sees every slate.
        touch, segment_of, adopt = self._touch, self.segments.of, self.adopt
        journal, unsaved, keep_outcomes = self.journal, self.unsaved, self.keep_outcomes
        add_time, add_cell, add_impressions = (column.append for column in self.whole)
        for index, event in enumerate(events):
            ts, request = event.ts, event.request_id
            user = touch(event.user_id, ts)
            segment = segment_of(event.variant, event.surface)
            if keep_outcomes and offsets:
                self._offset = offsets[index]
            if request in user.slates:
                self._add_whole(user, event, segment)
                continue
            items = event.items
            count = len(items)
            if isinstance(items, dict):
                items = items.copy()
            elif count > MAX_LISTED:
                items = event.positions
            slate = Slate(user.id, request, ts, segment, ts, items, ts, segment, count, journal)
            user.slates[request] = slate
            user.shown_slates += 1
            user.impressions += count
            add_time(ts)
            add_cell(user.cell if user.cell_segment == segment else self.cell(user, segment))
            add_impressions(count)
            if journal:
                unsaved.append(slate)
            if user.pending:
                self.mark(slate)
            adopt(slate)
            if keep_outcomes:
                self._label(slate, event)
                self._keep_details(slate, event)

    def _add_whole(self, user: User, event: SlateEvent, segment: int) -> None:
        """The same where its request is known: its items join that slate, or begin a new one."""
        slate = self._join(user, event.request_id, event.ts, segment)
        for item, position in event.positions.items():
            self._show(slate, item, event.ts, position)
        if self.keep_outcomes:
            self._label(slate, event)
            self._keep_details(slate, event)

    def _keep_details(self, slate: Slate, event: SlateEvent) -> None:
        for item, (score, propensity) in (event.details or {}).items():
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
                self._offset, event.ts, event.variant, event.surface, {}, []
            )
            return
        theirs = (event.variant or "", event.surface or "")
        if event.ts < known.ts or (
            event.ts == known.ts and theirs < (known.variant or "", known.surface or "")
        ):
            known.ts, known.variant, known.surface = event.ts, event.variant, event.surface

    def _join(self, user: User, request: str, ts: int, segment: int) -> Slate:
        """The slate of (user, request) that an impression at `ts` belongs to (rule 1)."""
        newest = user.slates.get(request)
        slate, younger = newest, None
        while slate is not None and slate.time > ts:
            slate, younger = slate.previous, slate
        if slate is None or ts > slate.time + self.definition.attribution_window:
            if younger is None:
                slate = self._open(user, request, ts, segment)
                slate.previous = newest
                user.slates[request] = slate
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
            user.singles = {}
        group = user.singles.setdefault(item, {})
        slate = group.get(ts)
        if slate is None:
            slate = group[ts] = self._open(user, None, ts, segment)
            return slate
        values = self.segments.values
        if values[segment] < values[slate.segment]:
            slate.segment = segment
        self.mark(slate)
        return slate

    def _open(self, user: User, request: str | None, ts: int, segment: int) -> Slate:
        slate = Slate(user.id, request, ts, segment, ts, {}, dirty=True)
        self.dirty.append(slate)
        self.adopt(slate)
        return slate

    def adopt(self, slate: Slate) -> None:
        """Take `slate` among the open ones and note when it can be given up."""
        self.open_slates += 1
        try:
            self._closing[slate.time // self._closing_width].append(slate)
        except KeyError:
            self._closing[slate.time // self._closing_width] = [slate]

    def mark(self, slate: Slate) -> None:
        """Have the next flush look at `slate`."""
        if not slate.dirty:
            slate.dirty = True
            self.dirty.append(slate)

    def _show(self, slate: Slate, item: str, ts: int, position: int) -> None:
        """Put an item into a slate: of duplicates the lowest position, the earliest ts stay."""
        since = ts - slate.anchor
        packed = slate.items.get(item)
        if packed is not None:
            self.duplicate_impressions += 1
            known = packed & POSITION_MASK
            position = min(position, known) if position and known else position or known
            since = min(since, packed >> POSITION_BITS)
        elif len(slate.shown) >= MAX_ITEMS:
            self.overflow_items += 1
            return
        slate.items[item] = (since << POSITION_BITS) + position

    # ---------------------------------------------------------------- resolve

    def resolve(self) -> None:
        """Attribute what came in since the last flush; afterwards `dirty` is complete."""
        if self._due:
            users = self.users
            changed: dict[str, list[Slate]] = {}
            for slate in self.dirty:
                if users[slate.user].pending:
                    changed.setdefault(slate.user, []).append(slate)
            for user_id, slates in changed.items():
                user = users[user_id]
                for pending in (user.pending or {}).values():
                    self._match_again(user, pending, slates)
        self._count_kinds()
        kinds, thresholds = self._kinds, self._thresholds
        for event in self.inbox:
            user = self._touch(event.user_id, event.ts)
            kind = kinds.get(event.feedback)
            if kind is None:
                self.ignored += 1
                continue
            threshold = thresholds[kind]
            if threshold is not None and event.value < threshold and not event.retract:
                self.ignored += 1
                continue
            if event.request_id is not None:
                named = self._named(user, event.request_id, event.item_id, event.ts)
                if named is not None:
                    self._credit(named, event.item_id, kind, event.ts, event.retract, event.value)
                    continue
            self.wait(
                Pending(
                    user.id,
                    event.item_id,
                    event.request_id,
                    event.ts,
                    kind,
                    event.retract,
                    self._number,
                    event.value,
                )
            )
        self.inbox.clear()
        self._settle()

    def _count_kinds(self) -> None:
        """Count the feedback that came by kind: a bounded number of kinds that are no positives."""
        known = self.feedback_kinds
        for name, count in Counter([event.feedback for event in self.inbox]).items():
            bounded = name
            if name not in known and name not in self._kinds and len(known) >= MAX_FEEDBACK_KINDS:
                bounded = OTHER
            known[bounded] = known.get(bounded, 0) + count

    def wait(self, pending: Pending) -> None:
        """Hold feedback until nothing that may still arrive can change what becomes of it."""
        user = self.users.get(pending.user)
        if user is None:
            user = self.users[pending.user] = User(pending.user, {})
        pending.number = self._number
        self._number += 1
        if user.pending is None:
            user.pending = {}
        user.pending[pending.number] = pending
        heappush(self._due, (pending.ts, pending.number, pending))
        self.waiting += 1
        self._match(user, pending)

    def pending(self) -> list[Pending]:
        """All feedback that is pending, in order of ts."""
        return [entry[2] for entry in sorted(self._due, key=lambda entry: entry[:2])]

    def _named(self, user: User, request: str, item: str, ts: int) -> Slate | None:
        """The slate that feedback naming `request` counts for, if any."""
        slate = user.slates.get(request)
        while slate is not None and slate.time > ts:
            slate = slate.previous
        if slate is None or ts - slate.time > self.definition.attribution_window:
            return None
        packed = slate.packed(item)
        if packed is None or slate.anchor + (packed >> POSITION_BITS) > ts:
            return None
        return slate

    def _nearest(self, user: User, item: str, ts: int) -> Slate | None:
        """The slate of the user's latest showing of `item` at or before `ts` (ties: rule 3)."""
        oldest = ts - self.definition.attribution_window
        best: Slate | None = None
        best_shown = NEVER
        if user.singles:
            for slate in user.singles.get(item, {}).values():
                if oldest <= slate.time <= ts and slate.time > best_shown:
                    best, best_shown = slate, slate.time
        for newest in user.slates.values():
            showing: Slate | None = newest
            while showing is not None:
                if item in showing.shown:
                    shown = self._shown(showing, item, ts)
                    if shown > best_shown or (
                        shown == best_shown and best is not None and precedes(showing, best)
                    ):
                        best, best_shown = showing, shown
                showing = showing.previous
        return best

    def _match(self, user: User, pending: Pending) -> None:
        """Attribute pending feedback anew."""
        if pending.request is None:
            slate = self._nearest(user, pending.item, pending.ts)
        else:
            slate = self._named(user, pending.request, pending.item, pending.ts)
        if slate is None and not pending.expired:
            pending.expired = self._is_expired(user, pending)
        self._give(pending, slate)

    def _match_again(self, user: User, pending: Pending, changed: Sequence[Slate]) -> None:
        """The same after `changed` of the user's slates changed since the last match.

        Of the others none comes before the slate that holds it, unless that one changed: one user
        can have very many open slates, and look at all of them for each pending feedback.
        """
        held, item, ts = pending.slate, pending.item, pending.ts
        if pending.request is not None or (
            held is not None and self._shown(held, item, ts) != pending.shown
        ):
            self._match(user, pending)
            return
        best, best_shown = held, pending.shown
        for slate in changed:
            shown = self._shown(slate, item, ts)
            if shown > best_shown or (
                shown == best_shown and best is not None and precedes(slate, best)
            ):
                best, best_shown = slate, shown
        if best is None and not pending.expired:
            pending.expired = self._too_old(pending, changed)
        self._give(pending, best)

    def _shown(self, slate: Slate, item: str, ts: int) -> int:
        """When feedback at `ts` saw the item in this slate; NEVER where it does not count."""
        packed = slate.packed(item)
        if packed is None or slate.time < ts - self.definition.attribution_window:
            return NEVER
        shown = slate.anchor + (packed >> POSITION_BITS)
        return shown if shown <= ts else NEVER

    def _give(self, pending: Pending, slate: Slate | None) -> None:
        """Attribute pending feedback to `slate`; both slates, if it changes hands, are dirty."""
        held = pending.slate
        if slate is not None and pending.request is None:
            pending.shown = self._shown(slate, pending.item, pending.ts)
        if slate is held:
            return
        if held is None:
            self.waiting -= 1
        else:
            self._let_go(held, pending)
        pending.slate = slate
        if slate is None:
            pending.shown = NEVER
            self.waiting += 1
            return
        if slate.soft is None:
            slate.soft = []
        slate.soft.append(pending)
        self.mark(slate)

    def _let_go(self, slate: Slate, pending: Pending) -> None:
        assert slate.soft is not None
        slate.soft.remove(pending)
        self.mark(slate)

    def _is_expired(self, user: User, pending: Pending) -> bool:
        """Whether a slate is known that this feedback comes too late for (a diagnostic)."""
        if pending.request is not None:
            slate = user.slates.get(pending.request)
            oldest = pending.ts - self.definition.attribution_window
            return slate is not None and slate.time < oldest
        return self._too_old(pending, user.open_slates())

    def _too_old(self, pending: Pending, slates: Iterable[Slate]) -> bool:
        oldest = pending.ts - self.definition.attribution_window
        return any(pending.item in slate.shown and slate.time < oldest for slate in slates)

    def _settle(self) -> None:
        """Make final what is pending and can no longer change hands: wm > ts + L, strictly."""
        if self.watermark is None:
            return
        final = self.watermark - self.definition.allowed_lateness
        due = self._due
        while due and due[0][0] < final:
            pending = heappop(due)[2]
            user = self.users[pending.user]
            assert user.pending is not None
            del user.pending[pending.number]
            if not user.pending:
                user.pending = None
                self.forget(user)
            slate = pending.slate
            if slate is None:
                self.waiting -= 1
                self.unattributed["expired" if pending.expired else "no_impression"] += 1
            else:
                self._let_go(slate, pending)
                self._credit(
                    slate,
                    pending.item,
                    pending.kind,
                    pending.ts,
                    pending.retract,
                    pending.value,
                )

    def _credit(
        self, slate: Slate, item: str, kind: int, ts: int, retract: bool, value: float
    ) -> None:
        """Attribute feedback to an impression for good."""
        if slate.particulars is not None:
            slate.particulars.log.append((item, kind, ts, value, retract))
        if slate.feedback is None:
            slate.feedback = {}
        add_mark(slate.feedback, (item, kind), ts, retract)
        self.mark(slate)

    # ------------------------------------------------------------------ close

    def close(self) -> None:
        """Give up the slates that can no longer change (rule 4)."""
        if self.watermark is None:
            return
        width = self._closing_width
        closed = (self.watermark - self.definition.horizon) // width
        for bucket in sorted(bucket for bucket in self._closing if bucket < closed):
            for slate in self._closing.pop(bucket):
                self._give_up(slate)

    def close_exactly(self) -> None:
        """Give up every slate that can be: `close` leaves some of them for a little later."""
        if self.watermark is None:
            return
        over = self.watermark - self.definition.horizon
        # A slate lies in the slice of the time it was opened with, and moved by at most L since.
        last = (over + self.definition.allowed_lateness) // self._closing_width
        for bucket in sorted(bucket for bucket in self._closing if bucket <= last):
            for slate in self._closing.pop(bucket):
                if slate.time < over:
                    self._give_up(slate)
                else:
                    self.open_slates -= 1
                    self.adopt(slate)

    def _give_up(self, slate: Slate) -> None:
        self.open_slates -= 1
        if self.keep_outcomes:
            self.given_up.append(slate)
        user = self.users[slate.user]
        if slate.request is None:
            assert user.singles is not None
            (item,) = slate.shown
            group = user.singles[item]
            del group[slate.time]
            if not group:
                del user.singles[item]
        else:
            younger = user.slates[slate.request]
            if younger is slate:
                if slate.previous is None:
                    del user.slates[slate.request]
                else:
                    user.slates[slate.request] = slate.previous
            else:
                while younger.previous is not slate:
                    assert younger.previous is not None
                    younger = younger.previous
                younger.previous = slate.previous
        slate.previous = None
        self.forget(user)

    def forget(self, user: User) -> None:
        """Drop a user with nothing open and nothing to add to the counters."""
        if not (user.touched or user.slates or user.singles or user.pending):
            self.users.pop(user.id, None)
