"""How lists are spread: over users, over kinds of items and users, and over scores.

Sources: recmetrics (personalization). Evidently draws the distributions behind the biases.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping

import numpy as np

from streameval.core.metrics.beyond_accuracy import ItemCounts, ItemLists
from streameval.core.metrics.entry import Entry, UnitMetric, UnitSums
from streameval.core.metrics.inputs import FEATURES, KNOWN, TRAIN, Table

USER_FEATURES = Table("user_features", "features of users", KNOWN, "user, feature or category")


def personalization(
    counts: ItemCounts,
    k: int,  # noqa: ARG001 (counted up to k)
) -> tuple[float | None, int]:
    """Return 1 - the mean cosine of two lists as sets of items, over all pairs of lists.

    The sum of all cosines is the sum of the squares, over items, of the sum of `1 / √length` over
    the lists that have the item: no pair of lists is looked at.
    """
    lists = counts.lists()
    if lists < 2:
        return None, lists
    weights: dict[str, float] = defaultdict(float)
    for size in sorted(counts.by_size):
        for item, count in counts.by_size[size].items():
            weights[item] += count / math.sqrt(size)
    together = math.fsum(weight * weight for weight in weights.values())
    return 1.0 - (together - lists) / (lists * (lists - 1)), lists


def total_variation(found: Mapping[str, float], expected: Mapping[str, float]) -> float | None:
    """Return half the sum of differences between two distributions given by weights."""
    whole, of_expected = math.fsum(found.values()), math.fsum(expected.values())
    if not whole or not of_expected:
        return None
    names = found.keys() | expected.keys()
    return (
        math.fsum(
            abs(found.get(name, 0) / whole - expected.get(name, 0) / of_expected) for name in names
        )
        / 2
    )


def item_bias(counts: ItemCounts, k: int) -> tuple[float | None, int]:  # noqa: ARG001 (counted up to k)
    """Return the distance of the features of listed items from the items in training."""
    times = counts.of_items()
    found: Counter[str] = Counter()
    for item, count in times.items():
        for feature in counts.features.get(item, ()):
            found[feature] += count
    expected = Counter(
        feature for item in counts.trained for feature in counts.features.get(item, ())
    )
    return total_variation(found, expected), sum(times.values())


def _score_entropy(lists: ItemLists, k: int) -> UnitSums:
    assert lists.scores is not None, "score_entropy needs scores"
    values, counts = np.zeros(len(lists.items)), np.zeros(len(lists.items), np.int64)
    for number, (scores, ranks) in enumerate(zip(lists.scores, lists.ranks, strict=True)):
        top = [score for score, rank in zip(scores, ranks, strict=True) if rank <= k]
        known = [score for score in top if score is not None and math.isfinite(score)]
        if top and len(known) == len(top):
            values[number], counts[number] = _entropy(known), 1
    return values, counts


def _entropy(scores: list[float]) -> float:
    """Return the entropy of the softmax of scores, in nats."""
    most = max(scores)
    weights = [math.exp(score - most) for score in scores]
    total = math.fsum(weights)
    shares = [weight / total for weight in weights]
    return math.fsum(-share * math.log(share) for share in shares if share)


METRICS: tuple[Entry, ...] = (
    Entry(
        input_kind="item_counts",
        name="personalization",
        formula="1 - the mean over pairs of lists of the cosine of their sets of items at rank <= "
        "k",
        source="recmetrics personalization and Evidently Personalization, for lists of k items",
        convention="pairs of lists, not of users; an empty list has no pair",
        undefined="absent below two lists",
        cutoff="optional",
        score=personalization,
    ),
    Entry(
        input_kind="item_counts",
        name="item_bias",
        formula="Total variation distance between the features of the items at rank <= k of all "
        "lists and those of the distinct items in training",
        source="one number for the two distributions that Evidently ItemBias draws",
        convention="each feature of an item counts 1; 0 is the same mix, 1 no feature in common",
        undefined="absent where no item has a feature",
        cutoff="optional",
        needs=(FEATURES, TRAIN),
        score=item_bias,
    ),
    Entry(
        input_kind="users",
        name="user_bias",
        formula="Total variation distance between the features of the distinct users with a list "
        "and those of the distinct users in training",
        source="one number for the two distributions that Evidently UserBias draws",
        convention="each feature of a user counts 1; 0 is the same mix, 1 no feature in common",
        undefined="absent where no user has a feature",
        cutoff="none",
        needs=(USER_FEATURES, TRAIN),
    ),
    UnitMetric(
        input_kind="scored_items",
        name="score_entropy",
        formula="Mean over lists of the entropy, in nats, of the softmax of the scores of their "
        "items at rank <= k",
        source="Shannon 1948, of each list",
        convention="list by list, where Evidently ScoreDistribution has one softmax of all lists; "
        "log of the length where all scores are equal",
        undefined="left out and counted: an empty list, or one with an item without a score",
        cutoff="optional",
        score=_score_entropy,
    ),
)
"""The rows of these metrics."""
