"""Arms without a spread, and ramps: bounds of first lists, separated arms, steady shares."""

import math
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from scipy import optimize, special

from streameval.base.limits import CLUSTERS, NANO
from streameval.core.definition import Definition, Positive
from streameval.core.experiments.definition import Experiment, Guardrail
from streameval.core.experiments.first_lists import first_rows
from streameval.core.experiments.metrics import metrics_of, row_names
from streameval.core.experiments.sums import ArmSums
from streameval.core.experiments.users import ArmUsers
from streameval.experiments.words import gate, scorecards, sentences, warnings
from streameval.stats.bets import mean_bounds
from streameval.stats.bounded_means import difference_bounds, means_of
from streameval.stats.experiments import Rules, Scored
from streameval.stats.separation import one_sided, separation
from streameval.stats.steady_shares import steady_from
from streameval.stats.verdicts import Beside, join_bounds

NOON = 1_769_860_800_000
MINUTE = 60_000
EMPTY, FALLBACK, LATENCY = "empty_rate", "fallback_rate", "latency_ms_mean"
DEFINITION = Definition(
    positives=(Positive("click"), Positive("purchase", value="sum")),
    experiments=(
        Experiment(
            "ranker",
            "variant",
            "A",
            EMPTY,
            (Guardrail(FALLBACK, 0.01), Guardrail(LATENCY)),
            arms=("B",),
        ),
    ),
)
ROWS, FIRST = row_names(DEFINITION), first_rows(DEFINITION)


class State:
    """The sums of an experiment, one list a user, as the stream leaves them."""

    def __init__(self):
        self.definition = DEFINITION
        self.arms = ArmSums(DEFINITION.experiments[0])
        self.users = ArmUsers()
        self.count = 0

    def add(self, arm, count, *, empty=0.0, fallback=0.0, latency=0, clicks=0.0, minute=0):
        """Add users of which these shares see an empty list, a fallback, click their one item."""
        sums = self.arms.of(arm, len(ROWS))
        cluster = np.arange(self.count, self.count + count) % CLUSTERS
        self.count += count
        # Spread over the users, not the first ones of them.
        at = (np.arange(count) * 37) % max(count, 1)
        flags = {
            "empty_slates": at < round(empty * count),
            "fallback_slates": at < round(fallback * count),
            "positives{feedback=click}": at < round(clicks * count),
        }
        values = {
            "slates": 1,
            "impressions": 1,
            "slates_with_latency": 1,
            "latency": 1_000 * latency,
        }
        for name, value in (values | flags).items():
            np.add.at(sums[ROWS.index(name)], cluster, value)
        here = self.users.by_arm.setdefault(arm, np.zeros(CLUSTERS, np.int64))
        np.add.at(here, cluster, 1)
        self.users.exactly[arm] = self.users.exactly.get(arm, 0) + count
        first = np.zeros(len(FIRST), np.int64)
        for name in ("users", "slates", "impressions"):
            first[FIRST.index(name)] = count
        for row, flag in (
            (EMPTY, "empty_slates"),
            (FALLBACK, "fallback_slates"),
            ("positives_per_impression{feedback=click}", "positives{feedback=click}"),
        ):
            first[FIRST.index(row)] = NANO * int(flags[flag].sum())
        self.users.first.change(arm, NOON + minute * MINUTE, first, 1)
        self._extend(
            arm,
            {EMPTY: flags["empty_slates"], FALLBACK: flags["fallback_slates"], LATENCY: [latency]},
        )

    def _extend(self, arm, values):
        names = list(metrics_of(DEFINITION))
        known = self.arms.extremes.setdefault(arm, np.full((2, len(names)), np.nan))
        for name, these in values.items():
            column = known[:, names.index(name)]
            column[:] = np.fmin(column[0], np.min(these)), np.fmax(column[1], np.max(these))

    def card(self, **changes):
        experiment = replace(self.arms.experiment, **changes)
        self.arms.experiment = experiment
        (card,) = scorecards(DEFINITION, [self.arms], {experiment.key: self.users})
        return card

    def row(self, metric, **changes):
        return next(row for row in self.card(**changes).rows if row["metric"] == metric)


# --- Means of observations in [0, 1]


