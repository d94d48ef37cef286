"""Rank-biased precision: the gain of a user who goes on to the next item with the same chance.

`RBP = (1 - p) sum over relevant items at rank <= k of p^(rank - 1)`, p being the persistence. It is
not divided by an ideal: a list of relevant items only, n long, has `1 - p^n`. Powers are Python's,
from a table, so that a list has the same score in any batch.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from streameval.core.metrics.inputs import Number
from streameval.core.metrics.lists import NO_RELEVANT, Lists, Metric, Scores, add_columns

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


def score(lists: Lists, k: int, persistence: float = PERSISTENCE.default) -> Scores:
    """Return the rank-biased precision of each list."""
    ranks = np.where(lists.within(k), lists.ranks, 0)
    size = 1 << int(ranks.max(initial=0) + 1).bit_length()
    return np.minimum(add_columns(_shares(size, persistence)[ranks]), 1.0)


METRIC = Metric(
    name="rbp",
    formula="Mean over lists of (1 - p) times the sum of p^(rank - 1) over relevant items at rank "
    "<= k",
    source="Moffat and Zobel 2008; trec_eval rbp (p = 0.9); ir_measures RBP",
    convention="p = {persistence:g}; an item is relevant or not; not divided by an ideal",
    undefined=NO_RELEVANT,
    cutoff="optional",
    parameters=(PERSISTENCE,),
    score=score,
)
