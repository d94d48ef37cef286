"""Tables of facts about items and users: features, similarities, interactions, neighbours.

Facts about items are held in memory: they follow the number of items, not of lists.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from streameval.base.counts import count_of
from streameval.base.errors import InputError
from streameval.core.metrics.beyond_accuracy import Reach
from streameval.core.metrics.inputs import ITEMS, TRAIN
from streameval.evaluation.answer import Answer, Note
from streameval.evaluation.batches import ROWS, Advance
from streameval.evaluation.readers.matching import Side, refuse_several, require_common
from streameval.evaluation.readers.outcomes import files_of
from streameval.evaluation.request import NEIGHBOURS, RATINGS, Given
from streameval.evaluation.sums import Asked, compute_figures
from streameval.evaluation.units import UnitBatch, batch_of
from streameval.files.list_cells import Several
from streameval.files.tables import (
    ITEM_NAMES,
    USER_NAMES,
    Column,
    connect,
    find_column,
    label,
    load,
    number,
    open_tables,
    optional,
    size,
    text,
)

FEATURE_NAMES: Final = ("feature", "category", "tag", "genre")
OTHER_NAMES: Final = ("other", "other_item", "other_id")


def features_of(paths: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return each item's features that are not 0; an item with zeros only has none."""
    with connect(*paths) as connection:
        load_features(connection, paths, "item", ITEM_NAMES)
        keys = ("item", "feature")
        refuse_several(connection, "features", keys, "value", partial(_several, paths))
        found: dict[str, dict[str, float]] = defaultdict(dict)
        rows = connection.execute(
            "SELECT item, feature, any_value(value) FROM features"
            " WHERE feature <> '' AND value <> 0 GROUP BY ALL ORDER BY ALL"
        )
        for item, feature, value in rows.fetchall():
            found[item][feature] = value
    if not found:
        raise InputError(f"{', '.join(paths)}: no item has a feature with a value other than 0")
    return dict(found)


def _several(paths: Sequence[str], *key: str) -> str:
    """Return the message about a key with two values."""
    return f"{', '.join(paths)}: {', '.join(key)}: two different values; keep one of them"


def load_features(connection: Any, paths: Sequence[str], key: str, names: Sequence[str]) -> None:
    """Make the table `features`: `key`, feature, value, line."""
    files = files_of(paths)
    tables, known = open_tables(connection, files, Several(FEATURE_NAMES, ("value", "weight")))
    columns = {
        key: text(find_column(files, known, names)),
        "feature": label(find_column(files, known, FEATURE_NAMES)),
        "value": number(optional(known, ("value", "weight")), needed=True),
    }
    load(connection, "features", tables, columns)


def load_columns(
    connection: Any,
    table: str,
    paths: Sequence[str],
    columns: Mapping[str, tuple[Callable[[str], Column], Sequence[str]]],
) -> list[str]:
    """Read columns into a table, each of a type and by its names. Return the files.

    The second one, or the only one, may hold lists, with values of the third beside them.
    """
    files = files_of(paths)
    names = [of for _, of in columns.values()]
    tables, known = open_tables(connection, files, Several(*(names[1:] or names)))
    chosen = {
        name: kind(find_column(files, known, names)) for name, (kind, names) in columns.items()
    }
    load(connection, table, tables, chosen)
    return files


def similarities_of(paths: Sequence[str]) -> dict[tuple[str, str], float]:
    """Return the similarity of each pair of items in a table."""
    with connect(*paths) as connection:
        columns: dict[str, tuple[Callable[[str], Column], Sequence[str]]] = {
            "item": (text, ITEM_NAMES),
            "other": (text, OTHER_NAMES),
            "similarity": (partial(number, needed=True), ("similarity", "value")),
        }
        load_columns(connection, "similarities", paths, columns)
        keys = ("item", "other")
        refuse_several(connection, "similarities", keys, "similarity", partial(_several, paths))
        rows = connection.execute("SELECT DISTINCT item, other, similarity FROM similarities")
        return {(item, other): value for item, other, value in rows.fetchall()}


def popularity_of(paths: Sequence[str]) -> tuple[dict[str, int], dict[str, float], int]:
    """Return each item's training interactions, the share of users who have it, and the users."""
    with connect(*paths) as connection:
        load_interactions(connection, "train", paths)
        ((users,),) = connection.execute("SELECT count(DISTINCT user) FROM train").fetchall()
        rows = connection.execute(
            "SELECT item, count(*), count(DISTINCT user) FROM train GROUP BY item"
        ).fetchall()
    counts = {item: count for item, count, _ in rows}
    return counts, {item: count / users for item, _, count in rows}, users


