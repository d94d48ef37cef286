"""Experiments of the service: the sentence, the gate, and scorecards of stored partitions."""

import dataclasses
import re

import pytest

from streameval.base.durations import utc
from streameval.cli.experiment import print_scorecard
from streameval.core.definition import Definition, Positive
from streameval.core.experiments.definition import Experiment, Guardrail
from streameval.core.experiments.sums import ArmSums
from streameval.experiments import words
from streameval.experiments.words import (
    Scorecard,
    adjusted_sentences,
    beside_sentences,
    document_of,
    gate,
    remarks,
    scorecards,
    sentences,
    warnings,
    with_beside,
)

JANUARY_31 = 1_769_817_600_000
ABOUT = "(since 31 January, 182,000 users)"
CLICKS = "positives per impression (click)"
OPEN = "no difference shown (-0.2 to +0.4 points), about 50,000 more users needed"
SLOWER = "B is behind A by 12 to 30 of higher mean latency (ms)"


def a_row(**given):
    """A row of a scorecard: B is ahead in NDCG@10."""
    row = {"name": "e", "metric": "ndcg@10", "role": "primary", "arm": "B", "control": "A"}
    row |= {"users": 182_000, "value": 0.4475, "control_value": 0.44, "difference": 0.0075}
    row |= {"relative_difference": 0.017, "low": 0.004, "high": 0.011, "verdict": "better"}
    return row | {"users_needed": 0, "bounds": "all lists", "withheld": None} | given


def adjusted(row, **given):
    """A row beside its figures adjusted by the users' past."""
    names = ("value", "control_value", "difference", "relative_difference", "verdict")
    found = {name: row[name] for name in names} | {"low": 0.005, "high": 0.01, "users_needed": 0}
    found |= {"once_low": 0.006, "once_high": 0.009, "theta": 0.5, "users_saved": 0.34}
    found |= {"bounds": "all lists", "withheld": None}
    found |= {"time": JANUARY_31 + 26_100_000, "users_with_past": 1_234, "users_of": 2_000}
    return row | {"adjusted": found | given}


def without_crossed(row, **given):
    """The figures of a row without crossed users, as the leader reports them."""
    left = {name: row[name] for name in row if name not in {"name", "role", "control"}}
    return {"left_out": 132, **left} | given


def open_clicks(**given):
    """A row of a guardrail that is not decided."""
    clicks = {"metric": "positives_per_impression{feedback=click}", "role": "guardrail"}
    undecided = {"difference": 0.001, "low": -0.002, "high": 0.004, "users_needed": 50_000}
    return a_row(**clicks, **undecided | {"verdict": "no difference shown"} | given)


def lacking(count=0, share=0.0, fallback=0, empty=0):
    """Slates without an arm, as a split has them."""
    found = {"without_arm": count, "without_arm_share": share}
    return found | {"without_arm_fallback": fallback, "without_arm_empty": empty}


def a_card(*rows, users=None, crossed=0, p_value=1.0, since=JANUARY_31):
    users = {"A": 90_000, "B": 92_000} if users is None else users
    evidence = None if p_value is None else 0.0
    split = {"experiment": "e", "users": users, "crossed_users": crossed}
    split |= {"log_evidence": evidence, "p_value": p_value, **lacking()}
    return Scorecard("e", since, rows, split, ("A", "B"), field="variant")


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
            f"B against A {ABOUT}: NDCG@10: not yet.",
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


def test_adjusted_figures_have_a_sentence_beside_the_others():
    rows = [
        adjusted(a_row()),
        adjusted(open_clicks(), low=None, high=None, users_saved=0.0),
        adjusted(a_row(arm="C")),
    ]
    found = adjusted_sentences(a_card(*rows))
    opening = "B against A, adjusted by what 1,234 of 2,000 users did before (at 31 January 07:15"
    assert found[0] == (
        f"{opening} UTC): NDCG@10: +0.5 to +1.0 points, 34% of users saved; {CLICKS}: no bounds"
        " yet, no users saved."
    )
    assert found[1].startswith("C against A")
    assert adjusted_sentences(a_card(a_row())) == []
    assert sentences(a_card(*rows)) == sentences(a_card(a_row(), open_clicks(), a_row(arm="C")))
    assert gate(a_card(adjusted(a_row(), verdict="worse"))) == "passed", "the plain figures decide"


