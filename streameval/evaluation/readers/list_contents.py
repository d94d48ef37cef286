"""Figures of the contents of lists: their items, how these are spread, and their users.

Lists are read a batch at a time, beside facts about items (`item_tables`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias

import pyarrow as pa

from streameval.base.counts import count_of
from streameval.base.errors import InputError
from streameval.core.metrics.beyond_accuracy import (
    SIMILARITY,
    ItemCounts,
    ItemLists,
    Similarities,
    unit_vector,
)
from streameval.core.metrics.distributions import USER_FEATURES, total_variation
from streameval.core.metrics.entry import InputKind
from streameval.core.metrics.inputs import FEATURES, ITEMS, TRAIN, Table
from streameval.core.metrics.popularity import popularity_ranks
from streameval.evaluation.answer import Answer, Figure, Note, Segment
from streameval.evaluation.batches import Advance
from streameval.evaluation.readers.item_tables import (
    features_of,
    histories_of,
    items_of,
    load_features,
    load_interactions,
    popularity_of,
    similarities_of,
)
from streameval.evaluation.readers.matching import (
    Side,
    part_note,
    refuse_several,
    refuse_strangers,
    require_common,
)
from streameval.evaluation.readers.outcomes import (
    check_dimensions,
    file_of_other_shape,
    files_of,
    record_batches,
)
from streameval.evaluation.readers.ranked_tables import (
    Ties,
    drop_repeats,
    exclude_seen,
    load_labels,
    load_slates,
    order,
    refuse_seen,
    repeat_notes,
    require_labels_met,
    several_gains,
    tie_notes,
)
from streameval.evaluation.request import EXCLUDE_SEEN, FILES, LABELS, RELEVANT, TIES, Given
from streameval.evaluation.sums import Asked, check_segments, compute_figures
from streameval.evaluation.units import BY, UnitBatch, batch_of, dimensions, group
from streameval.files.table_scans import quote
from streameval.files.tables import USER_NAMES, connect

JUDGED: Final[InputKind] = "judged_items"
SCORED: Final[InputKind] = "scored_items"


@dataclass(frozen=True, slots=True)
class NamedLists:
    """n lists: names, users, values of `--by`; items in order and their ranks alongside.

    `relevant` and `scores` are alongside too, where they were asked for. `tied` as `batches.Batch`
    has it.
    """

    ids: Sequence[str]
    users: Sequence[str]
    segments: Sequence[Segment]
    items: Sequence[Sequence[str]]
    ranks: Sequence[Sequence[int]]
    relevant: Sequence[Sequence[bool]] | None = None
    scores: Sequence[Sequence[float | None]] | None = None
    tied: tuple[int, int] = (0, 0)


def item_list_figures(given: Given, asked: Sequence[Asked], advance: Advance) -> Answer:
    """Compute figures of each list's items. Raises `InputError`."""
    facts = _facts(given, asked)
    kinds = {figure.entry.input_kind for figure in asked}
    known: dict[Table, Collection[str]] = {
        FEATURES: facts.vectors or {item for pair in facts.similarities.pairs for item in pair},
        TRAIN: facts.interactions,
    }
    listed: set[str] = set()

    def batches() -> Iterator[UnitBatch[ItemLists]]:
        for lists in read_lists(given, advance, kinds):
            items = replace(
                facts,
                items=lists.items,
                ranks=lists.ranks,
                users=lists.users,
                relevant=lists.relevant,
                scores=lists.scores,
            )
            if any(known.values()):
                listed.update(*lists.items)
            yield batch_of(items, lists.users, lists.segments, lists.ids, lists.tied)

    found = compute_figures(batches(), asked, given)
    _note_unknown(given, listed, known)
    return found.answer(*tie_notes(found.tied, found.scored, given.value(TIES) or "input"))


def _note_unknown(
    given: Given, listed: Collection[str], known: Mapping[Table, Collection[str]]
) -> None:
    """Note how many items of lists each table lacks. Raises `InputError` if it has none of them."""
    for table, items in known.items():
        unknown = set(listed).difference(items) if items else set[str]()
        if unknown and len(unknown) == len(listed):
            refuse_strangers("item", given[FILES], listed, given[table], items)
        text = f"Not in {', '.join(given[table])}: {{}} of {len(listed):,} in lists."
        given.notes.extend(part_note(f"items_without_{table.name}", len(unknown), "item", text))


