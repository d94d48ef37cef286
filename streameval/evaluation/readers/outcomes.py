"""The reader of outcome files; `ranked_tables` reads tables and TREC files.

Outcome files are read row group by row group (`iter_batches` grows with the file), and of a row
group only the columns that the figures need. Arrow's buffers are looked at in place: its own way
to numpy imports pandas.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streameval.base.arrays import Ints
from streameval.base.errors import InputError
from streameval.base.in_memory import InMemory
from streameval.base.paths import is_file, is_folder
from streameval.core.metrics.auc import ranks_by_score
from streameval.core.metrics.score_health import LabelledScores
from streameval.evaluation.batches import ROWS, Advance, Batch, counts_of, judged_of
from streameval.files import locations
from streameval.files.outcome_columns import OutcomeTable, require_rows, require_types
from streameval.files.outcome_files import PENDING, dimensions_in
from streameval.files.outcome_reader import open_outcomes, opened_files


def files_of(paths: Sequence[str]) -> list[str]:
    """List the files to read, each once: of a folder its Parquet files, in order of name.

    A URI is a file if it ends in `.parquet`, else a folder. Spans that no checkpoint has confirmed
    yet (`_pending`) are left out. Raises `InputError`, `UnreachableError`.
    """
    found: list[str] = []
    for path in map(locations.on_disk, paths):
        if isinstance(path, InMemory):
            found.append(path)
            continue
        if locations.is_uri(path):
            found += _files_of_uri(path)
            continue
        if not is_folder(path):
            if not is_file(path):
                raise InputError(f"{path}: no such file or folder")
            found.append(path)
            continue
        below = sorted(str(file) for file in Path(path).rglob("*.parquet") if file.is_file())
        below = [file for file in below if PENDING not in Path(file).relative_to(path).parts]
        if not below:
            raise InputError(f"{path}: no Parquet file below this folder")
        found += below
    return list({_same(file): file for file in reversed(found)}.values())[::-1]


def _same(file: str) -> str:
    """Return one name for all names of a file, so that no file is read twice."""
    remote = isinstance(file, InMemory) or locations.is_uri(file)
    return file if remote else str(Path(file).resolve())


def _files_of_uri(uri: str) -> list[str]:
    if locations.redact(uri).endswith(".parquet"):
        return [uri]
    with locations.reaching(uri):
        location = locations.open_location(uri)
        below = [
            info.path.removeprefix(f"{location.path}/")
            for info in locations.list_folder(*location, recursive=True)
            if info.path.endswith(".parquet") and info.is_file
        ]
        found = [name for name in below if PENDING not in name.split("/")]
        if not found:
            locations.require_bucket(location)
            raise InputError(f"{locations.redact(uri)}: no Parquet file below this folder")
    return [locations.join(uri, name) for name in found]


def is_outcome_file(path: str) -> bool:
    """Tell an outcome file from a table of another shape."""
    is_table = isinstance(path, InMemory)
    if not is_table and not locations.redact(path).lower().endswith(".parquet"):
        return False
    file, _ = open_outcomes(path)
    return {"user", "ranks", "gains"} <= set(file.schema_arrow.names)


def file_of_other_shape(files: Sequence[str]) -> str | None:
    """Find a file that is no outcome file; None if all are."""
    # To open a small file from afar costs as much as to read it: one of them is looked at.
    looked_at = [file for file in files if not locations.is_uri(file)] or files[:1]
    return next((file for file in looked_at if not is_outcome_file(file)), None)


def read_outcomes(
    files: Sequence[str],
    by: Sequence[str],
    advance: Advance,
    *,
    with_ids: bool = False,
    with_scores: bool = False,
    with_judged: bool = False,
    level: float | None = None,
) -> Iterator[Batch]:
    """Yield the slates of outcome files, without impressions that have no request.

    A list's name is its request. `auc` needs `with_scores`, and metrics of incomplete labels need
    `with_judged`. Raises `InputError` for a dimension that such files do not have.
    """
    check_dimensions(by, files)
    columns = ["user", "ranks", "gains", *by, *(["scores"] if with_scores else [])]
    if with_ids:
        columns.append("request")
    # Strings that are all different are dear to read: only where something is null.
    for record in record_batches(files, columns, advance, where_null="request"):
        yield batch_of(record, by, with_ids=with_ids, with_judged=with_judged, level=level)


def record_batches(
    files: Sequence[str],
    columns: Sequence[str],
    advance: Advance,
    *,
    where_null: str | None = None,
    optional: Sequence[str] = (),
) -> Iterator[Any]:
    """Columns of outcome files; `where_null` too in row groups where that has a null.

    Columns that are `optional` are left out where a file lacks them. Rows of small files come in
    one batch.

    Raises `InputError` for a column that such files do not have.
    """
    checked = _checked_batches(files, columns, advance, where_null=where_null, optional=optional)
    return _joined(checked)


def _checked_batches(
    files: Sequence[str],
    columns: Sequence[str],
    advance: Advance,
    *,
    where_null: str | None,
    optional: Sequence[str],
) -> Iterator[Any]:
    for path, file, size in opened_files(files):
        known = file.schema_arrow.names
        for name in [*columns, *([where_null] if where_null else [])]:
            if name not in known:
                raise InputError(f"{locations.redact(path)}: no column {name}: not an outcome file")
        chosen = [*columns, *(name for name in optional if name in known)]
        require_types(locations.redact(path), file.schema_arrow, chosen)
        for group in range(file.num_row_groups):
            wanted = [*chosen]
            if where_null is not None and where_null not in columns:
                wanted += [where_null] if _has_null(file, group, where_null) else []
            try:
                table = file.read_row_group(group, columns=wanted, use_threads=False)
            except (pa.ArrowException, OSError) as error:
                raise locations.unread(path, error) from error
            for record in table.to_batches(max_chunksize=ROWS):
                require_rows(locations.redact(path), record)
                yield record
            advance(size // file.num_row_groups)


def _joined(records: Iterable[Any]) -> Iterator[Any]:
    """Join small batches that follow one another: the work on a batch costs more than its rows."""
    waiting: list[Any] = []
    rows = 0
    for record in records:
        if waiting and (rows + len(record) > ROWS or record.schema != waiting[0].schema):
            yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
            waiting, rows = [], 0
        waiting.append(record)
        rows += len(record)
    if waiting:
        yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()


def check_dimensions(by: Sequence[str], files: Sequence[str]) -> None:
    """Raise `InputError` for a dimension that outcome files do not have."""
    if not by:
        return
    known = dimensions_in(open_outcomes(files[0])[0].schema_arrow)
    for dimension in by:
        if dimension not in known:
            raise InputError(
                f"--by {dimension}: these outcome files have {', '.join(known) or 'no dimension'}"
            )


def _has_null(file: Any, group: int, column: str) -> bool:
    if isinstance(file, OutcomeTable):
        return file.has_null(column)
    metadata = file.metadata.row_group(group)
    leaves = map(metadata.column, range(metadata.num_columns))
    statistics = next(leaf.statistics for leaf in leaves if leaf.path_in_schema == column)
    return statistics is None or not statistics.has_null_count or statistics.null_count > 0


def batch_of(
    record: Any,
    by: Sequence[str],
    *,
    with_ids: bool = False,
    with_judged: bool = False,
    level: float | None = None,
) -> Batch:
    """Return the slates of an Arrow batch of outcome files, except those with a null `request`.

    Without the column `scores` the ranks by score are unknown. An item whose gain is below `level`
    is not relevant.
    """
    record = _with_request(record)
    starts, gains = _flat(record.column("gains"), np.float64)
    _, ranks = _flat(record.column("ranks"), np.int16)
    positive = gains > 0
    relevant = counts_of(positive, starts)
    where = np.flatnonzero(positive)
    segments, names = segments_by(record, by)
    score_ranks = np.full(len(gains), np.nan)
    if "scores" in record.schema.names:
        score_ranks = ranks_by_score(_scores(record, len(gains)), starts)
    return Batch(
        relevant=relevant,
        ranks=ranks[where].astype(np.int64),
        gains=gains[where],
        score_ranks=score_ranks[where],
        length=np.diff(starts),
        checksums=checksums_of(record.column("user")),
        segments=segments,
        names=names,
        ids=record.column("request").to_pylist() if with_ids else None,
        users=record.column("user").to_pylist() if with_ids else None,
        level=level,
        judged=judged_of(gains, starts, where, level) if with_judged else None,
    )


def labelled_scores(
    record: Any, by: Sequence[str], level: float | None = None
) -> tuple[LabelledScores, Ints, Ints, list[tuple[str, ...]]]:
    """Return the items of outcome rows, those without a request among them.

    Beside them are the checksums, segments and names that `units.UnitBatch` has.
    """
    starts, gains = _flat(record.column("gains"), np.float64)
    positive = gains > 0 if level is None else gains >= level
    items = LabelledScores(starts, _scores(record, len(gains)), positive)
    return items, checksums_of(record.column("user")), *segments_by(record, by)


def ranked_gains(
    record: Any, by: Sequence[str]
) -> tuple[Ints, Ints, npt.NDArray[np.float64], Ints, Ints, list[tuple[str, ...]]]:
    """Return the items of slates, without rows that have a null `request`.

    By item: the index of the slate, the rank, the gain. Then the slates' checksums, segments and
    names, as `batches.Batch` has them.
    """
    record = _with_request(record)
    starts, gains = _flat(record.column("gains"), np.float64)
    _, ranks = _flat(record.column("ranks"), np.int16)
    owners = np.repeat(np.arange(len(record)), np.diff(starts))
    checksums = checksums_of(record.column("user"))
    return owners, ranks.astype(np.int64), gains, checksums, *segments_by(record, by)


def _with_request(record: Any) -> Any:
    if "request" in record.schema.names and record.column("request").null_count:
        return record.filter(record.column("request").is_valid())
    return record


def _scores(record: Any, count: int) -> npt.NDArray[np.float64]:
    """Return the logged scores of all items, NaN for null."""
    return _window(record.column("scores").flatten().fill_null(math.nan), 1, np.float64, count)


def _flat(column: Any, kind: type[np.generic]) -> tuple[Ints, npt.NDArray[Any]]:
    """Return the start of each list (n + 1,), and the values of all lists."""
    wide = np.int64 if pa.types.is_large_list(column.type) else np.int32
    starts = _window(column, 1, wide, len(column) + 1).astype(np.int64)
    first, last = int(starts[0]), int(starts[-1])
    values = column.values.slice(first, last - first)
    return starts - first, _window(values, 1, kind, len(values))


def _window(array: Any, buffer: int, kind: type[np.generic], count: int) -> npt.NDArray[Any]:
    raw = array.buffers()[buffer]
    if raw is None:
        return np.zeros(count, kind)
    width = np.dtype(kind).itemsize
    return np.frombuffer(raw, kind, count=count, offset=array.offset * width)


def checksums_of(users: Any) -> Ints:
    """Return `core.windows.cells.checksum_of` each user of a column of strings."""
    if not len(users):
        return np.zeros(0, np.int64)
    starts = _window(users, 1, np.int32, len(users) + 1).tolist()
    raw = memoryview(users.buffers()[2] or b"")
    return np.array([crc32(raw[start:end]) for start, end in pairwise(starts)], np.int64)


def segments_by(record: Any, by: Sequence[str]) -> tuple[Ints, list[tuple[str, ...]]]:
    """Return each row's segment as an index, and the segments; null is ""."""
    codes = np.zeros(len(record), np.int64)
    names: list[tuple[str, ...]] = [()]
    for dimension in by:
        column = record.column(dimension).fill_null("").dictionary_encode()
        values = column.dictionary.to_pylist()
        indices = _window(column.indices, 1, np.int32, len(column))
        # Number the pairs of a segment so far and a value of this dimension.
        pairs, codes = np.unique(codes * len(values) + indices, return_inverse=True)
        names = [(*names[pair // len(values)], values[pair % len(values)]) for pair in pairs]
    return codes.astype(np.int64), names


def segments_of(rows: Sequence[tuple[str, ...]]) -> tuple[Ints, list[tuple[str, ...]]]:
    """Number the distinct values, in the order in which they come."""
    numbers: dict[tuple[str, ...], int] = {}
    codes = [numbers.setdefault(row, len(numbers)) for row in rows]
    return np.array(codes, np.int64), list(numbers)
