"""Arms that serve other people: part of `traffic_alike`.

Where most users of the app have one arm and most of the web the other, each arm may have half of
all users, and the figures of all traffic still compare the app with the web. So the users of each
value of a dimension are split as those of the others. This holds for dimensions that users keep,
such as a platform or a country: what an arm itself decides, such as an algorithm, differs by arm.
A value that a single arm serves is part of no comparison.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from streameval.checks.evidence import Evidence
from streameval.checks.result import percent
from streameval.checks.shares import FAR, LEAST_USERS

# Share of the users of several slates who have one value of a dimension that users keep.
_KEPT: Final = 0.8
_KEEPING: Final = """
    SELECT avg((count = 1)::INTEGER) FROM (SELECT count(DISTINCT segment[{number}]) AS count
        FROM current GROUP BY "user" HAVING count(*) > 1)"""
# Of each value of a dimension, the users of each arm.
_USERS: Final = """
    SELECT segment[{number}], arm, count(DISTINCT "user") FROM current GROUP BY ALL"""


def uneven_arms(evidence: Evidence, bound: float) -> Iterator[tuple[float, str]]:
    """Yield how far shares of users differ by more than `bound` (1: at it), and a sentence.

    The distance is a share of the larger one, and counts beyond `FAR` standard errors.
    """
    for number, dimension in enumerate(evidence.definition.dimensions, 1):
        if evidence.arm is None or dimension == evidence.arm:
            continue
        (kept,) = evidence.row(_KEEPING.format(number=number))
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        if (kept or 0.0) >= _KEPT:
            for value, arm, users in evidence.rows(_USERS.format(number=number)):
                counts[value][arm] = users
        for value, arm, n, share, rest in _larger(counts):
            if (apart := (share - rest) / share) > bound:
                said = (
                    f"{evidence.arm} {arm!r} has {percent(share)} of the {n:,} users of"
                    f" {dimension} {value!r}, elsewhere {percent(rest)}: figures of all traffic"
                    f" compare values of {dimension} too. See what assigns users there, or compare"
                    f" arms within one {dimension}"
                )
                yield apart / bound, said


def _larger(counts: Mapping[str, Counter[str]]) -> Iterator[tuple[str, str, int, float, float]]:
    """Yield values of a dimension of whose users an arm has a larger share than of the others'.

    With value and arm: the users of the value, and both shares.
    """
    compared = {value: arms for value, arms in counts.items() if len(arms) > 1}
    whole = sum(compared.values(), Counter[str]())
    for value, here in compared.items():
        there = whole - here
        n, others = here.total(), there.total()
        if min(n, others) < LEAST_USERS:
            continue
        for arm in here:
            share, rest, both = here[arm] / n, there[arm] / others, whole[arm] / whole.total()
            spread = math.sqrt(both * (1 - both) * (1 / n + 1 / others))
            if share - rest > FAR * spread:
                yield value, arm, n, share, rest
