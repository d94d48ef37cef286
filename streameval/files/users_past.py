"""The past of an experiment's users, from the last snapshot before it, and who is in which arm.

The counters of a snapshot hold whatever users did up to then, and nothing later: feedback that
comes during an experiment to a list from before is no part of them. So the past cannot depend on
the arm, which outcome files could not promise. It never changes, and takes one pass over the users.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from streameval.base.errors import InputError
from streameval.base.limits import CLUSTERS, MIN_TS
from streameval.core.checkpoint import arm_sums_of
from streameval.core.definition import Definition
from streameval.core.experiments.definition import MAX_ARMS, Experiment
from streameval.core.experiments.sums import ArmSums
from streameval.core.experiments.users import ArmUsers, UserArms, Visit
from streameval.core.windows.tables import cluster_of
from streameval.experiments.past import Past, Served, adjusted_rows
from streameval.experiments.scorecard import Row
from streameval.files.locations import UnreadableError, first_line, is_away, reaching, read
from streameval.files.outcome_days import OutcomeDays, unreadable
from streameval.files.outcome_files import OutcomeFolder, schema_at
from streameval.files.snapshot_folder import snapshots
from streameval.store.user_scan import UserRow

USERS_FILE: Final = "users.parquet"
# Below the folder of the snapshots: checks, which compare with an earlier one, do not look there.
PAST: Final = "past"
OPEN_FILE: Final = "open.parquet"
MOST_ROWS: Final = 1_000_000
"""Rows from before an experiment that are looked at: 0.5 s. More would say no more."""
SERVED_MS: Final = 86_400_000
"""How far before an experiment slates are looked at."""
# Users of a snapshot in one go.
_ROWS: Final = 16_384

Membership = Callable[[str], tuple[int, Collection[str]]]
"""Returns the cluster and the arms of a user, by the name that a snapshot has."""


def last_event(folder: Path) -> int | None:
    """Return the time (ms) of the last event that a snapshot counts; None without users.

    The file's own statistics tell, so no row is read. Raises `InputError` for a file that is none
    or that is damaged, and OSError where it cannot be read.
    """
    try:
        with pyarrow.parquet.ParquetFile(folder / USERS_FILE) as file:
            column = file.schema.names.index("last_ts")
            groups = (file.metadata.row_group(at) for at in range(file.num_row_groups))
            times = [int(group.column(column).statistics.max) for group in groups if group.num_rows]
            return max(times, default=None)
    except (pa.ArrowException, OSError, ValueError, TypeError, AttributeError) as error:
        # Wrong bytes make pyarrow raise any of these; an OSError of them has no number.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise InputError(f"{folder / USERS_FILE} is damaged ({error})") from error


def last_before(root: Path, time: int) -> Path | None:
    """Return the snapshot with the last event before `time` (ms), of those with none later.

    It is the last of these snapshots. But a snapshot of a log that is read again, after Redis lost
    its keys, has only a part of the users. The folder's `PAST` holds its oldest snapshots. None if
    there is no such snapshot. Raises `UnreachableError`.
    """
    found, newest = None, MIN_TS
    with reaching(str(root), "snapshots: "):
        for folder in [*snapshots(root / PAST), *snapshots(root)]:
            try:
                last = last_event(folder)
            except (FileNotFoundError, PermissionError, InputError):
                # It was removed meanwhile, is damaged, or was never ours to read.
                continue
            if last is not None and last >= time:
                break
            if last is not None and last >= newest:
                found, newest = folder, last
    return found


def snapshots_needed(root: Path, experiments: Iterable[Experiment]) -> dict[str, Path]:
    """Return the snapshot that holds the past of each experiment's users, by `Experiment.key`."""
    found = {one.key: last_before(root, one.since) for one in experiments if one.since is not None}
    return {key: folder for key, folder in found.items() if folder is not None}


def past_of(
    folder: Path,
    kinds: Sequence[str],
    arms: Iterable[str],
    membership: Membership,
    of: int,
    *,
    served: Served,
) -> Past:
    """Add up the counters that a snapshot has of the users of `arms`, of whom there are `of`."""
    rows = {kind: 1 + index for index, kind in enumerate(kinds)}
    by_arm = {arm: np.zeros((1 + len(rows), CLUSTERS), np.int64) for arm in arms}
    found = 0
    for user, impressions, positives in _counters(folder):
        cluster, members = membership(user)
        found += bool(members)
        for sums in [by_arm[arm] for arm in members if arm in by_arm]:
            sums[0, cluster] += impressions
            for kind, count in positives:
                if kind in rows:
                    sums[rows[kind], cluster] += count
    return Past(by_arm, found, of, served)


def served_before(
    rows: Iterable[tuple[str, str | None]], arms_of: Callable[[str], Collection[str]]
) -> Served:
    """Find which arm served users before an experiment, from the user and the arm of slates.

    At most `MOST_ROWS` of them are read.
    """
    seen: dict[str, set[str]] = {}
    by: dict[tuple[str, str], set[str]] = {}
    for user, arm in islice(rows, MOST_ROWS):
        members = arms_of(user)
        if len(members) == 1:
            (now,) = members
            seen.setdefault(now, set()).add(user)
            if arm:
                by.setdefault((now, arm), set()).add(user)
    counts = {arm: len(users) for arm, users in seen.items()}
    return Served(counts, {key: len(users) for key, users in by.items()})


