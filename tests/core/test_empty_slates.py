"""Rows of empty slates in `evaluate`, its report and the checks: they score 0 and count."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from default_events import DIMENSIONS, SlateEvent
from evaluating import run

from streameval.base.limits import ALL
from streameval.base.steps import drain
from streameval.checks import hourly
from streameval.checks.catalogue import slates_once, traffic_sane, windows_match_outcomes
from streameval.checks.evidence import Evidence, Snapshot, gather
from streameval.core.checkpoint import checkpoint, restore
from streameval.core.definition import Definition, Window
from streameval.core.events import FeedbackEvent
from streameval.core.figures import figures
from streameval.core.metrics import METRICS
from streameval.core.metrics.lists import MeanMetric, Metric
from streameval.core.outcome import Outcome
from streameval.core.partition import Partition
from streameval.files.outcome_files import table

START = 1_769_842_800_000  # 31 January 2026, 07:00 UTC
DEFINITION = Definition(
    dimensions=DIMENSIONS,
    windows=(Window("10m", 600_000, 60_000),),
    attribution_window=60_000,
    allowed_lateness=0,
)


def slate(user: str, request: str, items: tuple[str, ...], second: int, surface: str = "home"):
    return SlateEvent(
        ts=START + 1_000 * second,
        user_id=user,
        request_id=request,
        items=items,
        variant="A",
        surface=surface,
    )


def click(user: str, request: str, item: str, second: int) -> FeedbackEvent:
    return FeedbackEvent(
        ts=START + 1_000 * second,
        user_id=user,
        item_id=item,
        feedback="click",
        request_id=request,
    )


def events() -> list[Any]:
    """Five slates: one with a click, one without, and three empty ones.

    User `v` has had nothing but an empty slate, and nothing else was shown on `search`.
    """
    return [
        slate("u", "r1", ("a", "b"), 0),
        click("u", "r1", "b", 1),
        slate("u", "r2", (), 2),
        slate("v", "r3", (), 2),
        slate("w", "r4", ("a",), 3),
        slate("w", "r5", (), 4, "search"),
        slate("z", "later", ("a",), 3_000),
    ]


def state_of(found: list[Any]) -> Partition:
    state = Partition(DEFINITION, journal=True, keep_outcomes=True)
    state.apply(found)
    state.flush()
    return state


def final(state: Partition) -> list[Outcome]:
    return state.outcomes_of(drain(state.finalizing()))


def write(folder: Path, rows: list[Outcome]) -> str:
    path = folder / "dt=2026-01-31" / "hour=07" / "p0-0-9-a.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(table(0, rows, DIMENSIONS), path)
    return str(folder)


@pytest.fixture
def outcomes(tmp_path: Path) -> str:
    rows = final(state_of(events()))
    assert [row.items for row in rows if not row.items] == [[], [], []]
    return write(tmp_path / "outcomes", rows)


def test_an_empty_slate_scores_0_and_stays_in_every_mean(outcomes: str) -> None:
    names = [
        f"{entry.name}@5"
        if entry.cutoff in {"required", "optional"}
        else f"{entry.name}@0.3"
        if entry.cutoff == "recall"
        else entry.name
        for entry in METRICS
        if isinstance(entry, Metric | MeanMetric)
        and entry.input_kind == "lists"
        and entry.name != "auc"
    ]
    found = run(outcomes, "--metrics", ",".join(names), "--per-list")
    for name in names:
        assert found["figures"][name]["n"] == 5, name
    for metric in ("mrr@5", "hit_rate@5"):
        assert [found["lists"][name][metric] for name in ("r2", "r3", "r5")] == [0, 0, 0]
    assert found["figures"]["hit_rate@5"]["value"] == 0.2
    assert found["figures"]["precision@5"]["value"] == pytest.approx(0.2 / 5)
    assert run(outcomes, "--metrics", "auc")["figures"]["auc"]["n"] == 0


def test_only_empty_slates_have_figures_too(tmp_path: Path) -> None:
    rows = [row for row in final(state_of(events())) if not row.items]
    folder = write(tmp_path / "empty", rows)
    figure = run(folder, "--metrics", "ndcg@10", "--report", str(tmp_path / "r.html"))["figures"]
    assert (figure["ndcg@10"]["value"], figure["ndcg@10"]["n"]) == (0.0, 3)
    assert "3 ranked lists" in (tmp_path / "r.html").read_text()


def test_figures_of_items_leave_empty_slates_out(outcomes: str, tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("item,feature\na,x\nb,y\n")
    (tmp_path / "t.csv").write_text("user,item\nq,a\np,a\n")
    (tmp_path / "i.csv").write_text("item\na\nb\n")
    given = ("--features", f"{tmp_path}/f.csv", "--train", f"{tmp_path}/t.csv")
    names = "diversity@5,novelty_self_information@5,catalogue_coverage@5,daily_positive_rate"
    found = run(outcomes, "--metrics", names, *given, "--items", f"{tmp_path}/i.csv")["figures"]
    assert (found["diversity@5"]["value"], found["diversity@5"]["n"]) == (1.0, 1)
    assert found["catalogue_coverage@5"]["value"] == 1.0
    # Two users saw something: one of them clicked on one of two items.
    assert (found["daily_positive_rate"]["value"], found["daily_positive_rate"]["n"]) == (0.25, 2)


# --- Checks


def evidence_with(evidence: Evidence, state: Partition) -> Evidence:
    """The evidence with a snapshot of a partition, whose windows are read at its watermark."""
    saved = checkpoint(state, "x")
    restored = restore(
        DEFINITION, saved.header, saved.chunks, keep_outcomes=True, at_watermark=True
    )
    sums = restored.sums()
    assert restored.watermark is not None
    snapshot = Snapshot(
        path=Path(),
        fingerprint="",
        definition={},
        pseudonymous=False,
        parts={},
        watermarks={0: restored.watermark},
        figures={0: restored.document()},
        combined=figures(DEFINITION, sums),
    )
    return dataclasses.replace(evidence, snapshot=snapshot)


def test_windows_are_recomputed_with_their_empty_slates(tmp_path: Path) -> None:
    """A user and a surface with nothing but empty slates are among them."""
    state = state_of([*events()[:-1], slate("z", "r6", ("a",), 400)])
    folder = write(tmp_path / "outcomes", final(state))
    with gather(folder, DEFINITION, START) as gathered:
        evidence = evidence_with(gathered, state)
        assert evidence.snapshot is not None
        (home,) = [
            row
            for row in evidence.snapshot.combined["rates"]
            if row["basis"] == "matured" and row["feedback"] == "click"
            if ALL not in row.values()
        ]
        assert (home["surface"], home["users"]) == ("home", 2)
        found = windows_match_outcomes.check(evidence, windows_match_outcomes.Settings())
    assert found.passed, found.message


def test_a_positive_rate_is_over_users_who_saw_something(outcomes: str) -> None:
    with gather(outcomes, DEFINITION, START) as evidence:
        series = hourly.series_of(["positive_rate", "ndcg@5"], DEFINITION)
        sums = hourly.total(evidence, series, "current")
    presence, clicks, _, ndcg = sums
    assert presence[1].sum() == 5, "slates"
    assert (clicks[0].sum(), clicks[1].sum()) == (10**9 // 2, 2)
    assert ndcg[1].sum() == 5
    assert 0 < ndcg[0].sum() <= 10**9
    assert np.count_nonzero(clicks[1]) == 2


def test_empty_slates_of_two_requests_repeat_nothing(tmp_path: Path) -> None:
    """A page that asks for two lists at once, and gets neither."""
    twice = [slate("u", "r1", (), 0), slate("u", "r2", (), 0), slate("z", "later", ("a",), 900)]
    rows = final(state_of(twice))
    for name, found, repeated in (("two", rows, 0), ("copied", rows * 2, 2)):
        with gather(write(tmp_path / name, found), DEFINITION, START) as evidence:
            message = slates_once.check(evidence, slates_once.Settings()).message
        assert message.startswith(f"{repeated} of {len(found)} slates repeat another one"), message


def test_users_with_empty_slates_only_are_like_the_others(outcomes: str) -> None:
    with gather(outcomes, DEFINITION, START) as evidence:
        found = traffic_sane.check(evidence, traffic_sane.Settings())
    assert found.passed
    assert found.message.startswith("2 users, none unlike the others")
