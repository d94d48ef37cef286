"""Tables as people have them: Parquet, CSV, TSV or JSON Lines, columns found by name.

DuckDB reads them; it works in bounded memory and sets aside on disk what does not fit.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import pyarrow as pa

from streameval.base.errors import InputError
from streameval.base.extras import require
from streameval.base.in_memory import InMemory
from streameval.base.limits import MAX_EVALUATED_RANK
from streameval.files import locations
from streameval.files.list_cells import Several, one_value_a_row
from streameval.files.table_scans import (
    MARK,
    ONE_VALUE,
    TableFile,
    literal,
    plain_name,
    quote,
    reading,
    table_file,
)

MEMORY: Final = "512MB"
BATCH_ROWS: Final = 1 << 18

USER_NAMES: Final = (
    *("user", "user_id", "uid"),
    *("customer", "customer_id", "visitor_id", "member_id", "reviewer_id"),
)
LIST_NAMES: Final = (
    *("list", "list_id", "request", "request_id", "query", "qid", "query_id"),
    *USER_NAMES,
    *("session", "session_id", "topic_id"),
)
ITEM_NAMES: Final = (
    *("item", "item_id", "doc", "docid", "docno", "product_id", "article_id", "movie_id", "iid"),
    *("document_id", "document", "product", "content_id", "sku", "asin", "isbn", "business_id"),
    *("book_id", "track_id", "song_id", "video_id", "news_id", "listing_id", "hotel_id"),
)
RANK_NAMES: Final = ("rank", "position")
PREDICTED_NAMES: Final = (
    *("predicted_rating", "predicted_score", "pred", "est", "estimate", "probability"),
)
SCORE_NAMES: Final = ("score", "prediction", "predicted", *PREDICTED_NAMES)
RATED_NAMES: Final = ("stars", "overall", "book_rating", "true_rating", "r_ui")
GAIN_NAMES: Final = (
    *("gain", "relevance", "rel", "grade", "label", "rating"),
    *("relevant", "is_relevant", "clicked", "is_clicked", "click", "target", "score"),
    *("relevance_label", *RATED_NAMES),
)
"""The names that a column may have; the first one that a table has counts."""

_NAMED: Final = 6
"""Names to tell in a message."""

CellType: TypeAlias = Literal["id", "label", "number", "rank", "time"]

_TYPES: Final[dict[CellType, str]] = {
    "id": "VARCHAR",
    "label": "VARCHAR",
    "number": "DOUBLE",
    "rank": "BIGINT",
    "time": "DECIMAL(38, 9)",
}
_NEEDED: Final[dict[CellType, str]] = {
    "id": "an id but a float: write ids as text or integers",
    "label": "text",
    "number": "a finite number",
    "rank": f"a whole number from 1 to {MAX_EVALUATED_RANK:,}",
    "time": "a number or a date",
}


class Column(NamedTuple):
    """A column to read: its name in the files, the type of its cells, and whether each is `needed`.

    Without a name, `value` is the SQL of every row's cell.
    """

    source: str | None
    type: CellType
    value: str = "1.0"
    needed: bool = False


@contextmanager
def connect(*files: str) -> Iterator[Any]:
    """Open a DuckDB for the length of a block; its errors become `InputError` of `files`."""
    require("reading tables", "duckdb")
    import duckdb

    # Not a TemporaryDirectory: an iteration that an error ends stays in a cycle with it, and the
    # collector would find the folder before the connection that uses it.
    folder = tempfile.mkdtemp(prefix="streameval-")
    try:
        with (
            reading(", ".join(map(locations.redact, files))),
            # A table in memory that outgrows it ends a query; one in a file is read again.
            duckdb.connect(
                f"{folder}/tables.duckdb",
                config={"memory_limit": MEMORY, "temp_directory": folder, "threads": 2},
            ) as connection,
        ):
            # Each table is read a few times: to compress it costs more than it saves.
            connection.execute("PRAGMA force_compression = 'uncompressed'")
            yield connection
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def batches(rows: Any) -> Iterator[Any]:
    """The rows of a query as batches of Arrow, while they are found; its errors are DuckDB's."""
    import duckdb

    try:
        yield from rows.to_arrow_reader(BATCH_ROWS)
    except (pa.ArrowException, OSError) as error:
        # After the first batch Arrow asks for the next one, and wraps what DuckDB says.
        raise duckdb.Error(str(error)) from error


def size(files: Sequence[str]) -> int:
    """The bytes of files on disk, for a progress bar."""
    return sum(Path(file).stat().st_size for file in files if not isinstance(file, InMemory))


def load(
    connection: Any, name: str, tables: Sequence[TableFile], columns: Mapping[str, Column]
) -> None:
    """Read files into a table `name` of `columns` and `line`, the order of the rows.

    Raises `InputError` at a cell that does not fit its column.
    """
    types = ", ".join(f"{quote(name)} {_TYPES[column.type]}" for name, column in columns.items())
    connection.execute(f"CREATE TABLE {name} ({types}, line BIGINT)")
    lists = columns["list"].source if "list" in columns else None
    for table in tables:
        for column in columns.values():
            if column.source is not None:
                table.require(column.source, is_id=column.type == "id")
        chosen = ", ".join(
            f"({_sql(table, column, lists)})::{_TYPES[column.type]}" for column in columns.values()
        )
        with reading(table.file):
            connection.execute(
                f"INSERT INTO {name} SELECT {chosen}, {table.line} + (SELECT count(*) FROM {name})"  # noqa: S608  # names are quoted
                f" FROM (SELECT *, row_number() OVER () AS {table.line} FROM {table.scan})"
            )


