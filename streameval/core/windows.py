"""Sliding windows over panes of event time: running integer sums, live and matured.

Rules of this file (W size, S slide, H = A + L, T the reading time, wm the watermark):

1. Pane p covers [p*S, (p+1)*S). Live: the W/S panes ending with the one that holds T. Matured: the
   W/S panes that end at or before T - H.
2. A pane is a log of rows; a row adds to (or takes back from) the counts of one *cell*, that is one
   (user, segment), or the scores of one (segment, cluster).
3. Each basis keeps the sum of its panes per cell. A row is added where its pane is in the window, a
   pane is added when it enters and subtracted when it leaves. All integers: nothing drifts.
4. A pane whose end is at or before wm - H cannot change: its rows are summed up once. It is dropped
   when it has left the matured window by the watermark (T is never behind it).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from streameval.core.definition import Window
from streameval.core.limits import CLUSTERS

Ints = npt.NDArray[np.int64]
SmallInts = npt.NDArray[np.int32]


def cluster_of(user_id: str) -> int:
    """The cluster of a user in standard errors: crc32 of the UTF-8 bytes, & 255."""
    return crc32(user_id.encode()) & (CLUSTERS - 1)


class Cells:
    """The numbering of (user, segment); rows and sums are indexed by it.

    `users` and `segments` are parallel, by cell.
    """

    def __init__(self) -> None:
        self.users: list[str] = []
        self.segments: list[int] = []
        self._index: dict[int, dict[str, int]] = {}
        self._segment_array = np.empty(0, np.int64)
        self._cluster_array = np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self.users)

    def of_segment(self, segment: int) -> dict[str, int]:
        """User id to cell of one segment; the hot path looks up here and adds what is missing."""
        index = self._index.get(segment)
        if index is None:
            index = self._index[segment] = {}
        return index

    def of(self, user_id: str, segment: int) -> int:
        """The number of the cell, a new one if need be."""
        index = self.of_segment(segment)
        cell = index.get(user_id)
        if cell is None:
            cell = index[user_id] = len(self.users)
            self.users.append(user_id)
            self.segments.append(segment)
        return cell

    def arrays(self) -> tuple[Ints, Ints]:
        """Segment and cluster by cell, int64 (cells,)."""
        known = len(self._segment_array)
        if known < len(self.users):
            clusters = [cluster_of(user_id) for user_id in self.users[known:]]
            self._segment_array = np.concatenate(
                (self._segment_array, np.array(self.segments[known:], np.int64))
            )
            self._cluster_array = np.concatenate(
                (self._cluster_array, np.array(clusters, np.int64))
            )
        return self._segment_array, self._cluster_array


class Counts(NamedTuple):
    """Rows of counts, parallel int32 arrays: impressions and slates by cell."""

    cells: SmallInts
    impressions: SmallInts
    slates: SmallInts


class Positives(NamedTuple):
    """Rows of positives, parallel int32 arrays: by cell and index of the kind."""

    cells: SmallInts
    kinds: SmallInts
    positives: SmallInts


class Scores(NamedTuple):
    """Rows of scores: key = segment * 256 + cluster (int32), values int64 (n, columns).

    Column 0 counts slates with a positive, the others are sums of nano-units.
    """

    keys: SmallInts
    values: Ints


@dataclass(slots=True)
class Rows:
    """What one flush changes, before it is spread over panes: parallel lists with the time."""

    times: list[int] = field(default_factory=list)
    cells: list[int] = field(default_factory=list)
    impressions: list[int] = field(default_factory=list)
    slates: list[int] = field(default_factory=list)
    positive_times: list[int] = field(default_factory=list)
    positive_cells: list[int] = field(default_factory=list)
    positive_kinds: list[int] = field(default_factory=list)
    positives: list[int] = field(default_factory=list)
    score_times: list[int] = field(default_factory=list)
    score_keys: list[int] = field(default_factory=list)
    score_values: Ints = field(default_factory=lambda: np.empty((0, 1), np.int64))


@dataclass(slots=True)
class Pane:
    """The rows of one pane; after `settle` one array of each."""

    counts: list[Counts] = field(default_factory=list)
    positives: list[Positives] = field(default_factory=list)
    scores: list[Scores] = field(default_factory=list)
    settled: bool = False

    def settle(self) -> None:
        """Sum up rows of the same cell or key."""
        if self.counts:
            self.counts = _sum_counts(self.counts)
        if self.positives:
            self.positives = _sum_positives(self.positives)
        if self.scores:
            self.scores = _sum_scores(self.scores)
        self.settled = True


def _sum_counts(rows: list[Counts]) -> list[Counts]:
    cells, inverse = np.unique(np.concatenate([r.cells for r in rows]), return_inverse=True)
    impressions = np.zeros(len(cells), np.int32)
    np.add.at(impressions, inverse, np.concatenate([r.impressions for r in rows]))
    slates = np.zeros(len(cells), np.int32)
    np.add.at(slates, inverse, np.concatenate([r.slates for r in rows]))
    keep = (impressions != 0) | (slates != 0)
    return [Counts(cells[keep], impressions[keep], slates[keep])] if keep.any() else []


def _sum_positives(rows: list[Positives]) -> list[Positives]:
    cells = np.concatenate([r.cells for r in rows]).astype(np.int64)
    kinds = np.concatenate([r.kinds for r in rows]).astype(np.int64)
    width = int(kinds.max()) + 1
    keys, inverse = np.unique(cells * width + kinds, return_inverse=True)
    sums = np.zeros(len(keys), np.int32)
    np.add.at(sums, inverse, np.concatenate([r.positives for r in rows]))
    keep = sums != 0
    keys = keys[keep]
    summed = Positives(
        (keys // width).astype(np.int32), (keys % width).astype(np.int32), sums[keep]
    )
    return [summed] if len(keys) else []


def _sum_scores(rows: list[Scores]) -> list[Scores]:
    keys, inverse = np.unique(np.concatenate([r.keys for r in rows]), return_inverse=True)
    values = np.concatenate([r.values for r in rows])
    sums = np.zeros((len(keys), values.shape[1]), np.int64)
    np.add.at(sums, inverse, values)
    keep = sums.any(axis=1)
    return [Scores(keys[keep], sums[keep])] if keep.any() else []


class Totals:
    """The sum of the panes of one basis: by cell, and by (segment, cluster) for scores."""

    def __init__(self, kinds: int, columns: int) -> None:
        self.impressions = np.zeros(0, np.int64)
        self.slates = np.zeros(0, np.int64)
        self.positives = [np.zeros(0, np.int64) for _ in range(kinds)]
        self.scores = np.zeros((0, columns), np.int64)

    def fit(self, cells: int, segments: int) -> None:
        """Make room; grows by doubling."""
        if cells > len(self.impressions):
            room = max(1024, 2 * cells) - len(self.impressions)
            self.impressions = np.pad(self.impressions, (0, room))
            self.slates = np.pad(self.slates, (0, room))
            self.positives = [np.pad(values, (0, room)) for values in self.positives]
        if segments * CLUSTERS > len(self.scores):
            room = segments * CLUSTERS - len(self.scores)
            self.scores = np.pad(self.scores, ((0, room), (0, 0)))

    def keep(self, cells: npt.NDArray[np.intp]) -> None:
        """Keep only `cells`, numbered anew in that order."""
        self.impressions = self.impressions[cells]
        self.slates = self.slates[cells]
        self.positives = [values[cells] for values in self.positives]

    def add(self, counts: Counts, sign: int) -> None:
        """Add (or take back) rows of counts."""
        np.add.at(self.impressions, counts.cells, sign * counts.impressions.astype(np.int64))
        np.add.at(self.slates, counts.cells, sign * counts.slates.astype(np.int64))

    def add_positives(self, rows: Positives, sign: int) -> None:
        """Add (or take back) rows of positives."""
        for kind, values in enumerate(self.positives):
            chosen = rows.kinds == kind
            np.add.at(values, rows.cells[chosen], sign * rows.positives[chosen].astype(np.int64))

    def add_scores(self, rows: Scores, sign: int) -> None:
        """Add (or take back) rows of scores."""
        np.add.at(self.scores, rows.keys, sign * rows.values)

    def add_pane(self, pane: Pane, sign: int) -> None:
        """Add (or take back) a whole pane."""
        for counts in pane.counts:
            self.add(counts, sign)
        for positives in pane.positives:
            self.add_positives(positives, sign)
        for scores in pane.scores:
            self.add_scores(scores, sign)


class Basis:
    """One basis of a window: the range of its panes (inclusive) and their sum."""

    def __init__(self, totals: Totals) -> None:
        self.totals = totals
        self.first = 0
        self.last = -1

    def move(self, panes: dict[int, Pane], first: int, last: int) -> None:
        """Slide to panes `first`..`last`: take back what leaves, add what enters."""
        if (first, last) == (self.first, self.last):
            return
        for number, pane in panes.items():
            was = self.first <= number <= self.last
            now = first <= number <= last
            if was != now:
                self.totals.add_pane(pane, 1 if now else -1)
        self.first, self.last = first, last


class WindowState:
    """The panes and both bases of one window of one partition."""

    def __init__(self, window: Window, horizon: int, kinds: int, columns: int) -> None:
        self.window = window
        self.horizon = horizon
        self.panes: dict[int, Pane] = {}
        self.live = Basis(Totals(kinds, columns))
        self.matured = Basis(Totals(kinds, columns))
        self.last_settled: int | None = None

    def last_matured(self, time: int) -> int:
        """The last pane that ends at or before `time` - H."""
        return (time - self.horizon) // self.window.slide - 1

    def fit(self, cells: int, segments: int) -> None:
        """Make room in both bases."""
        self.live.totals.fit(cells, segments)
        self.matured.totals.fit(cells, segments)

    def add(self, rows: Rows) -> None:
        """Spread the rows of a flush over the panes and the sums that hold them.

        Rows of panes settled already are left out: that happens only while a checkpoint is
        restored, whose settled panes were written whole.
        """
        slide = self.window.slide
        if rows.times:
            columns = (rows.cells, rows.impressions, rows.slates)
            for number, (cells, impressions, slates) in _by_pane(rows.times, columns, slide):
                self._add(number, Pane(counts=[Counts(cells, impressions, slates)]))
        if rows.positive_times:
            columns = (rows.positive_cells, rows.positive_kinds, rows.positives)
            for number, (cells, kinds, values) in _by_pane(rows.positive_times, columns, slide):
                self._add(number, Pane(positives=[Positives(cells, kinds, values)]))
        if rows.score_times:
            keys = np.array(rows.score_keys, np.int32)
            for number, chosen in _groups(np.array(rows.score_times, np.int64) // slide):
                self._add(number, Pane(scores=[Scores(keys[chosen], rows.score_values[chosen])]))

    def _add(self, number: int, rows: Pane) -> None:
        if self.last_settled is not None and number <= self.last_settled:
            return
        pane = self.panes.get(number)
        if pane is None:
            pane = self.panes[number] = Pane()
        pane.counts += rows.counts
        pane.positives += rows.positives
        pane.scores += rows.scores
        for basis in (self.live, self.matured):
            if basis.first <= number <= basis.last:
                basis.totals.add_pane(rows, 1)

    def read_at(self, time: int) -> None:
        """Move both bases to the reading time T (ms), which never goes back."""
        panes = self.window.panes
        last = time // self.window.slide
        self.live.move(self.panes, last - panes + 1, last)
        last = self.last_matured(time)
        self.matured.move(self.panes, last - panes + 1, last)

    def settle(self, watermark: int) -> list[int]:
        """Sum up the panes that can no longer change, drop those out of every window.

        Answers the numbers of the panes settled now, in order. Call after `read_at`.
        """
        last = self.last_matured(watermark)
        oldest = last - self.window.panes + 1
        if self.last_settled is not None and last <= self.last_settled:
            return []
        settled = sorted(n for n, p in self.panes.items() if oldest <= n <= last and not p.settled)
        for number in settled:
            self.panes[number].settle()
        for number in [n for n in self.panes if n < oldest]:
            del self.panes[number]
        self.last_settled = last
        return settled

    def both(self) -> list[Pane]:
        """The panes that are in the live and in the matured window (for maturity)."""
        first, last = self.live.first, self.matured.last
        return [pane for number, pane in self.panes.items() if first <= number <= last]


def renumber(states: list[WindowState], cells: Cells) -> Cells:
    """Drop the cells that no pane holds any more, if they are most; answers the numbering.

    Their sums are zero in every basis, since a sum is that of the panes.
    """
    used = np.zeros(len(cells), np.bool_)
    for state in states:
        for pane in state.panes.values():
            for counts in pane.counts:
                used[counts.cells] = True
            for positives in pane.positives:
                used[positives.cells] = True
    kept = np.flatnonzero(used)
    if 2 * len(kept) > len(cells):
        return cells
    fresh = Cells()
    for cell in kept.tolist():
        fresh.of(cells.users[cell], cells.segments[cell])
    numbers = np.full(len(cells), -1, np.int32)
    numbers[kept] = np.arange(len(kept), dtype=np.int32)
    for state in states:
        for pane in state.panes.values():
            pane.counts = [rows._replace(cells=numbers[rows.cells]) for rows in pane.counts]
            pane.positives = [rows._replace(cells=numbers[rows.cells]) for rows in pane.positives]
        for basis in (state.live, state.matured):
            basis.totals.keep(kept)
    return fresh


def _by_pane(
    times: list[int], columns: tuple[list[int], list[int], list[int]], slide: int
) -> list[tuple[int, tuple[SmallInts, SmallInts, SmallInts]]]:
    a, b, c = (np.array(column, np.int32) for column in columns)
    groups = _groups(np.array(times, np.int64) // slide)
    return [(number, (a[chosen], b[chosen], c[chosen])) for number, chosen in groups]


def _groups(panes: Ints) -> list[tuple[int, Ints]]:
    """The indices of each pane's rows, in order."""
    order = np.argsort(panes, kind="stable")
    numbers, starts = np.unique(panes[order], return_index=True)
    return list(zip(numbers.tolist(), np.split(order, starts[1:]), strict=True))
