"""From sums to figures: the rows that `replay` prints and `/metrics` shows.

A figure is divided once, at the end. An undefined figure stays None and never becomes 0.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeAlias

from streameval.base.limits import MAX_RANK
from streameval.base.steps import drain
from streameval.core.definition import Definition
from streameval.core.merged_segments import (
    Segment,
    beyond_bound,
    by_generality,
    is_total,
    with_totals,
)
from streameval.core.sums import Sums
from streameval.core.windows.aggregate import FigureRows, totals
from streameval.core.windows.aggregates import AGGREGATES
from streameval.core.windows.lists import DEEPER

BASES = ("live", "matured")
SECTIONS: Final = (
    *dict.fromkeys(one.section for one in AGGREGATES if one.section != "maturity"),
    "maturity",
)
"""The sections of figures: those of the aggregates, in their order, and last `maturity`."""
Row = dict[str, Any]
Figures: TypeAlias = dict[str, list[Row]]
"""Sorted rows by section, all of `SECTIONS` (docs/metrics.md)."""
# Segments whose figures are computed together: their sums fit into a processor's cache.
_TOGETHER: Final = 16


class ShownSegments:
    """The segments that a worker shows: the first `limit` it met, the rest is `__other__`.

    A segment that has left all windows makes room for another. A total takes no room: it is shown
    where one of its segments is.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._met: set[Segment] = set()
        self._shown: set[Segment] = set()

    def keep(self, present: set[Segment]) -> None:
        """Give up segments that have left all windows, once `limit` segments are shown."""
        if len(self._met) >= self._limit:
            self._met &= present
            self._shown = with_totals(self._met)

    def __call__(self, segment: Segment) -> Segment:
        """Return the segment itself, or `__other__` in each dimension that is not `__all__`."""
        if segment in self._shown:
            return segment
        rest = beyond_bound(segment)
        if is_total(segment) or segment == rest or len(self._met) >= self._limit:
            return rest
        self._met.add(segment)
        self._shown |= with_totals([segment])
        return segment


def figures(definition: Definition, sums: Sums) -> Figures:
    """Return the rows of all windows, bases and segments that have an impression."""
    return drain(figuring(definition, sums))


def figuring(definition: Definition, sums: Sums) -> Generator[None, None, Figures]:
    """Make `figures` in steps: the rows of some segments, or the order of a section."""
    aggregates = [aggregate(definition) for aggregate in AGGREGATES]
    sections: Figures = {name: [] for name in SECTIONS}
    for (index, basis), found in sums.items():
        window = {"window": definition.windows[index].name}
        for view in found.views(aggregates, _TOGETHER):
            labels = [dict(zip(definition.dimensions, name, strict=True)) for name in view.names]
            for one in aggregates:
                if not one.wanted:
                    continue
                rows = sections[one.section]
                rows += _label(window | {"basis": basis}, labels, one.figures(view))
                if basis == "live" and "nowcast" in definition.figures:
                    rows += _label(window | {"basis": "nowcast"}, labels, one.nowcast(view))
            if basis == "live":
                mature = zip(
                    view.mature_impressions.tolist(), totals(view.impressions), strict=True
                )
                shares = [{"maturity": part / whole} if whole else None for part, whole in mature]
                sections["maturity"] += _label(window, labels, [shares])
            yield
    order = cache(by_generality)

    def by_labels(row: Row) -> tuple[Any, ...]:
        labels = order(tuple(row[name] for name in definition.dimensions))
        key = row.get("feedback", row.get("k", ""))
        rank = row.get("rank", 0)
        return (
            row["window"],
            row.get("basis", ""),
            labels,
            key,
            MAX_RANK if rank == DEEPER else rank,
        )

    for rows in sections.values():
        rows.sort(key=by_labels)
        yield
    return sections


def _label(first: Row, labels: Sequence[Row], found: Iterable[FigureRows]) -> list[Row]:
    return [
        {**first, **label, **row}
        for rows in found
        for label, row in zip(labels, rows, strict=True)
        if row is not None
    ]


def document(
    definition: Definition,
    sums: Sums,
    watermark: int | None,
    events: Mapping[str, Any],
    users: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the document of `streameval replay` (docs/metrics.md)."""
    printed: dict[str, Any] = {
        "watermark": watermark,
        "events": dict(events),
        **figures(definition, sums),
    }
    if users is not None:
        printed["users"] = dict(users)
    return printed