def open_tables(
    connection: Any,
    files: Sequence[str],
    several: Several | None = None,
) -> tuple[list[TableFile], list[str]]:
    """Find out how to read files, once, and which columns they have; all of a JSON file is read.

    What comes as lists in the rows of a file has a row for each value. Raises `InputError`.
    """
    require_disk(files)
    tables = [table_file(connection, file) for file in files]
    if several is not None:
        tables = [one_value_a_row(connection, table, several) for table in tables]
    return tables, columns_of(tables)


def columns_of(tables: Sequence[TableFile]) -> list[str]:
    """The names of the columns that any of the files has, in order."""
    return list(dict.fromkeys(name for table in tables for name in table.types))


def require_disk(files: Sequence[str]) -> None:
    """Raise `InputError` for a URI."""
    for file in files:
        if locations.is_uri(locations.on_disk(file)):
            raise InputError(
                f"{locations.redact(file)}: only outcome files are read from there: "
                "copy it to a disk"
            )


def _sql(table: TableFile, column: Column, lists: str | None) -> str:
    """Return the SQL of a column's value. A cell of another type ends the query with an error."""
    if column.source is None:
        return column.value
    value = table.value(column.source)
    written = f"({value})::VARCHAR"
    number = f"TRY_CAST({value} AS DOUBLE)"
    whose = f" || coalesce(', list ' || {table.value(lists)}, '')" if lists else ""
    where = (
        f"'{MARK}' || {literal(locations.redact(table.file))} || ': row ' || {table.line}{whose}"
    )
    where += f" || {literal(f': column {column.source}: ')}"
    wrong = f"error({where} || {written} || {literal(f' is not {_NEEDED[column.type]}')})"
    several = f"error({where} || {literal(f'holds several values: {ONE_VALUE}')})"
    nested = f" WHEN {table.is_nested(column.source)} THEN {several}" if table.json else ""
    # pandas writes NaN for an empty cell, and polars tells the two apart.
    can_be_nan = column.type != "label" or table.has_floats(column.source)
    or_nan = f" OR isnan({number})" if can_be_nan else ""
    absent = f"error({where} || 'is empty')"
    if column.type == "id":
        whole = f"{value} IS NULL OR {written} = ''"
        floats = f" WHEN {table.is_float(column.source)} THEN {wrong}" if table.json else ""
        return f"CASE WHEN {whole} THEN {absent}{nested}{floats} ELSE {written} END"
    if column.type == "label":
        return f"CASE WHEN {value} IS NULL{or_nan} THEN ''{nested} ELSE {written} END"
    if column.type == "rank":
        bounds = f"BETWEEN 1 AND {MAX_EVALUATED_RANK}"
        sound, taken = f"{number} {bounds} AND {number} = floor({number})", number
    elif column.type == "time":
        decimal = f"TRY_CAST({written} AS {_TYPES['time']})"
        taken = f"coalesce({decimal}, epoch_us(TRY_CAST({written} AS TIMESTAMP)))"
        sound = f"{taken} NOTNULL"
    else:
        truth = f"CASE lower({written}) WHEN 'true' THEN 1.0 WHEN 'false' THEN 0.0 END"
        taken = f"coalesce({number}, {truth})"
        sound = f"isfinite({taken})"
    empty = f"{value} IS NULL{or_nan} THEN {absent if column.needed else 'NULL'}"
    return f"CASE WHEN {empty} WHEN {sound} THEN {taken} ELSE {wrong} END"


def find_column(files: Sequence[str], known: Sequence[str], names: Sequence[str]) -> str:
    """The first column of `names` that a table has. Raises `InputError` without one."""
    found = optional(known, names)
    if found is None:
        whole = any(Path(file).suffix.lower() == ".json" for file in files)
        advice = "; a table in JSON is a .jsonl file, one object a line" if whole else ""
        has = f"it has {', '.join(known)}"
        raise InputError(f"{', '.join(files)}: no column {or_names(names)} ({has}){advice}")
    return found


def or_names(names: Sequence[str]) -> str:
    """Return names that a column may have for a message, the first of many."""
    more = ["another of docs/evaluate.md"] if len(names) > _NAMED else []
    return " or ".join([*names[:_NAMED], *more])


def optional(known: Sequence[str], names: Sequence[str]) -> str | None:
    """The first column of `names` that a table has, or None: without `user_id` it is `userId`."""
    alike = {plain_name(name): name for name in reversed(known)}
    found = (name if name in known else alike.get(plain_name(name)) for name in names)
    return next((name for name in found if name is not None), None)


def text(column: str | None) -> Column:
    """A column of ids: text as it is written, and no cell empty unless no table has the column."""
    return Column(column, "id", "NULL")


def label(column: str) -> Column:
    """A column of text such as one of `--by`: an empty cell is ""."""
    return Column(column, "label")


def number(column: str | None, value: str = "1.0", *, needed: bool = False) -> Column:
    """A column of finite numbers, or of `value` where a table has none.

    A cell may be empty (NaN is) unless it is `needed`.
    """
    return Column(column, "number", value, needed)


def rank(column: str | None) -> Column:
    """A column of whole numbers from 1 to `MAX_EVALUATED_RANK`, no cell empty."""
    return Column(column, "rank", "NULL", needed=True)


def time(column: str) -> Column:
    """A column of numbers or dates that order rows; a cell may be empty."""
    return Column(column, "time")
