"""Tables of integer rows by key, and their sums. Integers add in any order to the same bits.

A key is a cell: the number of a (user, segment).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, Final, NamedTuple, Protocol
from zlib import crc32

import numpy as np
import numpy.typing as npt

from streameval.base.arrays import Ints, distinct
from streameval.base.limits import CLUSTERS

SmallInts = npt.NDArray[np.int32]


class Table(NamedTuple):
    """Rows as arrays: int32 keys (rows,), and int32 or int64 values (columns, rows)."""

    keys: SmallInts
    values: npt.NDArray[Any]

    def picked(self, chosen: Any) -> Table:
        """Return some of the rows, as views where `chosen` is a slice."""
        return Table(self.keys[chosen], self.values[:, chosen])

    def taken(self, chosen: Any) -> Table:
        """Return some of the rows, copied: a view in a pane would keep all rows of a flush."""
        return Table(self.keys[chosen].copy(), self.values[:, chosen].copy())

    @classmethod
    def joined(cls, tables: Sequence[Table]) -> Table:
        """Return the rows of several tables, one after another."""
        if len(tables) == 1:
            return tables[0]
        return cls(
            np.concatenate([table.keys for table in tables]),
            np.concatenate([table.values for table in tables], axis=1),
        )


class TimedTable(NamedTuple):
    """A table, and the time (ms) of each of its rows."""

    times: Ints
    table: Table

    @classmethod
    def joined(cls, parts: Sequence[TimedTable]) -> TimedTable:
        """Return the rows of several, one after another."""
        times = np.concatenate([part.times for part in parts])
        return cls(times, Table.joined([part.table for part in parts]))


def sum_by_key(groups: Sequence[Sequence[Table]]) -> list[list[Table]]:
    """Sum up the rows of the same key within each group: all groups in one go.

    Each group gives one table, its keys ascending, or none where all sums are zero.
    """
    tables = [table for group in groups for table in group]
    if not tables:
        return [[] for _ in groups]
    joined = Table.joined(tables)
    width = int(joined.keys.max()) + 1
    sizes = [sum(len(table.keys) for table in group) for group in groups]
    keys = np.repeat(np.arange(len(groups)) * width, sizes) + joined.keys
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    begins = starts(keys)
    sums = np.add.reduceat(joined.values[:, order], begins, axis=1)
    keep = sums.any(axis=0)
    keys, sums = keys[begins][keep], sums[:, keep].astype(joined.values.dtype)
    ends = np.searchsorted(keys, np.arange(len(groups) + 1) * width).tolist()
    return [
        [Table((keys[start:end] - number * width).astype(np.int32), sums[:, start:end])]
        if start < end
        else []
        for number, (start, end) in enumerate(pairwise(ends))
    ]


def starts(ordered: Ints) -> npt.NDArray[np.intp]:
    """Return where the stretches of equal values begin."""
    fresh = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=fresh[1:])
    return np.flatnonzero(fresh)


def runs(ordered: Ints) -> list[slice]:
    """Return the stretches of equal values."""
    return [slice(start, end) for start, end in pairwise([*starts(ordered).tolist(), len(ordered)])]


class Totals(Protocol):
    """The sums of one aggregate over the panes of one basis."""

    def fit(self, cells: int) -> None:
        """Make room for so many cells."""

    def keep(self, cells: npt.NDArray[np.intp]) -> None:
        """Keep only `cells`, numbered anew in that order."""

    def add(self, table: Table, sign: int) -> None:
        """Add rows, or retract them where `sign` is -1."""


class CellTotals:
    """Sums by cell: for each column int64 (cells * width,), `width` positions for each cell."""

    def __init__(self, columns: int, width: int) -> None:
        self.width = width
        self._sums = [np.zeros(0, np.int64) for _ in range(columns)]

    def fit(self, cells: int) -> None:
        """Make room for so many cells; it grows by doubling."""
        if cells * self.width > len(self._sums[0]):
            size = max(1024, 2 * cells) * self.width
            self._sums = [with_room(sums, size) for sums in self._sums]

    def keep(self, cells: npt.NDArray[np.intp]) -> None:
        """Keep only `cells`, numbered anew in that order."""
        positions = (cells[:, np.newaxis] * self.width + np.arange(self.width)).ravel()
        self._sums = [sums[positions] for sums in self._sums]

    def add(self, table: Table, sign: int) -> None:
        """Add rows, or retract them where `sign` is -1."""
        for sums, values in zip(self._sums, table.values, strict=True):
            np.add.at(sums, table.keys, sign * values.astype(np.int64))

    def of(self, column: int, position: int = 0) -> Ints:
        """Return the sums of a column at one position of each cell, int64 (cells,)."""
        return self._sums[column][position :: self.width]

    def of_cells(self, cells: npt.NDArray[np.intp]) -> Ints:
        """Return the sums of some cells, int64 (columns, width, cells)."""
        return np.array(
            [
                [sums[position :: self.width][cells] for position in range(self.width)]
                for sums in self._sums
            ]
        )


class SegmentTotals:
    """Sums by segment: int64 (segments * width, columns), `width` slots for each.

    It grows by doubling.
    """

    def __init__(self, columns: int, width: int) -> None:
        self.width = width
        self._sums = np.zeros((0, columns), np.int64)

    def fit(self, cells: int) -> None:
        """Do nothing: the keys are segments, which keep their numbers."""

    def keep(self, cells: npt.NDArray[np.intp]) -> None:
        """Do nothing: the keys are segments, which keep their numbers."""

    def add(self, table: Table, sign: int) -> None:
        """Add rows, or retract them where `sign` is -1."""
        beyond = int(table.keys.max(initial=-1)) + 1
        if beyond > len(self._sums):
            self._sums = with_room(self._sums, 2 * beyond)
        for sums, values in zip(self._sums.T, table.values, strict=True):
            np.add.at(sums, table.keys, sign * values.astype(np.int64))

    def of(self, segment: int) -> Ints:
        """Return the sums of a segment, int64 (columns, width)."""
        found = np.zeros((self._sums.shape[1], self.width), np.int64)
        known = self._sums[segment * self.width : (segment + 1) * self.width]
        found[:, : len(known)] = known.T
        return found


def with_room(values: Ints, size: int) -> Ints:
    """Return `values` and zeros after it. Zeros that nobody writes to take no memory."""
    longer = np.zeros((size, *values.shape[1:]), np.int64)
    longer[: len(values)] = values
    return longer


class SparseTotals:
    """Sums by key, only for keys that have rows: most pairs (segment, cluster) are empty.

    `sums`, int64 (rows, columns), grows by doubling; `_rows` has the row of a key, -1 for none.
    Rows whose sums have all been retracted are used again before it grows.
    """

    def __init__(self, columns: int) -> None:
        self.sums = np.zeros((0, columns), np.int64)
        self._keys = np.zeros(0, np.int64)
        self._rows = np.full(0, -1, np.int32)

    def fit(self, cells: int) -> None:
        """Do nothing: the keys are segments and clusters, which keep their numbers."""

    def keep(self, cells: npt.NDArray[np.intp]) -> None:
        """Do nothing: the keys are segments and clusters, which keep their numbers."""

    def add(self, table: Table, sign: int) -> None:
        """Add rows, or retract them where `sign` is -1."""
        rows = self._rows_of(table.keys)
        # `add.at` is several times faster where all have one dimension, and one type.
        width = self.sums.shape[1]
        index = rows[:, np.newaxis].astype(np.int64) * width + np.arange(width)
        values = sign * table.values.astype(np.int64)
        np.add.at(self.sums.reshape(-1), index.ravel(), values.T.ravel())

    def of(self, keys: Ints) -> Ints:
        """Return the sums of `keys`, int64 (keys, columns): zeros for a key without rows."""
        found = np.zeros((len(keys), self.sums.shape[1]), np.int64)
        known = np.flatnonzero(keys < len(self._rows))
        rows = self._rows[keys[known]]
        found[known[rows >= 0]] = self.sums[rows[rows >= 0]]
        return found

    def _rows_of(self, keys: SmallInts) -> SmallInts:
        """Return the row of each key, new ones if need be."""
        known = len(self._rows)
        beyond = int(keys.max(initial=-1)) + 1
        if beyond > known:
            rows = np.full(2 * beyond, -1, np.int32)
            rows[:known] = self._rows
            self._rows = rows
        fresh = distinct(keys[self._rows[keys] < 0])
        if len(fresh):
            if len(self._keys) + len(fresh) > len(self.sums):
                # Rows without a sum go, and with them perhaps the rows of some of these keys.
                wanted = distinct(keys)
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
        self.sums = with_room(self.sums[held], max(256, 2 * (len(held) + more)))


# Cells numbered anew, or freed, in one step: 3 ms.
_STEP: Final = 5_000


def checksum_of(user_id: str) -> int:
    """Return the CRC-32 of a user's UTF-8 bytes."""
    return crc32(user_id.encode())


