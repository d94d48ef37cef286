"""Visits on their way from a partition to the store of its users: none is lost, most come once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Final

from streameval.base.limits import MAX_TS
from streameval.core.experiments.first_lists import FirstList
from streameval.core.experiments.users import Visit
from streameval.core.slate import Slate

# Users of an arm whose visit is known to be noted, 130 bytes each; beyond, all come again.
MOST_VISITS: Final = 100_000

_Key = tuple[str, str, str]
"""User, experiment and arm."""


class Visits:
    """The visits that nobody has taken for good, and of each the earliest first list so far."""

    def __init__(self) -> None:
        self._waiting: dict[_Key, FirstList] = {}
        self._lent: dict[_Key, FirstList] = {}
        # By experiment and arm: the earliest time (ms) at which a user was noted.
        self._met: dict[tuple[str, str], dict[str, int]] = {}

    def __iter__(self) -> Iterator[Visit]:
        """Yield all, those that are lent first."""
        for key, first in chain(self._lent.items(), self._waiting.items()):
            yield Visit(*key, *first)

    @property
    def untaken(self) -> int:
        """The number of visits that no call has taken yet."""
        return len(self._waiting)

    def add(self, visits: Iterable[Visit]) -> None:
        """Take in visits, in any order."""
        for user, experiment, arm, time, values in visits:
            self._add((user, experiment, arm), (time, values))

    def note(
        self,
        experiment: str,
        arm: str,
        slates: Sequence[Slate],
        first_lists: Callable[[Sequence[Slate]], list[FirstList]],
    ) -> None:
        """Note the users of slates, unless none of these slates can be the first of the user.

        `first_lists` returns what each of some slates would be as a first list.
        """
        met = self._met.setdefault((experiment, arm), {})
        chosen = [slate for slate in slates if slate.time <= met.get(slate.user, MAX_TS)]
        if len(met) + len(chosen) > MOST_VISITS:
            met.clear()
        for slate, first in zip(chosen, first_lists(chosen), strict=True):
            self._add((slate.user, experiment, arm), first)
            met[slate.user] = min(slate.time, met.get(slate.user, MAX_TS))

    def take(self, most: int | None, *, for_good: bool) -> list[Visit]:
        """Return up to `most` visits (None: all), as `ExperimentSums.take_visits` does."""
        if for_good:
            taken = _pop(self._lent, most)
            taken |= _pop(self._waiting, None if most is None else most - len(taken))
        else:
            taken = _pop(self._waiting, most)
            for key, first in taken.items():
                self._lent[key] = min(first, self._lent.get(key, first))
        return [Visit(*key, *first) for key, first in taken.items()]

    def _add(self, key: _Key, first: FirstList) -> None:
        self._waiting[key] = min(first, self._waiting.get(key, first))


def _pop(visits: dict[_Key, FirstList], most: int | None) -> dict[_Key, FirstList]:
    """Take up to `most` visits out (None: all), the oldest first."""
    return {key: visits.pop(key) for key in list(islice(visits, most))}
