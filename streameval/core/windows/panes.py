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

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeVar
from zlib import crc32

import numpy as np
import numpy.typing as npt

from streameval.base.arrays import Ints
from streameval.base.limits import CLUSTERS
from streameval.core.definition import Window
from streameval.core.metrics import RelevantItems, Scorer

SmallInts = npt.NDArray[np.int32]

# Arrays of one sort in a pane, beyond which they are summed up: a pane of 15 minutes gets three
# with each flush, and each is an object.
MAX_PIECES: Final = 64


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


R = TypeVar("R", Counts, Positives, Scores)


class Columns(NamedTuple):
    """`Rows` as arrays, with their times (ms)."""

    times: Ints
    counts: Counts
    positive_times: Ints
    positives: Positives
    score_times: Ints
    scores: Scores


@dataclass(slots=True)
class Rows:
    """What flushes change, before it is spread over panes: parallel lists with the time."""

    times: list[int] = field(default_factory=list)
    cells: list[int] = field(default_factory=list)
    impressions: list[int] = field(default_factory=list)
    slates: list[int] = field(default_factory=list)
    positive_times: list[int] = field(default_factory=list)
    positive_cells: list[int] = field(default_factory=list)
    positive_kinds: list[int] = field(default_factory=list)
    positives: list[int] = field(default_factory=list)
    score_times: list[int] = field(default_factory=list)
    score_cells: list[int] = field(default_factory=list)
    rankings: list[RelevantItems] = field(default_factory=list)
    signs: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.times) + len(self.positive_times) + len(self.score_times)

    def add_positives(self, time: int, cell: int, kind: int, count: int) -> None:
        """Positives of one kind, to take back where `count` is negative."""
        self.positive_times.append(time)
        self.positive_cells.append(cell)
        self.positive_kinds.append(kind)
        self.positives.append(count)

    def add_ranking(self, time: int, cell: int, ranking: RelevantItems, sign: int) -> None:
        """A slate to score, or (-1) to take back."""
        self.score_times.append(time)
        self.score_cells.append(cell)
        self.rankings.append(ranking)
        self.signs.append(sign)

    def extend(self, more: Rows) -> None:
        """Append the rows of another flush."""
        for column in fields(self):
            getattr(self, column.name).extend(getattr(more, column.name))

    def columns(self, cells: Cells, scorer: Scorer) -> Columns:
        """The same as arrays; scores are kept by the cluster of their cell.

        Of each ranking one row of scores; column 0 counts the slate.
        """
        segments, clusters = cells.arrays()
        scored = np.array(self.score_cells, np.int64)
        keys = (segments[scored] * CLUSTERS + clusters[scored]).astype(np.int32)
        signs = np.array(self.signs, np.int64)[:, np.newaxis]
        scores = np.concatenate((signs, signs * scorer.score(self.rankings)), axis=1)
        counts = (self.cells, self.impressions, self.slates)
        positives = (self.positive_cells, self.positive_kinds, self.positives)
        return Columns(
            np.array(self.times, np.int64),
            Counts(*(np.array(column, np.int32) for column in counts)),
            np.array(self.positive_times, np.int64),
            Positives(*(np.array(column, np.int32) for column in positives)),
            np.array(self.score_times, np.int64),
            Scores(keys, scores),
        )


@dataclass(slots=True)
class Pane:
    """The rows of one pane, which do not change any more once it is `settled`."""

    counts: list[Counts] = field(default_factory=list)
    positives: list[Positives] = field(default_factory=list)
    scores: list[Scores] = field(default_factory=list)
    settled: bool = False

    @property
    def pieces(self) -> int:
        """How many arrays of one sort it holds, at most."""
        return max(len(self.counts), len(self.positives), len(self.scores))

    @property
    def rows(self) -> int:
        """The length of its longest array."""
        arrays = (*self.counts, *self.positives, *self.scores)
        return max((len(rows[0]) for rows in arrays), default=0)

    def part(self, start: int, end: int) -> Pane:
        """The rows `start` to `end` of each array, views of them."""
        chosen = slice(start, end)
        return Pane(
            [_picked(rows, chosen) for rows in self.counts if len(rows[0]) > start],
            [_picked(rows, chosen) for rows in self.positives if len(rows[0]) > start],
            [_picked(rows, chosen) for rows in self.scores if len(rows[0]) > start],
            settled=self.settled,
        )


