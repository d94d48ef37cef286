"""Experiments that other packages judged as well: the same numbers on every machine and version.

Nothing but the standard library, for `tests/golden/experiments.py` runs where the packages are.
"""

import random
from dataclasses import dataclass

ALPHA = 0.05
# (users of the treatment, users of the control, rate, lift, how strong the past of a user holds on)
EXPERIMENTS = [
    (300, 300, 0.10, 0.00, 0.8),
    (300, 310, 0.10, 0.30, 0.8),
    (800, 800, 0.03, 0.00, 0.5),
    (800, 790, 0.03, -0.40, 0.5),
    (1_000, 1_000, 0.50, 0.05, 0.9),
    (150, 1_350, 0.20, 0.00, 0.7),
    (1_350, 150, 0.20, 0.20, 0.7),
    (1_500, 1_500, 0.20, 0.02, 0.0),
]
# (users by arm, split)
SPLITS = [
    ([500, 500], [0.5, 0.5]),
    ([10_400, 9_600], [0.5, 0.5]),
    ([48_000, 52_000], [0.5, 0.5]),
    ([930, 70], [0.9, 0.1]),
    ([8_010, 1_020, 970], [0.8, 0.1, 0.1]),
    ([7_000, 1_700, 1_300], [0.8, 0.1, 0.1]),
]
# (users, alpha, planned users)
BOUNDS = [
    (users, alpha, planned)
    for users in (200, 5_000, 10_000, 1_000_000)
    for alpha in (0.05, 0.025, 0.0125)
    for planned in (1_000, 10_000, 500_000)
]
# (relative lift, rate, alpha, power)
PLANS = [
    (lift, rate, alpha, power)
    for lift in (0.02, 0.05, 0.2)
    for rate in (0.02, 0.1, 0.4)
    for alpha, power in ((0.05, 0.8), (0.01, 0.9))
]


@dataclass
class Users:
    """A list entry a user: events and trials in the experiment and before it."""

    x: list
    y: list
    before_x: list
    before_y: list


def users(count, rate, holds, seed):
    """Every user has a taste; before the experiment it was the same in a share `holds` of them."""
    chance = random.Random(seed)
    found = Users([], [], [], [])
    for _ in range(count):
        taste, other = (2 * rate * chance.random() for _ in range(2))
        past = taste if chance.random() < holds else other
        for rate_now, events, trials, least in (
            (taste, found.x, found.y, 1),
            (past, found.before_x, found.before_y, 0),
        ):
            seen = least + int(12 * chance.random() ** 2)
            trials.append(seen)
            events.append(sum(chance.random() < rate_now for _ in range(seen)))
    return found


def experiments():
    """(treatment, control) of each experiment."""
    return [
        (
            users(treated, rate * (1 + lift), holds, f"treatment {number}"),
            users(rest, rate, holds, f"control {number}"),
        )
        for number, (treated, rest, rate, lift, holds) in enumerate(EXPERIMENTS)
    ]
