"""Gorse's positive rate of a day: the share of positives among the distinct items that a user read.

`daily_positive_rate` follows Gorse's documentation: the mean over all users who read something.
`daily_positive_rate_gorse_v05` follows its releases 0.5.0 to 0.5.6: only users with a positive item
among the items they read. A user counts once for each day.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streameval.core.metrics.entry import UnitMetric, UnitSums
from streameval.core.metrics.lists import ratio


@dataclass(frozen=True, slots=True)
class Reads:
    """Numbers of distinct items read (> 0), and of positives, for each of n users and days."""

    reads: npt.NDArray[np.int64]
    positives: npt.NDArray[np.int64]


def _rate_of_reads(reads: Reads, k: int) -> UnitSums:  # noqa: ARG001 (no ranks here)
    return ratio(reads.positives, reads.reads), np.ones(len(reads.reads), np.int64)


def _release_05(reads: Reads, k: int) -> UnitSums:  # noqa: ARG001 (no ranks here)
    return ratio(reads.positives, reads.reads), (reads.positives > 0).astype(np.int64)


_FORMULA = "of distinct positive items they read divided by distinct items they read"

METRICS: tuple[UnitMetric[Reads], ...] = (
    UnitMetric(
        input_kind="reads",
        name="daily_positive_rate",
        formula=f"Mean over users and days {_FORMULA}",
        source="Gorse's documentation, online evaluation",
        convention="gorse_doc: over all users who read something; days are UTC",
        undefined="left out: a user on a day without a read",
        cutoff="none",
        is_share=True,
        score=_rate_of_reads,
    ),
    UnitMetric(
        input_kind="reads",
        name="daily_positive_rate_gorse_v05",
        formula=f"Mean over users and days with a positive {_FORMULA}",
        source="Gorse's releases 0.5.0 to 0.5.6",
        convention="gorse_v05: only users with a positive among their reads; days are UTC",
        undefined="left out and counted: a user on a day without a positive among the reads",
        cutoff="none",
        is_share=True,
        score=_release_05,
    ),
)
"""The rows of these metrics."""
