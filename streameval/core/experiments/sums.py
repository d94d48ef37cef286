"""Sums of experiments: each final slate of an experiment is added once to the sums of its arm.

A slate is final once its time is before wm - H (rule 4 of `attribution`). Its worth is then added
to sums that only grow, and nothing is ever retracted. After `Partition.finalizing` the sums hold
exactly the slates before wm - H, with the watermark of the last flush. All are integers, by cluster
of users, so they add up in any order to the same bits.

New arms take the room that is left in the order of their earliest slates, so slates of a new arm
wait until all slates before wm - H have come (`settling`). Once no room is left, none waits.

The arm of a slate is the value that its earliest event gives the experiment's field (ties: the
smaller value). If the field is a dimension, the slate's segment has it. A slate without such a
value takes no part in the experiment.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import accumulate, islice
from typing import Any, Final, NamedTuple, Self

import numpy as np

from streameval.base.arrays import Floats, Ints
from streameval.base.limits import CLUSTERS, MAX_TS, OTHER
from streameval.core.definition import Definition
from streameval.core.experiments.definition import MAX_ARMS, Experiment
from streameval.core.experiments.metrics import row_names, valued
from streameval.core.experiments.users import Visit
from streameval.core.ledger import Rows
from streameval.core.marks import NEVER
from streameval.core.segments import Segments
from streameval.core.slate import Slate
from streameval.core.windows.aggregate import Active, Aggregate, CellAggregate, ClusteredAggregate
from streameval.core.windows.cells import Cells, cluster_of
from streameval.core.windows.scores import UNFOLLOWED
from streameval.core.windows.tables import CellTotals, SparseTotals, Totals, starts
from streameval.core.windows.values import HALF, LOW

# Worths of slates that are remembered, some 400 bytes each: most slates have one of a few.
_MOST_WORTHS: Final = 4_096
# Slates added in one step, and new arms compared in one: 2 ms.
_STEP: Final = 1_000
# Users of an arm that are known to be noted, 50 bytes each; beyond, all come again.
MOST_VISITS: Final = 100_000

Worth = tuple[int, bool, Any, Any, int]
"""The inputs of a slate's sums, beside its values and its latency."""


