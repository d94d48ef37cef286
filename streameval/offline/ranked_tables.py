"""Ranked lists from two tables: what was shown, and what turned out relevant.

Slates (list, item, and rank or score) and labels (list, item, gain) as Parquet, CSV or JSON Lines,
or a TREC run and qrels. DuckDB puts them in order and joins them; it works in bounded memory and
sets aside on disk what does not fit.

The order of a list is that of `rank`, or of `score` from the highest. Equal scores: with ties
`trec`, the item that sorts last comes first, scores being single precision, as trec_eval has it;
with `input`, the order of the file.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from streameval.core.errors import InputError
from streameval.core.windows import cluster_of
from streameval.offline.answer import Note
from streameval.offline.batches import ROWS, Advance, Batch
from streameval.offline.inputs import segments_of
from streameval.offline.table_files import (
    GAIN_NAMES,
    ITEM_NAMES,
    LIST_NAMES,
    RANK_NAMES,
    SCORE_NAMES,
    USER_NAMES,
    columns_of,
    connected,
    label,
    load,
    named,
    number,
    opened,
    optional,
    rank,
    size,
    text,
)
from streameval.offline.table_scans import quoted

Ties: TypeAlias = Literal["trec", "input"]
# Lines of a TREC file in one go.
LINES: Final = 100_000
# Rows of slates that are put in order in one go: DuckDB's memory holds them without the disk.
PORTION_ROWS: Final = 500_000

_ORDER: Final[dict[Ties, str]] = {
    "trec": "CAST(score AS FLOAT) DESC, item DESC, line",
    "input": "score DESC, line",
}
_EQUAL: Final[dict[Ties, str]] = {"trec": "CAST(score AS FLOAT)", "input": "score"}
"""What two items have in common whose order is left to the rule."""


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


_UNMATCHED: Final = "Nothing to measure: {} a label; are ids written alike in both files?"


def tie_notes(tied: int, scored: int, rule: Ties) -> list[Note]:
    """How many lists equal scores left to the rule, where scores put any in order at all."""
    if not scored:
        return []
    words = {
        "trec": "the item whose id sorts last comes first, as trec_eval has it",
        "input": "the order of the file",
    }
    text = (
        f"{tied:,} of {scored:,} lists that are in order of score have equal scores;"
        f" --ties {rule}: {words[rule]}."
    )
    return [Note("ties", {"lists": tied, "of": scored, "rule": rule}, text if tied else "")]


def read_tables(tables: Tables, advance: Advance, notes: list[Note]) -> Iterator[Batch]:
    """The lists of both tables, with their names. Raises `InputError`.

    At their end `notes` says where the two have nothing in common.
    """
    labelled = met = False
    with connected(*tables.shown, *tables.labels) as connection:
        if tables.kind == "trec":
            _load_trec(connection, tables, advance)
        else:
            load_shown(connection, tables.shown, tables.by, advance)
            load_labels(connection, tables.labels, advance)
        for _ in _portions(connection):
            ((scores,),) = connection.execute("SELECT count(score) FROM shown").fetchall()
            connection.execute(_query(tables, has_scores=scores > 0))
            while rows := connection.fetchmany(ROWS):
                labelled = labelled or any(row[0] for row in rows)
                met = met or any(row[1] for row in rows)
                yield _batch([row[2:] for row in rows], tables.by)
    if not labelled:
        notes.append(Note("unmatched", "lists", _UNMATCHED.format("no list that is shown has")))
    elif not met:
        notes.append(Note("unmatched", "items", _UNMATCHED.format("no item that is shown has")))


def _portions(connection: Any) -> Iterator[int]:
    """Make `shown` and `labels` a portion of the lists at a time, each all of a list or nothing.

    Putting a table in order that does not fit into memory costs many times what its parts do.
    """
    ((rows,),) = connection.execute("SELECT count(*) FROM shown").fetchall()
    portions = int(rows) // PORTION_ROWS + 1
    if portions == 1:
        yield 0
        return
    for name in ("shown", "labels"):
        connection.execute(f"ALTER TABLE {name} RENAME TO all_{name}")
    for portion in range(portions):
        for name in ("shown", "labels"):
            connection.execute(
                f"CREATE OR REPLACE TABLE {name} AS SELECT * FROM all_{name}"  # noqa: S608  # ours
                f" WHERE hash(list) % {portions} = {portion}"
            )
        yield portion


def load_shown(connection: Any, files: Sequence[str], by: Sequence[str], advance: Advance) -> None:
    """Read slates into the table `shown`: list, item, rank, score, user, `by …`, line."""
    tables = opened(connection, files)
    known = columns_of(tables)
    lists = named(files, known, LIST_NAMES)
    place, score = optional(known, RANK_NAMES), optional(known, SCORE_NAMES)
    if place is None and score is None:
        raise InputError(
            f"{', '.join(files)}: no column {' or '.join((*RANK_NAMES, *SCORE_NAMES))}: a list"
            " needs an order"
        )
    columns = {
        "list": text(lists),
        "item": text(named(files, known, ITEM_NAMES)),
        "user": text(named(files, known, (*USER_NAMES, lists))),
        **{f"by {name}": label(named(files, known, (name,))) for name in by},
    }
    if place is not None:
        columns["rank"] = rank(place)
    if score is not None:
        columns["score"] = number(score)
    load(connection, "shown", tables, columns)
    for name, sort in (("rank", "BIGINT"), ("score", "DOUBLE")):
        connection.execute(f"ALTER TABLE shown ADD COLUMN IF NOT EXISTS {name} {sort}")
    check_one_segment(connection, "shown", files, by)
    advance(size(files))


def check_one_segment(connection: Any, table: str, files: Sequence[str], by: Sequence[str]) -> None:
    """Raise `InputError` for a list with several values of a dimension."""
    for name in by:
        value = f"coalesce({quoted('by ' + name)}, '')"
        wrong = connection.execute(
            f"SELECT list FROM {table} GROUP BY list HAVING min({value}) <> max({value})"  # noqa: S608  # names are quoted
            " ORDER BY list LIMIT 1"
        ).fetchall()
        for (found,) in wrong:
            raise InputError(
                f"{', '.join(files)}: list {found} has several values of {name}: write a file for"
                f" each {name}, or lists with names of their own"
            )


def load_labels(connection: Any, files: Sequence[str], advance: Advance) -> None:
    """Read labels into the table `labels`: list, item, gain, line."""
    tables = opened(connection, files)
    known = columns_of(tables)
    columns = {
        "list": text(named(files, known, LIST_NAMES)),
        "item": text(named(files, known, ITEM_NAMES)),
        "gain": number(optional(known, GAIN_NAMES)),
    }
    load(connection, "labels", tables, columns)
    advance(size(files))


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
    found = False
    opened = gzip.open if path.lower().endswith(".gz") else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", errors="strict") as lines:
            for number, line in enumerate(lines, start=1):
                words = line.split()
                if not words:
                    continue
                found = True
                # As in trec_eval, what follows the last field is a comment.
                if len(words) < fields:
                    raise InputError(f"{path}:{number}: {fields} fields expected: {line.strip()}")
                rows.append((words[0], words[2], _finite(path, number, words[value]), number))
                if len(rows) == LINES:
                    yield _arrow(rows)
                    rows.clear()
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise InputError(f"{path}: {error}: a TREC file is UTF-8, plain or .gz") from error
    if not found:
        raise InputError(f"{path}: is empty")
    advance(Path(path).stat().st_size)
    if rows:
        yield _arrow(rows)


def _finite(path: str, line: int, word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{path}:{line}: {word} is no finite number")
    return value


def _arrow(rows: Sequence[tuple[str, str, float, int]]) -> Any:
    lists, items, values, lines = zip(*rows, strict=True)
    return pa.table({"list": lists, "item": items, "value": values, "line": lines})


def ordered(ties: Ties, judged: str = "", *, has_scores: bool = True) -> str:
    """The SQL of the table `ranked`, made of `shown`: its items with `rank`, `number`, `place`.

    A duplicate keeps its best place. `number` counts from 1; with ranks, gaps stay and equal ranks
    move down (`core.metrics.order_ranks`). `place` counts items that score as high or higher, ties
    1/2: null where one has no score; a list in which none has is taken by its order. `by_score`:
    the score decided the order; `equal`: and another item has the same. `has_scores` False: no item
    of `shown` has a score, so nothing needs to be counted by it.
    """
    order = f"rank NULLS LAST, {_ORDER[ties]}"
    counts = (
        """, count(score) OVER (PARTITION BY list) AS scores,
                count(*) OVER (PARTITION BY list) AS items"""
        if has_scores
        else ""
    )
    placed = (
        f"""CASE WHEN scores = 0 THEN number WHEN scores = items
                    THEN rank() OVER (PARTITION BY list ORDER BY score DESC)
                        + (count(*) OVER (PARTITION BY list, score) - 1) / 2 END AS place,
                rank IS NULL AND score NOTNULL AS by_score,
                rank IS NULL AND score NOTNULL
                    AND count(*) OVER (PARTITION BY list, {_EQUAL[ties]}) > 1 AS equal"""
        if has_scores
        else "number::DOUBLE AS place, false AS by_score, false AS equal"
    )
    return f"""
        first_shown AS (
            SELECT * FROM shown {judged}
            QUALIFY row_number() OVER (PARTITION BY list, item ORDER BY {order}) = 1
        ), numbered AS (
            SELECT *, row_number() OVER (PARTITION BY list ORDER BY {order}) AS number{counts}
            FROM first_shown
        ), ranked AS (
            SELECT * EXCLUDE (rank),
                number + max(greatest(coalesce(rank, 0) - number, 0))
                    OVER (PARTITION BY list ORDER BY number) AS rank,
                {placed}
            FROM numbered
        )
    """  # noqa: S608  # our own words


def _query(tables: Tables, *, has_scores: bool) -> str:
    """One row a list: its relevant items in the order of rank, those not shown last."""
    dimensions = "".join(f", any_value({quoted('by ' + name)})" for name in tables.by)
    only_shown = "" if tables.complete else "WHERE list IN (SELECT list FROM shown)"
    judged = "WHERE list IN (SELECT list FROM labels)" if tables.kind == "trec" else ""
    return f"""
        WITH {ordered(tables.ties, judged, has_scores=has_scores)}, judged AS (
            SELECT list, item, max(gain) AS gain FROM labels {only_shown} GROUP BY ALL
        ), both_sides AS (
            SELECT * EXCLUDE (gain), coalesce(gain, 0.0) AS gain,
                gain NOTNULL AS labelled
            FROM ranked FULL JOIN judged USING (list, item)
        )
        SELECT bool_or(rank NOTNULL) AND bool_or(labelled), bool_or(rank NOTNULL AND labelled),
            list, coalesce(any_value(user), list) AS user, count(rank) AS length,
            bool_or(by_score), bool_or(equal),
            list(coalesce(rank, 0) ORDER BY rank NULLS LAST, gain DESC) FILTER (gain > 0),
            list(gain ORDER BY rank NULLS LAST, gain DESC) FILTER (gain > 0),
            list(CASE WHEN rank IS NULL THEN 0.0 ELSE coalesce(place, 'nan'::DOUBLE) END
                ORDER BY rank NULLS LAST, gain DESC) FILTER (gain > 0){dimensions}
        FROM both_sides GROUP BY list
    """  # noqa: S608  # names are quoted


def _batch(rows: Sequence[tuple[Any, ...]], by: Sequence[str]) -> Batch:
    ids, users, length, scored, equal, ranks, gains, places, *dimensions = zip(*rows, strict=True)
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
        tied=(sum(map(bool, equal)), sum(map(bool, scored))),
    )


def _joined(lists: Sequence[Sequence[float] | None]) -> Any:
    return np.array([value for values in lists for value in values or ()], np.float64)
