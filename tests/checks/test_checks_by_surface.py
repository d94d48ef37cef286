"""Checks of scores and of traffic judge each surface and variant by itself.

The rows are made here, without a stream: only what these checks read is in them.
"""

from dataclasses import dataclass, field

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from streameval.checks.catalogue import logged_scores, slates_once, traffic_sane
from streameval.checks.evidence import Evidence
from streameval.core.definition import Definition

DEFINITION = Definition(dimensions=("variant", "surface"))


@dataclass
class Rows:
    """Slates of one item list each, as `current` has them."""

    chance: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))
    rows: list = field(default_factory=list)

    def add(self, user, scores, hits, *, variant="A", surface="home"):
        number = len(self.rows)
        self.rows.append(
            {
                "partition": 0,
                "offset": number,
                "request": f"r{number}",
                "user": user,
                "segment": [variant, surface],
                "ms": 60_000 * number,
                "items": [f"i{index}" for index in range(len(scores))],
                "scores": [float(score) for score in scores],
                "gains": [float(hit) for hit in hits],
                "feedback": [],
            }
        )

    def visit(self, user, items, rate, surface="home"):
        """A slate of so many items, with positives at this rate."""
        self.add(user, [0.0] * items, self.chance.random(items) < rate, surface=surface)

    def judged(self, check, **given):
        kinds = pa.list_(pa.struct([("retract", pa.bool_())]))
        table = pa.Table.from_pylist(self.rows)
        table = table.set_column(
            table.schema.get_field_index("feedback"), "feedback", table["feedback"].cast(kinds)
        )
        with duckdb.connect() as connection:
            connection.register("current", table)
            evidence = Evidence(connection, DEFINITION, now=0, arm="variant")
            return check.check(evidence, check.Settings(**given))


# --- scores ---------------------------------------------------------------------------------------


def scored(rows, variant, surface, *, rate, shuffled=False, scale=lambda score: score):
    """500 lists of ten: people and items differ, and scores are the truth."""
    chance = rows.chance
    for number in range(500):
        taste = chance.gamma(2, 0.5)
        worth = np.minimum(rate * taste * chance.gamma(1, 1, 10), 0.9)
        hits = chance.random(10) < worth
        scores = chance.permutation(worth) if shuffled else worth
        rows.add(
            f"{variant}{surface}{number}", scale(scores), hits, variant=variant, surface=surface
        )


def test_scores_shuffled_in_one_of_two_variants_are_found_and_the_variant_is_named():
    rows = Rows()
    scored(rows, "A", "home", rate=0.1)
    scored(rows, "B", "home", rate=0.1, shuffled=True)
    found = rows.judged(logged_scores)
    assert found.passed is False
    assert "within lists of variant 'B', surface 'home'" in found.message


def test_scores_the_wrong_way_round_in_one_variant_are_found_and_the_variant_is_named():
    rows = Rows()
    scored(rows, "A", "home", rate=0.1)
    scored(rows, "B", "home", rate=0.1, scale=lambda score: 1 - score)
    found = rows.judged(logged_scores)
    assert found.passed is False
    assert "items of variant 'B', surface 'home': scores do not tell" in found.message


def test_surfaces_may_have_scores_of_other_scales_and_other_click_rates():
    rows = Rows()
    scored(rows, "A", "feed", rate=0.02, scale=lambda score: 3 + 10 * score)
    scored(rows, "A", "search", rate=0.2)
    found = rows.judged(logged_scores)
    assert found.passed is True
    assert found.value > 0.7


