"""Sums of a partition as bytes, for workers that add up all partitions.

They hold what `figures.merge` needs, so that a reader gets the sums of the owner to the
bit: integers in the smallest type that holds them, floats as they are. A basis has one table over
all segments and clusters, because many small arrays pack badly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, Final

import cramjam
import msgspec
import numpy as np

from streameval.base.arrays import Ints
from streameval.base.limits import MAX_SHARED_SUMS
from streameval.core.figures import Segment, SegmentSums, Sums
from streameval.core.merged_segments import beyond_bound, is_total, with_totals

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

    A segment has `widths` neighbouring columns in the tables by cluster, and one in those of
    `plain`.
    """

    segments: list[tuple[str, ...]]
    users: list[int]
    rate_means: list[list[float]]
    rate_squares: list[list[float]]
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
    bases: dict[str, PackedBasis]
    left_out: int = 0

    def sums(self, window: int) -> Sums:
        """Return the sums under the index of their window."""
        return {(window, basis): _unpacked(found) for basis, found in self.bases.items()}


def share(
    sums: Sums, window: int, time: int | None, watermark: int | None, events: dict[str, Any]
) -> SharedSums:
    """Return the sums of one window as they are shared.

    Where there are more than `MAX_SHARED_SUMS`, the segments with the fewest impressions become
    `__other__`.
    """
    bases, left_out = {}, 0
    for (index, basis), segments in sums.items():
        if index == window:
            kept = _bounded(segments)
            gone = sum(not is_total(each) for each in segments.keys() - kept.keys())
            left_out = max(left_out, gone)
            bases[basis] = _packed(kept)
    return SharedSums(time, watermark, events, bases, left_out)


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


def impressions_of(found: SegmentSums) -> int:
    """Return the impressions of a segment: the first row by cluster."""
    return int(found.by_cluster[0].sum())


def _bounded(segments: Mapping[Segment, SegmentSums]) -> Mapping[Segment, SegmentSums]:
    sizes = {segment: found.by_cluster.size for segment, found in segments.items()}
    if sum(sizes.values()) <= MAX_SHARED_SUMS:
        return segments
    order = sorted(segments, key=lambda each: (-impressions_of(segments[each]), each))
    ends = accumulate(sizes[segment] for segment in order)
    fitting = {each for each, end in zip(order, ends, strict=True) if end <= MAX_SHARED_SUMS}
    kept: dict[Segment, SegmentSums] = {}
    for segment in order:
        name = segment if segment in fitting else beyond_bound(segment)
        if name in kept:
            kept[name].add(segments[segment])
        else:
            found = segments[segment]
            means, squares = list(found.rate_means), list(found.rate_squares)
            kept[name] = replace(found, rate_means=means, rate_squares=squares)
    return kept


def _packed(segments: Mapping[Segment, SegmentSums]) -> PackedBasis:
    found = list(segments.values())
    return PackedBasis(
        segments=list(segments),
        users=[each.users for each in found],
        rate_means=[each.rate_means for each in found],
        rate_squares=[each.rate_squares for each in found],
        mature_impressions=[each.mature_impressions for each in found],
        widths=[len(each.clusters) for each in found],
        clusters=_table([each.clusters[np.newaxis] for each in found]),
        by_cluster=_table([each.by_cluster for each in found]),
        effective=_table([each.effective for each in found]),
        plain={
            name: _table([each.plain[name][:, np.newaxis] for each in found])
            for name in (found[0].plain if found else ())
        },
    )


def _unpacked(basis: PackedBasis) -> dict[Segment, SegmentSums]:
    ends = list(accumulate(basis.widths))[:-1]

    def parts(table: PackedTable) -> list[Ints]:
        return np.split(_array(table), ends, axis=1)

    clusters, by_cluster = parts(basis.clusters), parts(basis.by_cluster)
    effective = parts(basis.effective)
    plain = {name: _array(table) for name, table in basis.plain.items()}
    return {
        segment: SegmentSums(
            users=basis.users[index],
            rate_means=basis.rate_means[index],
            rate_squares=basis.rate_squares[index],
            clusters=clusters[index][0],
            by_cluster=by_cluster[index],
            plain={name: counts[:, index] for name, counts in plain.items()},
            effective=effective[index],
            mature_impressions=basis.mature_impressions[index],
        )
        for index, segment in enumerate(basis.segments)
    }


def _table(parts: Sequence[Ints]) -> PackedTable:
    if not parts:
        return PackedTable(0, [])
    whole = np.concatenate(parts, axis=1)
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
