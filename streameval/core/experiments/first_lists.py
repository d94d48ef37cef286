"""The first list of each user in an arm: one independent observation a user, by time.

Lists of one user are not independent, but users are. So a share of first lists has bounds that
need no spread and no burn-in (`stats.bounded_means`), and the times of first lists tell whether
the arms kept their shares of the users (`stats.steady_shares`).

The first list is the user's earliest final slate or impression in the arm (ties: the smaller
values). A user of several arms has none. Times fall into buckets: whole minutes, or twice, four
times, … as long where the times span more than `MOST_BUCKETS`. So first lists add up in any order
to the same integers in each bucket. The span only grows: a first list that gave way to an earlier
one still counts in it, and buckets may be longer than the times that are left would need.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from streameval.base.arrays import Ints
from streameval.base.limits import NANO, OTHER
from streameval.core.definition import Definition
from streameval.core.experiments.metrics import ExperimentMetric, metrics_of

MOST_BUCKETS: Final = 128
"""The largest number of buckets of time."""
FINEST_MS: Final = 60_000

FirstValues = tuple[int, ...]
"""The values of a slate, as in `first_rows` without the users."""
FirstList = tuple[int, FirstValues]
"""The time (ms) of a slate, and its values. The least wins."""


def first_rows(definition: Definition) -> tuple[str, ...]:
    """Return the names of the rows of first lists.

    These are `users`, the denominators of shares (the users whose first list has one), and the
    shares (their sum in nano-units, over these users).
    """
    shares = [metric for metric in metrics_of(definition).values() if metric.is_share]
    denominators = dict.fromkeys(metric.denominator for metric in shares)
    return ("users", *denominators, *(metric.name for metric in shares))


def first_share(metric: ExperimentMetric, numerator: int, denominator: int) -> int | None:
    """Return a slate's share in nano-units; None where it has no denominator."""
    return round(numerator * NANO / (metric.unit * denominator)) if denominator else None


@dataclass(slots=True)
class FirstLists:
    """Sums of first lists: `sums` by (bucket, arm), int64 (rows,) as in `first_rows`.

    `begin` and `end` are the earliest and the latest time (ms) of a first list that was ever added.
    A bucket covers [bucket * width, (bucket + 1) * width) ms since the epoch.
    """

    begin: int | None = None
    end: int | None = None
    sums: dict[tuple[int, str], Ints] = field(default_factory=dict)

    @property
    def width(self) -> int:
        """The length of a bucket in ms."""
        return width_of(self.begin or 0, self.end or 0)

    def change(self, arm: str, time: int, values: Ints, sign: int) -> None:
        """Add the first list of a user (`sign` 1), or take it away again (-1)."""
        self._widen(time, time)
        self._add(time // self.width, arm, sign * values)

    def merge(self, other: FirstLists) -> None:
        """Add the first lists of disjoint users."""
        if other.begin is None or other.end is None:
            return
        self._widen(other.begin, other.end)
        width = other.width
        for (bucket, arm), values in other.sums.items():
            self._add(bucket * width // self.width, arm, values)

    def within(self, arms: Collection[str]) -> FirstLists:
        """Return the sums with all other arms as `__other__`."""
        found = FirstLists(self.begin, self.end)
        for (bucket, arm), values in self.sums.items():
            found._add(bucket, arm if arm in arms else OTHER, values)
        return found

    def by_time(self, arm: str, rows: int) -> Iterator[tuple[int, Ints]]:
        """Yield the begin of each bucket (ms), and the sums of an arm in it, int64 (rows,).

        Every arm has the same buckets: those in which any arm has a user.
        """
        nothing = np.zeros(rows, np.int64)
        for bucket in sorted({bucket for bucket, _ in self.sums}):
            yield bucket * self.width, self.sums.get((bucket, arm), nothing)

    def _widen(self, begin: int, end: int) -> None:
        before = self.width
        self.begin = begin if self.begin is None else min(self.begin, begin)
        self.end = end if self.end is None else max(self.end, end)
        if self.width != before:
            factor, sums = self.width // before, self.sums
            self.sums = {}
            for (bucket, arm), values in sums.items():
                self._add(bucket // factor, arm, values)

    def _add(self, bucket: int, arm: str, values: Ints) -> None:
        known = self.sums.get((bucket, arm))
        total = values if known is None else known + values
        if total.any():
            self.sums[bucket, arm] = total
        else:  # whoever came here first has crossed, or came earlier
            del self.sums[bucket, arm]


def width_of(begin: int, end: int) -> int:
    """Return the shortest length of a bucket (ms) of which `MOST_BUCKETS` span `begin` to `end`."""
    width = FINEST_MS
    while end // width - begin // width >= MOST_BUCKETS:
        width *= 2
    return width