def test_a_few_positives_at_low_scores_are_chance():
    rows = Rows()
    for number in range(200):
        hits = [0.0] * 10
        hits[(0, 2, 3, 7, 9)[number // 20 % 5]] = float(number % 20 == 0)
        rows.add(f"u{number}", range(10), hits)
    found = rows.judged(logged_scores)
    assert found.value < 0.5
    assert found.passed is True


def test_without_both_classes_in_a_segment_there_is_no_result():
    rows = Rows()
    for number in range(200):
        rows.add(f"u{number}", range(10), [number % 2] * 10, surface=str(number % 2))
    assert rows.judged(logged_scores).passed is None


def same(rows, change, share=1.0):
    """1,000 lists of 6 of 50 items; `change` gives the scores of a share of them."""
    chance = rows.chance
    for number in range(1_000):
        scores = chance.random(6)
        if chance.random() < share:
            scores = change(scores)
        rows.add(f"u{number}", scores, scores > 0.8)
        rows.rows[-1]["items"] = [f"i{item}" for item in chance.choice(50, 6, replace=False)]


@pytest.mark.parametrize(
    ("change", "share", "said"),
    [
        (lambda scores: scores * 0 + 0.5, 1.0, "100 % of the items have the same score (0.5 is"),
        (lambda scores: scores * 0 + scores[0], 1.0, "100 % of the pairs of items of a list have"),
        (lambda scores: scores > 0.5, 1.0, "of the pairs of items of a list have the same score"),
        (lambda scores: scores * 0 + scores[0], 0.08, "of the lists have the same score for all"),
        (lambda scores: np.where(scores < 0.3, -1, scores), 1.0, "have the same score (-1 is the"),
        (lambda _: np.arange(6), 1.0, "% of the items have a score that is given by its position"),
        (lambda _: 1 / np.arange(1, 7), 1.0, "have a score that is given by its position"),
    ],
)
def test_scores_that_say_nothing_are_found_without_any_feedback(change, share, said):
    rows = Rows()
    same(rows, change, share)
    for row in rows.rows:
        row["gains"] = [0.0] * 6
    found = rows.judged(logged_scores)
    assert found.passed is False
    assert said in found.message


def test_scores_with_two_decimals_and_one_list_for_everybody_are_no_fault():
    rows = Rows()
    same(rows, lambda scores: scores.round(2))
    assert rows.judged(logged_scores).passed is True
    rows = Rows()
    for number in range(1_000):
        rows.add(f"u{number}", [0.9, 0.7, 0.6, 0.3], [number % 3 == 0, number % 9 == 0, 0, 0])
    assert rows.judged(logged_scores).passed is True


# --- slates that are sent again -------------------------------------------------------------------


def again(gaps, share, *, part=5):
    """2,000 lists of five items, a share of them again after a gap, with `part` of their items."""
    rows = Rows()
    for number in range(2_000):
        rows.add(f"u{number}", range(5), [0.0] * 5)
        items = [f"i{item}" for item in rows.chance.choice(50, 5, replace=False)]
        first = rows.rows[-1]
        first["items"] = items
        if rows.chance.random() < share:
            rows.add(f"u{number}", range(part), [0.0] * part)
            rows.rows[-1] |= {"ms": first["ms"] + gaps(rows.chance), "items": items[:part]}
    return rows.judged(slates_once)


@pytest.mark.parametrize(
    ("gaps", "share", "part", "said"),
    [
        (lambda _: 200, 0.3, 5, "show a user the list before again, within 1 s"),
        (lambda _: 200, 0.02, 5, "within 1 s"),
        (lambda _: 50, 0.1, 4, "within 1 s"),
        (lambda chance: 5_000 + chance.integers(300), 0.03, 5, "always 4.59 s to 5.56 s after it"),
    ],
)
def test_slates_that_a_producer_sends_again_are_found(gaps, share, part, said):
    found = again(gaps, share, part=part)
    assert found.passed is False
    assert said in found.message


def test_people_who_look_again_send_nothing_twice():
    found = again(lambda chance: int(20_000 * chance.lognormal(0, 1.2)), 0.2)
    assert found.passed is True


# --- traffic --------------------------------------------------------------------------------------


def people(rows, count, *, rate, surface="home", items=8):
    """People with a few slates each, some with many."""
    for number in range(count):
        taste = rows.chance.gamma(2, 0.5)
        for _ in range(min(int(rows.chance.pareto(1.2)) + 1, 40)):
            rows.visit(f"{surface}{number}", items, min(rate * taste, 1), surface)


def test_readers_of_a_long_feed_are_no_bots_beside_people_who_search():
    rows = Rows()
    people(rows, 400, rate=0.3, surface="search")
    people(rows, 400, rate=0.002, surface="feed", items=30)
    found = rows.judged(traffic_sane)
    assert found.passed is True, found.message


def test_ten_silent_bots_are_found_where_few_people_are_nearly_as_busy():
    rows = Rows()
    people(rows, 400, rate=0.1)
    for number in range(1_000):
        rows.visit(f"bot{number % 10}", 8, 0)
    found = rows.judged(traffic_sane)
    assert found.passed is False
    assert "'bot0', 'bot1', 'bot2', …" in found.message


def test_machines_that_are_alike_do_not_hide_behind_each_other():
    rows = Rows()
    for number in range(1_500):
        rows.visit(f"u{number % 500}", 8, 0.1)
    for number in range(600):
        rows.visit(f"robot{number % 2}", 8, 0.1)
    found = rows.judged(traffic_sane)
    assert found.passed is False
    assert "2 users, 'robot0', 'robot1' have 28.6 % of all" in found.message


# --- ids of several people ------------------------------------------------------------------------


def crowd(user, share, arms, *, users=600, by_request=False):
    """Users of one arm each, and one id with a share of all slates that takes any of `arms`."""
    rows = Rows()
    for _ in range(3_000):
        name = f"u{rows.chance.integers(users)}"
        arm = "AB"[int(name[1:]) % 2]
        if by_request or rows.chance.random() < share:
            name, arm = name if by_request else user, rows.chance.choice(list(arms))
        rows.add(name, [0.0] * 3, rows.chance.random(3) < 0.3, variant=arm)
    return rows.judged(traffic_sane)


@pytest.mark.parametrize("user", ["x7", "11111111-2222-3333-4444-555555555555"])
@pytest.mark.parametrize("share", [0.02, 0.1])
def test_an_id_of_any_text_that_goes_to_and_fro_between_arms_is_shared(user, share):
    found = crowd(user, share, "AB")
    assert found.passed is False
    assert f"user {user!r} has " in found.message
    assert "an id that is shared by several people" in found.message


@pytest.mark.parametrize("user", ["anonymous", "0", "", "NULL", "undefined", "-", "0" * 32])
def test_an_id_that_names_nobody_is_found_in_one_arm_too(user):
    found = crowd(user, 0.03, "A")
    assert found.passed is False
    assert "the id stands for no user that is known" in found.message


def test_arms_by_request_accuse_no_user():
    assert crowd("", 0, "AB", users=60, by_request=True).passed is True
