"""The work folder of a backfill, `FILE.partial` beside its output: samples, and the state to go on.

OpenMetrics wants all samples of a series together, and the run makes them step by step. SQLite
takes them in this order and sorts them on disk, so memory holds neither. The state decides: samples
that are later than the state on disk are made again.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from streameval.base.errors import InputError
from streameval.base.paths import exists
from streameval.web import openmetrics

if TYPE_CHECKING:
    from streameval.core.figures import ShownSegments
    from streameval.core.partition import Partition
    from streameval.web.openmetrics import Sample

    State: TypeAlias = tuple[int, list[tuple[Partition, int]], ShownSegments]
    """The index of the time under way, partitions with their next records, and shown segments."""

# Raise it where objects that a partition is made of change: a folder holds them as they are.
FORMAT: Final = 2

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS request (text TEXT);
CREATE TABLE IF NOT EXISTS family (number INTEGER PRIMARY KEY, name TEXT UNIQUE, help TEXT);
CREATE TABLE IF NOT EXISTS series (number INTEGER PRIMARY KEY, family INTEGER, text TEXT UNIQUE);
CREATE TABLE IF NOT EXISTS sample (series INTEGER, time INTEGER, value REAL);
"""
_SORTED: Final = """
SELECT family.name, family.help, series.text, sample.time, sample.value
FROM sample JOIN series ON sample.series = series.number
JOIN family ON series.family = family.number
ORDER BY series.family, series.text, sample.time
"""
# The temporary tables of the sort go to disk beyond this many KiB.
_CACHE_KIB: Final = 65_536


class WorkFolder:
    """The folder of one output file, open for the length of a `with`.

    Raises `InputError` where it cannot be used, for instance by two runs at a time.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        self._folder = target.with_name(f"{target.name}.partial")
        self._state = self._folder / "state"

    def __enter__(self) -> Self:
        """Make the folder, or take the one that is there."""
        with self._reported():
            self._folder.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(self._folder / "samples", timeout=1)
            self._database.executescript(_TABLES)
            self._database.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            self._families = dict(self._database.execute("SELECT name, number FROM family"))
            self._series = dict(self._database.execute("SELECT text, number FROM series"))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the database; work that was not saved is made again."""
        self._database.close()
        with self._reported():
            if error is not None:
                raise error

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            raise InputError(f"{self._folder} cannot be used: {error}") from error

    def agree(self, request: dict[str, Any]) -> Mapping[str, Any]:
        """Return the request that the folder was made for, with the `extents` of its beginning.

        Raises `InputError` where the other keys differ.
        """
        found = self._database.execute("SELECT text FROM request").fetchone()
        if found is None:
            with self._database:
                text = json.dumps(request | {"format": FORMAT})
                self._database.execute("INSERT INTO request VALUES (?)", [text])
            return request
        before: dict[str, Any] = json.loads(found[0])
        plain: dict[str, Any] = json.loads(json.dumps(request)) | {"format": FORMAT}
        changed = [key for key in plain if key != "extents" and plain[key] != before.get(key)]
        if changed:
            raise InputError(
                f"{self._folder} was begun with other {', '.join(changed)}: delete it, or name"
                " another --output"
            )
        return before

    def load(self) -> State | None:
        """Return the last saved state; None at the beginning."""
        if not exists(self._state):
            return None
        with self._state.open("rb") as file:
            state: State = pickle.load(file)  # noqa: S301  # we wrote it, beside our output
        return state

    def save(self, state: State) -> float:
        """Keep the state on disk, after all samples so far; return the seconds it took."""
        began = time.monotonic()
        self._database.commit()
        fresh = self._state.with_suffix(".new")
        with fresh.open("wb") as file:
            pickle.dump(state, file, pickle.HIGHEST_PROTOCOL)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._state)
        return time.monotonic() - began

    def forget_from(self, moment: int) -> None:
        """Drop the samples that a killed run made after its state was saved."""
        with self._database:
            self._database.execute("DELETE FROM sample WHERE time >= ?", [moment])

    def add(self, moment: int, samples: Iterable[Sample]) -> None:
        """Add the samples of one step."""
        rows = []
        for sample in samples:
            number = self._series.get(sample.series)
            if number is None:
                number = self._new_series(sample)
            rows.append((number, moment, sample.value))
        self._database.executemany("INSERT INTO sample VALUES (?, ?, ?)", rows)

    def _new_series(self, sample: Sample) -> int:
        family = self._families.get(sample.family)
        if family is None:
            family = self._families[sample.family] = len(self._families)
            row = (family, sample.family, sample.text)
            self._database.execute("INSERT INTO family VALUES (?, ?, ?)", row)
        number = self._series[sample.series] = len(self._series)
        self._database.execute(
            "INSERT INTO series VALUES (?, ?, ?)", (number, family, sample.series)
        )
        return number

    def finish(self) -> tuple[int, int]:
        """Write the OpenMetrics and remove the folder; return the numbers of series and samples."""
        self._database.commit()
        fresh = self._folder / "openmetrics"
        family, before, series, samples = "", "", 0, 0
        with fresh.open("w", encoding="utf-8") as file:
            for name, text, each, moment, value in self._database.execute(_SORTED):
                if name != family:
                    file.write(openmetrics.header(name, text))
                    family = name
                file.write(openmetrics.line(each, value, moment // 1000))
                series += each != before
                before = each
                samples += 1
            file.write(openmetrics.END)
        self._database.close()
        fresh.replace(self._target)
        shutil.rmtree(self._folder)
        return series, samples
