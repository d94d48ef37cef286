"""Ranked lists from two tables: slates, and labels of relevant items.

Slates (list, item, and rank or score) and labels (list, item, gain) as Parquet, CSV or JSON Lines,
or a TREC run and qrels. DuckDB reads and checks them. It uses the disk beyond its memory, and hands
over a portion of the lists at a time, which `ranked_lists` joins.

A list is ordered by `rank`, or by `score` from the highest. With ties `trec`, scores are equal
in single precision, and among them the item that sorts last comes first, as in trec_eval. With ties
`input` they keep the order of the file.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from streameval.base.arrays import Ints
from streameval.base.errors import InputError
from streameval.evaluation.answer import Note, counted
from streameval.evaluation.batches import Advance, Batch
from streameval.evaluation.readers.item_tables import load_interactions
from streameval.evaluation.readers.matching import Side, part_note, require_common
from streameval.evaluation.readers.ranked_lists import LARGEST_SINGLE, ranked_lists
from streameval.files.arrow_arrays import column, numbers
from streameval.files.parquet_rows import ParquetRows
from streameval.files.table_scans import quoted
from streameval.files.tables import (
    GAIN_NAMES,
    ITEM_NAMES,
    LIST_NAMES,
    RANK_NAMES,
    SCORE_NAMES,
    USER_NAMES,
    batches,
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
    view,
)

Ties: TypeAlias = Literal["trec", "input"]
# Lines of a TREC file in one go.
LINES: Final = 100_000
# Rows of slates and labels that are joined in one go: about 200 bytes of memory each.
PORTION_ROWS: Final = 250_000

# Beyond single precision all scores are equal.
_SINGLE: Final = f"CAST(least(greatest(score, -{LARGEST_SINGLE}), {LARGEST_SINGLE}) AS FLOAT)"
_ORDER: Final[dict[Ties, str]] = {
    "trec": f"{_SINGLE} DESC, item DESC, line",
    "input": "score DESC, line",
}
_EQUAL: Final[dict[Ties, str]] = {"trec": _SINGLE, "input": "score"}
"""The value by which scores count as equal, so that the rule for ties orders the items."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables to read. `kind`: tables by column names, or TREC's run and qrels.

    `complete`: lists that only the labels know count as empty, 0 in every mean; else they are left
    out. Lists of a TREC run without qrels are left out, since their relevant items are unknown.
    Slates without labels have no relevant items. `level` and `with_judged` are those of
    `batches.Batch`. `seen`: interactions of users whose items are left out of their lists, and of
    their labels too with `drop_labels`.
    """

    slates: Sequence[str]
    labels: Sequence[str]
    kind: Literal["tables", "trec"]
    by: Sequence[str] = ()
    ties: Ties = "input"
    complete: bool = True
    level: float | None = None
    with_judged: bool = False
    seen: Sequence[str] = ()
    drop_labels: bool = False
    with_ids: bool = True


def tie_notes(tied: int, scored: int, rule: Ties) -> list[Note]:
    """Note how many lists have equal scores, where scores put any list in order at all."""
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
    """Yield the lists of both tables, with their names. Raises `InputError`.

    At the end `notes` says what only one of the two tables has.
    """
    unlabelled = unlisted = repeats = 0
    met = False
    with connected(*tables.slates, *tables.labels) as connection:
        view = load_ranked(connection, tables, advance, notes, stored=False)
        unread = size(tables.slates) if view else 0
        for share, slates, labels in _portions(connection, tables, view):
            advance(int(unread * share))
            lists = ranked_lists(
                slates,
                labels,
                tables.by,
                last_first=tables.ties == "trec",
                complete=tables.complete,
                level=tables.level,
                with_judged=tables.with_judged,
                source=", ".join(tables.labels),
            )
            # Frees the rows before the next portion comes.
            del slates, labels
            met = met or lists.met
            unlabelled += lists.unlabelled
            unlisted += lists.unlisted
            repeats += lists.repeats
            yield from lists.batches(with_ids=tables.with_ids)
        if not met:
            require_labels_met(connection, tables.slates, tables.labels)
    notes += repeat_notes(repeats)
    notes += part_note(
        "lists_without_labels", unlabelled, "list", "Without a label: {}, of 0 each."
    )
    zero = "of 0 each" if tables.complete else "left out"
    notes += part_note("labels_without_list", unlisted, "list", f"Only in labels: {{}}, {zero}.")


def require_labels_met(connection: Any, slates: Sequence[str], labels: Sequence[str]) -> None:
    """Raise `InputError` if no list of `slates` is in `labels`, or none of their items."""
    for name in ("list", "item"):
        _require_met(connection, slates, labels, name)


def _require_met(connection: Any, slates: Sequence[str], labels: Sequence[str], name: str) -> None:
    require_common(connection, Side(slates, "slates", name), Side(labels, "labels", name))


def repeat_notes(count: int) -> list[Note]:
    """Note rows that were left out, as their item stands higher in the same list."""
    return part_note("repeated_items", count, "row", "Left out, as twice in a list: {}.")


def load_ranked(
    connection: Any, tables: Tables, advance: Advance, notes: list[Note], *, stored: bool = True
) -> ParquetRows | None:
    """Make the tables `slates`, without seen items, and `labels` if there are any.

    Not `stored`: `slates` may be a view of rows, for a reader that goes through them once or twice.
    Then return these rows.
    """
    view = None
    if tables.kind == "trec":
        _load_trec(connection, tables, advance)
        notes += _left_unjudged(connection, tables)
    else:
        stored = stored or bool(tables.seen)
        view = load_slates(connection, tables.slates, tables.by, advance, stored=stored)
        if tables.labels:
            notes += load_labels(connection, tables.labels, advance)
    dropped = _drop_labels(connection, tables.seen) if tables.drop_labels else 0
    notes += _seen_notes(exclude_seen(connection, tables.slates, tables.seen))
    notes += _seen_notes(dropped, "label")
    return view


def _left_unjudged(connection: Any, tables: Tables) -> list[Note]:
    """Leave out lists of `slates` that have no labels; return a note on them.

    Raises `InputError` if that leaves none.
    """
    _require_met(connection, tables.slates, tables.labels, "list")
    unjudged = "FROM slates ANTI JOIN labels USING (list)"
    ((count,),) = connection.execute(f"SELECT count(DISTINCT list) {unjudged}").fetchall()
    if count:
        connection.execute("DELETE FROM slates WHERE list NOT IN (SELECT list FROM labels)")
    return part_note("lists_without_labels", count, "topic", "Left out, without qrels: {}.")


def _portions(
    connection: Any, tables: Tables, view: ParquetRows | None
) -> Iterator[tuple[float, Any, Any]]:
    """Slates and labels a portion of the lists at a time, each all of a list or nothing.

    Before them stands the portion's share of the slates. Where the rows of each list lie together,
    slates are read in the order of the files. Else DuckDB sorts them, on disk if need be.
    """
    division = _divided(connection)
    slates = _slates(connection, tables.by, view, together=division.together)
    # A connection has one open result at a time.
    labels = _found(connection.cursor().sql(division.labels_in_order))
    rows = max(sum(division.slates), 1)
    shares = (count / rows for count in division.slates)
    yield from zip(
        shares, _parts(*slates, division.slates), _parts(*labels, division.labels), strict=True
    )


def _slates(
    connection: Any, by: Sequence[str], view: ParquetRows | None, *, together: bool
) -> tuple[Any, Iterator[Any]]:
    """Return the schema of the slates, and their rows, all of a list together."""
    if together and view is not None and view.readable():
        return view.schema, _checked(connection, view)
    columns = ", ".join(["list, item, user, rank, score", *(quoted(f"by {name}") for name in by)])
    order = "" if together else "ORDER BY hash(list), list, line"
    return _found(connection.sql(f"SELECT {columns} FROM slates {order}"))  # noqa: S608  # names are quoted


def _found(rows: Any) -> tuple[Any, Iterator[Any]]:
    """Return the schema of a query's rows, and these in batches."""
    return rows.limit(0).to_arrow_table().schema, batches(rows)


