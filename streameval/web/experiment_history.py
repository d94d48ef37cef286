"""The bounds of experiments over time: a day by the minute, and a month by the half hour.

Only the named metrics are kept: the exploratory ones promise nothing together.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from streameval.base.limits import MAX_POINT_BYTES
from streameval.experiments.words import Scorecard

RINGS: Final = (60_000, 1_800_000)
"""The time between two points of each history (ms), the finest first."""
_NUMBERS: Final = ("difference", "low", "high")


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


def over_time(points: Iterable[bytes]) -> list[dict[str, Any]]:
    """Return the bounds of each metric and arm over time; points need not be in order."""
    series: dict[tuple[str, str], dict[str, Any]] = {}
    for now, rows in sorted(json.loads(data) for data in points):
        for metric, arm, *numbers in rows:
            one = series.setdefault(
                (metric, arm),
                {"metric": metric, "arm": arm, "times": [], **{name: [] for name in _NUMBERS}},
            )
            if one["times"] and one["times"][-1] == now:
                continue  # the same point, of the coarser history
            one["times"].append(now)
            for name, number in zip(_NUMBERS, numbers, strict=True):
                one[name].append(number)
    return list(series.values())
