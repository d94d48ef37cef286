"""Rows of Parquet files as Arrow reads them, with ids as the dictionaries that the files hold.

DuckDB unpacks the id of each row. Where no column needs work, Arrow reads them for half of the
processor's time, and ids are numbers already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from streameval.base.in_memory import InMemory
from streameval.base.limits import MAX_EVALUATED_RANK
from streameval.files.arrow_arrays import is_text
from streameval.files.table_scans import TableFile, reading
from streameval.files.tables import BATCH_ROWS, CellType, Column, iterated

# Bytes of a file that are read in one go; without it, a whole column of a row group is.
_BUFFER: Final = 1 << 20
# What a column of a row group takes at most, a cell and in all, if a dictionary of it pays.
_CELL_BYTES: Final = 8
_DICTIONARY_BYTES: Final = 16 << 20
# The encodings of which Arrow makes a dictionary.
_ENCODINGS: Final = frozenset(("PLAIN", "RLE", "BIT_PACKED", "PLAIN_DICTIONARY", "RLE_DICTIONARY"))


@dataclass(frozen=True, slots=True)
class ParquetRows:
    """The rows that `tables.view` has of files and columns, in their order, without a line."""

    files: Sequence[TableFile]
    columns: Mapping[str, Column]

    @property
    def schema(self) -> Any:
        """The names and types of the columns."""
        return pa.schema(
            [(name, _CELLS[column.type].arrow) for name, column in self.columns.items()]
        )

    def readable(self) -> bool:
        """Tell whether Arrow can read each column as it is stored."""
        try:
            return all(
                not isinstance(table.file, InMemory)
                and self._fits(pq.read_schema(table.file), pq.read_metadata(table.file))
                for table in self.files
            )
        except (pa.ArrowException, OSError):
            return False

    def _fits(self, schema: Any, metadata: Any) -> bool:
        """Tell whether a file has the columns by these very names, in types that say the same.

        Arrow reads as a dictionary what was written as one, and so it must be a small one.
        """
        small = _dictionaries(metadata)
        return all(
            column.source is None
            or (
                schema.names.count(column.source) == 1
                and _CELLS[column.type].fit(kind := schema.field(column.source).type)
                and (column.source in small or not pa.types.is_dictionary(kind))
            )
            for column in self.columns.values()
        )

    def batches(self) -> Iterator[tuple[Any, bool]]:
        """Yield batches, each with whether all of its cells are sound. Raises `InputError`."""
        given = {column.source: column.type for column in self.columns.values() if column.source}
        for table in self.files:
            ids = {name for name, kind in given.items() if kind == "id"}
            kept = list(ids & _dictionaries(pq.read_metadata(table.file)))
            with (
                reading(table.file),
                pq.ParquetFile(table.file, read_dictionary=kept, buffer_size=_BUFFER) as file,
            ):
                parts = file.iter_batches(BATCH_ROWS, columns=list(given), use_threads=False)
                for batch in iterated(parts):
                    yield self._converted(batch)

    def _converted(self, batch: Any) -> tuple[Any, bool]:
        cells, sound = [], True
        for column in self.columns.values():
            kind = _CELLS[column.type]
            if column.source is None:
                cells.append(pa.nulls(len(batch), kind.arrow))
                continue
            cells.append(kind.converted(batch.column(column.source)))
            empty = column.needed and cells[-1].null_count
            sound = sound and not empty and kind.sound(cells[-1])
        return pa.RecordBatch.from_arrays(cells, schema=self.schema), sound


def _dictionaries(metadata: Any) -> set[str]:
    """Name the columns of bytes whose dictionaries are small, in each row group.

    Others are dearer as such: a batch comes with all that its row group has named so far.
    """
    chunks: dict[str, list[Any]] = {}
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(number)
            chunks.setdefault(chunk.path_in_schema, []).append(chunk)
    return {name for name, found in chunks.items() if all(map(_has_small_dictionary, found))}


def _has_small_dictionary(chunk: Any) -> bool:
    return (
        chunk.physical_type == "BYTE_ARRAY"
        and _ENCODINGS.issuperset(chunk.encodings)
        and chunk.total_uncompressed_size <= min(_CELL_BYTES * chunk.num_values, _DICTIONARY_BYTES)
    )


def _is_name(kind: Any) -> bool:
    return is_text(kind) or bool(pa.types.is_integer(kind))


def _as_ids(cells: Any) -> Any:
    """Return ids as a dictionary of texts."""
    if not pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_encode()
    indices, texts = cells.indices.cast(pa.int32()), cells.dictionary.cast(pa.string())
    return pa.DictionaryArray.from_arrays(indices, texts)


def _are_ids(cells: Any) -> bool:
    """Tell whether each cell has an id that is not empty, in UTF-8."""
    try:
        cells.dictionary.validate(full=True)
    except pa.ArrowInvalid:
        return False
    shortest = pc.min(pc.binary_length(cells.dictionary)).as_py()
    return not cells.null_count and shortest != 0


def _are_ranks(cells: Any) -> bool:
    bounds = pc.min_max(cells).as_py()
    return bounds["min"] is None or 1 <= bounds["min"] <= bounds["max"] <= MAX_EVALUATED_RANK


class _Cells(NamedTuple):
    """Cells of one type: Arrow's type, which columns fit, how they become it, which are sound."""

    arrow: Any
    fit: Callable[[Any], bool]
    converted: Callable[[Any], Any]
    sound: Callable[[Any], bool]


_CELLS: Final[dict[CellType, _Cells]] = {
    "id": _Cells(pa.dictionary(pa.int32(), pa.string()), _is_name, _as_ids, _are_ids),
    "label": _Cells(
        pa.string(),
        _is_name,
        lambda cells: pc.fill_null(cells.cast(pa.string()), ""),
        lambda _: True,
    ),
    "number": _Cells(
        pa.float64(),
        lambda kind: pa.types.is_float32(kind) or pa.types.is_float64(kind),
        lambda cells: cells.cast(pa.float64()),
        lambda cells: pc.all(pc.is_finite(cells)).as_py() is not False,
    ),
    "rank": _Cells(
        pa.int64(),
        lambda kind: pa.types.is_integer(kind) and not pa.types.is_uint64(kind),
        lambda cells: cells.cast(pa.int64()),
        _are_ranks,
    ),
}
