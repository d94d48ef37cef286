"""`metric_regression` looked at again and again, as the schedule does: one answer for all looks.

Users of an experiment come in order; a look sees those that have come so far.
"""

import itertools
import random
from contextlib import contextmanager

import duckdb
import msgspec
import numpy as np
import pytest
from default_events import DIMENSIONS

from streameval.base.limits import NANO
from streameval.checks.catalogue.metric_regression import Findings, Settings, check, periods
from streameval.checks.evidence import Evidence, columns
from streameval.checks.hourly import SEASON_CLUSTERS, Hourly, hourly, series_of
from streameval.core.definition import Definition
from streameval.core.outcome import FeedbackOutcome, Outcome
from streameval.files.outcome_files import table

START = 1_700_000_000_000
SEEDS = 12
USERS = 2_400
LOOKS = (50, 150, 300, 600, 1_200, USERS)


def slate(number, user, variant, clicked):
    """A slate of three items, of which the first was clicked or none."""
    return Outcome(
        offset=number,
        user=user,
        request=f"r{number}",
        labels=(variant or "", ""),
        time=START + number * 1_000,
        items=["a", "b", "c"],
        positions=[1, 2, 3],
        ranks=[1, 2, 3],
        shown=[START] * 3,
        scores=[None] * 3,
        propensities=[None] * 3,
        gains=[float(clicked), 0.0, 0.0],
        feedback=[FeedbackOutcome(0, "click", 1.0, 5, retract=False)] * clicked,
    )


def experiment(seed, rates, users=USERS):
    """Slates of users of two variants, some 3 a user, who click at the rate of their variant."""
    chance = random.Random(seed)
    rows = []
    for user in range(users):
        variant = chance.choice(sorted(rates))
        taste = chance.uniform(0.5, 1.5)
        for _ in range(chance.randrange(1, 6)):
            clicked = chance.random() < rates[variant] * taste
            rows.append(slate(len(rows), f"u{user}", variant, clicked))
    return rows


@contextmanager
def evidence_of(rows, memory=None):
    """What the check looks at, where these are all outcome rows."""
    with duckdb.connect() as connection:
        connection.register("files", table(0, rows, DIMENSIONS))
        view = columns(Definition().dimensions, "variant")
        connection.execute(f"CREATE VIEW slates AS SELECT {view} FROM files")
        yield Evidence(
            connection, Definition(), START, "variant", memory={} if memory is None else memory
        )


def look(rows, users=USERS, metrics=("mrr@10",), **settings):
    """What the check finds of the first users."""
    with evidence_of([row for row in rows if int(row.user[1:]) < users]) as evidence:
        return check(evidence, Settings(control="A", metrics=metrics, **settings))


def test_before_the_burn_in_there_is_no_answer_and_it_says_how_many_users_it_needs():
    found = look(experiment(1, {"A": 0.9, "B": 0.05}), 60)
    assert (found.passed, found.due) == (None, True)
    assert "mrr@10 of variant 'B' against 'A': not yet, each side needs " in found.message


def test_watching_equal_variants_raises_no_alarm(seed):
    """Twelve experiments, six looks at each; alpha is 5 % for an experiment as a whole."""
    rows = experiment(seed, {"A": 0.3, "B": 0.3})
    answers = [look(rows, users).passed for users in LOOKS]
    assert answers == [None, None] + [True] * (len(LOOKS) - 2)


def test_a_worse_variant_is_found_and_stays_found():
    rows = experiment(3, {"A": 0.4, "B": 0.2})
    answers = [look(rows, users).passed for users in LOOKS]
    assert [answer for answer, _ in itertools.groupby(answers)] == [None, False]
    found = look(rows)
    assert "mrr@10 of variant 'B' against 'A': " in found.message
    assert (
        "at 95 % over all looks. Look first for changes of logging, positions or bots"
        in found.message
    )
    assert found.message.endswith("stop the variant last")
    assert 0 < found.value < 0.5


