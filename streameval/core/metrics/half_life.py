"""Half-life utility: ratings above neutral, each worth half so many ranks further down.

`sum over items of max(rating - neutral, 0) / 2^((rank - 1) / (half_life - 1))`: an item at rank
`half_life` counts half as much as one at the top. Ratings are the gains of the list. With a
`neutral` of at least 0 a gain of 0 adds nothing, so the relevant items are enough. Powers are
Python's, from a table, so that a list has the same score in any batch.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from streameval.core.metrics.inputs import Number
from streameval.core.metrics.lists import NO_RELEVANT, Lists, Metric, Scores, add_columns

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


def score(
    lists: Lists,
    k: int,
    half_life: float = HALF_LIFE.default,
    neutral: float = NEUTRAL.default,
) -> Scores:
    """Return the utility of each list."""
    counted = lists.within(k)
    ranks = np.where(counted, lists.ranks, 0)
    size = 1 << int(ranks.max(initial=0) + 1).bit_length()
    worth = np.where(counted, np.maximum(lists.gains - neutral, 0.0), 0.0)
    return add_columns(worth / _discounts(size, half_life)[ranks])


METRIC = Metric(
    name="half_life",
    formula="Mean over lists of the sum of max(rating - neutral, 0) / "
    "2^((rank - 1) / (half-life - 1)) at rank <= k",
    source="Breese et al. 1998; Bobadilla et al. 2013",
    convention="half-life {half_life:g}, neutral rating {neutral:g}; not normalised",
    undefined=NO_RELEVANT,
    cutoff="optional",
    parameters=(HALF_LIFE, NEUTRAL),
    score=score,
    graded=True,
    is_share=False,
)
