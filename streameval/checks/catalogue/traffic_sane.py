"""`traffic_sane`: users behave like people, not machines.

A crawler or a load test reads more than people do and reacts never or always. It moves means over
slates by its share, and standard errors by far more. Usual behaviour differs between services, and
somebody is always the busiest, so the check compares users with each other:

* *Silent*: the more impressions a person has, the likelier one reaction. So users with many
  impressions should not be without any reaction more often than users with fewer.
* *Eager*: users who react to (nearly) everything, against a beta-binomial distribution fitted to
  all users, including these.
* *Dominant*: the busiest users against a Pareto tail fitted to the next ones (Hill, "A simple
  general approach to inference about the tail of a distribution", Annals of Statistics 1975).

Silent and eager users are compared within each surface (all dimensions but the arm): people see
long lists and react seldom on one, and see short lists and react often on another.

The check judges each by its chance, and names only users far beyond the expected number too: a
model of people is never right to the last percent. Rates a minute have fixed bounds, as hands do.
Ids of several people, or of nobody, are found by their arms and their texts (`shared_ids`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from pydantic import Field

from streameval.base.counts import count_of
from streameval.checks.evidence import Evidence
from streameval.checks.result import (
    Check,
    CheckSettings,
    Found,
    failed,
    nothing,
    passed,
    percent,
    segment_name,
)
from streameval.checks.shared_ids import shared_ids
from streameval.stats.chance import chance_of_count, chance_of_split

# Named only from twice the usual share of silent users, or three times the expected eager ones.
_SILENT_RATIO: Final = 2.0
_EAGER_RATIO: Final = 3.0
# A user is eager with this share of positives or more, among at least so many impressions.
_EAGER_SHARE: Final = 0.9
_EAGER_LEAST: Final = 5
# With more impressions the chance of an eager user only falls, so this many stand for all.
_EAGER_MOST: Final = 200
# Silent users of at least c impressions are compared with users of c/4 to c, and of c/16 to c (few
# people are nearly as busy as some bots). c is a power of two.
_SPANS: Final = (4, 16)
# Smallest numbers of busy users and others; smaller classes would only cost alpha.
_BUSY_LEAST: Final = 5
_OTHERS_LEAST: Final = 20
# The tail to fit: a share of the users, in bounds. With fewer users the test is left out.
_TAIL_SHARE: Final = 0.05
_TAIL: Final = (20, 1_000)
# The busiest must also have so many times the next one's impressions, and this share of all. If
# most people come once, a few visits more look impossible in a tail of two or three values.
_DOMINANT_RATIO: Final = 5
_DOMINANT_SHARE: Final = 0.05
# Busiest users who are judged together: one machine with several names hides behind none.
_DOMINANT_MOST: Final = 5
# Tests that share alpha: silent (each class), eager, dominant.
_KINDS: Final = 3
_NAMED: Final = 3

Table = Sequence[tuple[int, int, int]]
"""Counts of users with n impressions and x items with a positive: (n, x, users)."""


class Settings(CheckSettings):
    """The bounds on human behaviour."""

    alpha: float = Field(
        1e-4,
        gt=0,
        lt=1,
        description="Chance of a false alarm in one run, over silent, eager and dominant users.",
    )
    max_slates_per_minute: int = Field(
        60, ge=1, description="Most slates one user can look at in a minute."
    )
    max_positives_per_minute: int = Field(
        120, ge=1, description="Most positives one user can give to the slates of a minute."
    )


@dataclass(frozen=True, slots=True)
class _Odd:
    """Users unlike the others: a bound on their chance, and a sentence about them."""

    chance: float
    text: str


@dataclass(frozen=True, slots=True)
class _Group:
    """The users of a surface, or of all (None), and the impressions and positives of all.

    `users` is the query of (surface, user, n, x).
    """

    evidence: Evidence
    users: str
    surface: Sequence[str] | None
    table: Table
    impressions: int
    positives: int

    def where(self) -> str:
        """Name the surface."""
        names = [name for name in self.evidence.definition.dimensions if name != self.evidence.arm]
        return (
            f" of {segment_name(names, self.surface)}" if self.surface and any(self.surface) else ""
        )

    def named(self, condition: str) -> str:
        """Name the busiest users of whom a condition holds."""
        rows = self.evidence.rows(
            f"""SELECT "user", count(*) OVER () FROM (SELECT "user", sum(n) AS n, sum(x) AS x
                FROM {self.users} WHERE $1 IS NULL OR surface = $1 GROUP BY "user")
            WHERE {condition} ORDER BY n DESC, "user" LIMIT {_NAMED}""",  # noqa: S608  # ours
            self.surface,
        )
        names = ", ".join(repr(user) for user, _ in rows)
        return names + (", …" if rows and rows[0][1] > len(rows) else "")


def check(evidence: Evidence, settings: Settings) -> Found:
    """Compare users with each other, then the fastest with human speed."""
    whole, *surfaces = _groups(evidence)
    if not whole.table:
        return nothing("no outcome row was found")
    alpha = settings.alpha / _KINDS
    odd = [_judge_busiest(whole, alpha), *_judge_silent(surfaces, alpha)]
    odd += [_eager(group, alpha / len(surfaces)) for group in surfaces]
    problems = [found.text for found in odd if found.text]
    least = min(found.chance for found in odd)
    slates, fast, positives, eager = evidence.row(
        """SELECT max(n), arg_max("user", n), max(p), arg_max("user", p) FROM (
            SELECT "user", ms // 60000, count(request) AS n,
                sum(len(list_filter(feedback, lambda f: NOT f.retract))) AS p
            FROM current GROUP BY ALL)"""
    )
    if slates > settings.max_slates_per_minute:
        problems.append(f"user {fast!r} had {slates:,} slates in a minute")
        least = 0.0
    if positives > settings.max_positives_per_minute:
        problems.append(f"user {eager!r} gave {positives:,} positives to the slates of a minute")
        least = 0.0
    if shared := shared_ids(evidence):
        return failed(
            0.0,
            settings.alpha,
            f"{'; '.join([*shared, *problems])}. Send each person's own id, or leave such slates"
            " out: every figure by user takes them for one person",
        )
    if problems:
        return failed(
            least,
            settings.alpha,
            f"{'; '.join(problems)}: people do not. Leave bots and tests out before events are "
            "sent, or under a `variant` of their own; where feedback is missing, see whether these "
            "users' clients send any",
        )
    users = _count(whole.table)
    return passed(
        least,
        settings.alpha,
        f"{count_of(users, 'user')}, none unlike the others; at most"
        f" {count_of(slates, 'slate')} a minute",
    )


def _groups(evidence: Evidence) -> list[_Group]:
    """Return all users, then those of each surface with enough of them."""
    at = 0 if evidence.arm is None else 1 + evidence.definition.dimensions.index(evidence.arm)
    users = (
        f'(SELECT list_filter(segment, lambda value, i: i != {at}) AS surface, "user",'  # noqa: S608
        " sum(len(items)) AS n, sum(len(list_filter(gains, lambda g: g > 0))) AS x"
        " FROM current WHERE len(items) > 0 GROUP BY ALL)"
    )
    rows = evidence.rows(
        f"""SELECT NULL AS surface, n, x, count(*) FROM (
                SELECT sum(n)::BIGINT AS n, sum(x)::BIGINT AS x FROM {users} GROUP BY "user")
            GROUP BY ALL UNION ALL
        SELECT surface, n::BIGINT, x::BIGINT, count(*) FROM {users} GROUP BY ALL
        ORDER BY surface NULLS FIRST"""  # noqa: S608  # ours
    )
    tables: dict[tuple[str, ...] | None, list[tuple[int, int, int]]] = {None: []}
    for surface, n, x, count in rows:
        tables.setdefault(None if surface is None else tuple(surface), []).append((n, x, count))
    impressions = sum(n * count for n, _, count in tables[None])
    positives = sum(x * count for _, x, count in tables[None])
    least = _BUSY_LEAST + _OTHERS_LEAST
    return [
        _Group(evidence, users, surface, table, impressions, positives)
        for surface, table in tables.items()
        if surface is None or _count(table) >= least
    ]


def _count(table: Table) -> int:
    return sum(users for _, _, users in table)


# --- silent ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Split:
    """Users of `bound` impressions or more, others with fewer, and the silent ones of both."""

    bound: int
    busy: int
    silent: int
    others: int
    usual: int

    def chance(self, silent: int) -> float:
        """Compute the chance that so many of all the silent users are busy ones."""
        whole = self.busy + self.others
        return chance_of_split(silent, self.silent + self.usual, self.busy, whole)

    def can_fail(self, alpha: float) -> bool:
        """Return whether the chance could be as small as alpha, whoever is silent."""
        return self.chance(min(self.busy, self.silent + self.usual)) <= alpha


def _judge_silent(groups: Sequence[_Group], alpha: float) -> list[_Odd]:
    """Judge busy users without any positive, for each surface.

    Only comparisons that can fail share alpha (Tarone, "A modified Bonferroni method for discrete
    data", Biometrics 1990).
    """
    splits = [[s for s in _splits(group.table) if s.can_fail(alpha)] for group in groups]
    tests = sum(map(len, splits))
    return [
        _most_silent(group, chosen, tests, alpha)
        for group, chosen in zip(groups, splits, strict=True)
    ]


def _splits(table: Table) -> list[_Split]:
    most = max(n for n, _, _ in table)
    splits = dict.fromkeys(
        _Split(bound, *_counts(table, bound, math.inf), *_counts(table, bound / span, bound))
        for bound in (2**power for power in range(2, most.bit_length()))
        for span in _SPANS
    )
    return [s for s in splits if s.busy >= _BUSY_LEAST and s.others >= _OTHERS_LEAST]


def _most_silent(group: _Group, splits: Sequence[_Split], tests: int, alpha: float) -> _Odd:
    found, chance = None, 1.0
    for split in splits:
        if split.silent * split.others < _SILENT_RATIO * split.usual * split.busy:
            continue
        if (smaller := split.chance(split.silent) * tests) < chance:
            found, chance = split, smaller
    if found is None or chance > alpha:
        return _Odd(chance, "")
    bound, expected = found.bound, found.busy * found.usual / found.others
    part = sum(n * users for n, x, users in group.table if n >= bound and not x)
    return _Odd(
        chance,
        f"{found.silent:,} users of {bound:,} impressions or more{group.where()} have no positive,"
        f" where users with fewer impressions suggest {expected:.1f}; they have"
        f" {percent(part / group.impressions)} of all impressions:"
        f" {group.named(f'n >= {bound} AND x = 0')}",
    )


def _counts(table: Table, low: float, high: float) -> tuple[int, int]:
    """Count users with `low` to `high` impressions, and among them users without a positive."""
    chosen = [(x, users) for n, x, users in table if low <= n < high]
    return sum(users for _, users in chosen), sum(users for x, users in chosen if not x)


# --- eager ----------------------------------------------------------------------------------------


def _eager(group: _Group, alpha: float) -> _Odd:
    """Judge users who react to everything."""
    chosen = [(n, x, users) for n, x, users in group.table if n >= _EAGER_LEAST]
    found = sum(users for n, x, users in chosen if x >= _EAGER_SHARE * n)
    if not found:
        return _Odd(1.0, "")
    a, b = _beta(chosen)
    sizes = Counter[int]()
    for n, _, users in chosen:
        sizes[min(n, _EAGER_MOST)] += users
    expected = sum(
        users * _at_least(math.ceil(_EAGER_SHARE * n), n, a, b) for n, users in sizes.items()
    )
    chance = chance_of_count(found, expected)
    if chance > alpha or found < _EAGER_RATIO * expected:
        return _Odd(chance, "")
    part = sum(x * users for n, x, users in chosen if x >= _EAGER_SHARE * n)
    condition = f"n >= {_EAGER_LEAST} AND x >= {_EAGER_SHARE} * n"
    return _Odd(
        chance,
        f"{found:,} users{group.where()} gave positives to {_EAGER_SHARE:.0%} or more of their"
        f" impressions, where all users suggest {expected:.2g}; theirs are"
        f" {percent(part / group.positives)} of all positives: {group.named(condition)}",
    )


def _beta(chosen: Table) -> tuple[float, float]:
    """Fit a beta distribution to users' rates, by their mean and spread beyond a binomial's."""
    n, x, users = (np.array(column, np.float64) for column in zip(*chosen, strict=True))
    rates, weight = x / n, users / users.sum()
    mean = min(max(float((weight * rates).sum()), 1e-9), 1 - 1e-9)
    spread = float((weight * np.square(rates - mean)).sum()) / (mean * (1 - mean))
    once = float((weight / n).sum())
    alike = min(max((spread - once) / (1 - once), 1e-3), 1 - 1e-3)
    size = 1 / alike - 1
    return mean * size, (1 - mean) * size


def _at_least(low: int, n: int, a: float, b: float) -> float:
    """Compute the chance of `low` or more of n in a beta-binomial distribution."""
    lg = math.lgamma
    whole = lg(n + 1) + lg(a + b) - lg(a) - lg(b) - lg(n + a + b)
    return sum(
        math.exp(whole - lg(x + 1) - lg(n - x + 1) + lg(x + a) + lg(n - x + b))
        for x in range(low, n + 1)
    )


# --- dominant -------------------------------------------------------------------------------------


def _judge_busiest(group: _Group, alpha: float) -> _Odd:
    """Judge the busiest user, or the few busiest if they are alike."""
    users = _count(group.table)
    tail = min(max(int(_TAIL_SHARE * users), _TAIL[0]), _TAIL[1])
    if users < tail / _TAIL_SHARE:
        return _Odd(1.0, "")
    largest: list[int] = []
    for n, _, count in sorted(group.table, reverse=True):
        largest += [n] * min(count, tail + 1 + _DOMINANT_MOST - len(largest))
    odd = _Odd(1.0, "")
    for several in range(1, _DOMINANT_MOST + 1):
        (*first, last), rest = largest[:several], largest[several : several + tail]
        part = sum(first) + last
        if last < _DOMINANT_RATIO * rest[0] or part < _DOMINANT_SHARE * group.impressions:
            continue
        expected = _expected_beyond(last, rest, largest[several + tail])
        chance = min(1.0, expected) if several == 1 else chance_of_count(several, expected)
        chance = min(1.0, chance * _DOMINANT_MOST)
        if chance < odd.chance:
            who = "user" if several == 1 else f"{several} users,"
            verb = "has" if several == 1 else "have"
            text = (
                f"{who} {group.named(f'n >= {last}')} {verb} {percent(part / group.impressions)}"
                f" of all {group.impressions:,} impressions, and the next {rest[0]:,}"
            )
            odd = _Odd(chance, text if chance <= alpha else "")
    return odd


def _expected_beyond(bound: int, tail: Sequence[int], least: int) -> float:
    """Estimate how many of a tail that begins at `least` are as large as `bound`."""
    logs = sum(math.log(n / least) for n in tail)
    # Two standard errors less steep than it looks.
    slope = len(tail) / logs * (1 - 2 / math.sqrt(len(tail))) if logs else math.inf
    return float(len(tail) * (bound / least) ** -slope)


CHECK: Final = Check(
    name="traffic_sane",
    place=90,
    sentence="No user reads or reacts like a machine, compared with the other users.",
    value="chance of the least likely users, judged by the others",
    settings=Settings,
    run=check,
)
