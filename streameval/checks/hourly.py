"""Sums of figures by hour and by arm, kept from run to run so that each row is read once.

A figure is a ratio of two sums over users. Users are hashed into clusters, and sums are kept by
cluster: they are integers, they add over hours, and their spread over clusters gives the standard
error. Two kinds of sums come from the same reading:

* *seasons*: sums of each whole hour of the last `KEPT_HOURS`, over all arms;
* *arms*: sums of each arm, from the start of the experiment to now.

A run hands its sums of whole hours on to the next run, which reads only the rows since. An hour is
whole once no partition adds a row to it. Nobody waits for a partition that was silent for
`IDLE_HOURS`; its later rows enter no sum.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from streameval.base.limits import NANO
from streameval.checks import sql
from streameval.checks.evidence import Evidence
from streameval.core.definition import Definition
from streameval.core.fingerprint import fingerprint
from streameval.stats.intervals import linear_count

HOUR: Final = 3_600_000
WEEK_HOURS: Final = 7 * 24
# Four weeks to compare with, three days that are compared, and the day in which those end.
KEPT_HOURS: Final = 4 * WEEK_HOURS + 4 * 24
IDLE_HOURS: Final = 6
# Groups of users for the spread. The share of empty ones gives the number of users.
CLUSTERS: Final = 1_024
# Seasons keep an array for each hour, so they take fewer.
SEASON_CLUSTERS: Final = 256
RATES: Final = ("positive_rate", "positives_per_impression")
_FORMAT: Final = 1

Sums: TypeAlias = npt.NDArray[np.int64]
"""Of shape (series, 2, clusters): numerators in nano-units, and denominators."""


class Series(NamedTuple):
    """A figure to sum up: a ranking metric with its k, or a rate of a kind of feedback."""

    name: str
    metric: str
    k: int
    kind: str


# Counts all rows, and so all users, whatever figures they have.
_PRESENCE: Final = Series("", "presence", 0, "")


def series_of(metrics: Sequence[str], definition: Definition) -> list[Series]:
    """Resolve metrics of the specification: `ndcg@10`, or a rate for each kind of positive."""
    found = []
    for metric in metrics:
        name, _, k = metric.partition("@")
        if name in RATES:
            found += [Series(f"{name} of {kind}", name, 0, kind) for kind in definition.kinds]
        else:
            found.append(Series(metric, name, int(k), ""))
    return found


@dataclass(slots=True)
class _Kept:
    """The sums for the next run: `hours` below `until`, and the arms' sums up to it."""

    until: int
    hours: dict[int, Sums] = field(default_factory=dict)
    arms: dict[str, Sums] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hourly:
    """The sums of `series` by whole hour and by arm, and the first hour not yet whole."""

    series: Sequence[Series]
    until: int
    hours: Mapping[int, Sums]
    arms: Mapping[str, Sums]

    def span(self, begin: int, end: int, index: int) -> tuple[Sums, Sums] | None:
        """Add up both sums of a series over the hours [begin, end); None without rows."""
        found = [self.hours[hour] for hour in range(begin, end) if hour in self.hours]
        if not found:
            return None
        total = sum(found[1:], found[0])[index + 1]
        return total[0], total[1]


def users(sums: Sums) -> int:
    """Estimate the number of users with a row."""
    return linear_count(int(np.count_nonzero(sums[0, 1])), CLUSTERS)


