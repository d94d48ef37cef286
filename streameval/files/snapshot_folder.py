"""The folder of snapshots, and the results that jobs left beside them.

The leader looks at it between batches, so nothing here needs pyarrow or DuckDB: they would cost a
worker 50 MB and a third of a second in which it counts nothing.
"""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypedDict, TypeVar, cast

import msgspec

from streameval.base.errors import InputError
from streameval.base.paths import is_file, is_folder
from streameval.files.locations import MARKER, reaching, require_owner

CHECKS: Final = "checks.json"
DAILY: Final = "daily.json"
NAME: Final = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9]+")
T = TypeVar("T")


class LastResult(TypedDict):
    """The part of a result of `checks.json` that a leader needs.

    `unanswered_since`: the check may have been due and without an answer in the runs up to this
    one. This is the time (ms) of the first such run, and None where there was an answer or none
    was due.
    """

    name: str
    severity: str
    passed: bool | None
    value: float | None
    seconds: float
    message: str
    unanswered_since: int | None


class LastResults(TypedDict):
    """The part of `checks.json` that a leader needs; `time` in ms."""

    time: int
    checks: list[LastResult]


class DailyRate(TypedDict):
    """The rates of one kind of positive; a rate without users is None."""

    feedback: str
    daily_positive_rate: float | None
    daily_positive_rate_gorse_v05: float | None


class Daily(TypedDict):
    """The document `daily.json`."""

    day: str
    fingerprint: str
    users: int
    rates: list[DailyRate]


def claim(root: Path, owner: dict[str, str]) -> None:
    """Make a folder of snapshots ours.

    Raises `RefusedError` where it is another deployment's, `UnreachableError`.
    """
    marker = root / MARKER
    with reaching(str(root), "snapshots: "):
        root.mkdir(parents=True, exist_ok=True)
        known = marker.read_bytes() if is_file(marker) else None
        if known is None:
            passing = root / f"_{os.getpid()}-{MARKER}"
            passing.write_text(json.dumps(owner), encoding="utf-8")
            passing.rename(marker)
    if known is not None:
        require_owner(f"snapshots: {root}", known, owner)


def snapshots(root: Path) -> list[Path]:
    """The snapshots in a folder, oldest first. Raises `UnreachableError`."""
    with reaching(str(root), "snapshots: "):
        if not is_folder(root):
            return []
        found = [path for path in root.iterdir() if NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: (path.name[:16], int(path.name[17:])))


def taken_at(snapshot: Path) -> float:
    """When a snapshot was taken, by its name: seconds since the epoch."""
    moment = datetime.strptime(snapshot.name[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    return moment.timestamp()


def earlier_than(snapshot: Path) -> list[Path]:
    """List the snapshots beside this one that were taken before it, oldest first.

    The list is empty for a folder with another name, which does not tell its time.
    """
    root = snapshot.parent
    if not NAME.fullmatch(snapshot.name):
        return []
    return [path for path in snapshots(root) if taken_at(path) < taken_at(snapshot)]


def last_results(root: Path) -> LastResults | None:
    """Return the results of the newest snapshot that was checked, or None.

    Raises `InputError`, `UnreachableError`.
    """
    return _newest(root, CHECKS, LastResults)


def last_daily(root: Path) -> Daily | None:
    """Return the newest daily rates of all snapshots. Raises `InputError`, `UnreachableError`."""
    return _newest(root, DAILY, Daily)


def _newest(root: Path, name: str, shape: type[T]) -> T | None:
    """Return the document of this name from the newest snapshot that has one, or None.

    Raises `InputError` for a document of another shape (a TypedDict), `UnreachableError`.
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
