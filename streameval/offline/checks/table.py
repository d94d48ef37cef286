"""The checks in the order in which they are run and read: one row each.

The row feeds the specification's schema, the help of `streameval check`, the report and the docs.
What breaks the trust in everything else comes first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from streameval.offline.checks import (
    attribution_complete,
    counters_match_log,
    drift,
    freshness,
    logged_scores,
    metric_regression,
    off_policy,
    positions_complete,
    sample_ratio,
    traffic_sane,
    windows_match_outcomes,
)
from streameval.offline.checks.evidence import Evidence
from streameval.offline.checks.result import CheckSettings, Found


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its name, what it says in a sentence, what its value is, how to run it."""

    name: str
    sentence: str
    value: str
    settings: type[CheckSettings]
    run: Callable[[Evidence, Any], Found]


CHECKS: Final = (
    Check(
        "counters_match_log",
        "Users' counters are those of an independent recount of the log.",
        "users with other counters",
        counters_match_log.Settings,
        counters_match_log.check,
    ),
    Check(
        "windows_match_outcomes",
        "Matured figures are those that DuckDB recomputes from the outcome files, exactly.",
        "figures that differ",
        windows_match_outcomes.Settings,
        windows_match_outcomes.check,
    ),
    Check(
        "attribution_complete",
        "Feedback is credited to impressions that can have earned it, and little finds none.",
        "share of positive feedback without an impression",
        attribution_complete.Settings,
        attribution_complete.check,
    ),
    Check(
        "positions_complete",
        "Items of slates say where they stood.",
        "share of items without a position",
        positions_complete.Settings,
        positions_complete.check,
    ),
    Check(
        "traffic_sane",
        "No user has an inhuman share or rate of the traffic.",
        "the busiest user's share of impressions",
        traffic_sane.Settings,
        traffic_sane.check,
    ),
    Check(
        "freshness",
        "Outcome rows keep coming.",
        "seconds since the newest row could be final",
        freshness.Settings,
        freshness.check,
    ),
    Check(
        "sample_ratio",
        "Users fall into the variants as the configured split says.",
        "p-value, valid at every look",
        sample_ratio.Settings,
        sample_ratio.check,
    ),
    Check(
        "drift",
        "Items, positions and kinds of feedback are distributed as in the reference.",
        "largest total variation distance beyond chance",
        drift.Settings,
        drift.check,
    ),
    Check(
        "metric_regression",
        "No variant is worse than the control, and the present not than the reference.",
        "largest certain drop, as a share of what it is compared with",
        metric_regression.Settings,
        metric_regression.check,
    ),
    Check(
        "logged_scores",
        "Logged scores tell positives from the rest and, as probabilities, are calibrated.",
        "AUC, or the calibration error of probabilities",
        logged_scores.Settings,
        logged_scores.check,
    ),
    Check(
        "off_policy",
        "Logged propensities can answer what a random policy would earn.",
        "effective share of the impressions",
        off_policy.Settings,
        off_policy.check,
    ),
)