def sum_up(panes: Sequence[Pane]) -> None:
    """Sum up the rows of the same cell or key in each pane: all panes in one go."""
    if not panes:
        return
    counts = _sums([[(r.cells, r.impressions, r.slates) for r in p.counts] for p in panes])
    for pane, found in zip(panes, counts, strict=True):
        pane.counts = [Counts(_small(keys), *map(_small, sums)) for keys, sums in found]
    kinds = 1 + max((int(r.kinds.max()) for p in panes for r in p.positives), default=0)
    keyed = [
        [(r.cells.astype(np.int64) * kinds + r.kinds, r.positives) for r in p.positives]
        for p in panes
    ]
    for pane, found in zip(panes, _sums(keyed), strict=True):
        pane.positives = [
            Positives(_small(keys // kinds), _small(keys % kinds), *map(_small, sums))
            for keys, sums in found
        ]
    scores = _sums([[(r.keys, r.values) for r in p.scores] for p in panes])
    for pane, found in zip(panes, scores, strict=True):
        pane.scores = [Scores(_small(keys), *sums) for keys, sums in found]


def _small(values: Ints) -> SmallInts:
    return values.astype(np.int32)


Summed = list[tuple[Ints, list[Any]]]
"""Keys, ascending, and their sums in one or several columns: of a pane one such pair, or none."""


def _sums(panes: list[list[tuple[Any, ...]]]) -> list[Summed]:
    """Sum up the (keys, column, ...) of each pane by key; keys with only zeros are left out."""
    pieces = [piece for rows in panes for piece in rows]
    if not pieces:
        return [[] for _ in panes]
    keys, *columns = _joined(pieces)
    width = int(keys.max()) + 1
    sizes = [sum(len(piece[0]) for piece in rows) for rows in panes]
    keys = np.repeat(np.arange(len(panes)) * width, sizes) + keys
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    starts = _starts(keys)
    sums = [np.add.reduceat(column[order], starts) for column in columns]
    keep = np.any([np.any(np.atleast_2d(found.T), axis=0) for found in sums], axis=0)
    keys = keys[starts][keep]
    sums = [found[keep] for found in sums]
    ends = np.searchsorted(keys, np.arange(len(panes) + 1) * width).tolist()
    return [
        [(keys[start:end] - number * width, [found[start:end] for found in sums])]
        if start < end
        else []
        for number, (start, end) in enumerate(pairwise(ends))
    ]


def _grown(values: Ints, size: int) -> Ints:
    """The same and zeros after it. What nobody writes to takes no memory: `pad` would write."""
    grown = np.zeros((size, *values.shape[1:]), np.int64)
    grown[: len(values)] = values
    return grown


class ScoreSums:
    """Sums of scores of the (segment, cluster) that have any: most do not have all clusters.

    `sums`, int64 (rows, columns), grows by doubling; `_rows` has the row of a key, -1 for none.
    Rows whose scores have all been taken back are used again before it grows.
    """

    def __init__(self, columns: int) -> None:
        self.sums = np.zeros((0, columns), np.int64)
        self._keys = np.zeros(0, np.int64)
        self._rows = np.full(0, -1, np.int32)

    def add(self, scores: Scores, sign: int) -> None:
        """Add (or take back) rows of scores."""
        rows = self._rows_of(scores.keys)
        # `add.at` is several times faster where index and values have one dimension.
        width = self.sums.shape[1]
        index = rows[:, np.newaxis].astype(np.int64) * width + np.arange(width)
        np.add.at(self.sums.reshape(-1), index.ravel(), (sign * scores.values).ravel())

    def of(self, keys: Ints) -> Ints:
        """The sums of `keys`, int64 (keys, columns): zeros where there are none."""
        found = np.zeros((len(keys), self.sums.shape[1]), np.int64)
        known = np.flatnonzero(keys < len(self._rows))
        rows = self._rows[keys[known]]
        found[known[rows >= 0]] = self.sums[rows[rows >= 0]]
        return found

    def _rows_of(self, keys: SmallInts) -> SmallInts:
        """The row of each key, new ones if need be."""
        known = len(self._rows)
        beyond = int(keys.max(initial=-1)) + 1
        if beyond > known:
            rows = np.full(2 * beyond, -1, np.int32)
            rows[:known] = self._rows
            self._rows = rows
        fresh = np.unique(keys[self._rows[keys] < 0])
        if len(fresh):
            if len(self._keys) + len(fresh) > len(self.sums):
                # Rows without a sum go, and with them, it may be, those of some of these keys.
                wanted = np.unique(keys)
                self._make_room(len(wanted))
                fresh = wanted[self._rows[wanted] < 0]
            self._rows[fresh] = np.arange(len(self._keys), len(self._keys) + len(fresh))
            self._keys = np.concatenate((self._keys, fresh))
        return self._rows[keys]

    def _make_room(self, more: int) -> None:
        held = np.flatnonzero(self.sums[: len(self._keys)].any(axis=1))
        self._rows[self._keys] = -1
        self._keys = self._keys[held]
        self._rows[self._keys] = np.arange(len(held))
        self.sums = _grown(self.sums[held], max(256, 2 * (len(held) + more)))


class Totals:
    """The sum of the panes of one basis: by cell, and by (segment, cluster) for scores."""

    def __init__(self, kinds: int, columns: int) -> None:
        self.impressions = np.zeros(0, np.int64)
        self.slates = np.zeros(0, np.int64)
        self.positives = [np.zeros(0, np.int64) for _ in range(kinds)]
        self.scores = ScoreSums(columns)

    def fit(self, cells: int) -> None:
        """Make room; grows by doubling."""
        if cells > len(self.impressions):
            size = max(1024, 2 * cells)
            self.impressions = _grown(self.impressions, size)
            self.slates = _grown(self.slates, size)
            self.positives = [_grown(values, size) for values in self.positives]

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
        self.scores.add(rows, sign)

    def add_panes(self, panes: Sequence[Pane], sign: int) -> None:
        """Add (or take back) whole panes."""
        counts = [rows for pane in panes for rows in pane.counts]
        if counts:
            self.add(Counts(*_joined(counts)), sign)
        positives = [rows for pane in panes for rows in pane.positives]
        if positives:
            self.add_positives(Positives(*_joined(positives)), sign)
        scores = [rows for pane in panes for rows in pane.scores]
        if scores:
            self.add_scores(Scores(*_joined(scores)), sign)


def _joined(rows: Sequence[tuple[Any, ...]]) -> Iterable[Any]:
    return (np.concatenate(column) for column in zip(*rows, strict=True))


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
        leaving, entering = [], []
        for number, pane in panes.items():
            was = self.first <= number <= self.last
            now = first <= number <= last
            if was and not now:
                leaving.append(pane)
            elif now and not was:
                entering.append(pane)
        self.totals.add_panes(leaving, -1)
        self.totals.add_panes(entering, 1)
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

    def fit(self, cells: int) -> None:
        """Make room in both bases."""
        self.live.totals.fit(cells)
        self.matured.totals.fit(cells)

    def add(self, rows: Columns) -> None:
        """Spread rows over the panes and the sums that hold them.

        Rows of panes settled already are left out: that happens only while a checkpoint is
        restored, whose settled panes were written whole.
        """
        grown: dict[int, Pane] = {}
        for number, counts in self._spread(rows.times, rows.counts, Totals.add):
            self._pane(number, grown).counts.append(counts)
        for number, positives in self._spread(
            rows.positive_times, rows.positives, Totals.add_positives
        ):
            self._pane(number, grown).positives.append(positives)
        for number, scores in self._spread(rows.score_times, rows.scores, Totals.add_scores):
            self._pane(number, grown).scores.append(scores)
        sum_up([pane for pane in grown.values() if pane.pieces > MAX_PIECES])

    def _pane(self, number: int, grown: dict[int, Pane]) -> Pane:
        pane = self.panes.get(number)
        if pane is None:
            pane = self.panes[number] = Pane()
        grown[number] = pane
        return pane

    def _spread(
        self, times: Ints, rows: R, add: Callable[[Totals, R, int], None]
    ) -> Iterator[tuple[int, R]]:
        """The number of each pane with its part of `rows`, which are in the sums by then."""
        if not len(times):
            return
        numbers = times // self.window.slide
        order = np.argsort(numbers, kind="stable")
        numbers = numbers[order]
        rows = _picked(rows, order)
        if self.last_settled is not None and numbers[0] <= self.last_settled:
            fresh = slice(np.searchsorted(numbers, self.last_settled + 1), None)
            numbers, rows = numbers[fresh], _picked(rows, fresh)
        for basis in (self.live, self.matured):
            held = slice(*np.searchsorted(numbers, (basis.first, basis.last + 1)).tolist())
            if held.start < held.stop:
                add(basis.totals, _picked(rows, held), 1)
        for run in _runs(numbers):
            yield int(numbers[run.start]), _taken(rows, run)

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
        sum_up([self.panes[number] for number in settled])
        for number in settled:
            self.panes[number].settled = True
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


def _taken(rows: R, chosen: Any) -> R:
    """A copy: views in a pane would keep all rows of a flush as long as the pane is open."""
    return type(rows)(*(column[chosen].copy() for column in rows))


def _picked(rows: R, chosen: Any) -> R:
    return type(rows)(*(column[chosen] for column in rows))


def _starts(ordered: Ints) -> npt.NDArray[np.intp]:
    """Where the stretches of equal values begin."""
    fresh = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=fresh[1:])
    return np.flatnonzero(fresh)


def _runs(ordered: Ints) -> list[slice]:
    """The stretches of equal values."""
    return [
        slice(start, end) for start, end in pairwise([*_starts(ordered).tolist(), len(ordered)])
    ]
