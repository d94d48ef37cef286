"""Readers who stop at some rank: reciprocal rank, rank-biased precision, half-life utility."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from streameval.core.metrics.entry import Entry
from streameval.core.metrics.inputs import Number
from streameval.core.metrics.lists import NO_RELEVANT, Lists, Metric, Scores, Windowed, add_columns


def reciprocal_rank(lists: Lists, k: int) -> Scores:
    """Return 1 / rank of the first relevant item of each list.

    Reciprocal rank at k (`mrr` once averaged): how far down the first relevant item stands.

    `RR = 1 / rank` of the first relevant item at rank <= k, ranks counted from 1; 0 without one.
    """
    first = lists.ranks[:, 0]
    counted = lists.within(k)[:, 0]
    return np.where(counted, 1.0 / np.where(counted, first, 1), 0.0)


MRR = Metric(
    name="mrr",
    formula="Mean over slates of 1 / rank of the first relevant item at rank <= k, else 0",
    source="trec_eval recip_rank, with a cutoff",
    convention="ranks from 1; an item below k does not count",
    undefined=NO_RELEVANT,
    cutoff="optional",
    score=reciprocal_rank,
    windowed=Windowed(5, "1.0::DOUBLE / ({near})[1].rank"),
)


PERSISTENCE = Number(
    name="persistence",
    meaning="the chance with which a user of rbp looks at the next item",
    default=0.8,  # as in Moffat and Zobel 2008, and in ir_measures
    above=0.0,
    below=1.0,
)


@lru_cache(maxsize=32)
def _shares(size: int, persistence: float) -> Scores:
    """Return (1 - p) p^(rank - 1) by rank; rank 0 (none) is worth nothing."""
    return np.array([0.0, *((1.0 - persistence) * persistence**n for n in range(size - 1))])


def rank_biased_precision(lists: Lists, k: int, persistence: float = PERSISTENCE.default) -> Scores:
    """Return the rank-biased precision of each list.

    Rank-biased precision: the gain of a user who goes on to the next item with the same chance.

    `RBP = (1 - p) sum over relevant items at rank <= k of p^(rank - 1)`, p being the persistence.
    It is not divided by an ideal: a list of relevant items only, n long, has `1 - p^n`. Powers are
    Python's, from a table, so that a list has the same score in any batch.
    """
    ranks = np.where(lists.within(k), lists.ranks, 0)
    size = 1 << int(ranks.max(initial=0) + 1).bit_length()
    return np.minimum(add_columns(_shares(size, persistence)[ranks]), 1.0)


RBP = Metric(
    name="rbp",
    formula="Mean over lists of (1 - p) times the sum of p^(rank - 1) over relevant items at rank "
    "<= k",
    source="Moffat and Zobel 2008; trec_eval rbp (p = 0.9); ir_measures RBP",
    convention="p = {persistence:g}; an item is relevant or not; not divided by an ideal",
    undefined=NO_RELEVANT,
    cutoff="optional",
    parameters=(PERSISTENCE,),
    score=rank_biased_precision,
)


HALF_LIFE = Number(
    name="half_life",
    meaning="the rank that counts half in half_life",
    default=5.0,  # as in Breese et al.
    above=1.0,
)


NEUTRAL = Number(
    name="neutral",
    meaning="the gain that is worth nothing in half_life",
    default=0.0,
    least=0.0,
)


@lru_cache(maxsize=32)
def _discounts(size: int, half_life: float) -> Scores:
    """Return 2^((rank - 1) / (half_life - 1)) by rank; rank 0 (none) only divides 0."""
    # Beyond 2^1000 nothing is left of any rating, and a power would overflow.
    exponents = (min((rank - 1) / (half_life - 1.0), 1000.0) for rank in range(1, size))
    return np.array([1.0, *(2.0**exponent for exponent in exponents)])


def half_life(
    lists: Lists,
    k: int,
    half_life: float = HALF_LIFE.default,
    neutral: float = NEUTRAL.default,
) -> Scores:
    """Return the utility of each list.

    Half-life utility: ratings above neutral, each worth half so many ranks further down.

    `sum over items of max(rating - neutral, 0) / 2^((rank - 1) / (half_life - 1))`: an item at rank
    `half_life` counts half as much as one at the top. Ratings are the gains of the list. With a
    `neutral` of at least 0 a gain of 0 adds nothing, so the relevant items are enough. Powers are
    Python's, from a table, so that a list has the same score in any batch.
    """
    counted = lists.within(k)
    ranks = np.where(counted, lists.ranks, 0)
    size = 1 << int(ranks.max(initial=0) + 1).bit_length()
    worth = np.where(counted, np.maximum(lists.gains - neutral, 0.0), 0.0)
    return add_columns(worth / _discounts(size, half_life)[ranks])


HALF_LIFE_UTILITY = Metric(
    name="half_life",
    formula="Mean over lists of the sum of max(rating - neutral, 0) / "
    "2^((rank - 1) / (half-life - 1)) at rank <= k",
    source="Breese et al. 1998; Bobadilla et al. 2013",
    convention="half-life {half_life:g}, neutral rating {neutral:g}; not normalised",
    undefined=NO_RELEVANT,
    cutoff="optional",
    parameters=(HALF_LIFE, NEUTRAL),
    score=half_life,
    graded=True,
    is_share=False,
)

METRICS: tuple[Entry, ...] = (
    MRR,
    RBP,
    HALF_LIFE_UTILITY,
)
