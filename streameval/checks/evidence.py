"""The evidence of checks: outcome rows in DuckDB, two snapshots, the log.

Tables of the connection, each with the columns of `columns`:

* `slates`: all outcome rows; exists only if they are not in files.
* `current`: the rows for checks of traffic: the last `period`, and with an earlier snapshot as
  reference only rows that were not final at it.
* `reference`: the rows to compare `current` with; exists only if `has_reference`.

Of the snapshots come the partitions' counts of the log's records: all time, or since another.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import duckdb

from streameval.base.errors import InputError
from streameval.base.paths import exists, is_folder
from streameval.core.definition import Definition
from streameval.core.events import Event
from streameval.files.locations import is_uri, on_disk, reaching, redact
from streameval.files.outcome_days import COPIES, OutcomeDays, unreadable
from streameval.files.snapshots import MANIFEST, PartFacts, manifest_of
from streameval.files.table_scans import parquet_scan, quote
from streameval.files.tables import connect

REFERENCE_FILES: Final = "reference_files"
"""DuckDB's name for the rows of a reference folder, which its errors quote."""
_ROWS: Final = 10_000
DAY: Final = 86_400_000
_FOR_EVER: Final = 2**62
# A week before the earlier snapshot to compare later rows with: it has every weekday.
_REFERENCE: Final = 7 * DAY


