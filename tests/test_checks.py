"""Checks: on clean files all pass; each planted fault fails exactly the check that is about it.

The files are written by the service's own writers from a seeded stream through the core: two
partitions, two variants of equal quality, scores that are the truth, propensities that are.
"""

import json
import random
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet
import pytest
from clean_service import (
    DEFINITION,
    LENGTH,
    MINUTE,
    SPECIFICATION,
    START,
    Service,
    clean,
    edit,
    failures,
    one_slate,
    results,
    stream,
)

from streameval.core.errors import ConfigError, InputError
from streameval.core.events import FeedbackEvent, SlateEvent
from streameval.core.figures import figures, merge
from streameval.core.metrics import RANKING, Scorer
from streameval.offline import specification
from streameval.offline.checks import runner, sql
from streameval.offline.checks.evidence import Log, gather
from streameval.offline.checks.scheduled import check_snapshot, reference_for
from streameval.offline.checks.table import CHECKS
from streameval.settings import Settings
from streameval.stream import schedule
from streameval.stream.schedule import SnapshotSchedule


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """A clean service that no test changes."""
    return clean(tmp_path_factory.mktemp("clean"))


# --- clean, and each fault ------------------------------------------------------------------------


def test_on_clean_files_every_check_runs_and_passes(service):
    found = results(service)
    assert list(found) == [check.name for check in CHECKS]
    wrong = {name: result.message for name, result in found.items() if result.passed is not True}
    assert wrong == {}


def test_a_changed_counter_fails_the_recount_and_nothing_else(tmp_path):
    def change(users):
        users[min(users)][4][0] += 1

    service = clean(tmp_path, change=change)
    found = results(service)
    assert failures(found) == {"counters_match_log"}
    user = min(service.users)[1]
    assert f"user {user!r} has positives" in found["counters_match_log"].message
    assert found["counters_match_log"].value == 1


def test_a_users_hash_that_is_gone_fails_the_recount(tmp_path):
    gone = []

    def change(users):
        gone.append(min(users))
        del users[gone[0]]

    found = results(clean(tmp_path, change=change))
    assert failures(found) == {"counters_match_log"}
    assert f"user {gone[0][1]!r} has none" in found["counters_match_log"].message


def test_a_removed_outcome_row_fails_the_windows_and_nothing_else(tmp_path):
    service = clean(tmp_path)
    seen = []

    def drop(row):
        seen.append(row)
        # One of the middle of the last hour that has matured.
        inside = row["time"].timestamp() * 1000 > START + LENGTH - 80 * MINUTE
        if inside and not any(known is None for known in seen):
            seen.append(None)
            return None
        return row

    edit(service, drop)
    found = results(service)
    assert None in seen
    assert failures(found) == {"windows_match_outcomes"}
    assert "the rows give" in found["windows_match_outcomes"].message


def test_a_positive_taken_from_a_row_fails_the_windows_and_nothing_else(tmp_path):
    service = clean(tmp_path)
    taken = []

    def forget(row):
        late = row["time"].timestamp() * 1000 > START + LENGTH - 80 * MINUTE
        if late and not taken and [one["retract"] for one in row["feedback"]] == [False]:
            taken.append(row)
            return row | {"feedback": []}
        return row

    edit(service, forget)
    found = results(service)
    assert taken
    assert failures(found) == {"windows_match_outcomes"}


def test_dropped_positions_fail_the_positions_and_nothing_else(tmp_path):
    service = clean(tmp_path)

    def drop(row):
        return row | {"positions": [None] * 5} if row["offset"] % 10 == 0 else row

    edit(service, drop)
    found = results(service)
    assert failures(found) == {"positions_complete"}
    assert "have no position, most in variant" in found["positions_complete"].message


def test_feedback_out_of_its_window_fails_attribution_and_nothing_else(tmp_path):
    service = clean(tmp_path)
    bound = DEFINITION.attribution_window

    def delay(row):
        late = [one | {"delay": one["delay"] + bound} for one in row["feedback"]]
        return row | {"feedback": late} if row["offset"] % 50 == 0 else row

    edit(service, delay)
    found = results(service)
    assert failures(found) == {"attribution_complete"}
    assert "cannot be where they are" in found["attribution_complete"].message


