"""Outcome files opened for reading, on a disk and afar, and all their rows as they are.

A worker writes a small file for each partition and checkpoint, so there are many, and a store takes
tens of milliseconds for each answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from streameval.base.errors import InputError
from streameval.base.in_memory import InMemory
from streameval.files import locations
from streameval.files.outcome_columns import OutcomeTable
from streameval.files.outcome_files import ROW_GROUP

# So many files of a store are asked for at a time, and those of at most so many bytes are fetched
# whole.
_AHEAD: Final = 8
_SMALL: Final = 1 << 20


def opened_files(files: Sequence[str]) -> Iterator[tuple[str, Any, int]]:
    """Open files one after another; some ahead where they are afar. Yield name, file, bytes."""
    if not any(map(locations.is_uri, files)):
        for path in files:
            yield path, *open_outcomes(path)
        return
    waiting: deque[tuple[str, Future[tuple[Any, int]]]] = deque()
    pool = ThreadPoolExecutor(_AHEAD)
    try:
        for path in files:
            waiting.append((path, pool.submit(open_outcomes, path)))
            if len(waiting) == _AHEAD:
                name, found = waiting.popleft()
                yield name, *found.result()
        for name, found in waiting:
            yield name, *found.result()
    finally:
        pool.shutdown(cancel_futures=True)


def open_outcomes(path: str) -> tuple[Any, int]:
    """A Parquet file or what stands in its place, and its size in bytes.

    Raises `InputError`, `UnreadableError`, `UnreachableError`.
    """
    if isinstance(path, InMemory):
        return OutcomeTable(path, path.data), 0
    source, size = locations.read(path)
    try:
        if locations.is_uri(path) and size <= _SMALL:
            source = pa.BufferReader(source.read())
        # From afar the columns of a row group are asked for at once.
        return pq.ParquetFile(source, pre_buffer=locations.is_uri(path)), size
    except (pa.ArrowException, OSError) as error:
        raise locations.unread(path, error) from error


def whole_rows(
    files: Sequence[str], schema: pa.Schema, required: Sequence[str] = ()
) -> Iterator[pa.Table]:
    """Yield all rows of outcome files as Arrow tables of `schema` with some 65,536 rows, or none.

    A column that a file lacks is null in its rows. Raises `InputError` for one that is `required`,
    `UnreadableError`, `UnreachableError`.
    """
    waiting, rows = [schema.empty_table()], 0
    for path, file, _ in opened_files(files):
        known = file.schema_arrow.names
        for name in required:
            if name not in known:
                raise InputError(f"{locations.redact(path)}: no column {name}: not an outcome file")
        columns = [name for name in schema.names if name in known]
        for group in range(file.num_row_groups):
            try:
                table = file.read_row_group(group, columns=columns, use_threads=False)
                waiting.append(table if table.schema == schema else _shaped(table, schema))
            except (pa.ArrowException, OSError) as error:
                raise locations.unread(path, error) from error
            rows += len(table)
            if rows >= ROW_GROUP:
                yield pa.concat_tables(waiting).combine_chunks()
                waiting, rows = [schema.empty_table()], 0
    yield pa.concat_tables(waiting).combine_chunks()


def _shaped(table: pa.Table, schema: pa.Schema) -> pa.Table:
    known = table.schema.names
    columns = [
        table.column(field.name).cast(field.type)
        if field.name in known
        else pa.nulls(len(table), field.type)
        for field in schema
    ]
    return pa.table(columns, schema)
