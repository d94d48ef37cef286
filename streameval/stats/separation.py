"""Figures without an upper limit, where the arms do not overlap at all.

If users are assigned at random and the arms do not differ, all values of n users lie below all
values of m other users with a chance of 1/C(n+m, n): each choice of n users is as likely.
Separated now implies separated at every look before. So only one look counts, the first one at
which both arms have n₀ users. The last user to come then is of the arm that has just n₀; the
others of that arm may be any n₀ − 1 of the users before, which are 2·n₀ − 1 at least. So the chance
that the arms are *ever* separated, one way or the other, with n₀ users or more in both, is at most
2/C(2·n₀ − 1, n₀ − 1).

If all values of an arm were d higher than they would be in the other, then the arm less d would not
be separated from it. So d lies between the smallest of one less the largest of the other, and the
largest less the smallest.

Pairs of the same users are one-sided in place of separated: n₀ differences all have one sign with a
chance of 2^(1−n₀), if the two models might as well be swapped.
"""

from __future__ import annotations

import math
from collections.abc import Callable


def separation(
    treatment: tuple[float, float], control: tuple[float, float], users: int, alpha: float
) -> tuple[float, float] | None:
    """Bound a difference by (smallest, largest) values of both arms; None where they overlap.

    `users` have a value, in each arm at least. Arms of one value, the same, are not separated, and
    have the bounds 0. NaN stands for no value.
    """
    return _bounds_told(
        treatment[0] - control[1], treatment[1] - control[0], users, alpha, _separation
    )


def one_sided(
    smallest: float, largest: float, users: int, alpha: float
) -> tuple[float, float] | None:
    """Bound a difference by the users' differences; None where they have both signs, or are few."""
    return _bounds_told(smallest, largest, users, alpha, lambda n: 2.0 ** (1 - n))


def _separation(users: int) -> float:
    return 2 / math.comb(2 * users - 1, users - 1)


def _bounds_told(
    low: float, high: float, users: int, alpha: float, chance: Callable[[int], float]
) -> tuple[float, float] | None:
    # Thousands of users say no more than a hundred, whose chance is below every alpha.
    if not users or chance(min(users, 100)) > alpha:
        return None
    return (low, high) if low > 0 or high < 0 or low == high else None
