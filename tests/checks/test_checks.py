"""Checks: on clean files all pass; each planted fault fails exactly the check that is about it.

The files are written by the service's own writers from a seeded stream through the core: two
partitions, two variants of equal quality, scores that are the truth, propensities that are.
"""

import json
import random
import zlib
from dataclasses import replace
from datetime import timedelta
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
    copied,
    edit,
    failures,
    one_slate,
    results,
    stream,
)

from streameval.base.errors import ConfigError, InputError
from streameval.checks import run, specification, sql
from streameval.checks.catalogue import CHECKS, freshness
from streameval.checks.evidence import gather
from streameval.core.definition import Definition
from streameval.core.events import FeedbackEvent
from streameval.core.figures import figures
from streameval.core.metrics import RANKING, Scorer
from streameval.core.sums import merge

# For one check by itself.
ALONE = {check.name: {"severity": "off"} for check in CHECKS}
DAY = 24 * 60 * MINUTE


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


def test_a_removed_outcome_row_fails_the_windows_and_nothing_else(service, tmp_path):
    service = copied(service, tmp_path)
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


def test_a_positive_taken_from_a_row_fails_the_windows_and_nothing_else(service, tmp_path):
    service = copied(service, tmp_path)
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


def test_dropped_positions_fail_the_positions_and_nothing_else(service, tmp_path):
    service = copied(service, tmp_path)

    def drop(row):
        return row | {"positions": [None] * 5} if row["offset"] % 10 == 0 else row

    edit(service, drop)
    found = results(service)
    assert failures(found) == {"positions_complete"}
    assert "have no position, most in variant" in found["positions_complete"].message


def test_rows_without_an_item_have_no_positions_to_lack(tmp_path):
    service = clean(tmp_path, stream(slates=500))
    lists = ("items", "positions", "ranks", "shown", "scores", "propensities", "gains", "feedback")

    def empty(row):
        if row["variant"] == "A":
            return row | {name: [] for name in lists}
        return row | {"positions": [None] * 5}

    edit(service, empty)
    found = results(service, {"metric_regression": {}, "logged_scores": {}})["positions_complete"]
    assert found.passed is False
    assert found.message.startswith("100 % of ")


def test_feedback_out_of_its_window_fails_attribution_and_nothing_else(service, tmp_path):
    service = copied(service, tmp_path)
    bound = DEFINITION.attribution_window

    def delay(row):
        late = [one | {"delay": one["delay"] + bound} for one in row["feedback"]]
        return row | {"feedback": late} if row["offset"] % 50 == 0 else row

    edit(service, delay)
    found = results(service)
    assert failures(found) == {"attribution_complete"}
    assert "feedback entries are impossible" in found["attribution_complete"].message


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
    assert "user 'bot' had 100 slates in a minute" in found["traffic_sane"].message


def test_a_split_of_52_to_48_fails_the_sample_ratio_and_nothing_else(tmp_path):
    events = stream(seed=3, users=60_000, slates=40_000, share_of_b=0.52)
    service = clean(tmp_path, events, halves=False)
    found = results(service, reference=None, recorded=None)
    assert failures(found) == {"sample_ratio"}
    assert "the split is not the configured one" in found["sample_ratio"].message


def test_a_shifted_score_fails_the_scores_and_nothing_else(tmp_path):
    found = results(clean(tmp_path, stream(score_shift=0.2)))
    assert failures(found) == {"logged_scores"}
    assert "scores are shifted" in found["logged_scores"].message


def test_scores_the_wrong_way_round_have_an_auc_below_a_coins(service, tmp_path):
    service = copied(service, tmp_path)
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
    service = two_weeks(tmp_path)
    relaxed = {"logged_scores": {}, "drift": {"max_distance": 0.5}}
    found = results(service, relaxed)
    assert failures(found) == {"metric_regression"}
    assert "against the same hours of 1 week before" in found["metric_regression"].message


