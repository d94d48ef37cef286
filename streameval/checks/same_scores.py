"""Scores that say nothing because they are the same: part of `logged_scores`.

No feedback is needed to see it. A score of all items, of all items of a list or an arm, a default
where the model did not answer, or a score that follows from the position tells nobody why an item
stood where it did.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from streameval.checks.evidence import Evidence
from streameval.checks.result import percent, segment_name

# Items with the segment's most frequent score, where it stands out: so many times the second's.
_DEFAULT: Final = 0.1
_STANDS_OUT: Final = 5
# Items with the most frequent score of their position and length of list, beyond those with its
# most frequent item (a list for everybody has one item and one score in each position); and how
# many times as many as have the most frequent score of all.
_BY_POSITION: Final = 0.5
_MORE: Final = 2
# Lists with fewer scored items are the same by chance where scores are rounded.
_LIST: Final = 3
_ITEMS: Final = """
    (SELECT segment, i, len(items) AS size, items[i] AS item, scores[i] AS score
        FROM (SELECT *, unnest(range(1, len(items) + 1)) AS i FROM current)
        WHERE scores[i] IS NOT NULL)"""
_LISTS: Final = f"""
    SELECT segment, sum(same) / sum(pairs), avg((kinds = 1)::INTEGER)
        FILTER (WHERE scored >= {_LIST})
    FROM (SELECT segment, len(known) AS scored, len(counts) AS kinds,
            list_sum(list_transform(counts, lambda c: c * (c - 1)))::DOUBLE AS same,
            (len(known) * (len(known) - 1))::DOUBLE AS pairs
        FROM (SELECT segment, known, map_values(list_histogram(known)) AS counts
            FROM (SELECT segment, list_filter(scores, lambda s: s IS NOT NULL) AS known
                FROM current WHERE len(items) > 1)
            WHERE len(known) > 1))
    GROUP BY GROUPING SETS ((segment), ())"""  # noqa: S608  # a number
_VALUES: Final = f"""
    WITH counts AS (SELECT segment, score, count(*) AS n FROM {_ITEMS}
            GROUP BY GROUPING SETS ((segment, score), (score))),
        positions AS (SELECT segment, greatest(0, max(n) FILTER (WHERE item IS NULL)
                    - max(n) FILTER (WHERE score IS NULL)) AS n
            FROM (SELECT segment, i, size, score, item, count(*) AS n FROM {_ITEMS}
                GROUP BY GROUPING SETS ((segment, i, size, score), (segment, i, size, item)))
            GROUP BY segment, i, size),
        by_position AS (SELECT segment, sum(n) AS n FROM positions
            GROUP BY GROUPING SETS ((segment), ()))
    SELECT counts.segment, sum(counts.n), arg_max(score, counts.n), max(counts.n, 2),
        any_value(by_position.n)
    FROM counts JOIN by_position ON counts.segment IS NOT DISTINCT FROM by_position.segment
    GROUP BY counts.segment"""  # noqa: S608  # ours


# A segment is named where its share is so many times that of all.
_CLEARER: Final = 1.5


class Same(NamedTuple):
    """Scores that say nothing: which is told first, and value, bound and a sentence."""

    order: tuple[int, float]
    value: float
    bound: float
    text: str


def same_scores(evidence: Evidence, least: int, max_tied: float, max_flat: float) -> Same | None:
    """Find scores that say nothing, of all segments together and of each with enough items."""
    lists = {_key(segment): rest for segment, *rest in evidence.rows(_LISTS)}
    found: list[Same] = []
    for segment, items, score, counts, by_position in evidence.rows(_VALUES):
        if items < least:
            continue
        of = f" of {segment_name(evidence.definition.dimensions, segment)}" if segment else ""
        tied, flat = (share or 0.0 for share in lists.get(_key(segment), (0.0, 0.0)))
        most, second = (*counts, 0)[:2]
        default = most / items if most >= _STANDS_OUT * second else 0.0
        given = by_position / items if by_position >= _MORE * most else 0.0
        judged = (
            (default, _DEFAULT, "of the items{} have the same score"),
            (tied, max_tied, "of the pairs of items of a list{} have the same score"),
            (flat, max_flat, "of the lists{} have the same score for all their items"),
            (given, _BY_POSITION, "of the items{} have a score that is given by its position"),
        )
        found += [
            Same(
                (number, -value / (_CLEARER if of else 1)),
                value,
                bound,
                f"{percent(value)} {what.format(of)} ({score:.4g} is the most frequent)",
            )
            for number, (value, bound, what) in enumerate(judged)
            if value > bound
        ]
    return min(found, default=None)


def _key(segment: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if segment is None else tuple(segment)
