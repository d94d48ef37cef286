"""The relevance of a slate: its positives, the relevant items to score, the duplicate records.

A positive of one kind counts once per impression. Of positives and retractions of one impression
and kind the latest `ts` decides, and at equal `ts` the retraction (docs/rules.md).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import lru_cache

from streameval.base.limits import DELAY_BUCKETS, MAX_FOLLOWED
from streameval.core.definition import Definition
from streameval.core.delays import bucket_of, delay_edges
from streameval.core.list_shapes import Hits
from streameval.core.marks import NEVER, LoneMark, by_key, lone, merge_marks, value_of
from streameval.core.metrics import RelevantItems
from streameval.core.slate import NO_FEEDBACK, Arrivals, Relevance, Slate


class Judge:
    """Judges slates under a definition.

    `follows`: whether somebody follows when feedback comes. Otherwise nothing has a delay.
    """

    def __init__(self, definition: Definition, *, follows: bool) -> None:
        self.gains = tuple(definition.gain(kind) for kind in definition.kinds)
        self.rules = [positive.value for positive in definition.positives]
        self._edges = delay_edges(definition.attribution_window) if follows else ()

    def first(self, kind: int, rank: int, delay: int, micro: int | None) -> Relevance:
        """Return the relevance of one positive, with its value (10**-6) if it has one.

        A slate without a request has `rank` 0. `delay` in ms.
        """
        bucket = bucket_of(self._edges, delay) if self._edges else NEVER
        judged = _of_one(kind, len(self.gains), self.gains[kind], rank, bucket)
        return judged._replace(values=((kind, micro),)) if micro else judged

    def relevance(  # noqa: C901  # the hot loop: a call for each mark would cost more
        self, slate: Slate, ranks: Mapping[str, int] | None = None
    ) -> Relevance:
        """Judge a slate; `ranks` of its items, if they are known.

        Only slates with a request are scored and have hits.
        """
        marks = merge_marks(slate.feedback, slate.provisional)
        if marks is None:
            return NO_FEEDBACK
        only = lone(marks)
        if only is not None:
            return self._single(slate, only, ranks)
        if ranks is None:
            ranks = {} if slate.request is None else slate.ranks()
        gains, edges = self.gains, self._edges
        records = 0
        bits: dict[int, int] = {}
        counts = [0] * len(gains)
        values: dict[int, int] = {}
        slots: list[int] = []
        arrived: list[tuple[int, int, float]] = []
        for (item, kind), mark in by_key(marks).items():
            count, first, positive, retraction, entries = mark
            records += count
            if positive > retraction:
                counts[kind] += 1
                rank = ranks.get(item, 0)
                bits[rank] = bits.get(rank, 0) | 1 << kind
                if edges:
                    bucket = bisect_right(edges, first - slate.time) - 1
                    slots.append(kind * DELAY_BUCKETS + bucket)
                    if gains[kind] > 0:
                        arrived.append((bucket, rank, gains[kind]))
                if entries:
                    values[kind] = values.get(kind, 0) + value_of(self.rules[kind], mark)
        duplicates = records - len(marks)
        if not bits:
            return Relevance(None, None, duplicates, (), (), (), ())
        valued = tuple([pair for pair in sorted(values.items()) if pair[1]])
        if slate.request is None:
            return Relevance(tuple(counts), None, duplicates, (), valued, tuple(slots), ())
        hits = tuple(sorted(bits.items()))
        arrivals: Arrivals = ()
        if 0 < len(arrived) <= MAX_FOLLOWED:
            arrivals = tuple(sorted(arrived))
            slots.insert(0, len(gains) * DELAY_BUCKETS + arrivals[0][0])
        relevant = _relevant_items(hits, gains)
        return Relevance(tuple(counts), relevant, duplicates, hits, valued, tuple(slots), arrivals)

    def _single(self, slate: Slate, mark: LoneMark, ranks: Mapping[str, int] | None) -> Relevance:
        """Judge the usual slate: feedback of one kind to one item."""
        item, kind, records, first, positive, retraction, entries = mark
        if positive <= retraction:
            return Relevance(None, None, records - 1, (), (), (), ())
        rank, micro = 0, None
        if slate.request is not None:
            rank = slate.rank(item) if ranks is None else ranks[item]
        if entries:
            micro = value_of(self.rules[kind], (records, first, positive, retraction, entries))
        judged = self.first(kind, rank, first - slate.time, micro)
        return judged if records == 1 else judged._replace(duplicates=records - 1)


@lru_cache(maxsize=10_000)
def _of_one(kind: int, kinds: int, gain: float, rank: int, bucket: int) -> Relevance:
    """Return the relevance of one positive: one object for the many slates that have it.

    `bucket` is the one of its delay, `NEVER` where nobody follows it.
    """
    relevant: RelevantItems | None = None
    is_followed = bucket >= 0
    delays: tuple[int, ...] = (kind * DELAY_BUCKETS + bucket,) if is_followed else ()
    arrivals: Arrivals = ()
    if rank:
        relevant = ((rank,), (gain,)) if gain > 0 else ((), ())
        if gain > 0 and is_followed:
            delays = (kinds * DELAY_BUCKETS + bucket, *delays)
            arrivals = ((bucket, rank, gain),)
    counts = (0,) * kind + (1,) + (0,) * (kinds - kind - 1)
    hits = ((rank, 1 << kind),) if rank else ()
    return Relevance(counts, relevant, 0, hits, (), delays, arrivals)


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
