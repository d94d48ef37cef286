"""`attribution_complete`: feedback is credited, to rows that can have earned it.

The check asks for two things. Every feedback of a row points to one of its items, within the
attribution window after the impression. And little positive feedback found no impression: the
growth of the snapshot's event counters since the earlier one tells the share, and the earlier one
what it was before. It rises when producers lose `request_id`s or impressions.

Feedback that is lost on the way leaves no trace, and a worse ranker has less of it too. But nobody
takes back what they did not give: a retraction alone shows that its feedback was lost.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from pydantic import Field

from streameval.base.counts import count_of
from streameval.checks.evidence import Evidence, counts_by_partition, growth
from streameval.checks.result import Check, CheckSettings, Found, failed, nothing, passed, percent
from streameval.stats.chance import chance_of_split

# Chance of a false alarm of an arm, or of a rise, by Fisher's exact test.
_CHANCE: Final = 1e-5
_RETRACTIONS: Final = """
    SELECT arm, count(*), coalesce(sum((len(list_filter(feedback, lambda g: NOT g.retract
        AND g.item = f.item AND g.kind = f.kind AND g.delay <= f.delay)) = 0)::INTEGER), 0)::BIGINT
    FROM (SELECT arm, feedback, unnest(list_filter(feedback, lambda f: f.retract)) AS f
        FROM {source}) GROUP BY arm ORDER BY arm"""


class Settings(CheckSettings):
    """The bound on feedback without an impression."""

    max_unattributed: float = Field(
        0.1, ge=0, le=1, description="Largest share of positive feedback without an impression."
    )
    max_rise: float = Field(
        0.05,
        ge=0,
        le=1,
        description="Largest rise of this share over the one before the earlier snapshot.",
    )
    max_alone: float = Field(
        0.1,
        gt=0,
        le=1,
        description="Largest share of retractions without the feedback that they take back, beyond"
        " the share of the other values of `arm` and of the reference.",
    )


def check(evidence: Evidence, settings: Settings) -> Found:
    """Check the rows first: wrong rows make every share meaningless."""
    slates, feedback, wrong = _rows(evidence)
    if not slates:
        return nothing("no outcome row was found")
    if wrong:
        return failed(
            wrong,
            0,
            f"{wrong:,} of {feedback:,} feedback entries are impossible: before their "
            f"item's impression, later than the attribution window, or of no item in its row. The "
            "files were changed, or written under another definition",
        )
    if (alone := _lost(evidence, settings)) is not None:
        return alone
    if evidence.snapshot is None:
        what = f"all {feedback:,} feedback entries of {count_of(slates, 'slate')} are possible"
        return passed(0, 0, what)
    counts = sum(growth(evidence.snapshot, evidence.earlier).values(), Counter())
    positive, missed, expired = _unattributed(counts)
    lost = missed + expired
    share, bound = lost / positive if positive else 0.0, settings.max_unattributed
    what = (
        f"{percent(share)} of {positive:,} positive feedback events found no impression"
        f" ({missed:,} without one, {expired:,} too late)"
    )
    before = {} if evidence.earlier is None else counts_by_partition(evidence.earlier)
    of, *parts = _unattributed(sum(before.values(), Counter()))
    known = sum(parts)
    if of and chance_of_split(lost, lost + known, positive, positive + of) <= _CHANCE:
        bound = min(bound, known / of + settings.max_rise)
        what += f", before the earlier snapshot {percent(known / of)}"
    if share <= bound:
        return passed(share, bound, what)
    return failed(
        share,
        bound,
        f"{what}: see whether producers send every impression, the same `request_id` and `item_id`"
        " with both, and whether `attribution_window` is long enough",
    )


def _unattributed(counts: Counter[str]) -> tuple[int, int, int]:
    """Count positive feedback, and of it what had no impression, and what came too late."""
    missed, expired = counts["unattributed.no_impression"], counts["unattributed.expired"]
    return counts["accepted.feedback"] - counts["ignored"], missed, expired


def _lost(evidence: Evidence, settings: Settings) -> Found | None:
    """Return a failure where retractions of an arm, or of all, lack their feedback."""
    now = {arm: (n, x) for arm, n, x in evidence.rows(_RETRACTIONS.format(source="current"))}
    before = [(0, 0)]
    if evidence.has_reference:
        before += [row[1:] for row in evidence.rows(_RETRACTIONS.format(source="reference"))]
    sides = [(f"{evidence.arm} {arm!r}", [arm]) for arm in now] if evidence.arm else []
    found = []
    for side, arms in [("all traffic", list(now)), *sides]:
        mine = [counts for arm, counts in now.items() if arm in arms] or [(0, 0)]
        rest = [counts for arm, counts in now.items() if arm not in arms] + before
        (n, x), (others, y) = (map(sum, zip(*part, strict=True)) for part in (mine, rest))
        apart = x / n - y / others if n and others else 0.0
        if apart > settings.max_alone and chance_of_split(x, x + y, n, n + others) <= _CHANCE:
            said = (
                f"{side}: {x:,} of {n:,} retractions take back feedback that is in no row,"
                f" elsewhere {y:,} of {others:,}. About {percent(apart)} of its feedback was lost:"
                " see the clients and services that send it"
            )
            found.append((apart, said))
    if not found:
        return None
    apart, said = max(found)
    return failed(apart, settings.max_alone, said)


def _rows(evidence: Evidence) -> tuple[int, int, int]:
    """Count slates, feedback entries, and impossible entries."""
    bound = evidence.definition.attribution_window
    slates, feedback, wrong = evidence.row(
        f"""SELECT count(*), sum(len(feedback)), sum(len(list_filter(feedback, lambda f:
                f.item < 0 OR f.item >= len(items) OR f.delay > {bound}
                OR ms + f.delay < coalesce(shown[f.item + 1], 0))))
            FROM current"""  # noqa: S608  # a number
    )
    return slates, int(feedback or 0), int(wrong or 0)


CHECK: Final = Check(
    name="attribution_complete",
    place=60,
    sentence="Feedback is credited to impressions that can have earned it, and little finds none.",
    value="share of positive feedback without an impression",
    settings=Settings,
    run=check,
)
