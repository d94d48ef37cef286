"""How far lists go beyond popular items: average popularity, serendipity, Gini index.

RecTools takes popularity from training interactions, each row of which counts. Evidently takes it
from the users who have an item, and looks at items of lists or of training where RecTools and
RecBole look at a catalogue. So figures of one name differ, and each has a name of its own here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import numpy as np

from streameval.core.metrics.beyond_accuracy import ItemCounts, ItemLists, coverage
from streameval.core.metrics.entry import Entry, UnitMetric, UnitSums
from streameval.core.metrics.inputs import FEATURES, ITEMS, TRAIN


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


def _users_popularity(lists: ItemLists, k: int) -> UnitSums:
    known, users = lists.popularity, lists.trained_users
    return _means(lists, k, lambda _, item: known[item] * users, known)


def _popularity_of_most(lists: ItemLists, k: int) -> UnitSums:
    known = lists.popularity
    most = max(known.values(), default=1.0)
    return _means(lists, k, lambda _, item: known[item] / most, known)


def _means(
    lists: ItemLists,
    k: int,
    worth: Callable[[int, str], float],
    known: Collection[str] | None = None,
) -> UnitSums:
    """Return the mean worth of the items of each list at a rank of at most k, if it has any.

    Of the `known` items only, where these are given.
    """
    values = []
    for items, ranks in zip(lists.items, lists.ranks, strict=True):
        top = [
            worth(rank, item)
            for item, rank in zip(items, ranks, strict=True)
            if rank <= k and (known is None or item in known)
        ]
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
            max((size + 1 - rank) / size - _use_of_rank(ranks_of.get(item), size), 0.0)
            * is_relevant
            for item, rank, is_relevant in zip(items, ranks, relevant, strict=True)
            if rank <= k
        ]
        if top:
            values[number], counts[number] = math.fsum(top) / len(top), 1
    return values, counts


def _unlike_history(lists: ItemLists, k: int) -> UnitSums:
    assert lists.relevant is not None, "serendipity needs the relevant items"
    values, counts = np.zeros(len(lists.items)), np.zeros(len(lists.items), np.int64)
    rows = zip(lists.users, lists.items, lists.ranks, lists.relevant, strict=True)
    for number, (user, items, ranks, relevant) in enumerate(rows):
        history = lists.histories.get(user)
        hits = [item for item, rank, hit in zip(items, ranks, relevant, strict=True)
                if hit and rank <= k]  # fmt: skip
        if hits and history is not None:
            values[number] = 1.0 - math.fsum(
                value * history.get(name, 0.0)
                for item in hits
                for name, value in lists.vectors.get(item, {}).items()
            )
            counts[number] = 1
    return values, counts


def _use_of_rank(rank: int | None, size: int) -> float:
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


def gini_listed(counts: ItemCounts, k: int) -> tuple[float | None, int]:
    """Return the Gini index over the items that are in any list, with n - 1 in place of n."""
    size = len(counts.of_items())
    found, _ = gini(replace(counts, known_items=size), k)
    return (None if found is None or size < 2 else found * size / (size - 1)), size


def training_coverage(counts: ItemCounts, k: int) -> tuple[float | None, int]:  # noqa: ARG001 (counted up to k)
    """Return the share of the items in training that stand in any list."""
    size = len(counts.trained)
    return coverage(len(counts.of_items().keys() & set(counts.trained)), size), size


_EMPTY = "left out and counted: a list without an item at rank <= k"

_TRAINED = "items that training lacks do not count; lists count the same"
_NOT_TRAINED = "left out and counted: a list without an item of the training interactions"

METRICS: tuple[Entry, ...] = (
    UnitMetric(
        input_kind="items",
        name="average_popularity",
        formula="Mean over lists of the mean over their items at rank <= k of the item's training "
        "interactions",
        source="RecTools AvgRecPopularity",
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
        is_share=True,
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
        is_share=True,
        score=_serendipity,
    ),
    Entry(
        input_kind="item_counts",
        name="gini",
        formula="Gini index of how many lists have each item of the catalogue at rank <= k",
        source="RecBole GiniIndex",
        convention="over the catalogue that is given, items in no list included: 0 is even, near "
        "1 a few items take it all",
        undefined="absent without an item; refused where a list has an item that the catalogue "
        "lacks",
        cutoff="optional",
        needs=(ITEMS,),
        score=gini,
    ),
    UnitMetric(
        input_kind="items",
        name="average_popularity_users",
        formula="Mean over lists of the mean over their items at rank <= k of the users in "
        "training who have the item",
        source="Evidently PopularityBias, arp",
        convention=_TRAINED,
        undefined=_NOT_TRAINED,
        cutoff="optional",
        needs=(TRAIN,),
        score=_users_popularity,
    ),
    UnitMetric(
        input_kind="items",
        name="average_popularity_max",
        formula="Mean over lists of the mean over their items at rank <= k of the users in "
        "training who have the item divided by those who have the most popular item",
        source="Evidently PopularityBias, arp with normalize_arp",
        convention=_TRAINED,
        undefined=_NOT_TRAINED,
        cutoff="optional",
        needs=(TRAIN,),
        is_share=True,
        score=_popularity_of_most,
    ),
    Entry(
        input_kind="item_counts",
        name="gini_listed",
        formula="Gini index of how many lists have each item at rank <= k, over the n items that "
        "any list has, times n / (n - 1)",
        source="Evidently PopularityBias, gini",
        convention="items in no list do not count: a catalogue of which only two items are ever "
        "listed, equally often, has 0",
        undefined="absent below two items in lists",
        cutoff="optional",
        score=gini_listed,
    ),
    Entry(
        input_kind="item_counts",
        name="training_coverage",
        formula="Distinct items of the training interactions at rank <= k of all lists divided by "
        "the distinct items in training",
        source="Evidently PopularityBias, coverage",
        convention="items that training lacks do not count",
        undefined="absent without an item in training",
        cutoff="optional",
        needs=(TRAIN,),
        score=training_coverage,
    ),
    UnitMetric(
        input_kind="judged_items",
        name="serendipity_features",
        formula="Mean over lists of 1 - the sum over their relevant items at rank <= k of the mean "
        "similarity to the training interactions of the list's user",
        source="Evidently Serendipity",
        convention="similarity is the cosine of features, 0 for an item without features; below 0 "
        "where several relevant items are like the history",
        undefined="left out and counted: a list without a relevant item at rank <= k, or of a user "
        "without training interactions",
        cutoff="optional",
        needs=(FEATURES, TRAIN),
        score=_unlike_history,
    ),
)
"""The rows of these metrics."""
