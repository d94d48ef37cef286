"""Feedback that a later arrival can still attribute, or attribute elsewhere."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator
from operator import attrgetter

import msgspec

from streameval.core.marks import NEVER, add_mark
from streameval.core.slate import Slate
from streameval.core.timeline import Timelines

PendingRecord = tuple[
    str,  # user
    str,  # item
    str | None,  # request
    int,  # ts
    int,  # index of the kind
    bool,  # retract
    float,  # value
    int | None,  # value in 10**-6, where it is a figure
    bool,  # expired
    int,  # its number, which orders feedback of the same ts
]


class Pending(msgspec.Struct, gc=False, eq=False):
    """One pending feedback (rule 3 of `attribution`).

    `slate` holds it provisionally, and counts it in its marks `provisional`.
    """

    user: str
    item: str
    request: str | None
    ts: int
    kind: int
    retract: bool
    number: int
    value: float = 1.0
    micro: int | None = None
    expired: bool = False
    slate: Slate | None = None

    @property
    def name(self) -> str | tuple[str, str]:
        """The name under which the feedback waits: an item, or an item of a request."""
        return self.item if self.request is None else (self.request, self.item)

    def record(self) -> PendingRecord:
        """Return the feedback as a checkpoint holds it."""
        return (
            *(self.user, self.item, self.request, self.ts, self.kind),
            *(self.retract, self.value, self.micro, self.expired, self.number),
        )

    def mark_in(self, slate: Slate) -> None:
        """Count the feedback in the provisional marks of a slate."""
        slate.provisional = add_mark(
            slate.provisional, self.item, self.kind, self.ts, self.retract, self.micro
        )

    @classmethod
    def of(cls, record: PendingRecord) -> Pending:
        """Return the feedback as it was stored; `Attribution.wait` numbers it anew."""
        user, item, request, ts, kind, retract, value, micro, expired, _ = record
        return cls(user, item, request, ts, kind, retract, NEVER, value, micro, expired)


class Pendings(Timelines[str | tuple[str, str], Pending]):
    """Pending feedback of one user in order of ts, by `Pending.name`."""

    __slots__ = ()
    key_of = attrgetter("ts", "number")


class Reach:
    """The stretch of time in which feedback to an item can count for one of some slates.

    One walk over the feedback that waits for the item serves all these slates. The walk skips
    feedback that counts elsewhere, up to the time when one of these slates can be nearest again.
    """

    def __init__(self, slates: set[Slate], moments: set[int], window: int) -> None:
        """Take over `slates`, which showed the item at `moments` (ms)."""
        self.slates = slates
        self._window = window
        self._moments = sorted(moments)
        self.begin = (self._moments[0], NEVER)
        self.end = max(slate.time for slate in slates) + window

    @classmethod
    def of(cls, item: str, slates: Iterable[Slate], window: int) -> Generator[None, None, Reach]:
        """Return the reach of slates that show an item; yield after each slate."""
        moments = set()
        for slate in slates:
            moments.add(slate.shown_at(item))
            yield
        return cls(set(slates), moments, window)

    def after(self, pending: Pending, nearest: Slate | None) -> tuple[int, int]:
        """Return the key to go on from after `pending`, which counts for `nearest`."""
        if nearest is not None and nearest in self.slates:
            return pending.ts, pending.number + 1
        # The slates shown by then are too old, or `nearest` was shown after them and holds all
        # that comes until it is too old itself.
        at = bisect_right(self._moments, pending.ts)
        ts = self._moments[at] if at < len(self._moments) else self.end + 1
        return ts if nearest is None else min(ts, nearest.time + self._window + 1), NEVER

    def count_held(self, pendings: Pendings, name: str | tuple[str, str]) -> Iterator[None]:
        """Mark in the slates the feedback waiting under `name` that counts for them."""
        pending = pendings.next(name, self.begin)
        while pending is not None and pending.ts <= self.end:
            slate = pending.slate
            if slate is not None and slate in self.slates:
                pending.mark_in(slate)
            pending = pendings.next(name, self.after(pending, slate))
            yield
