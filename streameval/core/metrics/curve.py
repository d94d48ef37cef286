"""Precision against recall: trec_eval's interpolated curve at eleven levels of recall.

The interpolated precision at a level of recall is the largest precision at any rank from where
that level is reached on. The curve is the mean over lists; one without relevant items has 0.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from streameval.core.metrics.lists import NO_RELEVANT, Lists, Metric, Scores

LEVELS = tuple(level / 10 for level in range(11))
"""The eleven levels of recall of trec_eval's iprec_at_recall."""


def interpolate(lists: Lists) -> Scores:
    """Return the precision of each list at each of `LEVELS`, shape (n, 11).

    A level is reached with the nearest whole number of relevant items to `level · R`: trec_eval
    from version 10 on. Version 9, and so pytrec_eval, adds 0.9 and cuts, one item more at times.
    """
    hits = np.arange(1.0, lists.ranks.shape[1] + 1)
    found = lists.ranks >= 1
    precision = np.where(found, hits / np.where(found, lists.ranks, 1), 0.0)
    # From each hit on: the largest precision at it or at a later one. One more column of 0 is for
    # levels that no hit reaches.
    best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    best = np.concatenate([best, np.zeros((len(best), 1))], axis=1)
    needed: npt.NDArray[np.int64] = (np.outer(lists.relevant, LEVELS) + 0.5).astype(np.int64)
    return np.take_along_axis(best, np.clip(needed - 1, 0, best.shape[1] - 1), axis=1)


def score(lists: Lists, k: int) -> Scores:
    """Return the interpolated precision of each list at a recall of `k` tenths."""
    return interpolate(lists)[:, k]


METRIC = Metric(
    name="interpolated_precision",
    formula="Mean over lists of the largest precision at any rank from where the level of recall "
    "is reached on",
    source="trec_eval iprec_at_recall, version 10",
    convention="a point of the precision-recall curve: levels of recall 0.0, 0.1 to 1.0; a level "
    "is reached with the nearest whole number of relevant items",
    undefined=NO_RELEVANT,
    cutoff="recall",
    score=score,
)
