"""Rows of tables as the lines of an event file, and folders of parts: what warehouses export."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from streameval.base.errors import InputError
from streameval.base.extras import require
from streameval.base.in_memory import InMemory
from streameval.base.paths import TABLES, is_folder, kind_of
from streameval.profiles.binary_values import as_json, text_of_bytes

# pandas makes floats of whole numbers where a cell of the column is missing.
_WHOLE: Final = ("ts", "position")
_MICROSECONDS: Final = "us"
_ROWS: Final = 1_000
_FLOAT: Final = r"^-?\d+\.0$"
# A number, and how dates and times begin: no name of a column.
_VALUE: Final = re.compile(r"-?\d*\.?\d+\Z|\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}\b")


def with_rows(names: Sequence[str]) -> list[str]:
    """Return the names of event files; a table's has its rows as lines, read anew each time.

    A folder stands for the files below it in the order of their names, but for those with a point
    or an underscore in front. Raises `InputError` for one without files.
    """
    return [
        InMemory.of(name, _Rows(name, read))
        if (read := _READERS.get(kind_of(name)[0])) and not isinstance(name, InMemory)
        else name
        for given in names
        for name in _files_of(given)
    ]


def _files_of(name: str) -> list[str]:
    """Return the name of a file, or of the files below a folder."""
    try:
        if isinstance(name, InMemory) or not is_folder(name):
            return [name]
        folder = Path(name)
        found = sorted(path for path in folder.rglob("*") if path.is_file())
    except OSError:
        return [name]  # whoever opens it is told why that cannot be
    parts = [
        str(path)
        for path in found
        if not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)
    ]
    if not parts:
        raise InputError(f"{name}: a folder without files of events")
    return parts


class _Rows:
    """The rows of a file, each a JSON object."""

    def __init__(self, name: str, read: Callable[[str], Iterator[bytes]]) -> None:
        self._name, self._read = name, read

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._read(self._name)
        except OSError as error:
            raise InputError(f"cannot read {self._name}: {error.strerror or error}") from error


def _of_table(name: str) -> Iterator[bytes]:
    """Yield the rows of a table; before those of a text stands its header, as an empty line."""
    from streameval.files.table_scans import table_file
    from streameval.files.tables import batches, connect, require_disk

    require_disk([name])
    with connect(name) as connection:
        table = table_file(connection, name)
        if table.parsed:
            if values := [column for column in table.types if _VALUE.match(column)]:
                raise InputError(
                    f"{name}: line 1 has values ({values[0]}) where the names of columns belong:"
                    " write a line with their names before it"
                )
            yield b""
        found = batches(connection.sql(f"SELECT * FROM {table.scan}"))  # noqa: S608  # quoted
        for rows in _without_zeros(found) if table.parsed else found:
            yield from lines_of_rows(rows)


def _without_zeros(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield batches of texts, with 7 for 7.0 in a column that pandas made floats of.

    It does so where numbers are missing. The first batch with numbers tells it for all later ones.
    """
    import pyarrow.compute as pc

    gaps, are_floats = set[str](), dict[str, bool]()
    for rows in batches:
        whole = rows
        for at, name in enumerate(rows.schema.names):
            texts = rows.column(at)
            if texts.null_count:
                gaps.add(name)
            if name not in are_floats and texts.null_count < len(texts):
                matches = pc.match_substring_regex(texts, _FLOAT)
                are_floats[name] = name in gaps and pc.all(matches).as_py()
            if are_floats.get(name):
                whole = whole.set_column(at, name, pc.replace_substring_regex(texts, r"\.0$", ""))
        yield whole


def _of_avro(name: str) -> Iterator[bytes]:
    """Yield the records of a file in Avro."""
    require("a file in Avro", "fastavro", "avro")
    import fastavro

    with Path(name).open("rb") as file:
        try:
            for record in fastavro.reader(file):
                yield line_of(name, as_json(record))
        except (ValueError, TypeError, KeyError, EOFError, IndexError) as error:
            why = str(error).partition("\n")[0] or type(error).__name__
            raise InputError(f"{name}: cannot be read as Avro: {why}") from error


_READERS: Final = dict.fromkeys(TABLES, _of_table) | {".avro": _of_avro}


def lines_of_rows(rows: Any) -> Iterator[bytes]:
    """Yield each row of an Arrow table or batch as an event; a null cell is an absent field."""
    import pyarrow as pa

    cast = pa.schema([pa.field(f.name, _event_type(rows, f)) for f in rows.schema])
    cells = rows.cast(cast, safe=False)  # nanoseconds go
    has_bytes = any("binary" in str(field.type) for field in cells.schema)
    for first in range(0, cells.num_rows, _ROWS):
        for row in cells.slice(first, _ROWS).to_pylist(maps_as_pydicts="lossy"):
            event = {name: value for name, value in row.items() if value is not None}
            yield line_of("a row", _with_texts(event) if has_bytes else event)


def _with_texts(value: Any) -> Any:
    """Return a value with texts for bytes: many programs that write Parquet call texts binary."""
    if isinstance(value, dict):
        return {name: _with_texts(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_texts(each) for each in value]
    return text_of_bytes(value) if isinstance(value, bytes) else value


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
