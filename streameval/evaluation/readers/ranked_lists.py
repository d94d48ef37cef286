"""Shown items put in order and looked up among labels: rows of two tables to batches of lists.

Ids become numbers once; all else is sorting numbers. The rows given hold all of a list or nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streameval.base.arrays import Floats, Ints
from streameval.base.limits import MAX_EVALUATED_RANK
from streameval.evaluation.answer import Segment
from streameval.evaluation.batches import ROWS, Batch, Judged, irrelevant_by, judged_of
from streameval.evaluation.readers.outcomes import checksums_of, segments_of

Flags: TypeAlias = npt.NDArray[np.bool_]

# Larger than any rank: one list's ranks end before the next list's begin.
_STEP: Final = MAX_EVALUATED_RANK + 2


@dataclass(frozen=True, slots=True)
class RankedLists:
    """n lists and their relevant items, as `batches.Batch` has them.

    `ids` and `users` are arrays of Arrow; `values` has the values of `--by`, if there are any.
    `equal` (n,): the list has equal scores whose order a rule decided; `by_score` (n,): scores put
    it in order. `labelled`: a list that is shown has a label; `met`: an item that is shown has one.
    """

    ids: Any
    users: Any
    values: Sequence[Segment] | None
    relevant: Ints
    ranks: Ints
    gains: Floats
    score_ranks: Floats
    length: Ints
    equal: Flags
    by_score: Flags
    labelled: bool
    met: bool
    level: float | None = None
    judged: Judged | None = None

    def batches(self, *, with_ids: bool) -> Iterator[Batch]:
        """Cut the lists into batches of `ROWS`."""
        ends = np.concatenate(([0], np.cumsum(self.relevant)))
        for start in range(0, len(self.ids), ROWS):
            rows = slice(start, min(start + ROWS, len(self.ids)))
            flat = slice(ends[rows.start], ends[rows.stop])
            count = rows.stop - start
            ids, users = self.ids.slice(start, count), self.users.slice(start, count)
            segments, names = (
                (np.zeros(count, np.int64), [()])
                if self.values is None
                else segments_of(self.values[rows])
            )
            yield Batch(
                relevant=self.relevant[rows],
                ranks=self.ranks[flat],
                gains=self.gains[flat],
                score_ranks=self.score_ranks[flat],
                length=self.length[rows],
                checksums=checksums_of(users),
                segments=segments,
                names=names,
                ids=ids.to_pylist() if with_ids else None,
                users=users.to_pylist() if with_ids else None,
                tied=(int(self.equal[rows].sum()), int(self.by_score[rows].sum())),
                level=self.level,
                judged=self.judged
                and Judged(
                    self.judged.irrelevant[rows],
                    self.judged.irrelevant_above[flat],
                    self.judged.unjudged_above[flat],
                ),
            )


def ranked_lists(
    slates: Any,
    labels: Any,
    by: Sequence[str],
    *,
    last_first: bool,
    complete: bool,
    level: float | None = None,
    with_judged: bool = False,
) -> RankedLists:
    """Join tables of pyarrow: `slates` (list, item, user, rank, score, compared, line, `by …`).

    Its rows are ordered by `rank`, then by `compared` from the highest (the score, rounded for
    ties). At equal ones, with `last_first`, the item that sorts last comes first, and then `line`
    decides. `labels` has list, item, gain. `complete`: lists that only `labels` has are lists
    without items; else they are left out. `level` and `with_judged` are those of `batches.Batch`.
    """
    rows = slates.num_rows
    lists, names = _numbered_runs(slates["list"], labels["list"])
    items, item_names = _numbered([*slates["item"].chunks, *labels["item"].chunks])
    # Lists are numbered as they come: those that are shown before all others.
    count = int(lists[:rows].max(initial=-1)) + 1
    whole = len(names) if complete else count
    pairs = lists * len(item_names) + items
    by_id = _sorted_positions(item_names, items[:rows], last_first=last_first)
    order = _order(slates, lists[:rows], by_id)
    order, by_pair = _without_repeats(order, pairs[:rows])
    own = lists[order]
    length = np.bincount(own, minlength=whole)
    given = _filled(slates["rank"], 0)[order]
    ranks = _ranks(own, _numbers(own, length), given)
    score_ranks, equal = _score_ranks(slates, order, own, length)
    by_score = _there(slates["score"])[order] & (given == 0)
    first = _first_rows(lists[:rows], count)
    judged, gains = _judged(pairs[rows:], labels["gain"], whole * len(item_names))
    row, found = _looked_up(judged, pairs[order], by_pair)
    of_list = judged // max(len(item_names), 1)
    rank, score_rank = np.zeros(len(row), np.int64), np.zeros(len(row))
    rank[found], score_rank[found] = ranks[row[found]], score_ranks[row[found]]
    positive = _positive(of_list, np.where(found, rank, np.iinfo(np.int64).max), gains)
    listed = np.where(found, row, -1)
    judged_above = partial(_judged_above, of_list, gains, listed, positive, length, level)
    ids = names.slice(0, whole)
    users = slates["user"].combine_chunks().take(pa.array(first))
    return RankedLists(
        ids=ids,
        users=pa.concat_arrays([pc.coalesce(users, ids.slice(0, count)), ids.slice(count)]),
        values=_values(slates, by, first) + [("",) * len(by)] * (whole - count) if by else None,
        relevant=np.bincount(of_list[positive], minlength=whole),
        ranks=rank[positive],
        gains=gains[positive],
        score_ranks=score_rank[positive],
        length=length,
        equal=_any(own, by_score & equal, whole),
        by_score=_any(own, by_score, whole),
        labelled=bool((of_list < count).any()),
        met=bool(found.any()),
        level=level,
        judged=judged_above() if with_judged else None,
    )


def _judged_above(  # noqa: PLR0917  # called once, by `ranked_lists`
    of_list: Ints,
    gains: Floats,
    row: Ints,
    positive: Ints,
    length: Ints,
    level: float | None,
) -> Judged:
    """Return the labels of irrelevant items of lists of `length`, and those above `positive`.

    Labels are given by their list, gain and row; the row is -1 where the list lacks the item.
    """
    found = row >= 0
    by_row = np.full(length.sum(), np.nan)
    by_row[row[found]] = gains[found]
    starts = np.concatenate(([0], np.cumsum(length)))
    there = found[positive]
    known = judged_of(by_row, starts, row[positive][there], level)
    above, unjudged = np.zeros((2, len(positive)), np.int64)
    above[there], unjudged[there] = known.irrelevant_above, known.unjudged_above
    of_irrelevant = of_list[irrelevant_by(gains, level)]
    return Judged(np.bincount(of_irrelevant, minlength=len(length)), above, unjudged)


def _first_rows(lists: Ints, count: int) -> Ints:
    """Return the first row of each of `count` lists."""
    first = np.empty(count, np.int64)
    first[lists[::-1]] = np.arange(len(lists))[::-1]
    return first


def _numbered_runs(first: Any, second: Any) -> tuple[Ints, Any]:
    """Number two columns of text, one after the other, looking once at equal texts in a row."""
    runs = [pc.run_end_encode(chunk) for chunk in (*first.chunks, *second.chunks)]
    numbers, names = _numbered([run.values for run in runs])
    lengths = [np.diff(run.run_ends.to_numpy(), prepend=0) for run in runs]
    return np.repeat(numbers, np.concatenate([np.empty(0, np.int64), *lengths])), names


def _numbered(chunks: Sequence[Any]) -> tuple[Ints, Any]:
    """Return texts as numbers of the distinct ones, in the order in which they come; and those."""
    encoded = pa.chunked_array(chunks, pa.string()).dictionary_encode().combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = pa.concat_arrays(encoded.chunks)
    return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary


def _filled(column: Any, empty: float) -> Any:
    return pc.fill_null(column, empty).to_numpy()


def _there(column: Any) -> Flags:
    found: Flags = column.is_valid().to_numpy()
    return found


def _sorted_positions(names: Any, items: Ints, *, last_first: bool) -> Ints | None:
    """Number items by the bytes of their ids, the last one first; None if that decides nothing."""
    if not last_first:
        return None
    positions = np.empty(len(names), np.int64)
    positions[pc.sort_indices(names).to_numpy()] = np.arange(len(names))[::-1]
    return positions[items]


def _order(slates: Any, lists: Ints, items: Ints | None) -> Ints:
    """Return the rows in order, list after list."""
    keys = lists * _STEP + _filled(slates["rank"], _STEP - 1)
    if (keys[1:] > keys[:-1]).all():
        return np.arange(len(keys))
    # The last of the keys counts first.
    scores = -_filled(slates["compared"], -np.inf)
    return np.lexsort((slates["line"], *([] if items is None else [items]), scores, keys))


def _without_repeats(order: Ints, pairs: Ints) -> tuple[Ints, Ints]:
    """Keep the first of equal pairs; also return the order of the rest by pair."""
    by_pair = np.argsort(pairs[order], kind="stable")
    found = pairs[order][by_pair]
    repeated = by_pair[1:][found[1:] == found[:-1]]
    if not len(repeated):
        return order, by_pair
    order = np.delete(order, repeated)
    return order, np.argsort(pairs[order], kind="stable")


def _numbers(own: Ints, length: Ints) -> Ints:
    """Count rows within their list, from 1."""
    return np.arange(1, len(own) + 1) - (np.cumsum(length) - length)[own]


def _ranks(own: Ints, number: Ints, given: Ints) -> Ints:
    """Ranks as `core.metrics.order_ranks` has them: gaps stay and equal ranks move down."""
    gaps = np.maximum(given - number, 0)
    if not gaps.any():
        return number
    # A gap holds for the rest of its list; the next list begins a step higher.
    return number + np.maximum.accumulate(gaps + own * _STEP) - own * _STEP


def _score_ranks(slates: Any, order: Ints, own: Ints, length: Ints) -> tuple[Floats, Flags]:
    """Rank each row by score, as `core.metrics.Lists` has it, and say whether another is equal.

    NaN in a list where only some have a score; a list in which none has is taken by its order.
    """
    number = _numbers(own, length)
    known = _there(slates["score"])[order]
    if not known.any():
        return number.astype(np.float64), np.zeros(len(own), np.bool_)
    score = _filled(slates["score"], -np.inf)[order]
    best_first = np.lexsort((-score, own))
    starts, sizes = _runs(own[best_first], score[best_first])
    by_score = np.empty(len(own))
    by_score[best_first] = np.repeat(number[starts] + (sizes - 1) / 2, sizes)
    scores = np.bincount(own[known], minlength=len(length))
    score_ranks = np.where(scores[own] == length[own], by_score, np.nan)
    # Rounding keeps the order of scores, so equal ones still lie side by side.
    compared = _filled(slates["compared"], -np.inf)[order]
    _, sizes = _runs(own[best_first], compared[best_first])
    equal = np.empty(len(own), np.bool_)
    equal[best_first] = np.repeat(sizes > 1, sizes)
    return np.where(scores[own] == 0, number, score_ranks), equal


def _runs(lists: Ints, values: Floats) -> tuple[Ints, Ints]:
    """Return the starts and lengths of runs of equal (list, value)."""
    new = (lists[1:] != lists[:-1]) | (values[1:] != values[:-1])
    starts = np.flatnonzero(np.concatenate((np.ones(min(len(lists), 1), np.bool_), new)))
    return starts, np.diff(starts, append=len(lists))


def _judged(pairs: Ints, gain: Any, end: int) -> tuple[Ints, Floats]:
    """Return distinct pairs below `end` that have a gain, in order, and the largest of each."""
    known = _there(gain) & (pairs < end)
    pairs, gains = pairs[known], _filled(gain, 0.0)[known]
    order = np.lexsort((-gains, pairs))
    pairs, gains = pairs[order], gains[order]
    first = np.diff(pairs, prepend=-1) != 0
    return pairs[first], gains[first]


def _positive(of_list: Ints, rank: Ints, gains: Floats) -> Ints:
    """Return the labels with a gain above 0, list after list, by rank and then by gain."""
    positive = np.flatnonzero(gains > 0)
    return positive[np.lexsort((-gains[positive], rank[positive], of_list[positive]))]


def _looked_up(wanted: Ints, pairs: Ints, by_pair: Ints) -> tuple[Ints, Flags]:
    """Return the rows of pairs, of which `by_pair` is the order; and which of them there are."""
    if not len(pairs):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), np.bool_)
    where = np.searchsorted(pairs, wanted, sorter=by_pair)
    row = by_pair[np.minimum(where, len(pairs) - 1)]
    return row, pairs[row] == wanted


def _values(slates: Any, by: Sequence[str], rows: Ints) -> list[Segment]:
    columns = [slates["by " + name].take(pa.array(rows)).to_pylist() for name in by]
    return [tuple(value or "" for value in row) for row in zip(*columns, strict=True)]


def _any(lists: Ints, rows: Flags, count: int) -> Flags:
    """Tell for each of `count` lists whether it has one of `rows`."""
    found = np.zeros(count, np.bool_)
    found[lists[rows]] = True
    return found