class ArmSums:
    """The sums of one experiment: `sums` by arm, int64 (rows, 256), rows as in `row_names`.

    `counts_from` (ms) is set where the state is older than the experiment in it: slates before are
    missing. `earliest` is the time (ms) of the earliest slate that is counted. Both are None where
    there is no such time. `without_arm` counts the slates of its time that have no arm; a fill adds
    none. `begun` is the offset at which the sums of a partition began in a log that had been read
    before, else None. Sums of disjoint users add up (`merge`).
    """

    def __init__(self, experiment: Experiment, counts_from: int | None = None) -> None:
        self.experiment = experiment
        self.counts_from = counts_from
        self.earliest: int | None = None
        self.without_arm = 0
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
        self.without_arm += other.without_arm
        self.counts_from = max(self.counts_from, other.counts_from, key=_time)
        both = [time for time in (self.earliest, other.earliest) if time is not None]
        self.earliest = min(both, default=None)

    def state(self) -> dict[str, Any]:
        """Return the sums as plain values."""
        return {
            "key": self.experiment.key,
            "counts_from": self.counts_from,
            "earliest": self.earliest,
            "without_arm": self.without_arm,
            "begun": self.begun,
            "sums": {arm: sums.astype("<i8").tobytes() for arm, sums in self.sums.items()},
        }

    @classmethod
    def of_state(cls, experiment: Experiment, stored: Mapping[str, Any]) -> Self:
        """Return the sums that `state` wrote, for an experiment of that key."""
        assert stored["key"] == experiment.key, "these are the sums of another experiment"
        arms = cls(experiment, stored["counts_from"])
        arms.earliest = stored["earliest"]
        # States of the same format that are older do not have it.
        arms.without_arm = stored.get("without_arm", 0)
        arms.begun = stored.get("begun")
        for arm, sums in stored["sums"].items():
            arms.sums[arm] = np.frombuffer(sums, "<i8").astype(np.int64).reshape(-1, CLUSTERS)
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
        self.visits: dict[Visit, None] = {}
        self._lent = 0
        self._arms_of = [
            _arm_reader(experiment, definition, segments) for experiment in definition.experiments
        ]
        # From when on the fields are read that are no dimensions (ms); None: from the first event.
        self._known_from: dict[str, int | None] = dict.fromkeys(definition.arm_fields)
        self._worths = Worths(definition, aggregates)
        self._met: dict[tuple[str, str], set[str]] = {}
        # Slates of arms that have no sums yet, by experiment and arm.
        self._waiting: list[dict[str, list[Slate]]] = [{} for _ in definition.experiments]

    def add(self, slates: Sequence[Slate]) -> None:
        """Add slates that became final, in any order."""
        for number, (arms, arm_of) in enumerate(zip(self.arm_sums, self._arms_of, strict=True)):
            by_arm: dict[str, list[Slate]] = {}
            begin, end = arms.bounds
            for slate in slates:
                if begin <= slate.time < end:
                    by_arm.setdefault(arm_of(slate), []).append(slate)
            arms.without_arm += len(by_arm.pop("", ()))
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
            yield from self._adding(arms, OTHER, _emptied(waiting))

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
        for visit in visits:
            self.visits[Visit(visit.user, arms.users_key, names[visit.arm])] = None
        arms.counts_from = begin
        both = [time for time in (arms.earliest, found.earliest) if time is not None]
        arms.earliest = min(both, default=None)

    @property
    def untaken(self) -> int:
        """The number of visits that no call has taken yet."""
        return len(self.visits) - self._lent

    def take_visits(self, most: int | None = None, *, for_good: bool = True) -> list[Visit]:
        """Return up to `most` visits (None: all), those that are surely known already left out.

        Store them at once. With `for_good` they are forgotten. Otherwise the next call for good
        returns them again, and checkpoints hold them until then: a store that loses its
        last writes is found out only where a later commit has moved the offset on.
        """
        begin = 0 if for_good else self._lent
        visits = list(islice(self.visits, begin, None if most is None else begin + most))
        if for_good:
            for visit in visits:
                del self.visits[visit]
            self._lent = max(0, self._lent - len(visits))
        else:
            self._lent += len(visits)
        return visits

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
        self.visits = {visit: None for visit in visits if visit.experiment in keys}

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
        self._worths.add(slates, arms.of(arm, self._worths.rows))
        self._visit(arms.users_key, arm, slates)

    def _visit(self, key: str, arm: str, slates: Iterable[Slate]) -> None:
        """Note the users of slates, unless they are known to have been noted."""
        met = self._met.setdefault((key, arm), set())
        fresh = {slate.user for slate in slates} - met
        if len(met) + len(fresh) > MOST_VISITS:
            met.clear()
        met |= fresh
        for user in fresh:
            self.visits[Visit(user, key, arm)] = None


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


def _emptied(waiting: dict[str, list[Slate]]) -> Iterator[Slate]:
    """Yield all slates; they are freed one by one, as millions at once would hold the loop."""
    while waiting:
        _, slates = waiting.popitem()
        yield from slates


def _arm_reader(
    experiment: Experiment, definition: Definition, segments: Segments
) -> Callable[[Slate], str]:
    """Return the function that reads the arm of a slate, "" where the slate has none."""
    index = definition.labels.index(experiment.arm)
    if index < len(definition.dimensions):
        return lambda slate: segments.values[slate.segment][index]

    def from_details(slate: Slate) -> str:
        labels = () if slate.details is None else slate.details.labels
        return labels[index] if index < len(labels) else ""

    return from_details


