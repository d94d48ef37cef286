"""Optional packages: DuckDB, which only `evaluate`, `check` and scheduled checks need."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from streameval.base.errors import InputError

INSTALL: Final = "pip install 'streameval[evaluate]'"


def has_duckdb() -> bool:
    """Tell whether DuckDB is installed, without importing it."""
    return find_spec("duckdb") is not None


def require_duckdb(user: str) -> None:
    """Raise `InputError` where DuckDB is missing; `user` is the part that needs it."""
    if not has_duckdb():
        raise InputError(f"{user} needs DuckDB, which is not installed: {INSTALL}")
