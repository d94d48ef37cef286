"""AUC over all pairs of ratings at once: predictions of all users are compared with one another.

DuckDB counts, for each distinct prediction, the pairs below it, and adds integers: neither its
threads nor the order of the files change a bit, and memory does not follow the pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from streameval.base.limits import CLUSTERS
from streameval.core.metrics.rating_thresholds import THRESHOLD, Placements, auc_of_pairs
from streameval.evaluation.answer import Answer, Figure, Note, Segment
from streameval.evaluation.batches import Advance
from streameval.evaluation.readers.rating_tables import load_pairs
from streameval.evaluation.request import PREDICTIONS, RATINGS, Given
from streameval.evaluation.sums import Asked, bounded, check_segments
from streameval.evaluation.units import BY, grouped
from streameval.files.table_scans import quoted
from streameval.files.tables import connected

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
        sum(m * (2 * n_below + n_here))::HUGEINT, sum(n * (2 * m_above + m_here))::HUGEINT
    FROM counted JOIN by_prediction USING ({keys}prediction) GROUP BY ALL ORDER BY ALL
"""


def pooled_figures(given: Given, asked: Sequence[Asked], advance: Advance) -> Answer:
    """Compute the AUC over pairs, over all and by segment. Raises `InputError`."""
    threshold = dict(asked[0].entry.values)[THRESHOLD]
    with connected(*given[RATINGS], *given[PREDICTIONS]) as connection:
        notes = load_pairs(connection, given, advance)
        whole = dict(_figures(connection, (), threshold))
        segments = dict(_figures(connection, given.by, threshold)) if given.by else {}
    names = [figure.name for figure in asked]
    nothing = Figure(None, None, None, 0)
    return Answer(
        figures=dict.fromkeys(names, whole.get((), nothing)),
        by=given.by,
        segments={name: dict.fromkeys(names, segments[name]) for name in sorted(segments)},
        lists={} if given.per_list else None,
        entries=[figure.entry for figure in asked],
        notes=[*notes, Note(THRESHOLD.name, threshold, THRESHOLD.note.format(threshold))],
    )


def _figures(
    connection: Any, by: Sequence[str], threshold: float
) -> Iterator[tuple[Segment, Figure]]:
    columns = [quoted(BY + name) for name in by]
    query = _PLACEMENTS.format(
        keys="".join(f"{column}, " for column in columns),
        partition=f"PARTITION BY {', '.join(columns)}" if by else "",
        clusters=CLUSTERS,
        threshold=repr(threshold),
    )
    for number, (rows, starts) in enumerate(grouped(connection, query, len(by))):
        check_segments(number + len(starts), by)
        for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
            here = rows[start:end]
            relevant, others, won, lost = zip(*(row[-4:] for row in here), strict=True)
            yield (
                tuple(here[0][: len(by)]),
                _figure(Placements(relevant, others, won, lost), threshold),
            )


def _figure(placements: Placements, threshold: float) -> Figure:
    found = auc_of_pairs(placements, threshold)
    pairs = sum(placements.relevant) + sum(placements.others)
    if found is None:
        return Figure(None, None, None, 0)
    auc, stderr = found
    clusters = len(placements.relevant)
    if clusters < 2:
        return Figure(auc, None, None, pairs)
    return bounded(auc, stderr, clusters, pairs)
