"""Ratings and predictions from tables, as pairs of a user and an item.

Ratings (user, item, rating[, timestamp]) hold the predictions themselves, or a second table does
(user, item, prediction). A pair that is rated twice counts once: with the latest timestamp, else
the later line. A rating without a prediction is left out and counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from streameval.base.counts import count_of
from streameval.base.errors import InputError
from streameval.core.metrics.rating_errors import Ratings
from streameval.evaluation.answer import Answer, Note
from streameval.evaluation.batches import Advance
from streameval.evaluation.readers.matching import Side, require_common
from streameval.evaluation.readers.outcomes import files_of
from streameval.evaluation.request import PREDICTIONS, RATINGS, Given
from streameval.evaluation.sums import Asked, compute_figures
from streameval.evaluation.units import BY, UnitBatch, batch_of, dimensions, group
from streameval.files.table_scans import TableFile
from streameval.files.tables import (
    ITEM_NAMES,
    PREDICTED_NAMES,
    RATED_NAMES,
    USER_NAMES,
    Column,
    columns_of,
    connect,
    find_column,
    label,
    load,
    number,
    open_tables,
    optional,
    or_names,
    size,
    text,
    time,
)

RATING_NAMES: Final = ("rating", "actual", "label", *RATED_NAMES)
PREDICTION_NAMES: Final = ("prediction", "predicted", "score", *PREDICTED_NAMES)
TIME_NAMES: Final = ("timestamp", "ts", "time")


def rating_figures(given: Given, asked: Sequence[Asked], advance: Advance) -> Answer:
    """Compute errors over pairs and users, and figures at a threshold. Raises `InputError`."""
    files = [*given[RATINGS], *given[PREDICTIONS]]
    with connect(*files) as connection:
        notes = load_pairs(connection, given, advance)
        batches = rated_users(connection, given)
        evaluation = compute_figures(batches, asked, given)
    return evaluation.answer(*notes)


def load_pairs(connection: Any, given: Given, advance: Advance) -> list[Note]:
    """Make the table `pairs`: `by …`, user, item, rating, prediction, line.

    Return notes on ratings that were left out. Raises `InputError`.
    """
    ratings, predictions = files_of(given[RATINGS]), files_of(given[PREDICTIONS])
    tables, known = open_tables(connection, ratings)
    here = [name for name in given.by if optional(known, (name,))]
    again = _load_ratings(connection, tables, here, advance, with_predictions=not predictions)
    if predictions:
        _join(connection, predictions, given.by, here, advance)
    else:
        if missing := [name for name in given.by if not optional(known, (name,))]:
            find_column(ratings, known, missing)
        connection.execute("CREATE VIEW both_sides AS SELECT * FROM latest")
    connection.execute("CREATE TABLE pairs AS SELECT * FROM both_sides WHERE prediction NOTNULL")
    without = _count(connection, "both_sides") - _count(connection, "pairs")
    if predictions and not _count(connection, "pairs"):
        for key in ("user", "item"):
            require_common(
                connection, Side(ratings, "latest", key), Side(predictions, "predicted", key)
            )
    notes = [
        Note("ratings_replaced", again, f"Left out, as rated again: {count_of(again, 'rating')}."),
        Note(
            "ratings_without_prediction",
            without,
            f"Left out, without a prediction: {count_of(without, 'rating')}.",
            "loss",
        ),
    ]
    return [note for note in notes if note.value]


def _load_ratings(
    connection: Any,
    tables: Sequence[TableFile],
    by: Sequence[str],
    advance: Advance,
    *,
    with_predictions: bool,
) -> int:
    """Make the table `latest`, a row a pair; return how many ratings were replaced by others."""
    files, known = [table.file for table in tables], columns_of(tables)
    moment = optional(known, TIME_NAMES)
    columns = _keys(files, known) | {
        "rating": number(find_column(files, known, RATING_NAMES)),
        **{BY + name: label(name) for name in by},
    }
    if moment is not None:
        columns["moment"] = time(moment)
    if with_predictions:
        columns["prediction"] = number(_prediction(files, known))
    load(connection, "rated", tables, columns)
    advance(size(files))
    _require_ratings(connection, files)
    order = "moment DESC NULLS LAST, " if moment is not None else ""
    connection.execute(f"""
        CREATE TABLE latest AS SELECT * FROM rated QUALIFY row_number() OVER
            (PARTITION BY user, item{dimensions(by)} ORDER BY {order}line DESC) = 1
    """)  # noqa: S608  # names are quoted
    return _count(connection, "rated") - _count(connection, "latest")


def _count(connection: Any, table: str) -> int:
    ((count,),) = connection.execute(f"SELECT count(*) FROM {table}").fetchall()  # noqa: S608
    return int(count)


def _join(
    connection: Any,
    files: Sequence[str],
    by: Sequence[str],
    in_ratings: Sequence[str],
    advance: Advance,
) -> None:
    """Put the predictions of a table of their own beside the ratings."""
    tables, known = open_tables(connection, files)
    here = [name for name in by if name not in in_ratings]
    columns = _keys(files, known) | {"prediction": number(_prediction(files, known))}
    columns |= {BY + find_column(files, known, (name,)): label(name) for name in here}
    load(connection, "predicted", tables, columns)
    advance(size(files))
    twice = connection.execute(
        f"SELECT user, item FROM predicted GROUP BY user, item{dimensions(here)}"  # noqa: S608  # names are quoted
        " HAVING count(*) > 1 LIMIT 1"
    ).fetchall()
    for user, item in twice:
        raise InputError(
            f"{', '.join(files)}: {user}, {item}: predicted twice; --by names the column that tells"
            " models apart"
        )
    connection.execute(
        "CREATE VIEW both_sides AS SELECT * FROM latest"
        " LEFT JOIN (SELECT * EXCLUDE (line) FROM predicted) USING (user, item)"
    )


def _keys(files: Sequence[str], known: Sequence[str]) -> dict[str, Column]:
    return {
        "user": text(find_column(files, known, USER_NAMES)),
        "item": text(find_column(files, known, ITEM_NAMES)),
    }


def _prediction(files: Sequence[str], known: Sequence[str]) -> str:
    found = optional(known, PREDICTION_NAMES)
    if found is None:
        raise InputError(
            f"{', '.join(files)}: no column {or_names(PREDICTION_NAMES)}: give the predictions"
            " in it, or in a table of their own with --predictions"
        )
    return found


def _require_ratings(connection: Any, files: Sequence[str]) -> None:
    """Refuse a pair without a rating; `load` refuses other empty cells."""
    wrong = connection.execute("SELECT user, item FROM rated WHERE rating IS NULL LIMIT 1")
    for user, item in wrong.fetchall():
        raise InputError(f"{', '.join(files)}: {user}, {item}: each row needs a rating")


def rated_users(connection: Any, given: Given) -> Iterator[UnitBatch[Ratings]]:
    """Yield users with their pairs of the table `pairs`, by segment."""
    keys = f"user{dimensions(given.by)}"
    query = f"SELECT {keys}, rating, prediction, line FROM pairs ORDER BY {keys}, item, line"  # noqa: S608  # names are quoted
    for rows, starts in group(connection, query, 1 + len(given.by)):
        firsts = [rows[start] for start in starts]
        users = [row[0] for row in firsts]
        pairs = [row[-3:] for row in rows]
        actual, predicted, lines = zip(*pairs, strict=True)
        data = Ratings(
            starts=np.array(starts, np.int64),
            actual=np.array(actual, np.float64),
            predicted=np.array(predicted, np.float64),
            lines=np.array(lines, np.int64),
        )
        yield batch_of(data, users, [tuple(row[1:-3]) for row in firsts], users)
