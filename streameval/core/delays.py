"""Delays of positives: the time from a slate to its feedback, counted in buckets of age.

The delay of a positive is its earliest ts less the time of its slate, 0 to A. The buckets are the
same under a definition: 64 of them, each a tenth wider than the one before. A slate whose score is
followed as its feedback comes has a delay of its own, the one of its first relevant item.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final

from streameval.base.limits import DELAY_BUCKETS, MICRO

# Each bucket is wider than the one before by 1/10. With A of 30 minutes the first is 0.4 s wide,
# and the last 2.7 minutes.
_WIDER: Final = (11, 10)


def delay_edges(attribution_window: int) -> tuple[int, ...]:
    """Return the edges of the buckets (ms), rising from 0 to A + 1: bucket b is [e(b), e(b + 1)).

    A window of less than some 500 ms has fewer buckets, because edges are integers and differ.
    """
    more, base = _WIDER
    whole = more**DELAY_BUCKETS - base**DELAY_BUCKETS
    edges = {
        (attribution_window + 1) * (more**i - base**i) * base ** (DELAY_BUCKETS - i) // whole
        for i in range(DELAY_BUCKETS + 1)
    }
    return tuple(sorted(edges))


def bucket_of(edges: Sequence[int], delay: int) -> int:
    """Return the bucket of a delay (ms) from 0 to A."""
    return bisect_right(edges, delay) - 1


def slots_of(kinds: int) -> int:
    """Return the number of slots of delays: each kind has `DELAY_BUCKETS`, and last the slates."""
    return (kinds + 1) * DELAY_BUCKETS


class ArrivalCurve:
    """F, the share of delays below x ms, linear within a bucket; `counts` by bucket, not all 0."""

    def __init__(self, edges: Sequence[int], counts: Sequence[int]) -> None:
        self._edges = edges
        self._counts = [*counts[: len(edges) - 1], 0]  # nothing is beyond the last edge
        self._total = sum(counts)
        self._widths = [end - begin for begin, end in pairwise(edges)] + [1]
        self._below = [0, *accumulate(self._counts)]
        # Twice the area that a whole bucket has at x, less 2x: w - 2e.
        self._offsets = [
            0,
            *accumulate(
                count * (end - begin - 2 * end)
                for count, (begin, end) in zip(self._counts, pairwise(edges), strict=False)
            ),
        ]

    def missing(self, moments: Sequence[int]) -> list[int]:
        """Return the share still to come, in 10**-6, between neighbours of `moments`, which fall.

        It is the mean over slates whose age goes evenly from one moment to the next (ms).
        """
        areas = [self._area(moment) for moment in moments]
        found = []
        for (older, younger), ((most, by_most), (least, by_least)) in zip(
            pairwise(moments), pairwise(areas), strict=True
        ):
            area = MICRO * (most * by_least - least * by_most)
            whole = by_most * by_least * 2 * self._total * (older - younger)
            found.append(MICRO - area // whole)
        return found

    def _area(self, x: int) -> tuple[int, int]:
        """Return twice the area under the counts of delays below an age, from 0 to x (x >= 0).

        It is a fraction: numerator and denominator.
        """
        bucket = bisect_right(self._edges, x) - 1
        within = x - self._edges[bucket]
        width = self._widths[bucket]
        whole = 2 * x * self._below[bucket] + self._offsets[bucket]
        return whole * width + self._counts[bucket] * within * within, width