def _facts(given: Given, asked: Sequence[Asked]) -> ItemLists:
    """Read all that the figures need to know about items; the lists come later."""
    needed = {table for figure in asked for table in figure.entry.needs}
    measures = {dict(figure.entry.values).get(SIMILARITY) for figure in asked}
    facts = ItemLists((), ())
    if "table" in measures:
        facts = replace(facts, similarities=Similarities(pairs=similarities_of(given[FEATURES])))
    elif FEATURES in needed:
        features = features_of(given[FEATURES])
        dimensions = len({name for found in features.values() for name in found})
        vectors = {item: unit_vector(found) for item, found in features.items()}
        facts = replace(facts, vectors=vectors, similarities=Similarities(features, dimensions))
    if TRAIN in needed:
        interactions, popularity, users = popularity_of(given[TRAIN])
        facts = replace(
            facts,
            interactions=interactions,
            popularity=popularity,
            trained_users=users,
            popularity_ranks=popularity_ranks(interactions),
        )
    if any({FEATURES, TRAIN} <= set(figure.entry.needs) for figure in asked):
        facts = replace(facts, histories=histories_of(given[TRAIN], facts.vectors))
    return replace(facts, known_items=len(items_of(given[ITEMS]))) if ITEMS in needed else facts


def count_figures(given: Given, asked: Sequence[Asked], advance: Advance) -> Answer:
    """Compute figures of how many lists have each item, without interval. Raises `InputError`."""
    needed = {table for figure in asked for table in figure.entry.needs}
    known = items_of(given[ITEMS]) if ITEMS in needed else None
    facts = ItemCounts(
        {},
        known_items=len(known or ()),
        features=features_of(given[FEATURES]) if FEATURES in needed else {},
        trained=popularity_of(given[TRAIN])[0].keys() if TRAIN in needed else (),
    )
    found: dict[Segment, list[_Counts]] = {}
    tied = scored = 0
    for lists in read_lists(given, advance):
        tied, scored = tied + lists.tied[0], scored + lists.tied[1]
        for segment, items, ranks in zip(lists.segments, lists.items, lists.ranks, strict=True):
            if segment not in found:
                check_segments(len(found) + 1, given.by)
                found[segment] = [defaultdict(Counter) for _ in asked]
            for figure, counts in zip(asked, found[segment], strict=True):
                top = items[: sum(rank <= figure.k for rank in ranks)]
                counts[len(top)].update(top)
    whole = [_merge([counts[n] for counts in found.values()]) for n in range(len(asked))]
    if known is not None:
        _require_known(whole, known, given[ITEMS])
    if facts.features or facts.trained:
        listed = set[str]().union(*(items for counts in whole for items in counts.values()))
        _note_unknown(given, listed, {FEATURES: facts.features, TRAIN: facts.trained})

    def figures(of_asked: Sequence[_Counts]) -> dict[str, Figure]:
        return {
            figure.name: _count_figure(figure, replace(facts, by_size=counts))
            for figure, counts in zip(asked, of_asked, strict=True)
        }

    count = count_of(facts.known_items, "item")
    size = Note("catalogue", facts.known_items, f"Catalogue of {count}.")
    return Answer(
        figures=figures(whole),
        by=given.by,
        segments={name: figures(found[name]) for name in sorted(found)} if given.by else {},
        lists={} if given.per_list else None,
        entries=[figure.entry for figure in asked],
        notes=[
            *([] if known is None else [size]),
            *tie_notes(tied, scored, given.value(TIES) or "input"),
        ],
    )


_Counts: TypeAlias = dict[int, Counter[str]]
"""For lists of each length, how many have each item."""


def _merge(parts: Sequence[_Counts]) -> _Counts:
    whole: _Counts = defaultdict(Counter)
    for part in parts:
        for size, counts in part.items():
            whole[size].update(counts)
    return whole


