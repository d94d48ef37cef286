"""`slates_once`: each slate is in the files once.

Exactly-once holds for the records of the log. A feed that is sent again to another partition, or
files that are copied into the folder, still count people twice. Nobody sees the same items twice in
one millisecond, and one partition has all slates of a request.

A producer that sends a slate again after a timeout gives it another time, and perhaps another
request. People look at a list again too, but after seconds or minutes of any length: a share of the
slates within a second of the same list, or always after nearly the same time, is a machine's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from pydantic import Field

from streameval.checks.evidence import Evidence
from streameval.checks.result import (
    Check,
    CheckSettings,
    Found,
    duration,
    failed,
    nothing,
    passed,
    segment_name,
)

# The gap (ms) below which no person asks twice, the longest that is looked at, the width of classes
# of gaps (a share of them), and how many times the usual class a timer's must hold.
_AT_ONCE: Final = 1_000
_LONGEST: Final = 120_000
_WIDTH: Final = 0.1
_CLEAR: Final = 5
# A segment is named where its share is so many times that of all.
_CLEARER: Final = 1.5
# Share of the shorter list's items that the list before has too.
_SAME: Final = 0.75
# Slates that are sent again, at least; classes of gaps above `_AT_ONCE`.
_LEAST: Final = 10
_CLASSES: Final = math.ceil(math.log(_LONGEST / _AT_ONCE, 1 + _WIDTH))
# By segment and class, the gaps to the list before that was the same, or nearly.
_GAPS: Final = f"""
    SELECT segment, CASE WHEN gap < {_AT_ONCE} THEN 0
        ELSE 1 + floor(ln(gap / {_AT_ONCE}) / {math.log1p(_WIDTH)})::INTEGER END AS class, count(*)
    FROM (SELECT segment, least(ms - lag(ms) OVER alike, CASE WHEN len(list_intersect(items,
                lag(items) OVER near)) >= {_SAME} * least(len(items), len(lag(items) OVER near))
            THEN ms - lag(ms) OVER near END) AS gap
        FROM current WHERE len(items) > 1
        WINDOW alike AS (PARTITION BY "user", segment, hash(items)
                ORDER BY ms, partition, "offset"),
            near AS (PARTITION BY "user", segment ORDER BY ms, partition, "offset"))
    WHERE gap > 0 AND gap < {_LONGEST} GROUP BY ALL"""  # noqa: S608  # numbers


class Settings(CheckSettings):
    """The bounds on repeated slates."""

    max_repeated: float = Field(
        0.001,
        ge=0,
        le=1,
        description="Largest share of slates that repeat another one: the same user, time and"
        " items, or the same request in another partition.",
    )
    max_again: float = Field(
        0.01,
        ge=0,
        le=1,
        description="Largest share of slates that show a user the same list within a second, or"
        " always after the same time of up to two minutes.",
    )


def check(evidence: Evidence, settings: Settings) -> Found:
    """Count repeated slates among all of `current`."""
    (slates,) = evidence.row("SELECT count(*) FROM current")
    if not slates:
        return nothing("no outcome row was found")
    # Empty lists are all alike, so the request tells them apart.
    repeated, rows, across, one, other = evidence.row(
        """SELECT coalesce(sum(n - 1), 0), coalesce(sum(n - records), 0),
                coalesce(sum(partitions - 1), 0), arg_max(low, partitions),
                arg_max(high, partitions)
            FROM (SELECT count(*) AS n, count(DISTINCT (partition, "offset")) AS records,
                    count(DISTINCT partition) AS partitions, min(partition) AS low,
                    max(partition) AS high
                FROM current
                GROUP BY "user", ms, hash(items), CASE WHEN len(items) = 0 THEN request END
                HAVING count(*) > 1)"""
    )
    split, low, high = evidence.row(
        """SELECT coalesce(sum(n - 1), 0), arg_max(low, n), arg_max(high, n) FROM (
            SELECT count(DISTINCT partition) AS n, min(partition) AS low, max(partition) AS high
            FROM current WHERE request IS NOT NULL GROUP BY "user", request
            HAVING count(DISTINCT partition) > 1)"""
    )
    bound = settings.max_repeated
    if split > repeated:
        repeated, across, one, other = split, split, low, high
    share = float(repeated / slates)
    if share <= bound:
        what = f"{repeated:,} of {slates:,} slates repeat another one"
        return _sent_again(evidence, settings, slates) or passed(share, bound, what)
    if rows >= max(across, repeated - rows - across):
        why = (
            "the same records stand in several rows: files were copied into the folder of outcome"
            " files, remove the copies"
        )
    elif across:
        why = (
            f"the same slates are in partitions {one} and {other}, among others: a feed is sent"
            " twice, or its records are not keyed by `user_id`"
        )
    else:
        why = (
            "other records of the same partition show the same: a producer sends its events again"
            " under another `request_id`, or without one"
        )
    return failed(share, bound, f"{repeated:,} of {slates:,} slates repeat another one; {why}")


def _sent_again(evidence: Evidence, settings: Settings, slates: int) -> Found | None:
    """Return a failure where lists come again at once, or after one time as a timer has."""
    sizes = {(): slates}
    for segment, size in evidence.rows("SELECT segment, count(*) FROM current GROUP BY segment"):
        sizes[tuple(segment)] = size
    classes = {segment: [0] * (_CLASSES + 2) for segment in sizes}
    for segment, number, count in evidence.rows(_GAPS):
        for key in {(), tuple(segment)}:
            classes[key][number] += count
    found = [
        (again / sizes[segment] / (_CLEARER if segment else 1), segment, number, again)
        for segment, counts in classes.items()
        for number in range(_CLASSES)
        for again in [_machines(counts, number)]
        if again > max(settings.max_again * sizes[segment], _LEAST)
    ]
    if not found:
        return None
    _, segment, number, again = max(found)
    said = _words_of_gaps(evidence, segment, number, f"{again:,} of {sizes[segment]:,} slates")
    return failed(again / sizes[segment], settings.max_again, said)


def _machines(counts: Sequence[int], number: int) -> int:
    """Count the gaps of a class, and the next one, unless the classes around have as many."""
    if number == 0:
        return counts[0]
    again = sum(counts[number : number + 2])
    around = [*counts[max(1, number - 4) : max(1, number - 1)], *counts[number + 3 : number + 6]]
    usual = 2 * sum(around) / len(around)
    return again if again > _CLEAR * usual else 0


def _words_of_gaps(evidence: Evidence, segment: tuple[str, ...], number: int, slates: str) -> str:
    """Write what was found in a class of gaps."""
    of = f" of {segment_name(evidence.definition.dimensions, segment)}" if any(segment) else ""
    if number:
        first, last = (_AT_ONCE * (1 + _WIDTH) ** (number - 1 + more) for more in (0, 2))
        time = f"always {duration(first)} to {duration(last)} after it: a page that reloads, or"
    else:
        time = f"within {duration(_AT_ONCE)}:"
    return (
        f"{slates}{of} show a user the list before again, {time} slates are sent again under"
        " another `request_id`. Keep the `request_id` when a request is repeated: then it counts"
        " once"
    )


CHECK: Final = Check(
    name="slates_once",
    place=30,
    sentence="Each slate is in the files once.",
    value="share of slates that repeat another one",
    settings=Settings,
    run=check,
)