def test_files_of_days_that_were_summed_up_before_are_not_opened(tmp_path):
    service, memory = two_weeks(tmp_path), {}
    since = {"split": {"A": 1, "B": 1}, "since": "2023-11-16T00:00:00Z"}
    given = {"sample_ratio": since, "period": "24h", "metric_regression": {}, "logged_scores": {}}
    changes = {"reference": None, "memory": memory}
    before = results(service, given, **changes)
    assert before["sample_ratio"].passed
    for day in ("2023-11-14", "2023-11-15"):
        for path in service.outcomes.glob(f"dt={day}/hour=*/*.parquet"):
            path.write_bytes(b"not Parquet")
    after = results(service, given, **changes)
    assert [one.message for one in after.values()] == [one.message for one in before.values()]
    with pytest.raises(InputError, match="a file cannot be read"):
        results(service, given, **changes | {"memory": {}})


def two_weeks(folder):
    """The same hours of two weeks, of which the second is worse; nine hours later all are final."""
    service = Service(folder)
    good, bad = (
        stream(seed=6, slates=6_000),
        stream(seed=7, slates=6_000, skill={"A": 0.5, "B": 0.5}),
    )
    first, last = stream(seed=9, slates=100), stream(seed=8, slates=200)
    service.take([*moved(first, -2 * DAY), *good]).snapshot("earlier")
    service.take([*moved(bad, 7 * DAY), *moved(last, 7 * DAY + 9 * 60 * MINUTE)]).snapshot("later")
    return service


def moved(events, later):
    return [
        msgspec.structs.replace(
            event, ts=event.ts + later, request_id=f"{event.request_id}-{later}"
        )
        for event in events
    ]


def test_other_items_than_in_the_reference_are_a_drift_and_nothing_else(service, tmp_path):
    service = copied(service, tmp_path)
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
    later = service.now() + 60 * MINUTE
    with gather(str(service.outcomes), DEFINITION, later, arm="variant") as evidence:
        found = {result.name: result for result in run.run(evidence, spec)}
    assert failures(found) == {"freshness"}
    assert "has been final for" in found["freshness"].message


def test_before_a_slate_can_be_final_freshness_has_no_answer_and_no_check_fails(tmp_path):
    service = Service(tmp_path / "service")
    service.take([event for event in stream() if event.ts < START + 20 * MINUTE])
    service.snapshot("earlier")
    service.snapshot("later")
    found = results(service)
    assert failures(found) == set()
    assert (found["freshness"].passed, found["freshness"].due) == (None, False)
    assert found["freshness"].message == (
        "not checked: slates are final 31 min after their time, and none is yet"
    )


def test_a_fresh_deployment_at_the_defaults_fails_no_check_for_two_hours(tmp_path, monkeypatch):
    """A look each 15 minutes, as on schedule; no answer that is due is missing at its end."""
    monkeypatch.setattr("clean_service.REJECTED", 0)
    service = Service(tmp_path / "service", Definition())
    events, memory, looks = stream(slates=4_000), {}, []
    for number in range(9):
        end = START + (15 * number + 1) * MINUTE
        service.take([event for event in events if end - 15 * MINUTE <= event.ts < end])
        looks.append(service.snapshot(f"{number}"))
        with gather(
            str(service.outcomes),
            service.definition,
            service.now(),
            snapshot=looks[-1],
            reference=looks[0] if number else None,
            recorded=service.log(),
            memory=memory,
        ) as evidence:
            found = {one.name: one for one in run.run(evidence, specification.load(None))}
        assert failures(found) == set(), number
    assert found["freshness"].passed is True
    assert [one.name for one in found.values() if one.due] == []


def test_missing_rows_of_final_slates_fail_the_freshness(service, tmp_path):
    (tmp_path / "empty").mkdir()
    with gather(
        str(tmp_path / "empty"), DEFINITION, service.now(), snapshot=service.root / "later"
    ) as evidence:
        found = freshness.check(evidence, freshness.Settings())
    assert found.passed is False
    assert (
        "no outcome row was found, and the first slate has been final for 4.64 h" in found.message
    )


def test_without_a_checkpoint_freshness_misses_its_answer(tmp_path):
    service = Service(tmp_path / "service").take(
        [event for event in stream(slates=200) if event.ts < START + 20 * MINUTE]
    )
    for state in service.states:
        state.attribution.watermark = None
    service.snapshot("later")
    found = results(service, reference=None, recorded=None)["freshness"]
    assert (found.passed, found.due) == (None, True)


