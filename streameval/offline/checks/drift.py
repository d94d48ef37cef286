"""`drift`: what is shown, where it stands and what people do with it, against a reference.

For each of the three the total variation distance between two distributions: half the sum of
|p − q|, from 0 (the same) to 1 (nothing in common). Two samples of one distribution differ too, by
about Σ sqrt(p(1 − p)(1/m + 1/n) / 2π): that is taken off, so a small sample does not look drifted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from pydantic import Field

from streameval.offline.checks.evidence import Evidence
from streameval.offline.checks.result import CheckSettings, Found, failed, nothing, passed, percent

# Queries of (value, count); {source} is the table, {top} a list of the values that stand alone.
_DISTRIBUTIONS: Final = {
    "items": "SELECT CASE WHEN item IN (SELECT item FROM frequent) THEN item ELSE NULL END,"
    " count(*) FROM (SELECT unnest(items) AS item FROM {source}) GROUP BY ALL",
    "positions": "SELECT position::VARCHAR, count(*) FROM"
    " (SELECT unnest(positions) AS position FROM {source} WHERE request IS NOT NULL)"
    " WHERE position IS NOT NULL GROUP BY ALL",
    "kinds": "SELECT kind, count(*) FROM (SELECT unnest(list_resize("
    "list_transform(feedback, lambda f: f.kind), greatest(len(feedback), 1), 'none')) AS kind"
    " FROM {source}) GROUP BY ALL",
}
# Items that stand alone; the others together are one value.
_FREQUENT: Final = 100


class Settings(CheckSettings):
    """How far distributions may be apart."""

    max_distance: float = Field(
        0.1, gt=0, le=1, description="Largest total variation distance beyond that of chance."
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
    """The largest of the three distances."""
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
    distances = [_distance(evidence, name) for name in _DISTRIBUTIONS]
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
        f"{what}. Most moved, {drifted}. See what was released since: a model, a catalogue, a "
        "page, or how events are logged",
    )


def _distance(evidence: Evidence, name: str) -> _Distance:
    query = _DISTRIBUTIONS[name]
    before, after = (
        dict(evidence.rows(query.format(source=source))) for source in ("reference", "current")
    )
    m, n = sum(before.values()), sum(after.values())
    if not m or not n:
        return _Distance(name, 0.0 if m == n else 1.0, "everything", float(m > 0), float(n > 0))
    values = before.keys() | after.keys()
    shares = {value: (before.get(value, 0) / m, after.get(value, 0) / n) for value in values}
    distance = sum(abs(p - q) for p, q in shares.values()) / 2
    pooled = [(before.get(value, 0) + after.get(value, 0)) / (m + n) for value in values]
    chance = sum(math.sqrt(p * (1 - p) * (1 / m + 1 / n) / (2 * math.pi)) for p in pooled)
    moved = max(values, key=lambda value: (abs(shares[value][0] - shares[value][1]), str(value)))
    label = "the rest" if moved is None else repr(moved)
    return _Distance(name, max(0.0, distance - chance), label, *shares[moved])
