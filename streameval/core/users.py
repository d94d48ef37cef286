"""Users with something open: their slates, by request or item, and their pending feedback."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

import msgspec

from streameval.base.limits import MANY_SLATES
from streameval.core.marks import NEVER
from streameval.core.pending import Pendings
from streameval.core.slate import Slate
from streameval.core.timeline import SlatesOfItem, Timeline, Timelines


class Slates(Timelines[str, Slate]):
    """Slates by request, or by item where they have none, in the order in which they began.

    Slates of one request are more than an attribution window apart, so a slate that moves back in
    time stays between the same two neighbours, and its anchor does not move.
    """

    __slots__ = ()
    key_of = attrgetter("anchor")

    def begun(self, name: str, ts: int) -> Slate | None:
        """Return the latest slate of that name whose time is at or before `ts`."""
        group = self.get(name)
        if not isinstance(group, Timeline):
            return group if group is not None and group.time <= ts else None
        moved: Slate | None = group.next(ts + 1)
        return moved if moved is not None and moved.time <= ts else group.latest(ts)

    def beginning_after(self, name: str, ts: int) -> Slate | None:
        """Return the earliest slate of that name whose time is after `ts`; none begins at it."""
        return self.next(name, ts + 1)


class User(msgspec.Struct, gc=False, eq=False):
    """One user's open slates and pending feedback.

    `slates` have a request, and `chained` of them share it with an earlier slate;
    `requestless` slates have none. `cell` is the user's number in the windows for `cell_segment`,
    the last one asked for. `by_item` finds the slates with a request of an indexed user: one who
    has many.
    """

    id: str
    slates: Slates
    requestless: Slates | None = None
    pending: Pendings | None = None
    cell: int = 0
    cell_segment: int = NEVER
    by_item: dict[str, SlatesOfItem] | None = None
    chained: int = 0

    @property
    def watched(self) -> bool:
        """Whether a new impression concerns anything but the user's slates."""
        return bool(self.pending) or self.by_item is not None

    @property
    def idle(self) -> bool:
        """Whether the user has nothing open."""
        return not (self.slates or self.requestless or self.pending)

    @property
    def lacks_index(self) -> bool:
        """Whether the user has many slates, and still lacks an index by item."""
        return self.by_item is None and len(self.slates) + self.chained > MANY_SLATES

    def open_slates(self) -> Iterator[Slate]:
        """Yield all slates of the user that can still change."""
        yield from self.slates.everything()
        if self.requestless:
            yield from self.requestless.everything()

    def make_index(self) -> Iterator[None]:
        """Make the index of the user's slates by item; yield after each piece of work."""
        pairs: dict[str, list[tuple[tuple[int, str], Slate]]] = {}
        for slate in self.slates.everything():
            for item, key in slate.keyed_items():
                pairs.setdefault(item, []).append((key, slate))
                yield
        by_item: dict[str, SlatesOfItem] = {}
        while pairs:  # to free millions of them at the end would hold the loop
            item, known = pairs.popitem()
            by_item[item] = SlatesOfItem()
            yield from by_item[item].filling(known)
        self.by_item = by_item

    def enter(self, slate: Slate, first: int) -> Iterator[None]:
        """Enter the items of a slate, from number `first` on, into the index."""
        assert self.by_item is not None, "only an indexed user has one"
        for item, key in slate.keyed_items(first):
            holders = self.by_item.get(item)
            if holders is None:
                holders = self.by_item[item] = SlatesOfItem()
            holders.add(key, slate)
            yield

    def move(self, slate: Slate, item: str, before: int, ts: int) -> None:
        """Note in the index that a slate showed an item at `ts` already, not only at `before`."""
        holders = None if self.by_item is None else self.by_item.get(item)
        if holders is not None and holders.get((-before, slate.request)) is slate:
            holders.discard((-before, slate.request))
            holders.add((-ts, slate.request), slate)

    def leave(self, slate: Slate) -> None:
        """Remove a slate from the index, which goes when slates are few again."""
        if self.by_item is None or len(self.slates) + self.chained <= MANY_SLATES // 2:
            self.by_item = None
            return
        for item, key in slate.keyed_items():
            holders = self.by_item.get(item)
            if holders is not None:
                holders.discard(key)
                if not holders:
                    del self.by_item[item]