def test_weights_that_collapse_are_refused_and_nothing_else_fails(service, tmp_path):
    service = copied(service, tmp_path)
    left = [1e-6]

    def collapse(row):
        now = row["time"].timestamp() * 1000 > START + LENGTH - 60 * MINUTE
        return row | {"propensities": [left.pop() if now and left else 1.0, *[1.0] * 4]}

    edit(service, collapse)
    found = results(service)
    assert failures(found) == {"off_policy"}
    assert "effective rounds" in found["off_policy"].message
    assert "no estimate" in found["off_policy"].message
    assert "the weights (mean " in found["off_policy"].message
    assert ", largest 5e+04) leave" in found["off_policy"].message


def test_a_catalogue_of_another_size_has_weights_of_another_mean_and_nothing_else_fails(service):
    found = results(service, {"off_policy": {"catalogue_size": 2_000}})
    assert failures(found) == {"off_policy"}
    assert "the mean weight is 0.010 ± 0.000 and must be 1" in found["off_policy"].message
    assert not failures(results(service, {"off_policy": {"catalogue_size": 22}}))


def test_one_user_of_a_hundred_in_both_variants_fails_the_sample_ratio(tmp_path):
    service = clean(tmp_path, stream(users=1_000), halves=False)
    users = sorted(set(read(service, "user")))
    for crossed, fails in ((0.009, False), (0.012, True)):
        moved = set(users[: round(crossed * len(users))])
        seen = dict.fromkeys(moved, "A")

        def swap(row, moved=moved, seen=seen):
            user = row["user"]
            if user not in moved:
                return row
            seen[user] = "B" if seen[user] == "A" else "A"
            return row | {"variant": seen[user]}

        edit(service, swap)
        found = only("sample_ratio", service, **SPECIFICATION["sample_ratio"])
        assert found.passed is not fails
        assert "were in more than one variant" in found.message


def test_the_busiest_of_users_with_a_heavy_tail_is_nobody_to_accuse(tmp_path):
    chance = random.Random(11)
    events = []
    for number in range(4_000):
        # The first user of this distribution has a tenth of all slates.
        user = f"u{int(chance.paretovariate(0.5)) % 3_000}"
        ts = START + chance.randrange(LENGTH)
        events += one_slate(chance, number, user, ts, "A")
    service = clean(tmp_path, sorted(events, key=lambda event: event.ts), halves=False)
    found = only("traffic_sane", service)
    assert found.passed is True, found.message


def test_the_busiest_of_users_who_are_much_alike_is_a_machine(tmp_path):
    chance = random.Random(12)
    events = list(stream(slates=4_000, users=500))
    for number in range(2_000):
        ts = START + number * LENGTH // 2_000
        events += one_slate(chance, 10**6 + number, "robot", ts, "A")
    service = clean(tmp_path, sorted(events, key=lambda event: event.ts), halves=False)
    found = only("traffic_sane", service)
    assert found.passed is False
    assert "user 'robot' has 33.5 % of all" in found.message


def test_a_few_visits_more_are_no_machine_where_most_people_come_once(tmp_path):
    chance = random.Random(13)
    events = list(stream(slates=2_000, users=3_000))
    for number in range(8):
        ts = START + number * LENGTH // 8
        events += one_slate(chance, 10**6 + number, "regular", ts, "A")
    service = clean(tmp_path, sorted(events, key=lambda event: event.ts), halves=False)
    found = only("traffic_sane", service)
    assert found.passed is True, found.message


def test_rejected_records_need_no_earlier_snapshot_to_be_many(tmp_path):
    service = Service(tmp_path).take(stream(slates=500))
    service.states[0].reject("malformed", 100)
    service.snapshot("later")
    found = only("records_accepted", service)
    assert found.passed is False
    assert (
        "were 'malformed', most in partition 0: a producer sends values other than JSON"
        in found.message
    )


