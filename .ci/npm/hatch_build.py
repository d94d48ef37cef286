"""Puts uPlot, which draws the charts of the live page, beside the page's own files.

npm fetches it and checks it against the hash of package-lock.json. Without npm, or without a
registry that answers, the build goes on: the page then shows tables and says what it lacks.
"""

from __future__ import annotations

import gzip
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = Path(".ci/npm")
TARGET = Path("streameval/web/static/uplot")
RUNBOOK = Path("docs/operations.md")
FILES = {
    "dist/uPlot.iife.min.js": "uPlot.iife.min.js",
    "dist/uPlot.min.css": "uPlot.min.css",
    "LICENSE": "LICENSE",
}
COMMAND = ["ci", "--omit=dev", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]


class BuildHook(BuildHookInterface[Any]):
    """The hook that hatchling runs before it collects the files of the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Pack the runbook in, and fetch uPlot anew, so that no build carries an older one."""
        root = Path(self.root)
        if version != "editable":
            self._folder = TemporaryDirectory()  # it goes when the build ends
            packed = Path(self._folder.name, "operations.md.gz")
            packed.write_bytes(gzip.compress((root / RUNBOOK).read_bytes(), mtime=0))
            build_data["force_include"][str(packed)] = "streameval/web/operations.md.gz"
        shutil.rmtree(root / TARGET, ignore_errors=True)
        lacking = _fetch(root / HERE, root / TARGET)
        if lacking:
            self.app.display_warning(
                f"{lacking}: the charts of the live page will be tables; install npm and build"
                " again to have them"
            )


def _fetch(described: Path, target: Path) -> str:
    """Copy uPlot to `target`; return why that could not be done, or ""."""
    npm = shutil.which("npm")
    if npm is None:
        return "npm is missing"
    with TemporaryDirectory() as folder:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(described / name, folder)
        ran = subprocess.run(
            [npm, *COMMAND], cwd=folder, check=False, capture_output=True, text=True
        )
        if ran.returncode:
            return f"npm ci failed ({' '.join(ran.stderr.split())[:300]})"
        package = Path(folder) / "node_modules" / "uplot"
        if not all((package / source).exists() for source in FILES):
            return f"{npm} is no npm: it brought no uPlot"
        target.mkdir(parents=True)
        for source, name in FILES.items():
            shutil.copy(package / source, target / name)
    return ""
