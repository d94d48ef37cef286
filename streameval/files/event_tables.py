"""Rows of tables as the lines of an event file: what warehouses export."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from streameval.base.errors import InputError
from streameval.base.in_memory import InMemory
from streameval.base.paths import TABLES, kind_of

# pandas makes floats of whole numbers where a cell of the column is missing.
_WHOLE: Final = ("ts", "position")
_MICROSECONDS: Final = "us"
_ROWS: Final = 1_000
# A number, and how dates and times begin: no name of a column.
_VALUE: Final = re.compile(r"-?\d*\.?\d+\Z|\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}\b")


def with_rows(names: Sequence[str]) -> list[str]:
    """Return the names of event files; a table's has its rows as lines, read anew each time."""
    return [
        InMemory.of(name, _Rows(name))
        if kind_of(name)[0] in TABLES and not isinstance(name, InMemory)
        else name
        for name in names
    ]


class _Rows:
    """The rows of a table file, each a JSON object; before those of a text stands its header."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __iter__(self) -> Iterator[bytes]:
        from streameval.files.table_scans import table_file
        from streameval.files.tables import batches, connect, require_disk

        require_disk([self._name])
        with connect(self._name) as connection:
            try:
                table = table_file(connection, self._name)
            except OSError as error:
                raise InputError(f"cannot read {self._name}: {error.strerror}") from error
            if table.parsed:
                if values := [name for name in table.types if _VALUE.match(name)]:
                    raise InputError(
                        f"{self._name}: line 1 has values ({values[0]}) where the names of columns"
                        " belong: write a line with their names before it"
                    )
                yield b""
            for batch in batches(connection.sql(f"SELECT * FROM {table.scan}")):  # noqa: S608  # quoted
                yield from lines_of_rows(batch)


def lines_of_rows(rows: Any) -> Iterator[bytes]:
    """Yield each row of an Arrow table or batch as an event; a null cell is an absent field."""
    import pyarrow as pa

    cast = pa.schema([pa.field(f.name, _event_type(rows, f)) for f in rows.schema])
    cells = rows.cast(cast, safe=False)  # nanoseconds go
    for first in range(0, cells.num_rows, _ROWS):
        for row in cells.slice(first, _ROWS).to_pylist(maps_as_pydicts="lossy"):
            event = {name: value for name, value in row.items() if value is not None}
            yield line_of("a row", event)


def _event_type(rows: Any, field: Any) -> Any:
    """Return the type in which a column of events has the JSON that files have."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = field.type
    if pa.types.is_timestamp(kind):
        return pa.timestamp(_MICROSECONDS, kind.tz)
    if field.name in _WHOLE and pa.types.is_floating(kind):
        column = rows.column(field.name)
        if pc.all(pc.equal(column, pc.round(column))).as_py() is not False:
            return pa.int64()
    return kind


def line_of(name: str, event: Mapping[str, Any]) -> bytes:
    """Return an event as JSON. Raises `InputError` with its name."""
    try:
        return msgspec.json.encode(event, enc_hook=_plain)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: cannot be written as JSON: {error}") from error


def _plain(value: Any) -> Any:
    """Return a value of numpy or pandas as one of Python's own."""
    if isinstance(value, datetime):
        return value.isoformat()
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no form in JSON")
