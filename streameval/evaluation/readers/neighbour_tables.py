"""Coverage by neighbours, from ratings of users and tables of their neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from streameval.base.counts import count_of
from streameval.base.errors import InputError
from streameval.core.metrics.beyond_accuracy import Reach
from streameval.core.metrics.inputs import ITEMS, TRAIN
from streameval.evaluation.answer import Answer, Note
from streameval.evaluation.batches import ROWS, Advance
from streameval.evaluation.readers.item_tables import load_columns, load_interactions, load_items
from streameval.evaluation.readers.matching import Side, require_common
from streameval.evaluation.request import NEIGHBOURS, RATINGS, Given
from streameval.evaluation.sums import Asked, compute_figures
from streameval.evaluation.units import UnitBatch, batch_of
from streameval.files.tables import USER_NAMES, connect, size, text

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
