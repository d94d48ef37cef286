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
    UnreadableError,
    join,
    list_folder,
    open_location,
    reaching,
    redact,
    require_bucket,
)
from streameval.files.outcome_files import OutcomeFile, opened, schema_at, schema_of
from streameval.files.outcome_reader import whole_rows

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
        few = [info for infos in hours.values() if len(infos) <= FEW for info in infos]
        self._require_columns(self._names(few))
        paths = [info.path for info in few]
        found = [opened(paths, self._location, self._dimensions)] if few else []
        many = [infos for infos in hours.values() if len(infos) > FEW]
        copies = [self._copy(infos, partial(self._names, infos)) for infos in many]
        if copies:
            found.append(opened(copies, self._copies, self._dimensions))
        return found

    def names(
        self, files: Sequence[OutcomeFile], is_wanted: Callable[[str], bool], by: str
    ) -> list[str]:
        """Name the files of an hour that `is_wanted` chooses by name, or one copy of their rows.

        There is a copy where an hour has many. `is_wanted` is called in threads; `by` says how it
        chooses. Raises as `dataset`.
        """
        choose = partial(_wanted, [file.name for file in files], is_wanted)
        if len(files) <= FEW:
            return choose()
        return [self._copy([file.info for file in files], choose, by)]

    def _copy(
        self, infos: Sequence[fs.FileInfo], choose: Callable[[], list[str]], by: str = ""
    ) -> str:
        """Name the copy of files of one hour; one that is not there is made of those chosen."""
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
                    self._write(passing, choose())
                    passing.rename(path)
                finally:
                    passing.unlink(missing_ok=True)
            os.utime(path, (now, now))
        return str(path)

    def _write(self, path: Path, names: Sequence[str]) -> None:
        schema = schema_of(self._dimensions)
        with path.open("wb") as file:
            with pa.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
                for rows in self._readable(whole_rows(names, schema, _NEEDED)):
                    writer.write_table(rows)
            file.flush()
            os.fsync(file.fileno())

    def _names(self, infos: Sequence[fs.FileInfo]) -> list[str]:
        base = f"{self._location.path}/"
        return [join(self._root, info.path.removeprefix(base)) for info in infos]

    def _require_columns(self, names: Sequence[str]) -> None:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for name, known in zip(names, pool.map(_columns_of, names), strict=True):
                for column in _NEEDED:
                    if column not in known:
                        raise InputError(
                            f"{self._subject}: {redact(name)}: no column {column}: not an outcome"
                            " file"
                        )

    def _readable(self, rows: Iterator[pa.Table]) -> Iterator[pa.Table]:
        try:
            yield from rows
        except (NoFileError, UnreachableError, UnreadableError) as error:
            away = not isinstance(error, UnreadableError)
            raise unreadable(self._subject, str(error), is_away=away) from error


def _wanted(names: Sequence[str], is_wanted: Callable[[str], bool]) -> list[str]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return [name for name, yes in zip(names, pool.map(is_wanted, names), strict=True) if yes]


def _columns_of(name: str) -> Sequence[str]:
    try:
        known: Sequence[str] = schema_at(name).names
    except (InputError, UnreachableError):
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
