"""Figures of retrieval: an index against an exact one, and a positive among sampled negatives.

Their names keep them apart from the figures of ranked lists.

Source: Gorse's code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streameval.core.metrics.discounted_gain import logarithms
from streameval.core.metrics.entry import Entry, UnitMetric, UnitSums


@dataclass(frozen=True, slots=True)
class Results:
    """The items that an approximate and an exact index return for n queries, best first."""

    approximate: Sequence[Sequence[str]]
    exact: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class SampledRanks:
    """Ranks of one positive among sampled negatives, from 1, in each of n samples.

    A negative that scores as high counts against the positive.
    """

    ranks: npt.NDArray[np.int64]


def _index_recall(results: Results, k: int) -> UnitSums:
    pairs = zip(results.approximate, results.exact, strict=True)
    found = [len(set(some[:k]) & set(best[:k])) / k for some, best in pairs]
    return np.array(found, np.float64), np.ones(len(found), np.int64)


def _hit_rate(sampled: SampledRanks, k: int) -> UnitSums:
    return (sampled.ranks <= k).astype(float), np.ones(len(sampled.ranks), np.int64)


def _ndcg(sampled: SampledRanks, k: int) -> UnitSums:
    table = logarithms(int(sampled.ranks.max(initial=1)))
    gains = np.where(sampled.ranks <= k, 1.0 / table[sampled.ranks], 0.0)
    return gains, np.ones(len(gains), np.int64)


_SAMPLED = (
    "one positive among sampled negatives, ties against it: not comparable with the figure of lists"
)

METRICS: tuple[Entry, ...] = (
    UnitMetric(
        input_kind="index",
        name="index_recall",
        formula="Mean over queries of the items that are in both the approximate and the exact "
        "top k, divided by k",
        source="Gorse's code",
        convention="divided by k, also where the exact result is shorter",
        undefined="0 for a query without an approximate result, kept and counted",
        cutoff="required",
        is_share=True,
        score=_index_recall,
    ),
    UnitMetric(
        input_kind="sampled",
        name="sampled_hit_rate",
        formula="Share of samples in which the positive ranks <= k",
        source="Gorse's code, HR; He et al. 2017",
        convention=_SAMPLED,
        undefined="a sample without exactly one positive is refused",
        cutoff="required",
        is_share=True,
        score=_hit_rate,
    ),
    UnitMetric(
        input_kind="sampled",
        name="sampled_ndcg",
        formula="Mean over samples of 1 / log2(rank + 1) of a positive that ranks <= k, else 0",
        source="Gorse's code, NDCG; He et al. 2017",
        convention=_SAMPLED,
        undefined="a sample without exactly one positive is refused",
        cutoff="required",
        is_share=True,
        score=_ndcg,
    ),
)
"""The rows of these metrics."""
