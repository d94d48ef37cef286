"""Grafana's panels, variables and annotations from their texts, as the JSON that Grafana reads.

`grafana.yml` says what panels of each kind look like.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from string import ascii_uppercase
from typing import Any, Final, TypeAlias

import yaml

Json: TypeAlias = dict[str, Any]

_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_GRAFANA: Final = {"type": "grafana", "uid": "-- Grafana --"}
_COLORS: Final = {1: "green", 0: "blue", -1: "red"}
_GRID: Final = 24
"""Columns of Grafana's grid."""
_SORTED_NATURALLY, _AT_CHANGES_OF_TIME, _SHARED_CROSSHAIR = 7, 2, 1
_TABLES: Final = {"bars", "table"}
"""Kinds of panels that show their queries as of now, as one table."""
_BOUNDS: Final = {
    "matcher": {"id": "byRegexp", "options": "/ [-+] 2 se$/"},
    "properties": [
        {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [6, 6]}},
        {"id": "custom.hideFrom", "value": {"legend": True, "tooltip": False, "viz": False}},
    ],
}
"""The look of lines two standard errors from a mean, by their legends."""

Marks: TypeAlias = Mapping[str, Mapping[str, str]]
"""Annotations by name: color, query, title, and the labels that are tags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelText:
    """The content of a panel: `lines` are its queries by their legend, or by the column of a table.

    `above` or `below` is where an alert fires. `states` gives values their words, for all lines
    ("") or for a column. `units` are units by column. `repeat` names a variable, each of whose
    values has such a panel. Bars stand by the values of the label `bar`, in their order; several
    lines are parts of one bar, in their `colors`. A heat map has a row for each series of its line,
    from the top in the order of their labels.
    """

    title: str
    about: str
    kind: str = "graph"
    unit: str = "short"
    lines: Mapping[str, str] = field(default_factory=dict)
    above: float | None = None
    below: float | None = None
    states: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    colors: Mapping[str, str] = field(default_factory=dict)
    repeat: str = ""
    width: int = 0
    height: int = 0


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard: rows of panels by their title. Its graphs begin at `start`.

    A variable is a list of values, the first of them chosen; or the series whose label of that name
    has the values; or such a series with the name of another label (`label`), or with the regular
    expression of all its values, which are chosen unless it names one. Each dashboard has data
    source, namespace and job besides.
    """

    name: str
    about: str
    variables: Mapping[str, str | Sequence[str] | Mapping[str, str]]
    marks: Marks
    rows: Mapping[str, Sequence[PanelText]]
    start: str

    def json(self) -> str:
        """Write the dashboard as Grafana reads it."""
        link = {
            "title": "streameval",
            "type": "dashboards",
            "icon": "",
            "tooltip": "",
            "tags": ["streameval"],
            "asDropdown": False,
            "targetBlank": False,
            "includeVars": True,
            "keepTime": True,
            "placement": "inControlsMenu",
        }
        made = {
            "schemaVersion": 42,
            "templating": {"list": list(self._choices())},
            "annotations": {"list": [*_annotations(self.marks), _deploys()]},
            "uid": f"streameval-{self.name}",
            "title": f"streameval {self.name}",
            "description": self.about,
            "tags": ["streameval"],
            "timezone": "browser",
            "editable": False,
            "graphTooltip": _SHARED_CROSSHAIR,
            "time": {"from": self.start, "to": "now"},
            "fiscalYearStartMonth": 0,
            "refresh": "1m",
            "panels": list(self._panels()),
            "links": [link],
        }
        return json.dumps(made, indent=2, ensure_ascii=False) + "\n"

    def _choices(self) -> Iterator[Json]:
        yield _variable("datasource", "datasource", "prometheus", label="Data source")
        yield _choice("namespace", "streameval_info", everything=".*")
        yield _choice("job", 'streameval_info{namespace=~"$namespace"}', everything=".+")
        for name, values in self.variables.items():
            if isinstance(values, str):
                yield _choice(name, values)
            elif isinstance(values, Mapping):
                yield _choice(
                    name,
                    values["of"],
                    label=values.get("label", ""),
                    everything=values.get("all", ""),
                    chosen=values.get("chosen", ""),
                )
            else:
                yield _options(name, values)

    def _panels(self) -> Iterator[Json]:
        """Place the panels: from left to right, in lines as high as their highest."""
        looks = yaml.safe_load(files("streameval.cli").joinpath("grafana.yml").read_text("utf-8"))
        number = x = y = height = 0
        for title, panels in self.rows.items():
            number, x, y = number + 1, 0, y + height
            row = {"type": "row", "collapsed": False, "id": number, "panels": [], "title": title}
            yield row | {"gridPos": {"h": 1, "w": _GRID, "x": 0, "y": y}}
            y, height = y + 1, 0
            for panel in panels:
                look = looks["parts" if panel.kind == "bars" and panel.colors else panel.kind]
                number += 1
                wide, high = panel.width or look["size"][0], panel.height or look["size"][1]
                if x + wide > _GRID:
                    x, y, height = 0, y + height, 0
                yield _panel(panel, look, number, {"h": high, "w": wide, "x": x, "y": y})
                x, height = x + wide, max(height, high)