def _checked(connection: Any, view: ParquetRows) -> Iterator[Any]:
    known_as_sound = False
    for batch, sound in view.batches():
        if not (sound or known_as_sound):  # DuckDB goes through all, and says which cell is wrong
            connection.execute("SELECT max(hash(COLUMNS(*))) FROM slates")
            known_as_sound = True
        yield batch


def _parts(schema: Any, found: Iterator[Any], sizes: Sequence[int]) -> Iterator[Any]:
    """Cut rows into tables of these sizes."""
    table = pa.Table.from_batches([], schema)
    for wanted in sizes:
        held, count = table.to_batches(), len(table)
        while count < wanted:
            held.append(next(found))
            count += len(held[-1])
        table = pa.Table.from_batches(held, schema)
        yield table.slice(0, wanted)
        table = table.slice(wanted)


class _Division(NamedTuple):
    """How many rows of slates and of labels each portion has, and the SQL of labels by portion.

    `together`: the rows of each list of slates lie together; else portions go by the list's hash.
    """

    slates: list[int]
    labels: list[int]
    labels_in_order: str
    together: bool


def _divided(connection: Any) -> _Division:
    """Divide slates and labels into portions.

    Where labels do not lie in the order of the portions, make a table `portions`: that of each row.
    """
    hashes, lengths = _runs(connection, "slates")
    order = np.argsort(hashes)
    by_hash = hashes[order]
    del hashes  # each array is 8 bytes a list
    first = np.append(True, by_hash[1:] != by_hash[:-1])
    together = bool(first.all())
    if not together:
        lengths = np.add.reduceat(lengths[order], np.flatnonzero(first))
        by_hash = by_hash[first]
        order = np.arange(len(by_hash))
    labelled, label_lengths = _runs(connection, "labels")
    rows = int(lengths.sum())
    count = (rows + int(label_lengths.sum())) // PORTION_ROWS + 1
    starts = np.cumsum(lengths) - lengths
    ends = np.arange(1, count) * rows // count
    bounds = starts[np.searchsorted(starts, ends, "right") - 1]
    portion_of = np.searchsorted(bounds, starts, "right").astype(np.int32)
    by_hash_portion = portion_of[order]
    slates = np.bincount(portion_of, lengths, count).astype(np.int64).tolist()
    del starts, order, lengths, portion_of
    sought = np.argsort(labelled)  # a search in order finds what it needs in the caches
    wanted = labelled[sought]
    position = np.minimum(np.searchsorted(by_hash, wanted), len(by_hash) - 1)
    # The hash spreads lists that have no slate.
    spread = (wanted % np.uint64(count)).astype(np.int32)
    chosen = np.empty(len(labelled), np.int32)
    chosen[sought] = np.where(by_hash[position] == wanted, by_hash_portion[position], spread)
    in_order = "SELECT list, item, gain FROM labels"
    if (chosen[1:] < chosen[:-1]).any():
        portions = pa.table({"portion": column(np.repeat(chosen, label_lengths))})
        connection.register("chosen", portions)
        connection.execute("CREATE TABLE portions AS SELECT portion FROM chosen")
        in_order += " POSITIONAL JOIN portions ORDER BY portion, line"
    return _Division(
        slates,
        np.bincount(chosen, label_lengths, count).astype(np.int64).tolist(),
        in_order,
        together,
    )


