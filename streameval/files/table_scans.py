"""How DuckDB reads one file of a table, or a table in memory: the SQL of the scan, its columns.

CSV and JSON Lines are read without guesses at types: an id is the text that was written. A name is
one file, whatever characters it holds.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from streameval.base.encodings import NOT_UTF8, is_wide
from streameval.base.errors import InputError
from streameval.base.in_memory import InMemory
from streameval.base.paths import COMPRESSIONS, TABLES, kind_of

_DELIMITERS: Final = (",", ";", "\t", "|")
# RecBole's files are TSV too, with the type of each column behind its name.
_TSV: Final = frozenset({".tsv", ".inter", ".item", ".user"})
_TYPED: Final = re.compile(r":(?:token|float)(?:_seq)?\Z")
_JSON: Final = frozenset({".jsonl", ".ndjson", ".json"})
MARK: Final = "streameval: "
"""The beginning of our own messages where DuckDB raises them."""

_FIELDS: Final = re.compile(
    r"CSV Error on Line: (\d+)\n.*Expected Number of Columns: (\d+) Found: (\d+)", re.DOTALL
)
_LINE: Final = re.compile(
    r"CSV Error on Line: (\d+)\n.*?^((?:Value|Maximum|Invalid|Expected)[^\n]*)",
    re.DOTALL | re.MULTILINE,
)
# The types of DuckDB that hold several values; those of lists end in a bracket.
_NESTED: Final = ("STRUCT", "MAP", "UNION")
ONE_VALUE: Final = "write one value a row (explode the lists, take a field of the objects)"
_parse: Final = msgspec.json.Decoder(msgspec.Raw).decode
# The first line of a CSV file ends within this many bytes.
_HEADER_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file: the SQL that scans it, and its columns' types by name; `json`: its cells are JSON.

    `parsed`: reading it means parsing text, which is dear. `lists`: the columns that hold lists.
    """

    file: str
    scan: str
    types: Mapping[str, str]
    json: bool = False
    parsed: bool = False
    lists: Collection[str] = ()

    @property
    def line(self) -> str:
        """A name for the number of a row, which no column of the file has."""
        taken = {name.lower() for name in self.types}
        name = "line"
        while name in taken:
            name += "_"
        return name

    def value(self, column: str) -> str:
        """The SQL of a cell, of JSON without the quotes of a string."""
        return f"({quote(column)} ->> '$')" if self.json else quote(column)

    def is_float(self, column: str) -> str:
        """The SQL that tells a number with a fraction or an exponent, of JSON."""
        # Integers beyond 64 bits count as doubles, but keep their digits.
        return (
            f"json_type({quote(column)}) = 'DOUBLE'"
            f" AND NOT regexp_full_match({self.value(column)}, '-?[0-9]+')"
        )

    def has_floats(self, column: str) -> bool:
        """Tell whether a column is stored as floats."""
        return self._type_of(column) in {"FLOAT", "DOUBLE"}

    def _type_of(self, column: str) -> str | None:
        return {name.lower(): kind for name, kind in self.types.items()}.get(column.lower())

    def is_nested(self, column: str) -> str:
        """The SQL that tells a list or an object in a cell of JSON."""
        return f"json_type({quote(column)}) IN ('ARRAY', 'OBJECT')"

    def require(self, column: str, *, is_id: bool) -> None:
        """Raise `InputError` without a column, for lists in it, or for ids that are floats."""
        kind = self._type_of(column)
        if kind is None:
            raise InputError(f"{self.file}: no column {column} (it has {', '.join(self.types)})")
        if kind.endswith("]") or kind.startswith(_NESTED):
            several = "lists" if kind.endswith("]") else "objects"
            raise InputError(f"{self.file}: column {column} holds {several} ({kind}): {ONE_VALUE}")
        if is_id and self.has_floats(column):
            raise InputError(
                f"{self.file}: column {column}: ids are floats; write them as text or integers"
            )


def table_file(connection: Any, file: str) -> TableFile:
    """Find out how to read a file, by the end of its name. Raises `InputError`."""
    if isinstance(file, InMemory):
        return _register(connection, file)
    kind, packed = kind_of(file)
    if kind not in TABLES | _TSV | _JSON or (packed and kind == ".parquet"):
        raise InputError(
            f"{file}: a table is a .parquet, .csv, .tsv or .jsonl file (all but the first may be"
            " .gz or .zst)"
        )
    if not Path(file).stat().st_size:
        raise InputError(f"{file}: is empty")
    with reading(file):
        return _table_file(connection, file, kind, packed)


def _register(connection: Any, table: InMemory) -> TableFile:
    """Let the connection read an Arrow table where it lies."""
    seen: set[str] = set()
    for name in table.data.column_names:
        if name.lower() in seen:
            raise InputError(f"{table}: two columns are named {name}")
        seen.add(name.lower())
    view = f"in memory: {table}"
    connection.register(view, table.data)
    return _with_types(connection, table, quote(view))


