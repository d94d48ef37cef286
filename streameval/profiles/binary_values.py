"""Values that readers of binary formats find, as JSON would have them."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from streameval.base.durations import ms_of


def text_of_bytes(value: bytes) -> str:
    """Return bytes of a binary format as text: UTF-8, or hexadecimal where they are none.

    So two ids stay two.
    """
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.hex()


def as_json(value: Any) -> Any:
    """Return a value as JSON has it; times are ms since the epoch."""
    if isinstance(value, dict):
        return {key: as_json(each) for key, each in value.items()}
    if isinstance(value, list):
        return [as_json(each) for each in value]
    if isinstance(value, datetime):
        return ms_of(value if value.tzinfo else value.replace(tzinfo=UTC))
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, UUID | date | time):
        return str(value)
    return text_of_bytes(value) if isinstance(value, bytes) else value
