"""Ranked lists from two tables: what was shown, and what turned out relevant.

Slates (list, item, and rank or score) and labels (list, item, gain) as Parquet, CSV or JSON Lines,
or a TREC run and qrels. DuckDB puts them in order and joins them; it works in bounded memory and
sets aside on disk what does not fit.

The order of a list is that of `rank`, or of `score` from the highest. Equal scores: with ties
`trec`, the item that sorts last comes first, scores being single precision, as trec_eval has it;
with `input`, the order of the file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import duckdb
import numpy as np
import pyarrow as pa

from streameval.core.errors import InputError
from streameval.core.windows import cluster_of
from streameval.offline.batches import ROWS, Advance, Batch
from streameval.offline.inputs import segments_of

Ties: TypeAlias = Literal["trec", "input"]
MEMORY: Final = "512MB"
# Lines of a TREC file in one go.
LINES: Final = 100_000

LIST_NAMES: Final = ("list", "list_id", "request", "request_id", "query", "qid", "user", "user_id")
ITEM_NAMES: Final = ("item", "item_id", "doc", "docid", "docno")
RANK_NAMES: Final = ("rank", "position")
SCORE_NAMES: Final = ("score", "prediction")
GAIN_NAMES: Final = ("gain", "relevance", "label", "rating")
"""What a column may be called: the first that a table has counts."""

_ORDER: Final[dict[Ties, str]] = {
    "trec": "CAST(score AS FLOAT) DESC, item DESC, line",
    "input": "score DESC, line",
}


@dataclass(frozen=True, slots=True)
class Tables:
    """What to read. `kind`: tables by column names, or TREC's run and qrels.

    `complete`: lists that only the labels know count as empty, 0 in every mean; else they are
    left out. Lists of a TREC run without qrels are left out, as nothing is known of them; slates
    without labels have nothing relevant.
    """

    shown: Sequence[str]
    labels: Sequence[str]
    kind: Literal["tables", "trec"]
    by: Sequence[str] = ()
    ties: Ties = "input"
    complete: bool = True


def read_tables(tables: Tables, advance: Advance) -> Iterator[Batch]:
    """The lists of both tables, with their names. Raises `InputError`."""
    with tempfile.TemporaryDirectory(prefix="streameval-") as folder:
        connection = duckdb.connect(
            config={"memory_limit": MEMORY, "temp_directory": folder, "threads": 2}
        )
        try:
            load = _load_trec if tables.kind == "trec" else _load_tables
            load(connection, tables, advance)
            connection.execute(_query(tables))
            while rows := connection.fetchmany(ROWS):
                yield _batch(rows, tables.by)
        except duckdb.Error as error:
            names = ", ".join((*tables.shown, *tables.labels))
            raise InputError(f"{names}: {str(error).splitlines()[0]}") from error
        finally:
            connection.close()


def _load_tables(connection: Any, tables: Tables, advance: Advance) -> None:
    for name, files in (("shown", tables.shown), ("labels", tables.labels)):
        known = _columns(connection, files)
        chosen = {
            "list": _named(files, known, LIST_NAMES),
            "item": _named(files, known, ITEM_NAMES),
        }
        if name == "labels":
            gain = _named(files, known, GAIN_NAMES, needed=False)
            values = [f"{_quoted(gain)}::DOUBLE AS gain" if gain else "1.0 AS gain"]
        else:
            values = _order_columns(files, known)
            user = _named(files, known, ("user", "user_id", chosen["list"]))
            values.append(f"{_quoted(user)}::VARCHAR AS user")
            for dimension in tables.by:
                column = _named(files, known, (dimension,))
                values.append(f"{_quoted(column)}::VARCHAR AS {_quoted('by ' + dimension)}")
        keys = [f"{_quoted(column)}::VARCHAR AS {key}" for key, column in chosen.items()]
        connection.execute(
            f"CREATE TABLE {name} AS SELECT {', '.join(keys + values)},"  # noqa: S608  # names are quoted
            f" row_number() OVER () AS line FROM {_source(files)}"
        )
        advance(sum(Path(file).stat().st_size for file in files))


def _order_columns(files: Sequence[str], known: Sequence[str]) -> list[str]:
    rank = _named(files, known, RANK_NAMES, needed=False)
    score = _named(files, known, SCORE_NAMES, needed=False)
    if rank is None and score is None:
        raise InputError(
            f"{', '.join(files)}: no column {' or '.join((*RANK_NAMES, *SCORE_NAMES))}: a list"
            " needs an order"
        )
    return [
        f"{_quoted(rank)}::BIGINT AS rank" if rank else "NULL::BIGINT AS rank",
        f"{_quoted(score)}::DOUBLE AS score" if score else "NULL::DOUBLE AS score",
    ]


def _load_trec(connection: Any, tables: Tables, advance: Advance) -> None:
    """Run: `list Q0 item rank score tag`; qrels: `list 0 item gain`; any white space between."""
    if tables.by:
        raise InputError("--by: a TREC run has no segments")
    connection.execute(
        "CREATE TABLE shown (list VARCHAR, item VARCHAR, score DOUBLE, line BIGINT,"
        " rank BIGINT, user VARCHAR)"
    )
    connection.execute("CREATE TABLE labels (list VARCHAR, item VARCHAR, gain DOUBLE, line BIGINT)")
    for path in tables.shown:
        for part in _trec(path, 6, 4, advance):
            connection.register("part", part)
            connection.execute("INSERT INTO shown SELECT *, NULL, list FROM part")
    for path in tables.labels:
        for part in _trec(path, 4, 3, advance):
            connection.register("part", part)
            connection.execute("INSERT INTO labels SELECT * FROM part")


def _trec(path: str, fields: int, value: int, advance: Advance) -> Iterator[Any]:
    """The lines of a TREC file as tables of list, item, value and line."""
    rows: list[tuple[str, str, float, int]] = []
    try:
        with Path(path).open(encoding="utf-8", errors="strict") as lines:
            for number, line in enumerate(lines, start=1):
                words = line.split()
                if not words:
                    continue
                # As in trec_eval, what follows the last field is a comment.
                if len(words) < fields:
                    raise InputError(f"{path}:{number}: {fields} fields expected: {line.strip()}")
                rows.append((words[0], words[2], float(words[value]), number))
                if len(rows) == LINES:
                    yield _arrow(rows)
                    rows.clear()
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {error}") from error
    advance(Path(path).stat().st_size)
    if rows:
        yield _arrow(rows)


def _arrow(rows: Sequence[tuple[str, str, float, int]]) -> Any:
    lists, items, values, lines = zip(*rows, strict=True)
    return pa.table({"list": lists, "item": items, "value": values, "line": lines})


def _query(tables: Tables) -> str:
    """One row a list: its relevant items in the order of rank, those not shown last.

    A duplicate keeps its best place. With ranks, gaps stay and equal ranks move down
    (`core.metrics.order_ranks`). `place` counts items that score as high or higher, ties 1/2.
    """
    dimensions = "".join(f", any_value({_quoted('by ' + name)})" for name in tables.by)
    only_shown = "" if tables.complete else "WHERE list IN (SELECT list FROM shown)"
    judged = "WHERE list IN (SELECT list FROM labels)" if tables.kind == "trec" else ""
    order = f"rank NULLS LAST, {_ORDER[tables.ties]}"
    return f"""
        WITH first_shown AS (
            SELECT * FROM shown {judged}
            QUALIFY row_number() OVER (PARTITION BY list, item ORDER BY {order}) = 1
        ), numbered AS (
            SELECT *, row_number() OVER (PARTITION BY list ORDER BY {order}) AS number
            FROM first_shown
        ), ranked AS (
            SELECT * EXCLUDE (rank),
                number + max(greatest(coalesce(rank, 0) - number, 0))
                    OVER (PARTITION BY list ORDER BY number) AS rank,
                CASE WHEN rank IS NOT NULL OR score IS NULL THEN number
                    ELSE rank() OVER (PARTITION BY list ORDER BY score DESC)
                        + (count(*) OVER (PARTITION BY list, score) - 1) / 2 END AS place
            FROM numbered
        ), judged AS (
            SELECT list, item, max(gain) AS gain FROM labels {only_shown} GROUP BY ALL
        ), both_sides AS (
            SELECT * EXCLUDE (gain), coalesce(gain, 0.0) AS gain
            FROM ranked FULL JOIN judged USING (list, item)
        )
        SELECT list, coalesce(any_value(user), list) AS user, count(rank) AS length,
            list(coalesce(rank, 0) ORDER BY rank NULLS LAST, gain DESC) FILTER (gain > 0),
            list(gain ORDER BY rank NULLS LAST, gain DESC) FILTER (gain > 0),
            list(coalesce(place, 0.0) ORDER BY rank NULLS LAST, gain DESC)
                FILTER (gain > 0){dimensions}
        FROM both_sides GROUP BY list
    """  # noqa: S608  # names are quoted


def _batch(rows: Sequence[tuple[Any, ...]], by: Sequence[str]) -> Batch:
    ids, users, length, ranks, gains, places, *dimensions = zip(*rows, strict=True)
    values = [tuple(value or "" for value in row) for row in zip(*dimensions, strict=True)]
    segments, names = segments_of(values if by else [()] * len(rows))
    return Batch(
        relevant=np.array([len(values or ()) for values in ranks], np.int64),
        ranks=_joined(ranks).astype(np.int64),
        gains=_joined(gains),
        places=_joined(places),
        length=np.array(length, np.int64),
        clusters=np.array([cluster_of(user) for user in users], np.int64),
        segments=segments,
        names=names,
        ids=ids,
    )


def _joined(lists: Sequence[Sequence[float] | None]) -> Any:
    return np.array([value for values in lists for value in values or ()], np.float64)


def _columns(connection: Any, files: Sequence[str]) -> list[str]:
    found = connection.execute(f"DESCRIBE SELECT * FROM {_source(files)}").fetchall()  # noqa: S608
    return [row[0] for row in found]


def _source(files: Sequence[str]) -> str:
    """The table function that reads files of one sort, told by the end of their names."""
    names = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
    plain = files[0].removesuffix(".gz").removesuffix(".zst")
    if plain.endswith(".parquet"):
        return f"read_parquet([{names}])"
    if plain.endswith((".csv", ".tsv")):
        return f"read_csv([{names}])"
    if plain.endswith((".jsonl", ".ndjson", ".json")):
        return f"read_json([{names}])"
    raise InputError(f"{files[0]}: a table is a .parquet, .csv, .tsv or .jsonl file")


def _named(
    files: Sequence[str], known: Sequence[str], names: Sequence[str], *, needed: bool = True
) -> Any:
    """The first column of `names` that a table has; None without one, if none is needed."""
    for name in names:
        if name in known:
            return name
    if needed:
        raise InputError(
            f"{', '.join(files)}: no column {' or '.join(names)} (it has {', '.join(known)})"
        )
    return None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
