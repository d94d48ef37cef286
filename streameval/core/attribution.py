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

Hot path: `apply` only records (what was shown goes into the slate's dict, feedback into a list);
attribution happens once per flush, in `resolve`, for the slates and users that changed. By the
order-invariance of the rules the answer does not depend on where a flush falls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush

import msgspec

from streameval.core.definition import Definition
from streameval.core.events import Event, FeedbackEvent, ImpressionEvent, SlateEvent
from streameval.core.limits import MAX_FEEDBACK_KINDS, MAX_ITEMS, OTHER

POSITION_BITS = 10
POSITION_MASK = (1 << POSITION_BITS) - 1
NEVER = -1

FeedbackKey = tuple[str, int]  # item, index of the kind
FeedbackMark = tuple[int, int, int]  # records, latest positive ts, latest retraction ts


class Particulars(msgspec.Struct, gc=False, array_like=True):
    """What outcome files say of a slate beyond what its figures need.

    `offset` of the record that opened it (-1: unknown), `ts`, `variant` and `surface` of its
    earliest event, `scores` (score, propensity by item), `log` of the feedback attributed for
    good: item, index of the kind, ts (ms), value, retract. A `ts` of NEVER: the slate was there
    before any of this was kept, and has no outcome.
    """

    offset: int
    ts: int
    variant: str | None
    surface: str | None
    scores: dict[str, tuple[float | None, float | None]]
    log: list[tuple[str, int, int, float, bool]]


class Pending(msgspec.Struct, gc=False, eq=False):
    """Feedback that a later arrival can still attribute, or attribute elsewhere (rule 3)."""

    user: str
    item: str
    request: str | None
    ts: int
    kind: int
    retract: bool
    number: int
    value: float = 1.0
    expired: bool = False
    slate: Slate | None = None
    shown: int = NEVER  # when `slate` showed the item, of feedback without a request


class Slate(msgspec.Struct, gc=False, eq=False):
    """One list shown to one user by one request, with what came of it.

    `items` maps an item to `(ts - anchor) << 10 | position` (position 0: none was given), which
    is a cached small integer for the usual slate and costs no memory. `anchor` is the ts of the
    impression that arrived first; with user and request it identifies the slate for ever.
    `booked_*` is what windows and counters hold of the slate: a flush adds the difference.
    """

    user: str
    request: str | None
    time: int
    segment: int
    anchor: int
    items: dict[str, int]
    feedback: dict[FeedbackKey, FeedbackMark] | None = None
    soft: list[Pending] | None = None
    previous: Slate | None = None
    dirty: bool = False
    unsaved: bool = False
    booked_time: int = 0
    booked_segment: int = NEVER
    booked_impressions: int = 0
    booked_positives: tuple[int, ...] | None = None
    booked_ranking: tuple[tuple[int, ...], tuple[float, ...]] | None = None
    booked_duplicates: int = 0
    particulars: Particulars | None = None


class User(msgspec.Struct, gc=False, eq=False):
    """What is open for one user, and what a flush has to add to the user's counters."""

    id: str
    slates: dict[str, Slate]
    singles: dict[str, dict[int, Slate]] | None = None  # by item, then by time
    pending: dict[int, Pending] | None = None
    touched: bool = False
    first_ts: int = 0
    last_ts: int = 0
    impressions: int = 0
    shown_slates: int = 0
    positives: list[int] | None = None

    def open_slates(self) -> Iterator[Slate]:
        """All slates of the user that can still change."""
        for slate in self.slates.values():
            older: Slate | None = slate
            while older is not None:
                yield older
                older = older.previous
        if self.singles:
            for group in self.singles.values():
                yield from group.values()


class Segments:
    """The table of segments: dimension values to an index; bounded, the rest is `__other__`."""

    def __init__(self, dimensions: tuple[str, ...], limit: int) -> None:
        self.dimensions = dimensions
        self.limit = limit
        self.values: list[tuple[str, ...]] = []
        self.overflowed = 0
        self._index: dict[tuple[str, ...], int] = {}
        self._by_event: dict[tuple[str | None, str | None], int] = {}

    def of(self, variant: str | None, surface: str | None) -> int:
        """The segment's index; appearance in the log gives the order."""
        found = self._by_event.get((variant, surface))
        if found is not None:
            return found
        by_name = {"variant": variant or "", "surface": surface or ""}
        values = tuple(by_name[name] for name in self.dimensions)
        index = self._index.get(values)
        if index is None:
            if len(self._index) - self._has_other() >= self.limit:
                self.overflowed += 1
                return self._other()
            index = self.add(values)
        if len(self._by_event) < 4 * self.limit:
            self._by_event[(variant, surface)] = index
        return index

    def add(self, values: tuple[str, ...]) -> int:
        """Append a segment (restore adds them in their stored order)."""
        index = len(self.values)
        self._index[values] = index
        self.values.append(values)
        return index

    def _has_other(self) -> bool:
        return (OTHER,) * len(self.dimensions) in self._index

    def _other(self) -> int:
        other = (OTHER,) * len(self.dimensions)
        index = self._index.get(other)
        return self.add(other) if index is None else index


class Attribution:
    """The open slates and pending feedback of one partition.

    `apply` takes accepted-or-late events in log order, `resolve` attributes what came in since,
    `close` gives up what can no longer change. All times in ms of event time.
    """

    def __init__(self, definition: Definition, *, keep_outcomes: bool = False) -> None:
        self.definition = definition
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
                        _keep_scores(slate, item, event.score, event.propensity)
                    continue
                if offsets is not None:
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
                if offsets is not None:
                    self._offset = offsets[index]
                self._slate(event)
                user_id = None
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
            _keep_scores(slate, event.item_id, event.score, event.propensity)
        self._show(slate, event.item_id, ts, event.position or 0)
        return slate

    def _slate(self, event: SlateEvent) -> None:
        ts = event.ts
        user = self._touch(event.user_id, ts)
        segment = self.segments.of(event.variant, event.surface)
        slate = self._join(user, event.request_id, ts, segment)
        if slate.items:
            for item, position in event.items.items():
                self._show(slate, item, ts, position)
        else:
            slate.items = event.items.copy()
        if self.keep_outcomes:
            self._label(slate, event)
            for item, (score, propensity) in (event.details or {}).items():
                _keep_scores(slate, item, score, propensity)

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
        elif len(slate.items) >= MAX_ITEMS:
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
        for event in self.inbox:
            self._receive(event)
        self.inbox.clear()
        self._settle()

    def _receive(self, event: FeedbackEvent) -> None:
        name = event.feedback
        if (
            name not in self.feedback_kinds
            and name not in self._kinds
            and len(self.feedback_kinds) >= MAX_FEEDBACK_KINDS
        ):
            name = OTHER
        self.feedback_kinds[name] = self.feedback_kinds.get(name, 0) + 1
        user = self._touch(event.user_id, event.ts)
        kind = self._kinds.get(event.feedback)
        if kind is None or not (event.retract or self._reaches(kind, event.value)):
            self.ignored += 1
            return
        if event.request_id is not None:
            slate = self._named(user, event.request_id, event.item_id, event.ts)
            if slate is not None:
                self._credit(slate, event.item_id, kind, event.ts, event.retract, event.value)
                return
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

    def _reaches(self, kind: int, value: float) -> bool:
        threshold = self._thresholds[kind]
        return threshold is None or value >= threshold

    def _named(self, user: User, request: str, item: str, ts: int) -> Slate | None:
        """The slate that feedback naming `request` counts for, if any."""
        slate = user.slates.get(request)
        while slate is not None and slate.time > ts:
            slate = slate.previous
        if slate is None or ts - slate.time > self.definition.attribution_window:
            return None
        packed = slate.items.get(item)
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
                packed = showing.items.get(item)
                if packed is not None and showing.time >= oldest:
                    shown = showing.anchor + (packed >> POSITION_BITS)
                    if shown <= ts and (
                        shown > best_shown
                        or (shown == best_shown and best is not None and _precedes(showing, best))
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
                shown == best_shown and best is not None and _precedes(slate, best)
            ):
                best, best_shown = slate, shown
        if best is None and not pending.expired:
            pending.expired = self._too_old(pending, changed)
        self._give(pending, best)

    def _shown(self, slate: Slate, item: str, ts: int) -> int:
        """When feedback at `ts` saw the item in this slate; NEVER where it does not count."""
        packed = slate.items.get(item)
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
        return any(pending.item in slate.items and slate.time < oldest for slate in slates)

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
                self._forget(user)
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
        """Give up the slates that can no longer change (rule 4), and users with nothing open."""
        for user in self.touched:
            user.touched = False
            if not user.slates:
                self._forget(user)
        self.touched.clear()
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
            (item,) = slate.items
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
        self._forget(user)

    def _forget(self, user: User) -> None:
        if not (user.touched or user.slates or user.singles or user.pending):
            self.users.pop(user.id, None)


def add_mark(
    marks: dict[FeedbackKey, FeedbackMark], key: FeedbackKey, ts: int, retract: bool
) -> None:
    """Count one record of feedback: the latest ts of a positive and of a retraction stay."""
    known = marks.get(key)
    if known is None:
        marks[key] = (1, NEVER, ts) if retract else (1, ts, NEVER)
        return
    records, positive, retraction = known
    if retract:
        retraction = max(retraction, ts)
    else:
        positive = max(positive, ts)
    marks[key] = (records + 1, positive, retraction)


def _precedes(slate: Slate, best: Slate) -> bool:
    """Of two showings at the same ts: none first, then the smaller request."""
    return best.request is not None and (slate.request is None or slate.request < best.request)


def _keep_scores(slate: Slate, item: str, score: float | None, propensity: float | None) -> None:
    if slate.particulars is not None and (score is not None or propensity is not None):
        slate.particulars.scores.setdefault(item, (score, propensity))
