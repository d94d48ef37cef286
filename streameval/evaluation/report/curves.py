"""Curves of outcome files for the report: counts by time, rank, item and score.

DuckDB scans the files in bounded memory. It adds up integers only, so threads and the order of
files do not change a bit; they are divided here, once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from streameval.base.limits import CLUSTERS
from streameval.evaluation.readers.outcomes import checksums_of
from streameval.files.locations import is_uri
from streameval.files.outcome_files import schema_of
from streameval.files.outcome_reader import whole_rows
from streameval.files.table_scans import parquet_scan
from streameval.files.tables import connect, size
from streameval.stats.cluster_sums import ClusterSums

POINTS: Final = 60
"""Points of a curve over time, at most about so many."""
RANKS: Final = 50
CUTOFFS: Final = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50)
"""The cutoffs of curves by cutoff."""
BINS: Final = 10
TAIL: Final = 50
SCORE_UNITS: Final = 10**6
_COLUMNS: Final = ("user", "request", "time", "items", "positions", "ranks", "scores", "gains")
# More files of fewer bytes each are copied: to open one costs more than to copy its rows.
_MANY: Final = 100
_SMALL: Final = 100_000

_ITEMS: Final = """
    SELECT item, count(*) AS impressions, count(*) FILTER (gain > 0) AS positives
    FROM (SELECT unnest(items) AS item, unnest(gains) AS gain FROM slates) GROUP BY item
"""
# Steps of the time axis, ms: a minute to four weeks.
_MINUTE: Final = 60_000
_STEPS: Final = tuple(
    minutes * _MINUTE for minutes in (1, 5, 15, 60, 180, 360, 720, 1440, 10_080, 40_320)
)

Curve: TypeAlias = list[tuple[float, float]]
"""Points (x, y), x rising."""

Band: TypeAlias = list[tuple[float, float, float]]
"""Points (x, low, high), x rising."""


@dataclass(frozen=True, slots=True)
class Curves:
    """Curves of outcome files; an empty one has nothing to show.

    `time`: share of impressions with a positive by the start of a `step` (both ms), for each
    segment, and `time_errors`: the standard error of each point (NaN: fewer than two clusters of
    users). `so_far`: the sums of positives and impressions of all slates up to the end of the step
    that begins there. `rank` and `position`: the same share by rank and by position as sent.
    `tail`: share of impressions, and `tail_positives` of positives, by share of items, most shown
    first; `items` counts those. `calibration`: observed share by mean score; None where scores are
    not within 0 and 1, empty where none is logged.
    """

    step: int
    time: dict[str, Curve]
    time_errors: dict[str, list[float]]
    so_far: dict[str, dict[int, ClusterSums]]
    rank: Curve
    position: Curve
    items: int
    tail: Curve
    tail_positives: Curve
    calibration: Curve | None


def curves(files: Sequence[str], by: Sequence[str]) -> Curves:
    """Scan outcome files. Raises `InputError`."""
    with connect(files[0]) as connection:
        open_outcomes(connection, files, by)
        step = _step(connection)
        time, errors, so_far = _over_time(connection, by, step)
        items, (tail, tail_positives) = tails(connection, _ITEMS, ("impressions", "positives"))
        return Curves(
            step=step,
            time=time,
            time_errors=errors,
            so_far=so_far,
            rank=_by_position(connection, "ranks"),
            position=_by_position(connection, "positions"),
            items=items,
            tail=tail,
            tail_positives=tail_positives,
            calibration=_calibration(connection),
        )


def open_outcomes(connection: Any, files: Sequence[str], by: Sequence[str] = ()) -> None:
    """Make the table `slates` of the columns that charts need, with the dimensions `by`.

    Each chart reads all of it, so rows are copied where they are afar or in many small files.
    """
    afar = any(map(is_uri, files))
    if not afar and (len(files) <= _MANY or size(files) > len(files) * _SMALL):
        connection.execute(
            f"CREATE VIEW slates AS SELECT * FROM {parquet_scan(files)}"  # noqa: S608  # quoted
        )
        return
    # As much as the files, which are compressed.
    connection.execute("PRAGMA force_compression = 'auto'")
    schema = schema_of(by)
    wanted = pa.schema([schema.field(name) for name in (*_COLUMNS, *by)])
    for number, rows in enumerate(whole_rows(files, wanted)):
        connection.register("rows", rows)
        how = "INSERT INTO slates" if number else "CREATE TABLE slates AS"
        connection.execute(f"{how} FROM rows")
        connection.unregister("rows")


def segment_name(values: Sequence[str]) -> str:
    """Return the name of a segment in charts."""
    return " · ".join(value or "-" for value in values)


def _step(connection: Any) -> int:
    """Return the length (ms) of a step of the time axis."""
    ((first, last),) = connection.execute(
        "SELECT epoch_ms(min(time)), epoch_ms(max(time)) FROM slates"
    ).fetchall()
    if first is None:
        return _STEPS[0]
    return next((step for step in _STEPS if (last - first) / step <= POINTS), _STEPS[-1])


def _users(by: Sequence[str], step: int) -> str:
    """Write the query of each user's positives x and impressions y, by segment and step."""
    # Each dimension is a known column of outcome files (`outcomes.DIMENSIONS`).
    segment = " || ' · ' || ".join(f"coalesce({name}, '-')" for name in by) or "''"
    return f"""
        SELECT {segment} AS segment, epoch_ms(time) // {step} * {step} AS start, "user",
            sum(len(gains)) AS y, sum(len([gain FOR gain IN gains IF gain > 0])) AS x
        FROM slates GROUP BY ALL HAVING y > 0
        """  # noqa: S608