def test_adjusted_figures_stand_beside_the_named_rows_only():
    rows = [a_row(), open_clicks(), a_row(metric="mrr@10", role="exploratory")]
    beside = adjusted(a_row())["adjusted"]
    time = beside.pop("time")
    card = with_beside(
        a_card(*rows),
        "adjusted",
        [{"metric": name, "arm": "B", **beside} for name in ("ndcg@10", "mrr@10", "gone@5")],
        time,
    )
    assert card.rows == [adjusted(a_row()), *rows[1:]]


def test_without_a_beginning_no_date_is_said():
    assert "(182,000 users)" in sentences(a_card(a_row(), since=None))[0]


def test_an_experiment_of_today_says_the_time_of_day(monkeypatch):
    monkeypatch.setattr(words, "now", lambda: JANUARY_31 + 3_600_000)
    at = utc(JANUARY_31)[11:16]
    assert f"(since {at} UTC today, 182,000 users)" in sentences(a_card(a_row()))[0]
    monkeypatch.setattr(words, "now", lambda: JANUARY_31 + 86_400_000)
    assert ABOUT in sentences(a_card(a_row()))[0]


def test_users_that_cannot_be_trusted_are_warned_of():
    assert warnings(a_card(a_row())) == []
    (split,) = warnings(a_card(a_row(), p_value=1e-6, users={"A": 4_800, "B": 5_200}))
    assert "(A 48.0%, B 52.0%)" in split
    (crossed,) = warnings(a_card(a_row(), crossed=10_000))
    assert crossed.startswith("10,000 users (5.2%) have been in several arms")
    assert warnings(a_card(a_row(), crossed=1_500)) == [], "below the bound"
    strange = {"A": 500, "B": 510, "C": 7}
    (unnamed,) = warnings(a_card(a_row(), users=strange))
    assert unnamed == "The experiment does not name the arm C (7 users)."
    nameless = dataclasses.replace(a_card(a_row(), users=strange), named_arms=("A",))
    assert warnings(nameless) == [], "any arm may come"
    rows = [a_row(arm=arm, role="exploratory") for arm in "BC"]
    rows.append(a_row(arm="D", role="exploratory", users=99))
    (several,) = warnings(dataclasses.replace(nameless, rows=rows))
    assert several.startswith("Several arms have come (B, C) and the experiment names none")


def test_only_a_card_without_arms_says_that_no_slate_came(capsys):
    """Where several arms came that nobody named, the warning stands alone."""
    for rows, said in (([], True), ([a_row(role="exploratory")], False)):
        print_scorecard(dataclasses.replace(a_card(*rows), named_arms=("A",)))
        printed = capsys.readouterr().out
        assert ("No arm has a final slate yet." in printed) == said
        assert ("Several arms have come" in printed) != said


@pytest.mark.parametrize(
    ("slates", "said"),
    [
        (
            lacking(600, 0.3, 600),
            "all of them are fallbacks: the arm seems to be written on the success branch only.",
        ),
        (lacking(50, 0.05, 0, 50), "all of them are empty: the arm seems to be written on"),
        (lacking(50, 0.05, 30, 10), "30 of them are fallbacks and 10 of them are empty: the arm"),
        (lacking(700, 0.35, 7, 3), "7 of them are fallbacks and 3 of them are empty. Have"),
        (lacking(700, 0.35), "none of them is a fallback or empty. Have producers send variant"),
        (lacking(10, 0.01), "10 of 1,000 slates (1.0%) have no variant"),
    ],
)
def test_slates_without_an_arm_are_warned_of(slates, said):
    card = a_card(a_row())
    (warning,) = warnings(dataclasses.replace(card, split=card.split | slates))
    assert said in warning
    if slates["without_arm"] == 600:
        assert warning.startswith("600 of 2,000 slates (30.0%) have no variant, and the figures of")
    assert warning.endswith("on purpose, such as on another surface.")


def test_few_slates_without_an_arm_are_only_told():
    card = a_card(a_row())
    few = dataclasses.replace(card, split=card.split | lacking(9, 9 / 1_000, 9))
    assert warnings(few) == []
    (remark,) = remarks(few)
    assert remark.startswith("9 of 1,000 slates (0.90%) have no variant")
    assert remarks(card) == []


def test_figures_without_crossed_users_stand_beside_and_decide_nothing():
    rows = [without_crossed(a_row(), high=0.01, verdict="worse")]
    card = with_beside(a_card(a_row()), "without_crossed", rows, JANUARY_31 + 26_100_000)
    (said,) = beside_sentences(card)
    (said,) = beside_sentences(card)
    told = "B against A, without the 132 users of several arms (at 31 January 07:15 UTC): "
    assert said == told + "NDCG@10: +0.4 to +1.0 points."
    assert gate(card) == "passed"
    wanted = dataclasses.replace(a_card(a_row(), crossed=1_500), leaves_out=True)
    (remark,) = remarks(wanted)
    assert remark.startswith("1,500 users of several arms are in these figures")
    withheld = with_beside(wanted, "without_crossed", [], JANUARY_31, ["No figures: why."])
    assert remarks(withheld) == ["No figures: why."]
    assert remarks(with_beside(wanted, "without_crossed", rows, JANUARY_31)) == []


