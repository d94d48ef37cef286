"""Cells: the numbering of (user, segment) that rows of windows refer to."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np

from streameval.base.arrays import Ints
from streameval.base.limits import CLUSTERS


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

    def keep(self, kept: Any) -> None:
        """Keep only the cells of the index array `kept`, numbered anew in that order."""
        users, segments = self.users, self.segments
        self.__init__()  # type: ignore[misc]  # begin anew, for all who hold this object
        for cell in kept.tolist():
            self.of(users[cell], segments[cell])
