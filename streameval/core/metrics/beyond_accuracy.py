"""Contents of lists, relevant or not: coverage, novelty, diversity.

Two items are as similar as the cosine of their features, unless another measure is asked for
(`similarities`); a category is a feature of 1. Cosine has a short cut for whole lists, and the
others compare pair by pair. With the
vectors v of the n items of a list brought to length 1, and s their sum, the mean over an item's
n - 1 others of 1 - similarity sums over the list to `n - (|s|² - n) / (n - 1)`. So the cost of a
list follows its features and not its pairs.

Sources: Bobadilla et al. 2013 (novelty, diversity, coverage by neighbours), recmetrics (novelty as
self-information).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from streameval.core.metrics.entry import Entry, UnitMetric, UnitSums
from streameval.core.metrics.inputs import FEATURES, ITEMS, TRAIN, Choice
from streameval.core.metrics.lists import ratio

Features = Mapping[str, float]
"""Features of an item with their values; a feature that is not there has the value 0."""

SIMILARITY: Final = Choice(
    name="similarity",
    meaning="how diversity and novelty compare two items, by their features or by a table of item,"
    " other, similarity in --features",
    metavar="MEASURE",
    words=("cosine", "jaccard", "hamming", "correlation", "table"),
    default="cosine",
)


@dataclass(frozen=True, slots=True)
class Similarities:
    """Knowledge about items: their features, or the similarity of pairs of them.

    `dimensions`: how many features there are, of all items together.
    """

    features: Mapping[str, Features] = field(default_factory=dict)
    dimensions: int = 0
    pairs: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def knows(self, items: Sequence[str]) -> bool:
        """Tell whether every item has features."""
        return all(item in self.features for item in items)


def mean_distance(items: Sequence[str], known: Similarities, measure: str) -> float | None:
    """Return the mean of 1 - similarity over ordered pairs of items; None if one is unknown."""
    found = [
        _similarity(one, other, known, measure) for one in items for other in items if one != other
    ]
    if None in found or not found:
        return None
    return math.fsum(1.0 - value for value in found if value is not None) / len(found)


def _similarity(one: str, other: str, known: Similarities, measure: str) -> float | None:
    if measure == "table":
        return known.pairs.get((one, other), known.pairs.get((other, one)))
    if not known.knows((one, other)):
        return None
    return _MEASURES[measure](known.features[one], known.features[other], known.dimensions)


def _jaccard(one: Features, other: Features, dimensions: int) -> float:  # noqa: ARG001
    """Return the share of the features of either that both have, whatever their values."""
    return len(one.keys() & other.keys()) / len(one.keys() | other.keys())


def _hamming(one: Features, other: Features, dimensions: int) -> float:
    """Return the share of all features that have the same value in both."""
    differing = sum(one.get(name) != other.get(name) for name in one.keys() | other.keys())
    return 1.0 - differing / dimensions


def _correlation(one: Features, other: Features, dimensions: int) -> float | None:
    """Return Pearson's correlation over all features; None where one has the same value in all."""
    means = [math.fsum(found.values()) / dimensions for found in (one, other)]
    spreads = [
        math.fsum((value - mean) ** 2 for value in found.values())
        + (dimensions - len(found)) * mean * mean
        for found, mean in zip((one, other), means, strict=True)
    ]
    together = math.fsum(one[name] * other[name] for name in sorted(one.keys() & other.keys()))
    if not min(spreads) > 0:
        return None
    return (together - dimensions * means[0] * means[1]) / math.sqrt(spreads[0] * spreads[1])


_MEASURES: Final[Mapping[str, Callable[[Features, Features, int], float | None]]] = {
    "jaccard": _jaccard,
    "hamming": _hamming,
    "correlation": _correlation,
}


Vector = Mapping[str, float]
"""Features of an item and their values, of length 1."""


