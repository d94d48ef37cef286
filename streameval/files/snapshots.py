"""Snapshots: the state of the service at one moment, as files that checks can read.

    <root>/20260131T071500Z-<token>/
      manifest.json    versions, offsets, watermarks, rows and checksums of the files, configuration
      users.parquet    every user's lifetime counters, each row exact at the offset beside it
      figures.json     the windows at the checkpoints' watermarks: of each partition, and combined
      open.parquet     the open slates at the checkpoints, in the columns of outcome files

A partition has two offsets. Figures and open slates belong to `checkpoint_offset`, and so do at
least the outcome files that were visible then. The counters belong to `users_begin` = `users_end`.
If these two differ, the partition was busy: then each row's own `offset` counts, and a user without
a row had no counters at `users_begin`.

A folder appears complete, by one rename. The leader of the workers takes them on schedule; the
name carries its fencing token (0 for the command), and a leader that was replaced meanwhile throws
its own away. Everything is read from Redis and a list of partitions from Kafka; no counter changes.
Then Redis gets a report: the differences of experiments, adjusted by their users' past.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NotRequired, TypedDict

import pyarrow as pa
import pyarrow.parquet

from streameval import __version__
from streameval.base.errors import (
    ConfigError,
    InputError,
    RefusedError,
    StreamevalError,
    UnreachableError,
)
from streameval.core.checkpoint import restore
from streameval.core.definition import Definition
from streameval.core.experiments.definition import Experiment
from streameval.core.figures import figures
from streameval.core.fingerprint import describe, fingerprint
from streameval.core.nowcast import ArrivalCurves
from streameval.core.outcome import Outcome, outcome
from streameval.core.partition import Partition
from streameval.core.sums import Sums, merge
from streameval.experiments.scorecard import Row
from streameval.files.group_store import opened_store
from streameval.files.locations import reaching
from streameval.files.outcome_days import COPIES
from streameval.files.outcome_files import schema_of, table, user_name
from streameval.files.snapshot_folder import NAME, claim, document, snapshots, taken_at
from streameval.files.users_past import PAST, ArmsOfTopic, snapshots_needed
from streameval.store.redis_store import REPORT_TTL_MS, RedisStateStore
from streameval.store.scorecards import ADJUSTED, report_of
from streameval.store.user_scan import UserRow

if TYPE_CHECKING:
    from streameval.config.settings import Settings

log = logging.getLogger(__name__)

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
# The unfinished folder of a death goes after so long.
UNFINISHED_SECONDS: Final = 24 * 3600.0
# A snapshot stays so long at least, see `retire_old`.
FRESH_SECONDS: Final = 60.0
# A folder that `take_from` writes (with the process id), or one that `retire` removes.
_UNFINISHED: Final = re.compile(rf"_([0-9]+-)?{NAME.pattern}")
_FILES: Final = frozenset({"users.parquet", "figures.json", "open.parquet"})

USERS: Final = pa.schema(
    [
        ("partition", pa.int32()),
        ("user", pa.string()),
        ("offset", pa.int64()),
        ("impressions", pa.int64()),
        ("slates", pa.int64()),
        ("positives", pa.map_(pa.string(), pa.int64())),
        ("first_ts", pa.int64()),
        ("last_ts", pa.int64()),
    ]
)
"""Columns of users.parquet; times in ms since the epoch."""

UserName = Callable[[str], str]


class PartFacts(TypedDict):
    """The facts of a partition in the manifest, as far as readers need them."""

    partition: int
    watermark: int | None
    checkpoint_offset: int | None
    cluster_id: str | None
    topic_id: str | None
    users_begin: int
    users_end: int
    users: NotRequired[int]
    open_slates: NotRequired[int]


class FileFacts(TypedDict):
    """The facts of a file in the manifest, as far as readers need them."""

    sha256: str


class _Form(TypedDict):
    format: int


class Manifest(TypedDict):
    """A manifest, as far as readers need it."""

    format: int
    fingerprint: str
    definition: dict[str, Any]
    pseudonymous: bool
    partitions: list[PartFacts]
    files: dict[str, FileFacts]


class _Part(NamedTuple):
    """The part of one partition."""

    facts: dict[str, Any]
    users: pa.Table
    open_slates: pa.Table
    sums: Sums | None
    document: dict[str, Any] | None


async def take(
    settings: Settings,
    token: int = 0,
    *,
    tidy: bool = True,
    on_part: Callable[[float], object] = lambda _: None,
) -> Path:
    """Take a snapshot of all partitions and return its folder.

    Then report the differences of experiments, adjusted by their users' past. `token` is the
    leader's. `tidy`: remove the oldest ones beyond `snapshot_keep`. `on_part` hears the
    share of the partitions that each one is, once it is read. Raises ConfigError without a folder,
    `RefusedError` for state of another definition or where another leader took over,
    `UnreachableError`.
    """
    if settings.snapshots is None:
        raise ConfigError("snapshots: name the folder that snapshots go to")
    claim(settings.snapshots, settings.owner)
    definition = settings.definition()
    pasts = snapshots_needed(settings.snapshots, definition.experiments)
    copies = settings.snapshots / COPIES
    arms = ArmsOfTopic(definition, pasts, user_name(settings), settings.outcomes, copies)
    store, count = await opened_store(settings)
    try:
        folder = await take_from(
            store, settings, settings.snapshots, range(count), token, arms=arms, on_part=on_part
        )
        try:
            await report_adjusted(store, settings, folder, token, arms)
        except StreamevalError as error:
            log.warning("no adjusted experiments: %s", error)
    finally:
        await store.close()
    if tidy:
        retire_old(settings)
    return folder


async def report_adjusted(
    store: RedisStateStore, settings: Settings, folder: Path, token: int, arms: ArmsOfTopic
) -> None:
    """Report the adjusted differences of experiments, as of the snapshot in a folder."""
    experiments, found = settings.definition().experiments, {}
    notes: dict[str, list[str]] = {}
    now, ttl = round(time.time() * 1000), settings.user_ttl
    for experiment in experiments:
        key, begin = experiment.key, experiment.since or 0
        # The arms of users who may have been forgotten meanwhile are not known.
        if key not in arms.pasts or (ttl is not None and now - begin >= ttl):
            continue
        try:
            found[key], notes[key] = _adjusted(arms, key)
        except InputError as error:
            log.warning("experiment %s is not adjusted: %s", experiment.name, error)
    if experiments:
        taken = round(taken_at(folder) * 1000)
        lasts = max(REPORT_TTL_MS, 2 * settings.snapshot_interval)
        await store.report(ADJUSTED, token, report_of(taken, found, notes), lasts)


def _adjusted(arms: ArmsOfTopic, key: str) -> tuple[list[Row], list[str]]:
    """Compare the arms as `arms.adjusted`; read the past where another process moves it to."""
    past = arms.pasts[key]
    try:
        manifest_of(past)
        return arms.adjusted(key)
    except (InputError, UnreachableError):
        aside = past.parent / PAST / past.name
        if not aside.exists():
            raise
    arms.pasts[key] = aside
    manifest_of(aside)
    return arms.adjusted(key)


async def take_from(
    store: RedisStateStore,
    settings: Settings,
    root: Path,
    partitions: Sequence[int],
    token: int,
    *,
    arms: ArmsOfTopic | None = None,
    on_part: Callable[[float], object] = lambda _: None,
) -> Path:
    """Take a snapshot of `partitions` as `store` holds them; `arms` take in its users."""
    definition = settings.definition()
    name = user_name(settings)
    moment = datetime.now(UTC)
    parts = []
    for number in partitions:
        parts.append(await _part(store, definition, number, name, arms))
        on_part(1 / len(partitions))
    unfinished = root / f"_{os.getpid()}-{moment:%Y%m%dT%H%M%SZ}-{token}"
    folder = root / f"{moment:%Y%m%dT%H%M%SZ}-{token}"
    try:
        unfinished.mkdir(parents=True)
        files = _write(unfinished, definition, parts)
        manifest = {
            "format": FORMAT,
            "version": __version__,
            "taken_at": moment.isoformat(timespec="milliseconds"),
            "token": token,
            "group": settings.group,
            "topic": settings.topic,
            "fingerprint": fingerprint(definition),
            "definition": describe(definition),
            "pseudonymous": name is not None,
            "partitions": [part.facts for part in parts],
            "files": files,
        }
        _put(unfinished / MANIFEST, manifest)
        fence = await store.fence() if token else None
        if fence is not None and fence > token:
            raise RefusedError(f"another leader took over (token {fence}, ours is {token})")
        unfinished.rename(folder)
        _sync(root)
    except OSError as error:
        raise UnreachableError(f"snapshots: {root} cannot be used now ({error})") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def attach(snapshot: Path, name: str, content: Mapping[str, Any] | bytes) -> None:
    """Add results to a snapshot as a file in its folder, there whole or not at all.

    `content` is a JSON document, or bytes as they are.
    """
    passing = snapshot / f"_{name}"
    try:
        if isinstance(content, bytes):
            passing.write_bytes(content)
            _sync(passing)
        else:
            _put(passing, content)
        passing.rename(snapshot / name)
    except OSError as error:
        raise UnreachableError(f"snapshots: {snapshot} cannot be used now ({error})") from error


def manifest_of(snapshot: Path) -> Manifest:
    """The manifest, once the checksums of all files are found right; raises `InputError`."""
    manifest = facts_of(snapshot)
    files = manifest["files"]
    try:
        wrong = [name for name in files if _sha256(snapshot / name) != files[name]["sha256"]]
    except OSError as error:
        raise _unread(snapshot, error) from error
    if wrong:
        raise InputError(f"{snapshot}: {', '.join(wrong)} changed since the snapshot was taken")
    return manifest


def _unread(snapshot: Path, error: Exception) -> InputError:
    if isinstance(error, FileNotFoundError) and not snapshot.exists():
        return InputError(f"{snapshot} is not a snapshot: it is gone; was it moved, or deleted?")
    return InputError(f"{snapshot} is not a snapshot, or not whole: {error!r}")


def facts_of(snapshot: Path) -> Manifest:
    """The manifest, whatever became of the files that it names; raises `InputError`."""
    try:
        form = document(snapshot / MANIFEST, _Form)["format"]
        if form != FORMAT:
            raise InputError(f"{snapshot} has format {form}, this version reads {FORMAT}")
        manifest = document(snapshot / MANIFEST, Manifest)
    except (OSError, ValueError) as error:
        raise _unread(snapshot, error) from error
    if lacking := _FILES - manifest["files"].keys():
        raise InputError(f"{snapshot} is not whole: no {', '.join(sorted(lacking))}")
    return manifest


# ------------------------------------------------------------------------------------- partitions


async def _part(
    store: RedisStateStore,
    definition: Definition,
    number: int,
    name: UserName | None,
    arms: ArmsOfTopic | None,
) -> _Part:
    stored = await store.load(number)
    users = await store.users(number)
    if arms is not None:
        arms.add(stored.header, users.rows)
    facts: dict[str, Any] = {
        "partition": number,
        "offset": stored.offset,
        "checkpoint_offset": stored.checkpoint_offset,
        "cluster_id": stored.cluster_id,
        "topic_id": stored.topic_id,
        "watermark": None,
        "users_begin": users.begin,
        "users_end": users.end,
        "users": len(users.rows),
        "open_slates": 0,
    }
    user_table = _user_table(number, users.rows, name)
    dimensions = definition.labels
    if stored.header is None:
        return _Part(facts, user_table, table(number, [], dimensions), None, None)
    state = restore(definition, stored.header, stored.chunks, keep_outcomes=True, at_watermark=True)
    # Nowcasts of partitions add up only if all take the same curves: each document has its own.
    sums = state.sums(curves=ArrivalCurves(definition, []))
    rows = list(_open_slates(state))
    facts |= {"watermark": state.watermark, "open_slates": len(rows)}
    return _Part(facts, user_table, table(number, rows, dimensions, name), sums, state.document())


def _user_table(number: int, rows: Sequence[UserRow], name: UserName | None) -> pa.Table:
    columns: dict[str, Any] = {"partition": [number] * len(rows)}
    for field in USERS.names[1:]:
        columns[field] = [getattr(row, field) for row in rows]
    if name is not None:
        columns["user"] = [name(user) for user in columns["user"]]
    columns["positives"] = [list(positives.items()) for positives in columns["positives"]]
    return pa.table([pa.array(columns[field.name], field.type) for field in USERS], USERS)


def _open_slates(state: Partition) -> Iterator[Outcome]:
    """The slates that can still change, as they are; offset -1 where outcomes are not kept."""
    for user in state.slates.users.values():
        for slate in user.open_slates():
            yield outcome(slate, state.ledger.gains, state.definition.kinds)


# ------------------------------------------------------------------------------------------ files


def _write(folder: Path, definition: Definition, parts: Sequence[_Part]) -> dict[str, Any]:
    """Write all files but the manifest; return rows, bytes and checksum of each."""
    users = pa.concat_tables([USERS.empty_table(), *(part.users for part in parts)])
    slates = pa.concat_tables(
        [schema_of(definition.labels).empty_table(), *(part.open_slates for part in parts)]
    )
    for name, rows in (("users.parquet", users), ("open.parquet", slates)):
        pa.parquet.write_table(rows, folder / name, compression="zstd")
    combined = figures(definition, merge(part.sums for part in parts if part.sums is not None))
    document = {
        "combined": combined,
        "partitions": {
            str(part.facts["partition"]): part.document
            for part in parts
            if part.document is not None
        },
    }
    _put(folder / "figures.json", document)
    counts = {"users.parquet": len(users), "open.parquet": len(slates)}
    counts["figures.json"] = len(combined["rates"]) + len(combined["ranking"])
    for name in counts:
        _sync(folder / name)
    return {
        name: {
            "rows": rows,
            "bytes": (folder / name).stat().st_size,
            "sha256": _sha256(folder / name),
        }
        for name, rows in counts.items()
    }


def _put(path: Path, document: Mapping[str, Any]) -> None:
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1)
    path.write_text(text + "\n", encoding="utf-8")
    _sync(path)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Have the disk keep a file or folder, also through a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def retire_old(settings: Settings) -> None:
    """Remove the oldest snapshots beyond `snapshot_keep`. Raises `UnreachableError`.

    The command and the leader may take one at a time, and whoever took one has yet to read it. So
    none goes within its first minute, or within the interval if that is shorter.
    """
    assert settings.snapshots is not None, "a snapshot was taken"
    fresh = min(FRESH_SECONDS, settings.snapshot_interval / 1000)
    experiments = settings.definition().experiments
    retire(settings.snapshots, settings.snapshot_keep, experiments, fresh=fresh)


def retire(
    root: Path, keep: int, experiments: Sequence[Experiment] = (), *, fresh: float = 0.0
) -> None:
    """Remove the oldest snapshots beyond `keep`, and unfinished ones of processes that died.

    One that was finished less than `fresh` seconds ago stays. One with the past of an experiment's
    users moves to `PAST`, for as long as it is needed. Folders with other names stay: they are
    somebody else's. Another process may do the same at the same time. Raises `UnreachableError`.
    """
    pasts = set(snapshots_needed(root, experiments).values())
    with reaching(str(root), "snapshots: "):
        for path in [*snapshots(root)[:-keep], *snapshots(root / PAST)]:
            if fresh and path.parent == root and _is_younger(path, fresh):
                continue
            if path not in pasts:
                gone = root / f"_{path.name}"  # no reader finds half of it
                with contextlib.suppress(FileNotFoundError):
                    path.rename(gone)
                shutil.rmtree(gone, ignore_errors=True)
            elif path.parent == root:
                (root / PAST).mkdir(exist_ok=True)
                with contextlib.suppress(FileNotFoundError):
                    path.rename(root / PAST / path.name)
        for path in root.glob("_*"):
            is_ours = _UNFINISHED.fullmatch(path.name) is not None and path.is_dir()
            if is_ours and not _is_younger(path, UNFINISHED_SECONDS):
                shutil.rmtree(path, ignore_errors=True)


def _is_younger(folder: Path, seconds: float) -> bool:
    """Whether a folder was written to in the last `seconds`; no for one that is gone."""
    try:
        return folder.stat().st_mtime > time.time() - seconds
    except FileNotFoundError:
        return False
