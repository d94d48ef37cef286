"""`metric_regression` looked at again and again, as the schedule does: one answer for all looks.

Users of an experiment come in order; a look sees those that have come so far.
"""

import itertools
import random

import duckdb
import msgspec

from streameval.core.definition import Definition
from streameval.core.outcome import FeedbackOutcome, Outcome
from streameval.offline.checks.evidence import VIEW, Evidence
from streameval.offline.checks.metric_regression import Settings, check
from streameval.offline.outcomes import table

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
        variant=variant,
        surface=None,
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


def look(rows, users=USERS, **settings):
    """What the check finds of the first users."""
    seen = [row for row in rows if int(row.user[1:]) < users]
    with duckdb.connect() as connection:
        connection.register("files", table(0, seen))
        connection.execute(f"CREATE VIEW slates AS SELECT {VIEW} FROM files")
        connection.execute("CREATE VIEW current AS SELECT * FROM slates")
        evidence = Evidence(connection, Definition(), START)
        return check(evidence, Settings(control="A", metrics=("mrr@10",), **settings))


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
    assert "at 95 % over all looks. Stop the variant" in found.message
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
    assert "there is no variant beside the control 'A'" in found.message