def rows_before(files: Iterable[str], column: str, end: int) -> Iterator[tuple[str, str | None]]:
    """Yield the user and the arm of slates before `end` (ms) in outcome files.

    A snapshot has such rows too, of its open slates. Files without the column, and damaged ones,
    tell nothing. Raises `UnreachableError`.
    """
    for name in files:
        try:
            with pyarrow.parquet.ParquetFile(read(name)[0]) as file:
                if column in file.schema_arrow.names:
                    for batch in file.iter_batches(_ROWS, columns=["user", column, "time"]):
                        yield from slates_before(batch, column, end)
        except (pa.ArrowException, OSError, InputError) as error:
            if is_away(error, name):
                raise unreadable("outcomes", first_line(error, name), is_away=True) from error


def files_before(outcomes: str, copies: Path, column: str, end: int) -> Iterator[str]:
    """Name the outcome files of a day before `end` (ms), the newest hour first.

    Of an hour of many files it is a copy of those that have the column. Raises `UnreachableError`.
    """
    folder, days = OutcomeFolder(outcomes, {}, {}, ()), OutcomeDays(outcomes, [column], copies)

    def has_column(name: str) -> bool:
        try:
            return column in schema_at(name).names
        except UnreadableError:
            return False

    for hour in folder.hours(end - SERVED_MS, end):
        here = folder.of_hour(hour)
        try:
            yield from days.names(here, has_column, "with its column")
        except InputError:  # where one is damaged, the others are read as they are
            yield from (file.name for file in here)


def slates_before(batch: Any, column: str, end: int) -> Iterator[tuple[str, str | None]]:
    """Yield the user and the arm of rows with a time before `end` (ms), of an Arrow batch."""
    early = batch.filter(pc.less(batch.column("time").cast(pa.int64()), end))
    yield from zip(*(early.column(name).to_pylist() for name in ("user", column)), strict=True)


def _counters(folder: Path) -> Iterator[tuple[str, int, Any]]:
    with pyarrow.parquet.ParquetFile(folder / USERS_FILE) as file:
        for batch in file.iter_batches(_ROWS, columns=["user", "impressions", "positives"]):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


class ArmsOfTopic:
    """The sums and users of experiments, as a snapshot reads them from partition to partition.

    Only experiments of `pasts`, see `snapshots_needed`, are looked at. `name` is the pseudonym of a
    user in snapshots, None where users keep their names. `outcomes` is the folder of outcome files,
    and `copies` that of copies of them.
    """

    def __init__(
        self,
        definition: Definition,
        pasts: dict[str, Path],
        name: Callable[[str], str] | None = None,
        outcomes: str | None = None,
        copies: Path | None = None,
    ) -> None:
        self._definition, self.pasts, self._name = definition, pasts, name
        self._outcomes, self._copies = outcomes, copies
        self._sums = {one.key: ArmSums(one) for one in definition.experiments if one.key in pasts}
        self._users = UserArms()
        self._named: dict[str, str] = {}

    def add(self, header: bytes | None, rows: Iterable[UserRow]) -> None:
        """Take in a partition: the header of its checkpoint, and its users."""
        found = [] if header is None else arm_sums_of(header, self._definition)
        parts = [part for part in found if part.experiment.key in self._sums]
        for part in parts:
            self._sums[part.experiment.key].merge(part)
        keys = {part.users_key: part.experiment.key for part in parts}
        for row in rows:
            known = [(keys[key], arms) for key, arms in row.arms.items() if key in keys]
            self._users.add(
                Visit(row.user, key, arm, *first)
                for key, arms in known
                for arm, first in arms.items()
            )
            if known and self._name is not None:
                self._named[self._name(row.user)] = row.user

    def adjusted(self, key: str) -> tuple[list[Row], list[str]]:
        """Compare the arms of an experiment by the past of their users; no rows without users.

        A sentence says why an arm has no row. Raises `InputError` where the snapshot knows none of
        the users.
        """
        folder = self.pasts[key]
        arms, users = self._sums[key], self._users.counts.get(key, ArmUsers())
        if len(users.by_arm) > MAX_ARMS:
            users = users.within({*arms.sums, *arms.experiment.named_arms})

        def membership(name: str) -> tuple[int, Collection[str]]:
            user = name if self._name is None else self._named.get(name, name)
            return cluster_of(user), self._users.of(key, user)

        of = self._users.count(key)
        kinds, served = self._definition.kinds, self._served(key, lambda name: membership(name)[1])
        with reaching(str(folder), "snapshots: "):
            past = past_of(folder, kinds, arms.sums, membership, of, served=served)
        if of and not past.users:
            raise InputError(
                f"{folder} knows none of the {of:,} users of the arms: all are new, or"
                " `pseudonymize` or its key has changed since"
            )
        found, refused = adjusted_rows(self._definition, arms, users, past)
        rows = [{"users_with_past": past.users, "users_of": of, **row} for row in found]
        return rows, refused

    def _served(self, key: str, arms_of: Callable[[str], Collection[str]]) -> Served:
        experiment = self._sums[key].experiment
        column, since = experiment.arm, experiment.since or 0
        files: Iterable[str] = [str(self.pasts[key] / OPEN_FILE)]
        if self._outcomes is not None and self._copies is not None:
            files = chain(files, files_before(self._outcomes, self._copies, column, since))
        return served_before(rows_before(files, column, since), arms_of)
