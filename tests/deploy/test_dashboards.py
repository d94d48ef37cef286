"""Grafana's dashboards: those in deploy/ are current, complete, and of one style.

`test_on_prometheus` asks all their queries.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus import promtool
from test_deploy import DEPLOY, GOLDEN, alerts, group, known_series

from streameval.cli import dashboards
from streameval.config.settings import Settings
from streameval.core.metrics import LIST_MEANS, RANKING, RATES, VALUE_MEANS

BOARDS = {name: DEPLOY / "grafana" / f"{name}.json" for name in dashboards.NAMES}
each_board = pytest.mark.parametrize("name", BOARDS)
WHERE = {"datasource", "namespace", "job"}


def board(name: str) -> dict:
    return json.loads(BOARDS[name].read_text())


def panels_of(document: dict) -> list[dict]:
    """The panels with queries."""
    return [panel for panel in document["panels"] if panel.get("targets")]


def queries_of(document: dict) -> list[str]:
    """The queries of the panels and of the annotations."""
    asked = [target["expr"] for panel in panels_of(document) for target in panel["targets"]]
    return asked + [mark["expr"] for mark in document["annotations"]["list"] if "expr" in mark]


def variables_of(document: dict) -> dict[str, dict]:
    return {each["name"]: each for each in document["templating"]["list"]}


def panels(name: str) -> list[dict]:
    return panels_of(board(name))


def queries(name: str) -> list[str]:
    return queries_of(board(name))


def variables(name: str) -> dict[str, dict]:
    return variables_of(board(name))


def series_of(query: str) -> set[str]:
    return set(re.findall(r"\b(?:job:)?streameval_[\w:]+", query))


def shown() -> set[str]:
    return {found for name in BOARDS for query in queries(name) for found in series_of(query)}


@each_board
def test_a_dashboard_is_the_output_for_the_defaults(name):
    """`streameval rules --dashboard NAME > deploy/grafana/NAME.json`."""
    assert BOARDS[name].read_text() == dashboards.dashboard_json(name, Settings().dimensions)


def test_all_dashboards_are_there():
    assert {path.stem for path in (DEPLOY / "grafana").glob("*.json")} == {*BOARDS}


@each_board
def test_the_schema_of_the_sdk_reads_a_dashboard_and_writes_the_same(name):
    document = board(name)
    again = json.loads(json.dumps(Dashboard.from_json(document), default=lambda one: one.to_json()))
    # Words of values are a class without a reader in the SDK.
    assert without(again, "mappings") == without(document, "mappings")


def without(value, key):
    if isinstance(value, dict):
        return {name: without(each, key) for name, each in value.items() if name != key}
    return [without(each, key) for each in value] if isinstance(value, list) else value


def test_dashboards_follow_the_dimensions():
    text = dashboards.dashboard_json("quality", ("surface", "country"))
    assert not re.search(r"\bvariant\b", text)
    made = json.loads(text)
    chosen = {each["name"]: each for each in made["templating"]["list"]}
    assert chosen["surface"]["current"]["value"] == ["$__all"]
    assert chosen["country"]["current"]["value"] == ["__all__"], "the totals over it"
    (ndcg,) = (panel for panel in made["panels"] if panel["title"] == "NDCG")
    mean = ndcg["targets"][0]
    assert mean["legendFormat"] == "{{basis}} {{surface}} {{country}}"
    assert 'surface=~"$surface", country=~"$country"' in mean["expr"]
    assert chosen["control"]["query"].endswith(', surface!="__all__"}, surface)')
    (over,) = (panel for panel in made["panels"] if panel["title"].endswith("expected, by surface"))
    control = 'namespace=~"$namespace", country=~"$country", surface="$control"'
    assert over["targets"][0]["expr"].count(control) == 3


def test_a_service_without_dimensions_has_dashboards():
    made = json.loads(dashboards.dashboard_json("quality", ()))
    names = {each["name"] for each in made["templating"]["list"]}
    assert names == WHERE | {"window", "basis", "feedback", "k"}
    assert not [panel for panel in made["panels"] if "over expected" in panel["title"]]


# --- what they show -------------------------------------------------------------------------------


@each_board
def test_a_dashboard_asks_only_for_series_that_exist(name):
    asked = {found for query in queries(name) for found in series_of(query)}
    assert asked
    assert asked <= known_series()


@each_board
def test_a_dashboard_combines_workers_by_the_recorded_rules_and_never_averages(name):
    for query in queries(name):
        assert "avg" not in query
        means = "window_(?!rank)|positive_rate|ndcg|map|mrr"
        assert not re.search(rf"(?<!job:)streameval_({means})", query)


def test_the_dashboards_show_every_family_of_the_page():
    page = GOLDEN.read_text(encoding="utf-8")
    families = set(re.findall(r"^# TYPE (\w+)", page, re.MULTILINE))
    found = {re.sub("^job:|_bucket$|:\\w+$", "", series) for series in shown()}
    assert families - found == set()


def test_the_dashboards_show_every_recorded_figure_with_its_error():
    assert {rule["record"] for rule in group("streameval")} - shown() == set()


def test_the_dashboards_show_every_figure_that_an_alert_compares():
    names = (rule["record"] for name in ("usual", "weeks") for rule in group(f"streameval-{name}"))
    assert {name for name in names if re.search(":of_usual$|_fall$", name)} - shown() == set()


def test_the_panels_of_figures_say_their_formulas():
    said = {panel["description"] for panel in panels("quality")}
    for metric in (*RATES, *RANKING, *LIST_MEANS, *VALUE_MEANS):
        assert any(text.startswith(metric.formula) for text in said), metric.name


def asked(tmp_path, title: str, series: dict[str, str], expected: list[list[dict]]) -> None:
    """Ask the queries of a panel for samples at one time; they are in the order of its lines."""
    (panel,) = (
        each for each in panels("experiments") + panels("quality") if each["title"] == title
    )
    choices = {"job": ".+", "namespace": ".*", "variant": ".*", "metric": ".+"}
    choices |= {"experiment": "e", "feedback": "click", "control": "A"}
    tests = []
    for target, samples in zip(panel["targets"], expected, strict=True):
        query = re.sub(r"\$([a-z]+)", lambda gap: choices[gap[1]], target["expr"])
        tests.append({"expr": query, "eval_time": "0m", "exp_samples": samples})
    given = [{"series": name, "values": value} for name, value in series.items()]
    path = tmp_path / "panel_test.yml"
    document = {"tests": [{"input_series": given, "promql_expr_test": tests}]}
    path.write_text(json.dumps(document))
    promtool("test", "rules", str(path))


@pytest.mark.parametrize(
    ("low", "difference", "high", "lengths"),
    [
        (0.5, 1, 1.5, (0.25, 0.25, 0.25, 0, 0, 0)),
        (-1.5, -1, -0.5, (0, 0, 0, -0.25, -0.25, -0.25)),
        (-0.5, 1, 2, (0, 0.5, 0.5, 0, 0, -0.25)),
        (-2, -1, 0.5, (0, 0, 0.25, 0, -0.5, -0.5)),
    ],
)
def test_bars_of_a_forest_plot_reach_from_bound_to_bound(low, difference, high, lengths, tmp_path):
    """The control's value is 2. Parts up from 0 to low, difference, high; down to high, and so on.

    The control itself has a value only, and no bar.
    """
    of = {"value": 2 + difference, "low": low, "difference": difference, "high": high}
    series = {
        f'streameval_experiment_{name}{{job="j",experiment="e",arm="B",metric="m"}}': str(number)
        for name, number in of.items()
    } | {'streameval_experiment_value{job="j",experiment="e",arm="A",metric="m"}': "2"}
    labels = '{arm="B",metric="m",bar="m B"}'
    expected = [[{"labels": labels, "value": length}] for length in lengths]
    asked(tmp_path, "Differences with bounds", series, expected)


@pytest.mark.parametrize(
    ("verdict", "low", "high", "says", "value"),
    [
        (1, 0.25, 0.5, "is better, by at least", 0.25),
        (1, -0.5, -0.25, "is better, by at least", 0.25),  # of a latency, say
        (-1, -0.5, -0.25, "is worse, by at least", 0.25),
        (0, -0.5, 0.25, "shows no difference; users still needed", 400),
    ],
)
def test_a_named_metric_is_told_in_words(verdict, low, high, says, value, tmp_path):
    where = 'job="j",experiment="e",arm="B"'
    of = {"low": low, "high": high, "users_needed": 400}
    series = {
        f'streameval_experiment_{name}{{{where},metric="{metric}"}}': str(number)
        for name, number in of.items()
        for metric in ("m", "hint")
    }
    for metric, role in (("m", "guardrail"), ("hint", "exploratory")):
        labels = f'{where},metric="{metric}",role="{role}"'
        series[f"streameval_experiment_verdict{{{labels}}}"] = str(verdict)
    sentence = {"labels": f'{{arm="B",metric="m",says="{says}"}}', "value": value}
    asked(tmp_path, "In words", series, [[sentence]])


def test_rates_by_rank_stand_in_the_order_of_ranks(tmp_path):
    series = {}
    for rank, positives in (("2", 1), ("10", 2), ("21+", 3)):
        labels = f'job="j",window="1h",basis="matured",variant="A",rank="{rank}"'
        series[f"streameval_window_rank_impressions{{{labels}}}"] = "4"
        series[f'streameval_window_rank_positives{{{labels},feedback="click"}}'] = str(positives)
    expected = [
        {"labels": f'{{rank="{rank}",variant="A",bar="{rank} A"}}', "value": share}
        for rank, share in (("02", 0.25), ("10", 0.5), ("21+", 0.75))
    ]
    asked(tmp_path, "Positives of $feedback per impression by rank", series, [expected])


def test_a_heat_map_takes_each_series_as_a_row_with_rank_1_on_top():
    (panel,) = (each for each in panels("quality") if each["type"] == "heatmap")
    options = panel["options"]
    assert options["calculate"] is False
    assert options["yAxis"]["reverse"] is True
    assert options["cellValues"]["unit"] == panel["fieldConfig"]["defaults"]["unit"]
    assert options["filterValues"]["le"] < 0, "0 clicks have a color"
    # In the format of histograms Grafana would subtract each row from the next.
    assert [each.get("format") for each in panel["targets"]] == [None]


def test_bars_are_sorted_and_parts_of_a_bar_have_colors():
    made = [each for name in BOARDS for each in panels(name) if each["type"] == "barchart"]
    assert len(made) == 2
    for panel in made:
        assert panel["options"]["xField"] == "bar"
        assert [each["id"] for each in panel["transformations"]][-1] == "sortBy"
        stacked = panel["options"].get("stacking") == "normal"
        assert stacked == (len(panel["targets"]) > 1)
        organized = panel["transformations"][1]["options"]["renameByName"]
        colored = {each["matcher"]["options"] for each in panel["fieldConfig"]["overrides"]}
        assert colored == (set(organized.values()) if stacked else set())


# --- their style ----------------------------------------------------------------------------------


@each_board
def test_a_panel_has_a_title_a_description_a_unit_and_legends(name):
    for panel in panels(name):
        assert panel["title"]
        assert panel["description"].endswith((".", ")"))
        assert panel["fieldConfig"]["defaults"]["unit"]
        legends = [target["legendFormat"] for target in panel["targets"]]
        assert panel["type"] == "table" or all(legends)
        assert len(set(legends)) == len(legends) or panel["type"] == "table"
        assert panel["datasource"]["uid"] == "${datasource}"
        if panel["type"] in {"timeseries", "state-timeline"}:
            assert panel["options"]["legend"]["showLegend"] is True


@each_board
def test_panels_have_ids_of_their_own_and_do_not_overlap(name):
    cells: set[tuple[int, int]] = set()
    all_panels = board(name)["panels"]
    for panel in all_panels:
        at = panel["gridPos"]
        mine = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24
        assert not mine & cells, panel["title"]
        cells |= mine
    assert len({panel["id"] for panel in all_panels}) == len(all_panels)


def limit_of(panel: dict) -> float | None:
    steps = panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", [{}])
    return steps[-1].get("value")


def test_the_lines_of_panels_are_where_alerts_begin():
    """The number of a line stands in the expression of an alert on one of the panel's series."""
    found = 0
    for name in BOARDS:
        for panel in panels(name):
            limit = limit_of(panel)
            if limit is None or panel["title"] == "Failed":
                continue
            found += 1
            asked = {one for target in panel["targets"] for one in series_of(target["expr"])}
            about = [alert["expr"] for alert in alerts() if asked & series_of(alert["expr"])]
            numbers = {
                eval_product(number)
                for expression in about
                for number in re.findall(r"[<>] (\d[\d. *]*)", expression)
            }
            assert limit in numbers, panel["title"]
    assert found > 10


