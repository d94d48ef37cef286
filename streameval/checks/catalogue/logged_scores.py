"""`logged_scores`: logged scores tell positives from the rest.

AUC: the chance that an item with a positive has a higher score than one without, ties counting a
half; undefined when a class is missing. Surfaces and variants may have scores of other scales and
other shares of positives, so only items of the same segment are compared.

For scores that claim to be probabilities also their log loss and their calibration: the mean
distance between score and share of positives over ten bins, weighted by items (expected calibration
error; Naeini, Cooper and Hauskrecht, AAAI 2015).

Scores that were assigned to other items of the same list still tell clickers from the rest, and the
AUC over all items hides the fault. So the check also looks at pairs within lists, one item with a
positive and one without. It compares how often the first has the higher score with the frequency
that follows from the worth of scores over all items of the segment.

Scores that are the same for many items say nothing, whoever reacts (`same_scores`).

Both are judged over all segments together, and for each segment with enough items: a fault of one
variant disappears among the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from pydantic import Field

from streameval.base.limits import NANO
from streameval.checks.evidence import Evidence
from streameval.checks.result import (
    Check,
    CheckSettings,
    Found,
    failed,
    nothing,
    passed,
    percent,
    segment_name,
)
from streameval.checks.same_scores import same_scores
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
    '(SELECT segment, "user", scores[i] AS score, (gains[i] > 0)::INTEGER AS hit FROM'
    ' (SELECT segment, "user", scores, gains, unnest(range(1, len(items) + 1)) AS i FROM current)'
    " WHERE scores[i] IS NOT NULL)"
)
# Standard errors (by user) that the AUC must lie below its bound: each segment is judged.
_BELOW = 4.0
# Standard errors (by user) that the share of right pairs must lie below the promised one.
_FAR = 4.5
# Standard errors around that share: if they include one half, scores say nothing within lists. Two,
# so that a weak model is spared on a small surface, where three would reach one half.
_NEAR = 2.0
# Classes of scores, of equal size, to estimate the worth of a score.
_CLASSES = 20
# Lists that give pairs, chosen by hash: more only add time.
_LISTS = 50_000
# Smallest number of users of a segment, and of users with a pair.
_LEAST_USERS = 30


class Settings(CheckSettings):
    """The bounds on the quality of scores."""

    min_auc: float = Field(0.5, ge=0, le=1, description="Smallest AUC; 0.5 is a coin's.")
    probabilities: bool = Field(
        default=False, description="Scores are probabilities of a positive: check calibration too."
    )
    max_tied: float = Field(
        0.35,
        gt=0,
        le=1,
        description="Largest share of pairs of items of a list that have the same score.",
    )
    max_flat: float = Field(
        0.05,
        gt=0,
        le=1,
        description="Largest share of lists of three items or more that have the same score for all"
        " their items.",
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
    same = same_scores(evidence, settings.min_items, settings.max_tied, settings.max_flat)
    if same is not None:
        return failed(
            same.value,
            same.bound,
            f"{same.text}: scores that say nothing about an item. See whether the model's own score"
            " is logged, before it is rounded, and not a default where the model gave no answer",
        )
    if not 0 < scored.hits < scored.items:
        return nothing("every scored item has a positive, or none has")
    order = _order(evidence, scored, settings)
    if not order.passed or not settings.probabilities:
        return order
    return _probabilities(evidence, scored, settings, order)


def _order(evidence: Evidence, scored: _Scored, settings: Settings) -> Found:
    """Judge whether scores put positives first, over all items and within lists."""
    whole, *parts = _aucs(evidence, settings.min_items)
    if math.isnan(whole.auc):
        return nothing("no segment has scored items both with a positive and without")
    what = (
        f"AUC {whole.auc:.3f} over {scored.items:,} scored items, {scored.hits:,} with a positive"
    )
    bad = min((whole, *parts), key=lambda part: part.highest)
    names = evidence.definition.dimensions
    if bad.highest < settings.min_auc:
        if bad.segment:
            segment = segment_name(names, bad.segment)
            what += f"; AUC {bad.auc:.3f} over {bad.items:,} items of {segment}"
        return failed(
            bad.auc,
            settings.min_auc,
            f"{what}: scores do not tell positives from the rest. See whether the logged score is "
            "the one that ranked, of the same model and the same item",
        )
    lists = _within_lists(evidence, settings.min_items)
    if not lists:
        return passed(whole.auc, settings.min_auc, what)
    found = next((part for part in lists if part.says_nothing), lists[0])
    of = f" of {segment_name(names, found.segment)}" if found.segment else ""
    what += f"; within lists{of} {found.right:.3f} where {found.promised:.3f} is to be expected"
    if not found.says_nothing:
        return passed(whole.auc, settings.min_auc, what)
    return failed(
        found.right,
        settings.min_auc,
        f"{what}, by {found.users:,} users: scores do not tell the items of a list apart."
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


@dataclass(frozen=True, slots=True)
class _Auc:
    """The AUC of a segment (None: over all), its items, and the highest that it may be."""

    segment: Sequence[str] | None
    items: int
    auc: float
    highest: float


def _aucs(evidence: Evidence, least: int) -> list[_Auc]:
    """Compute the AUC over pairs of one segment: of all segments, then of those with enough items.

    Each user counts with the pairs that their items are in. A pair counts for both of its items, so
    the standard error is twice that of the delta method (Hájek's projection).
    """
    rows = evidence.rows(
        f"""WITH graded AS (SELECT segment, score, sum(hit)::DOUBLE AS hits,
                count(*)::DOUBLE - sum(hit) AS others FROM {_SCORED} GROUP BY segment, score),
            ranked AS (SELECT *, sum(others) OVER upto - others / 2 AS below,
                    sum(hits) OVER whole - sum(hits) OVER upto + hits / 2 AS above,
                    sum(others) OVER whole AS all_others, sum(hits) OVER whole AS all_hits
                FROM graded WINDOW whole AS (PARTITION BY segment),
                    upto AS (PARTITION BY segment ORDER BY score ROWS UNBOUNDED PRECEDING)),
            parts AS (SELECT segment, "user", count(*) AS items,
                    sum(if(hit = 1, below, above)) AS x,
                    sum(if(hit = 1, all_others, all_hits)) AS y
                FROM {_SCORED} JOIN ranked USING (segment, score) GROUP BY segment, "user"),
            wholes AS (SELECT NULL AS segment, "user", sum(items) AS items, sum(x) AS x,
                sum(y) AS y FROM parts GROUP BY "user")
        SELECT segment, sum(items)::BIGINT, count(*), sum(x), sum(y), sum(x * x), sum(x * y),
            sum(y * y) FROM (FROM wholes UNION ALL FROM parts) GROUP BY segment
        HAVING segment IS NULL
            OR (sum(items) >= {least} AND sum(y) > 0 AND count(*) >= {_LEAST_USERS})
        ORDER BY segment NULLS FIRST"""  # noqa: S608  # numbers
    )
    found = []
    for segment, items, users, *sums in rows:
        pairs = Moments(users, *map(float, sums))
        error = 2 * math.sqrt(float(pairs.variance())) if users > 1 else math.inf
        auc = float(pairs.ratio())
        found.append(_Auc(segment, items, auc, auc + _BELOW * error))
    return found


@dataclass(frozen=True, slots=True)
class _Within:
    """Pairs within lists: the share in the right order, and the share that scores promise."""

    segment: Sequence[str] | None
    users: int
    right: float
    promised: float
    says_nothing: bool


def _within_lists(evidence: Evidence, least: int) -> list[_Within]:
    """Compare pairs of a positive and another item of the same list, over all segments, then each.

    In a pair of items worth p and q (shares of positives in the classes of their scores), of which
    exactly one has a positive, the better one has it with chance p(1−q) / (p(1−q) + q(1−p)).
    Segments with fewer items than `least`, or too few users, are left out.
    """
    (lists,) = evidence.row("SELECT count(*) FROM current WHERE request IS NOT NULL")
    every = 1 + lists // _LISTS
    rows = evidence.rows(
        f"""WITH items AS (
                SELECT segment, partition, "offset", "user", scores[i] AS score,
                    gains[i] > 0 AS hit
                FROM (SELECT *, unnest(range(1, len(items) + 1)) AS i FROM current
                    WHERE request IS NOT NULL AND hash(partition, "offset") % {every} = 0)
                WHERE scores[i] IS NOT NULL),
            edges AS (SELECT segment, count(*) AS items,
                    quantile_disc(score, {[n / _CLASSES for n in range(1, _CLASSES)]}) AS edges
                FROM items GROUP BY segment),
            classed AS (SELECT items.*, len(list_filter(edges, lambda e: e < score)) AS grade
                FROM items JOIN edges USING (segment)),
            worth AS (SELECT segment, grade, (sum(hit::INTEGER) + 0.5) / (count(*) + 1) AS worth
                FROM classed GROUP BY segment, grade),
            valued AS (SELECT * FROM classed JOIN worth USING (segment, grade)),
            pairs AS (SELECT good.segment AS segment, good."user" AS "user",
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
            by_user AS (SELECT segment, "user", count(*)::DOUBLE AS n, sum(right_way)::DOUBLE AS r,
                    sum(promised)::DOUBLE AS p FROM pairs GROUP BY segment, "user"),
            parts AS (SELECT * FROM by_user JOIN edges USING (segment) WHERE items >= {least}),
            wholes AS (SELECT NULL AS segment, sum(n) AS n, sum(r) AS r, sum(p) AS p
                FROM by_user GROUP BY "user")
        SELECT segment, count(*), sum(n), sum(r), sum(p), sum(r * r), sum(r * n), sum(n * n),
            sum((r - p) * (r - p)), sum((r - p) * n)
        FROM (FROM wholes UNION ALL SELECT segment, n, r, p FROM parts) GROUP BY segment
        HAVING count(*) >= {_LEAST_USERS} ORDER BY segment NULLS FIRST"""  # noqa: S608  # numbers
    )
    return [_judge(segment, users, *map(float, sums)) for segment, users, *sums in rows]


def _judge(segment: Sequence[str] | None, users: int, *sums: float) -> _Within:
    """Judge the pairs of a segment: `sums` are those of the query above, over users."""
    pairs, right, promised, rr, rn, nn, dd, dn = sums
    off = right - promised
    spread = math.sqrt(Moments(users, right, pairs, rr, rn, nn).variance())
    gap = math.sqrt(Moments(users, off, pairs, dd, dn, nn).variance())
    share = right / pairs
    return _Within(
        segment,
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


CHECK: Final = Check(
    name="logged_scores",
    place=150,
    sentence="Logged scores tell positives from the rest, within lists too, and as probabilities"
    " are calibrated.",
    value="AUC, or the calibration error of probabilities",
    settings=Settings,
    run=check,
)