def _runs(connection: Any, table: str) -> tuple[Any, Ints]:
    """Return the hash of the list and the length of each run of rows of one list of a table."""
    # One list without rows, so that there is one.
    hashes, starts = [np.zeros(1, np.uint64)], [np.zeros(1, np.int64)]
    rows, last = 0, None
    for batch in batches(connection.sql(f"SELECT hash(list) FROM {table}")):  # noqa: S608  # ours
        values = numbers(batch.column(0))
        new = np.flatnonzero(np.append(values[0] != last, values[1:] != values[:-1]))
        hashes.append(values[new])
        starts.append(new + rows)
        rows, last = rows + len(values), values[-1]
    return np.concatenate(hashes), np.diff(np.concatenate([*starts, [rows]]))


def load_slates(
    connection: Any,
    files: Sequence[str],
    by: Sequence[str],
    advance: Advance,
    *,
    stored: bool = True,
) -> ParquetRows | None:
    """Read slates into the table `slates`: list, item, rank, score, user, `by …`, line.

    `user` is null where the files name none: each list is a user of its own. Not `stored`: of files
    that need no parsing make a view, and return its rows.
    """
    tables, known = opened(connection, files)
    lists = named(files, known, LIST_NAMES)
    rank_column, score = optional(known, RANK_NAMES), optional(known, SCORE_NAMES)
    if rank_column is None and score is None:
        raise InputError(
            f"{', '.join(files)}: no column {' or '.join((*RANK_NAMES, *SCORE_NAMES))}: a list"
            " needs an order"
        )
    columns = {
        "list": text(lists),
        "item": text(named(files, known, ITEM_NAMES)),
        **{f"by {name}": label(named(files, known, (name,))) for name in by},
        "user": text(optional(known, USER_NAMES)),
        "rank": rank(rank_column),
        "score": number(score, "NULL", needed=rank_column is None),
    }
    is_view = not (stored or any(table.parsed for table in tables))
    (view if is_view else load)(connection, "slates", tables, columns)
    check_one_segment(connection, "slates", files, by)
    if is_view:
        return ParquetRows(tables, columns)
    advance(size(files))
    return None


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


