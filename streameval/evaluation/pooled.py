"""AUC over all pairs of ratings at once: predictions of all users are compared with one another.

DuckDB counts, for each distinct prediction, the pairs below it, and adds integers: neither its
threads nor the order of the files change a bit, and memory does not follow the pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from streameval.base.limits import CLUSTERS
from streameval.core.metrics.entry import Entry
from streameval.core.metrics.rating_thresholds import THRESHOLD, PairMetric, auc_of_pairs
from streameval.evaluation.answer import Answer, Figure, Figures, Note, Segment
from streameval.evaluation.batches import Advance
from streameval.evaluation.readers.rating_tables import load_pairs
from streameval.evaluation.request import PREDICTIONS, RATINGS, Given
from streameval.evaluation.sums import Asked, check_segments, with_bounds
from streameval.evaluation.units import BY, group
from streameval.files.table_scans import quote
from streameval.files.tables import connect
from streameval.stats.intervals import Arm, linear_count

# Of the pairs at one prediction and cluster: m relevant ones, n others. Sums over predictions are
# of products of two counts, so they need 128 bits.
_PLACEMENTS: Final = """
    WITH counted AS (
        SELECT {keys}prediction, md5_number_lower(user) % {clusters} AS cluster,
            (count(*) FILTER (rating > {threshold}))::HUGEINT AS m,
            (count(*) FILTER (rating <= {threshold}))::HUGEINT AS n
        FROM pairs GROUP BY ALL
    ), by_prediction AS (
        SELECT {keys}prediction, sum(m) AS m_here, sum(n) AS n_here,
            sum(sum(n)) OVER below - sum(n) AS n_below,
            sum(sum(m)) OVER whole - sum(sum(m)) OVER below AS m_above
        FROM counted GROUP BY {keys}prediction
        WINDOW below AS ({partition} ORDER BY prediction), whole AS ({partition})
    )
    SELECT {keys}cluster, sum(m)::HUGEINT, sum(n)::HUGEINT,
        sum(m * n_below)::HUGEINT, sum(m * n_here)::HUGEINT,
        sum(n * m_above)::HUGEINT, sum(n * m_here)::HUGEINT
    FROM counted JOIN by_prediction USING ({keys}prediction) GROUP BY ALL ORDER BY ALL
"""


def pooled_figures(given: Given, asked: Sequence[Asked], advance: Advance) -> Answer:
    """Compute the AUC over pairs, over all and by segment. Raises `InputError`."""
    threshold = dict(asked[0].entry.values)[THRESHOLD]
    with connect(*given[RATINGS], *given[PREDICTIONS]) as connection:
        notes = load_pairs(connection, given, advance)
        whole = dict(_figures(connection, (), asked, threshold))
        segments = dict(_figures(connection, given.by, asked, threshold)) if given.by else {}
    nothing = dict.fromkeys((figure.name for figure in asked), Figure(None, None, None, 0))
    return Answer(
        figures=whole.get((), nothing),
        by=given.by,
        segments=dict(sorted(segments.items())),
        lists={} if given.per_list else None,
        entries=[figure.entry for figure in asked],
        notes=[*notes, Note(THRESHOLD.name, threshold, THRESHOLD.note.format(threshold))],
    )


def _figures(
    connection: Any, by: Sequence[str], asked: Sequence[Asked], threshold: float
) -> Iterator[tuple[Segment, Figures]]:
    columns = [quote(BY + name) for name in by]
    query = _PLACEMENTS.format(
        keys="".join(f"{column}, " for column in columns),
        partition=f"PARTITION BY {', '.join(columns)}" if by else "",
        clusters=CLUSTERS,
        threshold=repr(threshold),
    )
    for number, (rows, starts) in enumerate(group(connection, query, len(by))):
        check_segments(number + len(starts), by)
        for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
            here = rows[start:end]
            counts = tuple(zip(*(row[-6:] for row in here), strict=True))
            yield (
                tuple(here[0][: len(by)]),
                {figure.name: _figure(counts, threshold, figure.entry) for figure in asked},
            )


def _figure(counts: Sequence[Sequence[int]], threshold: float, entry: Entry) -> Figure:
    """Return a figure of the columns of `_PLACEMENTS`, by cluster of users."""
    assert isinstance(entry, PairMetric), "the input kind of the entry says so"
    placements = entry.placements(*counts)
    found = auc_of_pairs(placements, threshold)
    pairs = sum(placements.relevant) + sum(placements.others)
    if found is None:
        return Figure(None, None, None, 0)
    auc, stderr = found
    if len(placements.relevant) < 2:
        return Figure(auc, None, None, pairs)
    # The figure is as sure as the class of the fewer users lets it be.
    fewer = min(map(np.count_nonzero, (placements.relevant, placements.others)))
    arm = Arm(auc, stderr, math.nan, linear_count(int(fewer), CLUSTERS), int(fewer))
    return with_bounds(arm, pairs, entry)