def test_a_spread_that_grew_is_never_shown_as_saving():
    (said,) = adjusted_sentences(a_card(adjusted(a_row(), users_saved=-0.7)))
    assert "-70" not in said
    assert said.endswith("no users saved.")


def test_arms_that_never_come_are_warned_of():
    """Of few users, or slates, an arm may be missing by chance."""
    both = {"B": 500, "C": 500}
    card = dataclasses.replace(a_card(users=both, p_value=None), named_arms=("A",))
    (control,) = warnings(card)
    assert control.startswith("No user is in the control A, and variant has B (500 users), C (500")
    assert warnings(a_card(users={"A": 1_000, "B": 0}, p_value=None))[0].startswith(
        "No user is in the arm B"
    )
    (crossed,) = warnings(dataclasses.replace(card, split=card.split | {"crossed_users": 1}))
    assert crossed.startswith("No user is in the control A alone, and")
    fewer = card.split | {"users": both | {"B": 499}}
    assert warnings(dataclasses.replace(card, split=fewer)) == []
    nobody = a_card(users={"A": 0, "B": 0}, p_value=None)
    assert warnings(nobody) == []
    (arms_missing,) = warnings(dataclasses.replace(nobody, without_arm=1_000))
    assert arms_missing.startswith("None of the 1,000 slates so far has the field variant")
    assert warnings(dataclasses.replace(nobody, without_arm=999)) == []
    plan = Experiment("e", "variant", "A", "ndcg@10")
    arms = ArmSums(plan)
    arms.without_arm = 1_000
    (card,) = scorecards(Definition(experiments=(plan,)), [arms], {})
    assert document_of(card)["warnings"] == warnings(card) == [arms_missing]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_no_name_and_no_number_is_cut_on_a_narrow_terminal(width, capsys, monkeypatch):
    """A table where it fits, else rows of two lines, else a line a figure."""
    monkeypatch.setenv("COLUMNS", str(width))
    unbounded = {"low": None, "high": None, "verdict": "not yet"}
    rows = [a_row(), open_clicks(), a_row(metric="latency_ms_mean", role="guardrail", **unbounded)]
    card = a_card(*rows)
    print_scorecard(card)
    printed = capsys.readouterr().out
    table = printed.removeprefix(sentences(card)[0])
    assert "…" not in table
    words = " ".join(table.split())
    for row in rows:
        parts = row["metric"].replace("{", " {").split()
        wanted = [*parts, row["role"], row["verdict"], f"{row['users']:,}", f"{row['value']:.4g}"]
        assert all(part in words for part in wanted)
        assert row["low"] is None or f"{row['low']:.4g}" in words
    lines = table.splitlines()
    assert (max(map(len, lines)) <= width) == (width >= 72)


def test_a_need_of_very_many_users_is_not_said():
    row = open_clicks(users_needed=21_000_000, users=500)
    assert "needed" not in sentences(a_card(row))[0]


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
def test_the_gate_fails_for_what_is_worse_or_not_to_be_trusted(card, judged, capsys):
    assert gate(card) == judged
    print_scorecard(card)
    without = capsys.readouterr().out
    assert "gate" not in without
    print_scorecard(card, judged)
    (said,) = capsys.readouterr().out.removeprefix(without).splitlines()
    assert re.match(f"The gate (has|is) {judged}: ", said)


def test_values_without_their_cap_are_remarked_on():
    positives = [Positive("buy", value="sum", cap=cap) for cap in (None, 500.0)]
    values, clicks = "value_per_user{feedback=buy}", "positives_per_impression{feedback=buy}"
    for positive, metrics, count in (
        (positives[1], (clicks, values), 1),
        (positives[1], (values, clicks), 1),
        (positives[1], (clicks, "ndcg@10"), 0),
        (positives[0], (clicks, values), 0),
    ):
        plan = Experiment("e", "variant", "A", metrics[0], (Guardrail(metrics[1]),))
        definition = Definition(positives=(positive,), experiments=(plan,))
        (card,) = scorecards(definition, [ArmSums(plan)], {})
        assert len(remarks(card)) == count
        for remark in remarks(card):
            assert "only: value per user (buy). One" in remark


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
