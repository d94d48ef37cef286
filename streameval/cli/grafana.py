"""Grafana's panels, variables and annotations from their texts, by Grafana's foundation SDK."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from string import ascii_uppercase
from typing import Final, TypeAlias

from grafana_foundation_sdk.builders import (
    barchart,
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    text,
    timeseries,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

_SOURCE: Final = common_models.DataSourceRef(type_val="prometheus", uid="${datasource}")
_GRAFANA: Final = common_models.DataSourceRef(type_val="grafana", uid="-- Grafana --")
_EVERYTHING: Final = models.VariableOption(text=["All"], value=["$__all"])
_COLORS: Final = {1: "green", 0: "blue", -1: "red"}
_BOUND: Final = "/ [-+] 2 se$/"
"""The legends of the lines two standard errors from a mean."""

Marks: TypeAlias = Mapping[str, Mapping[str, str]]
"""Annotations by name: color, query, title, and the labels that are tags."""

_Panel: TypeAlias = (
    barchart.Panel
    | heatmap.Panel
    | stat.Panel
    | statetimeline.Panel
    | table.Panel
    | text.Panel
    | timeseries.Panel
)
_Variable: TypeAlias = (
    dashboard.CustomVariable | dashboard.DatasourceVariable | dashboard.QueryVariable
)


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
        link = dashboard.DashboardLink("streameval").type(models.DashboardLinkType.DASHBOARDS)
        link.tags(["streameval"]).include_vars(include_vars=True).keep_time(keep_time=True)
        made = dashboard.Dashboard(f"streameval {self.name}").uid(f"streameval-{self.name}")
        made.readonly().description(self.about).tags(["streameval"]).link(link)
        made.time(self.start, "now").refresh("1m")
        made.tooltip(models.DashboardCursorSync.CROSSHAIR)
        made.variables([_source(), *self._choices()])
        made.annotations([*_annotations(self.marks), _deploys()])
        numbers = count(1)
        for title, panels in self.rows.items():
            made.with_row(dashboard.Row(title).id(next(numbers)))
            for panel in panels:
                made.with_panel(_panel(panel).id(next(numbers)))
        return json.dumps(made.build(), cls=JSONEncoder, indent=2, ensure_ascii=False) + "\n"

    def _choices(self) -> Iterator[_Variable]:
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


def _source() -> dashboard.DatasourceVariable:
    return dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")


def _choice(
    name: str, series: str, *, label: str = "", everything: str = "", chosen: str = ""
) -> dashboard.QueryVariable:
    """Return a choice among the values of a label; of several, where all have an expression."""
    variable = dashboard.QueryVariable(name).label(name.capitalize()).datasource(_SOURCE)
    variable.query(f"label_values({series}, {label or name})").sort(models.VariableSort.NATURAL_ASC)
    variable.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
    if everything:
        variable.multi(multi=True).include_all(include_all=True)
        variable.all_value(everything).current(_chosen(chosen) if chosen else _EVERYTHING)
    return variable


def _options(name: str, values: Sequence[str]) -> dashboard.CustomVariable:
    made = [models.VariableOption(value == values[0], value, value) for value in values]
    variable = dashboard.CustomVariable(name).label(name.capitalize()).values(",".join(values))
    return variable.options(made).current(_chosen(values[0])).multi(multi=True)


def _chosen(value: str) -> models.VariableOption:
    return models.VariableOption(text=[value], value=[value])


def _annotations(marks: Marks) -> Iterator[dashboard.AnnotationQuery]:
    """Build marks on all graphs for as long as a query has samples."""
    for name, mark in marks.items():
        made = dashboard.AnnotationQuery().name(name).datasource(_SOURCE).enable(enable=True)
        # Grafana reads the query of an annotation here or there, by its version.
        made.target(prometheus.Dataquery().expr(mark["query"]).ref_id("Anno"))
        made.icon_color(mark["color"]).expr(mark["query"])
        yield made.title_format(mark["title"]).tag_keys(mark["tags"])


def _deploys() -> dashboard.AnnotationQuery:
    """Build the marks that people and pipelines leave in Grafana with the tag `deploy`."""
    target = dashboard.AnnotationTarget().type("tags").tags(["deploy"]).limit(100)
    made = dashboard.AnnotationQuery().name("Deploys").datasource(_GRAFANA).enable(enable=True)
    # The SDK types this as a query of Prometheus, and writes it as it is.
    return made.icon_color("orange").type("tags").target(target)  # type: ignore[arg-type]


def _panel(wanted: PanelText) -> _Panel:
    panel = _KINDS[wanted.kind](wanted).title(wanted.title)
    panel.span(wanted.width or _SIZES[wanted.kind][0])
    return panel.height(wanted.height or _SIZES[wanted.kind][1])


def _graph(wanted: PanelText) -> timeseries.Panel:
    panel = timeseries.Panel().unit(wanted.unit).description(wanted.about).datasource(_SOURCE)
    panel.targets(_targets(wanted)).legend(_legend())
    panel.tooltip(common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI))
    if wanted.repeat:
        panel.repeat(wanted.repeat).repeat_direction("h")
    if any(legend.endswith(" 2 se") for legend in wanted.lines):
        dashes = {"fill": "dash", "dash": [6, 6]}
        hidden = {"legend": True, "tooltip": False, "viz": False}
        styled = {"custom.lineStyle": dashes, "custom.hideFrom": hidden}
        panel.override_by_regexp(_BOUND, _properties(styled))
    if (limits := _limits(wanted)) is not None:
        line = common.GraphThresholdsStyleConfig().mode(common_models.GraphThresholdsStyleMode.LINE)
        panel.thresholds(limits).thresholds_style(line)
    return panel


def _tile(wanted: PanelText) -> stat.Panel:
    panel = stat.Panel().unit(wanted.unit).description(wanted.about).datasource(_SOURCE)
    panel.targets(_targets(wanted))
    if wanted.states:
        panel.mappings([_words(wanted.states[""])])
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    # Without thresholds Grafana paints everything above 80 red.
    return panel.thresholds(_limits(wanted) or _thresholds((None, "green")))


def _sentences(wanted: PanelText) -> stat.Panel:
    """Build a line for each series: its legend, and its value as the last word."""
    panel = _tile(wanted).text_mode(common_models.BigValueTextMode.VALUE_AND_NAME)
    panel.orientation(common_models.VizOrientation.HORIZONTAL)
    panel.graph_mode(common_models.BigValueGraphMode.NONE)
    return panel.color_mode(common_models.BigValueColorMode.NONE)


def _bars(wanted: PanelText) -> barchart.Panel:
    """Build bars as of now: upright and colored by their height, or flat and of several parts."""
    panel = barchart.Panel().unit(wanted.unit).description(wanted.about).datasource(_SOURCE)
    panel.targets(_targets(wanted, instant=True)).x_field("bar").transformations(_merged(wanted))
    order = {"fields": {}, "sort": [{"field": "bar"}]}
    panel.with_transformation(models.DataTransformerConfig(id_val="sortBy", options=order))
    panel.legend(common.VizLegendOptions().show_legend(show_legend=False))
    if not wanted.colors:
        return panel.color_scheme(
            dashboard.FieldColor().mode(models.FieldColorModeId.CONTINUOUS_BL_PU)
        )
    panel.orientation(common_models.VizOrientation.HORIZONTAL)
    panel.stacking(common_models.StackingMode.NORMAL)
    # It would show the lengths of the parts, which nobody asks for.
    panel.tooltip(common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.NONE))
    for name, color in wanted.colors.items():
        fixed = {"mode": "fixed", "fixedColor": color}
        panel.override_by_name(name, _properties({"color": fixed}))
    return panel


def _heat(wanted: PanelText) -> heatmap.Panel:
    """Build a map of rows over time: colored by the values, the first row on top."""
    panel = heatmap.Panel().unit(wanted.unit).description(wanted.about).datasource(_SOURCE)
    # Each series is a row as it is. To calculate is to count how often a value occurs.
    panel.targets(_targets(wanted)).calculate(calculate=False).max_data_points(_COLUMNS)
    middle = common_models.HeatmapCellLayout.UNKNOWN
    panel.rows_frame(heatmap.RowsHeatmapOptions().layout(middle))
    panel.y_axis(heatmap.YAxisConfig().reverse(reverse=True))
    panel.cell_values(heatmap.CellValues().unit(wanted.unit))
    # By default a value of 0 has no color, as if there were no data.
    panel.filter_values(heatmap.FilterValueRange().le(-1))
    colors = heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("BuPu")
    return panel.color(colors.steps(64).min(0))


def _states(wanted: PanelText) -> statetimeline.Panel:
    panel = statetimeline.Panel().unit("none").description(wanted.about).datasource(_SOURCE)
    return panel.targets(_targets(wanted)).mappings([_words(wanted.states[""])]).legend(_legend())


def _table(wanted: PanelText) -> table.Panel:
    """Build a table as of now, with a line for all queries that have the same labels."""
    panel = table.Panel().unit("none").description(wanted.about).datasource(_SOURCE)
    panel.targets(_targets(wanted, instant=True)).transformations(_merged(wanted))
    for name, unit in wanted.units.items():
        panel.override_by_name(name, _properties({"unit": unit}))
    for name, words in wanted.states.items():
        panel.override_by_name(name, _properties({"mappings": [_words(words)]}))
    return panel


def _merged(wanted: PanelText) -> list[models.DataTransformerConfig]:
    """Make one table of all queries, with a column for each, named by its line."""
    titles = {f"Value #{letter}": name for letter, name in _lettered(wanted.lines)}
    organized = {"excludeByName": {"Time": True}, "renameByName": titles}
    return [
        models.DataTransformerConfig(id_val=kind, options=chosen)
        for kind, chosen in (("merge", {}), ("organize", organized))
    ]


def _text(wanted: PanelText) -> text.Panel:
    return text.Panel().content(wanted.about)


_KINDS: Final[Mapping[str, Callable[[PanelText], _Panel]]] = {
    "graph": _graph,
    "tile": _tile,
    "sentences": _sentences,
    "bars": _bars,
    "heat": _heat,
    "states": _states,
    "table": _table,
    "text": _text,
}
_SIZES: Final = {
    "graph": (8, 8),
    "tile": (6, 4),
    "sentences": (24, 5),
    "bars": (24, 9),
    "heat": (24, 9),
    "states": (24, 8),
    "table": (24, 9),
    "text": (24, 4),
}
"""Columns and lines of Grafana's grid, which has 24 columns."""


