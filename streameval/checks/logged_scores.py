"""`logged_scores`: logged scores tell positives from the rest.

AUC: the chance that an item with a positive has a higher score than one without, ties counting a
half; undefined when a class is missing. For scores that claim to be probabilities also their log
loss and their calibration: the mean distance between score and share of positives over ten bins,
weighted by items (expected calibration error; Naeini, Cooper and Hauskrecht, AAAI 2015).

Scores that were assigned to other items of the same list still tell clickers from the rest, and the
AUC over all items hides the fault. So the check also looks at pairs within lists, one item with a
positive and one without. It compares how often the first has the higher score with the frequency
that follows from the worth of scores over all items.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from streameval.base.limits import NANO
from streameval.checks.evidence import Evidence
from streameval.checks.result import CheckSettings, Found, failed, nothing, passed, percent
from streameval.core.metrics import nano
from streameval.core.metrics.entry import UNCUT
from streameval.core.metrics.score_health import (
    CALIBRATION_BINS,
    LOG_LOSS,
    LabelledScores,
    calibration_error,
)
from streameval.stats.intervals import Moments

# Items in one go.
_ROWS = 65_536
_SCORED = (
    "(SELECT scores[i] AS score, (gains[i] > 0)::INTEGER AS hit FROM"
    " (SELECT scores, gains, unnest(range(1, len(items) + 1)) AS i FROM current)"
    " WHERE scores[i] IS NOT NULL)"
)
# Standard errors (by user) that the share of right pairs must lie below the promised one.
_FAR = 4.5
# Standard errors around that share: if they include one half, scores say nothing within lists.
_NEAR = 3.0
# Classes of scores, of equal size, to estimate the worth of a score.
_CLASSES = 20
# Lists that give pairs, chosen by hash: more only add time.
_LISTS = 50_000
# Smallest number of users with a pair.
_LEAST_USERS = 30


class Settings(CheckSettings):
    """The bounds on the quality of scores."""

    min_auc: float = Field(0.5, ge=0, le=1, description="Smallest AUC; 0.5 is a coin's.")
    probabilities: bool = Field(
        default=False, description="Scores are probabilities of a positive: check calibration too."
    )
    max_calibration_error: float = Field(
        0.05, gt=0, le=1, description="Largest mean distance of score and share of positives."
    )
    min_items: int = Field(1_000, ge=2, description="Smallest number of items with a score.")


@dataclass(frozen=True, slots=True)
class _Scored:
    """The items of `current` with a score: counts, and the range and mean of their scores."""

    items: int
    hits: int
    low: float
    high: float
    mean: float


def check(evidence: Evidence, settings: Settings) -> Found:
    """Judge all items of `current` that have a score: their order first, then calibration."""
    scored = _Scored(
        *evidence.row(
            f"""SELECT count(*), coalesce(sum(hit), 0)::BIGINT, min(score), max(score), avg(score)
                FROM {_SCORED}"""  # noqa: S608  # constants
        )
    )
    if scored.items < settings.min_items:
        return nothing(f"{scored.items:,} items have a score, {settings.min_items:,} are needed")
    if not 0 < scored.hits < scored.items:
        return nothing("every scored item has a positive, or none has")
    order = _order(evidence, scored, settings)
    if not order.passed or not settings.probabilities:
        return order
    return _probabilities(evidence, scored, settings, order)


def _order(evidence: Evidence, scored: _Scored, settings: Settings) -> Found:
    """Judge whether scores put positives first, over all items and within lists."""
    auc = _auc(evidence, scored.items, scored.hits)
    what = f"AUC {auc:.3f} over {scored.items:,} scored items, {scored.hits:,} with a positive"
    if auc < settings.min_auc:
        return failed(
            auc,
            settings.min_auc,
            f"{what}: scores do not tell positives from the rest. See whether the logged score is "
            "the one that ranked, of the same model and the same item",
        )
    within = _within_lists(evidence)
    if within is None:
        return passed(auc, settings.min_auc, what)
    what += f"; within lists {within.right:.3f} where {within.promised:.3f} is to be expected"
    if not within.says_nothing:
        return passed(auc, settings.min_auc, what)
    return failed(
        within.right,
        settings.min_auc,
        f"{what}, by {within.users:,} users: scores do not tell the items of a list apart."
        " See whether each score is logged with its own item, in the same order, and after"
        " the last ranking",
    )


def _probabilities(evidence: Evidence, scored: _Scored, settings: Settings, order: Found) -> Found:
    """Judge the scores as probabilities; `order` is the finding on their order."""
    if scored.low < 0 or scored.high > 1:
        return failed(
            order.value,
            settings.min_auc,
            f"scores lie between {scored.low:.4g} and {scored.high:.4g} and are said to be"
            " probabilities: log them before they are transformed, or set `probabilities: false`",
        )
    error, loss = _calibration(evidence)
    what = (
        f"{order.message}; log loss {loss:.4f}; mean score {scored.mean:.4g} where"
        f" {percent(scored.hits / scored.items)} are positive, calibration error {error:.4f}"
    )
    if error <= settings.max_calibration_error:
        return passed(error, settings.max_calibration_error, what)
    return failed(
        error,
        settings.max_calibration_error,
        f"{what}: scores are shifted. Calibrate the model anew, or compare the data it was trained"
        " on with the data it scores now",
    )


def _auc(evidence: Evidence, items: int, hits: int) -> float:
    """Compute the AUC from the counts of positives and others at each distinct score."""
    (pairs,) = evidence.row(
        f"""SELECT sum(hits::DOUBLE * (below + (n - hits) / 2)) FROM (
            SELECT hits, n, coalesce(sum(n - hits) OVER (
                ORDER BY score ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS below
            FROM (SELECT score, sum(hit) AS hits, count(*) AS n FROM {_SCORED} GROUP BY score))"""  # noqa: S608
    )
    return float(pairs) / (hits * (items - hits))


@dataclass(frozen=True, slots=True)
class _Within:
    """Pairs within lists: the share in the right order, and the share that scores promise."""

    users: int
    right: float
    promised: float
    says_nothing: bool


def _within_lists(evidence: Evidence) -> _Within | None:
    """Compare pairs of a positive and another item of the same list; None for too few users.

    In a pair of items worth p and q (shares of positives in the classes of their scores), of which
    exactly one has a positive, the better one has it with chance p(1−q) / (p(1−q) + q(1−p)).
    """
    (lists,) = evidence.row("SELECT count(*) FROM current WHERE request IS NOT NULL")
    every = 1 + lists // _LISTS
    users, *sums = evidence.row(
        f"""WITH items AS (
                SELECT partition, "offset", "user", scores[i] AS score, gains[i] > 0 AS hit
                FROM (SELECT *, unnest(range(1, len(items) + 1)) AS i FROM current
                    WHERE request IS NOT NULL AND hash(partition, "offset") % {every} = 0)
                WHERE scores[i] IS NOT NULL),
            edges AS (SELECT quantile_disc(score, {[n / _CLASSES for n in range(1, _CLASSES)]})
                AS edges FROM items),
            classed AS (SELECT *, len(list_filter(edges, lambda e: e < score)) AS grade
                FROM items, edges),
            worth AS (SELECT grade, (sum(hit::INTEGER) + 0.5) / (count(*) + 1) AS worth
                FROM classed GROUP BY grade),
            valued AS (SELECT * FROM classed JOIN worth USING (grade)),
            pairs AS (SELECT good."user" AS "user",
                    CASE WHEN good.score > bad.score THEN 1.0 WHEN good.score < bad.score THEN 0.0
                        ELSE 0.5 END AS right_way,
                    CASE WHEN good.score = bad.score THEN 0.5 ELSE
                        (if(good.score > bad.score, good.worth, bad.worth)
                            * (1 - if(good.score > bad.score, bad.worth, good.worth)))
                        / (good.worth * (1 - bad.worth) + bad.worth * (1 - good.worth)) END
                        AS promised
                FROM valued AS good JOIN valued AS bad
                    ON good.partition = bad.partition AND good."offset" = bad."offset"
                WHERE good.hit AND NOT bad.hit),
            by_user AS (SELECT count(*)::DOUBLE AS n, sum(right_way)::DOUBLE AS r,
                    sum(promised)::DOUBLE AS p FROM pairs GROUP BY "user")
        SELECT count(*), sum(n), sum(r), sum(p), sum(r * r), sum(r * n), sum(n * n),
            sum((r - p) * (r - p)), sum((r - p) * n) FROM by_user"""  # noqa: S608  # numbers
    )
    if users < _LEAST_USERS:
        return None
    pairs, right, promised, rr, rn, nn, dd, dn = map(float, sums)
    off = right - promised
    spread = math.sqrt(Moments(users, right, pairs, rr, rn, nn).variance())
    gap = math.sqrt(Moments(users, off, pairs, dd, dn, nn).variance())
    share = right / pairs
    return _Within(
        users,
        share,
        promised / pairs,
        off / pairs < -_FAR * gap and share - _NEAR * spread <= 0.5,
    )


def _calibration(evidence: Evidence) -> tuple[float, float]:
    """Compute the calibration error and the log loss, as `evaluate` does."""
    metrics = (LOG_LOSS, *CALIBRATION_BINS)
    sums, count = [0] * len(metrics), 0
    reader = evidence.connection.sql(f"SELECT score, hit = 1 AS hit FROM {_SCORED}")  # noqa: S608
    for rows in reader.to_arrow_reader(_ROWS):
        score, hit = (column.to_numpy(zero_copy_only=False) for column in rows.columns)
        items = LabelledScores(np.array([0, len(score)]), score, hit)
        count += len(score)
        for number, metric in enumerate(metrics):
            sums[number] += sum(nano(metric.score(items, UNCUT)[0]).tolist())
    loss, *bins = (total / (count * NANO) for total in sums)
    return calibration_error(*bins), loss
