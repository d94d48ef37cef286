"""The log of a worker: lines for people, or one JSON object a line for programs; to stderr.

Configured once, by the worker process; nothing else in the package touches logging's setup.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Final, Literal

# What these say at INFO is about themselves; their warnings we want.
_QUIET: Final = ("aiokafka", "asyncio", "faust", "kafka", "mode")


def configure(level: str, form: Literal["text", "json"]) -> None:
    """Log from `level` ("info", …) on, in `form`; libraries from warnings on."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if form == "json" else _TEXT)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


_TEXT: Final = logging.Formatter("%(asctime)s %(levelname)-7s %(message)s")


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
