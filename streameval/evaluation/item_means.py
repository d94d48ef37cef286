"""Errors of ratings that are means over items, with an interval by the hash bootstrap.

The users of an item also rate others, so a mean over items has no sums by user that a formula
could use: clusters of users are drawn again (`bootstrap`) and the figure is computed anew. Memory
follows neither pairs nor items.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from streameval.base.limits import CLUSTERS, NANO
from streameval.core.metrics.lists import Scores, nano
from streameval.core.metrics.rating_errors import ItemMetric
from streameval.evaluation.answer import Answer, Figure, Figures, Segment
from streameval.evaluation.batches import Advance
from streameval.evaluation.readers.rating_tables import load_pairs
from streameval.evaluation.request import PREDICTIONS, RATINGS, Given
from streameval.evaluation.sums import Asked, check_segments
from streameval.evaluation.units import dimensions, group
from streameval.files.tables import connect
from streameval.stats.bootstrap import REPLICATES, user_hashes, weights
from streameval.stats.intervals import Arm, interval

# Items whose replicates are computed in one go: 256 sums of 8 bytes each, 2 MB.
_ITEMS: Final = 1_024


def item_figures(given: Given, asked: Sequence[Asked], advance: Advance) -> Answer:
    """Compute errors that are means over items. Raises `InputError`."""
    sums: dict[Segment, list[Means]] = {}
    with connect(*given[RATINGS], *given[PREDICTIONS]) as connection:
        notes = load_pairs(connection, given, advance)
        for name, squares, distances, counts in _items(connection, given.by):
            if name not in sums:
                check_segments(len(sums) + 1, given.by)
                sums[name] = [Means() for _ in asked]
            for means, figure in zip(sums[name], asked, strict=True):
                assert isinstance(figure.entry, ItemMetric), "the input kind of the entry says so"
                total = squares if figure.entry.squared else distances
                means.add_items(figure.entry, total, counts)
    totals = [Means() for _ in asked]
    for row in sums.values():
        for whole, part in zip(totals, row, strict=True):
            whole.add(part)
    return Answer(
        figures=_figures(asked, totals),
        by=given.by,
        segments={name: _figures(asked, sums[name]) for name in sorted(sums)} if given.by else {},
        lists={} if given.per_list else None,
        entries=[figure.entry for figure in asked],
        notes=notes,
    )


@dataclass(slots=True)
class Means:
    """A mean over items: Σ of items' figures in nano-units, items, and both of each replicate.

    `pairs` counts the pairs of each cluster of users.
    """

    total: int = 0
    items: int = 0
    replicate_total: Scores = field(default_factory=lambda: np.zeros(REPLICATES))
    replicate_items: Scores = field(default_factory=lambda: np.zeros(REPLICATES))
    pairs: Scores = field(default_factory=lambda: np.zeros(CLUSTERS))

    def add_items(self, metric: ItemMetric, total: Scores, count: Scores) -> None:
        """Add items, whose distances (nano-units) and pairs are given by cluster of users."""
        values = metric.of_items(total.sum(axis=1) / NANO, count.sum(axis=1))
        drawn = metric.of_items(total @ _WEIGHTS / NANO, count @ _WEIGHTS)
        there = ~np.isnan(drawn)
        self.total += sum(nano(values).tolist())
        self.items += len(values)
        self.replicate_total += np.where(there, drawn, 0.0).sum(axis=0)
        self.replicate_items += there.sum(axis=0)
        self.pairs += count.sum(axis=0)

    def add(self, other: Means) -> None:
        """Add the items of another segment."""
        self.total += other.total
        self.items += other.items
        self.replicate_total += other.replicate_total
        self.replicate_items += other.replicate_items
        self.pairs += other.pairs

    def figure(self) -> Figure:
        """The mean, and its interval by the spread of the replicates around it.

        Their quantiles would be too low: the root of a mean is biased, in a replicate once more.
        """
        if not self.items:
            return Figure(None, None, None, 0)
        value = self.total / (self.items * NANO)
        clusters = int(np.count_nonzero(self.pairs))
        drawn = self.replicate_items > 0
        means = self.replicate_total[drawn] / self.replicate_items[drawn]
        if clusters < 2 or len(means) < 2:
            return Figure(value, None, None, self.items)
        stderr = float(np.std(means, ddof=1))
        bounds = interval(Arm(value, stderr, math.nan, clusters, clusters))
        return Figure(value, bounds.low, bounds.high, self.items)


def _items(connection: Any, by: Sequence[str]) -> Iterator[tuple[Segment, Scores, Scores, Scores]]:
    """Yield items of a segment: Σ error², Σ |error| (nano-units), pairs, (items, CLUSTERS).

    Clusters come from DuckDB's MD5: they are drawn again, and never merged with a stream's.
    Sums are integers, since threads add in any order.
    """
    columns = dimensions(by).removeprefix(", ")
    keys = f"{columns}, item" if by else "item"
    query = f"""
        SELECT {keys}, md5_number_lower(user) % {CLUSTERS},
            sum(round((prediction - rating) ** 2 * {NANO})::HUGEINT),
            sum(round(abs(prediction - rating) * {NANO})::HUGEINT), count(*)
        FROM pairs GROUP BY ALL ORDER BY ALL
    """  # noqa: S608  # names are quoted
    for rows, starts in group(connection, query, len(by) + 1):
        ends = [*starts[1:], len(rows)]
        segments = [tuple(rows[start][: len(by)]) for start in starts]
        for first in range(0, len(starts), _ITEMS):
            for segment in dict.fromkeys(segments[first : first + _ITEMS]):
                chosen = [
                    number
                    for number in range(first, min(first + _ITEMS, len(starts)))
                    if segments[number] == segment
                ]
                yield segment, *_sums(rows, [(starts[n], ends[n]) for n in chosen])


def _sums(
    rows: Sequence[tuple[Any, ...]], spans: Sequence[tuple[int, int]]
) -> tuple[Scores, Scores, Scores]:
    found = np.zeros((3, len(spans), CLUSTERS))
    for number, (start, end) in enumerate(spans):
        for *_, cluster, squares, distances, count in rows[start:end]:
            found[:, number, cluster] = squares, distances, count
    return found[0], found[1], found[2]


_WEIGHTS: Final = weights(user_hashes(str(cluster) for cluster in range(CLUSTERS))).astype(float)
"""How often each cluster of users counts in each replicate."""


def _figures(asked: Sequence[Asked], sums: Sequence[Means]) -> Figures:
    return {figure.name: means.figure() for figure, means in zip(asked, sums, strict=True)}
