"""The checks in the order in which they run and people read them: one row each.

The row feeds the specification's schema, the help of `streameval check`, the report and the docs.
Checks whose failure discredits the other results come first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from streameval.checks import (
    attribution_complete,
    clocks_agree,
    counters_match_log,
    drift,
    freshness,
    logged_scores,
    metric_regression,
    off_policy,
    positions_complete,
    records_accepted,
    requests_complete,
    sample_ratio,
    slates_once,
    traffic_alike,
    traffic_sane,
    windows_match_outcomes,
)
from streameval.checks.evidence import Evidence
from streameval.checks.result import CheckSettings, Found


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its name, its claim, the meaning of its value, its settings and function."""

    name: str
    sentence: str
    value: str
    settings: type[CheckSettings]
    run: Callable[[Evidence, Any], Found]


def _check(module: ModuleType, sentence: str, value: str) -> Check:
    """Return the row of a check, which has the name of its module."""
    name = module.__name__.rpartition(".")[2]
    return Check(name, sentence, value, module.Settings, module.check)


CHECKS: Final = (
    _check(
        counters_match_log,
        "Users' counters equal an independent recount of the log.",
        "users with other counters",
    ),
    _check(
        windows_match_outcomes,
        "Matured figures equal those that DuckDB recomputes from the outcome files, exactly.",
        "figures that differ",
    ),
    _check(
        slates_once,
        "Each slate is in the files once.",
        "share of slates that repeat another one",
    ),
    _check(
        records_accepted,
        "Few records are rejected or late, and no more than before.",
        "share of records that were rejected or late",
    ),
    _check(
        clocks_agree,
        "Slates are dated in the order in which the log has them.",
        "share of slates whose time contradicts the log",
    ),
    _check(
        attribution_complete,
        "Feedback is credited to impressions that can have earned it, and little finds none.",
        "share of positive feedback without an impression",
    ),
    _check(
        requests_complete,
        "Impressions name their request, in every variant alike and as before.",
        "share of impressions without a request beyond the others' share",
    ),
    _check(
        positions_complete,
        "Items of slates have a position, and lists a first one.",
        "share of items without a position, or of lists with a first position",
    ),
    _check(
        traffic_sane,
        "No user reads or reacts like a machine, compared with the other users.",
        "chance of the least likely users, judged by the others",
    ),
    _check(
        traffic_alike,
        "Lists, feedback and users are alike in every variant, at every hour, and as before.",
        "widest difference, as a multiple of its bound",
    ),
    _check(
        freshness,
        "Outcome rows keep coming.",
        "seconds since the newest row could be final",
    ),
    _check(
        sample_ratio,
        "Users fall into the variants as the configured split says, each into one.",
        "p-value, valid at every look, or the share of users in several variants",
    ),
    _check(
        drift,
        "Items, positions and kinds of feedback are distributed as in the reference.",
        "largest total variation distance beyond chance",
    ),
    _check(
        metric_regression,
        "No variant is worse than the control, and no day than the weeks before.",
        "largest certain drop, as a share of the compared figure",
    ),
    _check(
        logged_scores,
        "Logged scores tell positives from the rest, within lists too, and as probabilities are"
        " calibrated.",
        "AUC, or the calibration error of probabilities",
    ),
    _check(
        off_policy,
        "Logged propensities can tell the reward of a random policy.",
        "effective share of the impressions",
    ),
)