def columns(dimensions: Sequence[str], arm: str | None) -> str:
    """List the columns of all tables in SQL: `segment`, `arm`, `ms`, and the files' own.

    `segment` holds the values of the dimensions, `arm` one of them; without an arm it is empty.
    """
    values = {name: f"coalesce({quote(name)}, '')" for name in dimensions}
    return (
        f'partition, "offset", request, "user", [{", ".join(values.values())}]::VARCHAR[] AS'
        f""" segment, {values[arm] if arm is not None else "''"} AS arm, epoch_ms(time) AS ms,"""
        " items, positions, ranks, shown, scores, propensities, gains, feedback, fallback"
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
    """A snapshot for checks.

    By partition: `parts` (the manifest's facts), `watermarks` (ms), `figures` (documents).
    """

    path: Path
    fingerprint: str
    definition: Mapping[str, Any]
    pseudonymous: bool
    parts: dict[int, PartFacts]
    watermarks: dict[int, int]
    figures: dict[int, dict[str, Any]]
    combined: dict[str, Any]

    def users(self, partition: int, chosen: Callable[[str], bool]) -> dict[str, Counters]:
        """Read the counters of a partition's chosen users, by their names in the snapshot."""
        columns = '"user", "offset", impressions, slates, positives, first_ts, last_ts'
        found = {}
        path = str(self.path / "users.parquet")
        with connect(path) as connection:
            rows = connection.execute(
                f"SELECT {columns} FROM {parquet_scan([path])} WHERE partition = ?",  # noqa: S608  # quoted
                [partition],
            )
            while portion := rows.fetchmany(_ROWS):
                for user, offset, impressions, slates, positives, first, last in portion:
                    if chosen(user):
                        counts = offset, impressions, slates, dict(positives), first, last
                        found[user] = Counters(*counts)
        return found

    def begins(self) -> dict[int, int]:
        """Return the time (ms) of the first event of any user, by partition."""
        path = str(self.path / "users.parquet")
        with connect(path) as connection:
            rows = connection.execute(
                f"SELECT partition, min(first_ts) FROM {parquet_scan([path])} GROUP BY ALL"  # noqa: S608  # quoted
            ).fetchall()
        return dict(rows)


Records = Sequence[tuple[int, Event | None]]
"""Events of consecutive records: the offset, and the event, or None where a record has none."""


@dataclass(frozen=True, slots=True)
class Log:
    """The records of a partition from the offset `begin` on, read part by part.

    With `since` they give the growth of users' counters since that snapshot, without it (and
    `begin` 0) the counters themselves. `end` is the offset after the log's records; None: after the
    last record read. Accepted events below `begin` have a `ts` below `before` (ms); None: unknown.
    """

    begin: int
    read: Callable[[], Iterator[Records]]
    end: int | None = None
    since: Snapshot | None = None
    before: int | None = None


Recorded = Callable[[int], Mapping[int, Log] | str]
"""Returns the logs by partition, of at most so many records, or the reason for their lack.

Raises `RefusedError` and `UnreachableError`, as does reading.
"""


def no_recording(_: int) -> str:
    """Say that nobody gave a log."""
    return "give the log of at least one partition"


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that checks may look at; `now` in ms.

    `arm` names the dimension whose values are compared; None: no dimension.
    `earlier` is the reference if that is a snapshot.
    `other_files`: the reference is another folder and not earlier rows. `files`: None if rows are
    not in files. `memory`: data that checks hand on from run to run, by name. `user` gives the name
    of a user in a pseudonymous snapshot. `users_expire`: counters of silent users expire.
    """

    connection: duckdb.DuckDBPyConnection
    definition: Definition
    now: int
    arm: str | None = None
    has_reference: bool = False
    other_files: bool = False
    files: OutcomeDays | None = None
    memory: dict[str, bytes] = field(default_factory=dict)
    snapshot: Snapshot | None = None
    earlier: Snapshot | None = None
    recording: Recorded = no_recording
    user: Callable[[str], str] | None = None
    users_expire: bool = False

    @property
    def columns(self) -> str:
        """All tables' columns, in SQL."""
        return columns(self.definition.dimensions, self.arm)

    def rows(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run a query and return its rows."""
        return self.connection.execute(query, list(parameters)).fetchall()

    def between(self, begin: int, end: int) -> str:
        """Write a query for the rows of `slates` with a time in [begin, end) (ms).

        It opens only the files of those days, and within one day only the files of those hours.
        """
        chosen = f"ms >= {begin} AND ms < {end}"
        if self.files is None:
            return f"(SELECT * FROM slates WHERE {chosen})"  # noqa: S608  # numbers
        first, last = (datetime.fromtimestamp(ms / 1000, UTC) for ms in (begin, end - 1))
        name = f"outcome_files_{first:%Y%m%d}_{last:%Y%m%d}"
        self.connection.register(name, self.files.dataset(f"{first:%Y-%m-%d}", f"{last:%Y-%m-%d}"))
        hours = "true"
        if first.date() == last.date():
            hours = f"hour >= '{first:%H}' AND hour <= '{last:%H}'"
        files = f"(SELECT {self.columns} FROM {name} WHERE {hours})"  # noqa: S608  # ours
        return f"(SELECT * FROM {files} WHERE {chosen})"  # noqa: S608  # ours

    def bounds(self) -> tuple[int, int] | None:
        """Return the times (ms) of the oldest and the newest row; None without rows."""
        days = None if self.files is None else self.files.days
        low = self._extreme("min", days)
        high = self._extreme("max", None if days is None else days[::-1])
        return None if low is None or high is None else (low, high)

    def _extreme(self, which: str, days: Sequence[str] | None) -> int | None:
        """Return the first or last `ms` of the first of these days that has a row."""
        begins = [0] if days is None else [_day(day) for day in days]
        length = _FOR_EVER if days is None else DAY
        for begin in begins:
            found: int | None
            rows = self.between(begin, begin + length)
            (found,) = self.row(f"SELECT {which}(ms) FROM {rows}")  # noqa: S608  # ours
            if found is not None:
                return found
        return None

    def row(self, query: str, *parameters: Any) -> tuple[Any, ...]:
        """Run an aggregate and return its only row."""
        (row,) = self.rows(query, *parameters)
        return row


@contextlib.contextmanager
def gather(
    outcomes: str,
    definition: Definition,
    now: int,
    *,
    snapshot: Path | None = None,
    reference: Path | str | None = None,
    period: int | None = None,
    recorded: Callable[[Snapshot, Snapshot | None], Recorded] | None = None,
    user: Callable[[str], str] | None = None,
    users_expire: bool = False,
    memory: dict[str, bytes] | None = None,
    arm: str | None = None,
    copies: Path | None = None,
) -> Iterator[Evidence]:
    """Open the evidence of checks until the block ends.

    `reference` is an earlier snapshot, or a folder or URI of outcome files to compare with.
    `period` (ms) bounds `current` to the time before the newest row. `recorded` finds the log for
    `snapshot` and a given earlier one. `copies` is a folder for the hours that have many files
    (see `outcome_days`); without it they are copied for this block alone. Raises `InputError`,
    `UnreachableError`.
    """
    with connect("outcomes") as connection:
        if copies is None:
            (folder,) = connection.execute("SELECT current_setting('temp_directory')").fetchone()
            copies = Path(folder, COPIES)
        connection.execute("SET enable_external_access = false")
        wanted = "the folder of the outcome files (dt=…)"
        files = outcome_days(outcomes, definition, copies, "outcomes", wanted)
        earlier, others = _open_reference(reference, definition, copies)
        later = None if snapshot is None else read_snapshot(snapshot)
        recording: Recorded = no_recording
        if later is not None and recorded is not None:
            recording = recorded(later, earlier)
        evidence = Evidence(
            connection,
            definition,
            now,
            arm,
            has_reference=reference is not None,
            other_files=others is not None,
            files=files,
            memory={} if memory is None else memory,
            snapshot=later,
            earlier=earlier,
            recording=recording,
            user=user,
            users_expire=users_expire,
        )
        with readable():
            _split(evidence, earlier, others, period)
        yield evidence


def _open_reference(
    reference: Path | str | None, definition: Definition, copies: Path
) -> tuple[Snapshot | None, OutcomeDays | None]:
    """Open a reference: an earlier snapshot, or else other outcome files."""
    earlier = None if reference is None else _earlier(reference)
    if reference is None or earlier is not None:
        return earlier, None
    wanted = "a snapshot, or a folder of outcome files (dt=…)"
    others = outcome_days(str(reference), definition, copies, "reference", wanted)
    if not others.days:
        raise InputError(f"{redact(str(reference))} holds neither a snapshot nor outcome files")
    return None, others


def _day(name: str) -> int:
    return round(datetime.fromisoformat(name).replace(tzinfo=UTC).timestamp() * 1000)


def outcome_days(
    root: str, definition: Definition, copies: Path, subject: str, wanted: str
) -> OutcomeDays:
    """Find the outcome files below a folder or URI; `subject` begins each message.

    Raises `InputError` unless the path is a folder.
    """
    name = on_disk(root)
    with reaching(name, f"{subject}: "):
        if not is_uri(name) and not is_folder(name):
            what = "is a file" if exists(name) else "no such folder"
            raise InputError(f"{subject}: {name}: {what}: give {wanted}")
    return OutcomeDays(root, definition.dimensions, copies, subject)


def _earlier(reference: Path | str) -> Snapshot | None:
    """Read the reference as a snapshot, if it is one."""
    if is_uri(str(reference)):
        return None
    with reaching(str(reference), "reference: "):
        is_snapshot = exists(Path(reference) / MANIFEST)
    return read_snapshot(Path(reference)) if is_snapshot else None


@contextlib.contextmanager
def readable() -> Iterator[None]:
    """Turn Arrow's error into ours, while DuckDB reads rows."""
    try:
        yield
    except duckdb.InvalidInputException as error:
        said = str(error).splitlines()[0]
        subject = "reference" if REFERENCE_FILES in said else "outcomes"
        raise unreadable(subject, said, is_away="IOError" in said) from error


def read_snapshot(path: Path) -> Snapshot:
    """Read a snapshot's folder, checksums included; raises `InputError`."""
    manifest = manifest_of(path)
    document = json.loads((path / "figures.json").read_text(encoding="utf-8"))
    return Snapshot(
        path,
        manifest["fingerprint"],
        manifest["definition"],
        manifest["pseudonymous"],
        {part["partition"]: part for part in manifest["partitions"]},
        {
            part["partition"]: part["watermark"]
            for part in manifest["partitions"]
            if part["watermark"] is not None
        },
        {int(number): found for number, found in document["partitions"].items()},
        document["combined"],
    )


def _split(
    evidence: Evidence, earlier: Snapshot | None, others: OutcomeDays | None, period: int | None
) -> None:
    """Make the views `current` and `reference`."""
    connection, final = evidence.connection, _final_until(evidence, earlier)
    known, low, end = "false", 0, 1
    if earlier is not None:
        # The rows that were final at the earlier snapshot, of the week before it.
        cases = " ".join(f"WHEN {partition} THEN {end}" for partition, end in final.items())
        known = f"ms < CASE partition {cases} ELSE 0 END" if cases else "false"
        newest = max(final.values(), default=0)
        week = evidence.between(max(0, newest - _REFERENCE), newest)
        connection.execute(f"CREATE VIEW reference AS SELECT * FROM {week} WHERE {known}")  # noqa: S608
        later = evidence.snapshot
        if later is not None and later.watermarks.keys() <= final.keys():
            low = min(final.values(), default=0)
    elif others is not None:
        connection.register(REFERENCE_FILES, others.dataset(others.days[0], others.days[-1]))
        connection.execute(
            f"CREATE VIEW reference AS SELECT {evidence.columns} FROM {REFERENCE_FILES}"  # noqa: S608
        )
    bounds = evidence.bounds()
    if bounds is not None:
        end = bounds[1] + 1
        low = max(low, bounds[0], 0 if period is None else end - period)
    rows = evidence.between(low, end)
    connection.execute(f"CREATE VIEW current AS SELECT * FROM {rows} WHERE NOT ({known})")  # noqa: S608


def _final_until(evidence: Evidence, earlier: Snapshot | None) -> dict[int, int]:
    """Return the time (ms) below which all slates were final at a snapshot, by partition."""
    if earlier is None:
        return {}
    horizon = evidence.definition.horizon
    return {partition: mark - horizon for partition, mark in earlier.watermarks.items()}


def counts_by_partition(snapshot: Snapshot) -> dict[int, Counter[str]]:
    """Return event counters by partition; a dot joins groups, as in `rejected.late`."""
    return {
        partition: Counter(dict(_flat(document["events"])))
        for partition, document in snapshot.figures.items()
    }


def _flat(events: Mapping[str, Any]) -> list[tuple[str, int]]:
    found = []
    for name, value in events.items():
        if isinstance(value, Mapping):
            found += [(f"{name}.{key}", count) for key, count in value.items()]
        else:
            found.append((name, value))
    return found


def growth(later: Snapshot, earlier: Snapshot | None) -> dict[int, Counter[str]]:
    """Return the growth of each partition's counters since `earlier`.

    A partition that counts less than before was counted anew: its growth is its whole count.
    """
    now, before = (
        counts_by_partition(later),
        {} if earlier is None else counts_by_partition(earlier),
    )
    found = {}
    for partition, counts in now.items():
        growth = Counter(counts)
        growth.subtract(before.get(partition, Counter()))
        # `waiting` counts the events that wait now, and may fall.
        anew = any(count < 0 for name, count in growth.items() if name != "waiting")
        found[partition] = counts if anew else growth
    return found


def total(counts: Mapping[str, int], group: str) -> int:
    """Sum up a group, such as `rejected`."""
    return sum(count for name, count in counts.items() if name.startswith(f"{group}."))
