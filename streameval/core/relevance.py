"""The relevance of a slate: its positives, the relevant items to score, the duplicate records.

A positive of one kind counts once per impression. Of positives and retractions of one impression
and kind the latest `ts` decides, and at equal `ts` the retraction (docs/rules.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from streameval.core.marks import LoneMark, by_key, lone, merged
from streameval.core.metrics import RelevantItems
from streameval.core.slate import NO_FEEDBACK, Relevance, Slate


def relevance(slate: Slate, gains: Sequence[float]) -> Relevance:
    """Judge a slate; `gains` by index of the kind. Only slates with a request are scored."""
    marks = merged(slate.feedback, slate.provisional)
    if marks is None:
        return NO_FEEDBACK
    only = lone(marks)
    if only is not None:
        return _single(slate, only, gains)
    records = 0
    best: dict[str, float] = {}
    counts = [0] * len(gains)
    for (item, kind), (count, positive, retraction) in by_key(marks).items():
        records += count
        if positive > retraction:
            counts[kind] += 1
            best[item] = max(best.get(item, 0.0), gains[kind])
    duplicates = records - len(marks)
    if not best:
        return (None, None, duplicates)
    relevant = None if slate.request is None else _relevant_items(slate, best)
    return (tuple(counts), relevant, duplicates)


def _single(slate: Slate, mark: LoneMark, gains: Sequence[float]) -> Relevance:
    """Judge the usual slate: feedback of one kind to one item."""
    item, kind, records, positive, retraction = mark
    if positive <= retraction:
        return (None, None, records - 1)
    gain = gains[kind]
    rank = 0 if slate.request is None or gain <= 0 else slate.rank(item)
    judged = of_one(kind, len(gains), gain, rank, scored=slate.request is not None)
    return judged if records == 1 else (judged[0], judged[1], records - 1)


@lru_cache(maxsize=10_000)
def of_one(kind: int, kinds: int, gain: float, rank: int, *, scored: bool) -> Relevance:
    """Return the relevance of one positive: one object for the many slates that have it."""
    relevant: RelevantItems | None = None
    if scored:
        relevant = ((rank,), (gain,)) if rank else ((), ())
    return ((0,) * kind + (1,) + (0,) * (kinds - kind - 1), relevant, 0)


def gains_of(slate: Slate, gains: Sequence[float]) -> dict[str, float]:
    """Return the gain of each item with a positive: the largest of its positives."""
    best: dict[str, float] = {}
    marks = merged(slate.feedback, slate.provisional)
    if marks is None:
        return best
    for (item, kind), (_, positive, retraction) in by_key(marks).items():
        if positive > retraction:
            best[item] = max(best.get(item, 0.0), gains[kind])
    return best


def _relevant_items(slate: Slate, best: dict[str, float]) -> RelevantItems:
    relevant = [(item, gain) for item, gain in best.items() if gain > 0]
    if not relevant:
        return (), ()
    if slate.is_packed:
        ranked = sorted((slate.rank(item), gain) for item, gain in relevant)
    else:
        ranks = slate.ranks()
        ranked = sorted((ranks[item], gain) for item, gain in relevant)
    return tuple(rank for rank, _ in ranked), tuple(gain for _, gain in ranked)
