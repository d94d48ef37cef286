"""How far lists go beyond popular items: average popularity, serendipity, Gini index.

Popularity comes from training interactions, each row of which counts. Sources: RecTools
(AvgRecPopularity, Serendipity), Evidently (popularity bias: average popularity, coverage, Gini).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from streameval.core.metrics.beyond_accuracy import ItemCounts, ItemLists
from streameval.core.metrics.entry import Entry, UnitMetric, UnitSums
from streameval.core.metrics.inputs import ITEMS, TRAIN


def popularity_ranks(interactions: Mapping[str, int]) -> dict[str, int]:
    """Rank items from the most popular, 1; items of the same popularity share a rank."""
    counts = sorted(set(interactions.values()), reverse=True)
    rank_of = {count: rank for rank, count in enumerate(counts, start=1)}
    return {item: rank_of[count] for item, count in interactions.items()}


def _average_popularity(lists: ItemLists, k: int) -> UnitSums:
    counts = lists.interactions
    return _means(lists, k, lambda _, item: counts.get(item, 0))


def _normalized_popularity(lists: ItemLists, k: int) -> UnitSums:
    counts, total = lists.interactions, sum(lists.interactions.values())
    return _means(lists, k, lambda _, item: counts.get(item, 0) / total)


def _means(lists: ItemLists, k: int, worth: Callable[[int, str], float]) -> UnitSums:
    """Return the mean worth of the items of each list at a rank of at most k, if it has any."""
    values = []
    for items, ranks in zip(lists.items, lists.ranks, strict=True):
        top = [worth(rank, item) for item, rank in zip(items, ranks, strict=True) if rank <= k]
        values.append(math.fsum(top) / len(top) if top else math.nan)
    found = np.array(values, np.float64)
    there = ~np.isnan(found)
    return np.where(there, found, 0.0), there.astype(np.int64)


def _serendipity(lists: ItemLists, k: int) -> UnitSums:
    assert lists.relevant is not None, "serendipity needs the relevant items"
    ranks_of, size = lists.popularity_ranks, lists.known_items
    values, counts = np.zeros(len(lists.items)), np.zeros(len(lists.items), np.int64)
    rows = zip(lists.items, lists.ranks, lists.relevant, strict=True)
    for number, (items, ranks, relevant) in enumerate(rows):
        top = [
            max((size + 1 - rank) / size - _expected(ranks_of.get(item), size), 0.0) * is_relevant
            for item, rank, is_relevant in zip(items, ranks, relevant, strict=True)
            if rank <= k
        ]
        if top:
            values[number], counts[number] = math.fsum(top) / len(top), 1
    return values, counts


def _expected(rank: int | None, size: int) -> float:
    """Return how likely any user gets an item of this rank of popularity; none was never used."""
    return 0.0 if rank is None else (size + 1 - rank) / size


def gini(counts: ItemCounts, k: int) -> tuple[float | None, int]:  # noqa: ARG001 (counted up to k)
    """Return the Gini index of how often each item of the catalogue stands in a list."""
    size = counts.known_items
    times = sorted(counts.of_items().values())
    zeros = size - len(times)
    total = sum(times)
    if not total:
        return None, size
    weighted = sum((2 * (zeros + n) - size - 1) * count for n, count in enumerate(times, start=1))
    return weighted / (size * total), size


_EMPTY = "left out and counted: a list without an item at rank <= k"

METRICS: tuple[Entry, ...] = (
    UnitMetric(
        input_kind="items",
        name="average_popularity",
        formula="Mean over lists of the mean over their items at rank <= k of the item's training "
        "interactions",
        source="RecTools AvgRecPopularity; Evidently popularity bias",
        convention="an item without an interaction counts 0; lists count the same",
        undefined=_EMPTY,
        cutoff="optional",
        needs=(TRAIN,),
        score=_average_popularity,
    ),
    UnitMetric(
        input_kind="items",
        name="average_popularity_normalized",
        formula="Mean over lists of the mean over their items at rank <= k of the item's share of "
        "all training interactions",
        source="RecTools AvgRecPopularity with normalize",
        convention="an item without an interaction counts 0; lists count the same",
        undefined=_EMPTY,
        cutoff="optional",
        needs=(TRAIN,),
        score=_normalized_popularity,
    ),
    UnitMetric(
        input_kind="judged_items",
        name="serendipity",
        formula="Mean over lists of the mean over their items at rank <= k, 0 for items that are "
        "not relevant, of max((N + 1 - rank) / N - (N + 1 - rank of popularity) / N, 0)",
        source="RecTools Serendipity",
        convention="N items in the catalogue; items of the same popularity share a rank; the "
        "second term is 0 for an item without an interaction",
        undefined=_EMPTY,
        cutoff="optional",
        needs=(TRAIN, ITEMS),
        score=_serendipity,
    ),
    Entry(
        input_kind="item_counts",
        name="gini",
        formula="Gini index of how many lists have each item of the catalogue at rank <= k",
        source="Evidently popularity bias; RecBole GiniIndex",
        convention="over the catalogue that is given, items in no list included: 0 is even, near "
        "1 a few items take it all",
        undefined="absent without an item; refused where a list has an item that the catalogue "
        "lacks",
        cutoff="optional",
        needs=(ITEMS,),
        score=gini,
    ),
)
"""The rows of these metrics."""
