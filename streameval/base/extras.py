"""Optional packages: what `pip install streameval` leaves out, and the extra that brings it.

`worker` and `replay` need none of them, but for the files that a worker writes.
"""

from __future__ import annotations

import json
import shlex
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from streameval.base.errors import InputError

EXTRAS: Final = {
    "pyarrow": "evaluate",
    "duckdb": "evaluate",
    "fastavro": "avro",
    "google.protobuf": "protobuf",
    "grpc_tools": "protobuf",
    "gssapi": "kerberos",
    "matplotlib": "report",
    "mcp": "mcp",
}
"""The extra that brings each optional package; a worker that writes files needs less."""
FILES: Final = "files"
"""The extra of a worker that writes outcome files or snapshots: pyarrow alone."""
NOTEBOOK: Final = "notebook"
"""The extra of the functions of `import streameval`."""
# What pip notes about an installation that came from no index (PEP 610).
_ORIGIN: Final = "direct_url.json"
_NAMES: Final = {
    "duckdb": "DuckDB",
    "google.protobuf": "protobuf",
    "grpc_tools": "grpcio-tools",
    "mcp": "the package mcp",
}


def is_installed(package: str) -> bool:
    """Tell whether an optional package is installed, without importing it."""
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # the package around it is missing
        return False


def install(extra: str) -> str:
    """Return the command that installs an extra, from where this installation came from."""
    try:
        found: dict[str, Any] = json.loads(distribution("streameval").read_text(_ORIGIN) or "{}")
    except PackageNotFoundError:  # run from a folder
        folder = Path(__file__).parents[2]
        found = {"url": folder.as_uri(), "dir_info": {"editable": True}}
    url = urlsplit(found.get("url", ""))
    if url.scheme == "file" and "vcs_info" not in found:
        editable = "-e " if found.get("dir_info", {}).get("editable") else ""
        return f"pip install {editable}" + shlex.quote(f"{unquote(url.path)}[{extra}]")
    source = f" @ {found['url']}" if url.scheme else ""
    if "vcs_info" in found:
        version = found["vcs_info"]
        source = f" @ {version['vcs']}+{found['url']}@{version['commit_id']}"
    return "pip install " + shlex.quote(f"streameval[{extra}]{source}")


def install_advice(user: str, package: str, extra: str = "") -> str:
    """Say in one line that `user` needs a package, and how to install it."""
    cure = install(extra or EXTRAS[package])
    return f"{user} needs {_NAMES.get(package, package)}, which is not installed: {cure}"


def require(user: str, package: str, extra: str = "") -> None:
    """Raise `InputError` where a package is missing; `user` is the part that needs it."""
    if not is_installed(package):
        raise InputError(install_advice(user, package, extra))