def _variable(kind: str, name: str, query: str, *, label: str = "", **more: Any) -> Json:
    several = "all_values" in more or "options" in more
    found = {
        "type": kind,
        "name": name,
        "label": label or name.capitalize(),
        "skipUrlSync": False,
        "query": query,
        "datasource": more.get("datasource"),
        "current": more.get("current"),
        "multi": several,
        "allowCustomValue": True,
        "options": more.get("options"),
        "refresh": more.get("refresh"),
        "sort": more.get("sort"),
        "includeAll": "all_values" in more,
        "allValue": more.get("all_values"),
        "auto": False,
        "auto_min": "10s",
        "auto_count": 30,
    }
    return _known(found)


def _choice(
    name: str, series: str, *, label: str = "", everything: str = "", chosen: str = ""
) -> Json:
    """Return a choice among the values of a label; of several, where all have an expression."""
    more: Json = {"datasource": _SOURCE, "refresh": _AT_CHANGES_OF_TIME, "sort": _SORTED_NATURALLY}
    if everything:
        all_of_them = {"text": ["All"], "value": ["$__all"]}
        more |= {"all_values": everything, "current": _chosen(chosen) if chosen else all_of_them}
    return _variable("query", name, f"label_values({series}, {label or name})", **more)


def _options(name: str, values: Sequence[str]) -> Json:
    options = [{"text": one, "value": one, "selected": one == values[0]} for one in values]
    chosen = _chosen(values[0])
    return _variable("custom", name, ",".join(values), options=options, current=chosen)


def _chosen(value: str) -> Json:
    return {"text": [value], "value": [value]}


def _annotations(marks: Marks) -> Iterator[Json]:
    """Build marks on all graphs for as long as a query has samples."""
    for name, mark in marks.items():
        # Grafana reads the query of an annotation here or there, by its version.
        target = {"expr": mark["query"], "refId": "Anno"}
        yield _annotation(name, mark["color"], _SOURCE, target) | {
            "expr": mark["query"],
            "titleFormat": mark["title"],
            "tagKeys": mark["tags"],
        }


def _deploys() -> Json:
    """Build the marks that people and pipelines leave in Grafana with the tag `deploy`."""
    target = {"limit": 100, "matchAny": False, "tags": ["deploy"], "type": "tags"}
    return _annotation("Deploys", "orange", _GRAFANA, target, type="tags")


def _annotation(name: str, color: str, source: Json, target: Json, **more: str) -> Json:
    return {
        "name": name,
        "enable": True,
        "iconColor": color,
        "datasource": source,
        "hide": False,
        "target": target,
        **more,
        "builtIn": 0,
        "placement": "inControlsMenu",
    }


