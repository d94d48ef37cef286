"""Sums of a partition as bytes, for workers that add up all partitions.

They hold what `sums.merge` needs, so that a reader gets the sums of the owner to the bit. Integers
have the smallest type that holds them, floats are as they are. A basis has one table over all
segments and clusters, because many small arrays pack badly.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any, Final

import cramjam
import msgspec
import numpy as np

from streameval.base.arrays import Ints
from streameval.base.limits import CLUSTERS, MAX_SHARED_SUMS
from streameval.core.merged_segments import Segment, beyond_bound, is_total, with_totals
from streameval.core.sums import BasisSums, Sums, merge_disjoint

# Higher levels take twice the time for a tenth of the size.
_LEVEL: Final = 1
_TYPES: Final = ("<i1", "<i2", "<i4", "<i8")
_LIMITS: Final = [np.iinfo(name).max for name in _TYPES]


class PackedTable(msgspec.Struct, array_like=True):
    """A table of integers by row: an index of `_TYPES`, and as many integers as there are columns.

    A row of zeros has no bytes.
    """

    columns: int
    rows: list[tuple[int, bytes]]


class PackedBasis(msgspec.Struct, array_like=True):
    """The sums of one basis: parallel lists by segment, and tables over all of them.

    A segment has `widths` neighbouring columns in the tables by cluster, and one in the tables of
    `plain`. Rates are float64, by kind.
    """

    segments: list[tuple[str, ...]]
    users: list[int]
    rate_means: list[bytes]
    rate_squares: list[bytes]
    mature_impressions: list[int]
    widths: list[int]
    clusters: PackedTable
    by_cluster: PackedTable
    effective: PackedTable
    plain: dict[str, PackedTable]


class SharedSums(msgspec.Struct):
    """The sums of a partition in one window at T (ms), by basis; both None before the first event.

    `events` are the exact counters of the partition. `left_out` counts the segments that are part
    of `__other__` here because all would be too large to share.
    """

    time: int | None
    watermark: int | None
    events: dict[str, Any]
    tables: dict[str, PackedBasis]
    left_out: int = 0

    def sums(self, window: int) -> Sums:
        """Return the sums under the index of their window."""
        return {(window, basis): _unpack(found) for basis, found in self.tables.items()}


def share(
    sums: Sums, window: int, time: int | None, watermark: int | None, events: dict[str, Any]
) -> SharedSums:
    """Return the sums of one window as they are shared.

    Where there are more than `MAX_SHARED_SUMS`, the segments with the fewest impressions become
    `__other__`.
    """
    tables, left_out = {}, 0
    for (index, basis), found in sums.items():
        if index == window:
            kept, gone = _bound(found)
            left_out = max(left_out, gone)
            tables[basis] = _pack(kept)
    return SharedSums(time, watermark, events, tables, left_out)


def pack(shared: SharedSums) -> bytes:
    """Return the bytes that `unpack` reads."""
    return bytes(cramjam.zstd.compress(msgspec.msgpack.encode(shared), level=_LEVEL))


def unpack(data: bytes) -> SharedSums:
    """Undo `pack`. Raises `ValueError` for bytes that another version has packed."""
    try:
        encoded = bytes(cramjam.zstd.decompress(data))
        return msgspec.msgpack.decode(encoded, type=SharedSums)
    except (msgspec.MsgspecError, cramjam.DecompressionError) as error:
        raise ValueError(f"shared sums of another version: {error}") from error


def busiest(impressions: Mapping[Segment, int], most: int) -> set[Segment]:
    """Return the `most` segments with the most impressions; of equals, the first by name.

    Their totals come with them.
    """
    rest = {beyond_bound(segment) for segment in impressions}
    segments = (each for each in impressions.keys() - rest if not is_total(each))
    named = sorted(segments, key=lambda each: (-impressions[each], each))
    return with_totals(named[:most]) | rest


def _bound(found: BasisSums) -> tuple[BasisSums, int]:
    """Return the sums that may be shared, and how many segments are part of `__other__` there."""
    if found.by_cluster.size <= MAX_SHARED_SUMS:
        return found, 0
    impressions = dict(zip(found.names, found.impressions.tolist(), strict=True))
    sizes = len(found.by_cluster) * _widths(found)
    of_name = dict(zip(found.names, sizes.tolist(), strict=True))
    order = sorted(found.names, key=lambda each: (-impressions[each], each))
    ends = accumulate(of_name[name] for name in order)
    fitting = {each for each, end in zip(order, ends, strict=True) if end <= MAX_SHARED_SUMS}
    kept = merge_disjoint([found], lambda name: name if name in fitting else beyond_bound(name))
    gone = sum(not is_total(name) for name in {*found.names} - {*kept.names})
    return kept, gone


def _widths(sums: BasisSums) -> Ints:
    """Return the number of clusters by name."""
    return np.bincount(sums.keys // CLUSTERS, minlength=len(sums.names))


def _pack(sums: BasisSums) -> PackedBasis:
    return PackedBasis(
        segments=sums.names,
        users=sums.users.tolist(),
        rate_means=[rates.tobytes() for rates in sums.rate_means],
        rate_squares=[rates.tobytes() for rates in sums.rate_squares],
        mature_impressions=sums.mature_impressions.tolist(),
        widths=_widths(sums).tolist(),
        clusters=_table(sums.keys[np.newaxis] % CLUSTERS),
        by_cluster=_table(sums.by_cluster),
        effective=_table(sums.effective),
        plain={name: _table(counts) for name, counts in sums.plain.items()},
    )


def _unpack(basis: PackedBasis) -> BasisSums:
    count = len(basis.segments)
    (clusters,) = _array(basis.clusters)
    means, squares = (
        np.array([np.frombuffer(one, np.float64) for one in rates])
        for rates in (basis.rate_means, basis.rate_squares)
    )
    return BasisSums(
        basis.segments,
        np.array(basis.users, np.int64),
        means,
        squares,
        np.repeat(np.arange(count), basis.widths) * CLUSTERS + clusters,
        _array(basis.by_cluster),
        {name: _array(table) for name, table in basis.plain.items()},
        _array(basis.effective),
        np.array(basis.mature_impressions, np.int64),
    )


def _table(whole: Ints) -> PackedTable:
    largest = np.maximum(whole, ~whole).max(axis=1, initial=0)
    types = np.searchsorted(_LIMITS, largest)
    rows = [
        (index, row.astype(_TYPES[index]).tobytes() if most or row.any() else b"")
        for index, most, row in zip(types.tolist(), largest.tolist(), whole, strict=True)
    ]
    return PackedTable(whole.shape[1], rows)


def _array(table: PackedTable) -> Ints:
    whole = np.zeros((len(table.rows), table.columns), np.int64)
    for row, (index, data) in zip(whole, table.rows, strict=True):
        if data:
            row[:] = np.frombuffer(data, _TYPES[index])
    return whole