def cluster_of(user_id: str) -> int:
    """Return the cluster of a user in standard errors: the low 8 bits of the checksum."""
    return checksum_of(user_id) & (CLUSTERS - 1)


class Cells:
    """The numbering of (user, segment). `users` and `segments` are parallel, by cell."""

    def __init__(self) -> None:
        self.users: list[str] = []
        self.segments: list[int] = []
        self._index: dict[int, dict[str, int]] = {}
        self._segment_array = np.empty(0, np.int64)
        self._cluster_array = np.empty(0, np.int64)
        self._first: dict[str, int] = {}
        self._first_array = np.empty(0, np.int64)

    def __len__(self) -> int:
        """Return the number of cells."""
        return len(self.users)

    def of(self, user_id: str, segment: int) -> int:
        """Return the number of a cell, a new one if need be."""
        index = self._index.get(segment)
        if index is None:
            index = self._index[segment] = {}
        cell = index.get(user_id)
        if cell is None:
            cell = index[user_id] = len(self.users)
            self.users.append(user_id)
            self.segments.append(segment)
        return cell

    def arrays(self) -> tuple[Ints, Ints]:
        """Return segment and cluster by cell, int64 (cells,)."""
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

    def firsts(self) -> Ints:
        """Return by cell the first cell of its user, int64 (cells,)."""
        known = len(self._first_array)
        if known < len(self.users):
            first = self._first.setdefault
            found = [first(user, cell) for cell, user in enumerate(self.users[known:], known)]
            self._first_array = np.concatenate((self._first_array, np.array(found, np.int64)))
        return self._first_array

    def picked(self, kept: Ints) -> Generator[None, None, Cells]:
        """Return only the cells of the index array `kept`, numbered anew in that order.

        It is made in bounded steps. Add no cell until the end.
        """
        users, segments, fresh = self.users, self.segments, Cells()
        for start in range(0, len(kept), _STEP):
            for cell in kept[start : start + _STEP].tolist():
                fresh.of(users[cell], segments[cell])
            yield
        # To compute the clusters again would hold the next reader.
        fresh._segment_array, fresh._cluster_array = (array[kept] for array in self.arrays())
        if self._first:
            firsts = []
            for start in range(0, len(fresh), _STEP):
                among = enumerate(fresh.users[start : start + _STEP], start)
                firsts.append([fresh._first.setdefault(user, cell) for cell, user in among])
                yield
            fresh._first_array = np.array(list(chain.from_iterable(firsts)), np.int64)
        return fresh

    def exchange(self, other: Cells) -> None:
        """Exchange all cells with `other`, for all who hold this object."""
        self.__dict__, other.__dict__ = other.__dict__, self.__dict__

    def emptying(self) -> Iterator[None]:
        """Free all cells in bounded steps: millions of strings at once would hold the loop."""
        self.users.clear()
        for index in (*self._index.values(), self._first):
            while index:
                for _ in range(min(len(index), _STEP)):
                    index.popitem()
                yield
