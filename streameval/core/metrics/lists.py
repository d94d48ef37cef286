"""Ranking metrics and their data: the shapes that all metrics of ranked lists share.

A metric is one function over a batch of ranked lists. Every sum runs over columns in order, one
addition at a time, and padding adds an exact zero: a list has the same score, bit for bit, in
any batch. (`ndarray.sum` adds in an order that depends on the shape.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, TypeAlias

import numpy as np
import numpy.typing as npt

from streameval.base.errors import InputError
from streameval.base.limits import NANO
from streameval.core.metrics.entry import Entry, InputKind, UnitMetric

Scores: TypeAlias = npt.NDArray[np.float64]
"""A score for each list, shape (n,): NaN where undefined, in [0, 1] for metrics of `RANKING`."""

RelevantItems: TypeAlias = tuple[tuple[int, ...], tuple[float, ...]]
"""The relevant items of one list: their ranks, rising from 1, and their gains (> 0) alongside.

A relevant item that is not in the list has a gain beyond the last rank."""


@dataclass(frozen=True, slots=True)
class Lists:
    """The relevant items of n ranked lists, the widest with m of them.

    `ranks` (n, m): 1-based ranks, rising; 0 at the right end for padding and for a relevant item
    that is not in the list. `gains` (n, m): the gain of each relevant item, in
    the same order, those not in the list last; padding is 0. `relevant` (n,): R, how many relevant
    items a list has.

    Only `auc` needs the next two, and both need all items of a list. `length` (n,): the number of
    items in a list. `score_ranks` (n, m): the rank of each relevant item by score, from 1; ties
    share the mean of their ranks. They are NaN where an item of the list has no score.

    Only metrics of incomplete labels need the last three. `irrelevant` (n,): the items that labels
    call irrelevant. `irrelevant_above` and `unjudged_above` (n, m): how many of these, and how many
    that were pooled and never judged, stand above each relevant item.
    """

    ranks: npt.NDArray[np.int64]
    gains: npt.NDArray[np.float64]
    relevant: npt.NDArray[np.int64]
    length: npt.NDArray[np.int64] | None = None
    score_ranks: npt.NDArray[np.float64] | None = None
    irrelevant: npt.NDArray[np.int64] | None = None
    irrelevant_above: npt.NDArray[np.int64] | None = None
    unjudged_above: npt.NDArray[np.int64] | None = None

    @classmethod
    def of(cls, rows: Sequence[RelevantItems]) -> Lists:
        """Pad rows to the width of the widest, at least 1."""
        width = max((len(gains) for _, gains in rows), default=0) or 1
        ranks = np.zeros((len(rows), width), dtype=np.int64)
        gains = np.zeros((len(rows), width), dtype=np.float64)
        for index, (row_ranks, row_gains) in enumerate(rows):
            ranks[index, : len(row_ranks)] = row_ranks
            gains[index, : len(row_gains)] = row_gains
        relevant = np.fromiter((len(row_gains) for _, row_gains in rows), np.int64, len(rows))
        return cls(ranks, gains, relevant)

    def within(self, k: int) -> npt.NDArray[np.bool_]:
        """Return which relevant items stand at a rank of at most `k`, shape (n, m)."""
        return (self.ranks >= 1) & (self.ranks <= k)

    def hits(self, k: int) -> npt.NDArray[np.int64]:
        """Return how many relevant items stand at a rank of at most `k`, shape (n,)."""
        hits: npt.NDArray[np.int64] = self.within(k).sum(axis=1, dtype=np.int64)
        return hits


@dataclass(frozen=True, slots=True)
class Windowed:
    """What the stream needs of a ranking metric: its `place` among those of a window, and `sql`.

    `sql` is the score of a slate once more, in DuckDB's SQL, by which `streameval check` recounts
    it. So it shares nothing with the function. It may use `{relevant}`, the relevant items as
    structs of rank and gain in the order of rank, `{near}`, those at rank <= k, and `{k}`. A slate
    without any of `{near}` scores 0.
    """

    place: int
    sql: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric(Entry):
    """A ranking metric: `score(lists, k)` returns a score for each list.

    The figure is the mean of the scores that are defined. A list without relevant items scores 0
    unless `undefined` says otherwise. `by_score`: it goes by the logged scores and not by the
    ranks. `graded`: gains count, so a threshold of relevance does not. `by_judged`: items
    that labels call irrelevant differ from those without a label. Windows have one that is
    `windowed`.
    """

    input_kind: InputKind = "lists"
    is_share: bool = True
    by_score: bool = False
    graded: bool = False
    by_judged: bool = False
    windowed: Windowed | None = None

    score: Callable[Concatenate[Lists, int, ...], Scores]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanMetric(Entry):
    """A figure made of the means of others: it has no score for a single list.

    `combine` is given the means of `parts`, in their order. All are of one input kind.
    """

    input_kind: InputKind = "lists"

    parts: tuple[Metric | UnitMetric[Any], ...]
    combine: Callable[..., float | None]


NO_RELEVANT = "0 without relevant items, kept and counted"
"""The rule of most ranking metrics for a list without relevant items."""


def ratio(
    numerator: npt.NDArray[np.int64] | Scores, denominator: npt.NDArray[np.int64] | Scores
) -> Scores:
    """Divide, 0 where the denominator is 0; rounding never lifts a score above 1."""
    quotient = np.zeros(len(numerator))
    np.divide(numerator, denominator, out=quotient, where=denominator > 0)
    return np.minimum(quotient, 1.0)


def add_columns(terms: Scores) -> Scores:
    """Add the columns of (n, m) one after another: the same bits whatever the width."""
    total = np.zeros(len(terms))
    for column in range(terms.shape[1]):
        total += terms[:, column]
    return total


def nano(scores: Scores) -> npt.NDArray[np.int64]:
    """Return scores, none of them NaN, in integer nano-units: their sums are exact, in any order.

    A score that does not fit (an error of ratings has no bound) raises `InputError`.
    """
    units = np.rint(scores * NANO)
    if units.size and not np.abs(units).max() < 2**63:
        raise InputError(
            "a score is beyond 9.2e9: gains or errors are too large to be summed exactly"
        )
    return units.astype(np.int64)