def _require_known(whole: Sequence[_Counts], known: set[str], paths: Sequence[str]) -> None:
    """Raise `InputError` for an item that the catalogue does not have."""
    for counts in whole:
        for item in sorted(set[str]().union(*counts.values()) - known):
            raise InputError(f"{', '.join(paths)}: {item} is in a list but not in this table")


def _count_figure(figure: Asked, counts: ItemCounts) -> Figure:
    assert figure.entry.score is not None, "a figure of counts has a function of them"
    value, n = figure.entry.score(counts, figure.k)
    return Figure(value, None, None, n)


def user_figures(given: Given, asked: Sequence[Asked], advance: Advance) -> Answer:
    """Compare the users who have a list with those in training, by feature. Raises `InputError`.

    DuckDB finds distinct users, so memory does not grow with them.
    """
    with connect(*given[FILES], *given[USER_FEATURES], *given[TRAIN]) as connection:
        load_features(connection, given[USER_FEATURES], "user", USER_NAMES)
        load_interactions(connection, "train", given[TRAIN])
        _load_users(connection, given, advance)
        listed = Side(given[FILES], "users", "user")
        require_common(connection, listed, Side(given[TRAIN], "train", "user"))
        require_common(connection, listed, Side(given[USER_FEATURES], "features", "user"))
        expected = _mixes(connection, "train", ())[()]

        def figures(by: Sequence[str]) -> dict[Segment, dict[str, Figure]]:
            keys = "".join(f"{quote(BY + name)}, " for name in by)
            rows = connection.execute(
                f"SELECT {keys}count(DISTINCT user) FROM users GROUP BY ALL ORDER BY ALL"  # noqa: S608  # names are quoted
            ).fetchall()
            check_segments(len(rows), given.by)
            mixes = _mixes(connection, "users", by)
            return {
                tuple(segment): {
                    figure.name: Figure(
                        total_variation(mixes[tuple(segment)], expected), None, None, n
                    )
                    for figure in asked
                }
                for *segment, n in rows
            }

        return Answer(
            figures=figures(())[()],
            by=given.by,
            segments=figures(given.by) if given.by else {},
            lists={} if given.per_list else None,
            entries=[figure.entry for figure in asked],
        )


def _load_users(connection: Any, given: Given, advance: Advance) -> None:
    """Make the table `users`: user and `by …` of each list."""
    files = files_of(given[FILES])
    dimension_names = [quote(BY + name) for name in given.by]
    columns = "".join(f", coalesce({name}, '') AS {name}" for name in dimension_names)
    if file_of_other_shape(files) is None:
        refuse_seen(given[EXCLUDE_SEEN])
        check_dimensions(given.by, files)
        types = "".join(f", {name} VARCHAR" for name in dimension_names)
        connection.execute(f"CREATE TABLE users (user VARCHAR{types})")
        for record in record_batches(files, ["request", "user", *given.by], advance):
            known = record.filter(record.column("request").is_valid()).drop_columns("request")
            renamed = known.rename_columns(["user", *(BY + name for name in given.by)])
            connection.register("part", pa.Table.from_batches([renamed]))
            connection.execute(f"INSERT INTO users SELECT DISTINCT user{columns} FROM part")  # noqa: S608  # names are quoted
            connection.unregister("part")
        return
    load_slates(connection, files, given.by, advance)
    exclude_seen(connection, files, given[EXCLUDE_SEEN])
    connection.execute(
        f"CREATE TABLE users AS SELECT DISTINCT coalesce(user, list) AS user{columns} FROM slates"  # noqa: S608  # names are quoted
    )


def _mixes(connection: Any, table: str, by: Sequence[str]) -> dict[Segment, dict[str, int]]:
    """Return how many distinct users of a table have each feature, by segment."""
    keys = "".join(f"{quote(BY + name)}, " for name in by)
    rows = connection.execute(f"""
        SELECT {keys}feature, count(*) FROM (SELECT DISTINCT {keys}user FROM {table})
        JOIN (SELECT DISTINCT user, feature FROM features WHERE feature <> '') USING (user)
        GROUP BY ALL
    """).fetchall()  # noqa: S608  # names are quoted
    found: dict[Segment, dict[str, int]] = defaultdict(dict)
    for *segment, feature, count in rows:
        found[tuple(segment)][feature] = count
    return found