class Worths:
    """The rows that slates add to the sums, by the aggregates of the windows.

    Slates repeat, so the columns of slates seen before are remembered. Values and latencies, which
    hardly repeat, are added one by one.
    """

    def __init__(self, definition: Definition, aggregates: Sequence[Aggregate]) -> None:
        names = row_names(definition)
        self.rows = len(names)
        self._aggregates = aggregates
        self._clustered = [
            (index, aggregate)
            for index, aggregate in enumerate(aggregates)
            if isinstance(aggregate, ClusteredAggregate) and aggregate.by_worth
        ]
        self._latencies = names.index("latencies")
        self._slates, self._abandoned = names.index("slates"), names.index("abandoned")
        kinds = valued(definition)
        self._first_half = self.rows - 2 * len(kinds)
        self._halves = {
            definition.kinds.index(kind): self._first_half + 2 * number
            for number, kind in enumerate(kinds)
        }
        ends = accumulate(aggregate.cluster_rows for _, aggregate in self._clustered)
        assert max(ends) == self._first_half, "each row has a name"
        self._index: dict[Worth, int] = {}
        self._columns = np.zeros((_MOST_WORTHS, self._first_half), np.int64)

    def add(self, slates: Sequence[Slate], sums: Ints) -> None:
        """Add slates to `sums`, int64 (rows, 256)."""
        for start in range(0, len(slates), _MOST_WORTHS):
            part = slates[start : start + _MOST_WORTHS]
            clusters = np.array([cluster_of(slate.user) for slate in part])
            order = np.argsort(clusters, kind="stable")
            begins = starts(clusters[order])
            found = np.add.reduceat(self._columns_of(part)[order], begins, axis=0)
            sums[: self._first_half, clusters[order][begins]] += found.T
            self._add_amounts(part, clusters, sums)

    def _add_amounts(self, slates: Sequence[Slate], clusters: Ints, sums: Ints) -> None:
        # A latency is stored as us + 1, times 2.
        extras = [0 if slate.request is None else slate.extras >> 1 for slate in slates]
        latencies = np.array(extras, np.int64)
        measured = latencies > 0
        np.add.at(sums[self._latencies], clusters[measured], 1)
        np.add.at(sums[self._latencies + 1], clusters[measured], latencies[measured] - 1)
        for slate, cluster in zip(slates, clusters.tolist(), strict=True):
            for kind, micro in slate.booked.values:
                row = self._halves[kind]
                low = int(sums[row + 1, cluster]) + (micro & LOW)
                # The lower half stays below 2**30: equal sums have equal bits.
                sums[row, cluster] += (micro >> HALF) + (low >> HALF)
                sums[row + 1, cluster] = low & LOW

    def carry(self, sums: Ints) -> None:
        """Bring the lower halves of values below 2**30, where they are sums of two."""
        for row in self._halves.values():
            sums[row] += sums[row + 1] >> HALF
            sums[row + 1] &= LOW

    def _columns_of(self, slates: Sequence[Slate]) -> Ints:
        """Return the rows of each slate, int64 (slates, rows), without values and latencies."""
        worths = [_worth(slate) for slate in slates]
        known = self._index
        fresh = {w: slate for w, slate in zip(worths, slates, strict=True) if w not in known}
        if len(known) + len(fresh) > _MOST_WORTHS:
            known.clear()
            fresh = dict(zip(worths, slates, strict=True))
        if fresh:
            first = len(known)
            self._columns[first : first + len(fresh)] = self._computed(list(fresh.values()))
            known |= {worth: first + number for number, worth in enumerate(fresh)}
        return self._columns[[known[worth] for worth in worths]]

    def _computed(self, slates: Sequence[Slate]) -> Ints:
        cells = Cells()
        rows = Rows(*(aggregate.rows() for aggregate in self._aggregates))
        for number, slate in enumerate(slates):
            _book(slate, cells.of("", number), rows)
        segments, clusters = cells.arrays()
        keys = segments * CLUSTERS + clusters
        active = Active(keys, np.arange(len(keys)), np.ones(len(keys), np.bool_))
        columns = np.concatenate(
            [
                _sums(aggregate, _totals(aggregate, rows[index], cells), active)
                for index, aggregate in self._clustered
            ]
        )
        # The windows count lists with a positive.
        columns[self._abandoned] = columns[self._slates] - columns[self._abandoned]
        return columns.T


def _worth(slate: Slate) -> Worth:
    booked, has_request = slate.booked, slate.request is not None
    fallback = slate.extras & 1 if has_request else 0
    return slate.booked_impressions, has_request, booked.positives, booked.hits, fallback


def _totals(aggregate: Aggregate, rows: Any, cells: Cells) -> Totals:
    totals = aggregate.totals()
    totals.fit(len(cells))
    totals.add(aggregate.table(rows, cells).table, 1)
    return totals


def _book(slate: Slate, cell: int, rows: Rows) -> None:
    """Book the worth of a slate, without values and latency."""
    positives, relevant, *_ = slate.booked
    is_slate = 0 if slate.request is None else 1
    rows.counts.add(slate.time, cell, slate.booked_impressions, is_slate)
    for kind, count in enumerate(positives or ()):
        if count:
            rows.positives.add(slate.time, cell, kind, count)
    if relevant is not None:
        rows.scores.add(slate.time, cell, relevant, 1, UNFOLLOWED)
    if slate.booked_list is not None:
        rows.lists.add(slate.time, cell, None, slate.booked_list)


def _sums(aggregate: ClusteredAggregate, totals: Totals, active: Active) -> Ints:
    """Return the sums of slates, each of which is a user of a segment of its own."""
    if isinstance(aggregate, CellAggregate) and isinstance(totals, CellTotals):
        return aggregate.cluster_sums(totals.of_cells(active.columns), active)
    assert isinstance(totals, SparseTotals)
    return totals.of(active.there).T
