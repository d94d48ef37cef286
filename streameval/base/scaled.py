"""Numbers as integers of a small unit: they add up to the same bits in any order."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

# Below this, a product of two floats is off by less than 2**-13: only near a tie can it matter.
_EXACT_ENOUGH: Final = 2.0**40
_NEAR_A_TIE: Final = 1e-3


def scale(value: float, units: int) -> int:
    """Return `value` in units of 1/`units`, rounded half to even from its exact value."""
    product = value * units
    if abs(product) < _EXACT_ENOUGH:
        rounded = round(product)
        if abs(product - rounded) < 0.5 - _NEAR_A_TIE:
            return rounded
    return round(Fraction(value) * units)
