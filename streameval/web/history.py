"""The history of figures: a point a minute for a day, packed, and charts of it.

A point holds the figures of one window and basis: their values with the bounds of a 95 % interval,
as floats of 32 bits. It has at most `MAX_POINT_BYTES`; segments with the fewest impressions are
left out, and the point says how many.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import cramjam
import msgspec
import numpy as np

from streameval.base.limits import MAX_POINT_BYTES
from streameval.core.figures import Row
from streameval.core.merged_segments import Segment
from streameval.web.intervals import SECTIONS, STDERR, bounds, means_of

BASES: Final = ("live", "matured", "nowcast")
# Labels of rows beside the dimensions.
_LABELS: Final = ("feedback", "k")
_LEVEL: Final = 3
_NUMBERS: Final = ("value", "low", "high")


def name_of(window: str, basis: str) -> str:
    """Return the name of a history of figures."""
    return f"figures:{window}:{basis}"


class PackedSection(msgspec.Struct, array_like=True):
    """Rows of one section: their labels, and float32 (figures, rows) of values and of bounds.

    `low` and `high` have the figures of `bounded` only. NaN stands for an undefined figure.
    """

    figures: list[str]
    bounded: list[str]
    labels: list[dict[str, str | int]]
    values: bytes
    low: bytes
    high: bytes


class Point(msgspec.Struct):
    """The figures at T (ms) of one window and basis, by section."""

    time: int
    sections: dict[str, PackedSection]
    left_out: int = 0


def pack(time: int, sections: Mapping[str, Sequence[Row]], dimensions: Sequence[str]) -> bytes:
    """Return the point of rows that are all of one window and basis."""
    impressions: Counter[Segment] = Counter()
    users: dict[Segment, int] = {}
    for row in sections["rates"]:
        segment = _segment(row, dimensions)
        impressions[segment] = row["impressions"]
        users[segment] = row["users"]
    segments = [segment for segment, _ in impressions.most_common()]
    kept = len(segments)
    while True:
        chosen = {segment: users[segment] for segment in segments[:kept]}
        packed = {name: _section(sections[name], dimensions, chosen) for name in SECTIONS}
        point = Point(time, packed, len(segments) - kept)
        data = bytes(cramjam.zstd.compress(msgspec.msgpack.encode(point), level=_LEVEL))
        if len(data) <= MAX_POINT_BYTES or not kept:
            return data
        kept = min(kept - 1, kept * MAX_POINT_BYTES // len(data))


def unpack(data: bytes) -> Point | None:
    """Undo `pack`; None for bytes that another version has packed, which is a gap."""
    try:
        return msgspec.msgpack.decode(bytes(cramjam.zstd.decompress(data)), type=Point)
    except (msgspec.MsgspecError, cramjam.DecompressionError):
        return None


def chart(
    points: Iterable[Point], section: str, figure: str, wanted: Mapping[str, str]
) -> dict[str, Any]:
    """Return a figure over time, with a series for each row that has the wanted labels.

    Points whose T does not rise are left out: time stood still.
    """
    times: list[int] = []
    series: dict[tuple[Any, ...], dict[str, Any]] = {}
    left_out = 0
    for point in points:
        if times and point.time <= times[-1]:
            continue
        times.append(point.time)
        left_out = max(left_out, point.left_out)
        for labels, numbers in _of(point.sections[section], figure, wanted):
            key = tuple(labels.items())
            one = series.setdefault(key, {"labels": labels} | {name: [] for name in _NUMBERS})
            for name in _NUMBERS:
                one[name] += [None] * (len(times) - 1 - len(one[name])) + [numbers.get(name)]
    for one in series.values():
        for name in _NUMBERS:
            one[name] += [None] * (len(times) - len(one[name]))
    found = [series[key] for key in sorted(series, key=str)]
    return {"times": times, "series": found, "segments_left_out": left_out}


def _section(
    rows: Sequence[Row], dimensions: Sequence[str], users: Mapping[Segment, int]
) -> PackedSection:
    """Pack the rows of some segments, by the users of each."""
    rows = [row for row in rows if _segment(row, dimensions) in users]
    labels = (*dimensions, *_LABELS)
    other = {*labels, "window", "basis"}
    names = [name for name in (rows[0] if rows else ()) if name not in other]
    figures = [name for name in names if not name.endswith(STDERR)]
    bounded = means_of(rows[0]) if rows else []
    found = [
        [bounds(row, name, users[_segment(row, dimensions)]) for name in bounded] for row in rows
    ]
    return PackedSection(
        figures,
        bounded,
        [{name: row[name] for name in labels if name in row} for row in rows],
        _floats([[row[name] for name in figures] for row in rows]),
        _floats([[pair and pair[0] for pair in row] for row in found]),
        _floats([[pair and pair[1] for pair in row] for row in found]),
    )


def _segment(row: Row, dimensions: Sequence[str]) -> Segment:
    return tuple(row[name] for name in dimensions)


def _floats(rows: list[list[float | None]]) -> bytes:
    # By figure, so that equal bytes stand together.
    return np.array(rows, np.float32).T.astype("<f4").tobytes()


def _numbers(data: bytes, index: int, rows: int) -> list[float | None]:
    """Return the figure at an index, by row."""
    found = np.frombuffer(data, "<f4", rows, index * rows * 4).astype(np.float64)
    return [None if math.isnan(number) else number for number in found.tolist()]


def _of(
    section: PackedSection, figure: str, wanted: Mapping[str, str]
) -> Iterator[tuple[dict[str, str | int], dict[str, float | None]]]:
    """Yield the labels and numbers of the rows that have the wanted labels."""
    if figure not in section.figures:
        return
    rows = len(section.labels)
    columns = {"value": _numbers(section.values, section.figures.index(figure), rows)}
    if figure in section.bounded:
        index = section.bounded.index(figure)
        columns["low"] = _numbers(section.low, index, rows)
        columns["high"] = _numbers(section.high, index, rows)
    for at, labels in enumerate(section.labels):
        if all(str(labels.get(name)) == value for name, value in wanted.items()):
            yield labels, {name: column[at] for name, column in columns.items()}
