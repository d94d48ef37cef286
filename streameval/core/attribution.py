"""Slates, waiting feedback, and who gets the credit: DESIGN section 2 for one partition.

Rules of this file (A is the attribution window, L the allowed lateness, wm the watermark):

1. Impressions of one (user, request) join the slate whose time lies at most A before them; an
   earlier one that arrives later becomes the slate's time. Because nothing accepted is older than
   wm - L, and L <= A, at most one slate begins after such an impression, and all of it lies
   within A of it: the slate *moves*, slates never merge or split.
2. Feedback that names a request, once attributed, stays: whatever arrives later joins the same
   slate, and moving the slate's time leaves accepted feedback within A (it is at most L younger).
3. Feedback without a request can be taken over by a nearer showing until wm passes ts + L. Until
   then it is *pending*, attributed or not, and is matched again when its item is shown again.
4. A slate is given up once wm passes its time + A + L: by rules 1-3 nothing can change it then.

Hot path: `apply` only records (what was shown goes into the slate, feedback into a list);
attribution happens once per flush, in `resolving`, for the slates and users that changed. By the
order-invariance of the rules the answer does not depend on where a flush falls. What is searched
stands in order of time (`timeline`), whatever one user may have open. Two things are
booked at once (`rows`), since nearly always nothing changes them: a list that comes whole as a
slate of its own, and the first feedback to a slate. No flush looks at those, unless something does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import islice
from operator import itemgetter

from streameval.base.limits import (
    FLUSH_STEP,
    MANY_SLATES,
    MAX_FEEDBACK_KINDS,
    MAX_ITEMS,
    MAX_LOGGED_FEEDBACK,
    MAX_TS,
    OTHER,
)
from streameval.core.definition import Definition
from streameval.core.events import Event, FeedbackEvent, ImpressionEvent, SlateEvent
from streameval.core.open_slates import Showings, showings_of
from streameval.core.relevance import of_one, ranks_of
from streameval.core.slate import (
    FIRST_TS,
    LAST_TS,
    NEVER,
    POSITION_BITS,
    POSITIVES,
    Pending,
    Pendings,
    Slate,
    User,
    UserDelta,
    bounded,
    by_key,
    keep_scores,
    marked,
    precedes,
    sharing,
    unmarked,
    without,
)
from streameval.core.timeline import ItemShowings

Showing = dict[tuple[str, str], dict[Slate, None]]
"""Slates that show an item, by user and item."""


class Attribution(Showings):
    """The open slates and pending feedback of one partition.

    `apply` takes accepted-or-late events in log order, `resolving` attributes what came in since,
    `closing` gives up what can no longer change. All times in ms of event time.
    """

    def __init__(
        self,
        definition: Definition,
        cell_of: Callable[[str, int], int],
        *,
        journal: bool = False,
        keep_outcomes: bool = False,
    ) -> None:
        super().__init__(definition, cell_of, journal=journal, keep_outcomes=keep_outcomes)
        self.inbox: list[FeedbackEvent] = []
        self.accepted = {"impression": 0, "slate": 0, "feedback": 0}
        self.late = 0
        self.ignored = 0
        self.unattributed = {"no_impression": 0, "expired": 0}
        self.waiting = 0
        self.feedback_kinds: dict[str, int] = {}
        # Outcomes name the surface of a slate, also where it is no dimension.
        self._by_surface = keep_outcomes or "surface" in definition.dimensions
        self._kinds = {positive.kind: i for i, positive in enumerate(definition.positives)}
        self._thresholds = [positive.threshold for positive in definition.positives]
        self.gains = [definition.gain(kind) for kind in definition.kinds]
        self._due: list[tuple[int, int, Pending]] = []
        self._number = 0

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
        inbox, recent, segment_shown = self.inbox, self.recent, self.segments.shown
        share = sharing()
        feedbacks = slates = 0
        whole: list[SlateEvent] = []  # since the last impression
        whole_offsets: list[int] = []
        ts = NEVER
        # The slate of the event before, if it had this ts, or the one found in `recent`.
        request_id: str | None = None
        user_id = ""
        variant: str | None = None
        surface: str | None = None
        items: dict[str, int] = {}
        delta: UserDelta = []
        segment = offset = 0
        slate: Slate | None = None
        is_noted = True  # at this ts, for the user and the segment
        for index, event in enumerate(events):
            if event.ts != ts:
                if event.ts > watermark:
                    watermark = event.ts
                elif event.ts < watermark - lateness:
                    late.append(index)
                    continue
                ts = event.ts
                request_id = None
            if isinstance(event, ImpressionEvent):
                item = event.item_id
                request = event.request_id
                if request != request_id and request is not None:
                    # (A list that waits for its turn may be of the same slate.)
                    known = recent.get(request) or (None if whole else self.recall(event))
                    if known is not None:
                        (
                            user_id,
                            variant,
                            surface,
                            first,
                            last,
                            anchor,
                            items,
                            delta,
                            segment,
                            slate,
                        ) = known
                        if first <= ts <= last:
                            request_id = request
                            offset = (ts - anchor) << POSITION_BITS
                            is_noted = False
                if (
                    request == request_id
                    and request is not None
                    and event.user_id == user_id
                    and event.variant == variant
                    and item not in items
                    and len(items) < MAX_ITEMS
                    and not (by_surface and event.surface != surface)
                ):
                    if not is_noted:
                        is_noted = True
                        if ts > delta[LAST_TS]:
                            delta[LAST_TS] = ts
                        elif ts < delta[FIRST_TS]:
                            delta[FIRST_TS] = ts
                        if ts > segment_shown[segment]:  # noqa: PLR1730  # a call takes longer
                            segment_shown[segment] = ts
                    items[share(item, item)] = offset + (event.position or 0)
                    if keep_outcomes and slate is not None:
                        keep_scores(slate, item, event.score, event.propensity)
                    continue
                if whole:
                    self.show_whole(whole, whole_offsets)
                    whole, whole_offsets = [], []
                if keep_outcomes and offsets is not None:
                    self.offset = offsets[index]
                slate = self.show(event)
                if recent:
                    recent.pop(request, None)
                request_id = slate.request
                user_id = slate.user
                variant = event.variant
                surface = event.surface
                items = slate.items
                offset = (ts - slate.anchor) << POSITION_BITS
                is_noted = True
            elif isinstance(event, FeedbackEvent):
                feedbacks += 1
                inbox.append(event)
            else:
                slates += 1
                whole.append(event)
                if keep_outcomes and offsets is not None:
                    whole_offsets.append(offsets[index])
                request_id = None
                if recent:
                    recent.pop(event.request_id, None)
        if whole:
            self.show_whole(whole, whole_offsets)
        if watermark != NEVER:
            self.watermark = watermark
        self.late += len(late)
        self.accepted["feedback"] += feedbacks
        self.accepted["slate"] += slates
        self.accepted["impression"] += len(events) - len(late) - feedbacks - slates
        return late

    # ---------------------------------------------------------------- resolve

    def resolve(self) -> None:
        """Attribute what came in since the last flush; afterwards `dirty` is complete."""
        for _ in self.resolving():
            pass

    def resolving(self) -> Iterator[None]:
        """The same in steps of bounded work."""
        self.recent.clear()
        yield from _paced(self._rematch())
        self._count_kinds()
        inbox, self.inbox = self.inbox, []
        for start in range(0, len(inbox), FLUSH_STEP):
            yield from self._take_in(inbox[start : start + FLUSH_STEP])
            yield
        yield from self._settle()

    def _take_in(self, events: Sequence[FeedbackEvent]) -> Iterator[None]:
        """Attribute feedback, or let it wait; yields while an index is made for it."""
        users, kinds, thresholds = self.users, self._kinds, self._thresholds
        for event in events:
            delta = self.delta(event.user_id, event.ts)
            kind = kinds.get(event.feedback)
            if kind is None:
                self.ignored += 1
                continue
            threshold = thresholds[kind]
            if threshold is not None and event.value < threshold and not event.retract:
                self.ignored += 1
                continue
            user = users.get(event.user_id)
            if user is not None and event.request_id is not None:
                named = self._named(user, event.request_id, event.item_id, event.ts)
                if named is not None:
                    slate, packed = named
                    if slate.dirty or slate.feedback or slate.soft or event.retract:
                        self._credit(
                            slate, event.item_id, kind, event.ts, event.retract, event.value
                        )
                        self.mark(slate)
                    else:
                        self._credit_first(user, slate, event, kind, packed)
                        delta[POSITIVES + kind] += 1
                    continue
            elif user is not None and self._lacks_index(user):
                yield from _paced(self._make_index(user))
            self.wait(
                Pending(
                    event.user_id if user is None else user.id,
                    event.item_id,
                    event.request_id,
                    event.ts,
                    kind,
                    event.retract,
                    self._number,
                    event.value,
                )
            )

    def _rematch(self) -> Iterator[None]:
        """Match pending feedback again where its item was shown since (rule 3).

        Only feedback at or after a showing of its item can go to that showing, and only a showing
        that turned out earlier can lose feedback: a slate that moves back in time was begun at most
        L before the watermark, so what came in by then is not too late for it.

        Yields after each piece of work, as all do that this calls.
        """
        fresh, self.fresh = self.fresh, {}
        earlier, self.earlier = self.earlier, {}
        lost: Showing = defaultdict(dict)
        for slate, first in fresh.items():
            user = self.users[slate.user]
            if user.by_item is not None and slate.request is not None:
                yield from _enter(user.by_item, slate, first)
        awaited: Showing = defaultdict(dict)
        for slate, first in fresh.items():
            user = self.users[slate.user]
            yield
            if not user.pending:
                continue
            for item in _awaited(user.pending, slate, first):
                awaited[user.id, item][slate] = None
                if slate.request is not None:
                    named = user.id, (slate.request, item)
                    shown = slate.shown_at(item)
                    earlier[named] = min(shown, earlier.get(named, shown))
                yield
        for (user_id, item), slates in awaited.items():
            yield from self._take_over(self.users[user_id], item, slates, lost)
        for (user_id, name), ts in earlier.items():
            yield from self._match_from(self.users[user_id], name, ts, lost)
        for (user_id, item), slates in lost.items():
            yield from self._count_soft(self.users[user_id], item, slates)

    def _take_over(
        self, user: User, item: str, slates: dict[Slate, None], lost: Showing
    ) -> Iterator[None]:
        """Give what waits for an item to the slates that show it only now."""
        pendings = user.pending
        assert pendings is not None, "something waits"
        reach = _Reach(item, slates, self.definition.attribution_window)
        pending = pendings.next(item, reach.begin)
        while pending is not None and pending.ts <= reach.end:
            nearest = self._nearest(user, item, pending.ts)
            self._give(pending, nearest, lost)
            pending = pendings.next(item, reach.after(pending, nearest))
            yield

    def _match_from(
        self,
        user: User,
        name: str | tuple[str, str],
        ts: int,
        lost: Showing,
    ) -> Iterator[None]:
        """Match all that waits under one name anew, from `ts` on."""
        if not user.pending:
            return
        pending = user.pending.next(name, (ts, NEVER))
        while pending is not None:
            self._match(user, pending, lost)
            pending = user.pending.next(name, (pending.ts, pending.number + 1))
            yield

    def _count_soft(self, user: User, item: str, slates: dict[Slate, None]) -> Iterator[None]:
        """Count the pending feedback to one item of slates anew, after some was taken from each."""
        pendings = user.pending
        assert pendings is not None, "what was taken waits"
        window = self.definition.attribution_window
        reach = _Reach(item, slates, window)
        for slate in slates:
            slate.soft = without(slate.soft, item, len(self.gains))
        yield from _count_held(pendings, item, reach)
        for slate in slates:
            if slate.request is not None:
                own = _Reach(item, {slate: None}, window)
                yield from _count_held(pendings, (slate.request, item), own)
            yield

    def _lacks_index(self, user: User) -> bool:
        """Whether a user has many slates, and nothing to find them by item."""
        return user.by_item is None and len(user.slates) + user.chained > MANY_SLATES

    def _make_index(self, user: User) -> Iterator[None]:
        """Make the index of a user's slates by item."""
        pairs: dict[str, list[tuple[tuple[int, str], Slate]]] = defaultdict(list)
        for slate in user.slates.everything():
            for item, key in showings_of(slate):
                pairs[item].append((key, slate))
                yield
        by_item: dict[str, ItemShowings] = {}
        for item, known in pairs.items():
            by_item[item] = ItemShowings(sorted(known, key=itemgetter(0)))
            for _ in range(0, len(known), MANY_SLATES + 1):
                yield
        user.by_item = by_item

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
        user = self.user(pending.user)
        pending.number = self._number
        self._number += 1
        if user.pending is None:
            user.pending = Pendings()
        user.pending.enter(pending)
        heappush(self._due, (pending.ts, pending.number, pending))
        self.waiting += 1
        self._match(user, pending, defaultdict(dict))

    def pending(self) -> list[Pending]:
        """All feedback that is pending, in no order."""
        return [entry[2] for entry in self._due]

    def _named(self, user: User, request: str, item: str, ts: int) -> tuple[Slate, int] | None:
        """The slate that feedback naming `request` counts for, if any, and what it holds of it."""
        known = user.slates.get(request)
        slate = known if isinstance(known, Slate) else user.slates.begun(request, ts)
        if slate is None or not 0 <= ts - slate.time <= self.definition.attribution_window:
            return None
        packed = slate.packed(item)
        if packed is None or slate.anchor + (packed >> POSITION_BITS) > ts:
            return None
        return slate, packed

    def _nearest(self, user: User, item: str, ts: int) -> Slate | None:
        """The slate of the user's latest showing of `item` at or before `ts` (ties: rule 3)."""
        oldest = ts - self.definition.attribution_window
        best = None if user.singles is None else user.singles.latest(item, ts)
        best_shown = NEVER if best is None else best.time
        if best_shown < oldest:
            best, best_shown = None, NEVER
        if self._lacks_index(user):
            for _ in self._make_index(user):
                pass
        if user.by_item is not None:
            showings = user.by_item.get(item)
            slate = None if showings is None else showings.nearest(ts, oldest)
            if slate is not None and self._shown(slate, item, ts) > best_shown:
                best = slate
            return best
        for slate in user.slates.everything():
            if item not in slate.shown:  # nor within the string that a list is
                continue
            shown = self._shown(slate, item, ts)
            if shown > best_shown or (
                shown == best_shown and best is not None and precedes(slate, best)
            ):
                best, best_shown = slate, shown
        return best

    def _match(self, user: User, pending: Pending, lost: Showing) -> None:
        """Attribute pending feedback anew."""
        if pending.request is None:
            slate = self._nearest(user, pending.item, pending.ts)
        else:
            named = self._named(user, pending.request, pending.item, pending.ts)
            slate = None if named is None else named[0]
        if slate is None and not pending.expired:
            pending.expired = self._is_expired(user, pending)
        self._give(pending, slate, lost)

    def _shown(self, slate: Slate, item: str, ts: int) -> int:
        """When feedback at `ts` saw the item in this slate; NEVER where it does not count."""
        packed = slate.packed(item)
        if packed is None or slate.time < ts - self.definition.attribution_window:
            return NEVER
        shown = slate.anchor + (packed >> POSITION_BITS)
        return shown if shown <= ts else NEVER

    def _give(self, pending: Pending, slate: Slate | None, lost: Showing) -> None:
        """Attribute pending feedback to `slate`; both slates, if it changes hands, are dirty.

        What it is taken from goes into `lost`, to be counted anew.
        """
        held = pending.slate
        if slate is held:
            return
        pending.slate = slate
        if held is None:
            self.waiting -= 1
        else:
            lost[pending.user, pending.item][held] = None
            self.mark(held)
        if slate is None:
            self.waiting += 1
            return
        slate.soft = marked(slate.soft, pending.item, pending.kind, pending.ts, pending.retract)
        self.mark(slate)

    def _is_expired(self, user: User, pending: Pending) -> bool:
        """Whether a slate is known that this feedback comes too late for (a diagnostic)."""
        oldest = pending.ts - self.definition.attribution_window
        if pending.request is not None:
            slate = user.slates.latest(pending.request, MAX_TS)
            return slate is not None and slate.time < oldest
        item = pending.item
        if user.singles is not None:
            slate = user.singles.latest(item, oldest - 1)
            if slate is not None:
                return True
        if user.by_item is not None:
            # What was shown by then and does not count is too old.
            showings = user.by_item.get(item)
            return showings is not None and showings.next((-pending.ts,)) is not None
        return any(
            slate.time < oldest and slate.packed(item) is not None
            for slate in user.slates.everything()
        )

    def _settle(self) -> Iterator[None]:
        """Make final what is pending and can no longer change hands: wm > ts + L, strictly."""
        if self.watermark is None:
            return
        final = self.watermark - self.definition.allowed_lateness
        due = self._due
        step = 0
        while due and due[0][0] < final:
            step += 1
            if step % FLUSH_STEP == 0:
                yield
            pending = heappop(due)[2]
            user = self.users[pending.user]
            assert user.pending is not None
            user.pending.leave(pending)
            if not user.pending:
                user.pending = None
                self.forget(user)
            slate = pending.slate
            if slate is None:
                self.waiting -= 1
                self.unattributed["expired" if pending.expired else "no_impression"] += 1
            else:
                # What it is worth stays the same, so no flush has to look at the slate.
                slate.soft = unmarked(slate.soft, pending.item, pending.kind)
                self._credit(
                    slate,
                    pending.item,
                    pending.kind,
                    pending.ts,
                    pending.retract,
                    pending.value,
                )
                self.note(slate)

    def _credit(
        self, slate: Slate, item: str, kind: int, ts: int, retract: bool, value: float
    ) -> None:
        """Attribute feedback to an impression for good."""
        slate.feedback = marked(slate.feedback, item, kind, ts, retract)
        known = slate.particulars
        if known is not None:
            known.log.append((item, kind, ts, value, retract))
            if len(known.log) > MAX_LOGGED_FEEDBACK:
                records, _, _ = by_key(slate.feedback)[item, kind]
                self.overflow_feedback += records > MAX_LOGGED_FEEDBACK
                # Looked through only when it has doubled, so an entry costs a constant.
                if len(known.log) >= self.log_limits.get(slate, 2 * MAX_LOGGED_FEEDBACK):
                    known.log = bounded(known.log)
                    most = max(MAX_LOGGED_FEEDBACK, len(known.log))
                    self.log_limits[slate] = len(known.log) + most

    def _credit_first(
        self, user: User, slate: Slate, event: FeedbackEvent, kind: int, packed: int
    ) -> None:
        """The same for the first feedback to a slate of which all is booked: this is at once."""
        self._credit(slate, event.item_id, kind, event.ts, event.retract, event.value)
        gain = self.gains[kind]
        rank = 0
        if gain > 0:
            rank = packed if isinstance(slate.shown, str) else ranks_of(slate)[event.item_id]
        judged = of_one(kind, len(self.gains), gain, rank, ranked=True)
        assert judged[1] is not None, "what has a request is ranked"
        slate.booked_verdict = judged
        segment = slate.segment
        cell = user.cell if user.cell_segment == segment else self.cell(user, segment)
        self.rows.add_positives(slate.time, cell, kind, 1)
        self.rows.add_ranking(slate.time, cell, judged[1], 1)
        self.note(slate)