def _panel(wanted: PanelText, look: Json, number: int, place: Json) -> Json:
    options, without_data = dict(look["options"]), wanted.kind == "text"
    if without_data:
        options["content"] = wanted.about
    if wanted.kind == "heat":
        options["cellValues"] = {"unit": wanted.unit}
    fields = {"defaults": _defaults(wanted, look), "overrides": list(_overrides(wanted))}
    found = {
        "type": look["type"],
        "id": number,
        "targets": None if without_data else list(_targets(wanted)),
        "title": wanted.title,
        "description": None if without_data else wanted.about,
        "transparent": False,
        "datasource": None if without_data else _SOURCE,
        "gridPos": place,
        "repeat": wanted.repeat or None,
        "repeatDirection": "h",
        "transformations": _one_table(wanted),
        "maxDataPoints": look.get("points"),
        "options": options,
        "fieldConfig": None if without_data else fields,
    }
    return _known(found)


def _known(found: Json) -> Json:
    return {key: value for key, value in found.items() if value is not None}


def _targets(wanted: PanelText) -> Iterator[Json]:
    as_of_now = {"format": "table", "instant": True} if wanted.kind in _TABLES else {}
    for letter, (legend, query) in zip(ascii_uppercase, wanted.lines.items(), strict=False):
        target = {"expr": query, "datasource": _SOURCE, **as_of_now, "legendFormat": legend}
        yield target | ({"range": False} if as_of_now else {}) | {"refId": letter}


def _one_table(wanted: PanelText) -> list[Json] | None:
    """Make one table of all queries, with a column for each, named by its line."""
    if wanted.kind not in _TABLES:
        return None
    titles = {f"Value #{at}": name for at, name in zip(ascii_uppercase, wanted.lines, strict=False)}
    steps = {
        "merge": {},
        "organize": {"excludeByName": {"Time": True}, "renameByName": titles},
    }
    if wanted.kind == "bars":
        steps["sortBy"] = {"fields": {}, "sort": [{"field": "bar"}]}
    return [{"id": kind, "options": options} for kind, options in steps.items()]


def _defaults(wanted: PanelText, look: Json) -> Json:
    """Return what holds for all fields of a panel."""
    custom, limits = look.get("custom"), _limits(wanted)
    if wanted.kind == "graph" and limits:
        custom = {"thresholdsStyle": {"mode": "line"}}
    if look["type"] == "stat" and not limits:
        # Without thresholds Grafana paints everything above 80 red.
        limits = [{"value": None, "color": "green"}]
    states = wanted.states.get("")
    found = {
        "unit": "none" if wanted.kind in {"states", "table"} else wanted.unit,
        "mappings": [_words(states)] if states else None,
        "thresholds": {"mode": "absolute", "steps": limits} if limits else None,
        "color": look.get("color"),
        "custom": custom,
    }
    return _known(found)


def _overrides(wanted: PanelText) -> Iterator[Json]:
    """Yield what holds for single fields of a panel."""
    if any(legend.endswith(" 2 se") for legend in wanted.lines):
        yield _BOUNDS
    for name, color in wanted.colors.items():
        yield _override(name, "color", {"mode": "fixed", "fixedColor": color})
    for name, unit in wanted.units.items():
        yield _override(name, "unit", unit)
    if wanted.kind == "table":
        for name, words in wanted.states.items():
            yield _override(name, "mappings", [_words(words)])


def _override(name: str, what: str, value: Any) -> Json:
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": what, "value": value}],
    }


def _limits(wanted: PanelText) -> list[Json] | None:
    """Return the colors above and below the value at which an alert fires."""
    limit = wanted.below if wanted.above is None else wanted.above
    if limit is None:
        return None
    colors = ("red", "green") if wanted.above is None else ("green", "red")
    steps = zip((None, limit), colors, strict=True)
    return [{"value": value, "color": color} for value, color in steps]


def _words(states: Mapping[int, str]) -> Json:
    worst = min(states)
    options = {
        str(value): {
            "text": word,
            "color": "red" if value == worst else _COLORS[value],
            "index": at,
        }
        for at, (value, word) in enumerate(states.items())
    }
    return {"type": "value", "options": options}
