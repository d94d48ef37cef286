"""`logged_scores`: the scores that were logged tell positives from the rest.

AUC: the chance that an item with a positive has a higher score than one without, ties counting a
half; undefined when a class is missing. Where scores are said to be probabilities, also their log
loss and their calibration: the mean distance between score and share of positives over ten bins,
weighted by items (expected calibration error; Naeini, Cooper and Hauskrecht, AAAI 2015).
"""

from __future__ import annotations

from pydantic import Field

from streameval.offline.checks.evidence import Evidence
from streameval.offline.checks.result import CheckSettings, Found, failed, nothing, passed, percent

# What a probability of 0 or 1 counts as in the log loss (scikit-learn's is the machine's epsilon).
_EDGE = 1e-15
_SCORED = (
    "(SELECT scores[i] AS score, (gains[i] > 0)::INTEGER AS hit FROM"
    " (SELECT scores, gains, unnest(range(1, len(items) + 1)) AS i FROM current)"
    " WHERE scores[i] IS NOT NULL)"
)


class Settings(CheckSettings):
    """How good scores must be."""

    min_auc: float = Field(0.5, ge=0, le=1, description="Smallest AUC; 0.5 is a coin's.")
    probabilities: bool = Field(
        default=False, description="Scores are probabilities of a positive: check calibration too."
    )
    max_calibration_error: float = Field(
        0.05, gt=0, le=1, description="Largest mean distance of score and share of positives."
    )
    min_items: int = Field(1_000, ge=2, description="Items with a score that are needed.")


def check(evidence: Evidence, settings: Settings) -> Found:
    """Over all items of `current` that have a score."""
    items, hits, low, high, mean = evidence.row(
        f"SELECT count(*), coalesce(sum(hit), 0), min(score), max(score), avg(score) FROM {_SCORED}"  # noqa: S608
    )
    if items < settings.min_items:
        return nothing(f"{items:,} items have a score, {settings.min_items:,} are needed")
    if not 0 < hits < items:
        return nothing("every scored item has a positive, or none has")
    auc = _auc(evidence, items, int(hits))
    what = f"AUC {auc:.3f} over {items:,} scored items, {int(hits):,} with a positive"
    if auc < settings.min_auc:
        return failed(
            auc,
            settings.min_auc,
            f"{what}: scores do not tell positives from the rest. See whether the logged score is "
            "the one that ranked, of the same model and the same item",
        )
    if not settings.probabilities:
        return passed(auc, settings.min_auc, what)
    if low < 0 or high > 1:
        return failed(
            auc,
            settings.min_auc,
            f"scores lie between {low:.4g} and {high:.4g} and are said to be probabilities: log "
            "them before they are transformed, or set `probabilities: false`",
        )
    error, loss = _calibration(evidence, items)
    what += (
        f"; log loss {loss:.4f}; mean score {mean:.4g} where {percent(hits / items)} are positive,"
        f" calibration error {error:.4f}"
    )
    if error <= settings.max_calibration_error:
        return passed(error, settings.max_calibration_error, what)
    return failed(
        error,
        settings.max_calibration_error,
        f"{what}: scores are shifted. Calibrate the model anew, or see what changed between what "
        "it was trained on and what it is shown",
    )


def _auc(evidence: Evidence, items: int, hits: int) -> float:
    """From the number of positives and others at each distinct score, in rising order."""
    (pairs,) = evidence.row(
        f"""SELECT sum(hits::DOUBLE * (below + (n - hits) / 2)) FROM (
            SELECT hits, n, coalesce(sum(n - hits) OVER (
                ORDER BY score ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS below
            FROM (SELECT score, sum(hit) AS hits, count(*) AS n FROM {_SCORED} GROUP BY score))"""  # noqa: S608
    )
    return float(pairs) / (hits * (items - hits))


def _calibration(evidence: Evidence, items: int) -> tuple[float, float]:
    """Expected calibration error, and log loss."""
    (error,) = evidence.row(
        f"""SELECT sum(abs(scores - hits)) FROM (
            SELECT least(floor(score * 10), 9) AS bin, sum(score) AS scores, sum(hit) AS hits
            FROM {_SCORED} GROUP BY bin)"""  # noqa: S608
    )
    (loss,) = evidence.row(
        f"""SELECT -avg(ln(CASE WHEN hit = 1 THEN p ELSE 1 - p END)) FROM (
            SELECT hit, least(greatest(score, {_EDGE}), 1 - {_EDGE}) AS p FROM {_SCORED})"""  # noqa: S608
    )
    return float(error) / items, float(loss)
