"""The standard error that other packages give a ratio, beside ours."""

import math

import numpy as np

from streameval.stats.intervals import Arm


def delta_arm(x, y):
    """The arm of Σx/Σy by the delta method; `x` and `y` are of shape (units,)."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    ratio, there = x.sum() / y.sum(), (x != 0) | (y != 0)
    parts = ((x - ratio * y) / y.sum())[there]
    count, squares = len(parts), np.square(parts).sum()
    skewness = (parts**3).mean() / (squares / count) ** 1.5 if squares else math.nan
    return Arm(ratio, math.sqrt(count / (count - 1) * squares), skewness, count, count)
