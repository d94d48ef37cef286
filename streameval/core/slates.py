"""What is open in a partition: slates, the feedback that waits, users and segments.

`attribution` fills and closes them, `verdict` judges a slate, `checkpoint` writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from streameval.core.limits import MAX_SHARED_ITEMS, OTHER

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
SoftMark = tuple[str, int, int, bool]  # item, index of the kind, ts, retraction


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
    is a cached small integer for the usual slate and costs no memory. A list that came whole stays
    in `shown` as one string, item by item with `BETWEEN`, until something needs the dict: one
    object instead of dozens is less memory, and less that has left the caches. `anchor` is the ts
    of the impression that arrived first; with user and request it identifies the slate for ever.
    `booked_*` is what windows and counters hold of the slate: a flush adds the difference.
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
    soft: dict[int, SoftMark] | None = None
    previous: Slate | None = None
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

    def latest(self) -> int:
        """When the last of its items was shown (ms)."""
        shown = self.shown
        if isinstance(shown, dict):
            return self.anchor + (max(shown.values()) >> POSITION_BITS)
        return self.anchor

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


ByItem = dict[str, dict[Slate, int]]
"""Slates by an item that they show, in the order entered; none was shown later than its number."""


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

    `cell` is the user's number in the windows for `cell_segment`, the last one asked for.
    `by_item` finds the open slates with a request of a user who has many.
    """

    id: str
    slates: dict[str, Slate]
    singles: dict[str, dict[int, Slate]] | None = None  # by item, then by time
    pending: dict[int, Pending] | None = None
    cell: int = 0
    cell_segment: int = NEVER
    by_item: ByItem | None = None

    def named_slates(self) -> Iterator[Slate]:
        """The open slates that have a request."""
        for slate in self.slates.values():
            older: Slate | None = slate
            while older is not None:
                yield older
                older = older.previous

    def open_slates(self) -> Iterator[Slate]:
        """All slates of the user that can still change."""
        yield from self.named_slates()
        for group in (self.singles or {}).values():
            yield from group.values()

    def showing(self, item: str) -> Iterator[Slate]:
        """The open slates that may show an item: those that do among them."""
        yield from self.named_slates() if self.by_item is None else self.by_item.get(item, ())
        if self.singles:
            yield from self.singles.get(item, {}).values()


class Segments:
    """The table of segments: dimension values to an index; bounded, the rest is `__other__`.

    `known` holds what `of` answered, by variant and surface, but for what is `__other__` or beyond
    a bound: the hot path looks there first.
    """

    def __init__(self, dimensions: tuple[str, ...], limit: int) -> None:
        self.dimensions = dimensions
        self.limit = limit
        self.values: list[tuple[str, ...]] = []
        self.overflowed = 0
        self._index: dict[tuple[str, ...], int] = {}
        self.known: dict[str | None, dict[str | None, int]] = {}
        self._known = 0

    def of(self, variant: str | None, surface: str | None) -> int:
        """The segment's index; appearance in the log gives the order."""
        try:
            return self.known[variant][surface]
        except KeyError:
            pass
        by_name = {"variant": variant or "", "surface": surface or ""}
        values = tuple(by_name[name] for name in self.dimensions)
        index = self._index.get(values)
        if index is None:
            if len(self._index) - self._has_other() >= self.limit:
                self.overflowed += 1
                return self._other()
            index = self.add(values)
        if self._known < 4 * self.limit:
            self._known += 1
            self.known.setdefault(variant, {})[surface] = index
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
