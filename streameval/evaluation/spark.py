"""`evaluate` on Spark, for outcome files that outgrow one machine: the same figures, bit for bit.

    from streameval.evaluation import spark as on_spark

    rows = session.read.parquet("s3a://bucket/outcomes")
    evaluation = on_spark.evaluate(rows, ["ndcg@10", "map@10"], by=["variant"])
    print(evaluation.figures()["ndcg@10"])

Each of Spark's partitions is scored by the functions that `streameval evaluate` uses and returns
integer sums by segment and cluster of users; the driver adds them up. Integers add in any order, so
neither partitions nor batches change a bit. The session is the caller's own (Spark 4); its workers
need this package, in the same version. pyspark is not imported here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from streameval.base.errors import InputError
from streameval.base.limits import CLUSTERS
from streameval.evaluation.batches import ROWS
from streameval.evaluation.readers.outcomes import batch_of
from streameval.evaluation.sums import DEFAULT, LIST_METRICS, Asked, Evaluation
from streameval.files.outcome_columns import require_rows

_TYPES: Final = {
    "user": "string",
    "request": "string",
    "ranks": "array<smallint>",
    "gains": "array<double>",
}
_SUMS: Final = pa.schema(
    [
        ("segment", pa.list_(pa.string())),
        ("sums", pa.list_(pa.int64())),
        ("counts", pa.list_(pa.int64())),
        ("checksums", pa.list_(pa.int64())),
        ("cells", pa.list_(pa.int64())),
        ("refusal", pa.string()),
    ]
)
"""The result of a partition: a row a segment with flat arrays of `Evaluation`; or a refusal."""
_SUMS_SQL: Final = (
    "segment array<string>, sums array<bigint>, counts array<bigint>, checksums array<bigint>,"
    " cells array<bigint>, refusal string"
)


def evaluate(
    dataframe: Any, metrics: Sequence[str] = DEFAULT, by: Sequence[str] = ()
) -> Evaluation:
    """Compute the figures `metrics` of a Spark DataFrame with the columns of outcome files.

    Needed are `user`, `request` (rows where it is null do not count), `ranks` and `gains`,
    and for `auc` the logged `scores`. `by` takes any other column; null counts as "". Intervals
    come with the figures. Raises `InputError` for a name or a column that is unknown, for rows that
    `streameval evaluate` refuses too, and for too many segments.
    """
    evaluation = Evaluation([Asked.parse(name) for name in metrics], by)
    for asked in evaluation.asked:
        if asked.entry.name not in LIST_METRICS:
            raise InputError(f"{asked.name}: not a figure of ranked lists")
    needed = dict(_TYPES)
    if any(asked.by_score for asked in evaluation.asked):
        needed["scores"] = "array<double>"
    absent = [name for name in needed if name not in dataframe.columns]
    if absent:
        raise InputError(f"the DataFrame has no column {', '.join(absent)}: read outcome files")
    usable = [name for name in dataframe.columns if name not in needed]
    for name in by:
        if name not in usable:
            raise InputError(f"by {name}: rows can be split by {', '.join(usable)}")
    types = {**needed, **dict.fromkeys(by, "string")}
    chosen = dataframe.selectExpr(
        *(f"CAST({_quote(name)} AS {kind}) AS {_quote(name)}" for name, kind in types.items())
    )
    scan = partial(_scan, metrics=tuple(metrics), by=tuple(by))
    shape = (CLUSTERS, len(evaluation.columns))
    clusters = np.arange(CLUSTERS)
    for row in chosen.mapInArrow(scan, _SUMS_SQL).toArrow().to_pylist():
        if row["refusal"] is not None:
            raise InputError(row["refusal"])
        sums = np.array(row["sums"], np.int64).reshape(2, *shape)
        counts = np.array(row["counts"], np.int64).reshape(shape)
        segment = tuple(row["segment"])
        evaluation.add_sums(segment, clusters, sums, counts)
        evaluation.checksums.setdefault(segment, set()).update(row["checksums"])
        evaluation.add_cells(segment, np.array(row["cells"], np.int64))
    return evaluation


def _scan(
    records: Iterator[Any], metrics: Sequence[str], by: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Scan one partition on a worker. Errors are returned: Spark would try an exception again."""
    evaluation = Evaluation([Asked.parse(name) for name in metrics], by)
    with_judged = any(asked.by_judged for asked in evaluation.asked)
    try:
        for record in records:
            for start in range(0, len(record), ROWS):
                rows_here = _narrow(record.slice(start, ROWS))
                require_rows("the DataFrame", rows_here)
                evaluation.add(batch_of(rows_here, by, with_judged=with_judged))
    except InputError as error:
        rows: list[dict[str, Any]] = [{"refusal": str(error)}]
    else:
        rows = [
            {
                "segment": name,
                "sums": sums.ravel(),
                "counts": counts.ravel(),
                "checksums": list(evaluation.checksums[name]),
                "cells": np.flatnonzero(evaluation.cells[name]),
            }
            for name, (sums, counts) in evaluation.segments.items()
        ]
    yield pa.RecordBatch.from_pylist(rows, _SUMS)


def _narrow(record: Any) -> Any:
    """Strings with 32-bit offsets, whatever the session's settings."""
    fields = [
        field.with_type(pa.string()) if pa.types.is_large_string(field.type) else field
        for field in record.schema
    ]
    return record.cast(pa.schema(fields))


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
