"""The dashboards for Grafana: their texts (`dashboards.yml`), and panels of the metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import Any, Final, TypeAlias

import yaml

from streameval.base.limits import ALL
from streameval.cli.grafana import Board, Marks, PanelText
from streameval.core.metrics import MEAN_SECTIONS, RATES

NAMES: Final = ("quality", "experiments", "pipeline", "checks")
"""The dashboards."""

_DEPLOYMENT: Final = 'job=~"$job", namespace=~"$namespace"'
_SHARES: Final = {"hit_rate"} | {
    mean.name
    for section in MEAN_SECTIONS
    for mean in section.means
    if mean.is_share and section.name != "ranking"
}
_ABBREVIATIONS: Final = {"map", "mrr", "ndcg"}
_Panel: TypeAlias = Mapping[str, Any]


class _Gaps(Template):
    delimiter = "@"


def dashboard_json(name: str, dimensions: Sequence[str]) -> str:
    """Return the JSON of a dashboard for the dimensions of a configuration."""
    text = yaml.safe_load(files("streameval.cli").joinpath("dashboards.yml").read_text("utf-8"))
    found = text[name]
    by_segment = name == "quality"
    chosen = [f'{label}=~"${label}"' for label in dimensions if by_segment]
    gaps = {
        "deployment": _DEPLOYMENT,
        "here": ", ".join((_DEPLOYMENT, *found.get("matchers", ()), *chosen)),
        "beside": ", ".join((_DEPLOYMENT, *chosen[1:])),
        "segment": " ".join(f"{{{{{label}}}}}" for label in dimensions),
        "and_dimensions": "".join(f", {label}" for label in dimensions),
        "and_quoted": "".join(f', "{label}"' for label in dimensions),
    }
    variables = dict(found.get("variables", {}))
    if by_segment:
        users = "job:streameval_window_users:sum{@deployment}"
        variables |= {label: {"of": users, "all": ".*"} for label in dimensions[:1]}
        # Of the others the totals: lines for all combinations would be too many to see.
        variables |= {label: {"of": users, "all": ".*", "chosen": ALL} for label in dimensions[1:]}
        for label in dimensions[:1]:
            arms = f'job:streameval_window_users:sum{{@deployment, {label}!="{ALL}"}}'
            variables["control"] = {"of": arms, "label": label}
    board = Board(
        name,
        found["about"],
        _fill(variables, gaps),
        _fill(_MARKS, gaps),
        {
            title: [
                PanelText(**_fill(panel, gaps))
                for item in row
                for panel in _panels(item, dimensions)
            ]
            for title, row in found["rows"].items()
        },
        found.get("start", "now-6h"),
    )
    return board.json()


def _fill(value: Any, gaps: Mapping[str, str]) -> Any:
    """Fill the gaps in all texts of a structure."""
    if isinstance(value, str):
        return _Gaps(value).substitute(gaps)
    if isinstance(value, Mapping):
        return {_fill(key, gaps): _fill(each, gaps) for key, each in value.items()}
    return [_fill(each, gaps) for each in value] if isinstance(value, list) else value


def _panels(item: str | _Panel, dimensions: Sequence[str]) -> Iterator[_Panel]:
    """Yield a panel, or all panels that the name of a list stands for."""
    if not isinstance(item, str):
        yield item
    elif item == "forest":
        yield _forest()
    elif item == "over_expected":
        yield from map(_over_expected, dimensions[:1])
    elif item == "usual":
        for name, matcher in (*((rate.name, _KIND) for rate in RATES), ("ndcg", 'k="$k"')):
            yield _of_usual(name, matcher)
    else:
        section = next(one for one in MEAN_SECTIONS if one.name == item)
        # Few kinds have values: all of them are lines of one panel.
        matcher, legend = (
            ("", "{{feedback}} ") if item == "values" else (_CHOSEN[section.label], "")
        )
        for mean in section.means:
            yield _mean(mean.series or mean.name, mean.formula, matcher, legend)


def _forest() -> _Panel:
    """Write the panel of all differences with their bounds, as shares of the control's values.

    A bar begins at 0. So an interval is up to three parts on each side of 0: the way to it, which
    is not painted, and its part on either side of the difference.
    """

    def of(series: str) -> str:
        return f'max by (metric, arm) (streameval_experiment_{series}{{@here, metric=~"$metric"}})'

    control = f"abs({of('value')} - {of('difference')})"
    lines, colors = {}, {}
    for side, clamp, ends in (
        ("above", "clamp_min", {"low": "transparent", "difference": "light-blue", "high": "blue"}),
        ("below", "clamp_max", {"high": "transparent", "difference": "blue", "low": "light-blue"}),
    ):
        reached = ""
        for end, color in ends.items():
            name, length = f"to {end}, {side} 0", f"{clamp}({of(end)} / {control}, 0)"
            lines[name] = f'label_join({length}{reached}, "bar", " ", "metric", "arm")'
            colors[name] = color
            reached = f" - {length}"
    return {
        "title": "Differences with bounds",
        "kind": "bars",
        "unit": "percentunit",
        "about": "As shares of the control's value. A bar is the interval that holds at all looks"
        " together. Its color changes at the difference.",
        "lines": lines,
        "colors": colors,
    }


def _over_expected(arm: str) -> _Panel:
    """Write the panel of `positives_over_expected` for the values of a dimension.

    As offline, ranks without an impression in the control are left out, and so are slates without
    a value of the dimension. An undefined figure has no line.
    """
    arms = f'@here, {arm}!="", {arm}!="{ALL}"'
    control = f'@beside, {arm}="$control"'
    series = "streameval_window_rank_"
    known = f"(sum by (rank) ({series}impressions{{{control}}}) > 0)"
    rates = f"(sum by (rank) ({series}positives{{{control}, {_KIND}}}) / {known})"
    positives = f"sum by ({arm}, rank) ({series}positives{{{arms}, {_KIND}}}) and on (rank) {known}"
    impressions = f"sum by ({arm}, rank) ({series}impressions{{{arms}}})"
    expected = f"sum by ({arm}) ({impressions} * on (rank) group_left () {rates})"
    return {
        "title": f"Positives of $feedback over expected, by {arm}",
        "kind": "graph",
        "unit": "none",
        "width": 24,
        "about": "1 is as many as $control has at the same ranks; 1.1 is 10 % more. Lists that are"
        " only shorter stay near 1. Of the longest window, matured, without bounds.",
        "lines": {f"{{{{{arm}}}}}": f"sum by ({arm}) ({positives}) / ({expected} > 0)"},
    }


_KIND: Final = 'feedback="$feedback"'
_CHOSEN: Final = {"feedback": _KIND, "k": 'k="$k"', "": ""}


def _mean(name: str, formula: str, matcher: str, legend: str = "") -> _Panel:
    """Write the panel of a mean, with two standard errors below and above it."""
    chosen = ", ".join(filter(None, ("@here", 'window="$window"', 'basis=~"$basis"', matcher)))
    mean, error = (f"job:streameval_{each}:mean{{{chosen}}}" for each in (name, f"{name}_stderr"))
    of_basis = f"{legend}{{{{basis}}}} @segment"
    return {
        "title": _heading(name),
        "unit": "s" if name.endswith("_seconds") else "percentunit" if name in _SHARES else "none",
        "about": f"{formula}. Dashes: two standard errors, clustered by user.",
        "lines": {
            of_basis: mean,
            f"{of_basis} - 2 se": f"{mean} - 2 * {error}",
            f"{of_basis} + 2 se": f"{mean} + 2 * {error}",
        },
    }


def _of_usual(name: str, matcher: str) -> _Panel:
    """Write the panel of a live mean as a share of its usual value."""
    return {
        "title": f"{_heading(name)}, live",
        "unit": "percentunit",
        "about": "Every segment as a share of the usual. The alert also asks if it can be chance.",
        "empty": "Shown once there is an hour of history",
        "below": 0.5,
        "lines": {
            "{{window}} @segment": f"job:streameval_{name}:of_usual{{@deployment, {matcher}}}"
        },
    }


def _heading(metric: str) -> str:
    """Write a metric's name as people do: NDCG, Hit rate."""
    spelled = metric.removesuffix("_seconds").replace("_", " ")
    return spelled.upper() if metric in _ABBREVIATIONS else spelled.capitalize()


_JUDGED: Final = 'streameval_experiment_verdict{@deployment, role!="exploratory"}'
_MARKS: Final[Marks] = {
    "Alerts": {
        "color": "red",
        "query": 'ALERTS{@deployment, alertname=~"Streameval.+", alertstate="firing"}',
        "title": "{{alertname}}",
        "tags": "severity",
    },
    "Verdicts": {
        "color": "blue",
        "query": "group by (experiment, arm, metric, verdict) ("
        f'label_replace({_JUDGED} == 1, "verdict", "better", "", "")'
        f' or label_replace({_JUDGED} == -1, "verdict", "worse", "", ""))',
        "title": "{{experiment}}: {{arm}} is {{verdict}} in {{metric}}",
        "tags": "experiment",
    },
    "Versions": {
        "color": "purple",
        "query": "group by (version) (streameval_info{@deployment})"
        " unless group by (version) (streameval_info{@deployment} offset 5m)",
        "title": "streameval {{version}}",
        "tags": "version",
    },
}
"""The marks on all graphs. Grafana's own annotations with the tag `deploy` come on top."""
