"""Outcome files as a table, read when it is asked for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from streameval.base.errors import InputError
from streameval.base.extras import NOTEBOOK, require
from streameval.files.locations import is_uri
from streameval.notebook.rows import Frames, Rows

if TYPE_CHECKING:
    from streameval.notebook.charts import Chart

# Rows that the picture of a table has.
_HEAD: Final = 5


class Outcomes(Frames):
    """The rows of outcome files. Nothing is read before a frame of them is asked for.

    The functions `evaluate` and `compare` take them in place of paths, and read files then: a part
    at a time, and only the columns that they need.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)

    @cached_property
    def files(self) -> list[str]:
        """The files, in order of name."""
        from streameval.evaluation.readers.outcomes import files_of

        return files_of(self.paths)

    @cached_property
    def schema(self) -> Any:
        """The columns of all files together, as an Arrow schema."""
        import pyarrow as pa

        try:
            return pa.unify_schemas([file.schema_arrow for _, file, _ in self._opened()])
        except pa.ArrowException as error:
            raise InputError(f"{', '.join(self.paths)}: {str(error).splitlines()[0]}") from error

    def to_reader(self) -> Any:
        """Return an Arrow reader of all rows, which holds a part of them at a time."""
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def to_arrow(self) -> Any:
        """Return all rows as an Arrow table."""
        return self.to_reader().read_all()

    def to_duckdb(self, connection: Any = None) -> Any:
        """Return a relation of DuckDB, which reads the columns of a query when it runs.

        Files of an object store are read at once, by the keys in their URI.
        """
        require("to_duckdb", "duckdb", NOTEBOOK)
        import duckdb

        from streameval.files.table_scans import parquet_scan

        chosen = connection or duckdb
        if any(map(is_uri, self.files)):
            return chosen.from_arrow(self.to_arrow())
        return chosen.sql(f"SELECT * FROM {parquet_scan(self.files, by_name=True)}")  # noqa: S608  # names are quoted

    def chart(self, *figures: str, by: str | Iterable[str] = ()) -> Chart:
        """Draw figures of `evaluate` with their intervals, the first or those that are named.

        `by` names dimensions: each of their values has a line beside the line of all.
        """
        from streameval.config.load import load
        from streameval.evaluation import input_kinds
        from streameval.evaluation.request import names_of
        from streameval.notebook.results import Evaluation

        given = input_kinds.given_of(self.paths, {}, lambda: load(None).definition())
        found = input_kinds.answer(replace(given, by=names_of(by)), figures, lambda _: None)
        return Evaluation(found).chart(*figures)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return the rows as an Arrow C stream."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def _opened(self) -> Iterator[tuple[str, Any, int]]:
        from streameval.files.outcome_reader import opened_files

        return opened_files(self.files)

    def _batches(self) -> Iterator[Any]:
        from streameval.files.outcome_reader import whole_rows

        return (
            batch for rows in whole_rows(self.files, self.schema) for batch in rows.to_batches()
        )

    def _head(self) -> Rows:
        rows = (row for batch in self._batches() for row in batch.to_pylist())
        return Rows(list(islice(rows, _HEAD)))

    def _said(self) -> str:
        rows = sum(file.metadata.num_rows for _, file, _ in self._opened())
        return f"{rows:,} slates in {len(self.files):,} outcome files; the first {_HEAD}:"

    def __repr__(self) -> str:
        """Return the first rows as text."""
        return f"{self._said()}\n{self._head()!r}"

    def _repr_html_(self) -> str:
        return f"<p>{self._said()}</p>{self._head()._repr_html_()}"


def outcomes_at(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Outcomes:
    """Return the outcome files at paths, folders or URIs. Raises `InputError`."""
    require("streameval.outcomes", "pyarrow", NOTEBOOK)
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    found = Outcomes([os.fspath(path) for path in given])
    for file in found.files[:1]:
        _require_outcomes(file)
    return found


def _require_outcomes(file: str) -> None:
    from streameval.evaluation.readers.outcomes import is_outcome_file
    from streameval.files.locations import redact

    if not is_outcome_file(file):
        raise InputError(f"{redact(file)}: not an outcome file")
