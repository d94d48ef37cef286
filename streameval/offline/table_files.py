"""Tables as people have them: Parquet, CSV, TSV or JSON Lines, columns found by name.

DuckDB reads them; it works in bounded memory and sets aside on disk what does not fit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import duckdb

from streameval.core.errors import InputError
from streameval.offline import places

MEMORY: Final = "512MB"

LIST_NAMES: Final = ("list", "list_id", "request", "request_id", "query", "qid", "user", "user_id")
USER_NAMES: Final = ("user", "user_id")
ITEM_NAMES: Final = ("item", "item_id", "doc", "docid", "docno")
RANK_NAMES: Final = ("rank", "position")
SCORE_NAMES: Final = ("score", "prediction")
GAIN_NAMES: Final = ("gain", "relevance", "label", "rating")
"""What a column may be called: the first that a table has counts."""


@contextmanager
def connected(*files: str) -> Iterator[Any]:
    """A DuckDB of one's own for as long as it takes; its errors become `InputError` of `files`."""
    with tempfile.TemporaryDirectory(prefix="streameval-") as folder:
        connection = duckdb.connect(
            config={"memory_limit": MEMORY, "temp_directory": folder, "threads": 2}
        )
        try:
            yield connection
        except duckdb.Error as error:
            names = ", ".join(map(places.shown, files))
            raise InputError(f"{names}: {str(error).splitlines()[0]}") from error
        finally:
            connection.close()


def size(files: Sequence[str]) -> int:
    """The bytes of files on disk, for a progress bar."""
    return sum(Path(file).stat().st_size for file in files)


def load(
    connection: Any, name: str, files: Sequence[str], columns: Mapping[str, str], *, rest: str = ""
) -> None:
    """Read files into a table `name` of `columns` (SQL by name) and `line`, their order."""
    chosen = ", ".join(f"{value} AS {quoted(column)}" for column, value in columns.items())
    connection.execute(
        f"CREATE TABLE {name} AS SELECT {chosen}, row_number() OVER () AS line"  # noqa: S608  # names are quoted
        f" FROM {table_function(files)} {rest}"
    )


def columns_of(connection: Any, files: Sequence[str]) -> list[str]:
    """The names of the columns of a table."""
    found = connection.execute(f"DESCRIBE SELECT * FROM {table_function(files)}").fetchall()  # noqa: S608
    return [row[0] for row in found]


def require_disk(files: Sequence[str]) -> None:
    """Raise `InputError` for a URI."""
    for file in files:
        if places.is_uri(file):
            raise InputError(
                f"{places.shown(file)}: only outcome files are read from there: copy it to a disk"
            )


def table_function(files: Sequence[str]) -> str:
    """The SQL that reads files of one sort, told by the end of their names."""
    require_disk(files)
    names = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
    plain = files[0].removesuffix(".gz").removesuffix(".zst")
    if plain.endswith(".parquet"):
        return f"read_parquet([{names}])"
    if plain.endswith((".csv", ".tsv")):
        return f"read_csv([{names}])"
    if plain.endswith((".jsonl", ".ndjson", ".json")):
        return f"read_json([{names}])"
    raise InputError(f"{files[0]}: a table is a .parquet, .csv, .tsv or .jsonl file")


def named(files: Sequence[str], known: Sequence[str], names: Sequence[str]) -> str:
    """The first column of `names` that a table has. Raises `InputError` without one."""
    found = optional(known, names)
    if found is None:
        raise InputError(
            f"{', '.join(files)}: no column {' or '.join(names)} (it has {', '.join(known)})"
        )
    return found


def optional(known: Sequence[str], names: Sequence[str]) -> str | None:
    """The first column of `names` that a table has, or None."""
    return next((name for name in names if name in known), None)


def text(column: str) -> str:
    """The SQL of a column read as text, as ids are."""
    return f"{quoted(column)}::VARCHAR"


def number(column: str) -> str:
    """The SQL of a column read as a number."""
    return f"{quoted(column)}::DOUBLE"


def quoted(name: str) -> str:
    """A name as SQL takes it, whatever it holds."""
    return '"' + name.replace('"', '""') + '"'