@contextmanager
def reading(file: str) -> Iterator[None]:
    """Turn DuckDB's errors about a file into `InputError` of one line."""
    import duckdb

    try:
        yield
    except duckdb.OutOfMemoryException as error:
        size = str(error).partition("\n")[0].removeprefix("Out of Memory Error: ")
        raise InputError(f"{file}: out of memory: {size}") from error
    except duckdb.Error as error:
        text = str(error)
        _, _, ours = text.partition(MARK)
        if found := _FIELDS.search(text):
            line, expected, fields = found.groups()
            raise InputError(
                f"{file}: line {line}: {fields} fields, but the first line names {expected} columns"
            ) from error
        if found := _LINE.search(text):
            raise InputError(f"{file}: line {found[1]}: {found[2]}") from error
        if "Malformed JSON" in text:
            raise InputError(f"{file}: {_first_broken_line(file)}") from error
        if "state machine reached an invalid state" in text:
            raise InputError(
                f"{file}: no sound CSV: lines end in several ways, or a quote is out of place"
            ) from error
        raise InputError(
            ours.partition("\n")[0] or f"{file}: {text.splitlines()[0].partition(': ')[2] or text}"
        ) from error


def _first_broken_line(file: str) -> str:
    """Find the line of a file that is not JSON; DuckDB counts lines in several ways."""
    packed = COMPRESSIONS.get(Path(file).suffix.lower())
    with pa.input_stream(file, compression=packed) as stream:
        for number, line in enumerate(io.BufferedReader(stream), 1):
            if number == 1 and is_wide(line):
                return NOT_UTF8
            try:
                if line.strip():
                    _parse(line)
            except RecursionError:
                return f"line {number}: nested too deep"
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                if (number == 1 and line.lstrip()[:1] == b"[") or line.strip() in {b"{", b"["}:
                    return "no sound JSON Lines: write one object a line (jq -c), as .jsonl"
                return f"line {number}: {error}"
    return "no sound JSON"


def _table_file(connection: Any, file: str, kind: str, packed: str | None) -> TableFile:
    if kind == ".parquet":
        return _with_types(connection, file, parquet_scan([file]))
    start = f"{_names([file])}, compression = '{packed or 'none'}'"
    if kind in _JSON:
        guess = f"read_json({start}, sample_size = -1, maximum_depth = 2)"
        guessed = _with_types(connection, file, guess)
        scan = f"read_json({start}, columns = {_struct([*guessed.types], 'JSON')})"
        types = dict.fromkeys(guessed.types, "JSON")
        return replace(guessed, scan=scan, types=types, json=True, parsed=True)
    delimiter, names = _header(file, packed, "\t" if kind in _TSV else None)
    scan = (
        f"read_csv({start}, auto_detect = false, header = true,"
        f""" delim = '{delimiter}', quote = '"', escape = '"',"""
        f" columns = {_struct(names, 'VARCHAR')})"
    )
    return TableFile(file, scan, dict.fromkeys(names, "VARCHAR"), parsed=True)


def parquet_scan(files: Sequence[str], *, by_name: bool = False) -> str:
    """The SQL that scans Parquet files, whatever their names hold.

    `by_name`: a column that a file lacks is null in its rows.
    """
    return f"read_parquet({_names(files)}{', union_by_name = true' if by_name else ''})"


def _names(files: Sequence[str]) -> str:
    """Names as the functions of DuckDB take them that read files."""
    # Brackets quote a character that would be a pattern; a folder `item=7` does not make a column.
    names = (literal(re.sub(r"[\[*?]", r"[\g<0>]", file)) for file in files)
    return f"[{', '.join(names)}], hive_partitioning = false"


def quote(name: str) -> str:
    """A name as SQL takes it, whatever it holds."""
    return '"' + name.replace('"', '""') + '"'


def plain_name(name: str) -> str:
    """Return the name of a column without capitals and without what parts its words."""
    return re.sub(r"[_ -]", "", name).lower()


def literal(text: str) -> str:
    """A text as SQL takes it, whatever it holds."""
    return "'" + text.replace("'", "''") + "'"


def _with_types(connection: Any, file: str, scan: str) -> TableFile:
    """Return a file with the types that DuckDB finds in a scan."""
    types = column_types(connection, scan)
    lists = [name for name, kind in types.items() if kind.endswith("]")]
    return TableFile(file, scan, types, lists=lists)


def column_types(connection: Any, scan: str) -> dict[str, str]:
    """Return the type of each column of a scan."""
    found = connection.execute(f"DESCRIBE SELECT * FROM {scan}").fetchall()  # noqa: S608  # quoted
    return {row[0]: row[1] for row in found}


def _struct(names: list[str], kind: str) -> str:
    return "{" + ", ".join(f"{literal(name)}: '{kind}'" for name in names) + "}"


def _header(file: str, packed: str | None, delimiter: str | None) -> tuple[str, list[str]]:
    """The delimiter and the column names of a CSV file, by its first line."""
    try:
        with pa.input_stream(file, compression=packed) as stream:
            start = stream.read(_HEADER_BYTES)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{file}: {str(error).splitlines()[0]}") from error
    if is_wide(start):
        raise InputError(f"{file}: {NOT_UTF8}")
    try:
        first = re.split(rb"[\r\n]", start, maxsplit=1)[0].decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: line 1: {error}: a table is UTF-8") from error
    if not start:
        raise InputError(f"{file}: is empty")
    if not first.strip():
        raise InputError(f"{file}: line 1: the first line of a table names its columns")
    if first.lstrip().startswith("{"):
        raise InputError(f"{file}: line 1 is JSON and names no columns: rename it to .jsonl")
    delimiter = delimiter or max(_DELIMITERS, key=first.count)
    try:
        fields = next(csv.reader([first], delimiter=delimiter))
    except csv.Error as error:
        raise InputError(f"{file}: line 1: {error}") from error
    names = [_TYPED.sub("", name) or f"column{number}" for number, name in enumerate(fields)]
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise InputError(f"{file}: line 1: two columns are named {name}")
        seen.add(name.lower())
    return delimiter, names
