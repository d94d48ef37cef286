"""A slate: one list that one request showed to one user, with the feedback that came back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from streameval.base.limits import MAX_ITEMS, MAX_LOGGED_FEEDBACK, MAX_SHARED_ITEMS, MILLI
from streameval.base.scaled import scale
from streameval.core.events import ImpressionEvent, SlateEvent
from streameval.core.list_shapes import Hits, ListShape
from streameval.core.marks import NEVER, LoggedFeedback, Marks, StoredMarks, from_stored, to_stored
from streameval.core.metrics import RelevantItems, order_ranks

POSITION_BITS: Final = 10
POSITION_MASK: Final = (1 << POSITION_BITS) - 1
# A list is searched for an item from its beginning: beyond this length a dict is faster.
MAX_LISTED: Final = 32
_ONE_TO_N: Final = list(range(1, MAX_ITEMS + 1))
# Separates the items of a list that is kept as one string: no id holds a control character.
BETWEEN: Final = "\n"

ItemValues = tuple[tuple[int, int], ...]
"""The values of a slate that are not 0: the index of the kind, and the value in 10**-6."""


Arrivals = tuple[tuple[int, int, float], ...]
"""Bucket of delay, rank and gain of the positives that make items relevant, rising."""


class Relevance(NamedTuple):
    """The worth of the feedback to a slate.

    `positives` by kind (None: no positive), the `relevant` items (None: not scored), `duplicates`
    among the records, and `hits` where the slate has a request. `delays` of the positives are slots
    of `core.delays`. The `arrivals` tell how the score came; they are empty where there are more
    than `MAX_FOLLOWED`.
    """

    positives: tuple[int, ...] | None
    relevant: RelevantItems | None
    duplicates: int
    hits: Hits
    values: ItemValues
    delays: tuple[int, ...]
    arrivals: Arrivals


NO_FEEDBACK: Final = Relevance(None, None, 0, (), (), (), ())


_NO_SCORES: dict[str, tuple[float | None, float | None]] = {}
_NO_LOG: list[LoggedFeedback] = []


class SlateDetails(msgspec.Struct, gc=False, array_like=True):
    """The fields of outcome files that no figure needs.

    `offset` of the record that opened the slate (-1: unknown), `ts` and `labels` of its earliest
    event, `scores` (score, propensity by item), `log` of the feedback attributed for good, which is
    `bounded` where it has grown to `log_limit`. If only the labels are kept, `scores` and `log` are
    shared empty objects and `log_limit` is 0.
    """

    offset: int
    ts: int
    labels: tuple[str, ...]
    scores: dict[str, tuple[float | None, float | None]]
    log: list[LoggedFeedback]
    log_limit: int = 2 * MAX_LOGGED_FEEDBACK

    @property
    def is_whole(self) -> bool:
        """Whether they are known from the first impression on, so that the slate has an outcome."""
        return self.log_limit > 0

    @classmethod
    def arms(cls, ts: int, labels: tuple[str, ...]) -> SlateDetails:
        """Return the labels alone: details are dear where every slate has them."""
        return cls(NEVER, ts, labels, _NO_SCORES, _NO_LOG, 0)

    def keep_score(self, item: str, score: float | None, propensity: float | None) -> None:
        """Note the logged score of an item, from the first impression that has a score."""
        if self.log_limit and (score is not None or propensity is not None):
            self.scores.setdefault(sharing()(item, item), (score, propensity))


SlateRecord = tuple[
    str,  # user
    str | None,  # request
    int,  # time
    int,  # segment
    int,  # anchor
    dict[str, int] | str,  # items, as slates keep them
    StoredMarks | None,
    int,  # extras
    SlateDetails | None,
]
SlateIdentity = tuple[str, str, int]
"""User, request (or item) and anchor: they never change."""


class Slate(msgspec.Struct, gc=False, eq=False):
    """One list shown to one user by one request.

    Its earliest event gives `time` (ms) and `segment` (index). `anchor` (ms) is the ts of the
    impression that arrived first; user, request and anchor identify the slate for ever. `booked_*`
    is the share of the slate in windows and counters: a flush adds the difference. `feedback` has
    the marks of feedback attributed for good, `provisional` the marks of pending feedback. `extras`
    is fallback and latency, see `extras_of`.

    The items have two forms, which only this class knows. `items` maps an item to
    `(ts - anchor) << 10 | position` (position 0: absent), a cached small integer in the usual
    slate, which costs no memory. A list that came whole stays one string, item by item with
    `BETWEEN`, until something needs the dict: one object in place of dozens takes less memory.
    """

    user: str
    request: str | None
    time: int
    segment: int
    anchor: int
    _items: dict[str, int] | str
    booked_time: int = 0
    booked_segment: int = NEVER
    booked_impressions: int = 0
    unsaved: bool = False
    dirty: bool = False
    feedback: Marks | None = None
    provisional: Marks | None = None
    booked: Relevance = NO_FEEDBACK
    extras: int = 0
    booked_extras: int = 0
    booked_list: ListShape | None = None
    details: SlateDetails | None = None

    @property
    def is_packed(self) -> bool:
        """Whether the items came whole and stand in one string."""
        return isinstance(self._items, str)

    @property
    def items(self) -> dict[str, int]:
        """The items as a dict, which may be changed."""
        if isinstance(self._items, str):
            share = sharing()
            names = self._items.split(BETWEEN)
            self._items = {share(item, item): at for at, item in enumerate(names, 1)}
        return self._items

    def packed_items(self) -> dict[str, int]:
        """Return the items as a dict, and leave the slate as it is."""
        if isinstance(self._items, dict):
            return self._items
        return {item: at for at, item in enumerate(self._items.split(BETWEEN), 1)}

    def names(self) -> Iterable[str]:
        """Return the items in the order in which they came."""
        return self._items if isinstance(self._items, dict) else self._items.split(BETWEEN)

    def size(self) -> int:
        """Return the number of items."""
        items = self._items
        return len(items) if isinstance(items, dict) else items.count(BETWEEN) + 1

    def grown(self) -> int:
        """Return how many items are not booked yet; a list kept as it came has not grown."""
        items = self._items
        return len(items) - self.booked_impressions if isinstance(items, dict) else 0

    def may_show(self, item: str) -> bool:
        """Return False where the slate surely does not show an item: a fast first look."""
        return item in self._items

    def packed(self, item: str) -> int | None:
        """Return the value of `items` for one item, None where the slate does not show it."""
        items = self._items
        if isinstance(items, dict):
            return items.get(item)
        at = items.find(item)
        if at < 0:
            return None
        end = at + len(item)
        if (at and items[at - 1] != BETWEEN) or (end < len(items) and items[end] != BETWEEN):
            # It is a part of another id: look for it between two separators.
            at = f"{BETWEEN}{items}{BETWEEN}".find(f"{BETWEEN}{item}{BETWEEN}")
            if at < 0:
                return None
        return items.count(BETWEEN, 0, at) + 1

    def shown_at(self, item: str) -> int:
        """Return when an item of the slate was shown first (ms)."""
        packed = self.packed(item)
        assert packed is not None, "it is shown"
        return self.anchor + (packed >> POSITION_BITS)

    def keyed_items(self, first: int = 0) -> Iterator[tuple[str, tuple[int, str]]]:
        """Yield the items of a slate with a request, from number `first` on, with a key each.

        The key orders the slates of an item, the latest first: (-ms of the impression, request).
        """
        request, anchor, items = self.request, self.anchor, self._items
        assert request is not None, "only slates with a request stand in an index"
        if isinstance(items, str):
            key = (-anchor, request)
            for item in items.split(BETWEEN)[first:]:
                yield item, key
        else:
            for item, packed in islice(items.items(), first, None):
                yield item, (-anchor - (packed >> POSITION_BITS), request)

    def rank(self, item: str, packed: int | None = None) -> int:
        """Return the rank of an item, 1-based; `packed` is its value in `items` if known."""
        if isinstance(self._items, dict):
            return self.ranks()[item]
        rank = self.packed(item) if packed is None else packed
        assert rank is not None, "it is shown"
        return rank

    def ranks(self) -> dict[str, int]:
        """Return the rank of every item, 1-based."""
        items = self._items
        if not isinstance(items, dict):
            return self.packed_items()
        positions = items
        if not items:
            return items
        if min(items.values()) < 0 or max(items.values()) > POSITION_MASK:  # not shown at once
            positions = {item: packed & POSITION_MASK for item, packed in items.items()}
        distinct = set(positions.values())
        if len(distinct) == len(positions) and 0 not in distinct:
            # Positions that are given and differ are ranks already.
            return positions
        anchor = self.anchor
        return order_ranks(
            (item, (packed & POSITION_MASK) or None, anchor + (packed >> POSITION_BITS))
            for item, packed in items.items()
        )

    def is_in_order(self) -> bool:
        """Return False where the ranks are not surely 1 to n: a fast first look."""
        items = self._items
        if isinstance(items, str):
            return True
        return [packed & POSITION_MASK for packed in items.values()] == _ONE_TO_N[: len(items)]

    def note_extras(self, event: ImpressionEvent | SlateEvent) -> None:
        """Note the fallback and the latency that an event of the slate gives."""
        known, more = self.extras, extras_of(event.fallback, event.latency_ms)
        self.extras = 2 * max(known >> 1, more >> 1) + ((known | more) & 1)

    def record(self) -> SlateRecord:
        """Return the slate as a checkpoint holds it."""
        return (
            *(self.user, self.request, self.time, self.segment, self.anchor, self._items),
            to_stored(self.feedback),
            self.extras,
            self.details,
        )

    @classmethod
    def of(cls, record: SlateRecord, *, keep_outcomes: bool) -> Slate:
        """Return a slate as it was stored, with nothing booked."""
        user, request, time, segment, anchor, items, marks, extras, details = record
        if isinstance(items, dict):
            share = sharing()
            items = {share(item, item): packed for item, packed in items.items()}
        # They are complete only if kept from the first impression on.
        if details is not None and not keep_outcomes:
            details = SlateDetails.arms(details.ts, details.labels)
        slate = cls(user, request, time, segment, anchor, items, extras=extras, details=details)
        slate.feedback = from_stored(marks)
        return slate


def record_identity(record: SlateRecord) -> SlateIdentity:
    """Return the identity of the slate that a record holds."""
    user, request, _, _, anchor, items, *_ = record
    # Ids have no control characters: "\n" keeps a lone impression apart from every request.
    return (user, "\n" + next(iter(items)) if request is None else request, anchor)


def whole_items(event: SlateEvent) -> dict[str, int] | str:
    """Return the items of a list that came whole, in the form in which a slate keeps them."""
    is_short = 0 < len(event.items) <= MAX_LISTED
    if is_short:
        try:
            return BETWEEN.join(event.items)  # type: ignore[arg-type]
        except TypeError:  # not only ids
            pass
    positions = event.positions
    if is_short and [*positions.values()] == _PLACES[: len(positions)]:
        return BETWEEN.join(positions)
    share = sharing()
    return {share(item, item): position for item, position in positions.items()}


def extras_of(fallback: bool | None, latency_ms: float | None) -> int:  # noqa: FBT001  # fields
    """Return fallback and latency as one number: (us + 1) * 2 + fallback, 0 for an absent latency.

    Most slates have neither, and a small number takes no memory.
    """
    latency = 0 if latency_ms is None else scale(latency_ms, MILLI) + 1
    return 2 * latency + bool(fallback)


def precedes(slate: Slate, best: Slate) -> bool:
    """Return whether `slate` comes before `best`, both shown at the same ts.

    A slate without a request comes first, then the smaller request.
    """
    return best.request is not None and (slate.request is None or slate.request < best.request)


_ITEMS: dict[str, str] = {}
_PLACES = [*range(1, MAX_LISTED + 1)]


def sharing() -> Callable[[str, str], str]:
    """Return the interning function for item ids: called with an id twice, it returns one string.

    An item is shown again and again: strings of their own are a third of the memory of slates.
    """
    if len(_ITEMS) > MAX_SHARED_ITEMS:
        _ITEMS.clear()
    return _ITEMS.setdefault