class _Reach:
    """The stretch of time in which feedback to an item can count for one of some slates.

    All that waits for the item is walked along once for all of them: what another slate holds, or
    none, is hopped over, up to where one of these can be the nearest again.
    """

    def __init__(self, item: str, slates: dict[Slate, None], window: int) -> None:
        self.slates = slates
        self._window = window
        self._shown = sorted({slate.shown_at(item) for slate in slates})
        self.begin = (self._shown[0], NEVER)
        self.end = max(slate.time for slate in slates) + window

    def after(self, pending: Pending, nearest: Slate | None) -> tuple[int, int]:
        """From where on to look on behind `pending`, which `nearest` is to have."""
        if nearest is not None and nearest in self.slates:
            return pending.ts, pending.number + 1
        # Of these, the ones shown by then are too old; or `nearest` was shown after them, and holds
        # whatever comes until it is too old itself.
        at = bisect_right(self._shown, pending.ts)
        ts = self._shown[at] if at < len(self._shown) else self.end + 1
        return ts if nearest is None else min(ts, nearest.time + self._window + 1), NEVER


def _count_held(pendings: Pendings, name: str | tuple[str, str], reach: _Reach) -> Iterator[None]:
    """Count what the slates of `reach` hold of what waits under one name."""
    pending = pendings.next(name, reach.begin)
    while pending is not None and pending.ts <= reach.end:
        slate = pending.slate
        if slate is not None and slate in reach.slates:
            slate.soft = marked(slate.soft, pending.item, pending.kind, pending.ts, pending.retract)
        pending = pendings.next(name, reach.after(pending, slate))
        yield


def _paced(pieces: Iterator[None]) -> Iterator[None]:
    """Work that yields after each piece, in steps of `FLUSH_STEP` of them."""
    for number, _ in enumerate(pieces, 1):
        if number % FLUSH_STEP == 0:
            yield


def _enter(by_item: dict[str, ItemShowings], slate: Slate, first: int) -> Iterator[None]:
    """Enter the items of a slate, from number `first` on, into its user's index."""
    for item, key in showings_of(slate, first):
        showings = by_item.get(item)
        if showings is None:
            by_item[item] = ItemShowings(((key, slate),))
        else:
            showings.add(key, slate)
        yield


def _awaited(pendings: Pendings, slate: Slate, first: int) -> list[str]:
    """The items of a slate, from number `first` on, that feedback waits for."""
    request = slate.request
    return [
        item
        for item in islice(slate.names(), first, None)
        if item in pendings or (request is not None and (request, item) in pendings)
    ]
