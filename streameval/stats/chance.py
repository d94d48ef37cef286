"""Chances of counts: exact, or bounded from above, never approximated."""

from __future__ import annotations

import math

# Terms of a tail below this share of their sum change nothing that is compared.
_NEGLIGIBLE = 1e-12


def chance_of_split(found: int, total: int, part: int, whole: int) -> float:
    """Compute the chance that `found` or more of `total` drawn from `whole` are of `part`.

    Without putting back (hypergeometric): the one-sided test of Fisher.
    """
    rest = whole - part
    least, most = max(found, total - rest), min(total, part)
    if least <= max(0, total - rest):
        return 1.0
    if least > most:
        return 0.0
    lg = math.lgamma
    term = math.exp(
        (lg(part + 1) - lg(least + 1) - lg(part - least + 1))
        + (lg(rest + 1) - lg(total - least + 1) - lg(rest - total + least + 1))
        - (lg(whole + 1) - lg(total + 1) - lg(whole - total + 1))
    )
    tail = term
    for seen in range(least, most):
        term *= (part - seen) * (total - seen) / ((seen + 1) * (rest - total + seen + 1))
        tail += term
        if seen * whole > total * part and term < _NEGLIGIBLE * tail:
            break
    return min(1.0, tail)


def chance_of_count(found: int, expected: float) -> float:
    """Bound the chance that `found` or more of many independent events happen, `expected` the mean.

    Chernoff's bound, which also holds where the events have unequal chances.
    """
    if found <= expected:
        return 1.0
    if expected <= 0:
        return 0.0
    return math.exp(found - expected - found * math.log(found / expected))
