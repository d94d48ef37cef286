"""Checks of the columns of outcome files: their types, no gaps, lists of one length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streameval.base.errors import InputError
from streameval.files.outcome_files import COLUMNS

NEVER_NULL = ("user", "time", "items", "ranks", "gains", "scores")
"""Columns that every row needs; items in lists may lack a score."""


def require_types(path: str, schema: Any, columns: Sequence[str]) -> None:
    """Raise `InputError` for a column of another type than outcome files have."""
    for name in columns:
        meant = COLUMNS.field(name).type if name in COLUMNS.names else pa.string()
        found = schema.field(name).type
        if not _same(found, meant):
            raise InputError(f"{path}: column {name} is {found}, and {meant} in outcome files")


def _same(found: Any, meant: Any) -> bool:
    if pa.types.is_list(meant) and (pa.types.is_list(found) or pa.types.is_large_list(found)):
        return bool(found.value_type == meant.value_type)
    return bool(found == meant)


def require_rows(path: str, record: Any) -> None:
    """Raise `InputError` for a row without a value, or with lists by item of unequal lengths.

    `record` is an Arrow batch of columns that have passed `require_types`.
    """
    first, lengths = "", None
    for name in record.schema.names:
        column = record.column(name)
        if name in NEVER_NULL and column.null_count:
            raise InputError(f"{path}: column {name} has rows without a value")
        is_list = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
        if not is_list or name == "feedback":
            continue
        values = column.flatten()
        if name != "scores" and values.null_count:
            raise InputError(f"{path}: column {name} has lists with a gap")
        if name == "gains" and pc.all(pc.is_finite(values)).as_py() is False:
            raise InputError(f"{path}: column gains has values that are not finite")
        found = pc.list_value_length(column).cast(pa.int64())
        if lengths is None:
            first, lengths = name, found
        elif not found.equals(lengths):
            raise InputError(f"{path}: columns {first} and {name} have lists of unequal lengths")