def test_a_partition_that_was_counted_anew_has_no_counts_before(tmp_path):
    """Its counters fall: what they grew by is all that they count."""
    service = Service(tmp_path).take(stream(slates=500))
    service.states[0].reject("invalid", 30)
    service.snapshot("earlier")
    service.states[0].rejected["invalid"] = 1
    service.snapshot("later")
    found = results(service, ALONE | {"records_accepted": {}})["records_accepted"]
    assert found.passed is True
    assert not found.message.startswith("-")


def test_impressions_without_a_request_everywhere_are_no_fault(tmp_path):
    service = clean(tmp_path, stream(slates=1_000), halves=False)
    edit(service, lambda row: row | {"request": None})
    found = only("requests_complete", service)
    assert found.passed is True
    assert found.message.startswith("100 % of")


def test_a_request_id_that_all_variants_lose_is_found_by_the_reference(tmp_path):
    service = clean(tmp_path, stream(slates=3_000))
    middle = START + LENGTH // 2

    def lose(row):
        return row | {"request": None} if row["time"].timestamp() * 1000 > middle else row

    edit(service, lose)
    found = results(service, ALONE | {"requests_complete": {}})["requests_complete"]
    assert found.passed is False
    assert found.message.startswith("every variant: 99.8 % of")
    assert "in the reference 0 %" in found.message


def test_times_that_are_not_those_of_the_items_say_that_files_were_changed(tmp_path):
    service = clean(tmp_path, stream(slates=500), halves=False)
    edit(service, lambda row: row | {"shown": [ms + 1 for ms in row["shown"]]})
    found = only("clocks_agree", service)
    assert found.passed is False
    assert "have another time than their items: the files were changed" in found.message


def test_clocks_behind_are_told_from_clocks_ahead(tmp_path):
    service = clean(tmp_path, stream(slates=2_000), halves=False)

    def shift(row):
        if int(row["user"][1:]) % 5:
            return row
        shown = [ms - 60 * MINUTE for ms in row["shown"]]
        return row | {"time": row["time"] - timedelta(hours=1), "shown": shown}

    edit(service, shift)
    found = only("clocks_agree", service)
    assert found.passed is False
    assert "are about 59.7 min behind other users beside them" in found.message


def test_pages_after_the_first_are_no_fault_and_lists_from_2_are(tmp_path):
    service = clean(tmp_path, stream(slates=1_000), halves=False)

    def below(share):
        return lambda row: (
            row | {"positions": [place + 1 for place in row["positions"]]}
            if row["offset"] % 10 < 10 * share
            else row
        )

    edit(service, below(0.5))
    assert only("positions_complete", service).passed is True
    edit(service, lambda row: row | {"positions": [place + 1 for place in row["positions"]]})
    found = only("positions_complete", service)
    assert found.passed is False
    assert "0 of " in found.message
    assert "send positions counted from 1" in found.message


def test_a_small_arm_without_positions_is_found_beside_the_others(tmp_path):
    """A twentieth of all items may lack a position, and each of the small arm does."""
    service = clean(tmp_path, stream(slates=2_000), halves=False)

    def small(row):
        return zlib.crc32(row["user"].encode()) % 25 == 0

    edit(service, lambda row: row | {"variant": "small"} if small(row) else row)
    assert only("positions_complete", service, max_missing=0.05).passed is True
    edit(service, lambda row: row | {"positions": [None] * 5} if small(row) else row)
    found = only("positions_complete", service, max_missing=0.05)
    assert found.passed is False
    assert found.message.startswith("variant 'small'")
    assert "100 % of" in found.message
    assert "in the others 0 %" in found.message


def only(name, service, **given):
    """What one check says, without an earlier snapshot."""
    return results(service, ALONE | {name: given}, reference=None)[name]


def read(service, column):
    """A column of all outcome files."""
    for path in service.outcomes.glob("dt=*/hour=*/*.parquet"):
        yield from pa.parquet.ParquetFile(path).read([column])[column].to_pylist()


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


