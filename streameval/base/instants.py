"""Instants as people write them; all other code has integer ms since the epoch."""

from __future__ import annotations

import time
from datetime import datetime

from streameval.base.durations import ms_of
from streameval.base.errors import InputError
from streameval.base.limits import MAX_TS, MIN_TS


def instant(text: str, option: str = "--at") -> int:
    """Read a time as people write it, in ms since the epoch. Raises `InputError`."""
    try:
        ms = int(text) if text.isdecimal() else _rfc3339(text)
    except ValueError as error:
        raise InputError(
            f"{option} {text}: give milliseconds since the epoch or RFC 3339 with an offset, "
            "such as 2025-01-31T12:00:00Z"
        ) from error
    if not MIN_TS <= ms < MAX_TS:
        raise InputError(f"{option} {text}: give an instant from 2000 to 2099")
    return ms


def now() -> int:
    """Return the time of this machine, in ms since the epoch."""
    return time.time_ns() // 1_000_000


def _rfc3339(text: str) -> int:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("no offset")
    return ms_of(moment)