def load_labels(connection: Any, files: Sequence[str], advance: Advance) -> list[Note]:
    """Read labels into the table `labels`: list, item, gain, line. Return notes on the gains."""
    tables, known = opened(connection, files)
    lists, items = named(files, known, LIST_NAMES), named(files, known, ITEM_NAMES)
    gain = optional(known, GAIN_NAMES)
    columns = {"list": text(lists), "item": text(items), "gain": number(gain, needed=True)}
    load(connection, "labels", tables, columns)
    advance(size(files))
    where = f"column {gain}" if gain else "no column of them, so each label counts 1"
    return [Note("gain_column", gain, f"Gains of {', '.join(files)}: {where}.", "warning")]


def exclude_seen(connection: Any, files: Sequence[str], paths: Sequence[str]) -> int:
    """Leave out of `slates` what the user of a list has seen; return how many rows those are.

    Items below move up by as many places. Equal ranks stay equal: they have a place each, and the
    ranks below them begin after the last one (`core.metrics.order_ranks`).
    """
    if not paths:
        return 0
    load_interactions(connection, "seen", paths)
    users = "(SELECT coalesce(user, list) AS user FROM slates)"
    require_common(connection, Side(files, users, "user"), Side(paths, "seen", "user"))
    require_common(connection, Side(files, "slates", "item"), Side(paths, "seen", "item"))
    connection.execute("""
        CREATE TABLE marked AS
        SELECT *, (coalesce(user, list), item) IN (SELECT (user, item) FROM seen) AS was_seen
        FROM slates
    """)
    ((count,),) = connection.execute("SELECT count(*) FROM marked WHERE was_seen").fetchall()
    connection.execute("""
        CREATE OR REPLACE TABLE slates AS
        WITH rows AS (
            SELECT DISTINCT list, item, rank, was_seen,
                rank = min(rank) OVER (PARTITION BY list, item) AS best
            FROM marked WHERE rank NOTNULL
        ), ranks AS (
            SELECT list, rank, count(*) FILTER (WHERE best) AS places,
                count(*) FILTER (WHERE best AND NOT was_seen) AS kept
            FROM rows GROUP BY list, rank
        ), above AS (
            SELECT list, rank, sum(kept) OVER upper - kept AS kept,
                CASE WHEN places > 0 THEN rank - 1 - (sum(places) OVER upper - places) END AS gap
            FROM ranks WINDOW upper AS (PARTITION BY list ORDER BY rank)
        ), moved AS (
            SELECT list, rank, CAST(1 + kept + greatest(max(gap) OVER upper, 0) AS BIGINT) AS place
            FROM above WINDOW upper AS (PARTITION BY list ORDER BY rank)
        )
        SELECT marked.* EXCLUDE (was_seen) REPLACE (moved.place AS rank)
        FROM marked LEFT JOIN moved USING (list, rank) WHERE NOT was_seen ORDER BY line
    """)
    connection.execute("DROP TABLE marked; DROP TABLE seen")
    return int(count)


