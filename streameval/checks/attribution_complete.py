"""`attribution_complete`: feedback is credited, to rows that can have earned it.

The check asks for two things. Every feedback of a row points to one of its items, within the
attribution window after the impression. And little positive feedback found no impression: the
growth of the snapshot's event counters since the earlier one tells the share, which rises when
producers lose `request_id`s or impressions.
"""

from __future__ import annotations

from collections import Counter

from pydantic import Field

from streameval.checks.event_counts import grown
from streameval.checks.evidence import Evidence
from streameval.checks.result import CheckSettings, Found, failed, nothing, passed, percent


class Settings(CheckSettings):
    """The bound on feedback without an impression."""

    max_unattributed: float = Field(
        0.1, ge=0, le=1, description="Largest share of positive feedback without an impression."
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
    if evidence.snapshot is None:
        return passed(0, 0, f"all {feedback:,} feedback entries of {slates:,} slates are possible")
    counts = sum(grown(evidence.snapshot, evidence.earlier).values(), Counter())
    missed, expired = counts["unattributed.no_impression"], counts["unattributed.expired"]
    lost = missed + expired
    positive = counts["accepted.feedback"] - counts["ignored"]
    share = lost / positive if positive else 0.0
    what = (
        f"{percent(share)} of {positive:,} positive feedback events found no impression"
        f" ({missed:,} without one, {expired:,} too late)"
    )
    if share <= settings.max_unattributed:
        return passed(share, settings.max_unattributed, what)
    return failed(
        share,
        settings.max_unattributed,
        f"{what}: see whether producers send every impression, the same `request_id` and `item_id`"
        " with both, and whether `attribution_window` is long enough",
    )


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
