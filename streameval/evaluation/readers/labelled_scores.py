"""Scores beside final labels: of outcome files, of slates with labels, and of ratings.

Of outcome files only users, gains and scores are read. A rating is a label, and its prediction the
score: then a user is a list.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain

import numpy as np

from streameval.core.metrics.rating_errors import Ratings
from streameval.core.metrics.score_health import LabelledScores
from streameval.evaluation.answer import Answer, Note
from streameval.evaluation.batches import Advance
from streameval.evaluation.readers.list_contents import JUDGED, SCORED, NamedLists, read_lists
from streameval.evaluation.readers.outcomes import (
    check_dimensions,
    file_of_other_shape,
    files_of,
    labelled_scores,
    record_batches,
)
from streameval.evaluation.readers.ranked_tables import refuse_seen
from streameval.evaluation.readers.rating_tables import load_pairs, rated_users
from streameval.evaluation.request import EXCLUDE_SEEN, FILES, PREDICTIONS, RATINGS, RELEVANT, Given
from streameval.evaluation.sums import Asked, compute_figures
from streameval.evaluation.units import UnitBatch, batch_of
from streameval.files.tables import connect


def label_figures(given: Given, asked: Sequence[Asked], advance: Advance) -> Answer:
    """Compute figures of scores beside labels. Raises `InputError`."""
    # Items have no name of their own that `--per-list` could show.
    whole = replace(given, per_list=False)
    level = given.value(RELEVANT)
    notes = [] if level is None else [Note(RELEVANT.name, level, RELEVANT.note.format(level))]
    if given[FILES]:
        batches = _of_lists(given, level, advance)
        found = compute_figures(batches, asked, whole).answer(*notes)
    else:
        with connect(*given[RATINGS], *given[PREDICTIONS]) as connection:
            notes += load_pairs(connection, given, advance)
            batches = _of_ratings(rated_users(connection, given), level)
            found = compute_figures(batches, asked, whole).answer(*notes)
    return replace(found, lists={} if given.per_list else None)


def _of_lists(
    given: Given, level: float | None, advance: Advance
) -> Iterator[UnitBatch[LabelledScores]]:
    files = files_of(given[FILES])
    if file_of_other_shape(files) is not None:
        for lists in read_lists(given, advance, (JUDGED, SCORED)):
            yield batch_of(_lists(lists), lists.users, lists.segments, lists.ids)
        return
    refuse_seen(given[EXCLUDE_SEEN])
    check_dimensions(given.by, files)
    for record in record_batches(files, ["user", "gains", "scores", *given.by], advance):
        yield UnitBatch(*labelled_scores(record, given.by, level))


def _lists(lists: NamedLists) -> LabelledScores:
    """Return the items of slates with labels."""
    assert lists.scores is not None, "they were asked for"
    assert lists.relevant is not None, "they were asked for"
    flat = (math.nan if score is None else score for score in chain.from_iterable(lists.scores))
    return LabelledScores(
        starts=np.array([0, *accumulate(map(len, lists.items))], np.int64),
        scores=np.fromiter(flat, np.float64),
        positive=np.fromiter(chain.from_iterable(lists.relevant), np.bool_),
    )


def _of_ratings(
    users: Iterator[UnitBatch[Ratings]], level: float | None
) -> Iterator[UnitBatch[LabelledScores]]:
    """Yield pairs of users, whose ratings are the labels."""
    for one in users:
        pairs = one.data
        items = LabelledScores(
            starts=np.append(pairs.starts, len(pairs.actual)),
            scores=pairs.predicted,
            positive=pairs.actual > 0 if level is None else pairs.actual >= level,
        )
        yield UnitBatch(items, one.checksums, one.segments, one.names)
