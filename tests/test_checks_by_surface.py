"""Checks of scores and of traffic judge each surface and variant by itself.

The rows are made here, without a stream: only what these checks read is in them.
"""

from dataclasses import dataclass, field

import duckdb
import numpy as np
import pyarrow as pa

from streameval.checks import logged_scores, traffic_sane
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
