"""Results of an approximate and an exact index, and samples of one positive among negatives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from streameval.base.errors import InputError
from streameval.core.metrics.retrieval import Results, SampledRanks
from streameval.evaluation.answer import Answer, Note
from streameval.evaluation.batches import ROWS, Advance
from streameval.evaluation.readers.matching import Side, require_common
from streameval.evaluation.readers.outcomes import files_of
from streameval.evaluation.readers.ranked_tables import (
    Ties,
    check_one_segment,
    drop_repeats,
    load_slates,
    order,
    tie_notes,
)
from streameval.evaluation.request import EXACT, FILES, SAMPLED, TIES, Given
from streameval.evaluation.sums import Asked, compute_figures
from streameval.evaluation.units import BY, UnitBatch, batch_of, dimensions
from streameval.files.table_scans import quote
from streameval.files.tables import (
    LIST_NAMES,
    SCORE_NAMES,
    USER_NAMES,
    connect,
    find_column,
    label,
    load,
    number,
    open_tables,
    size,
    text,
)

POSITIVE_NAMES: Final = ("positive", "label", "gain", "relevance")


def index_figures(given: Given, asked: Sequence[Asked], advance: Advance) -> Answer:
    """Compute the recall of an index over the queries of the exact result. Raises `InputError`."""
    longest = max(figure.k for figure in asked)
    ties: Ties = given.value(TIES) or "input"
    with connect(*given[FILES], *given[EXACT]) as connection:
        for table, paths, by in (("found", given[FILES], given.by), ("best", given[EXACT], ())):
            load_slates(connection, files_of(paths), by, advance)
            drop_repeats(connection, ties)
            chosen = dimensions(by)
            connection.execute(f"""
                CREATE TABLE {table} AS WITH {order(ties)}
                SELECT list, user{chosen}, item, number, by_score, equal
                FROM ranked WHERE number <= {longest}
            """)  # noqa: S608  # names are quoted
            connection.execute("DROP TABLE slates")
        for column in ("list", "item"):
            sides = Side(given[FILES], "found", column), Side(given[EXACT], "best", column)
            require_common(connection, *sides)
        batches = _queries(connection, given.by)
        found = compute_figures(batches, asked, given)
    return found.answer(*tie_notes(found.tied, found.scored, ties))


def _queries(connection: Any, by: Sequence[str]) -> Iterator[UnitBatch[Results]]:
    firsts = "".join(f", any_value({quote(BY + name)}) AS {quote(BY + name)}" for name in by)
    items = (
        "SELECT list, any_value(user) AS user, list(item ORDER BY number) AS items,"
        " bool_or(equal) AS tied, bool_or(by_score) AS scored"
    )
    connection.execute(f"""
        SELECT list, coalesce(found.user, best.user), found.items, best.items,
            best.tied OR coalesce(found.tied, false),
            best.scored OR coalesce(found.scored, false){dimensions(by)}
        FROM ({items} FROM best GROUP BY list) AS best
        LEFT JOIN ({items}{firsts} FROM found GROUP BY list) AS found USING (list)
    """)  # noqa: S608  # names are quoted
    while rows := connection.fetchmany(ROWS):
        ids, users, found, best, tied, scored, *_ = zip(*rows, strict=True)
        results = Results([items or () for items in found], best)
        segments = [tuple(value or "" for value in row[6:]) for row in rows]
        yield batch_of(results, users, segments, ids, (sum(tied), sum(scored)))


def sampled_figures(given: Given, asked: Sequence[Asked], advance: Advance) -> Answer:
    """Compute figures of a positive among sampled negatives. Raises `InputError`."""
    with connect(*given[SAMPLED]) as connection:
        files = files_of(given[SAMPLED])
        tables, known = open_tables(connection, files)
        lists = find_column(files, known, LIST_NAMES)
        columns = {
            "list": text(lists),
            "user": text(find_column(files, known, (*USER_NAMES, lists))),
            "score": number(find_column(files, known, SCORE_NAMES)),
            "gain": number(find_column(files, known, POSITIVE_NAMES)),
        }
        columns |= {BY + name: label(find_column(files, known, (name,))) for name in given.by}
        load(connection, "given", tables, columns)
        check_one_segment(connection, "given", files, given.by)
        connection.execute("CREATE VIEW sampled AS SELECT *, gain > 0 AS positive FROM given")
        advance(size(files))
        fewest, most = _check_samples(connection, files)
        batches = _samples(connection, given.by)
        evaluation = compute_figures(batches, asked, given)
    count = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
    note = Note("negatives", [fewest, most], f"{count} sampled negatives for each positive.")
    return evaluation.answer(note)


def _check_samples(connection: Any, files: Sequence[str]) -> tuple[int, int]:
    """Return the fewest and most negatives of a sample. Raises `InputError` for unsound ones."""
    where = ", ".join(files)
    wrong = connection.execute("""
        SELECT list, count(*) FILTER (positive) AS positives,
            count(*) FILTER (score IS NULL OR positive IS NULL) AS unknown
        FROM sampled GROUP BY list HAVING positives <> 1 OR unknown > 0 ORDER BY list LIMIT 1
    """).fetchall()
    for name, positives, unknown in wrong:
        if unknown:
            raise InputError(f"{where}: {name}: each row needs a score and its label")
        raise InputError(f"{where}: {name}: {positives} positives; a sample has exactly one")
    ((fewest, most),) = connection.execute(
        "SELECT min(count), max(count) FROM (SELECT count(*) - 1 AS count FROM sampled"
        " GROUP BY list)"
    ).fetchall()
    return int(fewest or 0), int(most or 0)


def _samples(connection: Any, by: Sequence[str]) -> Iterator[UnitBatch[SampledRanks]]:
    connection.execute(f"""
        WITH best AS (SELECT list, user, score{dimensions(by)} FROM sampled WHERE positive)
        SELECT list, best.user,
            1 + count(*) FILTER (NOT positive AND sampled.score >= best.score)
            {"".join(f", best.{quote(BY + name)}" for name in by)}
        FROM best JOIN sampled USING (list) GROUP BY ALL
    """)  # noqa: S608  # names are quoted
    while rows := connection.fetchmany(ROWS):
        ids, users, ranks, *_ = zip(*rows, strict=True)
        segments = [tuple(value or "" for value in row[3:]) for row in rows]
        yield batch_of(SampledRanks(np.array(ranks, np.int64)), users, segments, ids)
