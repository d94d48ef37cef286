"""Ids that stand for several people, or for nobody: part of `traffic_sane`.

A client that knows no user sends `anonymous`, `0` or `null` for all of them. That one id has a
large share of the slates, and counts as one user. Activity has a heavy tail, so a share alone
accuses nobody. But one person stays in one arm, and an id of several people goes to and
fro between them.
"""

from __future__ import annotations

from typing import Final

from streameval.checks.evidence import Evidence
from streameval.checks.result import percent

# Share of all slates from which an id matters, and the least number of slates.
_SHARE: Final = 0.005
_LEAST: Final = 20
# Changes of the arm, as a share of the slates: two people of one arm and one of a small one have so
# many. One assignment anew is one change.
_CHANGES: Final = 0.05
# Where so many of the other users change too, arms are assigned by something else than the user.
_USUAL: Final = 0.1
# Share of all slates from which a text that names no user cannot be a user's chance name.
_NOBODY_SHARE: Final = 0.01
_NAMES: Final = (
    *("", "-", "--", "_", ".", "?", "*", "0", "-1", "none", "null", "nil", "(null)", "(none)"),
    *("undefined", "nan", "na", "n/a", "anonymous", "anon", "anonym", "guest", "unknown", "unset"),
    *(
        "not set",
        "(not set)",
        "not_set",
        "empty",
        "missing",
        "default",
        "user",
        "userid",
        "user_id",
    ),
    *("visitor", "nobody", "no_user", "test", "false", "true", "undefined undefined"),
    *("[object object]", '""', "''", "{}", "[]", "00000000-0000-0000-0000-000000000000"),
    *("0" * size for size in (8, 16, 32, 64)),
)
_NAMES_OF_ZERO: Final = ("0", "-1")
_MOST: Final = 3


def shared_ids(evidence: Evidence) -> list[str]:
    """Name the ids that cannot be one person's, each in a sentence."""
    nobody = _nobody(evidence)
    shared = [] if evidence.arm is None else _changing(evidence, set(nobody))
    return [*nobody.values(), *shared][:_MOST]


def _nobody(evidence: Evidence) -> dict[str, str]:
    """Find ids that say that no user is known, by id."""
    spellings = {each for name in _NAMES for each in (name, name.upper(), name.capitalize())}
    # Pseudonyms are made of the texts as they were sent.
    names = {evidence.user(each): each for each in spellings} if evidence.user else {}
    rows = evidence.rows(
        f"""SELECT "user", n, whole FROM (SELECT "user", count(*) AS n,
                    sum(count(*)) OVER () AS whole FROM current GROUP BY "user")
        WHERE list_contains($1, lower(trim("user"))) AND n >= greatest({_LEAST},
            {_NOBODY_SHARE} * whole) ORDER BY n DESC""",  # noqa: S608  # numbers
        list(names or _NAMES),
    )
    (numbered,) = evidence.row("SELECT count(*) > 0 FROM current WHERE \"user\" = '1'")
    return {
        user: f"user {names.get(user, user)!r} has {percent(n / whole)} of all {whole:,} slates:"
        " the id stands for no user that is known"
        for user, n, whole in rows
        # Where users are numbered, these are somebody's numbers.
        if not (numbered and user in _NAMES_OF_ZERO)
    }


def _changing(evidence: Evidence, known: set[str]) -> list[str]:
    """Find ids with many slates that go to and fro between arms on one surface."""
    at = 1 + evidence.definition.dimensions.index(evidence.arm or "")
    arm = f"segment[{at}]"
    surface = f"list_filter(segment, lambda value, i: i != {at})"
    rows = evidence.rows(
        f"""WITH users AS (SELECT "user", count(*) AS n, count(DISTINCT {arm}) > 1 AS several
                FROM current GROUP BY "user"),
            totals AS (SELECT sum(n) AS whole,
                    avg(several::INTEGER) FILTER (WHERE n > 1) AS usual FROM users),
            steps AS (SELECT "user", {arm} != lag({arm}) OVER (PARTITION BY "user", {surface}
                    ORDER BY ms, partition, "offset") AS changed
                FROM current JOIN users USING ("user"), totals
                WHERE several AND n >= greatest({_LEAST}, {_SHARE} * whole) AND usual < {_USUAL})
        SELECT "user", count(*), sum(changed::INTEGER) AS changes, any_value(whole)
        FROM steps, totals GROUP BY "user"
        HAVING changes >= {_CHANGES} * count(*) ORDER BY count(*) DESC, "user" """  # noqa: S608
    )
    return [
        f"user {user!r} has {percent(n / whole)} of all {whole:,.0f} slates and changed"
        f" {evidence.arm} {changes:,.0f} times: an id that is shared by several people"
        for user, n, changes, whole in rows
        if user not in known
    ]
