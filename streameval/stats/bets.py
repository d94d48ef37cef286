"""Bounds of the mean of values in [0, 1] that are all at hand: as narrow as their spread allows.

Whoever bets the share c of their money, again and again, that values x with the mean m lie above m
has Π (1 − c + c·x/m): on average no more than at the start, and ever 1/α times as much with a
chance of at most α (Ville). A fortune spread over several c in advance depends on no order, and
falls as m rises. Waudby-Smith and Ramdas, "Estimating means of bounded random variables by
betting", arXiv 2010.09686.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from streameval.base.arrays import Floats

_BETS: Final = 2.0 ** -np.arange(0, 12, 0.5)[:, None]
# Values are rounded away from the bound to multiples of this, so a million are as quick as some.
_STEPS: Final = 4_096
_HALVINGS: Final = 40


def mean_bounds(values: Floats, alpha: float) -> tuple[float, float]:
    """Bound the mean of values (n,) in [0, 1], one or more, at all looks together."""
    return _lower(values, alpha / 2), 1 - _lower(1 - values, alpha / 2)


def _lower(values: Floats, alpha: float) -> float:
    """Return the largest mean that the bets on values above it exclude; 0 if they exclude none."""
    steps = np.bincount(np.floor(np.clip(values, 0, 1) * _STEPS).astype(np.int64))
    there = np.flatnonzero(steps)
    counts, worth = steps[there], there / _STEPS
    limit = math.log(len(_BETS)) - math.log(alpha)
    low, high = 0.0, float(values.mean())
    for _ in range(_HALVINGS if high else 0):
        mean = (low + high) / 2
        with np.errstate(divide="ignore"):
            money = (counts * np.log(1 - _BETS + _BETS * worth / mean)).sum(axis=1)
        if np.logaddexp.reduce(money) >= limit:
            low = mean
        else:
            high = mean
    return low