def hourly(evidence: Evidence, series: Sequence[Series], since: int, memory: str) -> Hourly:
    """Sum up from the sums of the run before, in the memory of that name, and from newer rows.

    `since`: the start of the experiment (ms). Raises `InputError`, `UnreachableError`.
    """
    key = json.dumps(
        [
            _FORMAT,
            fingerprint(evidence.definition),
            [one.name for one in series],
            since,
            evidence.arm,
        ]
    )
    kept = _load(evidence.memory.get(memory), key, len(series) + 1)
    bounds = evidence.bounds()
    if bounds is None:
        return Hourly(series, 0, {}, {})
    first, newest = bounds[0] // HOUR, bounds[1] // HOUR
    until = _whole_until(evidence, newest)
    if kept is None:
        kept = _Kept(max(first, min(until - KEPT_HOURS, since // HOUR)))
    while kept.until < until:
        # A day at a time: memory is bounded however long nobody looked.
        end = min(until, kept.until // 24 * 24 + 24)
        _add(evidence, series, since, (kept.until, end), hours=kept.hours, arms=kept.arms)
        kept.until = end
    kept.hours = {hour: sums for hour, sums in kept.hours.items() if hour >= until - KEPT_HOURS}
    evidence.memory[memory] = _pack(kept, key)
    arms = {name: sums.copy() for name, sums in kept.arms.items()}
    _add(evidence, series, since, (kept.until, newest + 1), hours={}, arms=arms)
    return Hourly(series, kept.until, kept.hours, arms)


def total(evidence: Evidence, series: Sequence[Series], source: str) -> Sums:
    """Sum up all rows of a table or query."""
    found = np.zeros((len(series) + 1, 2, CLUSTERS), np.int64)
    for _, _, _, cluster, *values in evidence.rows(_query(evidence.definition, series, source, 0)):
        found[:, :, cluster] += np.array(values, np.int64).reshape(len(series) + 1, 2)
    return found


def _whole_until(evidence: Evidence, newest: int) -> int:
    """Return the first hour that is not whole; `newest` is the hour of the newest row."""
    if evidence.snapshot is None or not evidence.snapshot.watermarks:
        return newest
    marks = [mark // HOUR for mark in evidence.snapshot.watermarks.values()]
    awake = [
        mark
        for mark in evidence.snapshot.watermarks.values()
        if mark // HOUR >= max(marks) - IDLE_HOURS
    ]
    return (min(awake) - evidence.definition.horizon) // HOUR


def _add(
    evidence: Evidence,
    series: Sequence[Series],
    since: int,
    span: tuple[int, int],
    *,
    hours: dict[int, Sums],
    arms: dict[str, Sums],
) -> None:
    """Add the rows of the hours [begin, end) to the sums."""
    begin, end = span
    if begin >= end:
        return
    source = evidence.between(begin * HOUR, end * HOUR)
    shape = (len(series) + 1, 2)
    for hour, arm, counts, cluster, *values in evidence.rows(
        _query(evidence.definition, series, source, since, f"ms // {HOUR}")
    ):
        row = np.array(values, np.int64).reshape(shape)
        season = hours.setdefault(hour, np.zeros((*shape, SEASON_CLUSTERS), np.int64))
        season[:, :, cluster % SEASON_CLUSTERS] += row
        if counts:
            sums = arms.setdefault(arm, np.zeros((*shape, CLUSTERS), np.int64))
            sums[:, :, cluster] += row


def _query(
    definition: Definition, series: Sequence[Series], source: str, since: int, hour: str = "0"
) -> str:
    """Write a query: hour, arm, part of the experiment or not, cluster, two sums a series.

    Each user of an hour is one row first: `positive_rate` is a mean over users.
    """
    inner, outer = [], []
    for index, one in enumerate((_PRESENCE, *series)):
        if one.metric == "presence":
            inner.append(f"count(*) AS y{index}")
            outer.append(f"0, sum(y{index})")
        elif one.metric in RATES:
            inner.append(f"sum({sql.positives(one.kind)}) AS x{index}")
            if one.metric == "positive_rate":
                # A user with nothing but empty slates has no rate.
                rate = f"x{index}::DOUBLE / nullif(impressions, 0)"
                ratio = f"round_even({rate} * {NANO}, 0)::BIGINT"
                outer.append(f"coalesce(sum({ratio}), 0), count({rate})")
            else:
                outer.append(f"sum(x{index}) * {NANO}, sum(impressions)")
        else:
            score = sql.nano_score(one.metric, one.k, definition)
            inner.append(
                f"coalesce(sum({score}) FILTER (WHERE request IS NOT NULL), 0) AS x{index}"
            )
            inner.append(f"count(request) AS y{index}")
            outer.append(f"sum(x{index}), sum(y{index})")
    return f"""
        SELECT hour, arm, counts, (md5_number_lower("user") % {CLUSTERS})::INT AS cluster,
            {", ".join(outer)}
        FROM (
            SELECT {hour} AS hour, arm, ms >= {since} AS counts, "user",
                sum(len(items)) AS impressions, {", ".join(inner)}
            FROM ({sql.judge(definition, source)}) GROUP BY ALL
        ) GROUP BY ALL"""  # noqa: S608  # names and numbers of the definition, quoted


# ----------------------------------------------------------------------------------------- memory


def _pack(kept: _Kept, key: str) -> bytes:
    names = json.dumps([key, kept.until, list(kept.arms)])
    out = io.BytesIO()
    np.savez_compressed(
        out,
        names=np.frombuffer(names.encode(), np.uint8),
        numbers=np.array(list(kept.hours), np.int64),
        hours=np.array(list(kept.hours.values()), np.int64),
        arms=np.array(list(kept.arms.values()), np.int64),
    )
    return out.getvalue()


def _load(stored: bytes | None, key: str, series: int) -> _Kept | None:
    """Read the sums of the run before; None if they had another key, or are damaged."""
    if stored is None:
        return None
    try:
        with np.load(io.BytesIO(stored), allow_pickle=False) as arrays:
            known, until, names = json.loads(arrays["names"].tobytes())
            numbers, hours, arms = arrays["numbers"], arrays["hours"], arrays["arms"]
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile):
        return None
    if known != key:
        return None
    return _Kept(
        until,
        dict(zip(numbers.tolist(), hours.reshape(-1, series, 2, SEASON_CLUSTERS), strict=True)),
        dict(zip(names, arms.reshape(-1, series, 2, CLUSTERS), strict=True)),
    )