@dataclass(frozen=True, slots=True)
class ItemLists:
    """The items of n lists in order, their ranks alongside, and facts about items.

    `vectors`: the features of items; `popularity`: the share of users, in (0, 1], who have used
    an item. An item that is in neither is unknown there. `similarities` serve the measures other
    than the cosine. `interactions`: how often an item was used, `popularity_ranks`: its rank by
    that, `known_items`: how many items the catalogue has. `trained_users` counts the users in
    training, and `histories` has the mean of the vectors of each one's items. Beside each item may
    stand whether it is `relevant`, and its score; beside each list its user.
    """

    items: Sequence[Sequence[str]]
    ranks: Sequence[Sequence[int]]
    vectors: Mapping[str, Vector] = field(default_factory=dict)
    popularity: Mapping[str, float] = field(default_factory=dict)
    similarities: Similarities = field(default_factory=Similarities)
    interactions: Mapping[str, int] = field(default_factory=dict)
    popularity_ranks: Mapping[str, int] = field(default_factory=dict)
    known_items: int = 0
    trained_users: int = 0
    histories: Mapping[str, Vector] = field(default_factory=dict)
    users: Sequence[str] = ()
    relevant: Sequence[Sequence[bool]] | None = None
    scores: Sequence[Sequence[float | None]] | None = None

    def top(self, k: int) -> list[list[str]]:
        """The items of each list at a rank of at most k."""
        pairs = zip(self.items, self.ranks, strict=True)
        return [[item for item, rank in zip(*pair, strict=True) if rank <= k] for pair in pairs]