def log_evidence(mean, total, count):
    """ln of the beta-binomial mixture under Jeffreys' prior, by scipy."""
    mixed = special.betaln(0.5 + total, 0.5 + count - total) - special.betaln(0.5, 0.5)
    return mixed - special.xlogy(total, mean) - special.xlogy(count - total, 1 - mean)


@pytest.mark.parametrize(
    ("one", "other"),
    [((400, 130.5), (300, 60.0)), ((20, 1.0), (5_000, 4_990.25)), ((90, 0.0), (33, 2.0))],
)
def test_bounds_are_where_the_evidence_of_all_means_so_far_apart_reaches_the_limit(one, other):
    alpha = 0.003
    low, high = difference_bounds(means_of(*one), means_of(*other), alpha)

    def least(apart):
        """The smallest evidence of two means that differ by so much, found by search."""
        found = optimize.minimize_scalar(
            lambda mean: (
                log_evidence(mean + apart, one[1], one[0]) + log_evidence(mean, other[1], other[0])
            ),
            bounds=(max(0, -apart), min(1, 1 - apart)),
            method="bounded",
            options={"xatol": 1e-13},
        )
        return found.fun

    for bound in (low, high):
        assert least(float(bound)) == pytest.approx(-math.log(alpha), rel=1e-5)


def test_bounds_end_exactly_at_the_ends():
    nothing, ones = means_of(0, 0), means_of(50, 50)
    zeros = means_of(50, 0)
    assert [float(end) for end in difference_bounds(nothing, nothing, 0.01)] == [-1, 1]
    assert float(difference_bounds(ones, zeros, 0.01).high) == 1
    assert float(difference_bounds(zeros, ones, 0.01).low) == -1


def test_seven_users_an_arm_show_all_against_nothing():
    for users, shown in ((6, False), (7, True)):
        found = difference_bounds(means_of(users, users), means_of(users, 0), 0.003)
        assert (found.low > 0) == shown


def test_the_evidence_has_a_mean_of_1_at_most():
    """By fractions over all outcomes, for values of 0, 1/2 and 1 too."""
    half, third = Fraction(1, 2), Fraction(1, 3)
    for values in ({0: 1 - third, 1: third}, {0: half, half: third, 1: half - third}):
        mean = float(sum(value * chance for value, chance in values.items()))
        expected = 0.0
        for drawn in product(values, repeat=5):
            chance = math.prod(values[value] for value in drawn)
            expected += float(chance) * math.exp(log_evidence(mean, float(sum(drawn)), 5))
        assert expected <= 1 + 1e-12


@pytest.mark.long
def test_bounds_of_equal_arms_ever_miss_in_fewer_runs_than_alpha():
    """Two of 400 looked at after every user, with a base rate that rises from 5 to 30 %."""
    chance, runs, users, alpha = np.random.default_rng(7), 400, 300, 0.2
    rate = np.linspace(0.05, 0.3, users)
    in_b = chance.random((runs, users)) < 0.3
    seen = (chance.random((runs, users)) < rate) * 1.0
    arms = [means_of(mine.cumsum(axis=1), (seen * mine).cumsum(axis=1)) for mine in (in_b, ~in_b)]
    low, high = difference_bounds(*arms, alpha)
    missed = ((low > 0) | (high < 0)).any(axis=1)
    assert missed.mean() <= alpha


def test_bounds_of_all_looks_are_within_those_of_each_and_move_with_the_mean():
    counts = np.arange(10, 210, 10)
    steady = difference_bounds(means_of(counts, 0.9 * counts), means_of(counts, 0 * counts), 0.01)
    low, high = steady.together()
    assert low == steady.low.max() > 0.5
    assert high == steady.high.min()
    # Nothing at first, all later: no number is within all bounds.
    healed = means_of(counts, np.maximum(counts - 100, 0))
    moved = difference_bounds(healed, means_of(counts, counts), 0.01)
    low, high = moved.together()
    assert (low, high) == (moved.low[-1], moved.high[-1])


