"""The bounds of experiments over time: a day by the minute, and a month by the half hour.

Only the named metrics are kept: the exploratory ones promise nothing together.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from streameval.base.limits import MAX_POINT_BYTES
from streameval.experiments.words import Scorecard

RINGS: Final = (60_000, 1_800_000)
"""The time between two points of each history (ms), the finest first."""
MOST_POINTS: Final = 200
"""The most points that a series has: a chart has hardly more columns of pixels for them."""
_NUMBERS: Final = ("difference", "low", "high")


_POINT: Final = msgspec.json.Decoder(tuple[int, msgspec.Raw])


def name_of(key: str, period: int) -> str:
    """Return the name of a history of the experiment with this key."""
    return f"experiment:{key}:{period // 1_000}s"


def point(card: Scorecard, now: int) -> bytes | None:
    """Return the bounds at a time (ms), as many as a point may hold; None before there are any."""
    rows = [
        [row["metric"], row["arm"], *(row[name] for name in _NUMBERS)]
        for row in card.rows
        if row["role"] != "exploratory" and row["low"] is not None
    ]
    while rows:
        data = json.dumps([now, rows]).encode()
        if len(data) <= MAX_POINT_BYTES:
            return data
        rows.pop()
    return None


def over_time(points: Iterable[bytes], metric: str | None = None) -> list[dict[str, Any]]:
    """Return the bounds of each arm over time, of one metric or all; points come in any order.

    There are at most `MOST_POINTS` times.
    """
    # Most points are left out: only their times are read. Both histories have some times.
    by_time = dict(_POINT.decode(data) for data in points)
    series: dict[tuple[str, str], dict[str, Any]] = {}
    for now in _thin_out(sorted(by_time)):
        for name, arm, *numbers in msgspec.json.decode(by_time[now]):
            if metric not in {None, name}:
                continue
            one = series.setdefault(
                (name, arm),
                {"metric": name, "arm": arm, "times": [], **{number: [] for number in _NUMBERS}},
            )
            one["times"].append(now)
            for column, number in zip(_NUMBERS, numbers, strict=True):
                one[column].append(number)
    return list(series.values())


def _thin_out(times: Sequence[int]) -> list[int]:
    """Return the newest time of each of `MOST_POINTS` equal spans; all times where they are few."""
    if len(times) <= MOST_POINTS:
        return list(times)
    span = (times[-1] - times[0]) // MOST_POINTS + 1
    return list({(times[-1] - time) // span: time for time in times}.values())
