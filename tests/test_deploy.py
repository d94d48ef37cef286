"""What lies in deploy/ fits the service: alerts fire when they should, names exist, files agree."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from streameval.cli.dashboard import dashboard
from streameval.cli.rules import rules
from streameval.config.settings import PREFIX, Settings

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
DASHBOARD = DEPLOY / "grafana" / "streameval.json"
GOLDEN = ROOT / "tests" / "golden" / "metrics.prom"

A, B = (f'job="streameval", instance="{name}"' for name in "ab")
COUNTERS = f'streameval_check_passed{{{A}, check="counters_match_log", severity="error"}}'
COUNTERS_RUN = f'streameval_check_last_run_timestamp_seconds{{{A}, check="counters_match_log"}}'
UNANSWERED = f'streameval_check_unanswered_seconds{{{A}, check="metric_regression"}}'
RUNNING = f"streameval_check_running_seconds{{{A}}}"
DRIFT = f'streameval_check_passed{{{A}, check="drift", severity="warning"}}'
STEADY = {
    f"up{{{A}}}": "1x180",
    f"up{{{B}}}": "1x180",
    f"streameval_ready{{{A}}}": "1x180",
    f"streameval_broker_up{{{A}}}": "1x180",
    f"streameval_store_up{{{A}}}": "1x180",
    f"process_start_time_seconds{{{A}}}": "1000x180",
    f'streameval_lag{{{A}, partition="0"}}': "500x180",
    f'streameval_committed_offset{{{A}, partition="0"}}': "0+60000x180",
    f'streameval_checkpoint_age_seconds{{{A}, partition="0"}}': "20x180",
    f'streameval_batch_unreadable{{{A}, partition="0"}}': "0x180",
    f'streameval_watermark_timestamp_seconds{{{A}, partition="0"}}': "0+60x180",
    f'streameval_events_total{{{A}, event="impression"}}': "0+60000x180",
    f'streameval_events_rejected_total{{{A}, reason="late"}}': "0+60x180",
    f'streameval_positives_total{{{A}, variant="A", feedback="click"}}': "0+3000x180",
    f'streameval_unattributed_total{{{A}, reason="no_impression"}}': "0+30x180",
    f"streameval_events_lost_total{{{A}}}": "0x180",
    f"streameval_dead_letters_refused_total{{{A}}}": "0x180",
    f"streameval_key_mismatches_total{{{A}}}": "0x180",
    f"streameval_fences_total{{{A}}}": "0x180",
    f'streameval_overflow_total{{{A}, bound="segments"}}': "0x180",
    COUNTERS: "1x180",
    COUNTERS_RUN: "0+60x180",
    f"streameval_check_interval_seconds{{{A}}}": "900x180",
}
"""A deployment that is well, a value each minute of three hours; timelines change some of it."""


def steady(**changed: str) -> dict[str, str]:
    """The steady timeline with the values of some metrics changed ("" for no such series)."""
    found = {
        series: changed.get(re.match(r"\w+", series)[0].removeprefix("streameval_"), values)
        for series, values in STEADY.items()
    }
    return {series: values for series, values in found.items() if values}


# Alert -> (timeline, minute at which it fires), and what looks alike but must not fire.
FIRES = {
    "StreamevalAbsent": ({"unrelated": "1x180"}, 5),
    "StreamevalWorkerDown": (steady() | {f"up{{{B}}}": "0x180"}, 6),
    "StreamevalRestarting": (steady(process_start_time_seconds="0+100x180"), 30),
    "StreamevalNotReady": (steady(store_up="0x180"), 6),
    "StreamevalStalled": (steady(committed_offset="70000x180"), 15),
    "StreamevalBatchUnreadable": (steady(batch_unreadable="0x10 1x170"), 14),
    "StreamevalBehind": (steady(lag="900000+1000x180"), 25),
    "StreamevalEventsLost": (steady(events_lost_total="_x60 700x119"), 62),
    "StreamevalRejecting": (steady(events_rejected_total="0+900x180"), 40),
    "StreamevalDeadLettersRefused": (steady(dead_letters_refused_total="_x60 7x119"), 62),
    "StreamevalWatermarkAhead": (steady(watermark_timestamp_seconds="3600+60x180"), 5),
    "StreamevalKeyMismatches": (steady(key_mismatches_total="0+1x180"), 40),
    "StreamevalUnattributed": (steady(unattributed_total="0+1000x180"), 65),
    "StreamevalFenced": (steady(fences_total="0+2x180"), 40),
    "StreamevalCheckpointOld": (steady(checkpoint_age_seconds="0+60x180"), 30),
    "StreamevalOverflow": (steady(overflow_total="0x10 1x170"), 15),
    "StreamevalNoEvents": (
        steady(events_total="5000x180", events_rejected_total="60x180"),
        40,
    ),
    "StreamevalCheckFailed": (steady(check_passed="1x60 0x119"), 62),
    "StreamevalCheckWarns": (steady() | {DRIFT: "1x60 0x119"}, 62),
    "StreamevalCheckUnanswered": (steady(check_passed="_x180") | {UNANSWERED: "18000+60x180"}, 65),
    "StreamevalChecksSlow": (steady() | {RUNNING: "0+60x180"}, 22),
    "StreamevalChecksStopped": (steady(check_last_run_timestamp_seconds="0x180"), 52),
}
QUIET = {
    "a steady deployment": steady(),
    "one worker of two restarts within five minutes": steady() | {f"up{{{B}}}": "1x60 0x4 1x115"},
    "a rolling upgrade starts a worker twice": steady(
        process_start_time_seconds="1000x60 4600x10 5200x109"
    ),
    "a batch that cannot be read is skipped within a minute": steady(
        batch_unreadable="0x60 1x1 0x118"
    ),
    "Redis restarts within five minutes": steady(ready="1x60 0x3 1x116", store_up="1x60 0x3 1x116"),
    "an idle topic keeps its last checkpoint": steady(
        committed_offset="70000x180",
        lag="0x180",
        checkpoint_age_seconds="0+60x180",
        events_total="0+1x180",
        positives_total="0x180",
        unattributed_total="0x180",
        events_rejected_total="0x180",
    ),
    "a worker catches up with two million records": steady(
        lag="2000000-100000x19 500x160", events_total="0+600000x180"
    ),
    "a broken producer sends one bad batch": steady(
        events_rejected_total="0x60 20000x119", unattributed_total="0x60 400x119"
    ),
    "event time lags behind the clock": steady(watermark_timestamp_seconds="0+1x180"),
    "two rebalances fence a commit each": steady(fences_total="0x60 1x10 2x109"),
    "checks that have nothing to check": steady()
    | {f'streameval_check_last_run_timestamp_seconds{{{A}, check="off_policy"}}': "0+60x180"},
    "a check waits two hours for its first answer": steady() | {UNANSWERED: "0+60x119 _x60"},
    "the first check of a deployment comes late": steady(
        check_last_run_timestamp_seconds="_x40 2400+60x139", check_passed="_x40 1x139"
    ),
    "another worker leads for a while": steady(
        check_passed="1x60 _x60 1x59",
        check_last_run_timestamp_seconds="0+60x60 _x60 7260+60x59",
        check_interval_seconds="900x60 _x60 900x59",
    )
    | {
        name.replace(A, B): values
        for name, values in {
            COUNTERS: "_x60 1x60",
            COUNTERS_RUN: "_x60 3600+60x59",
            f"streameval_check_interval_seconds{{{A}}}": "_x60 900x60",
        }.items()
    },
    "a counter that was reset by a restart": steady(
        events_total="0+60000x60 0+60000x119", overflow_total="5x60 0x119"
    ),
}


def promtool(*arguments: str) -> str:
    """What promtool prints; skips without it, fails in CI."""
    tool = shutil.which("promtool")
    if tool is None:
        assert "CI" not in os.environ, "promtool is missing: apt-get install prometheus"
        pytest.skip("promtool is missing: apt-get install prometheus")
    result = subprocess.run([tool, *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def firing(folder: Path, timeline: dict[str, str], expected: dict[int, str]) -> None:
    """Assert which alerts fire, in alphabetical order, at each of some minutes of a timeline."""
    tests = [
        {
            "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1}] if alert else [],
        }
        for minute, alert in expected.items()
    ]
    series = [{"series": name, "values": values} for name, values in timeline.items()]
    document = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": tests}],
    }
    path = folder / "alerts_test.yml"
    path.write_text(json.dumps(document), encoding="utf-8")
    promtool("test", "rules", str(path))


def alerts() -> list[dict]:
    _, group = yaml.safe_load(RULES.read_text())["groups"]
    return group["rules"]


def test_rules_and_dashboard_are_the_output_for_the_defaults():
    """`streameval rules > deploy/prometheus/rules.yml`, and with --dashboard the other."""
    assert RULES.read_text() == rules(Settings())
    assert DASHBOARD.read_text() == dashboard(Settings().dimensions)


def test_rules_and_dashboard_follow_the_configuration(tmp_path):
    settings = Settings(dimensions=("surface",), max_clock_skew="10m", checkpoint_interval="1h")
    text = rules(settings)
    assert "variant" not in text + dashboard(settings.dimensions)
    assert "sum by (job, namespace, window, basis, surface, k)" in text
    assert "time() > 840" in text
    assert "streameval_checkpoint_age_seconds > 10800" in text
    assert '"{{surface}} + 2 se"' in dashboard(settings.dimensions)
    path = tmp_path / "rules.yml"
    path.write_text(text, encoding="utf-8")
    promtool("check", "rules", str(path))


def test_every_alert_has_a_timeline_on_which_it_fires():
    assert [alert["alert"] for alert in alerts()] == list(FIRES)


@pytest.mark.parametrize("alert", FIRES)
def test_an_alert_fires_alone_on_its_fault(alert, tmp_path):
    timeline, minute = FIRES[alert]
    firing(tmp_path, timeline, {minute: alert})


@pytest.mark.parametrize("story", QUIET)
def test_no_alert_fires_on_what_only_looks_like_a_fault(story, tmp_path):
    firing(tmp_path, QUIET[story], dict.fromkeys(range(180), ""))


def test_lost_events_are_shown_for_an_hour_and_not_for_ever(tmp_path):
    timeline = steady(events_lost_total="_x60 700x119")
    firing(tmp_path, timeline, {59: "", 61: "StreamevalEventsLost", 175: ""})


def test_checks_that_never_began_are_stopped_too(tmp_path):
    timeline = steady(check_last_run_timestamp_seconds="", check_passed="")
    firing(tmp_path, timeline, {65: "", 70: "StreamevalChecksStopped"})


def test_slow_checks_are_slow_and_have_not_stopped(tmp_path):
    timeline = steady(check_last_run_timestamp_seconds="0x180") | {RUNNING: "0+60x180"}
    firing(tmp_path, timeline, dict.fromkeys((60, 120, 175), "StreamevalChecksSlow"))


def test_every_alert_has_an_entry_in_the_runbook():
    runbook = (ROOT / "docs" / "operations.md").read_text()
    headings = re.findall(r"^### (Streameval\w+)$", runbook, re.MULTILINE)
    assert headings == [alert["alert"] for alert in alerts()]


def test_every_alert_says_how_urgent_it_is():
    for alert in alerts():
        assert alert["labels"]["severity"] in {"page", "ticket"}
        assert alert["annotations"]["summary"].endswith(".")


def test_promtool_accepts_rules_and_configuration():
    promtool("check", "config", str(DEPLOY / "prometheus" / "prometheus.yml"))


def known_series() -> set[str]:
    """Names that a worker exposes or a rule records."""
    page = GOLDEN.read_text(encoding="utf-8")
    exposed = set(re.findall(r"^(streameval_\w+)", page, re.MULTILINE))
    families = set(re.findall(r"^# TYPE (\w+)", page, re.MULTILINE))
    recorded = {rule["record"] for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]}
    return exposed | families | recorded


def test_alerts_ask_only_for_series_that_exist():
    for alert in alerts():
        asked = set(re.findall(r"\bstreameval_\w+", alert["expr"]))
        assert asked <= known_series(), alert["alert"]


def panels() -> list[dict]:
    return json.loads(DASHBOARD.read_text())["panels"]


def queries() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel.get("targets", ())]


def test_the_dashboard_asks_only_for_series_that_exist():
    asked = {
        name for query in queries() for name in re.findall(r"\b(?:job:)?streameval_[\w:]+", query)
    }
    assert asked
    assert asked <= known_series()


def test_the_dashboard_combines_workers_by_the_recorded_rules_and_never_averages():
    for query in queries():
        assert "avg" not in query
        assert not re.search(r"(?<!job:)streameval_(window|positive_rate|ndcg|map|mrr)", query)


def test_the_dashboard_shows_every_recorded_mean_with_its_error():
    shown = {name for query in queries() for name in re.findall(r"job:[\w:]+", query)}
    recorded = {name for name in known_series() if name.startswith("job:")}
    assert recorded - shown == {"job:streameval_window_positives:sum"}


def test_panels_have_ids_of_their_own_and_do_not_overlap():
    cells: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        mine = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24
        assert not mine & cells, panel["title"]
        cells |= mine
    assert len({panel["id"] for panel in panels()}) == len(panels())


def test_promtool_accepts_every_query_of_the_dashboard(tmp_path):
    rules = [
        {"record": f"q{number}", "expr": query.replace("$__rate_interval", "1m")}
        for number, query in enumerate(queries())
    ]
    path = tmp_path / "queries.yml"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", str(path))


def test_the_dashboard_uses_the_data_source_and_the_variables_that_there_are():
    sources = yaml.safe_load(
        (DEPLOY / "grafana" / "provisioning" / "datasources" / "prometheus.yml").read_text()
    )
    text = DASHBOARD.read_text()
    assert set(re.findall(r'"uid": "(\w+)"', text)) == {
        "streameval",
        *(source["uid"] for source in sources["datasources"]),
    }
    variables = {each["name"] for each in json.loads(text)["templating"]["list"]}
    used = {name for query in queries() for name in re.findall(r"\$(\w+)", query)}
    assert used - {"__rate_interval"} <= variables


def compose() -> dict:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def test_compose_gives_the_worker_settings_that_exist():
    for name in compose()["services"]["worker"]["environment"]:
        assert name.removeprefix(PREFIX).lower() in Settings.model_fields


def test_compose_names_only_services_volumes_and_files_that_exist():
    document = compose()
    for name, service in document["services"].items():
        assert set(service.get("depends_on", {})) <= set(document["services"]), name
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (
                (ROOT / source).exists()
                if source.startswith(".")
                else source in document["volumes"]
            ), volume
    build = document["services"]["worker"]["build"]
    assert (ROOT / build["context"] / build["dockerfile"]).is_file()


def test_compose_opens_ports_to_this_machine_only():
    ports = [port for each in compose()["services"].values() for port in each.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_compose_runs_a_redis_that_keeps_everything():
    command = " ".join(compose()["services"]["redis"]["command"])
    assert "--maxmemory-policy noeviction" in command
    assert "--appendonly yes" in command


def test_compose_makes_the_topics_that_the_worker_reads_by_default():
    (script,) = compose()["services"]["topics"]["command"]
    defaults = Settings.model_fields
    assert re.findall(r"--topic (\S+)", script) == [
        defaults["topic"].default,
        defaults["dead_letter_topic"].default,
    ]
    assert "message.timestamp.type=LogAppendTime" in script
    result = subprocess.run(
        ["bash", "-n"], input=script.replace("$$", "$"), capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_the_worker_container_can_do_little_and_has_time_to_stop():
    worker = compose()["services"]["worker"]
    assert worker["read_only"] is True
    assert worker["cap_drop"] == ["ALL"]
    grace = int(worker["stop_grace_period"].removesuffix("s"))
    assert grace * 1000 > Settings.model_fields["shutdown_deadline"].default


def test_the_image_runs_as_nobody_special_and_copies_only_what_docker_sees():
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    final = lines[max(at for at, line in enumerate(lines) if line.startswith("FROM ")) :]
    assert "USER 10001" in final
    assert any(line.startswith("HEALTHCHECK") for line in final)
    allowed = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    copied = {
        source.removeprefix("./")
        for line in lines
        if line.startswith("COPY ") and "--from" not in line
        for source in line.split()[1:-1]
    }
    assert copied == allowed
    assert all((ROOT / source).exists() for source in copied - {"README.md"})