@pytest.mark.long
def test_bets_bound_values_as_narrowly_as_they_spread():
    alpha, values = 0.01, np.full(200, 0.475)
    low, high = mean_bounds(values, alpha)
    assert 0.45 < low < 0.475 < high < 0.5
    # One outlier changes little, and coin flips have bounds like the mixture's.
    low, high = mean_bounds(np.append(values, 1.0), alpha)
    assert 0.45 < low < 0.48 < high < 0.51
    assert mean_bounds(np.zeros(20), alpha)[0] == 0
    assert mean_bounds(np.ones(20), alpha)[1] == 1
    chance = np.random.default_rng(3)
    missed = 0
    for _ in range(300):
        low, high = mean_bounds(chance.beta(0.2, 1.8, 60), 0.2)
        missed += not low <= 0.1 <= high
    assert missed / 300 <= 0.2


# --- Arms that do not overlap


def test_the_chance_of_a_separation_is_that_of_one_choice_of_users():
    """All assignments of 9 users, of whom one arm gets its third user at the end at last."""
    for alpha, users in ((0.2, 3), (0.06, 4), (0.016, 5)):
        assert separation((2, 2), (1, 1), users, alpha) == (1, 1)
        assert separation((2, 2), (1, 1), users - 1, alpha) is None
    separated = 0
    for arms in product("AB", repeat=9):
        ends = [number for number in range(9) if min(map(arms[: number + 1].count, "AB")) == 3]
        if ends:
            drawn = arms[: ends[0] + 1]
            # The values rise with time, so the arms are separated where one came first.
            separated += drawn in {tuple(sorted(drawn)), tuple(sorted(drawn, reverse=True))}
    assert Fraction(separated, 2**9) <= Fraction(2, math.comb(5, 2))


def test_a_separation_bounds_the_difference_and_minds_the_sign():
    assert separation((5_000, 5_100), (90, 120), 50, 0.001) == (4_880, 5_010)
    assert separation((90, 120), (5_000, 5_100), 50, 0.001) == (-5_010, -4_880)
    assert separation((100, 100), (100, 100), 50, 0.001) == (0, 0)
    assert separation((100, 200), (200, 300), 50, 0.001) is None
    assert separation((math.nan, math.nan), (1, 2), 50, 0.001) is None
    assert one_sided(-0.5, -0.4, 12, 0.001) == (-0.5, -0.4)
    assert one_sided(-0.5, -0.4, 10, 0.001) is None
    assert one_sided(-0.5, 0.0, 1_000, 0.001) is None


# --- One verdict


def test_what_the_figure_itself_says_stands_and_what_excludes_it_is_left_out():
    rules = Rules(margin=0.01)
    first = Beside("first lists", -0.5, -0.3, (200, 200))
    own = Scored(0.4, 0.5, -0.1, low=-0.35, high=0.1, verdict="no difference shown")
    found = join_bounds(own, [first], rules)
    assert (found.verdict, found.bounds, found.low) == ("worse", "first lists", -0.5)
    assert found.users_needed == 0
    # Lists of users who came back were well: the figure is over all lists.
    apart = replace(own, low=-0.02, high=0.1)
    assert join_bounds(apart, [first], rules) == apart
    better = replace(own, low=0.02, high=0.1, verdict="better")
    assert join_bounds(better, [first], rules) == better


@pytest.mark.parametrize(
    ("margin", "users", "verdict"),
    [(0.0, 99, "not yet"), (0.0, 100, "no difference shown"), (0.01, 900, "not yet")],
)
def test_nothing_against_nothing_passes_with_users_or_with_a_margin(margin, users, verdict):
    state = State()
    for arm in "AB":
        state.add(arm, users)
    row = state.row(FALLBACK, guardrails=(Guardrail(FALLBACK, margin),))
    assert row["verdict"] == verdict
    assert row["bounds"] == "first lists"
    assert -row["low"] == row["high"] < 1


# --- Scorecards


def test_ten_thousand_empty_lists_are_worse():
    state = State()
    state.add("A", 10_000, latency=100)
    state.add("B", 10_000, empty=1, latency=5_000)
    card = state.card()
    rows = {row["metric"]: row for row in card.rows}
    empty, latency = rows[EMPTY], rows[LATENCY]
    assert (empty["verdict"], empty["bounds"], empty["high"]) == ("worse", "first lists", 1)
    assert 0.99 < empty["low"] < 1
    assert (latency["verdict"], latency["bounds"]) == ("worse", "separation")
    assert latency["low"] == latency["high"] == latency["difference"] == 4_900
    assert empty["users_needed"] == 0
    assert gate(card) == "failed"
    (said,) = sentences(card)
    assert "points of higher empty rate (share of first lists)" in said
    assert "fallback rate: no difference shown" in said