def eval_product(text: str) -> float:
    product = 1.0
    for factor in text.strip(" .*").split("*"):
        product *= float(factor)
    return product


@each_board
def test_a_dashboard_uses_all_its_variables_and_no_other(name):
    text = json.dumps([board(name)["panels"], board(name)["annotations"]])
    # A digit is a group of a regular expression, which Grafana leaves as it is.
    used = set(re.findall(r"\$\{?([a-z_]\w*)", text)) - {"__rate_interval"}
    chosen = json.dumps([each.get("query", "") for each in variables(name).values()])
    assert used | set(re.findall(r"\$(\w+)", chosen)) | {"datasource"} == set(variables(name))
    assert set(variables(name)) >= WHERE
    assert {panel.get("repeat", "job") for panel in panels(name)} <= set(variables(name))


@each_board
def test_every_query_is_about_the_chosen_deployment(name):
    for query in queries(name):
        selectors = re.findall(r"\b(?:job:)?(?:streameval|process|ALERTS)[\w:]*{([^}]*)}", query)
        assert selectors
        for selector in selectors:
            assert selector.startswith('job=~"$job", namespace=~"$namespace"')


@each_board
def test_a_dashboard_links_the_others_and_marks_alerts_verdicts_and_deploys(name):
    (link,) = board(name)["links"]
    assert (link["type"], link["tags"]) == ("dashboards", ["streameval"])
    assert link["tags"] == board(name)["tags"]
    assert link["includeVars"] is link["keepTime"] is True
    marks = board(name)["annotations"]["list"]
    assert [mark["name"] for mark in marks] == ["Alerts", "Verdicts", "Versions", "Deploys"]
    for mark in marks[:-1]:
        assert mark["target"]["expr"] == mark["expr"]
        assert re.findall(r"{{(\w+)}}", mark["titleFormat"])


def test_compose_begins_with_the_dashboard_of_quality():
    compose = yaml.safe_load((DEPLOY.parent / "docker-compose.yml").read_text())
    home = compose["services"]["grafana"]["environment"][
        "GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"
    ]
    assert Path(home).name == "quality.json"


@each_board
def test_grafanas_linter_has_nothing_to_say(name):
    """The linter is a Go program that no package has: it is asked where somebody names it."""
    linter = os.environ.get("STREAMEVAL_DASHBOARD_LINTER")
    if linter is None:
        pytest.skip("STREAMEVAL_DASHBOARD_LINTER names no dashboard-linter")
    command = [linter, "lint", "--strict", str(BOARDS[name])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
