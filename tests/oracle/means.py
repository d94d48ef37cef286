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


def ratio(sums: Iterable[tuple[str, int, int]], unit: int) -> tuple[float | None, float | None]:
    """Return Σx/Σy over (user, x in 1/unit, y), and its standard error (rule 20).

    Clusters are of the crc32 of the user. With R = Σx/Σy and d = x - R·y of each cluster, and n
    clusters with y > 0, `se = sqrt(n/(n-1) · Σd²) / Σy`. d·Σy is an integer, so all but the last
    division and the root is exact. None where Σy is 0, and no error below two such clusters.
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
    n = sum(y > 0 for _, y in clusters.values())
    if n == 1:
        return value, None
    squares = sum((x * total_y - total_x * y) ** 2 for x, y in clusters.values())
    variance = Fraction(n * squares, (n - 1) * total_y**4 * unit**2)
    return value, math.sqrt(variance)
