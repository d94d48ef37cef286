"""Intervals where no formula holds: a bootstrap whose draws are a hash of the user.

Each of B replicates counts each user Poisson(1) times; the count is a quantile of hash(user, b), so
a user has the same counts in every file, partition and run: sums of replicates add up in any order,
and the interval is the same bits each time. Chamandy, Muralidharan, Najmi and Naidu, "Estimating
uncertainty for massive data streams", Google, 2012; Hanley and MacGibbon, "Creating non-parametric
bootstrap samples using Poisson frequencies", 2006.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from streameval.base.arrays import Floats
from streameval.stats.intervals import LEVEL, Interval

REPLICATES = 200
# Users weighed in one go: 200 weights of 8 bytes each, 13 MB.
SLICE = 8_192
_ODD = np.uint64(0x9E3779B97F4A7C15)


def user_hashes(users: Iterable[str]) -> npt.NDArray[np.uint64]:
    """64 bits for each user id, the same in every process: BLAKE2b of its UTF-8 bytes."""
    digests = [blake2b(user.encode(), digest_size=8).digest() for user in users]
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


def weights(hashes: npt.NDArray[np.uint64], replicates: int = REPLICATES) -> npt.NDArray[np.int64]:
    """How often each user counts in each replicate, shape (users, replicates): Poisson(1)."""
    steps = np.arange(1, replicates + 1, dtype=np.uint64) * _ODD
    mixed = hashes[:, None] + steps[None, :]
    # The finaliser of SplitMix64 (Steele, Lea and Flood, 2014); uint64 wraps, which is meant.
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    drawn: npt.NDArray[np.int64] = np.searchsorted(_POISSON, mixed, side="right").astype(np.int64)
    return drawn


def _poisson() -> npt.NDArray[np.uint64]:
    # P(N ≤ k) · 2**64 in integers: floats of 53 bits would differ in the last place by platform.
    # Beyond 20 the mass is below 2⁻⁶⁴: the table ends there.
    inverse_e = sum((-1) ** k * (1 << 128) // math.factorial(k) for k in range(40))
    bounds, mass = [], 0
    for count in range(20):
        mass += inverse_e // math.factorial(count)
        bounds.append(min(mass >> 64, (1 << 64) - 1))
    return np.array(bounds, np.uint64)


_POISSON = _poisson()


@dataclass(frozen=True, slots=True)
class Replicates:
    """Σx and Σy of every replicate, int64 (replicates,) each, and of the data itself.

    x and y are integers (counts, nano-units), so that sums are exact.
    """

    x: npt.NDArray[np.int64]
    y: npt.NDArray[np.int64]
    x_total: int
    y_total: int

    @classmethod
    def of(
        cls,
        hashes: npt.NDArray[np.uint64],
        x: npt.NDArray[np.int64],
        y: npt.NDArray[np.int64],
        replicates: int = REPLICATES,
    ) -> Replicates:
        """The sums over rows; `hashes` says which user a row is of, who may have many rows."""
        sums_x, sums_y = np.zeros((2, replicates), np.int64)
        for start in range(0, len(hashes), SLICE):
            part = slice(start, start + SLICE)
            drawn = weights(hashes[part], replicates)
            sums_x += x[part] @ drawn
            sums_y += y[part] @ drawn
        return cls(sums_x, sums_y, int(x.sum()), int(y.sum()))

    def __add__(self, other: Replicates) -> Replicates:
        """Add the sums of other rows, replicate by replicate."""
        return Replicates(
            self.x + other.x,
            self.y + other.y,
            self.x_total + other.x_total,
            self.y_total + other.y_total,
        )

    def interval(self, level: float = LEVEL) -> Interval | None:
        """Σx/Σy between the quantiles of the replicates; None without a denominator."""
        if self.y_total == 0:
            return None
        return _between(self.x_total / self.y_total, self._ratios(), level)

    def difference(self, other: Replicates, level: float = LEVEL) -> Interval | None:
        """Its ratio − `other`'s, replicate by replicate: users who are in both count in both."""
        if self.y_total == 0 or other.y_total == 0:
            return None
        value = self.x_total / self.y_total - other.x_total / other.y_total
        return _between(value, self._ratios() - other._ratios(), level)

    def _ratios(self) -> Floats:
        # A replicate that drew no user has no figure.
        answer = np.full(len(self.x), np.nan)
        return np.asarray(np.divide(self.x, self.y, out=answer, where=self.y != 0))


def _between(value: float, replicates: Floats, level: float) -> Interval | None:
    found = replicates[~np.isnan(replicates)]
    if len(found) < 2:
        return None
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return Interval(value, float(low), float(high), "bootstrap")
