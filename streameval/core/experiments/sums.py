"""Sums of experiments: each final slate of an experiment is added once to the sums of its arm.

A slate is final once its time is before wm - H (rule 4 of `attribution`). Its worth is then added
to sums that only grow, and nothing is ever retracted. After `Partition.finalizing` the sums hold
exactly the slates before wm - H, with the watermark of the last flush. All are integers, by cluster
of users, so they add up in any order to the same bits.

New arms take the room that is left in the order of their earliest slates, so slates of a new arm
wait until all slates before wm - H have come (`settling`). Once no room is left, none waits.

The arm of a slate is the value that its earliest event gives the experiment's field (ties: the
smaller value). If the field is a dimension, the slate's segment has it, or its details where the
segment is beyond `max_segments`. A slate without such a value takes no part in the experiment.

Visits of users are on their way from here to the store: none is lost, and most come once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from copy import copy
from heapq import nsmallest
from itertools import islice
from typing import Any, Final, NamedTuple, Self

import numpy as np

from streameval.base.arrays import Floats, Ints
from streameval.base.limits import CLUSTERS, MAX_TS, OTHER
from streameval.core.definition import Definition
from streameval.core.experiments.definition import MAX_ARMS, Experiment
from streameval.core.experiments.first_lists import FirstValues
from streameval.core.experiments.users import Visit
from streameval.core.experiments.worths import Worths, widen
from streameval.core.marks import NEVER
from streameval.core.segments import Segments
from streameval.core.slate import Slate
from streameval.core.windows.aggregate import Aggregate

# Users of an arm whose visit is known to be noted, 130 bytes each; beyond, all come again.
MOST_VISITS: Final = 100_000

_Key = tuple[str, ...]
"""User, experiment and arm: the first three fields of a visit."""


class Visits:
    """The visits that nobody has taken for good, and of each the earliest first list so far.

    Of visits of one key the earlier one is the smaller one.
    """

    def __init__(self) -> None:
        self._waiting: dict[_Key, Visit] = {}
        self._lent: dict[_Key, Visit] = {}
        # By experiment and arm: the earliest time (ms) at which a user was noted.
        self._met: dict[tuple[str, str], dict[str, int]] = {}

    def __iter__(self) -> Iterator[Visit]:
        """Yield all, those that are lent first."""
        yield from self._lent.values()
        yield from self._waiting.values()

    @property
    def untaken(self) -> int:
        """The number of visits that no call has taken yet."""
        return len(self._waiting)

    def add(self, visits: Iterable[Visit]) -> None:
        """Take in visits, in any order."""
        waiting = self._waiting
        for visit in visits:
            key = visit[:3]
            known = waiting.get(key)
            if known is None or visit < known:
                waiting[key] = visit

    def note(
        self, experiment: str, arm: str, slates: Sequence[Slate], values: Iterable[FirstValues]
    ) -> None:
        """Note the users of slates, unless none of these slates can be the first of the user.

        `values` are those that each slate has as a first list.
        """
        met = self._met.setdefault((experiment, arm), {})
        visits = []
        for slate, found in zip(slates, values, strict=True):
            user, time = slate.user, slate.time
            if time <= met.get(user, MAX_TS):
                met[user] = time
                visits.append(Visit(user, experiment, arm, time, found))
        self.add(visits)
        if len(met) > MOST_VISITS:
            met.clear()

    def take(self, most: int | None, *, for_good: bool) -> list[Visit]:
        """Return up to `most` visits (None: all), as `ExperimentSums.take_visits` does."""
        if for_good:
            taken = _pop(self._lent, most)
            taken |= _pop(self._waiting, None if most is None else most - len(taken))
        else:
            taken = _pop(self._waiting, most)
            for key, visit in taken.items():
                self._lent[key] = min(visit, self._lent.get(key, visit))
        return list(taken.values())


def _pop(visits: dict[_Key, Visit], most: int | None) -> dict[_Key, Visit]:
    """Take up to `most` visits out (None: all), the oldest first."""
    return {key: visits.pop(key) for key in list(islice(visits, most))}


# Slates added in one step, and new arms compared in one: 2 ms.
_STEP: Final = 1_000

COUNTS: Final = ("with_arm", "without_arm", "without_arm_fallback", "without_arm_empty")
"""The numbers of slates in `ArmSums`."""


class ArmSums:
    """The sums of one experiment: `sums` by arm, int64 (rows, 256), rows as in `row_names`.

    `counts_from` (ms) is set where the state is older than the experiment in it: slates before are
    missing. `earliest` is the time (ms) of the earliest slate that is counted. Both are None where
    there is no such time. `with_arm` counts the slates of its time that have an arm, and
    `without_arm` those that have none: `without_arm_fallback` of these are fallbacks, and
    `without_arm_empty` are empty. `begun` is the offset at which the sums of a partition began in a
    log that had been read before, else None. `extremes` by arm, float64 (2, metrics), are the
    smallest and the largest figure of a single slate, in the order of `metrics_of`; NaN where no
    slate has the figure. Sums of disjoint users add up (`merge`).
    """

    def __init__(self, experiment: Experiment, counts_from: int | None = None) -> None:
        self.experiment = experiment
        self.counts_from = counts_from
        self.earliest: int | None = None
        self.with_arm = 0
        self.without_arm = 0
        self.without_arm_fallback = 0
        self.without_arm_empty = 0
        self.begun: int | None = None
        self.sums: dict[str, Ints] = {}
        self.extremes: dict[str, Floats] = {}

    @property
    def users_key(self) -> str:
        """The name that stores give to its users: sums that begin anew have users of their own."""
        key = self.experiment.key
        return key if self.begun is None else f"{key}@{self.begun}"

    @property
    def bounds(self) -> tuple[int, int]:
        """The times (ms) of the first slate to count, and of the first that does not any more."""
        begins = [time for time in (self.counts_from, self.experiment.since) if time is not None]
        until = self.experiment.until
        return max(begins, default=NEVER), MAX_TS if until is None else until

    def admitted(self, arm: str) -> str:
        """Return the name under which a new arm counts: its own, or `__other__` beyond the bound.

        The arms that the experiment names always have room.
        """
        return arm if self.room or arm in self.experiment.named_arms else OTHER

    @property
    def room(self) -> int:
        """The number of arms, beside those that the experiment names, that can still be admitted.

        It never rises.
        """
        named = {*self.experiment.named_arms, OTHER}
        return max(0, MAX_ARMS - len(named) + 1 - len(self.sums.keys() - named))

    def of(self, arm: str, rows: int) -> Ints:
        """Return the sums of an arm, to be added to."""
        sums = self.sums.get(arm)
        if sums is None:
            sums = self.sums[arm] = np.zeros((rows, CLUSTERS), np.int64)
        return sums

    def merge(self, other: ArmSums) -> None:
        """Add the sums of disjoint users; slates count from where both of them do.

        Both may have other arms: beyond the bound of all of them they are `__other__`.
        """
        for arm, sums in other.sums.items():
            name = arm if arm in self.sums else self.admitted(arm)
            known = self.sums.get(name)
            self.sums[name] = sums.copy() if known is None else known + sums
        self.add_counts(other)
        self.counts_from = max(self.counts_from, other.counts_from, key=_time)
        both = [time for time in (self.earliest, other.earliest) if time is not None]
        self.earliest = min(both, default=None)
        for arm, extremes in other.extremes.items():
            self.widen(arm if arm in self.sums else OTHER, extremes)

    def widen(self, arm: str, extremes: Floats) -> None:
        """Take the extremes of other slates into those of an arm."""
        self.extremes[arm] = widen(self.extremes.get(arm, extremes), extremes)

    def add_counts(self, other: ArmSums) -> None:
        """Add the numbers of slates with an arm, and without one."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def leave_out(self, slates: Sequence[Slate]) -> None:
        """Count slates without an arm."""
        lists = [slate for slate in slates if slate.request is not None]
        self.without_arm += len(slates)
        self.without_arm_fallback += sum(slate.extras & 1 for slate in lists)
        self.without_arm_empty += sum(not slate.booked_impressions for slate in lists)

    def without(self, users: ArmSums) -> ArmSums:
        """Return the sums without those of some `users`."""
        found = copy(self)
        found.sums = {
            arm: sums - users.sums[arm] if arm in users.sums else sums
            for arm, sums in self.sums.items()
        }
        return found

    def state(self) -> dict[str, Any]:
        """Return the sums as plain values."""
        return {
            "key": self.experiment.key,
            "counts_from": self.counts_from,
            "earliest": self.earliest,
            **{name: getattr(self, name) for name in COUNTS},
            "begun": self.begun,
            "sums": {arm: sums.astype("<i8").tobytes() for arm, sums in self.sums.items()},
            "extremes": {arm: both.astype("<f8").tobytes() for arm, both in self.extremes.items()},
        }

    @classmethod
    def of_state(cls, experiment: Experiment, stored: Mapping[str, Any]) -> Self:
        """Return the sums that `state` wrote, for an experiment of that key."""
        assert stored["key"] == experiment.key, "these are the sums of another experiment"
        arms = cls(experiment, stored["counts_from"])
        arms.earliest = stored["earliest"]
        for name in (*COUNTS, "begun"):
            setattr(arms, name, stored[name])
        for arm, sums in stored["sums"].items():
            arms.sums[arm] = np.frombuffer(sums, "<i8").astype(np.int64).reshape(-1, CLUSTERS)
        for arm, both in stored["extremes"].items():
            arms.extremes[arm] = np.frombuffer(both, "<f8").astype(np.float64).reshape(2, -1)
        return arms


