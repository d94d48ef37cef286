"""What lists are made of, whatever was relevant: coverage, novelty, diversity.

Sources: Bobadilla et al. 2013 (novelty, diversity, coverage by neighbours), recmetrics (novelty as
self-information).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

from streameval.core.errors import InputError

Similarity = Callable[[str, str], float]
"""How alike two items are, 1 for the same."""


def catalogue_coverage(lists: Sequence[Sequence[str]], k: int, catalogue: int) -> float:
    """Return distinct items in the top k of all lists / the size of the catalogue."""
    distinct = {item for ranked in lists for item in ranked[:k]}
    if catalogue < max(len(distinct), 1):
        raise InputError(f"catalogue_coverage: {catalogue} items, but {len(distinct)} were shown")
    return len(distinct) / catalogue


def novelty(ranked: Sequence[str], similarity: Similarity) -> list[float]:
    """Return, for each item of a list, the mean of 1 - similarity to the others.

    A list shorter than 2 has no others: empty, left out of the mean over items.
    """
    others = len(ranked) - 1
    return [
        math.fsum(1 - similarity(a, b) for j, b in enumerate(ranked) if j != i) / others
        for i, a in enumerate(ranked)
        if others
    ]


def diversity(ranked: Sequence[str], similarity: Similarity) -> float:
    """Return the mean of 1 - similarity over ordered pairs of a list; NaN below 2 items."""
    found = novelty(ranked, similarity)
    return math.fsum(found) / len(found) if found else math.nan


def novelty_self_information(ranked: Sequence[str], popularity: Mapping[str, float]) -> float:
    """Return the mean of -log2(popularity) over a list, popularity in (0, 1].

    NaN for an empty list and for one with an item that nobody has used: its surprise is infinite.
    """
    shares = [popularity.get(item, 0.0) for item in ranked]
    if not shares or min(shares) <= 0:
        return math.nan
    return math.fsum(-math.log2(share) for share in shares) / len(shares)


def neighbour_coverage(
    user: str, rated: Mapping[str, Collection[str]], neighbours: Sequence[str], catalogue: set[str]
) -> float:
    """Return the share of items the user has not rated that one of the neighbours has.

    NaN for a user who has rated the whole catalogue.
    """
    unrated = catalogue - set(rated.get(user, ()))
    reached = {item for neighbour in neighbours for item in rated.get(neighbour, ())}
    return len(unrated & reached) / len(unrated) if unrated else math.nan
