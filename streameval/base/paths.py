"""What a path leads to, on every Python alike, and of what kind its name says that it is.

From Python 3.14 on, `Path.exists`, `is_file` and `is_dir` answer False where they cannot look: on a
folder that may not be entered, or a file server that is away. That must not pass for an absent
file: functions here raise OSError then.
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Final

COMPRESSIONS: Final = {".gz": "gzip", ".zst": "zstd"}
TABLES: Final = frozenset({".parquet", ".csv", ".tsv"})
"""How the names of files end that are tables, whoever reads them."""


def kind_of(path: str | Path) -> tuple[str, str | None]:
    """Return the end of a file's name that tells its kind, and how it is compressed."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    packed = COMPRESSIONS.get(suffixes[-1]) if suffixes else None
    return suffixes[-2 if packed else -1] if len(suffixes) > bool(packed) else "", packed


def exists(path: str | Path) -> bool:
    """Whether anything has this path."""
    return _mode(path) != 0


def is_file(path: str | Path) -> bool:
    """Whether the path leads to a regular file."""
    return stat.S_ISREG(_mode(path))


def is_folder(path: str | Path) -> bool:
    """Whether the path leads to a folder."""
    return stat.S_ISDIR(_mode(path))


def _mode(path: str | Path) -> int:
    """Return the mode of what the path leads to, 0 for nothing."""
    try:
        return Path(path).stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL in the path
        return 0