def test_feedback_without_impressions_fails_attribution_and_nothing_else(tmp_path):
    events = stream()
    lost = [
        FeedbackEvent(
            ts=event.ts,
            user_id=event.user_id,
            item_id="elsewhere",
            feedback="click",
            request_id="unknown",
        )
        for event in events[::10]
    ]
    service = clean(tmp_path, sorted([*events, *lost], key=lambda event: event.ts))
    found = results(service)
    assert failures(found) == {"attribution_complete"}
    assert "found no impression" in found["attribution_complete"].message


def test_a_bot_fails_the_traffic_and_nothing_else(tmp_path):
    chance = random.Random(5)
    begin = (START + LENGTH - 120 * MINUTE) // MINUTE * MINUTE
    bot = [
        event
        for number in range(100)
        for event in one_slate(chance, 10**6 + number, "bot", begin + 500 * number, "A")
    ]
    service = clean(tmp_path, sorted([*stream(), *bot], key=lambda event: event.ts))
    found = results(service)
    assert failures(found) == {"traffic_sane"}
    assert "user 'bot' was shown 100 slates in a minute" in found["traffic_sane"].message


def test_a_split_of_52_to_48_fails_the_sample_ratio_and_nothing_else(tmp_path):
    events = stream(seed=3, users=60_000, slates=40_000, share_of_b=0.52)
    service = clean(tmp_path, events, halves=False)
    found = results(service, reference=None, log={})
    assert failures(found) == {"sample_ratio"}
    assert "the split is not the configured one" in found["sample_ratio"].message


def test_a_shifted_score_fails_the_scores_and_nothing_else(tmp_path):
    found = results(clean(tmp_path, stream(score_shift=0.2)))
    assert failures(found) == {"logged_scores"}
    assert "scores are shifted" in found["logged_scores"].message


def test_scores_the_wrong_way_round_have_an_auc_below_a_coins(tmp_path):
    service = clean(tmp_path)
    edit(service, lambda row: row | {"scores": [1 - score for score in row["scores"]]})
    found = results(service, {"logged_scores": {}})
    assert failures(found) == {"logged_scores"}
    assert "do not tell positives from the rest" in found["logged_scores"].message


def test_a_worse_variant_fails_the_regression_and_nothing_else(tmp_path):
    events = stream(seed=4, slates=12_000, skill={"B": 0.4})
    service = clean(tmp_path, events, halves=False)
    found = results(service, {"logged_scores": {}}, reference=None)
    assert failures(found) == {"metric_regression"}
    assert "ndcg@10 of variant 'B' against 'A'" in found["metric_regression"].message


def test_a_worse_period_fails_the_regression_and_nothing_else(tmp_path):
    middle = START + LENGTH // 2
    good, bad = (
        stream(seed=6, slates=12_000),
        stream(seed=6, slates=12_000, skill={"A": 0.5, "B": 0.5}),
    )
    shown = {event.request_id: event.ts for event in good if isinstance(event, SlateEvent)}
    events = [event for event in good if shown[event.request_id] < middle]
    events += [event for event in bad if shown[event.request_id] >= middle]
    service = clean(tmp_path, sorted(events, key=lambda event: event.ts))
    relaxed = {"logged_scores": {}, "drift": {"max_distance": 0.5}}
    found = results(service, relaxed)
    assert failures(found) == {"metric_regression"}
    assert "now against the reference" in found["metric_regression"].message


def test_other_items_than_in_the_reference_are_a_drift_and_nothing_else(tmp_path):
    service = clean(tmp_path)
    middle = START + LENGTH // 2

    def rename(row):
        new = row["time"].timestamp() * 1000 > middle
        items = ["new" if new and item == "i3" else item for item in row["items"]]
        return row | {"items": items}

    edit(service, rename)
    found = results(service, {"drift": {"max_distance": 0.05}})
    assert failures(found) == {"drift"}
    assert "items: " in found["drift"].message


