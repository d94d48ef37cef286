"""The stream that is measured: users look at slates, some of them react a minute later.

Deterministic by seed. JSON events of about 180 bytes, in order of time, keyed by user, a user
always in the same partition. Made in blocks by numpy and one format string each, because a
benchmark should not wait for its input.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

SLATE: Final = 10
START: Final = 1_700_000_000_000
ITEMS: Final = 10_000
BLOCK: Final = 20_000
# Two items of a slate never collide: a prime that does not divide ITEMS.
STRIDE: Final = 7_919
# Of ten clicks two are likes, and two name no request.
LIKES, NAMELESS = 0.2, 0.2
DELAY: Final = 60_000.0

_ITEM = (
    b'{"type":"impression","ts":%d,"user_id":"user-%06d","item_id":"item-%05d",'
    b'"request_id":"req-%010d","position":%d,"variant":"%c","surface":"home","score":0.%06d}'
)
_LONE = (
    b'{"type":"impression","ts":%d,"user_id":"user-%06d","item_id":"item-%05d",'
    b'"position":%d,"variant":"%c","surface":"home","score":0.%06d,"page":"front-page"}'
)
_SLATE = (
    b'{"type":"slate","ts":%d,"user_id":"user-%06d","request_id":"req-%010d",'
    b'"variant":"%c","surface":"home","items":['
)
_FEEDBACK = (
    b'{"type":"feedback","ts":%d,"user_id":"user-%06d","item_id":"item-%05d",'
    b'"request_id":"req-%010d","feedback":"%s","app":"a-client-of-some-name 12.3.4"}'
)
_NAMELESS = (
    b'{"type":"feedback","ts":%d,"user_id":"user-%06d","item_id":"item-%05d",'
    b'"feedback":"%s","app":"a-client-of-some-name 12.3.4","place":"front"}'
)

Record = tuple[int, bytes, bytes]
"""Partition, key, value."""


@dataclass(frozen=True)
class Shape:
    """What the stream looks like.

    `impressions` in all, shown `per_second` of event time; `sent` as "impressions" of slates,
    whole "slates", or "lone" impressions without a request; `length` items a slate, `feedback` an
    impression.

    `jitter`: each impression arrives up to so many ms after its time, so that slates mix. `apart`:
    ms between the items of a slate, as seen while scrolling. `skew`: 1 spreads slates evenly over
    users, 4 gives half of all slates to one user in sixteen. `variants`: how many there are.
    """

    impressions: int
    sent: str = "impressions"
    per_second: int = 1_000
    length: int = SLATE
    users: int = 100_000
    feedback: float = 0.04
    partitions: int = 4
    seed: int = 1
    jitter: int = 0
    apart: int = 0
    skew: float = 1.0
    variants: int = 2


def records(shape: Shape, *, first_slate: int = 0) -> Iterator[Record]:
    """The records of `shape`, as they arrive; `first_slate` goes on where a stream ended."""
    random = np.random.default_rng((shape.seed, first_slate))
    slates = shape.impressions // shape.length
    waiting: list[tuple[int, int, bytes]] = []
    for start in range(first_slate, first_slate + slates, BLOCK):
        count = min(BLOCK, first_slate + slates - start)
        block, feedback = _block(shape, random, start, count)
        merged = sorted(block + feedback + waiting, key=lambda event: event[0])
        # What the next block begins before has to wait for it; at the end the rest is left out.
        end = _time(shape, start + count)
        waiting = [event for event in merged if event[0] >= end]
        for _, user, value in merged[: len(merged) - len(waiting)]:
            yield user % shape.partitions, b"user-%06d" % user, value


def _time(shape: Shape, slate: int) -> int:
    """The time of a slate by its number (ms)."""
    return START + slate * shape.length * 1_000 // shape.per_second


def _block(
    shape: Shape, random: np.random.Generator, start: int, count: int
) -> tuple[list[tuple[int, int, bytes]], list[tuple[int, int, bytes]]]:
    """Showings and feedback of `count` slates from number `start` on: (arrival, user, value)."""
    requests = np.arange(start, start + count)
    times = START + requests * shape.length * 1_000 // shape.per_second
    if shape.skew == 1.0:
        users = random.integers(shape.users, size=count)
    else:
        users = (shape.users * random.random(count) ** shape.skew).astype(np.int64)
    # A user's own, as in an experiment.
    variants = ord("A") + users // shape.partitions % shape.variants
    bases = random.integers(ITEMS, size=count)
    items = (bases[:, np.newaxis] + STRIDE * np.arange(shape.length)) % ITEMS
    seen = times[:, np.newaxis] + shape.apart * np.arange(shape.length)
    showings = {"impressions": _items, "slates": _slates, "lone": _lone}[shape.sent](
        seen.tolist(), users.tolist(), requests.tolist(), variants.tolist(), items.tolist()
    )
    if shape.jitter:
        delays = random.integers(shape.jitter, size=len(showings)).tolist()
        showings = [
            (ts + delay, user, value)
            for (ts, user, value), delay in zip(showings, delays, strict=True)
        ]
    # The first rank is clicked twice as often as the last.
    chance = shape.feedback * np.linspace(4 / 3, 2 / 3, shape.length)
    slate, rank = np.nonzero(random.random((count, shape.length)) < chance)
    delays = random.exponential(DELAY, len(slate)).astype(np.int64)
    like = random.random(len(slate)) < LIKES
    nameless = (random.random(len(slate)) < NAMELESS) | (shape.sent == "lone")
    columns = (seen[slate, rank] + delays, users[slate], items[slate, rank], requests[slate])
    feedback = [
        (
            ts,
            user,
            _NAMELESS % (ts, user, item, b"like" if liked else b"click")
            if bare
            else _FEEDBACK % (ts, user, item, request, b"like" if liked else b"click"),
        )
        for ts, user, item, request, liked, bare in zip(
            *(column.tolist() for column in (*columns, like, nameless)), strict=True
        )
    ]
    return showings, feedback


def _items(times, users, requests, variants, items):
    return [
        (ts, user, _ITEM % (ts, user, item, request, rank, variant, item * rank))
        for seen, user, request, variant, row in zip(
            times, users, requests, variants, items, strict=True
        )
        for rank, (ts, item) in enumerate(zip(seen, row, strict=True), start=1)
    ]


def _lone(times, users, requests, variants, items):
    """Impressions without a request: every one is a slate of its own, at a time of its own."""
    return [
        (ts, user, _LONE % (ts, user, item, rank, variant, item * rank))
        for seen, user, _, variant, row in zip(times, users, requests, variants, items, strict=True)
        for rank, (ts, item) in enumerate(zip(seen, row, strict=True), start=1)
    ]


def _slates(times, users, requests, variants, items):
    form = _SLATE + b",".join([b'"item-%05d"'] * len(items[0])) + b"]}"
    return [
        (seen[0], user, form % (seen[0], user, request, variant, *row))
        for seen, user, request, variant, row in zip(
            times, users, requests, variants, items, strict=True
        )
    ]
