"""`traffic_sane`: users behave like people, not machines.

A crawler or a load test reads more than people do and reacts never or always. It moves means over
slates by its share, and standard errors by far more. Usual behaviour differs between services, and
somebody is always the busiest, so the check compares users with each other:

* *Silent*: the more impressions a person has, the likelier one reaction. So users with many
  impressions should not be without any reaction more often than users with fewer.
* *Eager*: users who react to (nearly) everything, against a beta-binomial distribution fitted to
  all users, including these.
* *Dominant*: the busiest user against a Pareto tail fitted to the next ones (Hill, "A simple
  general approach to inference about the tail of a distribution", Annals of Statistics 1975).

The check judges each by its chance, and names only users far beyond the expected number too: a
model of people is never right to the last percent. Rates a minute have fixed bounds, as hands do.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from pydantic import Field

from streameval.checks.evidence import Evidence
from streameval.checks.result import CheckSettings, Found, failed, nothing, passed, percent
from streameval.stats.chance import chance_of_count, chance_of_split

# Named only from twice the usual share of silent users, or three times the expected eager ones.
_SILENT_RATIO: Final = 2.0
_EAGER_RATIO: Final = 3.0
# A user is eager with this share of positives or more, among at least so many impressions.
_EAGER_SHARE: Final = 0.9
_EAGER_LEAST: Final = 5
# With more impressions the chance of an eager user only falls, so this many stand for all.
_EAGER_MOST: Final = 200
# Silent users of at least c impressions are compared with users of c/4 to c, c a power of two.
_SPAN: Final = 4
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
# Tests that share alpha: silent (each class), eager, dominant.
_KINDS: Final = 3
_NAMED: Final = 3
_USERS: Final = (
    '(SELECT "user", sum(len(items)) AS n, sum(len(list_filter(gains, lambda g: g > 0))) AS x'
    " FROM current GROUP BY ALL)"
)

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


def check(evidence: Evidence, settings: Settings) -> Found:
    """Compare users with each other, then the fastest with human speed."""
    table = evidence.rows(f"SELECT n, x, count(*) FROM {_USERS} WHERE n > 0 GROUP BY ALL")  # noqa: S608
    if not table:
        return nothing("no outcome row was found")
    alpha = settings.alpha / _KINDS
    tests: tuple[Callable[[Evidence, Table, float], _Odd], ...] = (_silent, _eager, _dominant)
    odd = [test(evidence, [(int(n), int(x), u) for n, x, u in table], alpha) for test in tests]
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
    if problems:
        return failed(
            least,
            settings.alpha,
            f"{'; '.join(problems)}: people do not. Leave bots and tests out before events are "
            "sent, or under a `variant` of their own; where feedback is missing, see whether these "
            "users' clients send any",
        )
    users = sum(count for _, _, count in table)
    return passed(
        least,
        settings.alpha,
        f"{users:,} users, none unlike the others; at most {slates} slates a minute",
    )


# --- silent ---------------------------------------------------------------------------------------


def _silent(evidence: Evidence, table: Table, alpha: float) -> _Odd:
    """Judge busy users without any positive."""
    most = max(n for n, _, _ in table)
    compared = [
        (bound, *_counts(table, bound, math.inf), *_counts(table, bound / _SPAN, bound))
        for bound in (2**power for power in range(2, most.bit_length()))
    ]
    compared = [row for row in compared if row[1] >= _BUSY_LEAST and row[3] >= _OTHERS_LEAST]
    least, found = 1.0, None
    for bound, busy, silent, others, usual in compared:
        if silent * others < _SILENT_RATIO * usual * busy:
            continue
        chance = chance_of_split(silent, silent + usual, busy, busy + others) * len(compared)
        least = min(least, chance)
        if chance <= alpha and (found is None or chance < found[0]):
            found = chance, bound, silent, busy * usual / others
    if found is None:
        return _Odd(least, "")
    _, bound, silent, expected = found
    total = sum(n * users for n, _, users in table)
    part = sum(n * users for n, x, users in table if n >= bound and not x)
    return _Odd(
        least,
        f"{silent:,} users of {bound:,} impressions or more have no positive, where users with"
        f" fewer impressions suggest {expected:.1f}; they have {percent(part / total)} of all"
        f" impressions: {_named(evidence, f'n >= {bound} AND x = 0')}",
    )


def _counts(table: Table, low: float, high: float) -> tuple[int, int]:
    """Count users with `low` to `high` impressions, and among them users without a positive."""
    chosen = [(x, users) for n, x, users in table if low <= n < high]
    return sum(users for _, users in chosen), sum(users for x, users in chosen if not x)


# --- eager ----------------------------------------------------------------------------------------


def _eager(evidence: Evidence, table: Table, alpha: float) -> _Odd:
    """Judge users who react to everything."""
    chosen = [(n, x, users) for n, x, users in table if n >= _EAGER_LEAST]
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
    positives = sum(x * users for _, x, users in table)
    part = sum(x * users for n, x, users in chosen if x >= _EAGER_SHARE * n)
    condition = f"n >= {_EAGER_LEAST} AND x >= {_EAGER_SHARE} * n"
    return _Odd(
        chance,
        f"{found:,} users gave positives to {_EAGER_SHARE:.0%} or more of their impressions, where"
        f" all users suggest {expected:.2g}; theirs are {percent(part / positives)} of all"
        f" positives: {_named(evidence, condition)}",
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


def _dominant(evidence: Evidence, table: Table, alpha: float) -> _Odd:
    """Judge the busiest user."""
    users = sum(count for _, _, count in table)
    tail = min(max(int(_TAIL_SHARE * users), _TAIL[0]), _TAIL[1])
    total = sum(n * count for n, _, count in table)
    if users < tail / _TAIL_SHARE:
        return _Odd(1.0, "")
    largest: list[int] = []
    for n, _, count in sorted(table, reverse=True):
        largest += [n] * min(count, tail + 2 - len(largest))
    first, *rest, least = largest
    if first < _DOMINANT_RATIO * rest[0] or first < _DOMINANT_SHARE * total:
        return _Odd(1.0, "")
    logs = sum(math.log(n / least) for n in rest)
    # Two standard errors less steep than it looks.
    slope = tail / logs * (1 - 2 / math.sqrt(tail)) if logs else math.inf
    chance = min(1.0, tail * (first / least) ** -slope)
    if chance > alpha:
        return _Odd(chance, "")
    return _Odd(
        chance,
        f"user {_named(evidence, f'n = {first}')} has {percent(first / total)} of all {total:,}"
        f" impressions, and the next {rest[0]:,}",
    )


def _named(evidence: Evidence, condition: str) -> str:
    """Name the busiest users of whom a condition holds."""
    rows = evidence.rows(
        f'SELECT "user", count(*) OVER () FROM {_USERS} WHERE {condition}'  # noqa: S608  # ours
        f' ORDER BY n DESC, "user" LIMIT {_NAMED}'
    )
    names = ", ".join(repr(user) for user, _ in rows)
    return names + (", …" if rows and rows[0][1] > len(rows) else "")
