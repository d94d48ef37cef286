"""The leader's figures of experiments without crossed users, beside the plain ones.

The stream keeps the sums of an arm by cluster of users, so it cannot take out what a user did
before crossing. Outcome files can: each slate that a checkpoint has in its sums is a row of a file.
So the rows of crossed users, up to the checkpoint whose sums are read, are subtracted from these
sums. All are integers, so the rest equals the sums of the other users to the bit. There are no such
figures where the files do not have as many slates as the sums.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from streameval.base.errors import InputError
from streameval.base.limits import MAX_TS
from streameval.core.checkpoint import arm_sums_of, attachments_of
from streameval.core.definition import Definition
from streameval.core.experiments.definition import MAX_ARMS, Experiment
from streameval.core.experiments.sums import ArmSums
from streameval.core.experiments.users import ArmUsers, UserArms, Visit
from streameval.evaluation.arms import arm_batches, rows_of_arms, sums_of_users
from streameval.experiments.scorecard import Row, scorecard
from streameval.files.group_store import opened_store
from streameval.files.outcome_days import COPIES, OutcomeDays
from streameval.files.outcome_files import HOUR_MS, OutcomeFile, OutcomeFolder, user_name
from streameval.store.redis_store import REPORT_TTL_MS, RedisStateStore
from streameval.store.scorecards import WITHOUT_CROSSED, report_of
from streameval.worker.outcome_writer import open_files

if TYPE_CHECKING:
    from streameval.config.settings import Settings

# Seconds for which files may be on their way.
_MOST_WAITS: Final = 10
_FIGURES: Final = (
    *("metric", "arm", "users", "value", "control_value", "difference", "relative_difference"),
    *("low", "high", "bounds", "verdict", "users_needed", "withheld"),
)


@dataclass(slots=True)
class Part:
    """The sums of an experiment in a partition, at the checkpoint of `offset`, and its users.

    `spans` name the outcome files that come with the checkpoint.
    """

    partition: int
    offset: int
    sums: ArmSums
    spans: Sequence[str]
    users: UserArms = field(default_factory=UserArms)

    @property
    def crossed(self) -> dict[str, frozenset[str]]:
        """The users of several arms."""
        return self.users.crossed(self.sums.users_key)


async def report_without_crossed(settings: Settings, token: int) -> None:
    """Report the figures of the experiments that leave crossed users out.

    Raises `UnreachableError`, `UnusableStateError`.
    """
    definition, files = settings.definition(), open_files(settings)
    wanted = [one for one in definition.experiments if one.crossed_users == "leave_out"]
    if not wanted or files is None or settings.snapshots is None:
        return
    days = OutcomeDays(files.root, definition.labels, settings.snapshots / COPIES)
    store, count = await opened_store(settings)
    try:
        now = round(time.time() * 1000)
        parts = await parts_of(store, definition, range(count))
        rows: dict[str, list[Row]] = {}
        notes: dict[str, list[str]] = {}
        for one in wanted:
            try:
                _require_all_users(one, settings.user_ttl, now)
                name = user_name(settings)
                rows[one.key] = figures(definition, one, parts[one.key], files, days, name=name)
            except InputError as error:
                notes[one.key] = [f"No figures without crossed users: {error}."]
        lasts = max(REPORT_TTL_MS, 2 * settings.snapshot_interval)
        await store.report(WITHOUT_CROSSED, token, report_of(now, rows, notes), lasts)
    finally:
        await store.close()


async def parts_of(
    store: RedisStateStore, definition: Definition, partitions: Sequence[int]
) -> dict[str, list[Part]]:
    """Read the sums and the users of each experiment, by `Experiment.key`."""
    found: dict[str, list[Part]] = {one.key: [] for one in definition.experiments}
    for number in partitions:
        offset, header = await _checkpoint(store, number)
        if header is None:
            continue
        found_here, spans = arm_sums_of(header, definition), attachments_of(header)
        parts = {sums.users_key: Part(number, offset, sums, spans) for sums in found_here}
        # Later than the sums: of a user who crossed since, all that the sums have is left out.
        for row in (await store.users(number)).rows:
            for key in row.arms.keys() & parts.keys():
                firsts = row.arms[key].items()
                parts[key].users.add(Visit(row.user, key, arm, *first) for arm, first in firsts)
        for part in parts.values():
            found[part.sums.experiment.key].append(part)
    return found


async def _checkpoint(store: RedisStateStore, number: int) -> tuple[int, bytes | None]:
    """Read the header of a checkpoint with its offset."""
    while True:
        offset = await store.checkpoint_offset(number)
        header = await store.header(number)
        if offset == await store.checkpoint_offset(number):
            return offset or 0, header


def figures(
    definition: Definition,
    experiment: Experiment,
    parts: Sequence[Part],
    files: OutcomeFolder,
    days: OutcomeDays,
    *,
    name: Callable[[str], str] | None = None,
) -> list[Row]:
    """Compare the named metrics of an experiment without the users of several arms.

    `days` has the same files, and `name` is the pseudonym of a user in them. Raises `InputError`
    where the files do not have all slates of the sums.
    """
    sums, users = ArmSums(experiment), ArmUsers()
    left_out = 0
    found = _files_of([part for part in parts if part.crossed], files, days)
    for part in parts:
        crossed, key = part.crossed, part.sums.users_key
        kept = part.sums
        if crossed:
            here = found[part.partition]
            kept = _without(part, crossed, here, definition=definition, name=name)
        sums.merge(kept)
        counts = part.users.counts.get(key, ArmUsers())
        users.add(counts.without_crossed(crossed.items()))
        left_out += len(crossed)
    if len(users.by_arm) > MAX_ARMS:
        users = users.within({*sums.sums, *experiment.named_arms})
    return [
        {"left_out": left_out, **{key: row[key] for key in _FIGURES}}
        for row in scorecard(definition, sums, users)
        if row["role"] != "exploratory"
    ]


def _files_of(
    parts: Sequence[Part], files: OutcomeFolder, days: OutcomeDays
) -> dict[int, list[str]]:
    """Name the files to read of each partition: those that fit, or a copy where an hour has many.

    An hour has a folder for all partitions, so it is listed once for all.
    """
    for _ in range(_MOST_WAITS):  # a worker moves the files a moment after its commit
        if not any(files.is_pending(span) for part in parts for span in part.spans):
            break
        time.sleep(1)
    names: dict[int, list[str]] = {part.partition: [] for part in parts}
    begin = min((part.sums.earliest or 0 for part in parts), default=MAX_TS)
    end = max((part.sums.experiment.until or MAX_TS for part in parts), default=0)
    for hour in files.hours(begin, end):
        here = files.of_hour(hour)
        for part in parts:
            if hour + HOUR_MS > (part.sums.earliest or 0):
                names[part.partition] += _fitting(part, here, files, days)
    return names


def _fitting(
    part: Part, here: Sequence[OutcomeFile], files: OutcomeFolder, days: OutcomeDays
) -> list[str]:
    arm = part.sums.experiment.arm
    found = [
        file
        for file in here
        if file.span.partition == part.partition and file.span.end <= part.offset
    ]

    def fits(name: str) -> bool:
        return files.fits(name, arm, by_ids=False)

    return days.names(found, fits, f"{arm} {files.about}")


def _without(
    part: Part,
    crossed: Mapping[str, object],
    files: Sequence[str],
    *,
    definition: Definition,
    name: Callable[[str], str] | None,
) -> ArmSums:
    ids = {user if name is None else name(user): user for user in crossed}
    rows = _Rows(part, files, ids)
    gone = sums_of_users(rows, definition, part.sums, crossed, part.sums.experiment.arm)
    if rows.slates != part.sums.with_arm:
        raise InputError(
            f"the outcome files of partition {part.partition} have {rows.slates:,} of the"
            f" {part.sums.with_arm:,} slates that count; `crossed_users: leave_out` needs all of"
            " them, written under this definition"
        )
    return part.sums.without(gone)


@dataclass(slots=True)
class _Rows:
    """The rows of some users in the files of a checkpoint; `slates` counts the rows of all users.

    `ids` are the users by the name that files have.
    """

    part: Part
    files: Sequence[str]
    ids: Mapping[str, str]
    slates: int = 0

    def __iter__(self) -> Iterator[Any]:
        sums, names = self.part.sums, pa.array(list(self.ids), pa.string())
        arm = sums.experiment.arm
        for record in arm_batches(self.files, arm, lambda _: None):
            self.slates += rows_of_arms(record, arm, sums.bounds)
            theirs = record.filter(pc.is_in(record.column("user"), value_set=names))
            users = [self.ids[name] for name in theirs.column("user").to_pylist()]
            yield theirs.set_column(
                theirs.schema.get_field_index("user"), "user", pa.array(users, pa.string())
            )


def _require_all_users(experiment: Experiment, ttl: int | None, now: int) -> None:
    """Raise `InputError` where the arms of users may have been forgotten."""
    if ttl is not None and now - (experiment.since or 0) >= ttl:
        raise InputError("the experiment is as old as `user_ttl`, and users may be forgotten")
