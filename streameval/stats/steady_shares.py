"""Whether arms kept their shares of the users: a ramp makes every pooled figure wrong.

With 5 % of the users in B, and 50 % later, B's figures come from later times than A's. If the base
rate moves, equal arms differ.

The null hypothesis is that each new user falls into the arms by the same shares, which nobody
knows. Against it stands a mixture over times of a change: before and after it the shares are drawn
from a Dirichlet distribution each (Jeffreys' prior). The likelihood of the mixture, divided by the
largest likelihood of constant shares, ever reaches 1/α with a chance of at most α: Wasserman,
Ramdas and Balakrishnan, "Universal inference", PNAS 2020, arXiv 1912.11436. The rhythm of a day,
growth and breaks change how many users come, and no share.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from streameval.base.arrays import Floats, Ints

ALPHA: Final = 0.001
# The prior of a time of change is spread over 128 buckets of 32 lengths each: buckets get longer as
# an experiment does, and the weights of all times together are 1 still.
_CHANGES: Final = 128 * 32
_PRIOR: Final = 0.5
_lgamma = np.vectorize(math.lgamma, otypes=[np.float64])


def steady_from(counts: Ints, alpha: float = ALPHA) -> int:
    """Return the first bucket since which the shares are steady; 0 if they always were.

    `counts` are new users, int64 (buckets, arms), at most 128 buckets of equal length. Users need
    not come in each bucket.
    """
    there = np.flatnonzero(counts.any(axis=1))
    start = 0
    while start < len(there) - 1:
        evidence = _log_evidence(counts[there[start:]])
        if np.logaddexp.reduce(evidence) < -math.log(alpha):
            break
        start += 1 + int(evidence.argmax())
    return int(there[start]) if start else 0


def _log_evidence(counts: Ints) -> Floats:
    """Return the logarithm of the evidence for a change after each bucket but the last."""
    until = counts.cumsum(axis=0)
    total = until[-1]
    changed = _log_mixture(until[:-1]) + _log_mixture(total - until[:-1])
    there = total[total > 0]
    constant = float((there * np.log(there / total.sum())).sum())
    return np.asarray(changed - constant - math.log(_CHANGES))


def _log_mixture(counts: Ints) -> Floats:
    """Return ln ∫ Π p^c dDirichlet(p), for counts c (..., arms)."""
    arms = counts.shape[-1]
    inner = (_lgamma(counts + _PRIOR) - math.lgamma(_PRIOR)).sum(axis=-1)
    whole = _lgamma(counts.sum(axis=-1) + arms * _PRIOR) - math.lgamma(arms * _PRIOR)
    return np.asarray(inner - whole)