def test_a_smaller_alpha_needs_more_users():
    rows = experiment(3, {"A": 0.4, "B": 0.3})
    at = {
        alpha: next(
            users for users in (*LOOKS, 10**9) if look(rows, users, alpha=alpha).passed is False
        )
        for alpha in (0.2, 0.001)
    }
    assert at[0.2] < at[0.001]


def test_a_drop_that_is_accepted_passes():
    rows = experiment(3, {"A": 0.4, "B": 0.3})
    assert look(rows).passed is False
    assert look(rows, max_drop=0.5).passed is True


def test_a_better_variant_passes():
    found = look(experiment(5, {"A": 0.2, "B": 0.4}))
    assert (found.passed, found.value) == (True, 0.0)
    assert "difference +0." in found.message


def test_slates_from_before_the_experiment_do_not_count():
    bad = experiment(6, {"A": 0.6, "B": 0.1}, 1_000)
    good = [
        msgspec.structs.replace(row, time=row.time + 10**9, user=f"u{int(row.user[1:]) + 1_000}")
        for row in experiment(7, {"A": 0.3, "B": 0.3}, 1_000)
    ]
    assert look([*bad, *good]).passed is False
    assert look([*bad, *good], since="2023-11-20T00:00:00Z").passed is True


def test_a_control_alone_is_nothing_to_compare():
    found = look(experiment(8, {"A": 0.3}, 100))
    assert found.passed is None
    assert "the control 'A' is the only variant" in found.message


def test_a_variant_of_a_few_users_is_not_waited_for():
    rows = experiment(9, {"A": 0.3, "B": 0.3})
    rows += [slate(len(rows), f"u{number}", "C", clicked=False) for number in range(3)]
    found = look(rows)
    assert found.passed is True
    assert "mrr@10 of variant 'C' against 'A': not yet" in found.message


def test_an_arm_with_an_answer_waits_for_no_canary():
    """200 users of a canary are more than the floor, and too few for an answer."""
    rows = experiment(5, {"A": 0.05, "B": 0.2})
    rows += [slate(len(rows) + n, f"u{n}", "canary", clicked=n % 60 == 0) for n in range(200)]
    found = look(rows)
    assert found.passed is True
    assert "mrr@10 of variant 'B' against 'A': 0.2" in found.message
    assert "variant 'canary' against 'A': not yet, each side needs 945 users" in found.message


def test_planned_users_make_the_comparison_sharpest_there():
    rows = experiment(3, {"A": 0.4, "B": 0.35})
    drops = {planned: look(rows, planned=planned).value for planned in (2_400, 10_000_000)}
    assert drops[2_400] > drops[10_000_000]


def test_both_rates_are_compared_for_each_kind_of_positive():
    rows = experiment(3, {"A": 0.4, "B": 0.2})
    found = look(rows, metrics=("positive_rate", "positives_per_impression"))
    assert found.passed is False
    assert "positive_rate of click of variant 'B' against 'A': 0.06" in found.message
    assert "positives_per_impression of click of variant 'B' against 'A': 0.06" in found.message


def test_what_no_figure_is_called_is_refused():
    with pytest.raises(ValueError, match=r"write one of precision, .* or one of positive_rate"):
        Settings(metrics=("positive_rate@10",))


# --- periods: sums of simulated hours ---


NDCG = series_of(("ndcg@10",), Definition())
DAY = 24
WEEKS = 5


def simulated(seed, quality, slates=5_000, users=1_500, days=WEEKS * 7):
    """The sums by hour of users of Pareto activity; `quality` scales the score of an hour."""
    chance = np.random.default_rng(seed)
    activity = chance.pareto(1.5, users) + 0.2
    taste = chance.beta(3, 7, users)
    clusters = np.arange(users) % SEASON_CLUSTERS
    hours = {}
    for hour in range(days * DAY):
        busy = (0.8 if is_weekend(hour) else 1) * (1 + 0.5 * np.sin(hour % DAY / DAY * 2 * np.pi))
        seen = chance.poisson(activity / activity.sum() * slates / DAY * busy)
        hits = chance.binomial(seen, np.minimum(taste * quality(hour), 1))
        sums = np.zeros((len(NDCG) + 1, 2, SEASON_CLUSTERS), np.int64)
        sums[0, 1] = np.bincount(clusters, seen, SEASON_CLUSTERS)
        sums[1] = np.bincount(clusters, hits, SEASON_CLUSTERS) * NANO, sums[0, 1]
        hours[hour] = sums
    return hours


