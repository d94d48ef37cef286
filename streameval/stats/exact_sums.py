"""Sums of scores in integer nano-units that no scale makes wrap: two int64, low and high parts.

A sum is `high * 2^44 + low` with `low` in [0, 2^44), shape (2, …). Integers add in any order, so
neither the batches nor their order change a bit.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from streameval.base.arrays import Floats, Ints
from streameval.base.errors import InputError
from streameval.base.limits import MAX_EVALUATED_SEGMENTS, MAX_SCORE, NANO

_SHIFT: Final = 44
_LOW: Final = (1 << _SHIFT) - 1
# The high parts of as many segments still fit in an int64 together.
_MOST: Final = 2**63 // MAX_EVALUATED_SEGMENTS
_TOO_LARGE: Final = "gains or errors are too large to be summed exactly"

assert MAX_SCORE * NANO < 2 ** (2 * _SHIFT), "both parts of a score leave room for 2^19 of them"


def zeros(*shape: int) -> Ints:
    """Return sums of nothing, shape (2, *shape)."""
    return np.zeros((2, *shape), np.int64)


def sums_of(scores: Floats, starts: Ints) -> Ints:
    """Sum scores (n, columns) by runs of rows, which begin at `starts`; (2, runs, columns).

    None is NaN. Raises `InputError` for a score that does not fit.
    """
    units = np.rint(scores * NANO)
    largest = np.abs(units).max(initial=0.0)
    if not largest <= MAX_SCORE * NANO:
        raise InputError(f"a score is beyond {MAX_SCORE:.0e}: {_TOO_LARGE}")
    if largest * len(units) < 2**62:
        sums = np.add.reduceat(units.astype(np.int64), starts, axis=0)
        return _carry(np.stack((sums, np.zeros_like(sums))))
    # Doubles divided by a power of two lose nothing.
    high = np.floor(units / 2**_SHIFT)
    low = units - high * 2**_SHIFT
    return _carry(np.add.reduceat(np.stack((low, high)).astype(np.int64), starts, axis=1))


def add(sums: Ints, where: Any, more: Ints) -> None:
    """Add `more` to the rows `where` of `sums`, all different. Raises `InputError`."""
    found = _carry(sums[:, where] + more)
    if np.abs(found[1]).max(initial=0) >= _MOST:
        raise InputError(_TOO_LARGE)
    sums[:, where] = found


def integers(sums: Ints) -> list[int]:
    """Return sums (2, n) as they are."""
    low, high = sums.tolist()
    return [(above << _SHIFT) + below for below, above in zip(low, high, strict=True)]


def _carry(sums: Ints) -> Ints:
    """Bring the low parts into their range, in place."""
    sums[1] += sums[0] >> _SHIFT
    sums[0] &= _LOW
    return sums