def read_lists(given: Given, advance: Advance, kinds: Collection[str] = ()) -> Iterator[NamedLists]:
    """The lists of outcome files (slates with a request), or of a table of slates.

    `kinds` of input that metrics take say whether relevant items and scores are read too.
    """
    files = files_of(given[FILES])
    if file_of_other_shape(files) is None:
        yield from _of_outcomes(files, given, advance, kinds)
    else:
        yield from _of_tables(files, given, advance, kinds)


def _of_outcomes(
    files: Sequence[str], given: Given, advance: Advance, kinds: Collection[str]
) -> Iterator[NamedLists]:
    check_dimensions(given.by, files)
    refuse_seen(given[EXCLUDE_SEEN])
    more = [name for name, kind in (("gains", JUDGED), ("scores", SCORED)) if kind in kinds]
    columns = ["request", "user", "items", "ranks", *given.by, *more]
    for record in record_batches(files, columns, advance):
        known = record.filter(record.column("request").is_valid())
        values = [known.column(name).fill_null("").to_pylist() for name in given.by]
        gains = known.column("gains").to_pylist() if "gains" in more else None
        yield NamedLists(
            ids=known.column("request").to_pylist(),
            users=known.column("user").to_pylist(),
            segments=list(zip(*values, strict=True)) if given.by else [()] * len(known),
            items=known.column("items").to_pylist(),
            ranks=known.column("ranks").to_pylist(),
            relevant=gains and [[_is_relevant(gain, given) for gain in row] for row in gains],
            scores=known.column("scores").to_pylist() if "scores" in more else None,
        )


def _is_relevant(gain: float, given: Given) -> bool:
    level = given.value(RELEVANT)
    return gain > 0 if level is None else gain >= level


def _of_tables(
    files: Sequence[str], given: Given, advance: Advance, kinds: Collection[str]
) -> Iterator[NamedLists]:
    with connect(*files) as connection:
        load_slates(connection, files, given.by, advance)
        exclude_seen(connection, files, given[EXCLUDE_SEEN])
        ties: Ties = given.value(TIES) or "input"
        repeats = drop_repeats(connection, ties)
        relevant = "false"
        if JUDGED in kinds:
            if not given[LABELS]:
                raise InputError(f"slates need labels for relevant items: give {LABELS.described}")
            labels = files_of(given[LABELS])
            given.notes.extend(load_labels(connection, labels, advance))
            require_labels_met(connection, files, labels)
            message = partial(several_gains, ", ".join(labels))
            refuse_several(connection, "labels", ("list", "item"), "gain", message)
            level = given.value(RELEVANT)
            from_level = "gain > 0" if level is None else f"gain >= {level!r}"
            relevant = f"(list, item) IN (SELECT (list, item) FROM labels WHERE {from_level})"  # noqa: S608
        query = f"""
            WITH {order(ties)}
            SELECT list, item, rank, user, by_score, equal, {relevant}, score{dimensions(given.by)}
            FROM ranked ORDER BY list, rank
        """  # noqa: S608  # names are quoted
        for rows, starts in group(connection, query, 1):
            firsts = [rows[start] for start in starts]
            spans = list(zip(starts, [*starts[1:], len(rows)], strict=True))
            yield NamedLists(
                ids=[row[0] for row in firsts],
                users=[row[3] for row in firsts],
                segments=[tuple(value or "" for value in row[8:]) for row in firsts],
                items=[[row[1] for row in rows[start:end]] for start, end in spans],
                ranks=[[row[2] for row in rows[start:end]] for start, end in spans],
                relevant=[[row[6] for row in rows[start:end]] for start, end in spans]
                if JUDGED in kinds
                else None,
                scores=[[row[7] for row in rows[start:end]] for start, end in spans]
                if SCORED in kinds
                else None,
                tied=(
                    sum(any(row[5] for row in rows[start:end]) for start, end in spans),
                    sum(any(row[4] for row in rows[start:end]) for start, end in spans),
                ),
            )
    given.notes.extend(repeat_notes(repeats))
