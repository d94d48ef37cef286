"""Similarity of two items: of their features, by several measures, or from a table.

`cosine` has a short cut for whole lists (`beyond_accuracy`); the others compare pair by pair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from streameval.core.metrics.inputs import Choice

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
