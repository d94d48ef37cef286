"""Grafana's format: panels placed on a grid, and the dashboard that holds them, as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from string import ascii_uppercase
from typing import Any, Final

_SOURCE: Final = {"type": "prometheus", "uid": "prometheus"}
_COLUMNS: Final = 24
"""Columns of Grafana's grid."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel: queries with their legends, the unit, and the size in cells of the grid.

    `options` are those of every field. `extra` holds the keys that only some kinds of panels have.
    """

    title: str
    queries: Sequence[tuple[str, str]] = ()
    unit: str = "short"
    description: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "timeseries"
    size: tuple[int, int] = (8, 8)
    extra: Mapping[str, Any] = field(default_factory=dict)


def document(
    name: str,
    description: str,
    variables: Sequence[dict[str, Any]],
    panels: Iterator[Panel],
    start: str = "now-3h",
) -> str:
    """Return the JSON of a dashboard whose graphs begin at `start`, in Grafana's words."""
    written = {
        "uid": "-".join(filter(None, ("streameval", name))),
        "title": " ".join(filter(None, ("streameval", name))),
        "description": description,
        "tags": ["streameval"],
        "links": [{"title": "streameval", "type": "dashboards", "tags": ["streameval"]}],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "15s",
        "time": {"from": start, "to": "now"},
        "timezone": "browser",
        "templating": {"list": list(variables)},
        "panels": list(_placed(panels)),
    }
    return json.dumps(written, indent=2, ensure_ascii=False) + "\n"


def variable(name: str, query: str) -> dict[str, Any]:
    """Return a choice among the values that `query` finds."""
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 3,
    }


def row(title: str) -> Panel:
    """Return the heading of the panels after it."""
    return Panel(title, kind="row", size=(_COLUMNS, 1))


def _placed(panels: Iterator[Panel]) -> Iterator[dict[str, Any]]:
    """Place the panels side by side, and below where a line is full."""
    x = y = height = 0
    for number, panel in zip(count(1), panels, strict=False):
        width = panel.size[0]
        if x + width > _COLUMNS:
            x, y = 0, y + height
        height = panel.size[1]
        where = {"h": height, "w": width, "x": x, "y": y}
        x += width
        yield _written(number, panel, where)


def _written(number: int, panel: Panel, where: Mapping[str, int]) -> dict[str, Any]:
    """Write a panel as Grafana reads it."""
    head = {"id": number, "title": panel.title, "type": panel.kind, "gridPos": where}
    if panel.kind == "row":
        return head | {"collapsed": False, "panels": []}
    # A table has a line for each series as of now; all other kinds read a range of time.
    way = {"format": "table", "instant": True} if panel.kind == "table" else {}
    return {
        **head,
        "description": panel.description,
        "datasource": _SOURCE,
        "targets": [
            {"refId": letter, "datasource": _SOURCE, "expr": query, "legendFormat": legend, **way}
            for letter, (query, legend) in zip(ascii_uppercase, panel.queries, strict=False)
        ],
        "fieldConfig": {"defaults": {"unit": panel.unit, **panel.options}, "overrides": []},
        **panel.extra,
    }
