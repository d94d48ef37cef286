"""Optional packages: what `pip install streameval` leaves out, and the extra that brings it.

`worker` and `replay` need none of them, but for the files that a worker writes.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from streameval.base.errors import InputError

EXTRAS: Final = {
    "pyarrow": "evaluate",
    "duckdb": "evaluate",
    "matplotlib": "report",
    "grafana_foundation_sdk": "dashboards",
    "mcp": "mcp",
}
"""The extra that brings each optional package; a worker that writes files needs less."""
FILES: Final = "files"
"""The extra of a worker that writes outcome files or snapshots: pyarrow alone."""
NOTEBOOK: Final = "notebook"
"""The extra of the functions of `import streameval`."""
_NAMES: Final = {
    "duckdb": "DuckDB",
    "grafana_foundation_sdk": "grafana-foundation-sdk",
    "mcp": "the package mcp",
}


def installed(package: str) -> bool:
    """Tell whether an optional package is installed, without importing it."""
    return find_spec(package) is not None


def install(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install 'streameval[{extra}]'"


def needed(user: str, package: str, extra: str = "") -> str:
    """Say in one line that `user` needs a package, and how to install it."""
    cure = install(extra or EXTRAS[package])
    return f"{user} needs {_NAMES.get(package, package)}, which is not installed: {cure}"


def require(user: str, package: str, extra: str = "") -> None:
    """Raise `InputError` where a package is missing; `user` is the part that needs it."""
    if not installed(package):
        raise InputError(needed(user, package, extra))