def _drop_labels(connection: Any, paths: Sequence[str]) -> int:
    """Leave the labels of seen items out, and return how many.

    Slates are still whole. A list that only labels have is a user of its own.
    """
    load_interactions(connection, "seen", paths)
    ((before,),) = connection.execute("SELECT count(*) FROM labels").fetchall()
    connection.execute("""
        CREATE OR REPLACE TABLE labels AS
        SELECT labels.* FROM labels LEFT JOIN (
            SELECT list, coalesce(any_value(user), list) AS user FROM slates GROUP BY list
        ) USING (list)
        WHERE (coalesce(user, list), item) NOT IN (SELECT (user, item) FROM seen) ORDER BY line
    """)
    ((after,),) = connection.execute("SELECT count(*) FROM labels").fetchall()
    connection.execute("DROP TABLE seen")
    return int(before - after)


def refuse_seen(paths: Sequence[str]) -> None:
    """Raise `InputError` for outcome files: what users saw cannot be left out afterwards."""
    if paths:
        raise InputError(
            "--exclude-seen: outcome files hold what users were sent; give slates, or --run and"
            " --qrels"
        )


def _seen_notes(count: int, thing: str = "item") -> list[Note]:
    """Note how many rows were left out as already seen, if there are any."""
    key = "seen" if thing == "item" else f"seen_{thing}s"
    return [Note(key, count, f"Left out, as already seen: {counted(count, thing)}.")][: bool(count)]


def _load_trec(connection: Any, tables: Tables, advance: Advance) -> None:
    """Run: `list Q0 item rank score tag`; qrels: `list 0 item gain`; any white space between."""
    if tables.by:
        raise InputError("--by: a TREC run has no segments")
    connection.execute(
        "CREATE TABLE slates (list VARCHAR, item VARCHAR, score DOUBLE, line BIGINT,"
        " rank BIGINT, user VARCHAR)"
    )
    connection.execute("CREATE TABLE labels (list VARCHAR, item VARCHAR, gain DOUBLE, line BIGINT)")
    for path in tables.slates:
        for part in _trec(path, 6, 4, advance):
            connection.register("part", part)
            connection.execute("INSERT INTO slates SELECT *, NULL, NULL FROM part")
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
        raise InputError(f"{path}:{line}: {word} is not a finite number")
    return value


def _arrow(rows: Sequence[tuple[str, str, float, int]]) -> Any:
    lists, items, values, lines = zip(*rows, strict=True)
    return pa.table({"list": lists, "item": items, "value": values, "line": lines})


def ordered(ties: Ties) -> str:
    """The SQL of the table `ranked`, made of `slates`: its items with `rank` and `number`.

    A duplicate keeps its best rank. `number` counts from 1; with ranks, gaps stay and equal ranks
    move down (`core.metrics.order_ranks`). `by_score`: the score decided the order; `equal`: and
    another item has the same.
    """
    order = f"rank NULLS LAST, {_ORDER[ties]}"
    return f"""
        first_rows AS (
            SELECT * REPLACE (coalesce(user, list) AS user) FROM slates
            QUALIFY row_number() OVER (PARTITION BY list, item ORDER BY {order}) = 1
        ), numbered AS (
            SELECT *, row_number() OVER (PARTITION BY list ORDER BY {order}) AS number
            FROM first_rows
        ), ranked AS (
            SELECT * EXCLUDE (rank),
                number + max(greatest(coalesce(rank, 0) - number, 0))
                    OVER (PARTITION BY list ORDER BY number) AS rank,
                rank IS NULL AND score NOTNULL AS by_score,
                rank IS NULL AND score NOTNULL
                    AND count(*) OVER (PARTITION BY list, {_EQUAL[ties]}) > 1 AS equal
            FROM numbered
        )
    """  # noqa: S608  # our own words
