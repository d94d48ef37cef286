"""`compare` and `plan` over outcome files: the sums and bounds of the stream, to the bit."""

from __future__ import annotations

import dataclasses
import json
import random
import re
import zlib
from collections import defaultdict
from datetime import datetime
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from evaluating import run as evaluated
from msgspec import structs
from snapshots import Counters, write_snapshot
from test_compare import invoke, refused, rows
from test_experiments import in_one_span, watched
from typer.testing import CliRunner

from streameval.base.errors import InputError
from streameval.base.steps import drain
from streameval.cli.app import app
from streameval.core.definition import Definition
from streameval.core.experiments.definition import Experiment, Guardrail
from streameval.core.experiments.sums import COUNTS
from streameval.core.experiments.users import ArmUsers, UserArms
from streameval.core.outcome import FeedbackOutcome, Outcome
from streameval.core.partition import Partition
from streameval.evaluation.arm_comparison import all_metrics, compare_arms
from streameval.evaluation.arms import Arms, arm_batches, read_arms, sums_of_users
from streameval.experiments.scorecard import scorecard
from streameval.files.outcome_files import table
from streameval.stats.cluster_sums import ClusterSums
from streameval.stats.experiments import Rules, compare_ratios
from streameval.stats.regression_adjustment import compare_adjusted

SEEDS = 60
START = 1_769_842_800_000  # 31 January 2026, 07:00 UTC


def arms_of(
    definition: Definition, experiment: Experiment, *files: Path, with_rates: bool = False
) -> Arms:
    return read_arms(
        [str(file) for file in files],
        definition,
        experiment,
        lambda _: None,
        with_rates=with_rates,
        column=experiment.arm,
    )


def test_rows_of_files_come_to_the_sums_and_bounds_of_the_stream(seed: int, tmp_path: Path) -> None:
    """All that the oracle's tests plant: retractions, values, empty lists, gaps, no requests."""
    definition, events = watched(seed)
    state = Partition(definition, keep_outcomes=True)
    state.apply(events)
    state.flush()
    final = state.outcomes_of(drain(state.finalizing()))
    users = UserArms()
    users.add(state.experiments.take_visits())
    cut = random.Random(seed).randrange(len(final) + 1)
    for name, part in (("p0-0-1-a", final[cut:]), ("p0-1-2-a", final[:cut])):
        found = table(0, part, definition.labels)
        pq.write_table(found, tmp_path / f"{name}.parquet", row_group_size=7)
    for sums in state.experiments.arm_sums:
        arms = arms_of(definition, sums.experiment, tmp_path)
        assert arms.notes == []
        for name in COUNTS:
            assert getattr(arms.sums, name) == getattr(sums, name), name
        assert arms.sums.sums.keys() == sums.sums.keys()
        for arm, wanted in sums.sums.items():
            assert np.array_equal(arms.sums.sums[arm], wanted), (sums.experiment, arm)
        counts = users.counts.get(sums.experiment.key)
        if counts is None:
            continue
        assert _counted(arms.users) == _counted(counts)
        assert in_one_span(arms.users, counts) == in_one_span(counts, arms.users)
        assert arms.sums.state()["extremes"] == sums.state()["extremes"]
        if sums.experiment.control not in sums.sums or len(sums.sums) < 2:
            continue
        live = {(row["metric"], row["arm"]): row for row in scorecard(definition, sums, counts)}
        _assert_the_same(arms, live)


def test_without_crossed_users_the_sums_are_those_of_the_others(seed: int, tmp_path: Path) -> None:
    """Also beyond the bound of arms, of which the crossed users alone would have fewer."""
    definition, events = watched(seed, buckets=40)
    definition = dataclasses.replace(definition, max_segments=10_000)
    state = Partition(definition, keep_outcomes=True)
    state.apply(events)
    state.flush()
    final = state.outcomes_of(drain(state.finalizing()))
    for name, part in (("a", final), ("b", final[::-1])):
        found = table(0, part, definition.labels)
        pq.write_table(found, tmp_path / f"{name}.parquet", row_group_size=50)
    for sums in state.experiments.arm_sums:
        experiment = dataclasses.replace(sums.experiment, crossed_users="leave_out")
        everyone = arms_of(definition, sums.experiment, tmp_path / "a.parquet", with_rates=True)
        left = arms_of(definition, experiment, tmp_path / "a.parquet", with_rates=True)
        crossed = everyone.user_arms.crossed(experiment.key)
        column = experiment.arm
        batches = list(arm_batches([str(tmp_path / "b.parquet")], column, lambda _: None))
        others = {one.user for one in final} - crossed.keys()
        rest = sums_of_users(batches, definition, everyone.sums, others, column)
        assert left.left_out == crossed
        for arm, wanted in rest.sums.items():
            assert np.array_equal(left.sums.sums[arm], wanted), arm
            exactly = everyone.users.exactly.get(arm, 0)
            assert left.users.of(arm).sum() == exactly == left.users.exactly.get(arm, 0)
        assert left.users.crossed == everyone.users.crossed == len(crossed)
        assert left.rates is not None
        assert not any(crossed.keys() & users for users in left.rates.by_arm.values())


