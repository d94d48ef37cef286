"""The columns of outcome files: their types, no gaps, lists of one length; and rows in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from streameval.base.errors import InputError
from streameval.base.limits import MAX_LATENCY
from streameval.files.arrow_arrays import is_text
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
        if name in _CHECKED:
            _CHECKED[name](path, column)
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


def _require_feedback(path: str, column: Any) -> None:
    entries = column.flatten()
    for field, values in zip(entries.type, entries.flatten(), strict=True):
        if values.null_count:
            raise InputError(f"{path}: column feedback has a {field.name} without a value")
        if pa.types.is_floating(field.type) and pc.all(pc.is_finite(values)).as_py() is False:
            raise InputError(f"{path}: column feedback has a {field.name} that is not finite")


def _require_latencies(path: str, column: Any) -> None:
    known = pc.drop_null(column)
    sound = pc.and_(pc.greater_equal(known, 0), pc.less_equal(known, MAX_LATENCY))
    if pc.all(sound).as_py() is False:
        raise InputError(f"{path}: column latency_ms has values that are not a latency")


_CHECKED: Final = {"feedback": _require_feedback, "latency_ms": _require_latencies}


class OutcomeTable:
    """Rows of outcome files that are in memory, with the interface of a Parquet file.

    Every library has types of its own for text, lists and times. Columns get the types of outcome
    files where that loses nothing; `require_types` refuses the others.
    """

    num_row_groups: Final = 1

    def __init__(self, name: str, table: Any) -> None:
        self._name, self._table = name, table
        self.schema_arrow = pa.schema([(f.name, _meant_type(f)) for f in table.schema])

    def has_null(self, column: str) -> bool:
        """Tell whether a column has a null."""
        return bool(self._table.column(column).null_count)

    def read_row_group(self, _group: int, *, columns: Sequence[str], use_threads: bool) -> Any:  # noqa: ARG002  # as Parquet files have it
        """Return columns of all rows. Raises `InputError`."""
        cells = []
        for name in columns:
            kind = self.schema_arrow.field(name).type
            try:
                cells.append(self._table.column(name).cast(kind))
            except pa.ArrowException as error:
                said = str(error).splitlines()[0]
                raise InputError(f"{self._name}: column {name} is not {kind}: {said}") from error
        return pa.table(cells, names=list(columns))


def _meant_type(field: Any) -> Any:
    """Return the type in outcome files of a column that can have it, else its own."""
    if field.name not in COLUMNS.names:
        return pa.string() if is_text(field.type) else field.type
    meant = COLUMNS.field(field.name).type
    return meant if _is_nested(field.type) == _is_nested(meant) else field.type


def _is_nested(kind: Any) -> bool:
    return bool(pa.types.is_nested(kind) and not pa.types.is_dictionary(kind))