_COLUMNS: Final = 200
"""Points of time in a heat map. On a wide screen a cell is then at least five pixels wide."""


def _targets(wanted: PanelText, *, instant: bool = False) -> list[Builder[Dataquery]]:
    targets: list[Builder[Dataquery]] = []
    for (letter, legend), query in zip(_lettered(wanted.lines), wanted.lines.values(), strict=True):
        target = prometheus.Dataquery().expr(query).legend_format(legend).ref_id(letter)
        if instant:
            target.instant().format(PromQueryFormat.TABLE)
        targets.append(target.datasource(_SOURCE))
    return targets


def _lettered(legends: Iterable[str]) -> Iterator[tuple[str, str]]:
    return zip(ascii_uppercase, legends, strict=False)


def _legend() -> common.VizLegendOptions:
    return common.VizLegendOptions().show_legend(show_legend=True)


def _limits(wanted: PanelText) -> dashboard.ThresholdsConfig | None:
    """Return the colors above and below the value at which an alert fires."""
    limit = wanted.below if wanted.above is None else wanted.above
    if limit is None:
        return None
    colors = ("red", "green") if wanted.above is None else ("green", "red")
    return _thresholds(*zip((None, limit), colors, strict=True))


def _thresholds(*steps: tuple[float | None, str]) -> dashboard.ThresholdsConfig:
    return dashboard.ThresholdsConfig().steps([models.Threshold(*step) for step in steps])


def _words(states: Mapping[int, str]) -> models.ValueMap:
    worst = min(states)
    return models.ValueMap(
        {
            str(value): models.ValueMappingResult(
                text=word, color="red" if value == worst else _COLORS[value], index=at
            )
            for at, (value, word) in enumerate(states.items())
        }
    )


def _properties(values: Mapping[str, object]) -> list[models.DynamicConfigValue]:
    return [models.DynamicConfigValue(name, value) for name, value in values.items()]
