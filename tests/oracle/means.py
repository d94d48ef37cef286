"""Means and their standard errors, by exact sums: what all figures of the oracle are made of."""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from fractions import Fraction

from streameval.base.limits import CLUSTERS


def mean(values: Sequence[Fraction]) -> tuple[float | None, float | None]:
    """Return the mean and its standard error, sd (n - 1) / √n; None below one and two values."""
    n = len(values)
    if n == 0:
        return None, None
    average = math.fsum(values) / n
    if n == 1:
        return average, None
    squares = math.fsum((float(value) - average) ** 2 for value in values)
    return average, math.sqrt(squares / (n - 1)) / math.sqrt(n)


def left_out(value: float, *others: float) -> float:
    """Return the standard error of a ratio by what it is without each of its clusters."""
    squares = math.fsum((other - value) ** 2 for other in others)
    return math.sqrt((len(others) - 1) / len(others) * squares)


def ratio(sums: Iterable[tuple[str, int, int]], unit: int) -> tuple[float | None, float | None]:
    """Return Σx/Σy over (user, x in 1/unit, y), and its standard error (rule 20).

    Clusters are of the crc32 of the user. Each of the n clusters with an x or y is left out once:
    `se = sqrt((n-1)/n · Σ(R' - R)²)`, R' being the ratio of the others, as exact fractions. None
    where Σy is 0, and no error below two clusters with y > 0.
    """
    clusters: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    for user_id, x, y in sums:
        cluster = clusters[zlib.crc32(user_id.encode()) & (CLUSTERS - 1)]
        cluster[0] += x
        cluster[1] += y
    total_x = sum(x for x, _ in clusters.values())
    total_y = sum(y for _, y in clusters.values())
    if total_y == 0:
        return None, None
    value = total_x / (total_y * unit)
    if sum(y > 0 for _, y in clusters.values()) == 1:
        return value, None
    there = [(x, y) for x, y in clusters.values() if x or y]
    whole = Fraction(total_x, total_y)
    moved = [float(Fraction(total_x - x, total_y - y) - whole) for x, y in there]
    return value, left_out(0.0, *moved) / unit
