"""`drift`: items, their positions and the reactions to them, against a reference.

The measure is the total variation distance between two distributions: half the sum of |p − q|,
from 0 (the same) to 1 (nothing in common). Two samples of one distribution differ too: each share
by its standard error σ over users, so the distance by half of Σ σ·sqrt(2/π), give or take half of
sqrt(Σ σ²(1 − 2/π)). The check subtracts the first and four times the second, so neither a small
sample nor a few users with most of the traffic look like a drift.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from pydantic import Field

from streameval.checks.evidence import Evidence
from streameval.checks.result import Check, CheckSettings, Found, failed, nothing, passed, percent

# Queries of (user, value); {source} is the table. Only frequent items stand alone.
_VALUES: Final = {
    "items": 'SELECT "user", CASE WHEN item IN (SELECT item FROM frequent) THEN item END AS value'
    ' FROM (SELECT "user", unnest(items) AS item FROM {source})',
    "positions": 'SELECT "user", position::VARCHAR AS value FROM'
    ' (SELECT "user", unnest(positions) AS position FROM {source} WHERE request IS NOT NULL)'
    " WHERE position IS NOT NULL",
    "kinds": 'SELECT "user", unnest(list_resize(list_transform(feedback, lambda f: f.kind),'
    " greatest(len(feedback), 1), 'none')) AS value FROM {source}",
}
# The count of each value, and the variance of its share over users, by the delta method.
_SHARES: Final = """
    WITH counts AS (SELECT "user", value, count(*)::DOUBLE AS x FROM ({values}) GROUP BY ALL),
        totals AS (SELECT "user", sum(x) AS n FROM counts GROUP BY ALL),
        whole AS (SELECT sum(n) AS n, sum(n * n) AS nn FROM totals)
    SELECT value, sum(x), (sum(x * x) - 2 * sum(x) / any_value(whole.n) * sum(x * totals.n)
            + (sum(x) / any_value(whole.n)) ** 2 * any_value(whole.nn)) / any_value(whole.n) ** 2
    FROM counts JOIN totals USING ("user"), whole GROUP BY value"""
# Standard deviations that the distance may lie beyond its mean by chance.
_FAR: Final = 4.0
# Items that stand alone; the others together are one value.
_FREQUENT: Final = 100


class Settings(CheckSettings):
    """The bound on the distance of distributions."""

    max_distance: float = Field(
        0.1, gt=0, le=1, description="Largest total variation distance beyond chance."
    )
    min_rows: int = Field(
        1_000, ge=1, description="Slates that each side needs before they are compared."
    )


@dataclass(frozen=True, slots=True)
class _Distance:
    name: str
    beyond_chance: float
    moved: str  # the value whose share changed most
    before: float
    after: float


def check(evidence: Evidence, settings: Settings) -> Found:
    """Judge the largest of the three distances."""
    if not evidence.has_reference:
        return nothing("give a reference: an earlier snapshot, or a folder of outcome files")
    sizes = [
        evidence.row(f"SELECT count(*) FROM {source}")[0]  # noqa: S608  # a name of ours
        for source in ("reference", "current")
    ]
    if min(sizes) < settings.min_rows:
        return nothing(
            f"{sizes[0]:,} slates in the reference and {sizes[1]:,} since: each side needs"
            f" {settings.min_rows:,}"
        )
    evidence.connection.execute(
        f"""CREATE OR REPLACE TEMP TABLE frequent AS
            SELECT item FROM (SELECT unnest(items) AS item FROM reference UNION ALL
                SELECT unnest(items) AS item FROM current)
            GROUP BY item ORDER BY count(*) DESC, item LIMIT {_FREQUENT}"""  # noqa: S608  # a number
    )
    distances = [_distance(evidence, name) for name in _VALUES]
    worst = max(distances, key=lambda found: found.beyond_chance)
    bound = settings.max_distance
    parts = ", ".join(f"{found.name} {found.beyond_chance:.3f}" for found in distances)
    what = f"distance from the reference beyond chance: {parts}"
    if worst.beyond_chance <= bound:
        return passed(worst.beyond_chance, bound, what)
    drifted = "; ".join(
        f"{found.name}: {found.moved} had {percent(found.before)} and has {percent(found.after)}"
        for found in distances
        if found.beyond_chance > bound
    )
    return failed(
        worst.beyond_chance,
        bound,
        f"{what}. Most moved, {drifted}. Look at the releases since: a model, a set of items, a "
        "page, or the logging of events",
    )


def _distance(evidence: Evidence, name: str) -> _Distance:
    before, after = (
        {
            value: (count, max(variance, 0.0))
            for value, count, variance in evidence.rows(
                _SHARES.format(values=_VALUES[name].format(source=source))
            )
        }
        for source in ("reference", "current")
    )
    m, n = (sum(count for count, _ in side.values()) for side in (before, after))
    if not m or not n:
        return _Distance(name, 0.0 if m == n else 1.0, "everything", float(m > 0), float(n > 0))
    values = before.keys() | after.keys()
    none = 0.0, 0.0
    shares = {
        value: (before.get(value, none)[0] / m, after.get(value, none)[0] / n) for value in values
    }
    variances = [before.get(value, none)[1] + after.get(value, none)[1] for value in values]
    distance = sum(abs(p - q) for p, q in shares.values()) / 2
    mean = sum(math.sqrt(variance * 2 / math.pi) for variance in variances) / 2
    spread = math.sqrt(sum(variances) * (1 - 2 / math.pi)) / 2
    moved = max(values, key=lambda value: (abs(shares[value][0] - shares[value][1]), str(value)))
    label = "the rest" if moved is None else repr(moved)
    return _Distance(name, max(0.0, distance - mean - _FAR * spread), label, *shares[moved])


CHECK: Final = Check(
    name="drift",
    place=130,
    sentence="Items, positions and kinds of feedback are distributed as in the reference.",
    value="largest total variation distance beyond chance",
    settings=Settings,
    run=check,
)
