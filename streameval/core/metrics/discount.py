"""Logarithms of ranks, and the discounted sums made of them, which the family of NDCG shares.

The logarithms come from a table made by `math.log2`: numpy's own may differ in the last bit with
the width of the processor's vectors. For the same reason 2^gain is Python's power.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from streameval.base.errors import InputError
from streameval.base.limits import MAX_GAIN, MAX_RANK
from streameval.core.metrics.lists import Lists, Scores, add_columns


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


def discounted(lists: Lists, gains: Scores, k: int) -> Scores:
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
