"""What checks look at: outcome rows in DuckDB, two snapshots, the log.

Tables of the connection, each with the columns of `VIEW`:

* `slates`: all outcome rows.
* `current`: those that the checks of traffic look at: the last `period`, and with an earlier
  snapshot as reference only what was not final at it.
* `reference`: what `current` is compared with; there only where `has_reference`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa

from streameval.core.definition import Definition
from streameval.core.errors import InputError, UnreachableError
from streameval.core.events import Event
from streameval.offline.outcomes import dataset
from streameval.offline.places import is_uri, on_disk, reaching, shown
from streameval.offline.snapshots import MANIFEST, PartFacts, manifest_of
from streameval.offline.table_files import connected

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset

VIEW: Final = (
    'partition, "offset", request, "user", coalesce(variant, \'\') AS variant,'
    " coalesce(surface, '') AS surface, epoch_ms(time) AS ms, items, positions, ranks, shown,"
    " scores, propensities, gains, feedback"
)


_NEEDED: Final = ("user", "items", "ranks", "gains", "feedback")
_ROWS: Final = 10_000
# Footers of files that are read at a time: a store answers each after tens of milliseconds.
_AT_ONCE: Final = 8


class UnreadableError(InputError):
    """The outcome files cannot be read: what no check can do without."""


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
    """A snapshot as checks read it.

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
        """The counters of the chosen users of a partition, by the name that the snapshot has."""
        columns = '"user", "offset", impressions, slates, positives, first_ts, last_ts'
        found = {}
        path = str(self.path / "users.parquet")
        with connected(path) as connection:
            rows = connection.execute(
                f"SELECT {columns} FROM read_parquet(?) WHERE partition = ?",  # noqa: S608  # constants
                [path, partition],
            )
            while portion := rows.fetchmany(_ROWS):
                for user, offset, impressions, slates, positives, first, last in portion:
                    if chosen(user):
                        counts = offset, impressions, slates, dict(positives), first, last
                        found[user] = Counters(*counts)
        return found

    def begins(self) -> dict[int, int]:
        """The time (ms) of the first event of any user, by partition."""
        path = str(self.path / "users.parquet")
        with connected(path) as connection:
            rows = connection.execute(
                "SELECT partition, min(first_ts) FROM read_parquet(?) GROUP BY ALL", [path]
            ).fetchall()
        return dict(rows)


Records = Sequence[tuple[int, Event | None]]
"""Consecutive records: the offset, and the event or None where it is rejected."""


@dataclass(frozen=True, slots=True)
class Log:
    """The records of a partition from the offset `begin` on, read part by part.

    They tell what users' counters grew by since an earlier snapshot, or without one (and `begin`
    0) the counters themselves. `end` is the offset up to which there is no other record; None:
    that after the last. Accepted events below `begin` have a `ts` below `before` (ms); None: that
    is not known.
    """

    begin: int
    read: Callable[[], Iterator[Records]]
    end: int | None = None
    since: Snapshot | None = None
    before: int | None = None


Recorded = Callable[[int], Mapping[int, Log] | str]
"""The logs by partition, of at most so many records, or why there are none.

Raises `RefusedError` and `UnreachableError`, as does reading.
"""


