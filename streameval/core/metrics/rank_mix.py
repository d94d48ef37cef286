"""Positives over expected positives: arms whose lists differ in length, compared rank by rank."""

from __future__ import annotations

from streameval.core.metrics.entry import Entry

METRIC = Entry(
    input_kind="ranked_arms",
    name="positives_over_expected",
    formula="The sum of relevant items divided by the sum over ranks r of impressions at r times "
    "the control's share of relevant items at r",
    source="Zhang and Jones 2007, clicks over expected clicks",
    convention="ranks 1 to 20 each, and 21+; ranks that the control lacks are left out; the "
    "control has 1",
    undefined="absent over all arms, and where nothing relevant is to be expected",
    cutoff="none",
)
"""The row of the metric; `stats.rank_mix` computes it."""
