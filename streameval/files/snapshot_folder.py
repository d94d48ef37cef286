"""The folder of snapshots: which there are, and what jobs left beside them.

The leader looks at it between batches, so nothing here needs pyarrow or DuckDB: they would cost a
worker 50 MB and a third of a second in which it counts nothing.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypedDict, TypeVar, cast

import msgspec

from streameval.base.errors import InputError
from streameval.files.locations import reaching

CHECKS: Final = "checks.json"
DAILY: Final = "daily.json"
_NAME: Final = re.compile(r"\d{8}T\d{6}Z-\d+")
T = TypeVar("T")


class LastResult(TypedDict):
    """What a leader needs of one result of `checks.json`.

    `unanswered_since`: the time (ms) of the first of the runs up to this one that had no answer
    although one was due; None where this one has, or none was due.
    """

    name: str
    severity: str
    passed: bool | None
    value: float | None
    seconds: float
    unanswered_since: int | None


class LastResults(TypedDict):
    """What a leader needs of `checks.json`; `time` in ms."""

    time: int
    checks: list[LastResult]


class DailyRate(TypedDict):
    """The rates of one kind of positive; a rate over no user is None."""

    feedback: str
    positive_rate: float | None
    positive_rate_gorse_v05: float | None


class Daily(TypedDict):
    """The document `daily.json`."""

    day: str
    fingerprint: str
    users: int
    rates: list[DailyRate]


def snapshots(root: Path) -> list[Path]:
    """The snapshots in a folder, oldest first. Raises `UnreachableError`."""
    with reaching(str(root), "snapshots: "):
        if not root.is_dir():
            return []
        found = [path for path in root.iterdir() if _NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: (path.name[:16], int(path.name[17:])))


def taken_at(snapshot: Path) -> float:
    """When a snapshot was taken, by its name: seconds since the epoch."""
    moment = datetime.strptime(snapshot.name[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    return moment.timestamp()


def earlier_than(snapshot: Path) -> list[Path]:
    """The snapshots beside this one that were taken before it, oldest first.

    None where its name is not a snapshot's: then nothing says when it was taken.
    """
    root = snapshot.parent
    if not _NAME.fullmatch(snapshot.name):
        return []
    return [path for path in snapshots(root) if taken_at(path) < taken_at(snapshot)]


def last_results(root: Path) -> LastResults | None:
    """The document of the newest snapshot that was checked; None where none was.

    Raises `InputError`, `UnreachableError`.
    """
    return _newest(root, CHECKS, LastResults)


def last_daily(root: Path) -> Daily | None:
    """What the newest snapshot has that has any. Raises `InputError`, `UnreachableError`."""
    return _newest(root, DAILY, Daily)


def _newest(root: Path, name: str, shape: type[T]) -> T | None:
    """What is attached by this name to the newest snapshot that has it; None where none has.

    Raises `InputError` where it is not of the shape (a TypedDict), `UnreachableError`.
    """
    for folder in reversed(snapshots(root)):
        path = folder / name
        with reaching(str(path), "snapshots: "):
            try:
                return document(path, shape)
            except FileNotFoundError:
                continue
            except ValueError as error:
                raise InputError(f"snapshots: {path} is damaged, remove it ({error})") from error
    return None


def document(path: Path, shape: type[T]) -> T:
    """The JSON of a file, all of it. Raises OSError, and ValueError where it lacks the shape."""
    found = json.loads(path.read_text(encoding="utf-8"))
    msgspec.convert(found, shape)
    return cast("T", found)
