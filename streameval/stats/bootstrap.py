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
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

REPLICATES = 200
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
