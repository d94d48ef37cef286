"""The outcome of a slate that can no longer change: a row of the outcome files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, Self

import msgspec

from streameval.base.limits import MILLI
from streameval.core.marks import bound_log
from streameval.core.relevance import gains_of
from streameval.core.slate import POSITION_BITS, POSITION_MASK, Slate


class Span(NamedTuple):
    """The outcomes that a partition adds between two checkpoints, at offsets `begin` and `end`."""

    partition: int
    begin: int
    end: int
    token: str  # tells it from the same stretch by another worker

    @property
    def name(self) -> str:
        """The name of its files, and of the header's attachment."""
        return f"p{self.partition}-{self.begin}-{self.end}-{self.token}"

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Return the span that a file or folder is called after; None for any other name."""
        found = re.fullmatch(r"p(\d+)-(\d+)-(\d+)-([0-9a-f]+)(?:\.parquet)?", name)
        return found and cls(int(found[1]), int(found[2]), int(found[3]), found[4])


class FeedbackOutcome(msgspec.Struct, gc=False, frozen=True):
    """Feedback attributed to the item at index `item`, `delay` ms after the slate's time."""

    item: int
    kind: str
    value: float
    delay: int
    retract: bool


class Outcome(msgspec.Struct, gc=False, frozen=True):
    """One slate, or one impression without a request (`request` None): lists are parallel.

    Items come in the order of rank. `positions` are as sent (None: absent), `shown` is the ts (ms)
    at which each item was shown, and `gains` are 0 for items without a positive. `latency_ms` is
    None where no event gave one. The record at `offset` opened the slate. Its earliest event gave
    `time` (ms) and `labels` (by dimension, "" where absent).
    """

    offset: int
    user: str
    request: str | None
    labels: tuple[str, ...]
    time: int
    items: list[str]
    positions: list[int | None]
    ranks: list[int]
    shown: list[int]
    scores: list[float | None]
    propensities: list[float | None]
    gains: list[float]
    feedback: list[FeedbackOutcome]
    fallback: bool = False
    latency_ms: float | None = None


def outcome(slate: Slate, gains: Sequence[float], kinds: Sequence[str]) -> Outcome:
    """Return the row of a final slate; `gains` and `kinds` by index of the kind."""
    known = slate.details
    assert known is not None, "details are kept from a slate's first impression on"
    best = gains_of(slate, gains)
    ranks = slate.ranks()
    items = sorted(ranks, key=ranks.__getitem__)
    index = {item: number for number, item in enumerate(items)}
    by_item = slate.packed_items()
    packed = [by_item[item] for item in items]
    scores = [known.scores.get(item, (None, None)) for item in items]
    return Outcome(
        offset=known.offset,
        user=slate.user,
        request=slate.request,
        labels=known.labels,
        time=slate.time,
        items=items,
        positions=[(entry & POSITION_MASK) or None for entry in packed],
        ranks=[ranks[item] for item in items],
        shown=[slate.anchor + (entry >> POSITION_BITS) for entry in packed],
        scores=[score for score, _ in scores],
        propensities=[propensity for _, propensity in scores],
        gains=[best.get(item, 0.0) for item in items],
        feedback=[
            FeedbackOutcome(index[item], kinds[kind], value, ts - slate.time, retract)
            for item, kind, ts, value, retract in bound_log(known.log)
        ],
        fallback=bool(slate.extras & 1),
        latency_ms=(slate.extras // 2 - 1) / MILLI if slate.extras > 1 else None,
    )