def _over_time(
    connection: Any, by: Sequence[str], step: int
) -> tuple[dict[str, Curve], dict[str, list[float]], dict[str, dict[int, ClusterSums]]]:
    """Return `time`, `time_errors` and `so_far`.

    Each user counts from the first step on that has impressions.
    """
    connection.create_function("cluster_of", _clusters_of, ["VARCHAR"], "UTINYINT", type="arrow")
    rows = connection.execute(
        f"""
        SELECT segment, start, cluster_of("user"), sum(x), sum(y), count(*) FILTER (is_first)
        FROM (
            SELECT *, start = min(start) OVER (PARTITION BY segment, "user") AS is_first
            FROM ({_users(by, step)})
        ) GROUP BY ALL ORDER BY segment, start
        """  # noqa: S608
    ).fetchall()
    time: dict[str, Curve] = {}
    errors: dict[str, list[float]] = {}
    so_far: dict[str, dict[int, ClusterSums]] = {}
    for (name, start), part in groupby(rows, itemgetter(0, 1)):
        _, _, clusters, positives, impressions, users = zip(*part, strict=True)
        x, y = np.zeros((2, CLUSTERS), np.int64)
        x[[*clusters]], y[[*clusters]] = positives, impressions
        arm = ClusterSums(x, y, 0).arm()
        time.setdefault(name, []).append((start, sum(positives) / sum(impressions)))
        errors.setdefault(name, []).append(math.nan if arm is None else arm.stderr)
        steps = so_far.setdefault(name, {})
        known = steps[next(reversed(steps))] if steps else ClusterSums(x * 0, y * 0, 0)
        steps[start] = ClusterSums(known.x + x, known.y + y, known.users + sum(users))
    return time, errors, so_far


def _clusters_of(users: Any) -> Any:
    return pa.array(checksums_of(users.combine_chunks()) & (CLUSTERS - 1), pa.uint8())


def _by_position(connection: Any, column: str) -> Curve:
    rows = connection.execute(
        f"""
        SELECT position, count(*), count(*) FILTER (gain > 0)
        FROM (SELECT unnest({column}) AS position, unnest(gains) AS gain FROM slates)
        WHERE position <= {RANKS} GROUP BY position ORDER BY position
        """  # noqa: S608
    ).fetchall()
    return [(position, positives / impressions) for position, impressions, positives in rows]


def tails(connection: Any, items: str, counts: Sequence[str]) -> tuple[int, list[Curve]]:
    """Return the number of items, and the share of each of `counts` by share of the items.

    The query `items` has a row an item. The items with the most of the first count come first.
    """
    rows = connection.execute(
        f"""
        WITH numbered AS (
            SELECT *, row_number() OVER (ORDER BY {counts[0]} DESC, item) AS number,
                count(*) OVER () AS count FROM ({items})
        )
        SELECT max(number), any_value(count), {", ".join(f"sum({name})" for name in counts)}
        FROM numbered GROUP BY (number * {TAIL} + count - 1) // count ORDER BY 1
        """  # noqa: S608
    ).fetchall()
    if not rows:
        return 0, [[] for _ in counts]
    numbers, (count, *_), *columns = zip(*rows, strict=True)
    found: list[Curve] = []
    for column in columns:
        whole = sum(column)
        shares = zip(numbers, accumulate(column), strict=True) if whole else ()
        found.append([(0.0, 0.0), *((number / count, part / whole) for number, part in shares)])
    return count, found


def _calibration(connection: Any) -> Curve | None:
    connection.execute(
        "CREATE VIEW scored AS SELECT score, gain FROM"
        " (SELECT unnest(scores) AS score, unnest(gains) AS gain FROM slates)"
        " WHERE score IS NOT NULL"
    )
    low, high = connection.execute("SELECT min(score), max(score) FROM scored").fetchone()
    if low is None:
        return []
    if low < 0 or high > 1:
        return None
    rows = connection.execute(
        f"""
        SELECT least(floor(score * {BINS}), {BINS - 1})::INT AS bin, count(*),
            sum(round(score * {SCORE_UNITS})::BIGINT), count(*) FILTER (gain > 0)
        FROM scored GROUP BY bin ORDER BY bin
        """  # noqa: S608
    ).fetchall()
    return [(total / count / SCORE_UNITS, positive / count) for _, count, total, positive in rows]
