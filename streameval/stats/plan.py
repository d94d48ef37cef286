"""Plans of experiments: users for an effect, and the smallest effect that users can show.

All follows from the `spread` of a difference, which is its squared standard error times the users
of both arms: it stays the same as users come. An effect is in the units of the figure.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Final, NamedTuple

from streameval.stats.cluster_sums import ClusterSums
from streameval.stats.confidence_sequences import ALPHA, radius
from streameval.stats.intervals import normal

POWER: Final = 0.8


class Plan(NamedTuple):
    """A number for one look that is planned beforehand, and for bounds at all looks together."""

    one_look: float
    all_looks: float


def spread_of(sums: ClusterSums, share: float = 0.5) -> float | None:
    """Return the spread of a difference between two arms of users like these.

    `share` is the treatment's share of the users of both arms. None below two clusters of users.
    """
    assert 0 < share < 1, "both arms have users"
    arm = sums.arm()
    return None if arm is None else arm.units * arm.stderr**2 / (share * (1 - share))


def users_for(effect: float, spread: float, alpha: float = ALPHA, power: float = POWER) -> Plan:
    """Return the users of both arms that show a true `effect` with a chance of `power`.

    For all looks, the bounds are planned for just so many users (`planned_users`), and leave 0 with
    that chance at the last look. Looks before add to the chance, so the number is on the safe side.
    """
    assert effect, "an effect of 0 is never shown"
    return Plan(
        *(math.ceil(spread * (reach / effect) ** 2) for reach in _reaches(1.0, 1, alpha, power))
    )


def smallest_effect(
    users: int,
    spread: float,
    planned_users: int,
    alpha: float = ALPHA,
    power: float = POWER,
) -> Plan:
    """Return the smallest true effect that `users` of both arms show with a chance of `power`."""
    error = math.sqrt(spread / users)
    return Plan(*(error * reach for reach in _reaches(users, planned_users, alpha, power)))


def _reaches(users: float, planned_users: int, alpha: float, power: float) -> tuple[float, float]:
    """How many standard errors an effect has to be, for one look and for all looks."""
    assert 0 < power < 1, "a power is a probability"
    more = NormalDist().inv_cdf(power)
    return normal(1 - alpha) + more, float(radius(1.0, users, alpha, planned_users)) + more
