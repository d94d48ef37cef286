"""Health of scores: how a score meets its final label, as a probability and as an order.

Figures of probabilities are sums over items. An item's part is an integer of nano-units before it
is added, so neither lists nor batches change a bit. `auc_weighted` compares the items of a list.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streameval.base.errors import InputError
from streameval.base.limits import NANO
from streameval.core.metrics.auc import ranks_by_score
from streameval.core.metrics.entry import Entry, UnitMetric, UnitSums
from streameval.core.metrics.lists import MeanMetric, Scores, nano

BINS: Final = 10
"""Bins of the score, of equal width, for the calibration error."""

# Stands for a probability of 0 or 1 in the log loss, as in scikit-learn: the machine's epsilon.
_EDGE: Final = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, slots=True)
class LabelledScores:
    """The items of n lists, which begin at `starts` (n + 1,), list after list.

    `scores` (items,) is NaN for an item without a score; `positive` (items,) alongside.
    """

    starts: npt.NDArray[np.int64]
    scores: Scores
    positive: npt.NDArray[np.bool_]

    @property
    def scored(self) -> npt.NDArray[np.bool_]:
        """Tell which items have a score."""
        return ~np.isnan(self.scores)

    def probabilities(self) -> Scores:
        """Return the scores. Raises `InputError` for one that is no probability."""
        wrong = self.scores[(self.scores < 0) | (self.scores > 1)]
        if wrong.size:
            raise InputError(
                f"a score is {wrong[0]:.4g}, no probability from 0 to 1: log scores before they are"
                " transformed, or ask for auc and auc_weighted only"
            )
        return self.scores

    def count(self, chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """Return how many of the `chosen` items each list has, shape (n,)."""
        return self.add(chosen.astype(np.int64))

    def sum(self, values: Scores, chosen: npt.NDArray[np.bool_]) -> Scores:
        """Return the sum of the `chosen` items' values in each list, in whole nano-units."""
        return self.add(nano(np.where(chosen, values, 0.0))) / NANO

    def add(self, units: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the sum of whole numbers (items,) in each list, shape (n,)."""
        before = np.concatenate((np.zeros(1, np.int64), np.cumsum(units)))
        return before[self.starts[1:]] - before[self.starts[:-1]]


def _calibration(items: LabelledScores, k: int) -> UnitSums:  # noqa: ARG001 (no ranks here)
    scored = items.scored
    return items.sum(items.probabilities(), scored), items.count(scored & items.positive)


def _log_loss(items: LabelledScores, k: int) -> UnitSums:  # noqa: ARG001 (no ranks here)
    scored = items.scored
    known = np.clip(np.where(scored, items.probabilities(), 0.5), _EDGE, 1 - _EDGE)
    losses = -np.log(np.where(items.positive, known, 1 - known))
    return items.sum(losses, scored), items.count(scored)


def _positive_share(items: LabelledScores, k: int) -> UnitSums:  # noqa: ARG001 (no ranks here)
    scored = items.scored
    return items.count(scored & items.positive).astype(np.float64), items.count(scored)


def _normalise(log_loss: float, positive_share: float) -> float | None:
    if not 0 < positive_share < 1:
        return None
    others = 1 - positive_share
    entropy = -positive_share * math.log(positive_share) - others * math.log(others)
    return log_loss / entropy


def _too_high(number: int) -> Callable[..., UnitSums]:
    """Return the score of a bin's part in the calibration error: Σ(score − label) in it."""

    def score(items: LabelledScores, k: int) -> UnitSums:  # noqa: ARG001 (no ranks here)
        scored, known = items.scored, items.probabilities()
        here = scored & (np.minimum(np.floor(known * BINS), BINS - 1) == number)
        return items.sum(known - items.positive, here), items.count(scored)

    return score


def _in_order(items: LabelledScores, ranks: Scores) -> UnitSums:
    """Return each list's pairs in the right order by `ranks` (items,), and all its pairs.

    A list with an item without a score has no pairs.
    """
    known = items.count(~items.scored) == 0
    hits, length = items.count(items.positive), np.diff(items.starts)
    # Ties may share half ranks: twice a rank is a whole number.
    there = items.positive & ~np.isnan(ranks)
    twice = items.add(np.where(there, 2 * ranks, 0).astype(np.int64))
    pairs = np.where(known, hits * (length - hits), 0)
    right = pairs - (twice - hits * (hits + 1)) / 2
    return np.where(known, right, 0.0), pairs


def _auc_weighted(items: LabelledScores, k: int) -> UnitSums:  # noqa: ARG001 (over the whole list)
    return _in_order(items, ranks_by_score(items.scores, items.starts))


def strict_pairs(items: LabelledScores) -> UnitSums:
    """Return each list's pairs in the right order, where a tie is none, and all its pairs."""
    owner = np.repeat(np.arange(len(items.starts) - 1), np.diff(items.starts))
    # Among equal scores the relevant items come last.
    order = np.lexsort((items.positive, -items.scores, owner))
    ranks = np.empty(len(order))
    ranks[order] = np.arange(1, len(order) + 1) - items.starts[owner]
    return _in_order(items, ranks)


_COMMON: Final[dict[str, Any]] = {
    "input_kind": "labelled_scores",
    "cutoff": "none",
    "own": False,
}
_ITEMS: Final = "over the items that have a score, which is a probability"
_NO_ITEM: Final = "absent where no item has a score; an item without a score is left out"


def _part(score: Callable[..., UnitSums]) -> UnitMetric[LabelledScores]:
    """Return a mean over items that is only a part of a figure, without a row of its own."""
    return UnitMetric(
        **_COMMON, name="", formula="", source="", convention="", undefined="", score=score
    )


LOG_LOSS: UnitMetric[LabelledScores] = UnitMetric(
    **_COMMON,
    name="log_loss",
    formula="Mean over items of -ln of the score where the item is relevant, of -ln(1 - score) "
    "where it is not",
    source="scikit-learn log_loss",
    convention=f"{_ITEMS}; natural logarithm; scores are kept 2.2e-16 away from 0 and 1",
    undefined=_NO_ITEM,
    lower_is_better=True,
    score=_log_loss,
)
CALIBRATION_BINS: Final = tuple(_part(_too_high(number)) for number in range(BINS))
"""The parts of the calibration error: Σ(score − label) of each bin, divided by all items."""


def calibration_error(*bins: float) -> float:
    """Combine the means of `CALIBRATION_BINS`."""
    return math.fsum(map(abs, bins))


_CALIBRATION_ERROR: Final = MeanMetric(
    input_kind="labelled_scores",
    name="calibration_error",
    formula="Mean over ten bins of the score, weighted by their items, of the distance between the "
    "mean score and the share of relevant items",
    source="Naeini, Cooper and Hauskrecht 2015, expected calibration error",
    convention=f"{_ITEMS}; bins of equal width; above 0 by chance too, the more the fewer items",
    undefined=_NO_ITEM,
    cutoff="none",
    lower_is_better=True,
    parts=CALIBRATION_BINS,
    combine=calibration_error,
)

METRICS: tuple[Entry, ...] = (
    UnitMetric(
        **_COMMON,
        name="calibration",
        formula="The sum of scores divided by the number of relevant items",
        source="He et al. 2014; TorchEval weighted_calibration",
        convention=f"{_ITEMS}; 1 is calibrated, above 1 scores promise too much",
        undefined="absent without a relevant item; an item without a score is left out",
        score=_calibration,
    ),
    _CALIBRATION_ERROR,
    LOG_LOSS,
    MeanMetric(
        input_kind="labelled_scores",
        name="normalized_entropy",
        formula="Log loss divided by the entropy of the share of relevant items",
        source="He et al. 2014; TorchEval binary_normalized_entropy",
        convention=f"{_ITEMS}; 1 is as good as the share of relevant items for each item",
        undefined="absent where all or none of the items are relevant; an item without a score is "
        "left out",
        cutoff="none",
        lower_is_better=True,
        parts=(LOG_LOSS, _part(_positive_share)),
        combine=_normalise,
    ),
    UnitMetric(
        **_COMMON,
        name="auc_weighted",
        formula="Share of pairs of a relevant and another item of the same list, in all lists, in "
        "which the relevant one scores higher, a tie counting 1/2",
        source="group AUC of Zhu et al. 2017, who weight lists by impressions or clicks",
        convention="each list counts by its pairs, where auc counts lists the same",
        undefined="left out: a list in which all or none of the items are relevant, or one has no "
        "score",
        is_share=True,
        score=_auc_weighted,
    ),
)
"""The rows of these metrics; a list is a unit, or a user for ratings."""
