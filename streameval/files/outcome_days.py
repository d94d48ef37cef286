"""Rows of outcome files by their days, for those who read them again and again.

A worker writes a file for each partition and checkpoint: with twelve partitions some 35,000 a day.
To open one costs more than its few rows, and pyarrow keeps 70 KB of each that it has read. So an
hour of many files is copied into one, which the next reader finds:

    <copies>/dt=2026-01-31/hour=07/<digest>.parquet

The digest is of the files that lie in the hour, so a copy of others (before a store went back, or
while rows were still to come) is not used; `discard_unused` removes it. Only the days that are
asked for are listed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet

from streameval.base.errors import InputError, UnreachableError
from streameval.files.locations import (
    NoFileError,
    join,
    list_folder,
    open_location,
    reaching,
    require_bucket,
)
from streameval.files.outcome_files import opened, schema_of
from streameval.files.outcome_reader import UnreadableError, whole_rows

if TYPE_CHECKING:
    from pyarrow import fs
    from pyarrow.dataset import Dataset

COPIES: Final = "_hours"
"""The folder of the leader's copies, beside its snapshots."""
FEW: Final = 4  # files of an hour that are read as they are
_DAY: Final = re.compile(r"dt=\d{4}-\d\d-\d\d")
_NEEDED: Final = ("user", "items", "ranks", "gains", "feedback")
# Footers that are asked for at a time: a store takes tens of milliseconds for each.
_AT_ONCE: Final = 8


def unreadable(subject: str, said: str, *, is_away: bool) -> UnreadableError | UnreachableError:
    """Return the error of a file that cannot be read: it is damaged, or its store is away."""
    wrong = UnreachableError if is_away else UnreadableError
    return wrong(f"{subject}: a file cannot be read ({said})")


class OutcomeDays:
    """The visible outcome files below `root` (a folder or URI), with a column for each dimension.

    `days` are those that have a folder (`2026-01-31`), in order. A file without one of the
    dimensions has null for it. `copies` is a folder on disk; `subject` begins the line of an error.
    Raises `InputError` for a URI of no file system, `UnreachableError`.
    """

    def __init__(
        self, root: str, dimensions: Sequence[str], copies: Path, subject: str = "outcomes"
    ) -> None:
        self._root, self._dimensions, self._subject = root, tuple(dimensions), subject
        self._copies = open_location(str(copies))
        self._opened: dict[str, list[Dataset]] = {}
        with reaching(root, f"{subject}: "):
            self._location = open_location(root)
            found = [info.base_name for info in list_folder(*self._location) if not info.is_file]
            self.days = [name.removeprefix("dt=") for name in found if _DAY.fullmatch(name)]
            if not self.days:
                require_bucket(self._location)

    def dataset(self, first: str, last: str) -> Dataset:
        """Open all rows of the days from `first` to `last`, with `dt` and `hour` as columns.

        Raises `InputError` for a file of another shape, `UnreadableError` for one that is damaged,
        `UnreachableError`.
        """
        # Not with this module: it imports pandas where that is installed, for most of a second.
        from pyarrow import dataset as datasets

        chosen = [day for day in self.days if first <= day <= last]
        for day in chosen:
            if day not in self._opened:
                self._opened[day] = self._open(day)
        found = [part for day in chosen for part in self._opened[day]]
        return datasets.dataset(found or [opened((), self._location, self._dimensions)])

    def _open(self, day: str) -> list[Dataset]:
        """Open the files of a day, or the copy of them where an hour has many."""
        files, base = self._location
        hours: dict[str, list[fs.FileInfo]] = defaultdict(list)
        with reaching(self._root, f"{self._subject}: "):
            for info in list_folder(files, f"{base}/dt={day}", recursive=True):
                if info.is_file and info.path.endswith(".parquet"):
                    hours[info.path.removeprefix(f"{base}/").rpartition("/")[0]].append(info)
        few = [info.path for infos in hours.values() if len(infos) <= FEW for info in infos]
        self._require_columns(few)
        found = [opened(few, self._location, self._dimensions)] if few else []
        copies = [self.copy(infos) for infos in hours.values() if len(infos) > FEW]
        if copies:
            found.append(opened(copies, self._copies, self._dimensions))
        return found

    def copy(
        self,
        infos: Sequence[fs.FileInfo],
        is_wanted: Callable[[fs.FileInfo], bool] | None = None,
        by: str = "",
    ) -> str:
        """Name the copy of files of one hour; it is written where it is not there.

        It has the rows of all, or of those that `is_wanted` (called in threads) chooses; `by` says
        how. Raises as `dataset`.
        """
        names = [info.path for info in infos]
        hour = names[0].removeprefix(f"{self._location.path}/").rpartition("/")[0]
        of = [(info.path, info.size, info.mtime_ns) for info in infos]
        known = repr((self._root, self._dimensions, by, of)).encode()
        path = Path(self._copies.path, hour) / f"{hashlib.sha256(known).hexdigest()}.parquet"
        now = time.time()
        with reaching(str(path)):
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                passing = path.with_name(f"_{os.getpid()}-{path.name}")
                try:
                    self._write(passing, names if is_wanted is None else _wanted(infos, is_wanted))
                    passing.rename(path)
                finally:
                    passing.unlink(missing_ok=True)
            os.utime(path, (now, now))
        return str(path)

    def _write(self, path: Path, names: Sequence[str]) -> None:
        schema = schema_of(self._dimensions)
        files = [join(self._root, name.removeprefix(f"{self._location.path}/")) for name in names]
        with path.open("wb") as file:
            with pa.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
                for rows in self._readable(whole_rows(files, schema, _NEEDED)):
                    writer.write_table(rows)
            file.flush()
            os.fsync(file.fileno())

    def _require_columns(self, names: Sequence[str]) -> None:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            read = partial(columns_of, files=self._location.files)
            for name, known in zip(names, pool.map(read, names), strict=True):
                for column in _NEEDED:
                    if column not in known:
                        raise InputError(
                            f"{self._subject}: {name}: no column {column}: not an outcome file"
                        )

    def _readable(self, rows: Iterator[pa.Table]) -> Iterator[pa.Table]:
        try:
            yield from rows
        except (NoFileError, UnreachableError, UnreadableError) as error:
            away = not isinstance(error, UnreadableError)
            raise unreadable(self._subject, str(error), is_away=away) from error


def _wanted(infos: Sequence[fs.FileInfo], is_wanted: Callable[[fs.FileInfo], bool]) -> list[str]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return [
            info.path for info, yes in zip(infos, pool.map(is_wanted, infos), strict=True) if yes
        ]


def columns_of(name: str, files: fs.FileSystem) -> Sequence[str]:
    """Name the columns of an outcome file; of a damaged one those that each has."""
    try:
        known: Sequence[str] = pa.parquet.read_schema(name, filesystem=files).names
    except (pa.ArrowException, OSError):
        return _NEEDED  # whoever reads the rows tells of it
    return known


def discard_unused(copies: Path, since: float) -> None:
    """Remove the copies that nobody has used since a time (seconds since the epoch).

    Raises `UnreachableError`.
    """
    with reaching(str(copies), "snapshots: "):
        for path in sorted(copies.rglob("*"), reverse=True):  # what lies in a folder before it
            with contextlib.suppress(FileNotFoundError):
                if path.is_dir():
                    with contextlib.suppress(OSError):  # it is not empty
                        path.rmdir()
                elif path.stat().st_mtime < since:
                    path.unlink()