@pytest.mark.parametrize("users", [12, 50])
def test_an_outage_of_all_is_told_by_a_few_users(users):
    state = State()
    state.add("A", users, latency=100)
    state.add("B", users, empty=1, fallback=1, latency=5_000)
    for metric in (EMPTY, FALLBACK, LATENCY):
        assert state.row(metric)["verdict"] == "worse"


@pytest.mark.long
@pytest.mark.parametrize("share", [0.99, 0.9, 0.5])
def test_an_outage_never_goes_back_from_worse(share):
    """As it grows: at 3,000 users the burn-in of 99 % begins anew."""
    chance, state, told = np.random.default_rng(11), State(), []
    for minute in range(60):
        for arm in "AB":
            users = int(chance.integers(20, 80))
            empty = chance.binomial(users, share) / users if arm == "B" else 0.0
            state.add(arm, users, empty=empty, minute=minute)
        told.append(state.row(EMPTY)["verdict"])
    begin = told.index("worse")
    assert begin < 5
    assert set(told[begin:]) == {"worse"}


def test_a_loss_within_the_margin_is_not_worse_where_lists_do_not_overlap():
    for margin, verdict in ((4_899, "worse"), (4_900, "no difference shown")):
        state = State()
        state.add("A", 200, latency=100)
        state.add("B", 200, latency=5_000)
        row = state.row(LATENCY, guardrails=(Guardrail(LATENCY, margin),))
        assert row["verdict"] == verdict


# --- Ramps


def ramp(shares, users=150, minutes=30, seed=1):
    """New users by (minute, arm), with so many phases of shares of B; a rhythm, and breaks."""
    chance = np.random.default_rng(seed)
    share = np.repeat(shares, minutes)
    swing = 1 + 0.8 * np.sin(np.arange(len(share)) / 5)
    coming = chance.poisson(users * swing) * (chance.random(len(share)) > 0.1)
    in_b = chance.binomial(coming, share)
    return np.stack((in_b, coming - in_b), axis=1)


@pytest.mark.parametrize(
    ("shares", "begin"), [((0.05, 0.5), 30), ((0.05, 0.2, 0.5), 60), ((0.0, 0.5), 30)]
)
def test_changes_of_shares_are_found_where_they_are(shares, begin):
    for seed in range(5):
        counts = ramp(shares, seed=seed)
        following = next(at for at in range(begin, len(counts)) if counts[at].any())
        assert steady_from(counts) == following


def test_steady_shares_are_hardly_ever_called_a_ramp():
    assert not any(steady_from(ramp((0.3,) * 4, users=40, seed=seed)) for seed in range(300))
    assert steady_from(np.zeros((0, 2), np.int64)) == 0
    assert steady_from(np.array([[0, 0], [5, 5]])) == 0


def test_a_ramp_withholds_the_verdict_and_says_why():
    """B has 5 %, then 50 % of the users; it is two points worse while clicks rise to 20 %."""
    state = State()
    for minute in range(60):
        late = minute >= 30
        for arm, users, clicks in (
            ("A", 100 if late else 190, 0.2 if late else 0.1),
            ("B", 100 if late else 10, 0.18 if late else 0.08),
        ):
            state.add(arm, users, clicks=clicks, minute=minute)
    primary = "positives_per_impression{feedback=click}"
    card = state.card(primary=primary)
    row = card.rows[0]
    assert row["metric"] == primary
    assert row["difference"] > 0
    assert (row["verdict"], row["low"], row["high"]) == ("not yet", None, None)
    assert row["withheld"] == warnings(card)[0]
    said = "B has 50.0% since 2026-01-31T12:30:00Z and had 5.0% before"
    assert said in row["withheld"]
    assert "begin anew with since: 2026-01-31T12:30:00Z" in row["withheld"]
    assert sentences(card)[0].endswith("not yet, as the arms' shares of the users changed.")
    assert gate(card) == "open"


def test_an_arm_that_began_later_is_a_ramp_for_it_alone():
    state = State()
    for minute in range(40):
        for arm in "ABC" if minute >= 20 else "AB":
            state.add(arm, 50, minute=minute)
    card = state.card(arms=("B", "C"))
    assert {row["arm"] for row in card.rows if row["withheld"]} == {"C"}
