"""Attribution: slates, waiting feedback, and the slate that gets the credit, in one partition.

Rules of this file (A is the attribution window, L the allowed lateness, wm the watermark):

1. Impressions of one (user, request) join the slate whose time lies at most A before them. An
   earlier impression that arrives later becomes the slate's time. Because accepted events are at
   most L older than wm, and L <= A, at most one slate begins after such an impression, and all of
   the slate lies within A of the impression: the slate *moves*, slates never merge or split.
2. Feedback that names a request, once attributed, stays: later impressions join the same slate,
   and moving the slate's time leaves accepted feedback within A (it is at most L younger).
3. Feedback without a request can go to a nearer impression until wm passes ts + L. Until then
   the feedback is *pending*, attributed or not, and is matched again when its item is shown again.
4. A slate is finalized once wm passes its time + A + L: by rules 1-3 nothing can change it then.

Hot path: `apply` only records. An impression goes into its slate, feedback into a list. Attribution
happens once a flush, in `resolving`, for the slates and users that changed. By the order-invariance
of the rules the result does not depend on where a flush falls. All searches are in order of time
(`timeline`): one user may have many slates open.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import islice
from math import ulp
from typing import Any

from streameval.base.limits import (
    FLUSH_STEP,
    MAX_FEEDBACK_KINDS,
    MAX_ITEMS,
    MAX_LOGGED_FEEDBACK,
    MAX_TS,
    MICRO,
    OTHER,
)
from streameval.base.scaled import scale
from streameval.core.definition import Definition, Positive
from streameval.core.events import Event, FeedbackEvent, SlateEvent
from streameval.core.ledger import POSITIVES, Ledger
from streameval.core.marks import NEVER, add_mark, bound_log, by_key, remove_mark, without
from streameval.core.open_slates import OpenSlates, SlateRun
from streameval.core.pending import Pending, PendingRecord, Pendings, Reach
from streameval.core.slate import POSITION_BITS, Slate, precedes, sharing
from streameval.core.users import User

SlatesByItem = dict[tuple[str, str], dict[Slate, None]]
"""Slates that show an item, by user and item."""


class Attribution:
    """The pending feedback of one partition, and the counters of its events.

    `apply` takes accepted-or-late events in log order, `resolving` attributes the feedback that
    came in since. All times are ms of event time.
    """

    def __init__(self, definition: Definition, slates: OpenSlates, ledger: Ledger) -> None:
        self.definition = definition
        self.slates = slates
        self.ledger = ledger
        self.watermark: int | None = None
        self.inbox: list[FeedbackEvent] = []
        self.accepted = {"impression": 0, "slate": 0, "feedback": 0}
        self.late = 0
        self.ignored = 0
        self.unattributed = {"no_impression": 0, "expired": 0}
        self.waiting = 0
        self.feedback_kinds: dict[str, int] = {}
        self.overflow_feedback = 0  # since this object was made
        self._kinds = {positive.kind: i for i, positive in enumerate(definition.positives)}
        # Without a threshold all values count; those not above 0 are met where thresholds are.
        self._thresholds = [
            ulp(0.0) if positive.threshold is None else positive.threshold
            for positive in definition.positives
        ]
        self.counted_anyway: set[Positive] = set()
        self._valued = [positive.value != "none" for positive in definition.positives]
        self._window = definition.attribution_window
        self._due: list[tuple[int, int, Pending]] = []
        self._number = 0

    # ------------------------------------------------------------------ apply

    def apply(  # noqa: C901, PLR0915  # the hot loop: a call for each event would cost more
        self, events: Sequence[Event], offsets: Sequence[int] | None = None
    ) -> list[int]:
        """Record `events` (in log order); return the indices of the late ones, not applied.

        `offsets` of their records, parallel, are only for outcomes.
        """
        slates = self.slates
        labels_of, recent, inbox = slates.labels_of, slates.recent, self.inbox
        keep_offsets = slates.keep_outcomes and offsets is not None
        late: list[int] = []
        whole = _Whole(slates)
        before = len(inbox)
        watermark = NEVER if self.watermark is None else self.watermark
        lateness = self.definition.allowed_lateness
        oldest = watermark - lateness
        impression: type | None = None  # the class of impressions, once one has come
        share = sharing()  # an item is shown again and again: all slates hold one string of it
        run: SlateRun | None = None  # of the impression before, whose request is `current`
        current: str | None = None
        event: Any
        for index, event in enumerate(events):
            ts = event.ts
            if ts > watermark:
                watermark = ts
                oldest = ts - lateness
            elif ts < oldest:
                late.append(index)
                continue
            kind = event.__class__
            if kind is not impression:
                if kind is FeedbackEvent:
                    inbox.append(event)
                    continue
                if event.whole:
                    whole.add(event, offsets[index] if keep_offsets and offsets else None)
                    recent.pop(event.request_id, None)
                    run = current = None
                    continue
                impression = kind
            request, item, labels = event.request_id, event.item_id, labels_of(event)
            if request != current:
                run, current = recent.get(request), request
            if run is None and request is not None and not whole.events:
                # (A list that waits for its turn may be of this slate.)
                run = slates.recall(event, labels)
            if (
                run is not None
                and item not in (items := run.items)
                and labels == run.labels
                and event.user_id == run.user
                and len(items) < MAX_ITEMS
                and (ts == run.ts or run.goes_on(ts))
            ):
                items[share(item, item)] = ((ts - run.anchor) << POSITION_BITS) + (
                    event.position or 0
                )
                if event.latency_ms is not None or event.fallback or run.details is not None:
                    run.note(event)
                continue
            run = current = None
            whole.show()
            if keep_offsets and offsets is not None:
                slates.offset = offsets[index]
            slates.show(event, labels)
        whole.show()
        if watermark != NEVER:
            self.watermark = watermark
        self._count(len(events) - len(late), feedback=len(inbox) - before, slates=whole.count)
        self.late += len(late)
        return late

    def _count(self, events: int, *, feedback: int, slates: int) -> None:
        self.accepted["feedback"] += feedback
        self.accepted["slate"] += slates
        self.accepted["impression"] += events - feedback - slates

    # ---------------------------------------------------------------- resolve

    def resolving(self) -> Iterator[None]:
        """Attribute all feedback since the last flush, in steps of bounded work.

        Afterwards the open slates that are dirty are complete.
        """
        self.slates.recent.clear()
        yield from pace(self._rematch())
        self._count_kinds()
        inbox, self.inbox = self.inbox, []
        for start in range(0, len(inbox), FLUSH_STEP):
            yield from self._take_in(inbox[start : start + FLUSH_STEP])
            yield
        yield from self._settle()

    def wait(self, pending: Pending) -> None:
        """Hold feedback until nothing that may still arrive can change its slate."""
        user = self.slates.user(pending.user)
        pending.number = self._number
        self._number += 1
        if user.pending is None:
            user.pending = Pendings()
        user.pending.add(pending.name, pending)
        heappush(self._due, (pending.ts, pending.number, pending))
        self.waiting += 1
        self._match(user, pending, defaultdict(dict))

    def state(self) -> list[PendingRecord]:
        """Return the pending feedback as a checkpoint holds it, in no order."""
        return [pending.record() for _, _, pending in self._due]

    def restore(self, records: Iterable[PendingRecord]) -> None:
        """Hold the feedback that was pending."""
        for record in sorted(records, key=lambda record: (record[3], record[-1])):
            user = self.slates.users.get(record[0])
            if user is not None and user.lacks_index:
                for _ in user.make_index():
                    pass
            self.wait(Pending.of(record))

    def emptying(self) -> Iterator[None]:
        """Free the pending feedback in bounded steps, where nobody goes on with it."""
        while self._due:
            del self._due[-FLUSH_STEP:]
            yield

    def _take_in(self, events: Sequence[FeedbackEvent]) -> Iterator[None]:
        """Attribute feedback, or let it wait; yield while an index is made."""
        users, kinds, thresholds = self.slates.users, self._kinds, self._thresholds
        valued = self._valued
        for event in events:
            delta = self.ledger.delta(event.user_id, event.ts)
            kind = kinds.get(event.feedback)
            if kind is None:
                self.ignored += 1
                continue
            if event.value < thresholds[kind] and not event.retract:
                positive = self.definition.positives[kind]
                if positive.threshold is not None:
                    self.ignored += 1
                    continue
                self.counted_anyway.add(positive)
            micro = scale(event.value, MICRO) if valued[kind] and not event.retract else None
            user = users.get(event.user_id)
            if user is not None and event.request_id is not None:
                named = self._named(user, event.request_id, event.item_id, event.ts)
                if named is not None:
                    slate, packed = named
                    first = not (
                        slate.dirty or slate.feedback or slate.provisional or event.retract
                    )
                    item, ts = event.item_id, event.ts
                    self._credit(slate, item, kind, ts, event.retract, event.value, micro)
                    if first:
                        self.ledger.book_first(user, slate, item, kind, ts, packed, micro)
                        delta[POSITIVES + kind] += 1
                        self.slates.note(slate)
                    else:
                        self.slates.mark(slate)
                    continue
            elif user is not None and user.lacks_index:
                yield from pace(user.make_index())
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
                    micro,
                )
            )

    def _rematch(self) -> Iterator[None]:
        """Match pending feedback again where its item was shown since (rule 3).

        Only feedback at or after an impression of its item can go to that impression. Only an
        impression that turned out earlier can lose feedback: a slate that moves back in time was
        begun at most L before the watermark, so feedback until now is not too late for the slate.

        The method yields after each piece of work, as do its helpers.
        """
        slates = self.slates
        fresh, slates.fresh = slates.fresh, {}
        earlier, slates.earlier = slates.earlier, {}
        lost: SlatesByItem = defaultdict(dict)
        yield from self._update_indexes(fresh)
        awaited: SlatesByItem = defaultdict(dict)
        for slate, first in fresh.items():
            user = slates.users[slate.user]
            yield
            if not user.pending:
                continue
            for item in _awaited_items(user.pending, slate, first):
                awaited[user.id, item][slate] = None
                if slate.request is not None:
                    named = user.id, (slate.request, item)
                    shown_at = slate.shown_at(item)
                    earlier[named] = min(shown_at, earlier.get(named, shown_at))
                yield
        for (user_id, item), holders in awaited.items():
            yield from self._take_over(slates.users[user_id], item, holders, lost)
        for (user_id, name), ts in earlier.items():
            yield from self._match_from(slates.users[user_id], name, ts, lost)
        for (user_id, item), holders in lost.items():
            yield from self._count_provisional(slates.users[user_id], item, holders)

    def _update_indexes(self, fresh: dict[Slate, int]) -> Iterator[None]:
        """Enter in the indexes of users the items that slates showed or moved since."""
        slates = self.slates
        moved, slates.moved = slates.moved, []
        for slate, item, before, ts in moved:
            slates.users[slate.user].move(slate, item, before, ts)
            yield
        for slate, first in fresh.items():
            user = slates.users[slate.user]
            if user.by_item is not None and slate.request is not None:
                yield from user.enter(slate, first)

    def _take_over(
        self, user: User, item: str, slates: dict[Slate, None], lost: SlatesByItem
    ) -> Iterator[None]:
        """Give the feedback that waits for an item to the slates that show it only now."""
        pendings = user.pending
        assert pendings is not None, "something waits"
        reach = yield from Reach.of(item, slates, self._window)
        pending = pendings.next(item, reach.begin)
        if pending is not None and user.lacks_index:
            yield from user.make_index()
        while pending is not None and pending.ts <= reach.end:
            nearest = self._nearest(user, item, pending.ts)
            self._give(pending, nearest, lost)
            pending = pendings.next(item, reach.after(pending, nearest))
            yield

    def _match_from(
        self, user: User, name: str | tuple[str, str], ts: int, lost: SlatesByItem
    ) -> Iterator[None]:
        """Match all feedback that waits under one name again, from `ts` on."""
        if not user.pending:
            return
        pending = user.pending.next(name, (ts, NEVER))
        if pending is not None and pending.request is None and user.lacks_index:
            yield from user.make_index()
        while pending is not None:
            self._match(user, pending, lost)
            pending = user.pending.next(name, (pending.ts, pending.number + 1))
            yield

    def _count_provisional(
        self, user: User, item: str, slates: dict[Slate, None]
    ) -> Iterator[None]:
        """Recount the pending feedback to one item of slates that lost some of it."""
        pendings = user.pending
        assert pendings is not None, "the feedback that was lost waits"
        for slate in slates:
            slate.provisional = without(slate.provisional, item, len(self._thresholds))
            yield
        reach = yield from Reach.of(item, slates, self._window)
        yield from reach.count_held(pendings, item)
        for slate in slates:
            if slate.request is not None:
                own = yield from Reach.of(item, (slate,), self._window)
                yield from own.count_held(pendings, (slate.request, item))
            yield

    def _count_kinds(self) -> None:
        """Count feedback by kind; the number of kinds that are not positives is bounded."""
        known = self.feedback_kinds
        for name, count in Counter([event.feedback for event in self.inbox]).items():
            counted = name
            if name not in known and name not in self._kinds and len(known) >= MAX_FEEDBACK_KINDS:
                counted = OTHER
            known[counted] = known.get(counted, 0) + count

    def _named(self, user: User, request: str, item: str, ts: int) -> tuple[Slate, int] | None:
        """Return the slate that feedback naming `request` counts for, and its value of the item."""
        known = user.slates.get(request)
        slate = known if isinstance(known, Slate) else user.slates.begun(request, ts)
        if slate is None or not 0 <= ts - slate.time <= self._window:
            return None
        packed = slate.packed(item)
        if packed is None or slate.anchor + (packed >> POSITION_BITS) > ts:
            return None
        return slate, packed

    def _nearest(self, user: User, item: str, ts: int) -> Slate | None:
        """Return the slate with the latest impression of `item` up to `ts` (ties: `precedes`).

        The caller has made the index of a user who needs one: that takes many pieces of work.
        """
        assert not user.lacks_index, "looking through many slates takes too long"
        oldest = ts - self._window
        best = None if user.requestless is None else user.requestless.latest(item, ts)
        best_ts = NEVER if best is None else best.time
        if best_ts < oldest:
            best, best_ts = None, NEVER
        if user.by_item is not None:
            by_time = user.by_item.get(item)
            slate = None if by_time is None else by_time.nearest(ts, oldest)
            if slate is not None and self._seen_at(slate, item, ts) > best_ts:
                best = slate
            return best
        for slate in user.slates.everything():
            if not slate.may_show(item):
                continue
            seen_at = self._seen_at(slate, item, ts)
            if seen_at > best_ts or (
                seen_at == best_ts and best is not None and precedes(slate, best)
            ):
                best, best_ts = slate, seen_at
        return best

    def _match(self, user: User, pending: Pending, lost: SlatesByItem) -> None:
        """Attribute pending feedback again."""
        if pending.request is None:
            slate = self._nearest(user, pending.item, pending.ts)
        else:
            named = self._named(user, pending.request, pending.item, pending.ts)
            slate = None if named is None else named[0]
        if slate is None and not pending.expired:
            pending.expired = self._is_expired(user, pending)
        self._give(pending, slate, lost)

    def _seen_at(self, slate: Slate, item: str, ts: int) -> int:
        """Return when feedback at `ts` saw the item in a slate; NEVER where it does not count."""
        packed = slate.packed(item)
        if packed is None or slate.time < ts - self._window:
            return NEVER
        seen_at = slate.anchor + (packed >> POSITION_BITS)
        return seen_at if seen_at <= ts else NEVER

    def _give(self, pending: Pending, slate: Slate | None, lost: SlatesByItem) -> None:
        """Attribute pending feedback to `slate`; both slates, if it changes hands, are dirty.

        The slate that loses the feedback goes into `lost`, to be recounted.
        """
        held = pending.slate
        if slate is held:
            return
        pending.slate = slate
        if held is None:
            self.waiting -= 1
        else:
            lost[pending.user, pending.item][held] = None
            self.slates.mark(held)
        if slate is None:
            self.waiting += 1
            return
        pending.mark_in(slate)
        self.slates.mark(slate)

    def _is_expired(self, user: User, pending: Pending) -> bool:
        """Return whether the feedback is too late for a known slate (a diagnostic)."""
        oldest = pending.ts - self._window
        if pending.request is not None:
            slate = user.slates.latest(pending.request, MAX_TS)
            return slate is not None and slate.time < oldest
        item = pending.item
        if user.requestless is not None:
            slate = user.requestless.latest(item, oldest - 1)
            if slate is not None:
                return True
        if user.by_item is not None:
            # An impression by then that does not count is too old.
            by_time = user.by_item.get(item)
            return by_time is not None and by_time.next((-pending.ts,)) is not None
        return any(
            slate.time < oldest and slate.packed(item) is not None
            for slate in user.slates.everything()
        )

    def _settle(self) -> Iterator[None]:
        """Settle pending feedback that can no longer change hands: wm > ts + L, strictly."""
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
            user = self.slates.users[pending.user]
            assert user.pending is not None
            user.pending.discard(pending.name, pending)
            if not user.pending:
                user.pending = None
                self.slates.forget(user)
            slate = pending.slate
            item, kind = pending.item, pending.kind
            if slate is None:
                self.waiting -= 1
                self.unattributed["expired" if pending.expired else "no_impression"] += 1
            else:
                # Its worth stays the same, so no flush has to look at the slate.
                slate.provisional = remove_mark(slate.provisional, item, kind)
                self._credit(
                    slate, item, kind, pending.ts, pending.retract, pending.value, pending.micro
                )
                self.slates.note(slate)

    def _credit(  # noqa: PLR0917  # the fields of `LoggedFeedback`
        self,
        slate: Slate,
        item: str,
        kind: int,
        ts: int,
        retract: bool,  # noqa: FBT001  # the same
        value: float,
        micro: int | None,
    ) -> None:
        """Attribute feedback to an impression for good."""
        slate.feedback = add_mark(slate.feedback, item, kind, ts, retract, micro)
        known = slate.details
        if known is not None and known.log_limit:
            known.log.append((item, kind, ts, value, retract))
            if len(known.log) > MAX_LOGGED_FEEDBACK:
                records, *_ = by_key(slate.feedback)[item, kind]
                self.overflow_feedback += records > MAX_LOGGED_FEEDBACK
                # The log is bounded only when it has doubled, so an entry costs a constant.
                if len(known.log) >= known.log_limit:
                    known.log = bound_log(known.log)
                    known.log_limit = len(known.log) + max(MAX_LOGGED_FEEDBACK, len(known.log))


class _Whole:
    """Lists that came whole since the last impression: they are shown together."""

    def __init__(self, slates: OpenSlates) -> None:
        self.events: list[SlateEvent] = []
        self.count = 0
        self._offsets: list[int] = []
        self._slates = slates

    def add(self, event: SlateEvent, offset: int | None) -> None:
        """Let a list wait for its turn."""
        self.events.append(event)
        if offset is not None:
            self._offsets.append(offset)

    def show(self) -> None:
        """Show the lists that wait."""
        if self.events:
            self.count += len(self.events)
            self._slates.show_whole(self.events, self._offsets)
            self.events, self._offsets = [], []


def pace(pieces: Iterator[None]) -> Iterator[None]:
    """Yield once for every `FLUSH_STEP` pieces of work."""
    for number, _ in enumerate(pieces, 1):
        if number % FLUSH_STEP == 0:
            yield


def _awaited_items(pendings: Pendings, slate: Slate, first: int) -> list[str]:
    """Return the items of a slate, from number `first` on, that feedback waits for."""
    request = slate.request
    return [
        item
        for item in islice(slate.names(), first, None)
        if item in pendings or (request is not None and (request, item) in pendings)
    ]
