"""The positive rate of the last whole day, from outcome files: the leader's job beside checks.

An item is read on the day (UTC) of its slate, and positive if it got the credit for a positive.
Items are distinct: two impressions a day count once. A day is whole once no partition can add a row
to it: the slowest watermark has passed its end by A + L (A the attribution window, L the allowed
lateness). Then its figures are final, so they are computed once and handed on from snapshot to
snapshot, as `daily.json`:

    {"day": "2026-01-31", "fingerprint": …, "users": 1000,
     "rates": [{"feedback": "click", "daily_positive_rate": 0.1,
                "daily_positive_rate_gorse_v05": 0.3}]}

The first day of the files never counts: they may begin in the middle of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from streameval.base.errors import ConfigError, InputError
from streameval.checks import sql
from streameval.checks.evidence import readable
from streameval.core.definition import Definition
from streameval.core.metrics.daily_positive_rate import METRICS, Reads
from streameval.core.metrics.entry import UNCUT
from streameval.files.outcome_days import COPIES, OutcomeDays
from streameval.files.snapshot_folder import DAILY, Daily, DailyRate, last_daily
from streameval.files.snapshots import PartFacts, attach, facts_of
from streameval.files.table_scans import literal
from streameval.files.tables import connect

if TYPE_CHECKING:
    from streameval.config.settings import Settings

# Impressions of which DuckDB's memory holds the distinct users and items.
PORTION_ITEMS: Final = 10_000_000
_DAY_MS: Final = 86_400_000


def take_daily(settings: Settings, folder: Path) -> Daily | None:
    """Leave the figures of the last whole day in a snapshot's folder; None before the first.

    Raises ConfigError without `outcomes`, InputError, UnreachableError.
    """
    if settings.outcomes is None:
        raise ConfigError("outcomes: name the folder of outcome files, for the daily rate")
    manifest = facts_of(folder)
    definition = settings.definition()
    day = _last_whole(definition, manifest["partitions"])
    if day is None:
        return None
    try:
        found = last_daily(folder.parent)
    except InputError:
        found = None  # damaged: computed anew
    if found is None or (found["day"], found["fingerprint"]) != (day, manifest["fingerprint"]):
        files = OutcomeDays(settings.outcomes, definition.dimensions, folder.parent / COPIES)
        if not files.days or files.days[0] >= day:
            return None
        users, rates = daily_rates(definition, files, day)
        fingerprint = manifest["fingerprint"]
        found = Daily(day=day, fingerprint=fingerprint, users=users, rates=rates)
    attach(folder, DAILY, found)
    return found


def daily_rates(
    definition: Definition, files: OutcomeDays, day: str
) -> tuple[int, list[DailyRate]]:
    """Count users with an impression on a day (`2026-01-31`); compute the rates of each kind.

    Raises `InputError`, `UnreachableError`.
    """
    with connect("outcomes") as connection, readable():
        connection.execute("SET enable_external_access = false")
        connection.register("outcome_files", files.dataset(day, day))
        counted = "SELECT coalesce(sum(len(items)), 0) FROM outcome_files WHERE dt = ?"
        ((items,),) = connection.execute(counted, [day]).fetchall()
        portions = int(items) // PORTION_ITEMS + 1
        rows = [
            row
            for number in range(portions)
            for row in connection.execute(_query(definition), [day, portions, number]).fetchall()
        ]
    columns = np.array(rows, np.int64).reshape(len(rows), 2 + len(definition.kinds)).T
    users, reads, *positives = columns
    rates = [
        cast("DailyRate", {"feedback": kind, **_rates(Reads(reads, hits), users)})
        for kind, hits in zip(definition.kinds, positives, strict=True)
    ]
    return int(users.sum()), rates


def _query(definition: Definition) -> str:
    """Write a query that counts users by their number of items read and positive ones of each kind.

    Parameters: the day, the number of portions of its users, and the number of this portion.
    """
    day = (
        '(SELECT "user", items, ranks, feedback FROM outcome_files'
        ' WHERE dt = $1 AND hash("user") % $2 = $3)'
    )
    kinds = range(len(definition.kinds))
    positive = ", ".join(
        f"bool_or(len(list_filter(positive, lambda f: f.item = i - 1 AND f.kind ="
        f" {literal(kind)})) > 0) AS p{number}"
        for number, kind in enumerate(definition.kinds)
    )
    counted = ", ".join(f"count(*) FILTER (p{number}) AS n{number}" for number in kinds)
    numbers = ", ".join(f"n{number}" for number in kinds)
    return f"""
        SELECT count(*), reads, {numbers} FROM (
            SELECT count(*) AS reads, {counted} FROM (
                SELECT "user", items[i] AS item, {positive}
                FROM (SELECT *, unnest(range(1, len(items) + 1)) AS i
                    FROM ({sql.judge(definition, day)}))
                GROUP BY ALL
            ) GROUP BY "user"
        ) GROUP BY ALL"""  # noqa: S608  # names and numbers of the definition, quoted


def _rates(reads: Reads, users: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, float | None]:
    """Compute each daily rate over groups of `users` who are alike."""
    found: dict[str, float | None] = {}
    for metric in METRICS:
        rates, counted = metric.score(reads, UNCUT)
        total = int((counted * users).sum())
        found[metric.name] = math.fsum(rates * users) / total if total else None
    return found


def _last_whole(definition: Definition, parts: Sequence[PartFacts]) -> str | None:
    """Return the last day to which no partition adds a row; None before the first count."""
    watermarks = [part["watermark"] for part in parts if part["watermark"] is not None]
    if not watermarks:
        return None
    number = (min(watermarks) - definition.horizon) // _DAY_MS - 1
    return datetime.fromtimestamp(number * _DAY_MS / 1000, UTC).strftime("%Y-%m-%d")
