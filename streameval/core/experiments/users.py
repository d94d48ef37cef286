"""The users of an experiment, by the arms that each of them has ever been in.

A partition says which (user, arm) it has met, and the first list there (`Visit`). The store of the
users joins these into one set for each user, with the smallest first list in each arm: a union and
a minimum, so that a visit may come twice, and in any order. From them come the counts and the sums
of `ArmUsers`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from streameval.base.arrays import Ints
from streameval.base.limits import CLUSTERS, OTHER
from streameval.core.experiments.first_lists import FirstList, FirstLists
from streameval.core.windows.tables import cluster_of


class Visit(NamedTuple):
    """A user has a final slate or impression in an arm of an experiment (`ArmSums.users_key`).

    `time` (ms) and `values` are the first list there, a `FirstList`, as far as is known.
    """

    user: str
    experiment: str
    arm: str
    time: int
    values: tuple[int, ...]


@dataclass(slots=True)
class ArmUsers:
    """The users of one experiment. Counts of disjoint users add up (`add`).

    `by_arm` has the users who have ever been in an arm, int64 (256,) by cluster: a user who crossed
    counts in each of the arms. `exactly` has the users who were in that arm and no other, `crossed`
    the users who were in several. `first` has the first lists of the users who have not crossed.
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
        self.first.merge(other.first)

    def without_crossed(self, crossed: Iterable[tuple[str, Collection[str]]]) -> ArmUsers:
        """Return the counts with the users of one arm alone in `by_arm`.

        `crossed` gives each other user with the arms.
        """
        gone = ArmUsers()
        for user, arms in crossed:
            gone.change(user, (), arms)
        by_arm = {arm: counts - gone.of(arm) for arm, counts in self.by_arm.items()}
        return replace(self, by_arm=by_arm)

    def within(self, arms: Collection[str]) -> ArmUsers:
        """Return the counts with all other arms as `__other__`."""
        found = ArmUsers(crossed=self.crossed, first=self.first.within(arms))
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
    """The arms of each user in memory, exactly: for finite input. 300 bytes a user and more."""

    def __init__(self) -> None:
        self.counts: dict[str, ArmUsers] = {}
        self._arms: dict[tuple[str, str], frozenset[str]] = {}
        # Users have one of a few sets of arms, which take 200 bytes each.
        self._sets: dict[frozenset[str], frozenset[str]] = {}
        # Of the users in one arm.
        self._firsts: dict[tuple[str, str], FirstList] = {}

    def of(self, experiment: str, user: str) -> frozenset[str]:
        """Return the arms of a user in the experiment of that key."""
        return self._arms.get((experiment, user), frozenset())

    def count(self, experiment: str) -> int:
        """Count the users of the experiment of that key."""
        counts = self.counts.get(experiment, ArmUsers())
        return counts.crossed + sum(counts.exactly.values())

    def crossed(self, experiment: str) -> dict[str, frozenset[str]]:
        """Return the users who were in several arms, with their arms."""
        return {
            user: arms
            for (key, user), arms in self._arms.items()
            if key == experiment and len(arms) > 1
        }

    def add(self, visits: Iterable[Visit]) -> None:
        """Take in visits, each any number of times."""
        for user, experiment, arm, time, values in visits:
            before = self._arms.get((experiment, user), frozenset())
            counts = self.counts.setdefault(experiment, ArmUsers())
            after = before | {arm}
            if after != before:
                self._arms[experiment, user] = self._sets.setdefault(after, after)
                counts.change(user, before, after)
            self._note_first(counts.first, (experiment, user), arm, (time, values), after)

    def _note_first(
        self,
        lists: FirstLists,
        key: tuple[str, str],
        arm: str,
        first: FirstList,
        arms: frozenset[str],
    ) -> None:
        """Keep the earliest first list of a user in one arm; one who crossed has none any more."""
        known = self._firsts.pop(key, None)
        if len(arms) == 1:
            first = self._firsts[key] = first if known is None else min(known, first)
            if first != known:
                lists.change(arm, *_sums_of(first), 1)
        if known is not None and known != self._firsts.get(key):
            (alone,) = arms - {arm} or arms
            lists.change(alone, *_sums_of(known), -1)


def _sums_of(first: FirstList) -> tuple[int, Ints]:
    """Return a first list as `FirstLists.change` takes it: one user."""
    time, values = first
    return time, np.array((1, *values), np.int64)
