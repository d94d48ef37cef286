"""Precision, recall and F1 of ratings at a threshold t, user by user or over all pairs.

Recommended are pairs with a high prediction: of a user's k highest (ties: the earlier pair first),
or of all pairs. Relevant are pairs with a high actual rating. Tools differ about "high": above t
or at least t, for predictions and for ratings. Each rule has a name.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streameval.core.metrics.entry import Entry, UnitMetric, UnitSums
from streameval.core.metrics.inputs import Number
from streameval.core.metrics.lists import Scores, ratio
from streameval.core.metrics.rating_errors import Ratings

Counts = npt.NDArray[np.int64]

THRESHOLD = Number(
    name="threshold",
    meaning="the lowest rating of a relevant item",
    note="Threshold {:g}.",
)


class Rule(NamedTuple):
    """The rules for recommended and relevant: predictions and ratings compared with t."""

    suffix: str
    recommended: Callable[[Any, float], Any]
    relevant: Callable[[Any, float], Any]
    convention: str
    source: str


RULES = (
    Rule(
        "",
        operator.gt,
        operator.ge,
        "recommended: of the k highest predictions those above the threshold; relevant: rated at "
        "least the threshold",
        "Bobadilla et al. 2013",
    ),
    Rule(
        "_surprise",
        operator.ge,
        operator.ge,
        "recommended: of the k highest predictions those of at least the threshold; relevant: "
        "rated at least the threshold",
        "Surprise's precision_recall_at_k recipe",
    ),
    Rule(
        "_strict",
        operator.gt,
        operator.gt,
        "recommended: of the k highest predictions those above the threshold; relevant: rated "
        "above the threshold",
        "documentation of k-NN libraries",
    ),
)


def _counts(
    ratings: Ratings, recommended: npt.NDArray[np.bool_], relevant: npt.NDArray[np.bool_]
) -> tuple[Counts, Counts, Counts]:
    """Return each user's numbers of recommended pairs, relevant pairs, and pairs that are both."""
    sizes = ratings.sizes()
    owner = np.repeat(np.arange(len(sizes)), sizes)
    chosen, liked, hits = (
        np.bincount(owner[kept], minlength=len(sizes)).astype(np.int64)
        for kept in (recommended, relevant, recommended & relevant)
    )
    return chosen, liked, hits


def _highest(ratings: Ratings, k: int) -> npt.NDArray[np.bool_]:
    """Tell which pairs are among the k highest predictions of their user."""
    sizes = ratings.sizes()
    owner = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((ratings.lines, -ratings.predicted, owner))
    position = np.empty(len(owner), np.int64)
    position[order] = np.arange(len(owner)) - np.repeat(ratings.starts, sizes)
    return position < k


def _metric(
    name: str, formula: str, share: Callable[[Counts, Counts, Counts], Scores], rule: Rule
) -> UnitMetric[Ratings]:
    def score(ratings: Ratings, k: int, threshold: float) -> UnitSums:
        recommended = rule.recommended(ratings.predicted, threshold) & _highest(ratings, k)
        counts = _counts(ratings, recommended, rule.relevant(ratings.actual, threshold))
        shares = share(*counts)
        return shares, np.ones(len(shares), np.int64)

    return UnitMetric(
        input_kind="ratings",
        name=f"{name}_threshold{rule.suffix}",
        formula=formula,
        source=rule.source,
        convention=rule.convention,
        undefined="0 where a denominator is 0, kept and counted",
        cutoff="required",
        is_share=True,
        parameters=(THRESHOLD,),
        score=score,
    )


def _family(rule: Rule) -> tuple[UnitMetric[Ratings], ...]:
    return (
        _metric(
            "precision",
            "Mean over users of recommended items that are relevant divided by recommended items",
            lambda chosen, liked, hits: ratio(hits, chosen),  # noqa: ARG005
            rule,
        ),
        _metric(
            "recall",
            "Mean over users of recommended items that are relevant divided by relevant items",
            lambda chosen, liked, hits: ratio(hits, liked),  # noqa: ARG005
            rule,
        ),
        _metric(
            "f1",
            "Mean over users of the harmonic mean of precision and recall at the threshold",
            lambda chosen, liked, hits: ratio(2 * hits, chosen + liked),
            rule,
        ),
    )


