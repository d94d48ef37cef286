"""Lists from all of their items, as files and data frames hold them: flat arrays with offsets.

Also the two orders that a run's scores can give it, and how many of them are tied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from streameval.core.metrics.lists import Lists, Scores

Offsets = npt.NDArray[np.int64]
"""Where each of n lists starts in a flat array, and where the last ends, shape (n + 1,)."""


def lists_of_items(
    offsets: Offsets,
    ranks: npt.NDArray[np.int64],
    gains: Scores,
    *,
    scores: Scores | None = None,
    unretrieved: tuple[Offsets, Scores] | None = None,
) -> Lists:
    """Return the `Lists` of n lists given item by item.

    `offsets` (n + 1,), as Arrow's, into `ranks` (rising within a list), `gains` (not above 0: not
    relevant) and `scores` of the items shown. `unretrieved` are the offsets and the gains (all
    above 0) of relevant items that are not in the lists. Nothing is sorted: ranks decide, and
    `scores` only decide the places of `auc`, NaN (not known) making those of its list NaN.
    """
    count = len(offsets) - 1
    length = np.diff(offsets)
    first = offsets[0]
    owner = np.repeat(np.arange(count), length)
    stop = offsets[-1]
    shown = np.flatnonzero(gains[first:stop] > 0)
    owners = owner[shown]
    hits = np.bincount(owners, minlength=count)
    column = np.arange(len(shown)) - np.repeat(np.cumsum(hits) - hits, hits)
    missing = np.diff(unretrieved[0]) if unretrieved else np.zeros(count, dtype=np.int64)
    width = max(int((hits + missing).max(initial=0)), 1)
    relevant_ranks = np.zeros((count, width), dtype=np.int64)
    relevant_gains = np.zeros((count, width))
    places = np.zeros((count, width))
    relevant_ranks[owners, column] = ranks[first:stop][shown]
    relevant_gains[owners, column] = gains[first:stop][shown]
    if scores is None:
        item_places = (np.arange(len(owner)) - np.repeat(offsets[:-1] - first, length)) + 1.0
    else:
        item_places = _places(owner, scores[first:stop], offsets - first)
    places[owners, column] = item_places[shown]
    if unretrieved:
        starts, missing_gains = unretrieved
        rows = np.repeat(np.arange(count), missing)
        columns = np.arange(len(rows)) - np.repeat(starts[:-1] - starts[0], missing) + hits[rows]
        relevant_gains[rows, columns] = missing_gains[starts[0] : starts[-1]]
    return Lists(relevant_ranks, relevant_gains, hits + missing, length, places)


def _places(owner: npt.NDArray[np.int64], scores: Scores, offsets: Offsets) -> Scores:
    """Return each item's place in its list by falling score, tied items sharing their mean."""
    order = np.lexsort((-scores, owner))
    sorted_scores, sorted_owner = scores[order], owner[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (sorted_scores[1:] != sorted_scores[:-1]) | (sorted_owner[1:] != sorted_owner[:-1])
    starts = np.flatnonzero(new)
    sizes = np.diff(np.append(starts, len(order)))
    middle = np.repeat(starts + (sizes + 1) / 2, sizes)
    places = np.empty(len(order))
    places[order] = middle - offsets[sorted_owner]
    unknown = np.zeros(len(offsets) - 1, dtype=bool)
    unknown[owner[np.isnan(scores)]] = True
    places[unknown[owner]] = np.nan
    return places


def tied_items(offsets: Offsets, scores: Scores) -> npt.NDArray[np.int64]:
    """Return how many items of each list share their score with another of it, shape (n,)."""
    owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    flat = scores[offsets[0] : offsets[-1]]
    order = np.lexsort((flat, owner))
    same = (flat[order][1:] == flat[order][:-1]) & (owner[order][1:] == owner[order][:-1])
    tied = np.zeros(len(flat), dtype=bool)
    tied[1:] |= same
    tied[:-1] |= same
    counts: npt.NDArray[np.int64] = np.bincount(owner[order][tied], minlength=len(offsets) - 1)
    return counts


def order_by_score(
    documents: Sequence[str], scores: Sequence[float], ties: Literal["trec", "input"]
) -> list[int]:
    """Return the indices of documents by falling score.

    At equal scores `input` keeps the order given; `trec` puts the larger document id first, and
    compares scores in single precision, both as trec_eval does.
    """
    if ties == "input":
        return sorted(range(len(documents)), key=lambda index: -scores[index])
    single = np.asarray(scores, dtype=np.float32).tolist()
    return sorted(
        range(len(documents)), key=lambda index: (single[index], documents[index]), reverse=True
    )
