"""Grafana's panels, variables and annotations from their texts, as the JSON that Grafana reads.

`grafana.yml` says how Grafana saves each part, and what panels of each kind look like.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from string import ascii_uppercase
from typing import Any, Final, TypeAlias

import yaml

Json: TypeAlias = dict[str, Any]

_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_COLORS: Final = {1: "green", 0: "blue", -1: "red"}
_TABLES: Final = {"bars", "table"}
"""Kinds of panels that show their queries as of now, as one table."""
_GRID: Final = 24
"""Columns of Grafana's grid."""
# Numbers of Grafana: variables are sorted naturally, and read when the time changes.
_ASKED: Final = {"datasource": _SOURCE, "refresh": 2, "sort": 7}


@cache
def _looks() -> Json:
    found: Json = yaml.safe_load(files("streameval.cli").joinpath("grafana.yml").read_text("utf-8"))
    return found


def _made(part: str, **known: Any) -> Json:
    """Return a part as Grafana saves it, without what is not known."""
    found = _looks()[part] | known
    return {key: value for key, value in found.items() if value is not None}


Marks: TypeAlias = Mapping[str, Mapping[str, str]]
"""Annotations by name: color, query, title, and the labels that are tags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelText:
    """The content of a panel: `lines` are its queries by their legend, or by the column of a table.

    `above` or `below` is where an alert fires. `states` gives values their words, for all lines
    ("") or for a column. `units` are units by column. `repeat` names a variable, each of whose
    values has such a panel. Bars stand by the values of the label `bar`, in their order; several
    lines are parts of one bar, in their `colors`. A heat map has a row for each series of its line,
    from the top in the order of their labels. `empty` stands in place of "No data".
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
    empty: str | None = None
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
        made = _made(
            "dashboard",
            templating={"list": list(self._choices())},
            annotations={"list": list(self._annotations())},
            uid=f"streameval-{self.name}",
            title=f"streameval {self.name}",
            description=self.about,
            time={"from": self.start, "to": "now"},
            panels=list(self._panels()),
        )
        return json.dumps(made, indent=2, ensure_ascii=False) + "\n"

    def _annotations(self) -> Iterator[Json]:
        """Yield marks on all graphs for as long as a query has samples, and those of deploys."""
        for name, mark in self.marks.items():
            yield _made(
                "annotation",
                name=name,
                iconColor=mark["color"],
                datasource=_SOURCE,
                # Grafana reads the query of an annotation here or there, by its version.
                target={"expr": mark["query"], "refId": "Anno"},
                expr=mark["query"],
                titleFormat=mark["title"],
                tagKeys=mark["tags"],
            )
        yield _made("annotation", **_looks()["deploys"])

    def _choices(self) -> Iterator[Json]:
        kind = "datasource"
        yield _made("variable", type=kind, name=kind, label="Data source", query="prometheus")
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
        number = x = y = height = 0
        for title, panels in self.rows.items():
            number, x, y = number + 1, 0, y + height
            place = {"h": 1, "w": _GRID, "x": 0, "y": y}
            yield _made("row", id=number, title=title, gridPos=place)
            y, height = y + 1, 0
            for panel in panels:
                look = _looks()["parts" if panel.kind == "bars" and panel.colors else panel.kind]
                number += 1
                wide, high = panel.width or look["size"][0], panel.height or look["size"][1]
                if x + wide > _GRID:
                    x, y, height = 0, y + height, 0
                yield _panel(panel, look, number, {"h": high, "w": wide, "x": x, "y": y})
                x, height = x + wide, max(height, high)


def _choice(
    name: str, series: str, *, label: str = "", everything: str = "", chosen: str = ""
) -> Json:
    """Return a choice among the values of a label; of several, where all have an expression."""
    several: Json = {}
    if everything:
        all_of_them = {"text": ["All"], "value": ["$__all"]}
        several = {"multi": True, "includeAll": True, "allValue": everything}
        several["current"] = _option(chosen) if chosen else all_of_them
    query = f"label_values({series}, {label or name})"
    names = {"name": name, "label": name.capitalize()}
    return _made("variable", type="query", query=query, **names, **_ASKED, **several)


def _options(name: str, values: Sequence[str]) -> Json:
    return _made(
        "variable",
        type="custom",
        name=name,
        label=name.capitalize(),
        query=",".join(values),
        current=_option(values[0]),
        multi=True,
        options=[{"text": one, "value": one, "selected": one == values[0]} for one in values],
    )


def _option(value: str) -> Json:
    return {"text": [value], "value": [value]}


def _panel(wanted: PanelText, look: Json, number: int, place: Json) -> Json:
    options = dict(look["options"])
    known = {"type": look["type"], "id": number, "title": wanted.title, "gridPos": place}
    if wanted.kind == "text":
        return _made("panel", **known, options=options | {"content": wanted.about})
    if wanted.kind == "heat":
        options["cellValues"] = {"unit": wanted.unit}
    return _made(
        "panel",
        **known,
        targets=list(_targets(wanted)),
        description=wanted.about,
        datasource=_SOURCE,
        repeat=wanted.repeat or None,
        transformations=_one_table(wanted),
        maxDataPoints=look.get("points"),
        options=options,
        fieldConfig={
            "defaults": _defaults(wanted, look),
            "overrides": list(_overrides(wanted)),
        },
    )


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
        "noValue": wanted.empty,
        "unit": "none" if wanted.kind in {"states", "table"} else wanted.unit,
        "mappings": [_words(states)] if states else None,
        "thresholds": {"mode": "absolute", "steps": limits} if limits else None,
        "color": look.get("color"),
        "custom": custom,
    }
    return {key: value for key, value in found.items() if value is not None}


def _overrides(wanted: PanelText) -> Iterator[Json]:
    """Yield what holds for single fields of a panel."""
    if any(legend.endswith(" 2 se") for legend in wanted.lines):
        yield _looks()["bounds"]
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