def test_duckdb_has_a_bound_and_a_folder_of_its_own_that_goes(service):
    with gather(str(service.outcomes), DEFINITION, START) as evidence:
        memory, threads, folder = evidence.row(
            "SELECT current_setting('memory_limit'), current_setting('threads'),"
            " current_setting('temp_directory')"
        )
        assert (memory, threads) == ("488.2 MiB", 2)
        assert Path(folder).is_dir()
    assert not Path(folder).exists()


def test_without_snapshot_and_reference_the_checks_say_what_they_lack(service):
    found = results(service, snapshot=None, reference=None, recorded=None)
    lacking = {name: result.message for name, result in found.items() if result.passed is None}
    assert set(lacking) == {
        "counters_match_log",
        "windows_match_outcomes",
        "records_accepted",
        "drift",
    }
    assert all(message.startswith("not checked: give a") for message in lacking.values())


def test_without_dimensions_the_windows_match_too(tmp_path):
    plain = replace(DEFINITION, dimensions=(), ndcg_gain="exponential")
    service = Service(tmp_path, plain).take(stream(slates=1_000))
    service.snapshot("later")
    nothing_of_arms = {"sample_ratio": {}, "metric_regression": {}}
    found = results(service, nothing_of_arms, reference=None, recorded=None)
    assert found["windows_match_outcomes"].passed is True, found["windows_match_outcomes"].message
    assert failures(found) == set()


@pytest.mark.parametrize(
    ("asked", "dimensions"),
    [
        ({"arm": "model"}, ("variant",)),
        ({"sample_ratio": {"split": {"A": 1, "B": 1}}}, ("surface",)),
        ({"metric_regression": {"control": "A"}}, ()),
    ],
)
def test_an_arm_that_is_no_dimension_is_refused(asked, dimensions):
    spec = specification.Specification.model_validate(asked)
    with pytest.raises(ConfigError, match=r"^checks: arm: '\w+' is not among the `dimensions`"):
        specification.arm_of(spec, Definition(dimensions=dimensions))


def test_without_a_comparison_of_arms_no_dimension_is_needed():
    spec = specification.Specification.model_validate({})
    assert specification.arm_of(spec, Definition(dimensions=())) is None
    assert specification.arm_of(spec, Definition()) == "variant"


def test_another_dimension_may_hold_the_arms(tmp_path):
    """With `arm: surface` all users of a stream without surfaces are in the arm ''."""
    service = Service(tmp_path).take(stream(slates=1_000))
    service.snapshot("later")
    asked = {
        "arm": "surface",
        "sample_ratio": {"split": {"home": 1, "search": 1}},
        "metric_regression": {"control": "search"},
    }
    found = results(service, asked, reference=None, recorded=None)
    assert "'' 100 % (split 0 %)" in found["sample_ratio"].message
    assert "filtering differs by surface" in found["sample_ratio"].message
    assert found["metric_regression"].message.endswith("there are ''")


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
    assert not run.has_failed(list(found.values()))
    assert json.loads(json.dumps(run.document(list(found.values()), 5)))["passed"] is True


def test_a_wrong_specification_is_one_line_that_names_the_key(tmp_path):
    path = tmp_path / "checks.yaml"
    for text, key in (
        ("drifts: {}", "drifts"),
        ("drift: {max_distance: 2}", "drift.max_distance"),
        ("metric_regression: {metrics: [auc@5]}", "metric_regression.metrics"),
        ("period: soon", "period"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=rf"checks.yaml: line \d: {key}: "):
            specification.load(path)
    path.write_text("period: 24h\ndrift: {severity: warning}")
    assert specification.load(path).period == 24 * 60 * MINUTE


def test_the_docs_say_what_each_check_says_and_the_names_of_its_settings():
    text = (Path(__file__).parents[2] / "docs" / "checks.md").read_text(encoding="utf-8")
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
    assert set(said) == {"arm", "period", "reference", *(check.name for check in CHECKS)}


def test_combined_figures_are_those_of_the_partitions(service):
    """What the snapshots of these tests hold is what `merge` gives."""
    document = json.loads((service.root / "later" / "figures.json").read_text())
    combined = figures(DEFINITION, merge(state.sums() for state in service.states))
    assert document["combined"]["ranking"] == combined["ranking"]