def _counted(users: ArmUsers) -> dict[str, Any]:
    return {
        "by_arm": {arm: counts.tolist() for arm, counts in users.by_arm.items()},
        "exactly": {arm: count for arm, count in users.exactly.items() if count},
        "crossed": users.crossed,
    }


def _assert_the_same(arms: Arms, live: dict[tuple[str, str], dict[str, Any]]) -> None:
    treatments = {arm for _, arm in live}
    there = [arms.users.of(arm).sum() for arm in treatments]
    if arms.users.of(arms.experiment.control).sum() < 2 or max(there, default=0) < 2:
        return
    found = compare_arms(arms, list(dict.fromkeys(metric for metric, _ in live)), None)
    assert {(row.metric, row.arm) for row in found} == live.keys()
    for one in found:
        row = one.document()
        assert {name: row[name] for name in live[one.metric, one.arm]} == live[one.metric, one.arm]


# --- A simulated experiment


def variant_of(user: str) -> str:
    return "AB"[zlib.crc32(user.encode()) // 256 % 2]


def slates(
    users: int = 2_000, lift: float = 0.3, seed: int = 1, *, begin: int = START
) -> list[Outcome]:
    """One to four slates a user, three items each; some empty, some from a fallback.

    A user's own taste decides most; in B items are clicked `lift` more often.
    """
    chance = random.Random(seed)
    tastes = [random.Random(number).betavariate(1, 6) for number in range(users)]
    found = []
    for number, taste in enumerate(tastes):
        user = f"u{number}"
        for _ in range(chance.randint(1, 4)):
            size = 0 if chance.random() < 0.1 else 3
            rate = taste * (1 + lift * (variant_of(user) == "B"))
            clicks = [item for item in range(size) if chance.random() < rate]
            found.append(
                Outcome(
                    offset=len(found),
                    user=user,
                    request=f"r{len(found)}",
                    labels=(variant_of(user),),
                    time=begin + len(found),
                    items=["a", "b", "c"][:size],
                    positions=[1, 2, 3][:size],
                    ranks=[1, 2, 3][:size],
                    shown=[begin] * size,
                    scores=[None] * size,
                    propensities=[None] * size,
                    gains=[float(item in clicks) for item in range(size)],
                    feedback=[
                        FeedbackOutcome(item, "click", 1.0, 5, retract=False) for item in clicks
                    ],
                    fallback=len(found) % 7 == 0,
                    latency_ms=20.0 if len(found) % 2 else None,
                )
            )
    return found


def write(found: list[Outcome], path: str = "o.parquet") -> list[Outcome]:
    pq.write_table(table(0, found, ["variant"]), path)
    return found


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are of files here."""
    monkeypatch.chdir(tmp_path)


GIVEN = ("o.parquet", "--by", "variant", "--against", "A")


def test_the_positive_rate_is_the_mean_over_users() -> None:
    found = write(slates())
    (row,) = rows(*GIVEN, "--metrics", "positive_rate")
    impressions: dict[str, int] = defaultdict(int)
    clicks: dict[str, int] = defaultdict(int)
    for one in found:
        impressions[one.user] += len(one.items)
        clicks[one.user] += len(one.feedback)
    rates = {
        arm: {u: clicks[u] / n for u, n in impressions.items() if n and variant_of(u) == arm}
        for arm in "AB"
    }
    assert row["value"] == pytest.approx(mean(rates["B"].values()), abs=1e-9)
    assert row["control_value"] == pytest.approx(mean(rates["A"].values()), abs=1e-9)
    assert row["users"] == len(rates["B"]), "users with an impression"
    errors = [np.var(list(rates[arm].values()), ddof=1) / len(rates[arm]) for arm in "AB"]
    reach = (row["once_high"] - row["once_low"]) / 2
    assert reach == pytest.approx(1.965 * sum(errors) ** 0.5, rel=0.1)


def ramped() -> list[Outcome]:
    """B gets 5 % of the users and later half; it is two points worse, while the rate doubles."""
    chance, found = random.Random(5), []
    for number, one in enumerate(slates(6_000, lift=0)):
        late = int(one.user[1:]) >= 3_000
        is_b = random.Random(one.user).random() < (0.5 if late else 0.05)
        rate = (0.2 if late else 0.1) - 0.02 * is_b
        clicks = [item for item in range(len(one.items)) if chance.random() < rate]
        found.append(
            changed(
                one,
                labels=("AB"[is_b],),
                time=START + 20_000 * number,
                gains=[float(item in clicks) for item in range(len(one.items))],
                feedback=[FeedbackOutcome(item, "click", 1.0, 5, retract=False) for item in clicks],
            )
        )
    return found


def test_a_ramp_withholds_the_verdict_and_says_since_when_shares_are_steady() -> None:
    """Pooled, B is ahead; within each phase it is behind."""
    found = write(ramped())
    metric = "positives_per_impression{feedback=click}"
    (row,) = rows(*GIVEN, "--metrics", metric)
    assert row["difference"] > 0.01
    assert (row["verdict"], row["low"], row["once_low"]) == ("not yet", None, None)
    words = " ".join(invoke(*GIVEN, "--metrics", metric).split())
    assert "ahead" not in words
    assert row["withheld"] in words
    since = re.search(r"begin anew with since: (\S+Z)", row["withheld"])[1]
    late = next(one.time for one in found if one.user == "u3000")
    begin = datetime.fromisoformat(since).timestamp() * 1000
    assert abs(begin - late) < 3_600_000
    (steady,) = rows(*GIVEN, "--metrics", metric, "--since", since)
    assert steady["withheld"] is None
    assert steady["difference"] < 0
    assert steady["low"] is not None


def crossing(found: list[Outcome]) -> tuple[list[Outcome], set[str]]:
    """Let the slates of every tenth user alternate between the arms; return these users too."""
    moved = [
        changed(one, labels=("AB"[number % 2],)) if one.user.endswith("7") else one
        for number, one in enumerate(found)
    ]
    arms: dict[str, set[str]] = defaultdict(set)
    for one in moved:
        arms[one.user] |= set(one.labels)
    return moved, {user for user, both in arms.items() if len(both) > 1}


def test_crossed_users_are_kept_or_left_out_of_every_figure() -> None:
    """Left out, the rows are those of files in which they never were."""
    found, crossed = crossing(shorter_lists())
    write(found)
    kept = rows(*GIVEN)
    assert rows(*GIVEN, "--crossed-users", "keep") == kept
    left = json.loads(invoke(*GIVEN, "--crossed-users", "leave_out", "--json"))
    assert left["notes"]["crossed_users"] == {"users": len(crossed), "left_out": True}
    write([one for one in found if one.user not in crossed], "others.parquet")
    wanted = rows("others.parquet", *GIVEN[1:])
    assert left["experiments"] == wanted != kept
    words = invoke(*GIVEN)
    assert (
        f"{len(crossed):,} of 1,500 users have been in several arms: they count in each." in words
    )


def test_crossed_users_of_an_experiment_are_as_it_says() -> None:
    found, crossed = crossing(slates())
    write(found)
    config = "experiments: [{name: e, arm: variant, control: A, primary: ndcg@10"
    Path("c.yaml").write_text(config + ", crossed_users: leave_out}]\n")
    given = ("o.parquet", "--config", "c.yaml", "--experiment", "e")
    (row,) = rows(*given)
    write([one for one in found if one.user not in crossed], "others.parquet")
    (wanted,) = rows("others.parquet", *GIVEN[1:], "--primary", "ndcg@10")
    assert row == wanted | {"name": "e"}
    assert "defines this already" in refused(*given, "--crossed-users", "keep")
    Path("c.yaml").write_text(config + ", crossed_users: drop}]\n")
    assert "crossed_users" in refused(*given)


@pytest.mark.parametrize(
    ("of_all", "fallback", "said"),
    [
        (0.3, True, "all of them are fallbacks: the arm seems to be written on the success branch"),
        (0.3, False, "none of them is a fallback or empty. Have producers send variant"),
        (0.0, False, None),
    ],
)
def test_slates_without_an_arm_are_told(of_all: float, fallback: bool, said: str | None) -> None:  # noqa: FBT001
    found = [one for one in slates() if one.items][:2_000]
    lost = round(of_all * len(found))
    write(
        [
            changed(one, fallback=fallback, labels=("",)) if number < lost else one
            for number, one in enumerate(found)
        ]
    )
    printed = json.loads(invoke(*GIVEN, "--metrics", "fallback_rate", "--json"))
    if said is None:
        assert "notes" not in printed
        return
    share = {"without_arm": 600, "without_arm_share": 0.3, "without_arm_empty": 0}
    assert printed["notes"]["without_arm"] == share | {"without_arm_fallback": 600 * fallback}
    words = invoke(*GIVEN, "--metrics", "fallback_rate")
    assert "600 of 2,000 slates (30.0%) have no variant" in words
    assert said in words


def shorter_lists(users: int = 1_500, seed: int = 8) -> list[Outcome]:
    """Lists of 25 items in A and of 4 in B, both clicked alike at each rank; some have gaps."""
    chance = random.Random(seed)
    found = []
    for one in slates(users, seed=seed):
        size = 25 if one.labels == ("A",) else 4
        ranks = [rank for rank in range(1, size + 1) if chance.random() < 0.95]
        clicks = [n for n, rank in enumerate(ranks) if chance.random() < 0.4 / rank]
        found.append(
            structs.replace(
                one,
                request=None if chance.random() < 0.05 else one.request,
                items=[f"i{n}" for n in range(len(ranks))],
                positions=ranks,
                ranks=ranks,
                shown=[one.time] * len(ranks),
                scores=[None] * len(ranks),
                propensities=[None] * len(ranks),
                gains=[float(n in clicks) for n in range(len(ranks))],
                feedback=[FeedbackOutcome(n, "click", 1.0, 5, retract=False) for n in clicks],
            )
        )
    return found


Counts = dict[int, list[int]]


def counts_by_rank(found: list[Outcome], arm: str, without: int | None = None) -> Counts:
    """Impressions and positives at ranks 1 to 20 and 21+, but for one cluster of users."""
    counts: Counts = defaultdict(lambda: [0, 0])
    for one in found:
        left_out = zlib.crc32(one.user.encode()) % 256 == without
        if one.request is None or one.labels[0] != arm or left_out:
            continue
        for rank, gain in zip(one.ranks, one.gains, strict=True):
            counts[min(rank, 21)][0] += 1
            counts[min(rank, 21)][1] += gain > 0
    return counts


def ratio_to_expected(arm: Counts, control: Counts) -> float:
    expected = sum(
        shown * control[rank][1] / control[rank][0]
        for rank, (shown, _) in arm.items()
        if rank in control
    )
    return sum(clicks for rank, (_, clicks) in arm.items() if rank in control) / expected


def test_positives_over_expected_take_out_that_lists_are_shorter() -> None:
    found = write(shorter_lists())
    of_a, of_b = counts_by_rank(found, "A"), counts_by_rank(found, "B")
    metrics = ("positives_over_expected", "positives_per_impression{feedback=click}")
    over, plain = rows(*GIVEN, "--metrics", ",".join(metrics))
    assert over["value"] == pytest.approx(ratio_to_expected(of_b, of_a), abs=1e-8)
    assert over["control_value"] == pytest.approx(1)
    assert plain["verdict"] == "better", "per impression, short lists win"
    assert over["verdict"] == "no difference shown"
    assert over["low"] < 0 < over["high"]
    (turned,) = rows(*GIVEN[:-1], "B", "--metrics", "positives_over_expected{feedback=click}")
    assert turned["value"] == pytest.approx(ratio_to_expected(of_a, of_b), abs=1e-8), "ranks 1 to 4"


def test_evaluate_has_the_positives_over_expected_of_compare(tmp_path: Path) -> None:
    found = [
        structs.replace(one, labels=(*one.labels, "home" if number % 3 else "cart"))
        for number, one in enumerate(shorter_lists())
    ]
    name, files = "positives_over_expected", []
    for number in range(2):
        files.append(str(tmp_path / f"{number}.parquet"))
        part = table(0, found[number::2], ["variant", "surface"])
        pq.write_table(part, files[-1], row_group_size=100)
    (row,) = rows(*files, *GIVEN[1:], "--metrics", name)
    mine = evaluated(*files, *GIVEN[1:], "--metrics", name)
    (compared,) = mine["differences"]
    for key in ("value", "difference", "once_low", "once_high"):
        assert compared[key] == row[key], key
    # Users without any request count in `compare` only.
    assert compared["low"] == pytest.approx(row["low"], rel=0.01)
    by_arm = {part["variant"]: part["figures"][name] for part in mine["segments"]}
    assert by_arm["B"]["value"] == row["value"]
    assert by_arm["B"]["high"] == pytest.approx(row["control_value"] + row["once_high"])
    shown = sum(count for count, _ in counts_by_rank(found, "A").values())
    control = {"value": row["control_value"], "low": None, "high": None, "n": shown}
    assert by_arm["A"] == control
    assert mine["figures"][name]["value"] is None
    in_cart, at_home = evaluated(
        *files, "--by", "variant,surface", "--against", "A", "--metrics", name
    )["differences"]
    of_cart = [
        structs.replace(one, labels=one.labels[:1]) for one in found if one.labels[1] == "cart"
    ]
    arms = [counts_by_rank(of_cart, arm) for arm in "BA"]
    assert (in_cart["surface"], at_home["surface"]) == ("cart", "home")
    assert in_cart["value"] == pytest.approx(ratio_to_expected(arms[0], arms[1]), abs=1e-8)
    with pytest.raises(InputError, match="name their column and the control"):
        evaluated(*files, "--by", "variant", "--metrics", name)


@pytest.mark.parametrize("lift", [0.0, 1.0])
def test_the_error_of_positives_over_expected_holds_that_of_the_controls_rates(lift: float) -> None:
    """The jackknife by hand: a cluster of users of either arm is left out."""
    found = write(slates(lift=lift))
    (row,) = rows(*GIVEN, "--metrics", "positives_over_expected")
    whole = {arm: counts_by_rank(found, arm) for arm in "AB"}
    value = ratio_to_expected(whole["B"], whole["A"])
    squares = 0.0
    for cluster in range(256):
        for arm in "AB":
            left = whole | {arm: counts_by_rank(found, arm, cluster)}
            squares += (ratio_to_expected(left["B"], left["A"]) - value) ** 2
    reach = (row["once_high"] - row["once_low"]) / 2
    assert reach == pytest.approx(1.965 * squares**0.5, rel=0.05)


def test_an_empty_list_scores_0_and_counts_as_a_slate() -> None:
    found = write(slates())
    of_b = [one for one in found if one.labels == ("B",)]
    by_metric = {row["metric"]: row for row in rows(*GIVEN)}
    assert set(by_metric) == set(all_metrics(Definition()))
    hits = [bool(one.feedback) for one in of_b]
    assert by_metric["hit_rate@5"]["value"] == sum(hits) / len(of_b)
    assert by_metric["abandonment_rate"]["value"] == 1 - sum(hits) / len(of_b)
    empty = sum(not one.items for one in of_b) / len(of_b)
    assert by_metric["empty_rate"]["value"] == empty > 0
    assert by_metric["fallback_rate"]["value"] == sum(one.fallback for one in of_b) / len(of_b)
    assert by_metric["latency_ms_mean"]["value"] == 20.0


def test_named_metrics_share_alpha_and_others_are_exploratory() -> None:
    write(slates())
    named = ("--primary", "ndcg@10", "--guardrails", "empty_rate,mrr@10")
    found = rows(*GIVEN, *named, "--metrics", "map@10")
    assert [(row["metric"], row["role"]) for row in found] == [
        ("ndcg@10", "primary"),
        ("empty_rate", "guardrail"),
        ("mrr@10", "guardrail"),
        ("map@10", "exploratory"),
    ]
    alone = {row["metric"]: row for row in rows(*GIVEN)}
    wider = [row["high"] - row["low"] for row in found]
    plain = [alone[row["metric"]]["high"] - alone[row["metric"]]["low"] for row in found]
    ratios = [one / other for one, other in zip(wider, plain, strict=True)]
    assert ratios[1] > ratios[0] > ratios[3] == 1.0


def test_words_say_what_is_decided_and_what_is_open() -> None:
    write(slates(lift=0.8))
    words = invoke(*GIVEN, "--metrics", "positive_rate,empty_rate")
    assert re.search(r"B is ahead of A by \S+ to \S+ points of positive rate\.", words)
    assert re.search(r"B against A: empty rate: .* about \S+ more users needed\.", words)


def test_only_slates_within_the_time_count() -> None:
    found = write(slates())
    middle = found[len(found) // 2].time
    late = rows(*GIVEN, "--metrics", "hit_rate@5", "--since", str(middle))
    early = rows(*GIVEN, "--metrics", "hit_rate@5", "--until", str(middle))
    for (row,), part in (
        (late, [one for one in found if one.time >= middle]),
        (early, [one for one in found if one.time < middle]),
    ):
        of_b = [bool(one.feedback) for one in part if one.labels == ("B",)]
        assert row["value"] == sum(of_b) / len(of_b)


def test_hours_beyond_the_time_are_not_opened() -> None:
    found = slates(200)
    for hour, part in (("06", []), ("07", found)):
        folder = Path(f"outcomes/dt=2026-01-31/hour={hour}")
        folder.mkdir(parents=True)
        write(part, str(folder / "p0-0-1-a.parquet"))
    Path("outcomes/dt=2026-01-31/hour=06/p0-0-1-a.parquet").write_bytes(b"damaged")
    given = ("outcomes", *GIVEN[1:], "--metrics", "hit_rate@5")
    assert len(rows(*given, "--since", "2026-01-31T07:00:00Z")) == 1
    assert "p0-0-1-a.parquet" in refused(*given)


def test_files_of_a_version_before_have_no_fallback_and_no_latency() -> None:
    write(slates())
    whole = pq.read_table("o.parquet")
    pq.write_table(whole.drop_columns(["fallback", "latency_ms"]), "o.parquet")
    by_metric = {row["metric"]: row for row in rows(*GIVEN)}
    assert by_metric["fallback_rate"]["value"] == 0
    assert by_metric["latency_ms_mean"]["value"] is None


def test_an_experiment_of_the_configuration_is_compared_as_it_says() -> None:
    write(slates())
    Path("c.yaml").write_text(
        "experiments:\n  - {name: e, arm: variant, control: A, primary: ndcg@10,"
        " guardrails: [{metric: empty_rate, margin: 0.5}], planned_users: 5000}\n"
    )
    found = rows("o.parquet", "--config", "c.yaml", "--experiment", "e")
    experiment = Experiment(
        "e", "variant", "A", "ndcg@10", (Guardrail("empty_rate", 0.5),), planned_users=5_000
    )
    arms = arms_of(Definition(), experiment, Path("o.parquet"))
    assert [row["name"] for row in found] == ["e", "e"]
    for row, live in zip(found, scorecard(Definition(), arms.sums, arms.users), strict=False):
        assert {name: row[name] for name in live} == live


# --- CUPED


def snapshot_of(found: list[Outcome], folder: str = "before") -> None:
    """Write a snapshot whose counters are those of `found`."""
    counters: dict[str, Counters] = {}
    for one in found:
        known = counters.get(one.user, Counters(0, 0, 0, 0))
        counters[one.user] = Counters(
            known.impressions + len(one.items),
            known.slates + 1,
            known.clicks + len(one.feedback),
            max(known.last_ts, one.time),
        )
    write_snapshot(Path(folder), counters)


def past() -> list[Outcome]:
    """What the users did in the hours before, all in one variant: ten times as much."""
    rounds = [slates(lift=0.0, seed=100 + n, begin=START - 36_000_000) for n in range(10)]
    return [one for found in rounds for one in found]


def test_the_past_of_users_saves_users_and_keeps_the_difference() -> None:
    write(slates())
    snapshot_of(past())
    given = (*GIVEN, "--metrics", "positives_per_impression{feedback=click}")
    (row,) = rows(*given, "--before", "before")
    (plain,) = rows(*given)
    adjusted = row.pop("adjusted")
    assert row == plain
    assert 0.3 < adjusted["users_saved"] < 0.9
    width = adjusted["once_high"] - adjusted["once_low"]
    share = (width / (plain["once_high"] - plain["once_low"])) ** 2
    assert share == pytest.approx(1 - adjusted["users_saved"], rel=0.05)
    words = invoke(*given, "--before", "before")
    assert "users saved" in words
    assert "2,000 of 2,000 users have a past in the snapshot." in words


def test_what_an_arm_has_already_moved_is_no_past() -> None:
    """B had served its users for hours before `--since`: by files, or by their counters alone."""
    metric = "positives_per_impression{feedback=click}"
    before = [one for n in range(10) for one in slates(lift=0.8, seed=n, begin=START - 36_000_000)]
    snapshot_of(before)
    for files, reason in (
        (
            [*before, *slates()],
            "B served 1,000 of 1,000 users of B before, and 0 of 1,000 users of A",
        ),
        (slates(), "points of positives per impression"),
    ):
        write(files)
        given = (*GIVEN, "--metrics", metric, "--since", str(START))
        plain = rows(*given)
        printed = json.loads(invoke(*given, "--before", "before", "--json"))
        assert printed["experiments"] == plain, "no adjusted figure"
        (told,) = printed["notes"]["not_adjusted"]
        assert reason in told
        assert "is not adjusted by what users did before" in invoke(*given, "--before", "before")


def test_equal_arms_raise_fewer_alarms_than_alpha_with_the_past_too() -> None:
    """100 A/A experiments over the same past, each user in another arm by the seed."""
    earlier = slates(600, lift=0.0, seed=99)
    alarms = 0
    for seed in range(100):
        now = slates(600, lift=0.0, seed=seed)
        sums = {}
        for name, found in (("now", now), ("before", earlier)):
            for arm in (0, 1):
                x, y, users = np.zeros(256, np.int64), np.zeros(256, np.int64), set()
                for one in found:
                    if zlib.crc32(f"{seed}{one.user}".encode()) // 256 % 2 == arm:
                        cluster = zlib.crc32(one.user.encode()) & 255
                        x[cluster] += len(one.feedback)
                        y[cluster] += len(one.items)
                        users.add(one.user)
                sums[name, arm] = ClusterSums(x, y, len(users))
        found = compare_adjusted(
            (sums["now", 1], sums["now", 0]), (sums["before", 1], sums["before", 0]), Rules()
        )
        alarms += found.scored.verdict in {"better", "worse"}
    assert alarms <= 5


def test_a_snapshot_that_does_not_fit_is_refused() -> None:
    write(slates(50))
    snapshot_of(slates(50), "same_time")
    strangers = [changed(one, user=f"x{one.user}") for one in slates(50, begin=1)]
    snapshot_of(strangers, "strangers")
    given = (*GIVEN, "--metrics", "hit_rate@5", "--before")
    assert "has events of the experiment's own time" in refused(*given, "same_time")
    assert "knows none of the 50 users" in refused(*given, "strangers")
    assert "nowhere is not a snapshot" in refused(*given, "nowhere")


def changed(one: Outcome, **changes: Any) -> Outcome:
    fields = {name: getattr(one, name) for name in one.__struct_fields__}
    return Outcome(**(fields | changes))


# --- Bad input


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--by variant --against C", "--against C: no variant has this name; there are 'A', 'B'"),
        ("--by nothing --against A", "no column nothing"),
        ("--by variant", "give --by and --against"),
        ("--by variant --against A --primary nonsense", "no metric is called nonsense"),
        ("--by variant --against A --metrics ndcg@7", "no metric is called ndcg@7"),
        (
            "--by variant --against A --metrics positives_over_expected{feedback=buy}",
            "no such kind of feedback; write one of positives_over_expected{feedback=click}",
        ),
        (
            "--by variant --against A --metrics positive_rate{feedback=buy}",
            "no such kind of feedback; write one of positive_rate{feedback=click}",
        ),
        ("--by variant --against A --since yesterday", "--since yesterday: give milliseconds"),
        ("--by variant --against A --since 2026-02-02T00:00:00Z", "no row was found"),
        (
            "--by variant --against A --since 2026-02-02T00:00:00Z --until 2026-02-01T00:00:00Z",
            "give a time after --since",
        ),
        ("--experiment e", "the configuration has no such experiment; it has none"),
        ("--by variant --against A --labels l.csv", "--by: belongs to arms of outcome files"),
    ],
)
def test_arms_that_cannot_be_compared_are_refused_in_one_line(given: str, said: str) -> None:
    write(slates(40))
    assert said in refused("o.parquet", *given.split())


def test_an_arm_of_one_user_is_refused() -> None:
    found = slates(40)
    alone = next(one for one in found if one.labels == ("B",))
    write([one for one in found if one.labels == ("A",)] + [alone])
    assert "'B' has 1 user: a difference with bounds needs two" in refused(*GIVEN)
    write([alone])
    assert "no variant has this name; there are 'B'" in refused(*GIVEN)


def test_values_without_their_cap_are_named() -> None:
    write(slates(40))
    Path("c.yaml").write_text("positives: [{kind: click, value: sum, cap: 5}]\n")
    metric = "value_per_user{feedback=click}"
    given = (*GIVEN, "--config", "c.yaml", "--metrics")
    printed = json.loads(invoke(*given, f"{metric},hit_rate@5", "--json"))
    assert printed["notes"] == {"uncapped": [metric]}
    assert "Without `cap`, which holds in windows only: value per user (click)." in invoke(
        *given, metric
    )
    assert "notes" not in json.loads(invoke(*given, "hit_rate@5", "--json"))


def test_feedback_that_the_configuration_does_not_know_is_named() -> None:
    found = slates(40)
    bought = [FeedbackOutcome(0, "purchase", 9.0, 5, retract=False)]
    write([changed(one, feedback=bought) if one.items else one for one in found])
    printed = json.loads(invoke(*GIVEN, "--metrics", "hit_rate@5", "--json"))
    assert printed["notes"]["unknown_feedback"].keys() == {"purchase"}
    words = invoke(*GIVEN, "--metrics", "hit_rate@5")
    assert "no positive of the configuration" in words


def test_feedback_to_an_item_that_is_not_there_is_refused() -> None:
    wrong = [FeedbackOutcome(7, "click", 1.0, 5, retract=False)]
    write([changed(one, feedback=wrong) for one in slates(5)])
    assert "names an item that its slate does not have" in refused(*GIVEN)


# --- Plans


def planned(*arguments: str) -> dict[str, dict[str, Any]]:
    result = CliRunner().invoke(app, ["plan", *arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return {row["metric"]: row for row in json.loads(result.stdout)["plan"]}


def test_a_plan_knows_the_users_that_show_a_lift() -> None:
    """Half of the planned users see an effect that is √2 times as large."""
    write(slates(lift=0.0))
    given = ("o.parquet", "--metrics", "positive_rate,hit_rate@5")
    row = planned(*given, "--lift", "0.1")["hit_rate@5"]
    half = planned(*given, "--lift", "0.05")["hit_rate@5"]
    assert row["users"] == 2_000
    assert row["effect"] == pytest.approx(0.1 * row["value"])
    assert half["users_one_look"] == pytest.approx(4 * row["users_one_look"], abs=4)
    assert row["users_all_looks"] > 1.5 * row["users_one_look"]
    expected = row["effect"] * (row["users_one_look"] / row["users"]) ** 0.5
    assert row["smallest_effect_one_look"] == pytest.approx(expected, rel=1e-3)
    assert row["smallest_effect_all_looks"] > row["smallest_effect_one_look"]


def test_an_experiment_of_the_planned_size_shows_the_lift_mostly() -> None:
    write(slates(lift=0.0))
    wanted = planned("o.parquet", "--metrics", "hit_rate@5", "--lift", "0.35")["hit_rate@5"]
    users = int(wanted["users_one_look"])
    shown = 0
    for seed in range(20):
        sums = []
        found = slates(users, lift=0.45, seed=200 + seed)
        for arm in "BA":
            x, y = np.zeros(256, np.int64), np.zeros(256, np.int64)
            for one in found:
                if one.labels == (arm,):
                    x[zlib.crc32(one.user.encode()) & 255] += bool(one.feedback)
                    y[zlib.crc32(one.user.encode()) & 255] += 1
            sums.append(ClusterSums(x, y, users // 2))
        scored = compare_ratios(sums[0], sums[1], Rules())
        shown += scored.once_low is not None and scored.once_low > 0
    assert 11 <= shown <= 20


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--lift 0", "--lift 0: give a relative difference above 0"),
        ("--power 1", "--power 1: give a share between 0 and 1"),
        ("--share 1.5", "--share 1.5: give a share between 0 and 1"),
        ("--alpha 0", "--alpha 0: give a chance"),
        ("--metrics nonsense", "no metric is called nonsense"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(given: str, said: str) -> None:
    write(slates(5))
    assert said in refused("o.parquet", *given.split(), command="plan")


def test_a_plan_in_words() -> None:
    write(slates(lift=0.0))
    result = CliRunner().invoke(app, ["plan", "o.parquet", "--lift", "0.1"], catch_exceptions=False)
    assert "users: one look" in result.stdout
    assert "at 0.05 of false alarms" in result.stdout
    assert "hardly known" not in result.stdout
    write(slates(20))
    result = CliRunner().invoke(app, ["plan", "o.parquet"], catch_exceptions=False)
    assert "Of 20 users: the variance of fewer than 100 is hardly known." in result.stdout