def test_old_files_fail_the_freshness_and_nothing_else(service):
    spec = specification.Specification.model_validate(SPECIFICATION)
    evidence = gather(str(service.outcomes), DEFINITION, service.now() + 60 * MINUTE)
    found = {result.name: result for result in runner.run(evidence, spec)}
    assert failures(found) == {"freshness"}
    assert "has been final for" in found["freshness"].message


def test_weights_that_collapse_are_refused_and_nothing_else_fails(tmp_path):
    service = clean(tmp_path)
    left = [1e-6]

    def collapse(row):
        now = row["time"].timestamp() * 1000 > START + LENGTH - 60 * MINUTE
        return row | {"propensities": [left.pop() if now and left else 1.0, *[1.0] * 4]}

    edit(service, collapse)
    found = results(service)
    assert failures(found) == {"off_policy"}
    assert "effective rounds" in found["off_policy"].message
    assert "no estimate" in found["off_policy"].message


# --- the command ----------------------------------------------------------------------------------


def command(service, tmp_path, *arguments):
    """Run `streameval check` on what a service left, with its log as files."""
    config, spec = tmp_path / "streameval.yaml", tmp_path / "checks.yaml"
    config.write_text(
        "positives: [click, buy]\ngains: {buy: 3}\n"
        "windows: [{size: 1h, slide: 1m}, {size: 4h, slide: 10m}]\n"
    )
    spec.write_text(json.dumps(SPECIFICATION))
    logs = []
    for number, events in service.logs.items():
        path = tmp_path / f"{number}.jsonl"
        path.write_bytes(b"".join(encoded(event) + b"\n" for event in events))
        logs += ["--log", f"{number}={path}"]
    given = ["--outcomes", service.outcomes, "--snapshot", service.root / "later", *logs]
    given += ["--reference", service.root / "earlier", "--at", service.now(), "--spec", spec]
    return subprocess.run(
        [sys.executable, "-m", "streameval.cli", "check", "--config", config]
        + [str(argument) for argument in (*given, *arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def encoded(event):
    """An event as a producer sends it."""
    if isinstance(event, FeedbackEvent):
        return msgspec.json.encode(event)
    items = [
        {"item_id": item, "position": place, "score": score, "propensity": propensity}
        for item, place in event.items.items()
        for score, propensity in (event.details[item],)
    ]
    names = ("ts", "user_id", "request_id", "variant")
    head = {"type": "slate"} | {name: getattr(event, name) for name in names}
    return msgspec.json.encode(head | {"items": items})


def test_the_command_passes_with_exit_code_0(service, tmp_path):
    ran = command(service, tmp_path, "--json")
    assert (ran.returncode, ran.stderr) == (0, "")
    document = json.loads(ran.stdout)
    assert document["passed"] is True
    assert [(one["name"], one["passed"]) for one in document["checks"]] == [
        (check.name, True) for check in CHECKS
    ]


def test_the_command_fails_with_exit_code_1_and_a_line_that_says_why(tmp_path):
    def change(users):
        users[min(users)][0] += 7

    service = clean(tmp_path / "service", stream(slates=3_000), change=change)
    ran = command(service, tmp_path)
    assert ran.returncode == 1
    (line,) = [line for line in ran.stdout.splitlines() if line.startswith("fail")]
    assert line.startswith("fail counters_match_log: 1 of")
    assert "has impressions" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--log", "x.jsonl"], "write PARTITION=FILE"),
        (["--log", "0=nowhere.jsonl"], "cannot read nowhere.jsonl"),
        (["--snapshot", "nowhere"], "nowhere is no snapshot"),
        (["--reference", "nowhere"], "neither a snapshot nor outcome files"),
    ],
)
def test_what_the_command_cannot_read_is_one_line_and_exit_code_2(
    service, tmp_path, arguments, message
):
    ran = command(service, tmp_path, *arguments)
    assert ran.returncode == 2
    assert message in ran.stderr
    assert ran.stderr.count("\n") == 1


# --- on schedule ----------------------------------------------------------------------------------


def scheduled(service, tmp_path):
    """Settings and the two snapshots of a service, as the leader's schedule has them."""
    root, spec = tmp_path / "snapshots", tmp_path / "checks.yaml"
    root.mkdir()
    names = ("20231114T230000Z-1", "20231115T010000Z-1")
    for name, known in zip(names, ("earlier", "later"), strict=True):
        shutil.copytree(service.root / known, root / name)
    spec.write_text(json.dumps(SPECIFICATION))
    settings = Settings(
        positives=("click", "buy"),
        gains={"buy": 3.0},
        windows=({"size": "1h", "slide": "1m"}, {"size": "4h", "slide": "10m"}),
        outcomes=str(service.outcomes),
        snapshots=root,
        checks=spec,
    )
    return settings, root / names[0], root / names[1]


def test_the_leader_shows_how_the_checks_of_the_newest_snapshot_ended(service, tmp_path):
    """The rows are of 2023, so freshness fails; the log is not at hand; all others pass."""
    settings, _, later = scheduled(service, tmp_path)
    assert SnapshotSchedule(settings).results() == []
    before = time.time()
    check_snapshot(settings, later)
    shown = {status.name: status for status in SnapshotSchedule(settings).results()}
    assert list(shown) == [check.name for check in CHECKS]
    ended = {name: status.passed for name, status in shown.items()}
    assert ended == dict.fromkeys(ended, True) | {"freshness": False, "counters_match_log": None}
    assert before - 1 < shown["drift"].time < time.time() + 1
    assert shown["drift"].seconds > 0


def test_the_reference_is_the_newest_snapshot_of_the_age_that_was_asked_for(tmp_path):
    names = ("20231114T010000Z-1", "20231114T020000Z-1", "20231114T030000Z-1", "20231114T040000Z-1")
    first, second, third, fourth = (tmp_path / name for name in names)
    for path in (first, second, third, fourth):
        path.mkdir()
    hour = 60 * MINUTE
    assert reference_for(fourth, 2 * hour) == second
    assert reference_for(fourth, hour) == third
    assert reference_for(fourth, 24 * hour) == first
    assert reference_for(first, hour) is None


def test_checks_on_schedule_need_outcome_files(service, tmp_path):
    settings, _, later = scheduled(service, tmp_path)
    with pytest.raises(ConfigError, match="outcomes: name the folder"):
        check_snapshot(settings.model_copy(update={"outcomes": None}), later)


def test_what_goes_wrong_with_checks_is_said_and_the_snapshot_stays_good(service, tmp_path, caplog):
    settings, _, later = scheduled(service, tmp_path)
    with caplog.at_level("INFO"):
        schedule._check(settings, later)
        schedule._check(settings.model_copy(update={"outcomes": None}), later)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].startswith("check freshness failed: the newest outcome row has been final for")
    assert lines[1] == "11 checks ran"
    assert lines[2].startswith("no checks: outcomes: name the folder")
    assert len(lines) == 3


