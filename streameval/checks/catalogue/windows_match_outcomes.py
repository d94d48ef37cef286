"""`windows_match_outcomes`: the matured figures of a snapshot, recomputed from the outcome files.

DuckDB's SQL computes them again, by partition at the snapshot's watermark, from the rows alone.
Counts and means over slates must be equal to the last bit: both sides add integers and divide
once. Means over users add fractions in another order, so they must agree to 1e-12.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from streameval.base.limits import ALL, NANO, OTHER
from streameval.checks import sql
from streameval.checks.evidence import Evidence
from streameval.checks.result import Check, CheckSettings, Found, duration, failed, nothing, passed
from streameval.core.definition import Window
from streameval.core.merged_segments import totals_of
from streameval.files.table_scans import literal

Segment: TypeAlias = tuple[str, ...]
Labels: TypeAlias = tuple[str, Segment]
NAMED: Final = 3


class Settings(CheckSettings):
    """The severity alone: the comparison is exact."""


@dataclass(slots=True)
class _Sums:
    """Sums of one window and segment: integers, and the sum of the users' rates by kind."""

    users: int = 0
    impressions: int = 0
    positives: list[int] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    slates: int = 0
    with_positive: int = 0
    nanos: list[int] = field(default_factory=list)

    def add(self, other: _Sums) -> None:
        self.users += other.users
        self.impressions += other.impressions
        self.slates += other.slates
        self.with_positive += other.with_positive
        self.positives = _add(self.positives, other.positives)
        self.rates = _add(self.rates, other.rates)
        self.nanos = _add(self.nanos, other.nanos)


def _add(one: list[Any], other: list[Any]) -> list[Any]:
    return [a + b for a, b in zip(one, other, strict=True)] if one else list(other)


def check(evidence: Evidence, _: Settings) -> Found:
    """Compare the figures of each partition, then of all partitions together."""
    snapshot, definition = evidence.snapshot, evidence.definition
    if snapshot is None:
        return nothing("give a snapshot to compare the outcome files with")
    compared, differences = 0, []
    together: dict[Labels, _Sums] = defaultdict(_Sums)
    for partition, document in sorted(snapshot.figures.items()):
        if partition not in snapshot.watermarks:
            continue  # it has had only rejected records
        sums = {
            (window.name, segment): found
            for window in definition.windows
            for segment, found in _recompute(
                evidence, window, partition, snapshot.watermarks[partition]
            )
        }
        for labels, found in sums.items():
            together[labels].add(found)
        count, wrong = _compare(evidence, f"partition {partition}", document, sums)
        compared += count
        differences += wrong
    count, wrong = _compare(evidence, "all partitions", snapshot.combined, together)
    compared += count
    differences += wrong
    if not compared and not differences:
        return nothing("no figure of the snapshot has matured yet")
    if not differences:
        return passed(0, 0, f"all {compared:,} matured figures agree with the outcome rows")
    named = "; ".join(differences[:NAMED])
    more = f"; and {len(differences) - NAMED} more" if len(differences) > NAMED else ""
    return failed(
        len(differences),
        0,
        f"{len(differences):,} of {compared:,} matured figures differ from the outcome rows: "
        f"{named}{more}. {_advice(evidence)}",
    )


def _advice(evidence: Evidence) -> str:
    first = (evidence.bounds() or (0, 0))[0]
    longest = max(window.size for window in evidence.definition.windows)
    return (
        "Rows were lost, added or changed, or files removed by age: compare the files' offsets. "
        f"If `outcomes` was switched on less than {duration(longest)} before the snapshot"
        f" (the first row is of {first} ms), the files lack earlier slates: wait that long"
    )


