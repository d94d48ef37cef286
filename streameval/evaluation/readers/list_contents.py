"""Figures of the contents of lists: coverage of the catalogue, novelty, diversity.

Lists are read a batch at a time. Facts about items (features, popularity, the catalogue) are held
in memory: they follow the number of items, not of lists.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from streameval.base.errors import InputError
from streameval.core.metrics.beyond_accuracy import ItemLists, Vector, coverage, unit_vector
from streameval.core.metrics.inputs import FEATURES, ITEMS, TRAIN
from streameval.evaluation.answer import Answer, Figure, Note, Segment, counted
from streameval.evaluation.batches import Advance
from streameval.evaluation.readers.outcomes import (
    check_dimensions,
    files_of,
    is_outcome_file,
    record_batches,
)
from streameval.evaluation.readers.ranked_tables import load_slates, ordered, tie_notes
from streameval.evaluation.request import FILES, TIES, Given
from streameval.evaluation.sums import Asked, check_segments, evaluated
from streameval.evaluation.units import UnitBatch, batch_of, dimensions, grouped
from streameval.files.tables import (
    ITEM_NAMES,
    USER_NAMES,
    columns_of,
    connected,
    label,
    load,
    named,
    number,
    opened,
    optional,
    size,
    text,
)

FEATURE_NAMES: Final = ("feature", "category", "tag", "genre")


@dataclass(frozen=True, slots=True)
class NamedLists:
    """n lists: names, users, values of `--by`; items in order and their ranks alongside.

    `tied` as `batches.Batch` has it.
    """

    ids: Sequence[str]
    users: Sequence[str]
    segments: Sequence[Segment]
    items: Sequence[Sequence[str]]
    ranks: Sequence[Sequence[int]]
    tied: tuple[int, int] = (0, 0)


def item_list_figures(given: Given, asked: Sequence[Asked], advance: Advance) -> Answer:
    """Compute novelty and diversity. Raises `InputError`."""
    needed = {table for figure in asked for table in figure.entry.needs}
    vectors = _vectors(given[FEATURES]) if FEATURES in needed else {}
    popularity = _popularity(given[TRAIN]) if TRAIN in needed else {}

    def batches() -> Iterator[UnitBatch[ItemLists]]:
        for lists in read_lists(given, advance):
            items = ItemLists(lists.items, lists.ranks, vectors, popularity)
            yield batch_of(items, lists.users, lists.segments, lists.ids, lists.tied)

    found = evaluated(batches(), asked, given)
    return found.answer(*tie_notes(found.tied, found.scored, given.value(TIES) or "input"))


def coverage_figures(given: Given, asked: Sequence[Asked], advance: Advance) -> Answer:
    """Compute the coverage of the catalogue, without an interval. Raises `InputError`."""
    known = _items_of(given[ITEMS])
    found: dict[Segment, list[set[str]]] = {}
    tied = scored = 0
    for lists in read_lists(given, advance):
        tied, scored = tied + lists.tied[0], scored + lists.tied[1]
        for segment, items, ranks in zip(lists.segments, lists.items, lists.ranks, strict=True):
            if segment not in found:
                check_segments(len(found) + 1, given.by)
                found[segment] = [set() for _ in asked]
            for figure, seen in zip(asked, found[segment], strict=True):
                seen.update(items[: sum(rank <= figure.k for rank in ranks)])
    whole = [set[str]().union(*(seen[n] for seen in found.values())) for n in range(len(asked))]
    for seen in whole:
        for item in seen - known:
            raise InputError(f"{', '.join(given[ITEMS])}: {item} is shown but not in it")

    def figures(sets: Sequence[set[str]]) -> dict[str, Figure]:
        return {
            figure.name: Figure(coverage(len(seen), len(known)), None, None, len(known))
            for figure, seen in zip(asked, sets, strict=True)
        }

    return Answer(
        figures=figures(whole),
        by=given.by,
        segments={name: figures(found[name]) for name in sorted(found)} if given.by else {},
        lists={} if given.per_list else None,
        entries=[figure.entry for figure in asked],
        notes=[
            Note("catalogue", len(known), f"Catalogue of {counted(len(known), 'item')}."),
            *tie_notes(tied, scored, given.value(TIES) or "input"),
        ],
    )


def read_lists(given: Given, advance: Advance) -> Iterator[NamedLists]:
    """The lists of outcome files (slates with a request), or of a table of slates."""
    files = files_of(given[FILES])
    if all(is_outcome_file(file) for file in files):
        yield from _of_outcomes(files, given.by, advance)
    else:
        yield from _of_tables(files, given, advance)


def _of_outcomes(files: Sequence[str], by: Sequence[str], advance: Advance) -> Iterator[NamedLists]:
    check_dimensions(by, files)
    columns = ["request", "user", "items", "ranks", *by]
    for record in record_batches(files, columns, advance):
        known = record.filter(record.column("request").is_valid())
        values = [known.column(name).fill_null("").to_pylist() for name in by]
        yield NamedLists(
            ids=known.column("request").to_pylist(),
            users=known.column("user").to_pylist(),
            segments=list(zip(*values, strict=True)) if by else [()] * len(known),
            items=known.column("items").to_pylist(),
            ranks=known.column("ranks").to_pylist(),
        )


def _of_tables(files: Sequence[str], given: Given, advance: Advance) -> Iterator[NamedLists]:
    with connected(*files) as connection:
        load_slates(connection, files, given.by, advance)
        query = f"""
            WITH {ordered(given.value(TIES) or "input")}
            SELECT list, item, rank, user, by_score, equal{dimensions(given.by)}
            FROM ranked ORDER BY list, rank
        """  # noqa: S608  # names are quoted
        for rows, starts in grouped(connection, query, 1):
            firsts = [rows[start] for start in starts]
            spans = list(zip(starts, [*starts[1:], len(rows)], strict=True))
            yield NamedLists(
                ids=[row[0] for row in firsts],
                users=[row[3] for row in firsts],
                segments=[tuple(value or "" for value in row[6:]) for row in firsts],
                items=[[row[1] for row in rows[start:end]] for start, end in spans],
                ranks=[[row[2] for row in rows[start:end]] for start, end in spans],
                tied=(
                    sum(any(row[5] for row in rows[start:end]) for start, end in spans),
                    sum(any(row[4] for row in rows[start:end]) for start, end in spans),
                ),
            )


def _vectors(paths: Sequence[str]) -> dict[str, Vector]:
    """Return each item's features, brought to length 1; an item with zeros only has none."""
    with connected(*paths) as connection:
        files = files_of(paths)
        tables = opened(connection, files)
        known = columns_of(tables)
        value = optional(known, ("value", "weight"))
        columns = {
            "item": text(named(files, known, ITEM_NAMES)),
            "feature": label(named(files, known, FEATURE_NAMES)),
            "value": number(value),
        }
        load(connection, "features", tables, columns)
        found: dict[str, dict[str, float]] = defaultdict(dict)
        rows = connection.execute(
            "SELECT item, feature, max(value) FROM features"
            " WHERE feature <> '' AND value <> 0 GROUP BY ALL ORDER BY ALL"
        )
        for item, feature, most in rows.fetchall():
            found[item][feature] = most
    if not found:
        raise InputError(f"{', '.join(paths)}: no item has a feature with a value other than 0")
    return {item: unit_vector(features) for item, features in found.items()}