# --- details --------------------------------------------------------------------------------------


@pytest.mark.parametrize("ndcg_gain", ["linear", "exponential"])
def test_the_formulas_in_sql_give_the_kernels_integers(ndcg_gain):
    """Any ranks and gains, any k: to the last bit, so that comparing exactly is no lottery."""
    definition = replace(DEFINITION, ndcg_gain=ndcg_gain, ks=(1, 3, 10, 50))
    chance = random.Random(7)
    rows = []
    for _ in range(3_000):
        ranks = sorted(chance.sample(range(1, 60), chance.randrange(0, 25)))
        rows.append((tuple(ranks), tuple(chance.choice([1.0, 3.0, 0.37, 2.5]) for _ in ranks)))
    expected = Scorer(definition.ks, ndcg_gain).score(rows)
    table = pa.table(
        {
            "relevant": pa.array(
                [
                    [{"rank": rank, "gain": gain} for rank, gain in zip(*row, strict=True)]
                    for row in rows
                ],
                pa.list_(pa.struct([("rank", pa.int32()), ("gain", pa.float64())])),
            )
        }
    )
    columns = [
        sql.nano_score(metric, k, definition) for k in definition.ks for metric in sql.METRICS
    ]
    with duckdb.connect() as connection:
        connection.register("judged", table)
        found = connection.execute(f"SELECT {', '.join(columns)} FROM judged").fetchall()
    assert [list(row) for row in found] == expected.tolist()
    assert [metric.name for metric in RANKING] == list(sql.METRICS)


