"""The relevance of a slate: its positives, the relevant items to score, the duplicate records.

A positive of one kind counts once per impression. Of positives and retractions of one impression
and kind the latest `ts` decides, and at equal `ts` the retraction (docs/rules.md).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache

from streameval.base.limits import DELAY_BUCKETS, MAX_FOLLOWED
from streameval.core.definition import ValueRule
from streameval.core.delays import bucket_of
from streameval.core.list_shapes import Hits
from streameval.core.marks import LoneMark, by_key, lone, merge_marks, value_of
from streameval.core.metrics import RelevantItems
from streameval.core.slate import NO_FEEDBACK, Arrivals, Relevance, Slate


def relevance(
    slate: Slate, gains: tuple[float, ...], rules: Sequence[ValueRule], edges: Sequence[int]
) -> Relevance:
    """Judge a slate; `gains` and `rules` by index of the kind, `edges` of the buckets of delays.

    Only slates with a request are scored and have hits.
    """
    marks = merge_marks(slate.feedback, slate.provisional)
    if marks is None:
        return NO_FEEDBACK
    only = lone(marks)
    if only is not None:
        return _single(slate, only, gains, rules, edges)
    records = 0
    bits: dict[str, int] = {}
    counts = [0] * len(gains)
    values = [0] * len(gains)
    slots: list[int] = []
    arrived: list[tuple[int, str, float]] = []
    for (item, kind), mark in by_key(marks).items():
        count, first, positive, retraction, entries = mark
        records += count
        if positive > retraction:
            counts[kind] += 1
            bits[item] = bits.get(item, 0) | 1 << kind
            bucket = bisect_right(edges, first - slate.time) - 1
            slots.append(kind * DELAY_BUCKETS + bucket)
            if gains[kind] > 0:
                arrived.append((bucket, item, gains[kind]))
            if entries:
                values[kind] += value_of(rules[kind], mark)
    duplicates = records - len(marks)
    if not bits:
        return Relevance(None, None, duplicates, (), (), (), ())
    valued = tuple((kind, micro) for kind, micro in enumerate(values) if micro)
    if slate.request is None:
        return Relevance(tuple(counts), None, duplicates, (), valued, tuple(slots), ())
    ranks = slate.ranks()
    hits = tuple(sorted([(ranks[item], kinds) for item, kinds in bits.items()]))
    arrivals: Arrivals = ()
    if 0 < len(arrived) <= MAX_FOLLOWED:
        arrivals = tuple(sorted([(bucket, ranks[item], gain) for bucket, item, gain in arrived]))
        slots.insert(0, len(gains) * DELAY_BUCKETS + arrivals[0][0])
    relevant = _relevant_items(hits, gains)
    return Relevance(tuple(counts), relevant, duplicates, hits, valued, tuple(slots), arrivals)


def _single(
    slate: Slate,
    mark: LoneMark,
    gains: Sequence[float],
    rules: Sequence[ValueRule],
    edges: Sequence[int],
) -> Relevance:
    """Judge the usual slate: feedback of one kind to one item."""
    item, kind, records, first, positive, retraction, entries = mark
    if positive <= retraction:
        return Relevance(None, None, records - 1, (), (), (), ())
    rank = 0 if slate.request is None else slate.rank(item)
    bucket = bucket_of(edges, first - slate.time)
    judged = of_one(kind, len(gains), gains[kind], rank, bucket)
    if entries:
        micro = value_of(rules[kind], (records, first, positive, retraction, entries))
        judged = with_value(judged, kind, micro)
    return judged if records == 1 else judged._replace(duplicates=records - 1)


@lru_cache(maxsize=10_000)
def of_one(kind: int, kinds: int, gain: float, rank: int, bucket: int) -> Relevance:
    """Return the relevance of one positive: one object for the many slates that have it.

    A slate without a request has `rank` 0. `bucket` is the one of the positive's delay.
    """
    relevant: RelevantItems | None = None
    delays: tuple[int, ...] = (kind * DELAY_BUCKETS + bucket,)
    arrivals: Arrivals = ()
    if rank:
        relevant = ((rank,), (gain,)) if gain > 0 else ((), ())
        if gain > 0:
            delays = (kinds * DELAY_BUCKETS + bucket, *delays)
            arrivals = ((bucket, rank, gain),)
    counts = (0,) * kind + (1,) + (0,) * (kinds - kind - 1)
    hits = ((rank, 1 << kind),) if rank else ()
    return Relevance(counts, relevant, 0, hits, (), delays, arrivals)


def with_value(judged: Relevance, kind: int, micro: int) -> Relevance:
    """Return the relevance of one positive, with the value that it has (10**-6)."""
    return judged._replace(values=((kind, micro),)) if micro else judged


def gains_of(slate: Slate, gains: Sequence[float]) -> dict[str, float]:
    """Return the gain of each item with a positive: the largest of its positives."""
    best: dict[str, float] = {}
    marks = merge_marks(slate.feedback, slate.provisional)
    if marks is None:
        return best
    for (item, kind), (_, _, positive, retraction, _) in by_key(marks).items():
        if positive > retraction:
            best[item] = max(best.get(item, 0.0), gains[kind])
    return best


@lru_cache(maxsize=10_000)
def _relevant_items(hits: Hits, gains: tuple[float, ...]) -> RelevantItems:
    ranked = [(rank, _largest_gain(kinds, gains)) for rank, kinds in hits]
    relevant = [(rank, gain) for rank, gain in ranked if gain > 0]
    return tuple(rank for rank, _ in relevant), tuple(gain for _, gain in relevant)


def _largest_gain(kinds: int, gains: Sequence[float]) -> float:
    return max(gain for index, gain in enumerate(gains) if kinds >> index & 1)