def histories_of(
    paths: Sequence[str], vectors: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """Return the mean of the vectors of each user's training interactions, in order of items.

    An item without a vector has 0 everywhere. Memory follows the users in training.
    """
    with connect(*paths) as connection:
        load_interactions(connection, "train", paths)
        rows = connection.execute(
            "SELECT user, item, count(*) / sum(count(*)) OVER (PARTITION BY user)"
            " FROM train GROUP BY user, item ORDER BY user, item"
        )
        found: dict[str, dict[str, float]] = {}
        while part := rows.fetchmany(ROWS):
            for user, item, share in part:
                history = found.setdefault(user, {})
                for name, value in vectors.get(item, {}).items():
                    history[name] = history.get(name, 0.0) + share * value
    return found


def items_of(paths: Sequence[str]) -> set[str]:
    """Return the items of a catalogue."""
    with connect(*paths) as connection:
        load_items(connection, "catalogue", paths)
        found = connection.execute("SELECT DISTINCT item FROM catalogue").fetchall()
    return {item for (item,) in found}


def load_items(connection: Any, table: str, paths: Sequence[str]) -> None:
    """Read the items of a catalogue into a table: item, line."""
    load_columns(connection, table, paths, {"item": (text, ITEM_NAMES)})


def load_interactions(connection: Any, table: str, paths: Sequence[str]) -> int:
    """Read who has which item into a table: user, item, line. Return the size of the files."""
    columns = {"user": (text, USER_NAMES), "item": (text, ITEM_NAMES)}
    return size(load_columns(connection, table, paths, columns))


NEIGHBOUR_NAMES: Final = ("neighbour", "neighbor", "neighbour_id", "neighbor_id")


def neighbour_figures(given: Given, asked: Sequence[Asked], advance: Advance) -> Answer:
    """Compute the coverage over users with ratings or neighbours. Raises `InputError`."""
    if given.by:
        raise InputError("--by: neighbour_coverage is one figure of all users")
    rated = given[TRAIN] or given[RATINGS]
    with connect(*given[NEIGHBOURS], *rated) as connection:
        advance(load_interactions(connection, "interactions", rated))
        count = _items(connection, given[ITEMS])
        columns = {"user": (text, USER_NAMES), "neighbour": (text, NEIGHBOUR_NAMES)}
        advance(size(load_columns(connection, "neighbours", given[NEIGHBOURS], columns)))
        for name in ("user", "neighbour"):
            other = Side(rated, "(SELECT user AS neighbour, user FROM interactions)", name)
            require_common(connection, Side(given[NEIGHBOURS], "neighbours", name), other)
        batches = _users(connection, count)
        evaluation = compute_figures(batches, asked, given)
    return evaluation.answer(Note("catalogue", count, f"Catalogue of {count_of(count, 'item')}."))


def _items(connection: Any, items: Sequence[str]) -> int:
    """Make the table `rated` of the catalogue's items, and count these."""
    if items:
        load_items(connection, "known", items)
    else:
        connection.execute("CREATE VIEW known AS SELECT item FROM interactions")
    connection.execute(
        "CREATE TABLE rated AS SELECT DISTINCT user, item FROM interactions"
        " WHERE item IN (SELECT item FROM known)"
    )
    ((count,),) = connection.execute("SELECT count(DISTINCT item) FROM known").fetchall()
    return int(count)


def _users(connection: Any, count: int) -> Iterator[UnitBatch[Reach]]:
    connection.execute("""
        WITH own AS (SELECT user, count(*) AS items FROM rated GROUP BY user),
        reached AS (
            SELECT neighbours.user, count(DISTINCT item) AS items
            FROM neighbours JOIN rated ON rated.user = neighbours.neighbour
            WHERE (neighbours.user, item) NOT IN (SELECT (user, item) FROM rated)
            GROUP BY neighbours.user
        )
        SELECT user, coalesce(own.items, 0), coalesce(reached.items, 0)
        FROM (SELECT user FROM own UNION SELECT user FROM neighbours)
        LEFT JOIN own USING (user) LEFT JOIN reached USING (user)
    """)
    while rows := connection.fetchmany(ROWS):
        users, own, reached = zip(*rows, strict=True)
        reach = Reach(unrated=count - np.array(own, np.int64), reached=np.array(reached, np.int64))
        yield batch_of(reach, users, [()] * len(users), users)
