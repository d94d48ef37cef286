"""Ranked lists from two tables: slates, and labels of relevant items.

Slates (list, item, and rank or score) and labels (list, item, gain) as Parquet, CSV or JSON Lines,
or a TREC run and qrels. DuckDB reads, checks, orders and joins them, and uses the disk beyond its
memory.

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
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streameval.base.arrays import Flags, Floats, Ints
from streameval.base.counts import count_of
from streameval.base.errors import InputError
from streameval.base.limits import MAX_EVALUATED_RANK
from streameval.core.metrics.auc import ranks_by_score
from streameval.evaluation.answer import Note
from streameval.evaluation.batches import ROWS, Advance, Batch, Judged, counts_of, judged_of
from streameval.evaluation.readers.item_tables import load_interactions
from streameval.evaluation.readers.matching import Side, part_note, refuse_several, require_common
from streameval.evaluation.readers.outcomes import checksums_of, segments_by
from streameval.evaluation.units import BY, dimensions
from streameval.files.arrow_arrays import column, numbers
from streameval.files.list_cells import WANTED, Several
from streameval.files.table_scans import quote
from streameval.files.tables import (
    GAIN_NAMES,
    ITEM_NAMES,
    LIST_NAMES,
    RANK_NAMES,
    SCORE_NAMES,
    USER_NAMES,
    batches,
    connect,
    find_column,
    label,
    load,
    number,
    open_tables,
    optional,
    or_names,
    rank,
    size,
    text,
)

Ties: TypeAlias = Literal["trec", "input"]
# Lines of a TREC file in one go.
LINES: Final = 100_000

# Beyond single precision all scores are equal.
_LARGEST_SINGLE: Final = 3.4e38
_SINGLE: Final = f"CAST(least(greatest(score, -{_LARGEST_SINGLE}), {_LARGEST_SINGLE}) AS FLOAT)"
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
    unlabelled = 0
    met = False
    with connect(*tables.slates, *tables.labels) as connection:
        load_ranked(connection, tables, advance, notes)
        repeats = drop_repeats(connection, tables.ties)
        message = partial(several_gains, ", ".join(tables.labels))
        refuse_several(connection, "labels", ("list", "item"), "gain", message)
        ((unlisted,),) = connection.execute(
            "SELECT count(DISTINCT list) FROM labels ANTI JOIN slates USING (list)"
        ).fetchall()
        for rows in whole_lists(connection.sql(_join_labels(tables))):
            for lists in _lists_of(rows, tables):
                met = met or lists.met
                unlabelled += lists.unlabelled
                yield lists.batch
        if not met:
            require_labels_met(connection, tables.slates, tables.labels)
    notes += repeat_notes(repeats)
    notes += part_note(
        "lists_without_labels", unlabelled, "list", "Without a label: {}, of 0 each."
    )
    zero = "of 0 each" if tables.complete else "left out"
    notes += part_note("labels_without_list", unlisted, "list", f"Only in labels: {{}}, {zero}.")


def _join_labels(tables: Tables) -> str:
    """The SQL of each list's items in order, and below them its labels of other items, best first.

    A row has the list, its user and values of `--by`, the item's score and gain, the rank that it
    is `given` (0 for none), and whether the list has it (`shown`).
    """
    whose = "" if tables.complete else "SEMI JOIN slates USING (list)"
    order = _order(tables.ties)
    return f"""
        SELECT list, user, CAST(slates.line NOTNULL AS TINYINT) AS shown,
            coalesce(rank, 0) AS given, coalesce(score, 'nan') AS score_or_nan,
            coalesce(gain, 'nan') AS gain_or_nan{dimensions(tables.by)}
        FROM slates
        FULL JOIN (SELECT DISTINCT list, item, gain FROM labels {whose}) USING (list, item)
        ORDER BY list, shown DESC, CASE WHEN slates.line IS NULL THEN gain END DESC, {order}
    """  # noqa: S608  # names are quoted


def whole_lists(rows: Any) -> Iterator[Any]:
    """Yield the rows of a query as batches of Arrow that divide no list; they are in its order."""
    held: list[Any] = []
    name = None
    for part in batches(rows):
        starts = _starts(part)
        first, last = (part.column("list")[row].as_py() for row in (0, -1))
        if first != name and held:
            yield _one_batch(held)
            held = []
        if len(starts) > 2:
            yield _one_batch([*held, part.slice(0, starts[-2])])
            held = []
        held.append(part.slice(starts[-2]))
        name = last
    if held:
        yield _one_batch(held)


def _starts(rows: Any) -> Ints:
    """Return where each list starts, and where the last one ends."""
    ends = numbers(pc.run_end_encode(rows.column("list")).run_ends)
    return np.append(0, ends).astype(np.int64)


def _one_batch(parts: Sequence[Any]) -> Any:
    return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]


class _Lists(NamedTuple):
    """Lists, how many of them have no label, and whether an item of any has one."""

    batch: Batch
    unlabelled: int
    met: bool


def _lists_of(rows: Any, tables: Tables) -> Iterator[_Lists]:
    """Cut rows of `_join_labels` into lists, `ROWS` in a batch."""
    starts = _starts(rows)
    for first in range(0, len(starts) - 1, ROWS):
        cut = starts[first : first + ROWS + 1]
        yield _lists(rows.slice(cut[0], cut[-1] - cut[0]), cut - cut[0], tables)


def _lists(rows: Any, starts: Ints, tables: Tables) -> _Lists:
    given, shown = numbers(rows.column("given")), numbers(rows.column("shown")) > 0
    scores, gains = numbers(rows.column("score_or_nan")), numbers(rows.column("gain_or_nan"))
    labelled, relevant = ~np.isnan(gains), gains > 0
    where = np.flatnonzero(relevant)
    length = counts_of(shown, starts)
    by_score = shown & (given == 0) & ~np.isnan(scores)
    tied = _equal_to_the_one_above(scores, starts, single=tables.ties == "trec") & by_score
    ranks, score_ranks = np.zeros(len(rows), np.int64), np.zeros(len(rows))
    ends = np.append(0, np.cumsum(length))
    ranks[shown] = _ranks(given[shown], ends)
    score_ranks[shown] = _score_ranks(scores[shown], ends)
    judged = None
    if tables.with_judged:
        judged = judged_of(gains, starts, where, tables.level)
        # Nothing stands above an item that the list does not have.
        there = shown[where]
        judged = Judged(
            judged.irrelevant, judged.irrelevant_above * there, judged.unjudged_above * there
        )
    firsts = rows.take(column(starts[:-1]))
    users = pc.coalesce(firsts.column("user"), firsts.column("list"))
    segments, names = segments_by(firsts, [BY + name for name in tables.by])
    batch = Batch(
        relevant=counts_of(relevant, starts),
        ranks=ranks[where],
        gains=gains[where],
        score_ranks=score_ranks[where],
        length=length,
        checksums=checksums_of(users),
        segments=segments,
        names=names,
        ids=firsts.column("list").to_pylist() if tables.with_ids else None,
        users=users.to_pylist() if tables.with_ids else None,
        tied=(_lists_with(tied, starts), _lists_with(by_score, starts)),
        level=tables.level,
        judged=judged,
    )
    unlabelled = len(length) - _lists_with(labelled, starts)
    return _Lists(batch, unlabelled, bool((shown & labelled).any()))


def _lists_with(flags: Flags, starts: Ints) -> int:
    """Count the lists that have an item with a flag."""
    return int(np.count_nonzero(counts_of(flags, starts)))


def _equal_to_the_one_above(scores: Floats, starts: Ints, *, single: bool) -> Flags:
    """Tell which items of lists in order of score have the score of the item above."""
    if single:
        scores = np.clip(scores, -_LARGEST_SINGLE, _LARGEST_SINGLE).astype(np.float32)
    equal = np.append(False, scores[1:] == scores[:-1])
    equal[starts[:-1]] = False
    return equal


def _ranks(given: Ints, starts: Ints) -> Ints:
    """Rank items in order as `core.metrics.order_ranks` does: gaps stay, equal ranks move down."""
    number = np.arange(1, len(given) + 1) - np.repeat(starts[:-1], np.diff(starts))
    gaps = np.maximum(given - number, 0)
    # A gap holds for the rest of its list, and each list begins above all gaps of those before.
    step = np.repeat(np.arange(len(starts) - 1), np.diff(starts)) * (MAX_EVALUATED_RANK + 1)
    return number + np.maximum.accumulate(gaps + step) - step


def _score_ranks(scores: Floats, starts: Ints) -> Floats:
    """Rank items by score, as `core.metrics.Lists` has it.

    NaN in a list where only some have a score; a list in which none has is taken by its order.
    """
    length = np.diff(starts)
    by_order = np.arange(1, len(scores) + 1) - np.repeat(starts[:-1], length)
    unscored = np.repeat(counts_of(~np.isnan(scores), starts) == 0, length)
    return np.where(unscored, by_order, ranks_by_score(scores, starts))


def several_gains(source: str, name: str, item: str) -> str:
    """Return the message about an item with two gains in a list."""
    return f"{source}: list {name}, item {item}: two labels with different gains; keep one of them"


def require_labels_met(connection: Any, slates: Sequence[str], labels: Sequence[str]) -> None:
    """Raise `InputError` if no list of `slates` is in `labels`, or none of their items."""
    for name in ("list", "item"):
        _require_met(connection, slates, labels, name)


def _require_met(connection: Any, slates: Sequence[str], labels: Sequence[str], name: str) -> None:
    require_common(connection, Side(slates, "slates", name), Side(labels, "labels", name))


def repeat_notes(count: int) -> list[Note]:
    """Note rows that were left out, as their item stands higher in the same list."""
    return part_note("repeated_items", count, "row", "Left out, as twice in a list: {}.")


def load_ranked(connection: Any, tables: Tables, advance: Advance, notes: list[Note]) -> None:
    """Make the tables `slates`, without seen items, and `labels` if there are any."""
    if tables.kind == "trec":
        _load_trec(connection, tables, advance)
        notes += _left_unjudged(connection, tables)
    else:
        load_slates(connection, tables.slates, tables.by, advance)
        if tables.labels:
            notes += load_labels(connection, tables.labels, advance)
    dropped = _drop_labels(connection, tables.seen) if tables.drop_labels else 0
    notes += _seen_notes(exclude_seen(connection, tables.slates, tables.seen))
    notes += _seen_notes(dropped, "label")


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


def load_slates(connection: Any, files: Sequence[str], by: Sequence[str], advance: Advance) -> None:
    """Read slates into the table `slates`: list, item, rank, score, user, `by …`, line.

    `user` is null where the files name none: each list is a user of its own.
    """
    tables, known = open_tables(connection, files, Several(ITEM_NAMES, SCORE_NAMES, RANK_NAMES))
    lists = find_column(files, known, LIST_NAMES)
    rank_column, score = optional(known, RANK_NAMES), optional(known, SCORE_NAMES)
    if rank_column is None and score is None:
        raise InputError(
            f"{', '.join(files)}: no column {or_names((*RANK_NAMES, *SCORE_NAMES))}: a list"
            " needs an order (one item a row, with its rank)"
        )
    columns = {
        "list": text(lists),
        "item": text(find_column(files, known, ITEM_NAMES)),
        **{f"by {name}": label(find_column(files, known, (name,))) for name in by},
        "user": text(optional(known, USER_NAMES)),
        "rank": rank(rank_column),
        "score": number(score, "NULL", needed=rank_column is None),
    }
    load(connection, "slates", tables, columns)
    check_one_segment(connection, "slates", files, by)
    advance(size(files))


def check_one_segment(connection: Any, table: str, files: Sequence[str], by: Sequence[str]) -> None:
    """Raise `InputError` for a list with several values of a dimension."""
    for name in by:
        value = f"coalesce({quote('by ' + name)}, '')"
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
    tables, known = open_tables(connection, files, Several(ITEM_NAMES, GAIN_NAMES, first=WANTED))
    lists, items = find_column(files, known, LIST_NAMES), find_column(files, known, ITEM_NAMES)
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
    return [Note(key, count, f"Left out, as already seen: {count_of(count, thing)}.")][
        : bool(count)
    ]


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


def drop_repeats(connection: Any, ties: Ties) -> int:
    """Leave each item's first row in a list of `slates`; return how many rows that takes away."""
    repeated = "SELECT EXISTS (SELECT 1 FROM slates GROUP BY hash(list, item) HAVING count(*) > 1)"
    ((found,),) = connection.execute(repeated).fetchall()
    if not found:
        return 0
    ((before,),) = connection.execute("SELECT count(*) FROM slates").fetchall()
    connection.execute(f"""
        CREATE OR REPLACE TABLE slates AS SELECT * FROM slates
        QUALIFY row_number() OVER (PARTITION BY list, item ORDER BY {_order(ties)}) = 1
        ORDER BY line
    """)  # noqa: S608  # our own words
    ((after,),) = connection.execute("SELECT count(*) FROM slates").fetchall()
    return int(before - after)


def _order(ties: Ties) -> str:
    """The SQL by which rows of a list are in order."""
    return f"rank NULLS LAST, {_ORDER[ties]}"


def order(ties: Ties) -> str:
    """The SQL of the table `ranked`, made of `slates` without repeats: `rank` and `number` of each.

    `number` counts from 1; with ranks, gaps stay and equal ranks move down
    (`core.metrics.order_ranks`). `by_score`: the score decided the order; `equal`: and another item
    has the same.
    """
    return f"""
        numbered AS (
            SELECT * REPLACE (coalesce(user, list) AS user),
                row_number() OVER (PARTITION BY list ORDER BY {_order(ties)}) AS number
            FROM slates
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