def is_weekend(hour):
    return hour // DAY % 7 >= 5


def found_at(hours, begin, **settings):
    """The first hour from `begin` on at which periods fail; None where none does."""
    for until in range(begin, max(hours) + 2):
        seen = {hour: sums for hour, sums in hours.items() if hour < until}
        found = Findings()
        periods(Hourly(NDCG, until, seen, {}), Settings(metrics=("ndcg@10",), **settings), found)
        if found.fallen:
            return until
    return None


def test_weekends_that_are_a_tenth_worse_are_no_regression(seed):
    hours = simulated(seed, lambda hour: 0.9 if is_weekend(hour) else 1)
    assert found_at(hours, DAY) is None


def test_a_lasting_drop_of_a_tenth_is_found_within_three_days(seed):
    """It begins in the middle of a day, and stands beside weekends that are as much worse."""
    begin = 4 * 7 * DAY + 13
    hours = simulated(
        seed, lambda hour: (0.9 if is_weekend(hour) else 1) * (0.9 if hour >= begin else 1)
    )
    found = found_at(hours, begin - 7 * DAY)
    assert begin < found <= begin + 3 * DAY
    assert found_at(hours, begin - 7 * DAY, max_drop=0.3) is None


def test_periods_are_compared_after_a_week_and_not_before():
    rows = [slate(number, f"u{number}", "A", number % 2) for number in range(500)]
    with evidence_of(rows) as evidence:
        found = check(evidence, Settings())
    assert (found.passed, found.due) == (None, False)
    assert found.message == "not checked: periods are compared after a week"


# --- what goes on from run to run ---


METRICS = ("ndcg@10", "positive_rate", "positives_per_impression")


def hours_of(rows, memory, since=0):
    with evidence_of(rows, memory) as evidence:
        return hourly(evidence, series_of(METRICS, Definition()), since, "sums")


def spread(seed):
    """Rows over two days, in the order of time."""
    rows = experiment(seed, {"A": 0.4, "B": 0.3}, users=400)
    return [
        msgspec.structs.replace(row, time=START + number * 150_000)
        for number, row in enumerate(rows)
    ]


def same(one, other):
    assert one.until == other.until
    for mine, others in ((one.hours, other.hours), (one.arms, other.arms)):
        assert mine.keys() == others.keys()
        assert all(np.array_equal(mine[key], others[key]) for key in mine)


def test_sums_kept_from_run_to_run_are_those_of_all_rows():
    rows, memory = spread(5), {}
    for seen in (100, 101, 400, 900, len(rows)):
        same(hours_of(rows[:seen], memory), hours_of(rows[:seen], {}))


def test_a_run_reads_only_the_hours_that_were_not_whole_before():
    """Rows that are gone since are still in the sums."""
    rows, memory = spread(6), {}
    whole = hours_of(rows, memory)
    begin = START + (len(rows) - 30) * 150_000
    same(hours_of([row for row in rows if row.time >= begin], memory), whole)


@pytest.mark.parametrize("change", [lambda _: b"", lambda kept: kept[:-9], lambda _: b"PK"])
def test_damaged_sums_are_computed_anew(change):
    rows, memory = spread(7), {}
    whole = hours_of(rows, memory)
    same(hours_of(rows, {"sums": change(memory["sums"])}), whole)


def test_sums_of_another_experiment_are_computed_anew():
    rows, memory = spread(8), {}
    hours_of(rows, memory)
    begin = rows[300].time
    same(hours_of(rows, memory, since=begin), hours_of(rows, {}, since=begin))
