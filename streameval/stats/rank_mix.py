"""Positives over those that are to be expected at the ranks where an arm shows its items.

Shorter lists have more positives per impression, because their items stand further up. So an arm's
positives are divided by its impressions at each rank, times the control's rate there. Ranks without
an impression in the control are left out.

Zhang and Jones, "Comparing click logs and editorial labels for training query rewriting", WWW 2007
(clicks over expected clicks).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streameval.base.arrays import Floats, Ints
from streameval.base.limits import NANO
from streameval.stats.cluster_sums import ClusterSums


@dataclass(frozen=True, slots=True, eq=False)
class RankCounts:
    """Impressions and positives of an arm, int64 (clusters of users, ranks), and its users."""

    impressions: Ints
    positives: Ints
    users: int

    @property
    def rates(self) -> Floats:
        """Return positives / impressions by rank, shape (ranks,): 0 without an impression."""
        impressions = self.impressions.sum(axis=0)
        return np.asarray(self.positives.sum(axis=0) / np.maximum(impressions, 1))


def over_expected(arm: RankCounts, control: RankCounts) -> ClusterSums:
    """Return the sums of an arm's positives over those that the control's rates promise."""
    known = control.impressions.any(axis=0)
    expected = (arm.impressions * control.rates).sum(axis=1)
    return ClusterSums(arm.positives[:, known].sum(axis=1) * NANO, _nano(expected), arm.users)


def control_beside(arm: RankCounts, control: RankCounts) -> ClusterSums:
    """Return the control's sums for the comparison with an arm: their ratio is 1.

    Their spread is the uncertainty of the control's rates in the arm's figure R. By the delta
    method a cluster's part is R · Σ_r w_r (positives − rate · impressions), where w_r are the arm's
    impressions at rank r for each of the control's. R is the arm's, since it divides by the rates.
    """
    ratio = over_expected(arm, control).value or 0.0
    weights = arm.impressions.sum(axis=0) / np.maximum(control.impressions.sum(axis=0), 1)
    found = (control.positives * weights).sum(axis=1)
    expected = (control.impressions * (control.rates * weights)).sum(axis=1)
    # Σfound = Σexpected, so the ratio stays 1 and only the spread takes the factor.
    above = expected + ratio * (found - expected)
    return ClusterSums(_nano(above), _nano(expected), control.users)


def _nano(values: Floats) -> Ints:
    return np.rint(values * NANO).astype(np.int64)
