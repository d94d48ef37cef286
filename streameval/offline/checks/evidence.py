"""What checks look at: outcome rows in DuckDB, two snapshots, the log.

Tables of the connection, each with the columns of `VIEW`:

* `slates`: all outcome rows.
* `current`: those that the checks of traffic look at: the last `period`, and with an earlier
  snapshot as reference only what was not final at it.
* `reference`: what `current` is compared with; there only where `has_reference`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import duckdb

from streameval.core.definition import Definition
from streameval.core.errors import InputError
from streameval.core.events import Event
from streameval.offline.outcomes import dataset
from streameval.offline.snapshots import MANIFEST, manifest_of

VIEW: Final = (
    'partition, "offset", request, "user", coalesce(variant, \'\') AS variant,'
    " coalesce(surface, '') AS surface, epoch_ms(time) AS ms, items, positions, ranks, shown,"
    " scores, propensities, gains, feedback"
)


@dataclass(frozen=True, slots=True)
class Counters:
    """A user's lifetime counters in a snapshot, exact at `offset` of the partition."""

    offset: int
    impressions: int
    slates: int
    positives: dict[str, int]
    first_ts: int
    last_ts: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot as checks read it. By partition: `watermarks` (ms), `figures` (documents)."""

    path: Path
    definition: Mapping[str, Any]
    pseudonymous: bool
    watermarks: dict[int, int]
    figures: dict[int, dict[str, Any]]
    combined: dict[str, Any]

    def users(self) -> dict[tuple[int, str], Counters]:
        """The counters by partition and user, of users that have any."""
        columns = 'partition, "user", "offset", impressions, slates, positives, first_ts, last_ts'
        with duckdb.connect() as connection:
            rows = connection.execute(
                f"SELECT {columns} FROM read_parquet(?)",  # noqa: S608  # constants
                [str(self.path / "users.parquet")],
            ).fetchall()
        return {
            (partition, user): Counters(offset, impressions, slates, dict(positives), first, last)
            for partition, user, offset, impressions, slates, positives, first, last in rows
        }


@dataclass(frozen=True, slots=True)
class Log:
    """The records of a partition from the offset `begin` on: an event, or None if rejected."""

    begin: int
    events: Sequence[Event | None]


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that the checks may look at; `now` in ms.

    `user` gives the name of a user in a pseudonymous snapshot.
    """

    connection: duckdb.DuckDBPyConnection
    definition: Definition
    now: int
    has_reference: bool = False
    snapshot: Snapshot | None = None
    earlier: Snapshot | None = None
    log: Mapping[int, Log] = field(default_factory=dict)
    user: Callable[[str], str] | None = None

    def rows(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """The rows that a query answers."""
        return self.connection.execute(query, list(parameters)).fetchall()

    def row(self, query: str, *parameters: Any) -> tuple[Any, ...]:
        """The only row of an aggregate."""
        (row,) = self.rows(query, *parameters)
        return row


def gather(
    outcomes: str,
    definition: Definition,
    now: int,
    *,
    snapshot: Path | None = None,
    reference: Path | None = None,
    period: int | None = None,
    log: Mapping[int, Log] | None = None,
    user: Callable[[str], str] | None = None,
) -> Evidence:
    """Open what checks look at.

    `reference` is an earlier snapshot, or a folder of outcome files to compare with. `period` (ms)
    bounds `current` to the time before the newest row. Raises `InputError`, `UnreachableError`.
    """
    source = dataset(outcomes)
    connection = duckdb.connect()
    connection.execute("SET enable_external_access = false")
    connection.register("outcome_files", source)
    connection.execute(f"CREATE VIEW slates AS SELECT {VIEW} FROM outcome_files")  # noqa: S608
    earlier = None
    if reference is not None and (reference / MANIFEST).exists():
        earlier = read_snapshot(reference)
    _split(connection, earlier, definition, reference, period)
    return Evidence(
        connection,
        definition,
        now,
        has_reference=reference is not None,
        snapshot=None if snapshot is None else read_snapshot(snapshot),
        earlier=earlier,
        log=log or {},
        user=user,
    )


def read_snapshot(path: Path) -> Snapshot:
    """Read a snapshot's folder, checksums included; raises `InputError`."""
    manifest = manifest_of(path)
    document = json.loads((path / "figures.json").read_text(encoding="utf-8"))
    return Snapshot(
        path,
        manifest["definition"],
        manifest["pseudonymous"],
        {
            part["partition"]: part["watermark"]
            for part in manifest["partitions"]
            if part["watermark"] is not None
        },
        {int(number): found for number, found in document["partitions"].items()},
        document["combined"],
    )


def _split(
    connection: duckdb.DuckDBPyConnection,
    earlier: Snapshot | None,
    definition: Definition,
    reference: Path | None,
    period: int | None,
) -> None:
    """Make the views `current` and `reference`."""
    known = "false"
    if earlier is not None:
        # What was final at the earlier snapshot, by partition.
        cases = " ".join(
            f"WHEN {partition} THEN {watermark - definition.horizon}"
            for partition, watermark in earlier.watermarks.items()
        )
        known = f"ms < CASE partition {cases} ELSE 0 END" if cases else "false"
        connection.execute(f"CREATE VIEW reference AS SELECT * FROM slates WHERE {known}")  # noqa: S608
    elif reference is not None:
        others = dataset(str(reference))
        if not others.files:
            raise InputError(f"{reference} holds neither a snapshot nor outcome files")
        connection.register("reference_files", others)
        connection.execute(f"CREATE VIEW reference AS SELECT {VIEW} FROM reference_files")  # noqa: S608
    recent = ""
    if period is not None:
        (newest,) = connection.execute("SELECT coalesce(max(ms), 0) FROM slates").fetchall()[0]
        recent = f"AND ms > {newest - period}"
    connection.execute(f"CREATE VIEW current AS SELECT * FROM slates WHERE NOT ({known}) {recent}")  # noqa: S608