def stored_sums(
    experiments: Iterable[Experiment], stored: Mapping[str, Any] | None
) -> list[ArmSums | None]:
    """Return the sums of each experiment in what `ExperimentSums.state` wrote; None where none."""
    known = {one["key"]: one for one in stored["experiments"]} if stored else {}
    return [
        ArmSums.of_state(experiment, known[experiment.key]) if experiment.key in known else None
        for experiment in experiments
    ]


def _time(time: int | None) -> int:
    return NEVER if time is None else time


class Gap(NamedTuple):
    """Slates that the sums of an experiment lack: those with a time from `begin` to `end` (ms)."""

    experiment: Experiment
    begin: int
    end: int


class ExperimentSums:
    """The sums of all experiments of a definition, over the final slates of one partition.

    `arm_sums` are in the order of the experiments. `visits` hold the (user, arm) that nobody has
    taken yet.
    """

    name = "experiments"

    def __init__(
        self, definition: Definition, segments: Segments, aggregates: Sequence[Aggregate]
    ) -> None:
        self.definition = definition
        self.arm_sums = [ArmSums(experiment) for experiment in definition.experiments]
        self._new = self.arm_sums
        self.visits = Visits()
        self._arms_of = [
            _arm_reader(experiment, definition, segments) for experiment in definition.experiments
        ]
        # From when on the fields are read that are no dimensions (ms); None: from the first event.
        self._known_from: dict[str, int | None] = dict.fromkeys(definition.arm_fields)
        self._worths = Worths(definition, aggregates)
        # Slates of arms that have no sums yet, by experiment and arm.
        self._waiting: list[dict[str, list[Slate]]] = [{} for _ in definition.experiments]
        self._only: Mapping[str, Collection[str]] = {}

    def restrict(self, users: Mapping[str, Collection[str]], found: Iterable[ArmSums]) -> None:
        """Add up these users alone, by `Experiment.key`, in the arms that all users had in `found`.

        Other experiments add up nothing. Call it before the first slate.
        """
        self._only = users
        for arms, known in zip(self.arm_sums, found, strict=True):
            arms.counts_from = known.counts_from
            arms.sums = {arm: np.zeros_like(sums) for arm, sums in known.sums.items()}

    def add(self, slates: Sequence[Slate]) -> None:
        """Add slates that became final, in any order."""
        for number, (arms, arm_of) in enumerate(zip(self.arm_sums, self._arms_of, strict=True)):
            by_arm: dict[str, list[Slate]] = {}
            begin, end = arms.bounds
            only = self._only.get(arms.experiment.key, ()) if self._only else None
            for slate in slates if only is None else [one for one in slates if one.user in only]:
                if begin <= slate.time < end:
                    by_arm.setdefault(arm_of(slate), []).append(slate)
            arms.leave_out(by_arm.pop("", ()))
            rest: list[Slate] = []
            for arm, members in by_arm.items():
                if arm in arms.sums or arm in arms.experiment.named_arms:
                    self._add(arms, arm, members)
                elif arms.room:
                    self._waiting[number].setdefault(arm, []).extend(members)
                else:  # perhaps thousands of arms, which count together
                    rest += members
            if rest:
                self._add(arms, OTHER, rest)

    def settling(self) -> Generator[None, None, None]:
        """Admit the new arms, now that every slate before wm - H has been added, in bounded steps.

        Add nothing until the end.
        """
        for arms, waiting in zip(self.arm_sums, self._waiting, strict=True):
            for arm in (yield from _earliest(waiting, arms.room)):
                yield from self._adding(arms, arms.admitted(arm), iter(waiting.pop(arm)))
            yield from self._adding(arms, OTHER, _empty_out(waiting))

    def gaps(self) -> list[Gap]:
        """Return what experiments lack that began before the state knew them.

        These slates were final then, and nothing before `since` is wanted. A field that is no
        dimension is known from the time on at which it was read first.
        """
        gaps = []
        for arms in self.arm_sums:
            experiment, end = arms.experiment, arms.counts_from
            if end is None or experiment.since is None:
                continue
            begin = max(experiment.since, _time(self._known_from.get(experiment.arm)))
            if experiment.until is not None:
                end = min(end, experiment.until)
            if begin < end:
                gaps.append(Gap(experiment, begin, end))
        return gaps

    def fill(self, found: ArmSums, visits: Iterable[Visit], begin: int) -> None:
        """Add all slates of a gap from `begin` (ms) to its end, with the visits of their users.

        From then on the experiment counts from `begin`, so that no slate can be added twice.
        """
        (arms,) = (one for one in self.arm_sums if one.experiment.key == found.experiment.key)
        assert arms.counts_from is not None, "nothing is missing"
        assert begin < arms.counts_from, "they are counted"
        names = {arm: arms.admitted(arm) for arm in sorted(found.sums)}
        for arm, name in names.items():
            sums = arms.of(name, self._worths.rows)
            sums += found.sums[arm]
            self._worths.carry(sums)
            arms.widen(name, found.extremes[arm])
        key = arms.users_key
        self.visits.add(one._replace(experiment=key, arm=names[one.arm]) for one in visits)
        arms.add_counts(found)
        arms.counts_from = begin
        both = [time for time in (arms.earliest, found.earliest) if time is not None]
        arms.earliest = min(both, default=None)

    @property
    def untaken(self) -> int:
        """The number of visits that no call has taken yet."""
        return self.visits.untaken

    def take_visits(self, most: int | None = None, *, for_good: bool = True) -> list[Visit]:
        """Return up to `most` visits (None: all), those that are surely known already left out.

        Store them at once. With `for_good` they are forgotten. Otherwise the next call for good
        returns them again, and checkpoints hold them until then: a store that loses its
        last writes is found out only where a later commit has moved the offset on.
        """
        return self.visits.take(most, for_good=for_good)

    def state(self) -> dict[str, Any]:
        """Return the sums as plain values for a checkpoint; the visits go beside them."""
        return {
            "experiments": [arms.state() for arms in self.arm_sums],
            "known_from": self._known_from,
        }

    def restore(self, stored: Mapping[str, Any] | None, watermark: int | None) -> None:
        """Take the sums from a checkpoint; None where it has none.

        An experiment that the checkpoint does not have counts all slates that are still open. If
        its field was not read before, it counts only slates newer than every event before.
        """
        stored = stored or {"experiments": (), "known_from": {}}
        if watermark is not None:
            for name in self._known_from:
                self._known_from[name] = stored["known_from"].get(name, watermark + 1)
        known = stored_sums(self.definition.experiments, stored)
        self.arm_sums = [
            arms or ArmSums(experiment, self._counts_from(experiment, watermark))
            for experiment, arms in zip(self.definition.experiments, known, strict=True)
        ]
        self._new = [arms for arms in self.arm_sums if arms not in known]

    def restore_visits(self, visits: Iterable[Visit]) -> None:
        """Take the visits from a checkpoint, after `restore`, for the sums that go on."""
        keys = {arms.users_key for arms in self.arm_sums}
        self.visits = Visits()
        self.visits.add(visit for visit in visits if visit.experiment in keys)

    def begin_at(self, offset: int) -> None:
        """Tell the users of sums that begin at `offset` from those who were counted before."""
        for arms in self._new:
            arms.begun = offset

    def _counts_from(self, experiment: Experiment, watermark: int | None) -> int | None:
        """Return the time (ms) from which on an experiment counts that is new to the state."""
        if watermark is None:
            return None
        still_open = watermark - self.definition.horizon
        return max(still_open, self._known_from.get(experiment.arm) or still_open)

    def _adding(self, arms: ArmSums, arm: str, slates: Iterator[Slate]) -> Iterator[None]:
        while part := list(islice(slates, _STEP)):
            self._add(arms, arm, part)
            yield

    def _add(self, arms: ArmSums, arm: str, slates: Sequence[Slate]) -> None:
        earliest = min(slate.time for slate in slates)
        arms.earliest = earliest if arms.earliest is None else min(arms.earliest, earliest)
        arms.with_arm += len(slates)
        extremes, values = self._worths.add(slates, arms.of(arm, self._worths.rows))
        arms.widen(arm, extremes)
        self.visits.note(arms.users_key, arm, slates, values)


def _earliest(
    waiting: Mapping[str, Sequence[Slate]], most: int
) -> Generator[None, None, list[str]]:
    """Return up to `most` arms in the order of their earliest slates, then of their names."""
    best: list[tuple[int, str]] = []
    arms = iter(waiting.items())
    while part := list(islice(arms, _STEP)):
        times = [(min(slate.time for slate in slates), arm) for arm, slates in part]
        best = nsmallest(most, best + times)
        yield
    return [arm for _, arm in best]


def _empty_out(waiting: dict[str, list[Slate]]) -> Iterator[Slate]:
    """Yield all slates; they are freed one by one, as millions at once would hold the loop."""
    while waiting:
        _, slates = waiting.popitem()
        yield from slates


def _arm_reader(
    experiment: Experiment, definition: Definition, segments: Segments
) -> Callable[[Slate], str]:
    """Return the function that reads the arm of a slate, "" where the slate has none."""
    index = definition.labels.index(experiment.arm)

    def read(slate: Slate) -> str:
        # A segment does not tell labels beyond the bound of segments: such slates have details.
        details = slate.details
        labels = segments.values[slate.segment] if details is None else details.labels
        return labels[index] if index < len(labels) else ""

    return read
