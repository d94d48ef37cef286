"""The files of the live page: own scripts and styles, and uPlot where the build could fetch it.

They are read once, when the module is imported. A browser asks again each time, and is told by the
ETag that nothing has changed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

_TYPES: Final = {
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}

CHARTS: Final = "uPlot.iife.min.js"
"""The script that draws charts; a checkout that was built without npm lacks it."""


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file as it is sent."""

    body: bytes
    content_type: str
    etag: str


def _read() -> dict[str, StaticFile]:
    folder = files("streameval.web") / "static"
    uplot = folder / "uplot"
    found = {}
    for each in (*folder.iterdir(), *(uplot.iterdir() if uplot.is_dir() else ())):
        content_type = _TYPES.get(each.name.rpartition(".")[2])
        if content_type and each.is_file():
            body = each.read_bytes()
            etag = hashlib.sha256(body).hexdigest()[:16]
            found[each.name] = StaticFile(body, content_type, etag)
    return dict(sorted(found.items()))


STATIC: Final = _read()
"""By name."""
