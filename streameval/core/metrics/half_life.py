"""Half-life utility: ratings above neutral, halved in worth each so many places down.

`sum over items of max(rating - neutral, 0) / 2^((rank - 1) / (half_life - 1))`: an item at rank
`half_life` counts half of one on top. Ratings are the gains of the list; those of 0 add nothing
as long as `neutral` is not below 0, so that the relevant items are all it needs. Powers are
Python's, from a table, so that a list has the same score in any batch.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from streameval.base.errors import InputError
from streameval.core.metrics.lists import NO_RELEVANT, Lists, Metric, Scores, add_columns

HALF_LIFE = 5.0
"""The rank at which an item counts half, by default: that of Breese et al."""


@lru_cache(maxsize=32)
def _discounts(size: int, half_life: float) -> Scores:
    """Return 2^((rank - 1) / (half_life - 1)) by rank; that of 0 (no rank) only divides 0."""
    # Beyond 2^1000 nothing is left of any rating, and a power would overflow.
    exponents = (min((rank - 1) / (half_life - 1.0), 1000.0) for rank in range(1, size))
    return np.array([1.0, *(2.0**exponent for exponent in exponents)])


def half_life_utility(half_life: float = HALF_LIFE, neutral: float = 0.0) -> Metric:
    """Return the metric with its two parameters: `half_life` > 1 (a rank), `neutral` >= 0."""
    if half_life <= 1 or neutral < 0:
        raise InputError("half_life: the half-life is above 1, the neutral rating not below 0")

    def score(lists: Lists, k: int) -> Scores:
        counted = lists.within(k)
        ranks = np.where(counted, lists.ranks, 0)
        size = 1 << int(ranks.max(initial=0) + 1).bit_length()
        worth = np.where(counted, np.maximum(lists.gains - neutral, 0.0), 0.0)
        return add_columns(worth / _discounts(size, half_life)[ranks])

    return Metric(
        name="half_life",
        formula="Mean over lists of the sum of max(rating - neutral, 0) / "
        "2^((rank - 1) / (half-life - 1)) at rank <= k",
        source="Breese et al. 1998; Bobadilla et al. 2013",
        convention=f"half-life {half_life:g}, neutral rating {neutral:g}; not normalised",
        undefined=NO_RELEVANT,
        cut="optional",
        score=score,
        share=False,
    )


METRIC = half_life_utility()
