"""What became of one slate: its positives, the ranking to score, the records that were duplicates.

A positive of one kind counts once per impression; of positives and retractions of one impression
and kind the latest `ts` decides, and at equal `ts` the retraction (DESIGN, section 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from streameval.core.metrics import order_ranks
from streameval.core.slate import (
    NOTHING,
    POSITION_BITS,
    POSITION_MASK,
    LoneMark,
    Ranking,
    Slate,
    Verdict,
    by_key,
    merged,
)


def verdict(slate: Slate, gains: Sequence[float]) -> Verdict:
    """Judge a slate; `gains` by index of the kind. Only slates with a request are ranked."""
    marks = merged(slate.feedback, slate.soft)
    if marks is None:
        return NOTHING
    if isinstance(marks, tuple):
        return _single(slate, marks, gains)
    records = sum(mark[0] for mark in marks.values())
    best: dict[str, float] = {}
    counts = [0] * len(gains)
    for (item, kind), (_, positive, retraction) in marks.items():
        if positive > retraction:
            counts[kind] += 1
            best[item] = max(best.get(item, 0.0), gains[kind])
    duplicates = records - len(marks)
    if not best:
        return (None, None, duplicates)
    ranking = None if slate.request is None else _ranking(slate, best)
    return (tuple(counts), ranking, duplicates)


def _single(slate: Slate, mark: LoneMark, gains: Sequence[float]) -> Verdict:
    """The same for the usual slate: feedback of one kind for one item."""
    item, kind, records, positive, retraction = mark
    if positive <= retraction:
        return (None, None, records - 1)
    gain = gains[kind]
    rank = 0 if slate.request is None or gain <= 0 else _rank_of(slate, item)
    judged = of_one(kind, len(gains), gain, rank, ranked=slate.request is not None)
    return judged if records == 1 else (judged[0], judged[1], records - 1)


@lru_cache(maxsize=10_000)
def of_one(kind: int, kinds: int, gain: float, rank: int, *, ranked: bool) -> Verdict:
    """The verdict on one positive: one object for all slates, of which there are many."""
    ranking: Ranking | None = None
    if ranked:
        ranking = ((rank,), (gain,)) if rank else ((), ())
    return ((0,) * kind + (1,) + (0,) * (kinds - kind - 1), ranking, 0)


def gains_of(slate: Slate, gains: Sequence[float]) -> dict[str, float]:
    """The gain of each item of the slate that has a positive: the largest of its positives."""
    best: dict[str, float] = {}
    marks = merged(slate.feedback, slate.soft)
    if marks is None:
        return best
    for (item, kind), (_, positive, retraction) in by_key(marks).items():
        if positive > retraction:
            best[item] = max(best.get(item, 0.0), gains[kind])
    return best


def _ranking(slate: Slate, best: dict[str, float]) -> Ranking:
    relevant = [(item, gain) for item, gain in best.items() if gain > 0]
    if not relevant:
        return (), ()
    if isinstance(slate.shown, dict):
        ranks = ranks_of(slate)
        ranked = sorted((ranks[item], gain) for item, gain in relevant)
    else:
        ranked = sorted((_rank_of(slate, item), gain) for item, gain in relevant)
    return tuple(rank for rank, _ in ranked), tuple(gain for _, gain in ranked)


def _rank_of(slate: Slate, item: str) -> int:
    if isinstance(slate.shown, dict):
        return ranks_of(slate)[item]
    rank = slate.packed(item)
    assert rank is not None, "what came back was shown"
    return rank


def ranks_of(slate: Slate) -> dict[str, int]:
    """The rank of every item of the slate, 1-based."""
    if not isinstance(slate.shown, dict):
        return {item: rank for rank, item in enumerate(slate.names(), 1)}
    items = positions = slate.shown
    if min(items.values()) < 0 or max(items.values()) > POSITION_MASK:  # not all shown at once
        positions = {item: packed & POSITION_MASK for item, packed in items.items()}
    distinct = set(positions.values())
    if len(distinct) == len(positions) and 0 not in distinct:
        # Positions that are given and differ are ranks already.
        return positions
    anchor = slate.anchor
    return order_ranks(
        (item, (packed & POSITION_MASK) or None, anchor + (packed >> POSITION_BITS))
        for item, packed in items.items()
    )
