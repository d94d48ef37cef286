"""Delays of positives by segment: all that a nowcast knows of when feedback comes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np

from streameval.base.arrays import Ints
from streameval.base.limits import DELAY_BUCKETS, MICRO
from streameval.core.definition import Definition
from streameval.core.delays import slots_of
from streameval.core.metrics import RelevantItems, Scorer
from streameval.core.slate import SlateDelays
from streameval.core.windows.aggregate import FigureRows, SegmentAggregate, View, totals


class Delays(SegmentAggregate[SlateDelays]):
    """Counts of delays by kind and bucket, and of slates by the delay of their first relevant item.

    The matured basis counts final slates, and nowcasts are made of it.
    """

    name = "delays"
    section = "nowcast"
    has_figures = False

    def __init__(self, definition: Definition) -> None:
        super().__init__(definition)
        self.width = slots_of(len(definition.kinds))

    def slots(self, slates: Sequence[SlateDelays]) -> tuple[Sequence[int], Ints]:
        """Return the slots of delays, each with a count of 1."""
        slots = np.array(list(chain.from_iterable(delays.slots for delays in slates)), np.int64)
        counts = [len(delays.slots) for delays in slates]
        return counts, np.column_stack((slots, np.ones_like(slots)))

    def figures(self, view: View) -> Iterable[FigureRows]:  # noqa: ARG002
        """Yield nothing: only a nowcast knows which share has come in so far."""
        return ()

    def nowcast(self, view: View) -> Iterable[FigureRows]:
        """Yield the share of the expected positives that has come, by kind."""
        impressions = totals(view.impressions)
        for effective, kind in zip(view.effective, self.definition.kinds, strict=False):
            come = zip(totals(effective), impressions, strict=True)
            yield [
                {"feedback": kind, "observed_ratio": found / (whole * MICRO)} if found else None
                for found, whole in come
            ]


class ScoreDelays(SegmentAggregate[SlateDelays]):
    """Sums of the changes of slates' scores, by the bucket of delay in which they changed.

    The columns are those of the `Scorer` (nano-units). The buckets up to an age add up to the
    scores that slates had at that age.
    """

    name = "score_delays"
    section = "nowcast"
    dtype = "<i8"
    width = DELAY_BUCKETS
    has_figures = False

    def __init__(self, definition: Definition) -> None:
        self._scorer = Scorer(definition.ks, definition.ndcg_gain)
        self.columns = len(self._scorer.columns)
        super().__init__(definition)

    def slots(self, slates: Sequence[SlateDelays]) -> tuple[Sequence[int], Ints]:
        """Return the buckets in which scores changed, with the changes."""
        steps = [_as_they_come(delays) for delays in slates]
        counts = np.array(list(map(len, steps)), np.int64)
        buckets = list(chain.from_iterable(steps))
        scores = self._scorer.score([items for found in steps for items in found.values()])
        changes = np.diff(scores, axis=0, prepend=0)
        first = (counts.cumsum() - counts)[counts > 0]
        changes[first] = scores[first]
        return counts.tolist(), np.column_stack((np.array(buckets, np.int64), changes))

    def figures(self, view: View) -> Iterable[FigureRows]:  # noqa: ARG002
        """Yield nothing: nowcasts of `Scores` are made of it."""
        return ()


def _as_they_come(delays: SlateDelays) -> dict[int, RelevantItems]:
    """Return by bucket, in their order, the items that are relevant by its end."""
    gains: dict[int, float] = {}
    found: dict[int, RelevantItems] = {}
    for bucket, rank, gain in delays.arrivals:
        gains[rank] = max(gain, gains.get(rank, 0.0))
        ranks = tuple(sorted(gains))
        found[bucket] = (ranks, tuple(map(gains.__getitem__, ranks)))
    return found