@dataclass(frozen=True, slots=True)
class ItemCounts:
    """How many lists have each item at a rank of at most k, for lists of each length there.

    Such counts add up over batches, in any order. `known_items` (of the catalogue), `features` and
    `trained` (the items of the training interactions) are facts about items.
    """

    by_size: Mapping[int, Mapping[str, int]]
    known_items: int = 0
    features: Mapping[str, Collection[str]] = field(default_factory=dict)
    trained: Collection[str] = ()

    def of_items(self) -> Mapping[str, int]:
        """How many lists have each item."""
        total: Counter[str] = Counter()
        for counts in self.by_size.values():
            total.update(counts)
        return total

    def lists(self) -> int:
        """The number of lists that are not empty."""
        return sum(sum(counts.values()) // size for size, counts in self.by_size.items())


def unit_vector(features: Mapping[str, float]) -> Vector:
    """Return features, not all of them 0, brought to length 1."""
    largest = max(map(abs, features.values()), default=0.0)
    assert 0 < largest < math.inf, "an item without features has no direction to compare"
    # Squares of very large or small values would overflow or vanish; powers of 2 round nothing.
    scale = math.frexp(largest)[1]
    scaled = {name: math.ldexp(value, -scale) for name, value in features.items()}
    length = math.sqrt(math.fsum(value * value for value in scaled.values()))
    return {name: value / length for name, value in scaled.items()}


def _distance(vectors: Sequence[Vector]) -> float:
    """The mean of 1 - similarity over ordered pairs of at least 2 items."""
    n = len(vectors)
    total: dict[str, float] = {}
    for vector in vectors:
        for name, value in vector.items():
            total[name] = total.get(name, 0.0) + value
    square = math.fsum(value * value for value in total.values())
    return 1.0 - (square - n) / (n * (n - 1))


def _cosine_distance(lists: ItemLists, top: Sequence[str]) -> float | None:
    if len(top) < 2 or not all(item in lists.vectors for item in top):
        return None
    return _distance([lists.vectors[item] for item in top])


def _distances(lists: ItemLists, k: int, similarity: str) -> tuple[UnitSums, npt.NDArray[np.int64]]:
    """The mean distance of each list, whether it has one, and how many items it has."""
    tops = lists.top(k)
    found = [
        _cosine_distance(lists, top)
        if similarity == "cosine"
        else mean_distance(top, lists.similarities, similarity)
        for top in tops
    ]
    values = np.array([value or 0.0 for value in found], np.float64)
    known = np.array([value is not None for value in found], np.int64)
    return (values, known), np.array([len(top) for top in tops], np.int64)


def _diversity(lists: ItemLists, k: int, similarity: str = SIMILARITY.default) -> UnitSums:
    return _distances(lists, k, similarity)[0]


def _novelty(lists: ItemLists, k: int, similarity: str = SIMILARITY.default) -> UnitSums:
    (distances, known), sizes = _distances(lists, k, similarity)
    return distances * sizes, known * sizes


def _self_information(lists: ItemLists, k: int) -> UnitSums:
    values, known = [], []
    for top in lists.top(k):
        shares = [lists.popularity.get(item, 0.0) for item in top]
        there = bool(shares) and min(shares) > 0
        bits = math.fsum(-math.log2(share) for share in shares) / len(shares) if there else 0.0
        values.append(bits)
        known.append(there)
    return np.array(values, np.float64), np.array(known, np.int64)


_SIMILARITY = "similarity is by {similarity}, of the items' features unless by table"
_UNKNOWN = (
    "left out and counted: a list of fewer than 2 items, or with one that has no features (or no "
    "similarity in the table), at rank <= k"
)

DIVERSITY = UnitMetric(
    input_kind="items",
    name="diversity",
    formula="Mean over lists of the mean over ordered pairs of their items at rank <= k of "
    "1 - similarity",
    source="Bobadilla et al. 2013",
    convention=f"{_SIMILARITY}; lists count the same",
    undefined=_UNKNOWN,
    cutoff="optional",
    needs=(FEATURES,),
    parameters=(SIMILARITY,),
    score=_diversity,
)
NOVELTY = UnitMetric(
    input_kind="items",
    name="novelty",
    formula="Mean over the items of all lists at rank <= k of the mean of 1 - similarity to the "
    "other items of the list",
    source="Bobadilla et al. 2013",
    convention=f"{_SIMILARITY}; items count the same, so a longer list counts more",
    undefined=_UNKNOWN,
    cutoff="optional",
    needs=(FEATURES,),
    parameters=(SIMILARITY,),
    score=_novelty,
)
SELF_INFORMATION = UnitMetric(
    input_kind="items",
    name="novelty_self_information",
    formula="Mean over lists of the mean over their items at rank <= k of -log2(popularity)",
    source="recmetrics novelty, for lists of n items",
    convention="popularity is the share of users in the training interactions who have the item",
    undefined="left out and counted: an empty list, or one with an item nobody has, whose "
    "surprise is infinite",
    cutoff="optional",
    needs=(TRAIN,),
    score=_self_information,
)


def coverage(distinct: int, items: int) -> float | None:
    """Return the share of a catalogue that so many of its items are; None of an empty one."""
    assert distinct <= items, "they are items of the catalogue"
    return distinct / items if items else None


def catalogue_coverage(
    counts: ItemCounts,
    k: int,  # noqa: ARG001 (counted up to k)
) -> tuple[float | None, int]:
    """Return the share of the catalogue that stands in any list."""
    return coverage(len(counts.of_items()), counts.known_items), counts.known_items


CATALOGUE_COVERAGE = Entry(
    input_kind="item_counts",
    name="catalogue_coverage",
    formula="Distinct items at rank <= k of all lists divided by the size of the catalogue",
    source="the formula of a widely read blog post",
    convention="the catalogue is given, not observed",
    undefined="refused where an item is shown that the catalogue does not have",
    cutoff="optional",
    needs=(ITEMS,),
    score=catalogue_coverage,
)


@dataclass(frozen=True, slots=True)
class Reach:
    """Numbers of items that each of n users has not rated, and of these that a neighbour has."""

    unrated: npt.NDArray[np.int64]
    reached: npt.NDArray[np.int64]


def _neighbour_coverage(reach: Reach, k: int) -> UnitSums:  # noqa: ARG001 (no ranks here)
    return ratio(reach.reached, reach.unrated), (reach.unrated > 0).astype(np.int64)


NEIGHBOUR_COVERAGE = UnitMetric(
    input_kind="neighbours",
    name="neighbour_coverage",
    formula="Mean over users of the items they have not rated but one of their neighbours has, "
    "divided by the items they have not rated",
    source="Bobadilla et al. 2013, coverage",
    convention="neighbours are given; users count the same",
    undefined="left out and counted: a user who has rated every item",
    cutoff="none",
    is_share=True,
    score=_neighbour_coverage,
)

METRICS: tuple[Entry, ...] = (
    CATALOGUE_COVERAGE,
    NOVELTY,
    SELF_INFORMATION,
    DIVERSITY,
    NEIGHBOUR_COVERAGE,
)
"""The rows of these metrics."""
