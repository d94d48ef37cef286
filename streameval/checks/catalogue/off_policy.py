"""`off_policy`: logged propensities can tell the reward of another policy.

That policy shows each of `catalogue_size` items with the same chance, the usual yardstick. The
estimates are IPS and SNIPS of the share of impressions with a positive (`stats.off_policy`), which
refuses or flags them by their weights; the check fails if they mean nothing. Right propensities
give weights of mean 1, apart from chance. In slates they are seldom right to the last percent,
because a rank's propensity depends on the items above it. So the check only mentions a small error.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from pydantic import Field

from streameval.checks.evidence import Evidence
from streameval.checks.result import (
    Check,
    CheckSettings,
    Found,
    failed,
    nothing,
    passed,
    percent,
    unanswered,
)
from streameval.core.windows.tables import cluster_of
from streameval.stats.off_policy import OffPolicy, WeightSums, estimate

BATCH: Final = 65_536
_ROUNDS: Final = (
    'SELECT "user", propensities[i], (gains[i] > 0)::INTEGER FROM (SELECT "user", propensities,'
    " gains, unnest(range(1, len(items) + 1)) AS i FROM current) WHERE propensities[i] IS NOT NULL"
)
_OUT_OF_RANGE: Final = (
    "SELECT count(*), arg_min(partition, record), min(record)[2], arg_min(propensity, record) FROM"
    ' (SELECT partition, [partition, "offset"] AS record, unnest(propensities) AS propensity'
    " FROM current) WHERE NOT (propensity > 0 AND propensity <= 1)"
)


class Settings(CheckSettings):
    """The policy to estimate, and the bounds on its weights."""

    catalogue_size: int | None = Field(
        None,
        ge=1,
        description="Items that a uniformly random policy would choose from; null: not checked.",
    )
    min_effective_share: float = Field(
        0.01, ge=0, le=1, description="Smallest effective sample size, as a share of impressions."
    )
    max_weight_error: float = Field(
        0.2, ge=0, description="Largest distance of the mean weight from 1 beyond chance."
    )


def check(evidence: Evidence, settings: Settings) -> Found:
    """Judge all impressions of `current` that have a propensity."""
    if settings.catalogue_size is None:
        return nothing("the specification names no `catalogue_size`")
    count, partition, offset, wrong = evidence.row(_OUT_OF_RANGE)
    bound = settings.min_effective_share
    if count:
        return failed(
            None,
            bound,
            f"{count:,} impressions have a propensity outside 0 (excluded) to 1, the first"
            f" {wrong!r} in the row of partition {partition}, offset {offset}. {_ADVICE}",
        )
    sums = _sums(evidence, 1 / settings.catalogue_size)
    if sums is None:
        return unanswered("no impression has a propensity")
    found = estimate(sums)
    share = found.effective / found.rounds
    if found.refused is not None:
        return failed(share, bound, f"{found.refused}. {_ADVICE}")
    what = _what(found, share)
    if share < bound or found.off_by > settings.max_weight_error:
        return failed(share, bound, f"{what}. {_ADVICE}")
    return passed(share, bound, what)


_ADVICE: Final = (
    "Log propensities as the policy chose with them, correct `catalogue_size`, and have the policy "
    "explore more; a comparison of variants needs none"
)


def _what(found: OffPolicy, share: float) -> str:
    assert found.ips is not None, "an estimate that is not refused is there"
    assert found.snips is not None, "an estimate that is not refused is there"
    text = (
        f"uniformly random: IPS {found.ips.value:.4g} ({found.ips.low:.4g} to {found.ips.high:.4g})"
        f", SNIPS {found.snips.value:.4g} ({found.snips.low:.4g} to {found.snips.high:.4g}); "
        f"weights: mean {found.mean_weight:.3f}, largest {found.largest_weight:.4g}, effective "
        f"{found.effective:,.0f} of {found.rounds:,} impressions ({percent(share)})"
    )
    return "; ".join([text, *found.warnings])


def _sums(evidence: Evidence, target: float) -> WeightSums | None:
    """Sum up batches of impressions, so memory does not grow with the log."""
    total: WeightSums | None = None
    result = evidence.connection.execute(_ROUNDS)
    while rows := result.fetchmany(BATCH):
        users, logged, rewards = zip(*rows, strict=True)
        clusters = np.fromiter(map(cluster_of, users), np.int64, len(rows))
        part = WeightSums.of(rewards, np.full(len(rows), target), logged, clusters)
        total = part if total is None else total + part
    return total


CHECK: Final = Check(
    name="off_policy",
    place=160,
    sentence="Logged propensities can tell the reward of a random policy.",
    value="effective share of the impressions",
    settings=Settings,
    run=check,
)
