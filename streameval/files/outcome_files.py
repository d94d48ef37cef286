"""Outcome files: Parquet with one row for each slate that can no longer change, exactly once.

    <root>/dt=2026-01-31/hour=07/p<partition>-<from>-<to>-<token>.parquet    visible
    <root>/_pending/p<partition>-<from>-<to>-<token>/dt=…/hour=…/….parquet   complete, not visible
    <root>/_streameval.json                                                  owner of these files

`from` and `to` are the offsets of the checkpoint before and of the checkpoint that the rows belong
to; day and hour come from the slate's time (UTC). One span of a partition goes in three steps,
safe to stop between any two:

1. `write`: the files are written whole under `_pending`, where no reader looks.
2. The commit script flips the checkpoint's pointer; the new header names the span.
3. `publish`: the files are moved to their visible folders by a worker that sees that the pointer
   names the span: the worker that wrote it, or the one that restores the partition after its death.

So a span is visible only if its checkpoint counts, and a worker that lost its partition without
noticing never publishes. After a store lost data, `beyond` finds the spans beyond the checkpoint
that a partition is restored from, and `remove` removes them: they are written again. `unpublished`
finds what workers left at step 1 when they died. The clock alone condemns none of it: a commit goes
on for as long as the store is away.

Everything here blocks: call it in a thread. The world's errors are `UnreachableError`.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet
from pyarrow import fs

from streameval.core.outcome import Outcome, Span
from streameval.files.locations import (
    MARKER,
    Location,
    join,
    list_folder,
    open_location,
    reaching,
    read,
    redact,
    require_bucket,
    require_owner,
    unread,
)

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset

    from streameval.config.settings import Settings

ROW_GROUP: Final = 65_536
PENDING: Final = "_pending"
HOUR_MS: Final = 3_600_000
# An unpublished span is left alone for so long. A worker that hung meanwhile and a store that went
# back could else make a commit count whose files are gone.
PENDING_SECONDS: Final = 6 * 3600.0

FEEDBACK: Final = pa.struct(
    [
        ("item", pa.int16()),
        ("kind", pa.string()),
        ("value", pa.float64()),
        ("delay", pa.int64()),
        ("retract", pa.bool_()),
    ]
)
COLUMNS: Final = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("request", pa.string()),
        ("user", pa.string()),
        ("time", pa.timestamp("ms", "UTC")),
        ("items", pa.list_(pa.string())),
        ("positions", pa.list_(pa.int16())),
        ("ranks", pa.list_(pa.int16())),
        ("shown", pa.list_(pa.int64())),
        ("scores", pa.list_(pa.float64())),
        ("propensities", pa.list_(pa.float64())),
        ("gains", pa.list_(pa.float64())),
        ("feedback", pa.list_(FEEDBACK)),
        ("fallback", pa.bool_()),
        ("latency_ms", pa.float64()),
    ]
)
"""The columns beside dimensions (see `core.outcome.Outcome`). `delay` and `shown` are ms."""

_PER_ITEM: Final = ("positions", "ranks", "shown", "scores", "propensities", "gains")


def schema_of(dimensions: Sequence[str]) -> pa.Schema:
    """Return the columns of outcome files: a text column for each dimension, behind the user."""
    fields = list(COLUMNS)
    behind = COLUMNS.get_field_index("user") + 1
    return pa.schema([*fields[:behind], *((d, pa.string()) for d in dimensions), *fields[behind:]])


def dimensions_in(schema: pa.Schema) -> list[str]:
    """Return the dimensions among the columns of an outcome file."""
    return [f.name for f in schema if f.type == pa.string() and f.name not in COLUMNS.names]


def table(
    partition: int,
    rows: Sequence[Outcome],
    dimensions: Sequence[str],
    user: Callable[[str], str] | None = None,
) -> pa.Table:
    """Return the rows as Arrow columns, by `schema_of`; `user` gives the name to write for one.

    A dimension that an event lacks is null.
    """
    names = [row.user for row in rows]
    items: list[str] = []
    starts = [0]
    for row in rows:
        items += row.items
        starts.append(len(items))
    offsets = pa.array(starts, pa.int32())
    columns: dict[str, Any] = {
        "partition": pa.repeat(pa.scalar(partition, pa.int32()), len(rows)),
        "user": names if user is None else [user(name) for name in names],
        "items": pa.ListArray.from_arrays(offsets, pa.array(items, pa.string())),
        "feedback": _feedback(rows),
    }
    for name in _PER_ITEM:
        flat = [value for row in rows for value in getattr(row, name)]
        values = pa.array(flat, COLUMNS.field(name).type.value_type)
        columns[name] = pa.ListArray.from_arrays(offsets, values)
    for name in ("offset", "request", "time", "fallback", "latency_ms"):
        columns[name] = [getattr(row, name) for row in rows]
    for number, name in enumerate(dimensions):
        columns[name] = [row.labels[number] or None for row in rows]
    schema = schema_of(dimensions)
    return pa.table(
        [
            column if isinstance(column, pa.Array) else pa.array(column, field.type)
            for field in schema
            for column in (columns[field.name],)
        ],
        schema,
    )


def _feedback(rows: Sequence[Outcome]) -> pa.Array:
    entries = [entry for row in rows for entry in row.feedback]
    starts = [0]
    for row in rows:
        starts.append(starts[-1] + len(row.feedback))
    columns = [
        pa.array([getattr(entry, field.name) for entry in entries], field.type)
        for field in FEEDBACK
    ]
    values = pa.StructArray.from_arrays(columns, fields=list(FEEDBACK))
    return pa.ListArray.from_arrays(pa.array(starts, pa.int32()), values)


def pseudonyms(key: bytes) -> Callable[[str], str]:
    """Names in place of user ids: HMAC-SHA256 under `key`, in hex. The same user, the same name."""

    def name(user: str) -> str:
        return hmac.new(key, user.encode(), hashlib.sha256).hexdigest()

    return name


def user_name(settings: Settings) -> Callable[[str], str] | None:
    """Return the pseudonym of each user in files; None where users keep their names."""
    key = settings.pseudonymize
    return None if key is None else pseudonyms(key.get_secret_value().encode())


def dataset(root: str, dimensions: Sequence[str] | None = None) -> Dataset:
    """All visible rows below `root` (a folder or URI), with `dt` and `hour` as columns.

    A file without one of the `dimensions` has null for it; without `dimensions` the newest file has
    them. Raises `InputError` for a URI of no file system, `UnreachableError`.
    """
    with reaching(root, "outcomes: "):
        location = open_location(root)
        names = visible(location)
        if not names:
            require_bucket(location)
        if dimensions is None:
            dimensions = _dimensions_of(names[-1:], location.files)
        return opened(names, location, dimensions)


def opened(names: Sequence[str], location: Location, dimensions: Sequence[str]) -> Dataset:
    """Open files below a folder as rows with a column for each dimension, and `dt` and `hour`."""
    # Not with this module: it imports pandas where that is installed, for most of a second.
    from pyarrow import dataset as datasets

    hours = pa.schema([pa.field(name, pa.string()) for name in ("dt", "hour")])
    return datasets.dataset(
        list(names),
        pa.schema([*schema_of(dimensions), *hours]),
        format="parquet",
        filesystem=location.files,
        partitioning=datasets.partitioning(hours, flavor="hive"),
        partition_base_dir=location.path,
    )


def _dimensions_of(paths: Sequence[str], files: fs.FileSystem) -> list[str]:
    """Return the dimensions of the outcome file that is named, if one is."""
    found = [dimensions_in(pa.parquet.read_schema(path, filesystem=files)) for path in paths]
    return found[0] if found else []


def schema_at(name: str) -> pa.Schema:
    """Return the columns and the metadata of an outcome file.

    Raises `InputError`, for a damaged one `UnreadableError`, `UnreachableError`.
    """
    file, _ = read(name)
    try:
        return pa.parquet.read_schema(file)
    except (pa.ArrowException, OSError) as error:
        raise unread(name, error) from error


def visible(location: Location) -> list[str]:
    """The paths of the files below the folder `location` that readers may see, in order."""
    found = [info for info in list_folder(*location) if info.type == fs.FileType.Directory]
    return sorted(
        info.path
        for day in found
        if day.base_name.startswith("dt=")
        for info in list_folder(location.files, day.path, recursive=True)
        if info.is_file and info.path.endswith(".parquet")
    )


class OutcomeFile(NamedTuple):
    """A visible file: its name (a path or URI), its span, and what the listing says of it."""

    name: str
    span: Span
    info: fs.FileInfo


class OutcomeFolder:
    """The outcome files of one deployment, below `root` (a folder, or a URI as pyarrow reads it).

    `owner` (group and topic) is written into the folder: two deployments in one folder would
    remove each other's files. `about` goes into each file's metadata as `streameval`, with whether
    `user` made pseudonyms. The rows have a column for each of `dimensions`.
    """

    def __init__(
        self,
        root: str,
        owner: Mapping[str, str],
        about: Mapping[str, Any],
        dimensions: Sequence[str],
        *,
        user: Callable[[str], str] | None = None,
    ) -> None:
        self.root, self._owner, self._user = root, dict(owner), user
        self._dimensions = tuple(dimensions)
        self.about = json.dumps({**about, "pseudonymous": user is not None}, sort_keys=True)

    @cached_property
    def _location(self) -> Location:
        return open_location(self.root)  # may ask the store for its region

    @property
    def files(self) -> fs.FileSystem:
        """The file system of the folder."""
        return self._location.files

    @property
    def _base(self) -> str:
        return self._location.path

    def check(self) -> None:
        """Make the folder ours; raises `RefusedError` where it is another deployment's."""
        with self._reaching():
            marker = f"{self._base}/{MARKER}"
            require_bucket(self._location)  # some stores would make one
            self.files.create_dir(self._base)
            known = self._read(marker)
            if known is None:
                self._put(marker, json.dumps(self._owner).encode())
        if known is not None:
            require_owner(f"outcomes: {redact(self.root)}", known, self._owner)

    def write(self, span: Span, rows: Sequence[Outcome]) -> None:
        """Write the rows of a span, whole and not yet visible (step 1)."""
        hours: dict[str, list[Outcome]] = defaultdict(list)
        for row in rows:
            hours[_hour(row.time)].append(row)
        with self._reaching():
            for hour, members in hours.items():
                folder = f"{self._pending(span.name)}/{hour}"
                self._make(folder)
                columns = table(span.partition, members, self._dimensions, self._user)
                path = f"{folder}/{span.name}.parquet"
                pa.parquet.write_table(
                    columns.replace_schema_metadata({"streameval": self.about}),
                    path,
                    filesystem=self.files,
                    compression="zstd",
                    row_group_size=ROW_GROUP,
                )
                self._sync(path, *self._above(path))

    def publish(self, name: str) -> None:
        """Make the files of a span visible (step 3); nothing where they are already."""
        pending = self._pending(name)
        with self._reaching():
            for info in list_folder(self.files, pending, recursive=True):
                if info.type == fs.FileType.File:
                    path = f"{self._base}/{info.path.removeprefix(pending + '/')}"
                    self._make(path.rpartition("/")[0])
                    self._move(info.path, path)
                    self._sync(*self._above(path))
            self._remove_folder(pending)

    def is_pending(self, name: str) -> bool:
        """Whether files of a span are not visible yet."""
        with self._reaching():
            return bool(list_folder(self.files, self._pending(name)))

    def discard(self, name: str) -> None:
        """Remove the files of a span whose checkpoint does not count."""
        with self._reaching():
            self._remove_folder(self._pending(name))

    def beyond(self, partition: int, offset: int, since: int | None) -> list[str]:
        """Find the visible spans that a partition restored at `offset` writes again.

        No slate with a time before `since` (ms) is written again, so no earlier hour is looked
        at; None looks at all.
        """
        with self._reaching():
            found = {span.name for _, span in self._spans(partition, since) if span.end > offset}
        return sorted(found)

    def remove(self, partition: int, names: Sequence[str], since: int | None) -> int:
        """Remove the files of visible spans, whose store has lost them; return how many files."""
        removed = 0
        with self._reaching():
            for path, span in list(self._spans(partition, since)):
                if span.name in names:
                    with contextlib.suppress(FileNotFoundError):
                        self.files.delete_file(path)
                        removed += 1
        return removed

    def remove_before(self, end: int) -> int:
        """Remove the files of hours that were over by `end` (ms); return how many.

        Files that no worker wrote stay, and their folders.
        """
        removed = 0
        with self._reaching():
            for hour in self._hours(""):
                if begin_of("/".join(hour.split("/")[-2:])) + HOUR_MS > end:
                    break
                below = list_folder(self.files, hour)
                ours = [info.path for info in below if Span.parse(info.base_name) is not None]
                for path in ours:
                    with contextlib.suppress(FileNotFoundError):
                        self.files.delete_file(path)
                        removed += 1
                if len(ours) == len(below):
                    self._remove_folder(hour)
                    day = hour.rpartition("/")[0]
                    if not list_folder(self.files, day):
                        self._remove_folder(day)
        return removed

    def hours(self, begin: int, end: int) -> list[int]:
        """Find the hours (ms) that may have rows with a time from `begin` to `end`, newest first.

        A row stands in the hour of its time.
        """
        with self._reaching():
            found = [begin_of(path) for path in self._hours(_hour(begin))]
        return sorted((hour for hour in found if hour < end), reverse=True)

    def of_hour(self, hour: int) -> list[OutcomeFile]:
        """Find the visible files of the hour that begins at `hour` (ms)."""
        folder = _hour(hour)
        with self._reaching():
            below = list_folder(self.files, f"{self._base}/{folder}")
        return [
            OutcomeFile(join(self.root, f"{folder}/{info.base_name}"), span, info)
            for info in below
            if (span := Span.parse(info.base_name)) is not None
        ]

    def fits(self, name: str, column: str, *, by_ids: bool = True) -> bool:
        """Whether a file has rows as this folder writes them today.

        These are rows of the same definition, with a column of that name, and with users as this
        folder names them, or `by_ids`. Raises as `schema_at`.
        """
        schema = schema_at(name)
        theirs = json.loads((schema.metadata or {}).get(b"streameval", "{}"))
        ours = json.loads(self.about)
        alike = theirs.get("pseudonymous") is ours["pseudonymous"]
        same = theirs.get("definition") == ours.get("definition")
        named = alike and not (by_ids and ours["pseudonymous"])
        return named and same and column in schema.names

    def unpublished(self, partition: int) -> list[str]:
        """Find the spans that were written hours ago and are not visible."""
        with self._reaching():
            return [
                span.name
                for info in list_folder(self.files, f"{self._base}/{PENDING}")
                if (span := Span.parse(info.base_name)) is not None
                and span.partition == partition
                and self._is_old(info.path)
            ]

    def _spans(self, partition: int, since: int | None) -> Iterator[tuple[str, Span]]:
        """The visible files of a partition in the hours from `since` (ms) on."""
        for hour in self._hours("" if since is None else _hour(since)):
            for info in list_folder(self.files, hour):
                span = Span.parse(info.base_name)
                if span is not None and span.partition == partition:
                    yield info.path, span

    def _hours(self, first: str) -> Iterator[str]:
        """The folders of hours from `first` (dt=…/hour=…) on; what else lies there is not ours."""
        for day in list_folder(self.files, self._base):
            is_day = day.type == fs.FileType.Directory and day.base_name.startswith("dt=")
            if is_day and day.base_name >= first.partition("/")[0]:
                for hour in list_folder(self.files, day.path):
                    name = f"{day.base_name}/{hour.base_name}"
                    if name >= first and hour.type == fs.FileType.Directory and _is_hour(name):
                        yield hour.path

    def _is_old(self, folder: str) -> bool:
        times = [
            info.mtime.timestamp()
            for info in list_folder(self.files, folder, recursive=True)
            if info.type == fs.FileType.File and info.mtime is not None
        ]
        return bool(times) and max(times) < time.time() - PENDING_SECONDS

    def _pending(self, name: str) -> str:
        return f"{self._base}/{PENDING}/{name}"

    def _reaching(self) -> contextlib.AbstractContextManager[None]:
        return reaching(self.root, "outcomes: ")

    def _make(self, folder: str) -> None:
        if self._location.has_folders:
            self.files.create_dir(folder)

    def _move(self, source: str, target: str) -> None:
        """Move a file; nothing where another worker has done so meanwhile."""
        try:
            try:
                self.files.move(source, target)
            except NotImplementedError:  # Azure's storage without a hierarchical namespace
                self.files.copy_file(source, target)
                self.files.delete_file(source)
        except OSError:  # object stores do not say in one way that the source is gone
            if self.files.get_file_info(source).type != fs.FileType.NotFound:
                raise

    def _remove_folder(self, path: str) -> None:
        try:
            self.files.delete_dir(path)
        except OSError:  # the same
            if self.files.get_file_info(path).type != fs.FileType.NotFound:
                raise

    def _read(self, path: str) -> bytes | None:
        try:
            with self.files.open_input_stream(path) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def _put(self, path: str, content: bytes) -> None:
        """Write a small file so that it is there whole or not at all."""
        passing = f"{path}.{secrets.token_hex(4)}"
        with self.files.open_output_stream(passing) as stream:
            stream.write(content)
        self._sync(passing)
        self._move(passing, path)

    def _above(self, path: str) -> list[str]:
        """The folders from `path` up to the root: each may have been made just now."""
        found = []
        while path != self._base:
            path = path.rpartition("/")[0]
            found.append(path)
        return found

    def _sync(self, *paths: str) -> None:
        """Have a local disk keep files and folders; object stores do so by themselves."""
        if isinstance(self.files, fs.LocalFileSystem):
            for path in paths:
                descriptor = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)


def _hour(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("dt=%Y-%m-%d/hour=%H")


def _is_hour(folder: str) -> bool:
    try:
        return _hour(begin_of(folder)) == folder
    except ValueError:
        return False


def begin_of(folder: str) -> int:
    """Return when the hour of a folder begins (ms); `_hour` names them."""
    day, hour = (part.partition("=")[2] for part in folder.split("/")[-2:])
    return round(datetime.fromisoformat(f"{day}T{hour}:00:00+00:00").timestamp() * 1000)