def _recompute(
    evidence: Evidence, window: Window, partition: int, watermark: int
) -> Iterator[tuple[Segment, _Sums]]:
    """Sum up a window's matured panes at a partition's watermark, by segment."""
    definition = evidence.definition
    end = (watermark - definition.horizon) // window.slide * window.slide
    within = evidence.between(end - window.size, end)
    chosen = f"(SELECT * FROM {within} WHERE partition = {partition})"  # noqa: S608  # a number
    scores = [
        f"sum({sql.nano_score(metric, k, definition)}) FILTER (WHERE request IS NOT NULL)"
        for k in definition.ks
        for metric in sql.METRICS
    ]
    kinds = range(len(definition.kinds))
    by_user = ", ".join(
        [f"sum({sql.positives(kind)}) AS p{i}" for i, kind in enumerate(definition.kinds)]
        + [f"{score} AS s{i}" for i, score in enumerate(scores)]
    )
    totals = ", ".join(
        [f"sum(p{i})" for i in kinds]
        + [f"coalesce(sum(p{i}::DOUBLE / nullif(impressions, 0)), 0)" for i in kinds]
        + [f"sum(s{i})" for i in range(len(scores))]
    )
    # A user with nothing but empty slates has no rate.
    by_segment = f"""
        SELECT segment, "user", sum(len(items)) AS impressions, count(request) AS slates,
            count(*) FILTER (WHERE request IS NOT NULL AND len(positive) > 0) AS with_positive,
            {by_user}
        FROM ({sql.judge(definition, chosen)})
        GROUP BY ALL"""  # noqa: S608  # names and numbers of the definition, quoted
    counted_in = _counted_in(len(definition.dimensions))
    rows = evidence.rows(
        f"""SELECT segment, count(nullif(impressions, 0)), sum(impressions), sum(slates),
                sum(with_positive), {totals}
            FROM (
                SELECT segment, "user", sum(COLUMNS(* EXCLUDE (segment, "user"))) AS '\\0'
                FROM (SELECT * REPLACE (unnest({counted_in}) AS segment) FROM ({by_segment}))
                GROUP BY ALL
            ) GROUP BY segment"""  # noqa: S608  # as above
    )
    for values, users, impressions, slates, with_positive, *rest in rows:
        n = len(kinds)
        yield (
            tuple(values),
            _Sums(
                users,
                int(impressions),
                [int(value) for value in rest[:n]],
                rest[n : 2 * n],
                int(slates),
                int(with_positive),
                [int(value or 0) for value in rest[2 * n :]],
            ),
        )


def _counted_in(dimensions: int) -> str:
    """List the segment of a row and its totals in SQL."""
    values = tuple(f"segment[{number}]" for number in range(1, dimensions + 1))
    totals = (
        ", ".join(literal(ALL) if value == ALL else value for value in total)
        for total in totals_of(values)
    )
    return f"[segment, {', '.join(f'[{total}]' for total in totals)}]"


def _compare(
    evidence: Evidence, where: str, document: Mapping[str, Any], sums: Mapping[Labels, _Sums]
) -> tuple[int, list[str]]:
    """Count the compared figures, and describe the differences."""
    definition = evidence.definition
    expected: dict[tuple[Any, ...], float | None] = {}
    for (window, segment), found in sums.items():
        for name, key, value in _figures(evidence, found):
            expected[window, segment, key, name] = value
    known = {
        (row["window"], tuple(row[name] for name in definition.dimensions), key, name): value
        for row in (*document["rates"], *document["ranking"])
        if row["basis"] == "matured"
        for key in (row.get("feedback", row.get("k")),)
        for name, value in row.items()
        if name in _NAMES
    }
    # Beyond `max_segments` the rows cannot tell which segments went to `__other__`.
    overflown = {key[0] for key in known if OTHER in key[1]}
    keys = sorted(
        (key for key in known.keys() | expected.keys() if key[0] not in overflown), key=str
    )
    wrong = [
        _difference(where, key, known.get(key), expected.get(key))
        for key in keys
        if not _equal(key[3], known.get(key), expected.get(key))
    ]
    return len(keys), wrong


_NAMES: Final = (
    "users",
    "impressions",
    "positives",
    "positive_rate",
    "positives_per_impression",
    "slates",
    "slates_with_positive",
    *sql.METRICS,
)


def _figures(evidence: Evidence, found: _Sums) -> Iterable[tuple[str, Any, float | None]]:
    """Yield each figure of the sums: its name, its kind or k, its value."""
    definition = evidence.definition
    for index, kind in enumerate(definition.kinds if found.impressions else ()):
        yield "users", kind, found.users
        yield "impressions", kind, found.impressions
        yield "positives", kind, found.positives[index]
        yield "positive_rate", kind, found.rates[index] / found.users
        yield "positives_per_impression", kind, found.positives[index] / found.impressions
    nanos = iter(found.nanos)
    for k in definition.ks:
        yield "slates", k, found.slates
        yield "slates_with_positive", k, found.with_positive
        for metric in sql.METRICS:
            total = next(nanos)
            yield metric, k, total / (found.slates * NANO) if found.slates else None


def _equal(name: str, known: float | None, expected: float | None) -> bool:
    if known is None or expected is None or name != "positive_rate":
        return known == expected
    return math.isclose(known, expected, rel_tol=1e-12, abs_tol=1e-12)


def _difference(
    where: str, key: tuple[Any, ...], known: float | None, expected: float | None
) -> str:
    window, segment, of, name = key
    labels = "/".join(segment)
    suffix = f"@{of}" if isinstance(of, int) else f" of {of}"
    return f"{name}{suffix} in {window} of {where} {labels!r} is {known}, the rows give {expected}"


CHECK: Final = Check(
    name="windows_match_outcomes",
    place=20,
    sentence="Matured figures equal those that DuckDB recomputes from the outcome files, exactly.",
    value="figures that differ",
    settings=Settings,
    run=check,
)
