"""Cells: the numbering of (user, segment) that rows of windows refer to."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import chain
from typing import Final
from zlib import crc32

import numpy as np

from streameval.base.arrays import Ints
from streameval.base.limits import CLUSTERS

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
