"""What is open in a partition: slates, the feedback that waits, users and segments.

`attribution` fills and closes them, `verdict` judges a slate, `checkpoint` writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter, itemgetter
from typing import Any, Final

import msgspec

from streameval.base.limits import MAX_LOGGED_FEEDBACK, MAX_SHARED_ITEMS, OTHER
from streameval.core.timeline import ItemShowings, Timeline, Timelines

POSITION_BITS: Final = 10
POSITION_MASK: Final = (1 << POSITION_BITS) - 1
NEVER: Final = -1
# A list that is searched for an item from its beginning: beyond, a dict is faster.
MAX_LISTED: Final = 32
# Stands between the items of a list that is kept as one string: no id holds a control character.
BETWEEN: Final = "\n"

FeedbackKey = tuple[str, int]  # item, index of the kind
FeedbackMark = tuple[int, int, int]  # records, latest positive ts, latest retraction ts
LoneMark = tuple[str, int, int, int, int]
"""The key and the mark of the only feedback to a slate: most that have any have no more."""
Marks = LoneMark | dict[FeedbackKey, FeedbackMark]
Ranking = tuple[tuple[int, ...], tuple[float, ...]]
"""Ranks and gains of the relevant items of a slate."""
Verdict = tuple[tuple[int, ...] | None, Ranking | None, int]
"""Positives by kind (None: no positive), the ranking (None: nothing to score), duplicates."""
NOTHING: Final[Verdict] = (None, None, 0)


LoggedFeedback = tuple[str, int, int, float, bool]
"""Item, index of the kind, ts (ms), value, retract."""


class Particulars(msgspec.Struct, gc=False, array_like=True):
    """What outcome files say of a slate beyond what its figures need.

    `offset` of the record that opened it (-1: unknown), `ts`, `variant` and `surface` of its
    earliest event, `scores` (score, propensity by item), `log` of the feedback attributed for
    good, from time to time `bounded`. A `ts` of NEVER: the slate was there before any of this was
    kept, and has no outcome.
    """

    offset: int
    ts: int
    variant: str | None
    surface: str | None
    scores: dict[str, tuple[float | None, float | None]]
    log: list[LoggedFeedback]


class Pending(msgspec.Struct, gc=False, eq=False):
    """Feedback that a later arrival can still attribute, or attribute elsewhere (rule 3).

    `slate` holds it for the time being, and counts it in its `soft` marks.
    """

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


class Slate(msgspec.Struct, gc=False, eq=False):
    """One list shown to one user by one request, with what came of it.

    `items` maps an item to `(ts - anchor) << 10 | position` (position 0: none was given), which
    is a cached small integer for the usual slate and costs no memory. A list that came whole stays
    in `shown` as one string, item by item with `BETWEEN`, until something needs the dict: one
    object instead of dozens is less memory, and less that has left the caches. `anchor` is the ts
    of the impression that arrived first; with user and request it identifies the slate for ever.
    `booked_*` is what windows and counters hold of the slate: a flush adds the difference.
    `feedback` are the marks of what is attributed for good, `soft` those of pending feedback.
    """

    user: str
    request: str | None
    time: int
    segment: int
    anchor: int
    shown: dict[str, int] | str
    booked_time: int = 0
    booked_segment: int = NEVER
    booked_impressions: int = 0
    unsaved: bool = False
    dirty: bool = False
    feedback: Marks | None = None
    soft: Marks | None = None
    booked_verdict: Verdict = NOTHING
    particulars: Particulars | None = None

    @property
    def items(self) -> dict[str, int]:
        """The items as a dict, which may be changed."""
        shown = self.shown
        if isinstance(shown, dict):
            return shown
        share = sharing()
        names = shown.split(BETWEEN)
        self.shown = items = {share(item, item): at for at, item in enumerate(names, 1)}
        return items

    def names(self) -> Iterable[str]:
        """The items, in the order they came."""
        shown = self.shown
        return shown if isinstance(shown, dict) else shown.split(BETWEEN)

    def size(self) -> int:
        """How many items it shows."""
        shown = self.shown
        return len(shown) if isinstance(shown, dict) else shown.count(BETWEEN) + 1

    def packed(self, item: str) -> int | None:
        """What `items` holds of one item, None where it was not shown."""
        shown = self.shown
        if isinstance(shown, dict):
            return shown.get(item)
        at = shown.find(item)
        if at < 0:
            return None
        end = at + len(item)
        if (at and shown[at - 1] != BETWEEN) or (end < len(shown) and shown[end] != BETWEEN):
            # A part of another id: look for it between two others.
            at = f"{BETWEEN}{shown}{BETWEEN}".find(f"{BETWEEN}{item}{BETWEEN}")
            if at < 0:
                return None
        return shown.count(BETWEEN, 0, at) + 1

    def shown_at(self, item: str) -> int:
        """When an item that it shows was shown first (ms)."""
        packed = self.packed(item)
        assert packed is not None, "it is shown"
        return self.anchor + (packed >> POSITION_BITS)


class Slates(Timelines[str, Slate]):
    """Slates by request, or by item where they have none, in the order in which they began.

    Those of one request are more than an attribution window apart, so a slate that moves back in
    time stays between the same two; its anchor does not move.
    """

    __slots__ = ()
    key_of = attrgetter("anchor")

    def begun(self, name: str, ts: int) -> Slate | None:
        """The latest slate of that name whose time is at or before `ts`."""
        group = self.get(name)
        if not isinstance(group, Timeline):
            return group if group is not None and group.time <= ts else None
        moved: Slate | None = group.next(ts + 1)
        return moved if moved is not None and moved.time <= ts else group.latest(ts)

    def beginning_after(self, name: str, ts: int) -> Slate | None:
        """The earliest slate of that name whose time is after `ts`, where none has begun at it."""
        return self.next(name, ts + 1)


class Pendings(Timelines[str | tuple[str, str], Pending]):
    """Pending feedback in order of ts, by item; where it names a request, by request and item."""

    __slots__ = ()
    key_of = attrgetter("ts", "number")

    def enter(self, pending: Pending) -> None:
        """Add feedback."""
        self.add(_waits_for(pending), pending)

    def leave(self, pending: Pending) -> None:
        """Remove feedback."""
        self.discard(_waits_for(pending), pending)


def _waits_for(pending: Pending) -> str | tuple[str, str]:
    request = pending.request
    return pending.item if request is None else (request, pending.item)


UserDelta = list[Any]
"""What to add to a user's counters: the user's id, impressions, slates, first and last ts (ms),
positives by index of the kind. The numbers below are its indices."""
IMPRESSIONS: Final = 1
SLATES: Final = 2
FIRST_TS: Final = 3
LAST_TS: Final = 4
POSITIVES: Final = 5


class User(msgspec.Struct, gc=False, eq=False):
    """What is open for one user.

    `slates` are those with a request, `chained` of them share it with an earlier one; `singles` are
    the others. `cell` is the user's number in the windows for `cell_segment`, the last one asked
    for. `by_item` finds the slates with a request of a user who has many.
    """

    id: str
    slates: Slates
    singles: Slates | None = None
    pending: Pendings | None = None
    cell: int = 0
    cell_segment: int = NEVER
    by_item: dict[str, ItemShowings] | None = None
    chained: int = 0

    @property
    def watched(self) -> bool:
        """Whether what this user is shown concerns anything but its slates."""
        return bool(self.pending) or self.by_item is not None

    def open_slates(self) -> Iterator[Slate]:
        """All slates of the user that can still change."""
        yield from self.slates.everything()
        if self.singles:
            yield from self.singles.everything()


class Segments:
    """The table of segments: dimension values to an index; bounded, the rest is `__other__`.

    When an event needs a place and `limit` segments have one, those that were last shown more than
    `span` (ms) before it lose theirs: nothing can change or show them any more. Only events and
    their order decide that. An index is used again from the next `release` on, since what was not
    flushed may still hold it.

    `known` holds what `of` answered, by variant and surface, but for what is `__other__` or beyond
    a bound: the hot path looks there first. `values` and `shown`, the newest ts, are by index;
    `shown` is `NEVER` where the index is free.
    """

    def __init__(self, dimensions: tuple[str, ...], limit: int, span: int) -> None:
        self.dimensions = dimensions
        self.limit = limit
        self.span = span
        self.values: list[tuple[str, ...]] = []
        self.shown: list[int] = []
        self.overflowed = 0
        self.leaving: list[int] = []
        self.known: dict[str | None, dict[str | None, int]] = {}
        self._known = 0
        self._rest = (OTHER,) * len(dimensions)
        self._index: dict[tuple[str, ...], int] = {}
        self._free: list[int] = []
        self._oldest = NEVER  # no segment with a place was last shown before

    def of(self, variant: str | None, surface: str | None, ts: int) -> int:
        """The index of the segment shown at `ts`; appearance in the log gives the order."""
        try:
            index = self.known[variant][surface]
        except KeyError:
            index = self._found(variant, surface, ts)
        if ts > self.shown[index]:  # noqa: PLR1730  # a call takes several times as long
            self.shown[index] = ts
        return index

    def _found(self, variant: str | None, surface: str | None, ts: int) -> int:
        by_name = {"variant": variant or "", "surface": surface or ""}
        values = tuple(by_name[name] for name in self.dimensions)
        index = self._index.get(values)
        if index is None:
            if values != self._rest and self._full() and not self._retire(ts - self.span):
                self.overflowed += 1
                return self._other(ts)
            index = self._enter(values, ts)
        if self._known < 4 * self.limit:
            self._known += 1
            self.known.setdefault(variant, {})[surface] = index
        return index

    def release(self) -> None:
        """Let the indices of retired segments be used again: nothing holds them any more."""
        for index in self.leaving:
            self.shown[index] = NEVER
        self._free += self.leaving
        self.leaving = []

    def restore(self, values: Sequence[tuple[str, ...]], shown: Sequence[int]) -> None:
        """Fill the empty table as it was stored."""
        self.values += values
        self.shown += shown
        for index, ts in enumerate(shown):
            if ts == NEVER:
                self._free.append(index)
            else:
                self._index[values[index]] = index

    def _full(self) -> bool:
        return len(self._index) - (self._rest in self._index) >= self.limit

    def _retire(self, before: int) -> bool:
        """Take their places from the segments that were last shown before a time."""
        if before <= self._oldest:
            return False
        shown = {v: self.shown[index] for v, index in self._index.items() if v != self._rest}
        old = [values for values, ts in shown.items() if ts < before]
        self.leaving += [self._index.pop(values) for values in old]
        self._oldest = min((ts for ts in shown.values() if ts >= before), default=before)
        if old:
            self.known.clear()
            self._known = 0
        return bool(old)

    def _enter(self, values: tuple[str, ...], ts: int) -> int:
        if self._free:
            index = self._free.pop()
            self.values[index], self.shown[index] = values, ts
        else:
            index = len(self.values)
            self.values.append(values)
            self.shown.append(ts)
        self._index[values] = index
        self._oldest = min(self._oldest, ts)
        return index

    def _other(self, ts: int) -> int:
        other = self._index.get(self._rest)
        return self._enter(self._rest, ts) if other is None else other


_ITEMS: dict[str, str] = {}


def sharing() -> Callable[[str, str], str]:
    """What answers, for an item id given twice, the one string that all dicts of slates hold of it.

    An item is shown again and again: strings of their own are a third of the memory of slates.
    """
    if len(_ITEMS) > MAX_SHARED_ITEMS:
        _ITEMS.clear()
    return _ITEMS.setdefault


def marked(marks: Marks | None, item: str, kind: int, ts: int, retract: bool) -> Marks:
    """`marks` and one record more: the latest ts of a positive and of a retraction stay.

    A dict of marks is changed.
    """
    if marks is None:
        return (item, kind, 1, NEVER, ts) if retract else (item, kind, 1, ts, NEVER)
    marks = by_key(marks)
    records, positive, retraction = marks.get((item, kind), (0, NEVER, NEVER))
    if retract:
        retraction = max(retraction, ts)
    else:
        positive = max(positive, ts)
    marks[item, kind] = (records + 1, positive, retraction)
    return marks


def bounded(log: Iterable[LoggedFeedback]) -> list[LoggedFeedback]:
    """`log` in order of ts, with at most `MAX_LOGGED_FEEDBACK` entries of one item and kind.

    The earliest of them stay, and the latest positive and retraction, which decide. What stays
    depends neither on the order of arrival nor on when this was called before.
    """
    entries: dict[FeedbackKey, list[LoggedFeedback]] = {}
    for entry in log:
        entries.setdefault(entry[:2], []).append(entry)
    kept: list[LoggedFeedback] = []
    for group in entries.values():
        group.sort(key=itemgetter(2, 3, 4))
        first, rest = group[: MAX_LOGGED_FEEDBACK - 2], group[MAX_LOGGED_FEEDBACK - 2 :]
        last = {entry[4]: entry for entry in rest}
        kept += [*first, *last.values()]
    return sorted(kept, key=itemgetter(2, 0, 1, 3, 4))


def unmarked(marks: Marks | None, item: str, kind: int) -> Marks | None:
    """`marks` without one record, the oldest of its item and kind.

    Its ts may stay: whoever takes a record away has entered it elsewhere.
    """
    assert marks is not None, "what is taken away was entered"
    if not isinstance(marks, dict):
        _, _, records, positive, retraction = marks
        return (item, kind, records - 1, positive, retraction) if records > 1 else None
    records, positive, retraction = marks[item, kind]
    if records > 1:
        marks[item, kind] = (records - 1, positive, retraction)
    else:
        del marks[item, kind]
    return marks or None


def without(marks: Marks | None, item: str, kinds: int) -> Marks | None:
    """`marks` without those of an item, of any of so many kinds. A dict of marks is changed."""
    if not isinstance(marks, dict):
        return None if marks is not None and marks[0] == item else marks
    for kind in range(kinds):
        marks.pop((item, kind), None)
    return marks or None


def merged(marks: Marks | None, more: Marks | None) -> Marks | None:
    """Both together; neither is changed."""
    if marks is None or more is None:
        return marks or more
    both = dict(by_key(marks))
    for key, (records, positive, retraction) in by_key(more).items():
        known = both.get(key, (0, NEVER, NEVER))
        both[key] = (known[0] + records, max(known[1], positive), max(known[2], retraction))
    return both


def by_key(marks: Marks) -> dict[FeedbackKey, FeedbackMark]:
    """The same as a dict: itself where it is one."""
    if isinstance(marks, dict):
        return marks
    item, kind, *mark = marks
    return {(item, kind): tuple(mark)}  # type: ignore[dict-item]  # these three


def precedes(slate: Slate, best: Slate) -> bool:
    """Of two showings at the same ts: none first, then the smaller request."""
    return best.request is not None and (slate.request is None or slate.request < best.request)


def keep_scores(slate: Slate, item: str, score: float | None, propensity: float | None) -> None:
    """Note what was logged of a showing, the first that says anything."""
    if slate.particulars is not None and (score is not None or propensity is not None):
        slate.particulars.scores.setdefault(sharing()(item, item), (score, propensity))
