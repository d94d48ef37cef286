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
order-invariance of the rules the answer does not depend on where a flush falls. Two things are
booked at once (`rows`), since nearly always nothing changes them: a list that comes whole as a
slate of its own, and the first feedback to a slate. No flush looks at those, unless something does.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush

from streameval.core.definition import Definition
from streameval.core.events import Event, FeedbackEvent, ImpressionEvent, SlateEvent
from streameval.core.limits import MANY_SLATES, MAX_FEEDBACK_KINDS, MAX_ITEMS, OTHER
from streameval.core.showings import Showings
from streameval.core.slates import (
    NEVER,
    POSITION_BITS,
    POSITIVES,
    ByItem,
    Pending,
    Slate,
    User,
    keep_scores,
    marked,
    precedes,
    sharing,
)
from streameval.core.verdict import of_one, ranks_of


class Attribution(Showings):
    """The open slates and pending feedback of one partition.

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
        inbox = self.inbox
        share = sharing()
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
        self._rematch()
        self._count_kinds()
        users, kinds, thresholds = self.users, self._kinds, self._thresholds
        for event in self.inbox:
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
        self.inbox.clear()
        self._settle()

    def _rematch(self) -> None:
        """Match pending feedback again with the slates that changed since (rule 3)."""
        if not (self._due or self.crowds):
            return
        users = self.users
        changed: dict[str, list[Slate]] = {}
        for slate in self.dirty:
            user = users[slate.user]
            if user.by_item is not None:
                self._index(user.by_item, slate, self.watermark)
            if user.pending:
                changed.setdefault(slate.user, []).append(slate)
        for user_id, slates in changed.items():
            user = users[user_id]
            pendings = list((user.pending or {}).values())
            # Where both are many, only slates that show its item are looked at for each.
            showing: dict[str, list[Slate]] | None = None
            if len(slates) * len(pendings) > MANY_SLATES:
                showing = defaultdict(list)
                for slate in slates:
                    for item in slate.names():
                        showing[item].append(slate)
            for pending in pendings:
                if showing is None or pending.request is not None:
                    self._match_again(user, pending, slates)
                elif pending.item in showing:
                    self._match_again(user, pending, showing[pending.item])

    def _index(self, by_item: ByItem, slate: Slate, latest: int | None) -> None:
        """Enter what a slate shows: nothing entered so far was shown later than `latest`."""
        if slate.request is not None:
            assert latest is not None, "what is dirty was shown"
            for item in slate.names():
                by_item.setdefault(item, {}).setdefault(slate, latest)

    def _indexed(self, user: User) -> ByItem | None:
        """The index of a user's slates by item, made where they are many."""
        if user.by_item is None and len(user.slates) > MANY_SLATES:
            self.crowds += 1
            user.by_item = {}
            for slate in sorted(user.named_slates(), key=Slate.latest):
                self._index(user.by_item, slate, slate.latest())
        return user.by_item

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
            user.pending = {}
        user.pending[pending.number] = pending
        heappush(self._due, (pending.ts, pending.number, pending))
        self.waiting += 1
        self._match(user, pending)

    def pending(self) -> list[Pending]:
        """All feedback that is pending, in no order."""
        return [entry[2] for entry in self._due]

    def _named(self, user: User, request: str, item: str, ts: int) -> tuple[Slate, int] | None:
        """The slate that feedback naming `request` counts for, if any, and what it holds of it."""
        slate = user.slates.get(request)
        while slate is not None and slate.time > ts:
            slate = slate.previous
        if slate is None or ts - slate.time > self.definition.attribution_window:
            return None
        packed = slate.packed(item)
        if packed is None or slate.anchor + (packed >> POSITION_BITS) > ts:
            return None
        return slate, packed

    def _nearest(self, user: User, item: str, ts: int) -> Slate | None:
        """The slate of the user's latest showing of `item` at or before `ts` (ties: rule 3)."""
        oldest = ts - self.definition.attribution_window
        best: Slate | None = None
        best_shown = NEVER
        if user.singles:
            for slate in reversed(user.singles.get(item, {}).values()):
                # Those entered before it are at most L younger.
                if slate.time + self.definition.allowed_lateness < max(best_shown, oldest):
                    break
                if oldest <= slate.time <= ts and slate.time > best_shown:
                    best, best_shown = slate, slate.time
        by_item = self._indexed(user)
        entered = None if by_item is None else by_item.get(item, {})
        for slate in user.named_slates() if entered is None else reversed(entered):
            if item not in slate.shown:  # nor within the string that a list is
                continue
            if entered is not None and entered[slate] < max(best_shown, oldest):
                break  # nor was anything later that was entered before it
            shown = self._shown(slate, item, ts)
            if shown > best_shown or (
                shown == best_shown and best is not None and precedes(slate, best)
            ):
                best, best_shown = slate, shown
        return best

    def _match(self, user: User, pending: Pending) -> None:
        """Attribute pending feedback anew."""
        if pending.request is None:
            slate = self._nearest(user, pending.item, pending.ts)
        else:
            named = self._named(user, pending.request, pending.item, pending.ts)
            slate = None if named is None else named[0]
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
            slate.soft = {}
        # What it says and not itself: a cycle of what is no business of the garbage collector
        # would stay for ever when the state is dropped.
        slate.soft[pending.number] = (pending.item, pending.kind, pending.ts, pending.retract)
        self.mark(slate)

    def _let_go(self, slate: Slate, pending: Pending) -> None:
        assert slate.soft is not None
        del slate.soft[pending.number]
        self.mark(slate)

    def _is_expired(self, user: User, pending: Pending) -> bool:
        """Whether a slate is known that this feedback comes too late for (a diagnostic)."""
        if pending.request is not None:
            slate = user.slates.get(pending.request)
            oldest = pending.ts - self.definition.attribution_window
            return slate is not None and slate.time < oldest
        return self._too_old(pending, user.showing(pending.item))

    def _too_old(self, pending: Pending, slates: Iterable[Slate]) -> bool:
        oldest = pending.ts - self.definition.attribution_window
        return any(
            slate.time < oldest and slate.packed(pending.item) is not None for slate in slates
        )

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
                # What it is worth stays the same, so no flush has to look at the slate.
                assert slate.soft is not None
                del slate.soft[pending.number]
                slate.soft = slate.soft or None
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
        if slate.particulars is not None:
            slate.particulars.log.append((item, kind, ts, value, retract))
        slate.feedback = marked(slate.feedback, item, kind, ts, retract)

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