def _over_pairs(
    name: str, formula: str, parts: Callable[[Counts, Counts, Counts], tuple[Counts, Counts]]
) -> UnitMetric[Ratings]:
    def score(ratings: Ratings, k: int, threshold: float) -> UnitSums:  # noqa: ARG001 (all pairs)
        counts = _counts(ratings, ratings.predicted > threshold, ratings.actual > threshold)
        above, below = parts(*counts)
        return above.astype(np.float64), below

    return UnitMetric(
        input_kind="ratings",
        name=f"{name}_pairs",
        formula=formula,
        source="Gorse's code, factorization machines, whose threshold is 0",
        convention="over pairs, not users; recommended: predicted above the threshold; relevant: "
        "rated above the threshold",
        undefined="absent where no pair is counted in the denominator (in Gorse 0)",
        cutoff="none",
        is_share=True,
        own=False,
        parameters=(THRESHOLD,),
        score=score,
    )


@dataclass(frozen=True, slots=True)
class Placements:
    """Pairs of a relevant and another rated pair, compared by prediction, by cluster of users.

    Of each cluster: `relevant` and `others` count its rated pairs; `won` is twice the number of
    others, of all clusters, that its relevant pairs are predicted above, and for a tie what it
    counts; `lost` the same of the relevant pairs that are predicted above its others. Python's
    integers.
    """

    relevant: Sequence[int]
    others: Sequence[int]
    won: Sequence[int]
    lost: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairMetric(Entry):
    """An AUC over all pairs at once, in which a tie counts so many `halves`."""

    halves: int

    def placements(  # noqa: PLR0917  # the columns of one query
        self,
        relevant: Sequence[int],
        others: Sequence[int],
        below: Sequence[int],
        beside: Sequence[int],
        above: Sequence[int],
        level: Sequence[int],
    ) -> Placements:
        """Count ties as the metric does. Of each cluster of users, and Python's integers.

        `below` and `beside`: others predicted below, or as, its relevant pairs; `above` and
        `level`: relevant pairs predicted above, or as, its others.
        """
        won = [2 * less + self.halves * same for less, same in zip(below, beside, strict=True)]
        lost = [2 * more + self.halves * same for more, same in zip(above, level, strict=True)]
        return Placements(relevant, others, won, lost)


def auc_of_pairs(placements: Placements, threshold: float) -> tuple[float, float] | None:  # noqa: ARG001 (the placements were made with it)
    """Return the AUC and its standard error by clusters; None where one class is missing.

    The error follows Obuchowski 1997: the clusters' parts in the placements of both classes.
    """
    relevant, others = sum(placements.relevant), sum(placements.others)
    if not relevant or not others:
        return None
    auc = sum(placements.won) / (2 * relevant * others)
    influence = [
        (won / (2 * others) - auc * m) / relevant + (lost / (2 * relevant) - auc * n) / others
        for m, n, won, lost in zip(
            placements.relevant, placements.others, placements.won, placements.lost, strict=True
        )
    ]
    clusters = sum(m + n > 0 for m, n in zip(placements.relevant, placements.others, strict=True))
    spread = math.fsum(value * value for value in influence) * clusters / max(clusters - 1, 1)
    return auc, math.sqrt(spread)


def _auc(name: str, halves: int, tie: str, source: str) -> PairMetric:
    return PairMetric(
        input_kind="rated_pairs",
        name=name,
        formula="Share of pairs of a relevant and another rated pair, of all users, in which the "
        f"relevant one is predicted higher, a tie counting {tie}",
        source=source,
        convention="over all pairs at once, not user by user; relevant: rated above the threshold; "
        f"ties count {tie}",
        undefined="absent where all or none of the pairs are relevant",
        cutoff="none",
        is_share=True,
        parameters=(THRESHOLD,),
        score=auc_of_pairs,
        halves=halves,
    )


METRICS: tuple[Entry, ...] = (
    *(metric for rule in RULES for metric in _family(rule)),
    _over_pairs(
        "precision",
        "Recommended pairs that are relevant divided by recommended pairs",
        lambda chosen, liked, hits: (hits, chosen),  # noqa: ARG005
    ),
    _over_pairs(
        "recall",
        "Recommended pairs that are relevant divided by relevant pairs",
        lambda chosen, liked, hits: (hits, liked),  # noqa: ARG005
    ),
    _auc("auc_pairs", 1, "1/2", "scikit-learn roc_auc_score"),
    _auc("auc_pairs_strict", 0, "0", "Gorse's code, factorization machines, whose threshold is 0"),
)
"""The rows of these metrics; a user is a unit, but for `auc_pairs`."""
