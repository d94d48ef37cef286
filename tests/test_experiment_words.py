"""Experiments of the service: the sentence, the gate, and scorecards of stored partitions."""

import dataclasses

import pytest

from streameval.core.definition import Definition
from streameval.core.experiments.definition import Experiment
from streameval.core.experiments.sums import ArmSums
from streameval.experiments.words import Scorecard, gate, remarks, scorecards, sentences, warnings

JANUARY_31 = 1_769_817_600_000
ABOUT = "(since 31 January, 182,000 users)"
CLICKS = "positives per impression (click)"
OPEN = "not decided yet, about 40,000 more users needed"
SLOWER = "B is behind A by 12 to 30 of higher mean latency (ms)"


def a_row(**given):
    """A row of a scorecard: B is ahead in NDCG@10."""
    row = {"name": "e", "metric": "ndcg@10", "role": "primary", "arm": "B", "control": "A"}
    row |= {"users": 182_000, "value": 0.4475, "control_value": 0.44, "difference": 0.0075}
    row |= {"relative_difference": 0.017, "low": 0.004, "high": 0.011, "verdict": "better"}
    return row | {"users_needed": 0} | given


def open_clicks(**given):
    """A row of a guardrail that is not decided."""
    clicks = {"metric": "positives_per_impression{feedback=click}", "role": "guardrail"}
    undecided = {"difference": 0.001, "low": -0.002, "high": 0.004, "users_needed": 39_124}
    return a_row(**clicks, **undecided | {"verdict": "no difference shown"} | given)


def a_card(*rows, users=None, crossed=0, p_value=1.0, since=JANUARY_31):
    users = {"A": 90_000, "B": 92_000} if users is None else users
    evidence = None if p_value is None else 0.0
    split = {"experiment": "e", "users": users, "crossed_users": crossed}
    split |= {"log_evidence": evidence, "p_value": p_value}
    return Scorecard("e", since, rows, split, ("A", "B"))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [a_row(), open_clicks()],
            f"B is ahead of A by 0.4 to 1.1 points of NDCG@10 {ABOUT}; {CLICKS}: {OPEN}.",
        ),
        (
            [a_row(difference=-0.0075, low=-0.011, high=-0.004, verdict="worse")],
            f"B is behind A by 0.4 to 1.1 points of NDCG@10 {ABOUT}.",
        ),
        (
            [a_row(low=None, high=None, users_needed=None, verdict="not yet")],
            f"B against A {ABOUT}: NDCG@10: not decided yet.",
        ),
        (
            [open_clicks(users_needed=0)],
            f"B against A {ABOUT}: {CLICKS}: no difference shown (-0.2 to +0.4 points).",
        ),
        (
            [
                a_row(metric="empty_rate", difference=-0.02, low=-0.03, high=-0.015),
                a_row(metric="latency_ms_mean", low=12.0, high=30.5, verdict="worse"),
            ],
            f"B is ahead of A by 1.5 to 3.0 points of lower empty rate {ABOUT}; {SLOWER}.",
        ),
        (
            [a_row(low=0.00002, high=0.011)],
            f"B is ahead of A by 0.002 to 1.100 points of NDCG@10 {ABOUT}.",
        ),
    ],
)
def test_a_sentence_says_what_is_decided_and_what_is_open(rows, said):
    assert sentences(a_card(*rows)) == [said]


def test_a_sentence_stands_for_each_arm_and_leaves_out_what_is_exploratory():
    card = a_card(a_row(), a_row(arm="C"), a_row(metric="mrr@10", role="exploratory"))
    assert [said.split()[0] for said in sentences(card)] == ["B", "C"]
    assert "MRR" not in "".join(sentences(card))
    assert sentences(a_card()) == []


def test_without_a_beginning_no_date_is_said():
    assert "(182,000 users)" in sentences(a_card(a_row(), since=None))[0]


def test_users_that_cannot_be_trusted_are_warned_of():
    assert warnings(a_card(a_row())) == []
    (split,) = warnings(a_card(a_row(), p_value=1e-6, users={"A": 4_800, "B": 5_200}))
    assert "(A 48.0%, B 52.0%)" in split
    (crossed,) = warnings(a_card(a_row(), crossed=10_000))
    assert crossed.startswith("10,000 users (5.2%) have been in several arms")
    assert warnings(a_card(a_row(), crossed=1_500)) == [], "below the bound"
    strange = {"A": 500, "B": 510, "C": 7}
    (unnamed,) = warnings(a_card(a_row(), users=strange))
    assert unnamed == "The split does not name the arm C (7 users)."
    assert warnings(a_card(a_row(), users=strange, p_value=None)) == [], "no split is configured"


@pytest.mark.parametrize(
    ("card", "judged"),
    [
        (a_card(a_row(), open_clicks()), "passed"),
        (a_card(a_row(verdict="worse"), open_clicks()), "failed"),
        (a_card(a_row(), open_clicks(verdict="worse")), "failed"),
        (a_card(a_row(), a_row(metric="mrr@10", role="exploratory", verdict="worse")), "passed"),
        (a_card(a_row(), open_clicks(verdict="not yet")), "open"),
        (a_card(a_row(verdict="worse"), open_clicks(verdict="not yet")), "failed"),
        (a_card(a_row(), p_value=1e-6), "failed"),
        (a_card(a_row(), crossed=10_000), "failed"),
        (a_card(), "open"),
    ],
)
def test_the_gate_fails_for_what_is_worse_or_not_to_be_trusted(card, judged):
    assert gate(card) == judged


def test_a_late_experiment_says_which_slates_do_not_count():
    plan = Experiment("e", "variant", "A", "ndcg@10", since=JANUARY_31)
    definition = Definition(experiments=(plan,))
    late = JANUARY_31 + 15 * 3_600_000
    for experiment, counts_from, said in (
        (plan, late, "Slates before 31 January 15:00 UTC do not count"),
        (plan, JANUARY_31, None),
        (plan, JANUARY_31 - 1, None),
        (plan, None, None),
        (dataclasses.replace(plan, since=None), late, None),
    ):
        (card,) = scorecards(definition, [ArmSums(experiment, counts_from)], {})
        assert [remark.partition(": ")[0] for remark in remarks(card)] == ([said] if said else [])
