"""Positives of outcome files over those to be expected at their ranks, arm by arm.

Counts are integers by segment, rank and cluster of users, so memory follows the segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from streameval.base.arrays import Ints
from streameval.base.errors import InputError
from streameval.base.limits import CLUSTERS
from streameval.core.list_shapes import SINGLE_RANKS
from streameval.evaluation.answer import Answer, Figure, Segment
from streameval.evaluation.batches import Advance
from streameval.evaluation.compared import Compared, pairs_of
from streameval.evaluation.readers.outcomes import (
    check_dimensions,
    files_of,
    ranked_gains,
    record_batches,
)
from streameval.evaluation.request import FILES, RELEVANT, Given
from streameval.evaluation.sums import Asked, check_segments, users_of
from streameval.stats.experiments import Rules, Scored, compare_ratios
from streameval.stats.rank_mix import RankCounts, control_beside, over_expected

_RANKS: Final = SINGLE_RANKS + 1


@dataclass(slots=True)
class _Counts:
    """Counts of a segment, int64 (2, CLUSTERS, ranks): impressions, positives; and its users."""

    counts: Ints = field(default_factory=lambda: np.zeros((2, CLUSTERS, _RANKS), np.int64))
    checksums: set[int] = field(default_factory=set)

    def sums(self) -> RankCounts:
        impressions, positives = self.counts
        return RankCounts(impressions, positives, users_of(self.checksums))

    @property
    def impressions(self) -> int:
        return int(self.counts[0].sum())


def arm_figures(given: Given, asked: Sequence[Asked], advance: Advance) -> Answer:
    """Compute positives over expected positives of each arm. Raises `InputError`."""
    if given.against is None:
        raise InputError(
            f"{asked[0].name}: compares arms: name their column and the control, such as"
            " --by variant --against A"
        )
    files = files_of(given[FILES])
    check_dimensions(given.by, files)
    found: dict[Segment, _Counts] = {}
    columns = ["user", "ranks", "gains", *given.by]
    for record in record_batches(files, columns, advance, where_null="request"):
        _add(found, record, given)
    rows, figures = [], {}
    for arm, control in pairs_of(found, given.by, given.against):
        scored = _score(found[arm], found[control])
        figures[arm] = _figure(scored, found[arm].impressions)
        figures[control] = Figure(scored.control_value, None, None, found[control].impressions)
        users = users_of(found[arm].checksums)
        labels = dict(zip(given.by[1:], arm[1:], strict=True))
        rows += [
            Compared(
                metric=figure.name,
                arm=arm[0],
                control=control[0],
                users=users,
                scored=scored,
                labels=labels,
            )
            for figure in asked
        ]
    names = [figure.name for figure in asked]
    nothing = Figure(None, None, None, 0)
    return Answer(
        figures=dict.fromkeys(names, nothing),
        by=given.by,
        segments={name: dict.fromkeys(names, figures.get(name, nothing)) for name in sorted(found)},
        lists={} if given.per_list else None,
        differences=rows,
        entries=[figure.entry for figure in asked],
    )


def _add(found: dict[Segment, _Counts], record: Any, given: Given) -> None:
    """Add the items of an Arrow batch, without impressions that have no request."""
    owners, ranks, gains, checksums, segments, names = ranked_gains(record, given.by)
    level = given.value(RELEVANT)
    positive = gains > 0 if level is None else gains >= level
    key = (segments * CLUSTERS + (checksums & (CLUSTERS - 1)))[owners] * _RANKS
    key += np.minimum(ranks, _RANKS) - 1
    shape = (2, len(names), CLUSTERS, _RANKS)
    size = len(names) * CLUSTERS * _RANKS
    counts = np.stack([np.bincount(chosen, minlength=size) for chosen in (key, key[positive])])
    counts = counts.reshape(shape)
    for number, name in enumerate(names):
        if name not in found:
            check_segments(len(found) + 1, given.by)
            found[name] = _Counts()
        found[name].counts += counts[:, number]
        found[name].checksums.update(checksums[segments == number].tolist())


def _score(arm: _Counts, control: _Counts) -> Scored:
    one, other = arm.sums(), control.sums()
    return compare_ratios(over_expected(one, other), control_beside(one, other), Rules())


def _figure(scored: Scored, impressions: int) -> Figure:
    """Return the figure of an arm; its bounds at one look come from its difference from 1."""
    base = scored.control_value
    if scored.once_low is None or scored.once_high is None or base is None:
        return Figure(scored.value, None, None, impressions)
    return Figure(scored.value, base + scored.once_low, base + scored.once_high, impressions)