def no_recording(_: int) -> str:
    """The answer where nobody gave a log."""
    return "give a snapshot and the log of at least one partition"


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that the checks may look at; `now` in ms.

    `earlier` is the reference where that is a snapshot. `user` gives the name of a user in a
    pseudonymous snapshot. `users_expire`: counters of silent
    users go by themselves.
    """

    connection: duckdb.DuckDBPyConnection
    definition: Definition
    now: int
    has_reference: bool = False
    snapshot: Snapshot | None = None
    earlier: Snapshot | None = None
    recording: Recorded = no_recording
    user: Callable[[str], str] | None = None
    users_expire: bool = False

    def rows(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """The rows that a query answers."""
        return self.connection.execute(query, list(parameters)).fetchall()

    def row(self, query: str, *parameters: Any) -> tuple[Any, ...]:
        """The only row of an aggregate."""
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
) -> Iterator[Evidence]:
    """Open what checks look at, for as long as they do.

    `reference` is an earlier snapshot, or a folder or URI of outcome files to compare with.
    `period` (ms) bounds `current` to the time before the newest row. `recorded` finds the log for
    `snapshot` and an earlier one that was given. Raises `InputError`, `UnreachableError`.
    """
    source = outcome_files(outcomes, "outcomes", "the folder of the outcome files (dt=…)")
    earlier = None if reference is None else _earlier(reference)
    others = None
    if reference is not None and earlier is None:
        what = "a snapshot, or a folder of outcome files (dt=…)"
        others = outcome_files(str(reference), "reference", what)
        if not others.files:
            raise InputError(f"{shown(str(reference))} holds neither a snapshot nor outcome files")
    later = None if snapshot is None else read_snapshot(snapshot)
    recording: Recorded = no_recording
    if later is not None and recorded is not None:
        recording = recorded(later, earlier)
    with connected("outcomes") as connection:
        connection.execute("SET enable_external_access = false")
        connection.register("outcome_files", source)
        connection.execute(f"CREATE VIEW slates AS SELECT {VIEW} FROM outcome_files")  # noqa: S608
        with readable():
            _split(connection, earlier, definition, others, period)
        yield Evidence(
            connection,
            definition,
            now,
            has_reference=reference is not None,
            snapshot=later,
            earlier=earlier,
            recording=recording,
            user=user,
            users_expire=users_expire,
        )


def outcome_files(root: str, subject: str, wanted: str) -> Dataset:
    """The outcome files below a folder or URI; `subject` begins each message.

    Raises `InputError` for a path that is no folder, and for a file of another shape.
    """
    name = on_disk(root)
    with reaching(name, f"{subject}: "):
        if not is_uri(name) and not Path(name).is_dir():
            what = "is a file" if Path(name).exists() else "there is no such folder"
            raise InputError(f"{subject}: {name}: {what}: give {wanted}")
    source = dataset(root, subject)
    fragments = list(source.get_fragments())
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for fragment, known in zip(fragments, pool.map(_columns, fragments), strict=True):
            for column in _NEEDED:
                if column not in known:
                    path = fragment.path
                    raise InputError(f"{subject}: {path}: no column {column}: not an outcome file")
    return source


def _columns(fragment: Any) -> Sequence[str]:
    try:
        known: Sequence[str] = fragment.physical_schema.names
    except (pa.ArrowException, OSError):
        return _NEEDED  # `readable` says what is wrong with a damaged file
    return known


def _earlier(reference: Path | str) -> Snapshot | None:
    """The snapshot that a reference is, if it is one."""
    if is_uri(str(reference)):
        return None
    with reaching(str(reference), "reference: "):
        is_snapshot = (Path(reference) / MANIFEST).exists()
    return read_snapshot(Path(reference)) if is_snapshot else None


@contextlib.contextmanager
def readable() -> Iterator[None]:
    """What Arrow says while DuckDB reads its rows, as our own error."""
    try:
        yield
    except duckdb.InvalidInputException as error:
        said = str(error).splitlines()[0]
        wrong = UnreachableError if "IOError" in said else UnreadableError
        raise wrong(f"outcomes: a file cannot be read ({said})") from error


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
    connection: duckdb.DuckDBPyConnection,
    earlier: Snapshot | None,
    definition: Definition,
    others: Dataset | None,
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
    elif others is not None:
        connection.register("reference_files", others)
        connection.execute(f"CREATE VIEW reference AS SELECT {VIEW} FROM reference_files")  # noqa: S608
    recent = ""
    if period is not None:
        ((newest,),) = connection.execute("SELECT coalesce(max(ms), 0) FROM slates").fetchall()
        recent = f"AND ms > {newest - period}"
    connection.execute(f"CREATE VIEW current AS SELECT * FROM slates WHERE NOT ({known}) {recent}")  # noqa: S608
