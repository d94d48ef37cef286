"""Shown items put in order and looked up among labels: rows of two tables to batches of lists.

Ids become numbers once; all else is sorting numbers. The rows given hold all of a list or nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from streameval.base.arrays import Floats, Ints
from streameval.base.errors import InputError
from streameval.base.limits import MAX_EVALUATED_RANK
from streameval.evaluation.answer import Segment
from streameval.evaluation.batches import ROWS, Batch, Judged, irrelevant_by, judged_of
from streameval.evaluation.readers.outcomes import checksums_of, segments_of
from streameval.files.arrow_arrays import column, numbers

Flags: TypeAlias = npt.NDArray[np.bool_]

# Larger than any rank: one list's ranks end before the next list's begin.
_STEP: Final = MAX_EVALUATED_RANK + 2
# Scores beyond it are equal in single precision.
LARGEST_SINGLE: Final = 3.4e38


@dataclass(frozen=True, slots=True)
class RankedLists:
    """n lists and their relevant items, as `batches.Batch` has them.

    `ids` and `users` are arrays of Arrow; `values` has the values of `--by`, if there are any.
    `equal` (n,): the list has equal scores whose order a rule decided; `by_score` (n,): scores put
    it in order. `unlabelled`: lists of slates that have no label; `unlisted`: lists that only
    labels have. `met`: an item of slates has a label. `repeats`: rows whose item stands higher.
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
    unlabelled: int
    unlisted: int
    met: bool
    repeats: int
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


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of slates, list after list: numbers of lists and items, ranks, and scores.

    A rank is 0 and a score NaN where there is none. `compared` is the score as ties compare it.
    """

    lists: Ints
    items: Ints
    ranks: Ints
    scores: Floats
    compared: npt.NDArray[np.floating[Any]]

    def take(self, rows: Ints) -> _Rows:
        """Return these rows, in this order."""
        return _Rows(*(getattr(self, name)[rows] for name in self.__slots__))


def ranked_lists(
    slates: Any,
    labels: Any,
    by: Sequence[str],
    *,
    last_first: bool,
    complete: bool,
    level: float | None = None,
    with_judged: bool = False,
    source: str = "labels",
) -> RankedLists:
    """Join tables of pyarrow: `slates` (list, item, user, rank, score, `by …`) and `labels`.

    All rows of a list lie together. They are ordered by `rank`, then by `score` from the highest,
    then as they stand. With `last_first` scores are equal in single precision, and among equal ones
    the item that sorts last comes first. `labels` has list, item, gain. `complete`: lists that only
    `labels` has are lists without items; else they are left out. `level` and `with_judged` are
    those of `batches.Batch`. Raises `InputError` with the `source` of labels that contradict.
    """
    size = slates.num_rows
    lists, names = _numbered_runs([*slates["list"].chunks, *labels["list"].chunks])
    items, item_names = _numbered([*slates["item"].chunks, *labels["item"].chunks])
    # Lists are numbered as they come: those that are shown before all others.
    first = _starts(lists[:size])
    count = len(first)
    whole = len(names) if complete else count
    rows = _rows(slates, lists[:size], items[:size], single=last_first)
    rows = _in_order(rows, _sorted_positions(item_names) if last_first else None)
    rows, pairs, by_pair = _without_repeats(rows, len(item_names))
    length = np.bincount(rows.lists, minlength=whole)
    number = np.arange(1, len(pairs) + 1) - np.repeat(np.cumsum(length) - length, length)
    score_ranks, equal = _score_ranks(rows, number, length)
    by_score = ~np.isnan(rows.scores) & (rows.ranks == 0)
    labelled = lists[size:] * len(item_names) + items[size:]
    judged, gains, doubled = _judged(labelled, labels["gain"], whole * len(item_names))
    _refuse_doubled(source, doubled, names, item_names)
    row = _looked_up(judged, pairs, by_pair)
    of_list = judged // max(len(item_names), 1)
    rank, score_rank = _taken(_ranks(rows, number), row), _taken(score_ranks, row)
    positive = _positive(of_list, rank, gains)
    judged_above = partial(_judged_above, of_list, gains, row, positive, length, level)
    ids = names.slice(0, whole)
    return RankedLists(
        ids=ids,
        users=_users(slates["user"], first, ids),
        values=_values(slates, by, first) + [("",) * len(by)] * (whole - count) if by else None,
        relevant=np.bincount(of_list[positive], minlength=whole),
        ranks=rank[positive],
        gains=gains[positive],
        score_ranks=score_rank[positive],
        length=length,
        equal=_any(rows.lists, by_score & equal, whole),
        by_score=_any(rows.lists, by_score, whole),
        unlabelled=count - _runs_of(of_list[of_list < count]),
        unlisted=len(names) - count,
        met=bool((row >= 0).any()),
        repeats=size - len(pairs),
        level=level,
        judged=judged_above() if with_judged else None,
    )


def _rows(slates: Any, lists: Ints, items: Ints, *, single: bool) -> _Rows:
    """Return the rows of slates; `single`: scores are compared in single precision."""
    scores = _filled(slates["score"], np.nan)
    compared = (
        np.clip(scores, -LARGEST_SINGLE, LARGEST_SINGLE).astype(np.float32) if single else scores
    )
    return _Rows(lists, items, _filled(slates["rank"], 0), scores, compared)


def _users(cells: Any, first: Ints, ids: Any) -> Any:
    """Return the user in the `first` row of each list; a list without one is its own user."""
    if cells.null_count == len(cells):
        return ids
    known = cells.combine_chunks().take(column(first)).cast(pa.string())
    count = len(first)
    return pa.concat_arrays([pc.coalesce(known, ids.slice(0, count)), ids.slice(count)])


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


def _numbered_runs(chunks: Sequence[Any]) -> tuple[Ints, Any]:
    """Return texts as `_numbered` does, looking once at equal ones in a row."""
    runs = [_texts_of_runs(chunk) for chunk in chunks]
    codes, names = _distinct([texts for texts, _ in runs])
    lengths = [length for _, length in runs]
    return np.repeat(codes, np.concatenate([np.empty(0, np.int64), *lengths])), names


def _texts_of_runs(chunk: Any) -> tuple[Any, Ints]:
    """Return the text and the length of each run of equal texts."""
    if not pa.types.is_dictionary(chunk.type):
        runs = pc.run_end_encode(chunk)
        return runs.values, np.diff(numbers(runs.run_ends), prepend=0)
    codes = numbers(chunk.indices)
    starts = _starts(codes)
    texts = chunk.dictionary.take(column(codes[starts]))
    return texts, np.diff(starts, append=len(codes))


def _starts(codes: npt.NDArray[np.integer[Any]]) -> Ints:
    """Return where runs of equal numbers start."""
    new = np.ones(len(codes), np.bool_)
    np.not_equal(codes[1:], codes[:-1], out=new[1:])
    return np.flatnonzero(new)


def _numbered(chunks: Sequence[Any]) -> tuple[Ints, Any]:
    """Return texts as numbers of the distinct ones, and those; texts may be dictionaries already.

    Numbers go by the order in which texts come first, in chunks that are no dictionaries.
    """
    encoded = [
        chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
        for chunk in chunks
    ]
    codes, names = _distinct([chunk.dictionary for chunk in encoded])
    starts = np.cumsum([0, *(len(chunk.dictionary) for chunk in encoded)])
    parts = [
        codes[start:][numbers(chunk.indices)]
        for start, chunk in zip(starts[:-1].tolist(), encoded, strict=True)
    ]
    return np.concatenate([np.empty(0, np.int64), *parts]), names


def _distinct(chunks: Sequence[Any]) -> tuple[Ints, Any]:
    """Return texts as numbers of the distinct ones, in the order in which they come; and those."""
    encoded = pa.chunked_array(chunks, pa.string()).dictionary_encode().combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = pa.concat_arrays(encoded.chunks)
    return numbers(encoded.indices).astype(np.int64), encoded.dictionary


def _filled(cells: Any, empty: float) -> Any:
    """Return numbers, `empty` for a null."""
    if cells.null_count == len(cells):
        return np.full(len(cells), empty)
    return numbers(pc.fill_null(cells, empty) if cells.null_count else cells)


def _sorted_positions(names: Any) -> Ints:
    """Number items by the bytes of their ids, the last one first."""
    positions = np.empty(len(names), np.int64)
    positions[numbers(pc.sort_indices(names))] = np.arange(len(names))[::-1]
    return positions


def _in_order(rows: _Rows, positions: Ints | None) -> _Rows:
    """Order the rows of each list; `positions` by item decide between equal scores."""
    keys = rows.lists * _STEP + np.where(rows.ranks > 0, rows.ranks, _STEP - 1)
    if (keys[1:] > keys[:-1]).all():
        return rows
    # The last of the keys counts first, and NaN comes last.
    tied = [] if positions is None else [positions[rows.items]]
    return rows.take(np.lexsort((*tied, -rows.compared, keys)))


def _without_repeats(rows: _Rows, items: int) -> tuple[_Rows, Ints, Ints]:
    """Keep an item's first row in each list; also return the rows' pairs, and their order."""
    pairs = rows.lists * items + rows.items
    by_pair = np.argsort(pairs, kind="stable")
    found = pairs[by_pair]
    repeated = by_pair[1:][found[1:] == found[:-1]]
    if not len(repeated):
        return rows, pairs, by_pair
    return _without_repeats(rows.take(np.delete(np.arange(len(pairs)), repeated)), items)


def _ranks(rows: _Rows, number: Ints) -> Ints:
    """Ranks as `core.metrics.order_ranks` has them: gaps stay and equal ranks move down.

    `number` counts rows within their list, from 1.
    """
    gaps = np.maximum(rows.ranks - number, 0)
    if not gaps.any():
        return number
    # A gap holds for the rest of its list; the next list begins a step higher.
    ends = rows.lists * _STEP
    return number + np.maximum.accumulate(gaps + ends) - ends


def _score_ranks(rows: _Rows, number: Ints, length: Ints) -> tuple[Floats, Flags]:
    """Rank each row by score, as `core.metrics.Lists` has it, and say whether another is equal.

    NaN in a list where only some have a score; a list in which none has is taken by its order.
    """
    known = ~np.isnan(rows.scores)
    if not known.any():
        return number.astype(np.float64), np.zeros(len(number), np.bool_)
    own, score = rows.lists, np.where(known, rows.scores, -np.inf)
    best_first = np.lexsort((-score, own))
    starts, sizes = _runs(own[best_first], score[best_first])
    by_score = np.empty(len(own))
    by_score[best_first] = np.repeat(number[starts] + (sizes - 1) / 2, sizes)
    scores = np.bincount(own[known], minlength=len(length))
    score_ranks = np.where(scores[own] == length[own], by_score, np.nan)
    # Rounding keeps the order of scores, so equal ones still lie side by side.
    compared = np.where(known, rows.compared, -np.inf)
    _, sizes = _runs(own[best_first], compared[best_first])
    equal = np.empty(len(own), np.bool_)
    equal[best_first] = np.repeat(sizes > 1, sizes)
    return np.where(scores[own] == 0, number, score_ranks), equal


def _runs(lists: Ints, values: Floats) -> tuple[Ints, Ints]:
    """Return the starts and lengths of runs of equal (list, value)."""
    new = (lists[1:] != lists[:-1]) | (values[1:] != values[:-1])
    starts = np.flatnonzero(np.concatenate((np.ones(min(len(lists), 1), np.bool_), new)))
    return starts, np.diff(starts, append=len(lists))


def _runs_of(values: Ints) -> int:
    """Count the runs of equal numbers, none below 0."""
    return int(np.count_nonzero(np.diff(values, prepend=-1)))


def _refuse_doubled(source: str, pairs: Ints, names: Any, item_names: Any) -> None:
    """Raise `InputError` for the first pair of a list and an item, if there is any."""
    for pair in pairs[:1].tolist():
        name, item = divmod(pair, len(item_names))
        raise InputError(several_gains(source, names[name].as_py(), item_names[item].as_py()))


def several_gains(source: str, name: str, item: str) -> str:
    """Return the message about an item with two gains in a list."""
    return f"{source}: list {name}, item {item}: two labels with different gains; keep one of them"


def _judged(pairs: Ints, gain: Any, end: int) -> tuple[Ints, Floats, Ints]:
    """Return distinct pairs below `end` that have a gain, in order, and the gain of each.

    The pairs that have several gains come third.
    """
    gains = _filled(gain, np.nan)
    known = ~np.isnan(gains) & (pairs < end)
    pairs, gains = pairs[known], gains[known]
    order = np.lexsort((-gains, pairs))
    pairs, gains = pairs[order], gains[order]
    first = np.diff(pairs, prepend=-1) != 0
    doubled = pairs[~first & (np.diff(gains, prepend=math.inf) != 0)]
    return pairs[first], gains[first], doubled


def _positive(of_list: Ints, rank: Ints, gains: Floats) -> Ints:
    """Return the labels with a gain above 0, list after list, by rank and then by gain."""
    positive = np.flatnonzero(gains > 0)
    ranks = rank[positive]
    last = np.where(ranks > 0, ranks, np.iinfo(np.int64).max)
    return positive[np.lexsort((-gains[positive], last, of_list[positive]))]


def _looked_up(wanted: Ints, pairs: Ints, by_pair: Ints) -> Ints:
    """Return the rows of pairs, of which `by_pair` is the order; -1 where there is none."""
    if not len(pairs):
        return np.full(len(wanted), -1)
    where = np.searchsorted(pairs, wanted, sorter=by_pair)
    row = by_pair[np.minimum(where, len(pairs) - 1)]
    return np.where(pairs[row] == wanted, row, -1)


def _taken(values: npt.NDArray[Any], row: Ints) -> npt.NDArray[Any]:
    """Return the values of rows, 0 for row -1."""
    return np.append(values, values.dtype.type(0))[row]


def _values(slates: Any, by: Sequence[str], rows: Ints) -> list[Segment]:
    columns = [slates["by " + name].take(column(rows)).to_pylist() for name in by]
    return [tuple(value or "" for value in row) for row in zip(*columns, strict=True)]


def _any(lists: Ints, rows: Flags, count: int) -> Flags:
    """Tell for each of `count` lists whether it has one of `rows`."""
    found = np.zeros(count, np.bool_)
    found[lists[rows]] = True
    return found
