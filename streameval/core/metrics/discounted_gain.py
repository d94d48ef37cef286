"""Gains that count less the further down they stand: DCG and NDCG in their conventions."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from streameval.base.errors import InputError
from streameval.base.limits import MAX_GAIN, MAX_RANK
from streameval.core.metrics.entry import Entry
from streameval.core.metrics.lists import (
    NO_RELEVANT,
    Lists,
    Metric,
    Scores,
    Windowed,
    add_columns,
    ratio,
)


@lru_cache(maxsize=8)
def _table(size: int) -> Scores:
    # By rank; the entry for 0 (no rank) only ever divides a gain of 0.
    return np.array([1.0] + [math.log2(rank + 1) for rank in range(1, size)])


# The ranks of a stream, at hand without a look-up.
_STREAM = _table(MAX_RANK + 1)


def logarithms(rank: int) -> Scores:
    """Return a table of log2(rank + 1) by rank, up to `rank` or further; 1 at 0."""
    if rank <= MAX_RANK:
        return _STREAM
    # Sizes are powers of two, so that runs of many lengths share a few tables.
    return _table(1 << rank.bit_length())


def discounted_sum(lists: Lists, gains: Scores, k: int) -> Scores:
    """Return the sum of gain / log2(rank + 1) over relevant items at rank <= k."""
    counted = lists.within(k)
    ranks = np.where(counted, lists.ranks, 0)
    table = logarithms(int(ranks.max(initial=0)))
    return add_columns(np.where(counted, gains, 0.0) / table[ranks])


def ideal_dcg(gains: Scores, k: int) -> Scores:
    """Return the DCG of gains (n, m) in falling order, up to k."""
    best = -np.sort(-gains, axis=1)
    width = min(k, best.shape[1])
    return add_columns(best[:, :width] / logarithms(width)[1 : width + 1])


def binary(gains: Scores) -> Scores:
    """Return 1 for each gain above 0: every relevant item counts the same."""
    return (gains > 0).astype(float)


def exponential(gains: Scores) -> Scores:
    """Return 2^gain - 1, one distinct gain at a time; `InputError` above `MAX_GAIN`."""
    largest = gains.max(initial=0.0)
    if not largest <= MAX_GAIN:
        raise InputError(
            f"a gain of {largest:g}: exponential gains (2^gain - 1) are of {MAX_GAIN:g} at most;"
            " ask for ndcg or dcg, whose gains are linear"
        )
    distinct, where = np.unique(gains, return_inverse=True)
    powers = np.array([2.0 ** float(gain) - 1.0 for gain in distinct])
    transformed: npt.NDArray[np.float64] = powers[where.reshape(gains.shape)]
    return transformed


def ndcg(lists: Lists, k: int) -> Scores:
    """Return DCG / ideal DCG for each list.

    Normalised discounted cumulative gain at k: gains count less the further down they stand.

    `DCG = sum of gain / log2(rank + 1)` over relevant items at rank <= k; `ndcg = DCG / ideal`, the
    ideal being the DCG of the list's relevant gains in falling order. Gains come as they count: for
    the exponential variant of the stream, 2^g - 1, `Scorer` transforms them before.
    """
    return ratio(discounted_sum(lists, lists.gains, k), ideal_dcg(lists.gains, k))


NDCG = Metric(
    name="ndcg",
    formula="Mean over slates of the sum of gain / log2(rank + 1) at rank <= k, "
    "divided by the same sum of the ideal order",
    source="trec_eval ndcg_cut",
    convention="linear gains, logarithm to base 2, ideal order of all relevant items, up to k",
    undefined=NO_RELEVANT,
    cutoff="optional",
    score=ndcg,
    graded=True,
    windowed=Windowed(
        3,
        "list_sum(list_transform({near}, lambda x: x.gain / log2(x.rank + 1)))"
        " / list_sum(list_transform(list_reverse_sort("
        "list_transform({relevant}, lambda x: x.gain))[:{k}], lambda g, i: g / log2(i + 1)))",
    ),
)


def ndcg_exp(lists: Lists, k: int) -> Scores:
    """Return DCG / ideal DCG of 2^gain - 1 for each list.

    NDCG at k with exponential gains, 2^g - 1: the best grades outweigh the rest.
    """
    gains = exponential(lists.gains)
    return ratio(discounted_sum(lists, gains, k), ideal_dcg(gains, k))


NDCG_EXP = Metric(
    name="ndcg_exp",
    formula="Mean over lists of the sum of (2^gain - 1) / log2(rank + 1) at rank <= k, divided "
    "by the same sum of the ideal order",
    source="Burges et al. 2005; ranx ndcg_burges, gdeval",
    convention="exponential gains, ideal order of all relevant items, up to k",
    undefined=NO_RELEVANT,
    cutoff="optional",
    score=ndcg_exp,
    graded=True,
)


def ndcg_binary(lists: Lists, k: int) -> Scores:
    """Return DCG / ideal DCG of binary gains for each list.

    NDCG at k with every relevant item worth the same; the ideal has min(R, k) of them on top.
    """
    gains = binary(lists.gains)
    return ratio(discounted_sum(lists, gains, k), ideal_dcg(gains, k))


NDCG_BINARY = Metric(
    name="ndcg_binary",
    formula="Mean over lists of the sum of 1 / log2(rank + 1) over relevant items at rank <= k, "
    "divided by the same sum of the smaller of k and R relevant items on top",
    source="recommenders ndcg_at_k; Gorse's code, for lists of k items",
    convention="binary gains, ideal over min(R, k)",
    undefined=NO_RELEVANT,
    cutoff="optional",
    score=ndcg_binary,
)


@lru_cache(maxsize=32)
def _full(k: int) -> float:
    """Return the DCG of k relevant items."""
    return math.fsum(1.0 / math.log2(rank + 1) for rank in range(1, k + 1))


def ndcg_binary_full(lists: Lists, k: int) -> Scores:
    """Return binary DCG / the DCG of k relevant items for each list.

    NDCG at k with binary gains against k relevant items, however few there are: below 1 if R < k.
    """
    # Columns are added one by one, the ideal exactly: a full list may end a bit above 1.
    return np.minimum(discounted_sum(lists, binary(lists.gains), k) / _full(k), 1.0)


NDCG_BINARY_FULL = Metric(
    name="ndcg_binary_full",
    formula="Mean over lists of the sum of 1 / log2(rank + 1) over relevant items at rank <= k, "
    "divided by the same sum of k relevant items",
    source="RecTools NDCG, its default",
    convention="binary gains, ideal over k",
    undefined=NO_RELEVANT,
    cutoff="required",
    score=ndcg_binary_full,
)


def dcg(lists: Lists, k: int) -> Scores:
    """Return the DCG of each list.

    DCG at k, not normalised: linear gains, so it has the scale of the gains.
    """
    return discounted_sum(lists, lists.gains, k)


DCG = Metric(
    name="dcg",
    formula="Mean over lists of the sum of gain / log2(rank + 1) over relevant items at rank <= k",
    source="Bobadilla et al. 2013; scikit-learn dcg_score",
    convention="linear gains, not divided by an ideal",
    undefined=NO_RELEVANT,
    cutoff="optional",
    score=dcg,
    graded=True,
    is_share=False,
)


def dcg_exp(lists: Lists, k: int) -> Scores:
    """Return the DCG of each list.

    DCG at k, not normalised, with exponential gains.
    """
    return discounted_sum(lists, exponential(lists.gains), k)


DCG_EXP = Metric(
    name="dcg_exp",
    formula="Mean over lists of the sum of (2^gain - 1) / log2(rank + 1) over relevant items at "
    "rank <= k",
    source="ranx dcg_burges",
    convention="exponential gains, not divided by an ideal",
    undefined=NO_RELEVANT,
    cutoff="optional",
    score=dcg_exp,
    graded=True,
    is_share=False,
)


def dcg_binary(lists: Lists, k: int) -> Scores:
    """Return the DCG of each list.

    DCG at k, not normalised, with every relevant item worth the same: called NDCG by some pages.
    """
    return discounted_sum(lists, binary(lists.gains), k)


DCG_BINARY = Metric(
    name="dcg_binary",
    formula="Mean over lists of the sum of 1 / log2(rank + 1) over relevant items at rank <= k",
    source="Gorse's documentation, where it is called NDCG",
    convention="binary gains, not divided by an ideal",
    undefined=NO_RELEVANT,
    cutoff="optional",
    score=dcg_binary,
    is_share=False,
)

METRICS: tuple[Entry, ...] = (
    NDCG,
    NDCG_EXP,
    NDCG_BINARY,
    NDCG_BINARY_FULL,
    DCG,
    DCG_EXP,
    DCG_BINARY,
)