def test_a_part_of_the_log_gives_what_counters_grew_by(tmp_path):
    service = clean(tmp_path)
    skipped = {number: len(events) // 20 for number, events in service.logs.items()}
    log = {
        number: Log(skipped[number], events[skipped[number] :])
        for number, events in service.logs.items()
    }
    found = results(service, log=log)["counters_match_log"]
    assert found.passed is True, found.message
    without = results(service, log=log, reference=None)["counters_match_log"]
    assert without.passed is None
    assert "give an earlier snapshot" in without.message


def test_a_sample_recounts_some_users(service):
    spec = {"counters_match_log": {"sample": 0.1}}
    every = results(service)["counters_match_log"].message
    some = results(service, spec)["counters_match_log"]
    assert some.passed is True
    assert some.message != every


def test_without_snapshot_and_reference_the_checks_say_what_they_lack(service):
    found = results(service, snapshot=None, reference=None, log={})
    lacking = {name: result.message for name, result in found.items() if result.passed is None}
    assert set(lacking) == {"counters_match_log", "windows_match_outcomes", "drift"}
    assert all(message.startswith("not checked: give a") for message in lacking.values())


def test_without_dimensions_the_windows_match_too(tmp_path):
    plain = replace(DEFINITION, dimensions=(), ndcg_gain="exponential")
    service = Service(tmp_path, plain).take(stream(slates=1_000))
    service.snapshot("later")
    found = results(service, reference=None, log={})["windows_match_outcomes"]
    assert found.passed is True, found.message


def test_a_folder_of_outcome_files_is_a_reference_too(service, tmp_path):
    other = Service(tmp_path).take(stream(seed=9))
    found = results(service, reference=other.outcomes)
    assert found["drift"].passed is True
    with pytest.raises(InputError, match="neither a snapshot nor outcome files"):
        results(service, reference=tmp_path)


def test_a_check_that_is_off_does_not_run_and_a_warning_does_not_fail(service):
    given = {
        "drift": {"severity": "off"},
        "freshness": {"severity": "warning", "max_age_seconds": 1e-9},
    }
    found = results(service, given)
    assert "drift" not in found
    assert found["freshness"].passed is False
    assert not runner.failed(list(found.values()))
    assert json.loads(json.dumps(runner.document(list(found.values()), 5)))["passed"] is True


def test_a_wrong_specification_is_one_line_that_names_the_key(tmp_path):
    path = tmp_path / "checks.yaml"
    for text, key in (
        ("drifts: {}", "drifts"),
        ("drift: {max_distance: 2}", "drift.max_distance"),
        ("metric_regression: {metrics: [auc@5]}", "metric_regression.metrics"),
        ("period: soon", "period"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=f"checks.yaml: {key}: "):
            specification.load(path)
    path.write_text("period: 24h\ndrift: {severity: warning}")
    assert specification.load(path).period == 24 * 60 * MINUTE


def test_the_docs_say_what_each_check_says_and_the_names_of_its_settings():
    text = (Path(__file__).parent.parent / "docs" / "checks.md").read_text(encoding="utf-8")
    places = [text.index(f"## {check.name}\n\n{check.sentence}") for check in CHECKS]
    assert places == sorted(places)
    for check, begin, end in zip(CHECKS, places, [*places[1:], len(text)], strict=True):
        for name, about in check.settings.model_fields.items():
            if name != "severity":
                assert f"| `{name}` | " in text[begin:end], (check.name, name)
                assert about.description in text[begin:end], (check.name, name)


def test_the_schema_has_every_check_with_its_sentence():
    schema = specification.json_schema()
    said = {name: about["description"] for name, about in schema["properties"].items()}
    assert {check.name: check.sentence for check in CHECKS}.items() <= said.items()
    assert set(said) == {"period", "reference", *(check.name for check in CHECKS)}


def test_combined_figures_are_those_of_the_partitions(service):
    """What the snapshots of these tests hold is what `merge` gives."""
    document = json.loads((service.root / "later" / "figures.json").read_text())
    combined = figures(DEFINITION, merge(state.sums() for state in service.states))
    assert document["combined"]["ranking"] == combined.ranking
