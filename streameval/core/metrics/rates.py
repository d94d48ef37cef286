"""Means of a window that are no ranking metrics: rates, values, and the health of lists.

They need no kernel: sums of integers, divided when they are read (`figures`). Their formulas stand
here, where help, docs and Prometheus read the metrics.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rate:
    """The row of a metric: a mean over the window's count `weight`.

    `series` names it on the page where that takes another unit: `scale` times the figure.
    `is_share`: it is a mean of values in [0, 1], so its bounds lie there too.
    """

    name: str
    formula: str
    source: str
    weight: str
    series: str = ""
    scale: float = 1.0
    is_share: bool = False


POSITIVE_RATE = Rate(
    name="positive_rate",
    formula="Mean over users with an impression of their positives divided by their impressions",
    source="Gorse's documented online evaluation, (1/|U|) sum over u of |R^p_u| / |R^r_u|",
    weight="users",
    is_share=True,
)
POSITIVES_PER_IMPRESSION = Rate(
    name="positives_per_impression",
    formula="Positives divided by impressions, pooled over users",
    source="click-through rate",
    weight="impressions",
    is_share=True,
)
RATES = (POSITIVE_RATE, POSITIVES_PER_IMPRESSION)
"""The rates of feedback, one for each kind of positive."""

VALUE_MEANS = tuple(
    Rate(
        name=f"value_per_{unit}",
        formula=f"Values of the window, each user's sum capped, divided by {count}",
        source="revenue or watch time per unit; the cap as in Statsig's and Eppo's winsorization",
        weight=weight,
    )
    for unit, count, weight in (
        ("user", "users with an impression", "users"),
        ("slate", "slates with a request_id", "slates"),
        ("impression", "impressions", "impressions"),
        ("positive", "positives", "positives"),
    )
)
"""The means of values, one for each kind of positive that has values."""

LIST_MEANS = (
    Rate(
        name="empty_rate",
        formula="Slates that showed nothing divided by slates",
        source="zero-result rate of search",
        weight="slates",
        is_share=True,
    ),
    Rate(
        name="short_rate",
        formula="Slates with fewer items than the smallest k divided by slates",
        source="docs/rules.md",
        weight="slates",
        is_share=True,
    ),
    Rate(
        name="fallback_rate",
        formula="Slates that an event called a fallback divided by slates",
        source="docs/rules.md",
        weight="slates",
        is_share=True,
    ),
    Rate(
        name="abandonment_rate",
        formula="Slates without a positive divided by slates",
        source="abandonment of search: Li, Huffman and Tokuda, SIGIR 2009",
        weight="slates",
        is_share=True,
    ),
    Rate(
        name="mean_rank_of_positives",
        formula="Sum of the ranks of items with a positive divided by their number",
        source="mean position of clicks",
        weight="positive_items",
    ),
    Rate(
        name="top3_share",
        formula="Items with a positive at rank 3 or above divided by all of them",
        source="docs/rules.md",
        weight="positive_items",
        is_share=True,
    ),
    Rate(
        name="latency_ms_mean",
        formula="Mean time that it took to make the list of a slate, over slates with a latency",
        source="docs/rules.md",
        weight="slates_with_latency",
        series="latency_mean_seconds",
        scale=1e-3,
    ),
)
"""The health of lists: means over slates with a request_id, or over their positive items."""
