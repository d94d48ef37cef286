"""The users of an experiment, by the arms that each of them has ever been in.

A partition says which (user, arm) it has met (`Visit`). The store of the users joins these into
one set for each user: by a union, so that a visit may come twice, and in any order. From the sets
come the counts of `ArmUsers`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from streameval.base.arrays import Ints
from streameval.base.limits import CLUSTERS, OTHER
from streameval.core.experiments.first_lists import FirstLists
from streameval.core.windows.cells import cluster_of


class Visit(NamedTuple):
    """A user has a final slate or impression in an arm of an experiment (`ArmSums.users_key`)."""

    user: str
    experiment: str
    arm: str


@dataclass(slots=True)
class ArmUsers:
    """The users of one experiment. Counts of disjoint users add up (`add`).

    `by_arm` has the users who have ever been in an arm, int64 (256,) by cluster: a user who crossed
    counts in each of the arms. `exactly` has the users who were in that arm and no other, `crossed`
    the users who were in several.
    """

    by_arm: dict[str, Ints] = field(default_factory=dict)
    exactly: dict[str, int] = field(default_factory=dict)
    crossed: int = 0
    first: FirstLists = field(default_factory=FirstLists)

    def change(self, user: str, before: Collection[str], after: Collection[str]) -> None:
        """Take in that the arms of a user were `before` and are `after`, which has them all."""
        cluster = cluster_of(user)
        for arm in set(after) - set(before):
            if arm not in self.by_arm:
                self.by_arm[arm] = np.zeros(CLUSTERS, np.int64)
            self.by_arm[arm][cluster] += 1
        for arms, sign in ((before, -1), (after, 1)):
            if len(arms) == 1:
                (arm,) = arms
                self.exactly[arm] = self.exactly.get(arm, 0) + sign
            elif arms:
                self.crossed += sign

    def add(self, other: ArmUsers) -> None:
        """Add the counts of disjoint users."""
        for arm, counts in other.by_arm.items():
            known = self.by_arm.get(arm)
            self.by_arm[arm] = counts.copy() if known is None else known + counts
        for arm, count in other.exactly.items():
            self.exactly[arm] = self.exactly.get(arm, 0) + count
        self.crossed += other.crossed

    def within(self, arms: Collection[str]) -> ArmUsers:
        """Return the counts with all other arms as `__other__`."""
        found = ArmUsers(crossed=self.crossed)
        for arm, counts in self.by_arm.items():
            name = arm if arm in arms else OTHER
            found.by_arm[name] = found.of(name) + counts
        for arm, count in self.exactly.items():
            name = arm if arm in arms else OTHER
            found.exactly[name] = found.exactly.get(name, 0) + count
        return found

    def of(self, arm: str) -> Ints:
        """Return the users of an arm by cluster, int64 (256,)."""
        found = self.by_arm.get(arm)
        return np.zeros(CLUSTERS, np.int64) if found is None else found


class UserArms:
    """The arms of each user in memory, exactly: for finite input. 100 bytes a user and more."""

    def __init__(self) -> None:
        self.counts: dict[str, ArmUsers] = {}
        self._arms: dict[tuple[str, str], frozenset[str]] = {}
        # Users have one of a few sets of arms, which take 200 bytes each.
        self._sets: dict[frozenset[str], frozenset[str]] = {}

    def of(self, experiment: str, user: str) -> frozenset[str]:
        """Return the arms of a user in the experiment of that key."""
        return self._arms.get((experiment, user), frozenset())

    def count(self, experiment: str) -> int:
        """Count the users of the experiment of that key."""
        counts = self.counts.get(experiment, ArmUsers())
        return counts.crossed + sum(counts.exactly.values())

    def add(self, visits: Iterable[Visit]) -> None:
        """Take in visits, each any number of times."""
        for user, experiment, arm in visits:
            before = self._arms.get((experiment, user), frozenset())
            if arm in before:
                continue
            after = before | {arm}
            self._arms[experiment, user] = self._sets.setdefault(after, after)
            self.counts.setdefault(experiment, ArmUsers()).change(user, before, after)