def _popularity(paths: Sequence[str]) -> dict[str, float]:
    """Return the share of users in the training interactions who have each item."""
    with connected(*paths) as connection:
        load_interactions(connection, "train", paths)
        ((users,),) = connection.execute("SELECT count(DISTINCT user) FROM train").fetchall()
        rows = connection.execute("SELECT item, count(DISTINCT user) FROM train GROUP BY item")
        return {item: count / users for item, count in rows.fetchall()}


def _items_of(paths: Sequence[str]) -> set[str]:
    with connected(*paths) as connection:
        load_items(connection, "catalogue", paths)
        found = connection.execute("SELECT DISTINCT item FROM catalogue").fetchall()
    return {item for (item,) in found}


def load_items(connection: Any, table: str, paths: Sequence[str]) -> None:
    """Read the items of a catalogue into a table: item, line."""
    files = files_of(paths)
    tables = opened(connection, files)
    item = text(named(files, columns_of(tables), ITEM_NAMES))
    load(connection, table, tables, {"item": item})


def load_interactions(connection: Any, table: str, paths: Sequence[str]) -> int:
    """Read who has which item into a table: user, item, line. Return the size of the files."""
    files = files_of(paths)
    tables = opened(connection, files)
    known = columns_of(tables)
    user = text(named(files, known, USER_NAMES))
    item = text(named(files, known, ITEM_NAMES))
    columns = {"user": user, "item": item}
    load(connection, table, tables, columns)
    return size(files)
