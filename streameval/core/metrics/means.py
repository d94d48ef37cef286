"""The means of a window: rates, ranking metrics, values, and the health of lists.

All but the ranking metrics need no kernel: sums of integers, divided when they are read
(`figures`). Their rows stand here, for help, docs, the page, Prometheus and the experiments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from streameval.base.limits import MILLI
from streameval.core.metrics.catalogue import RANKING


@dataclass(frozen=True, slots=True)
class Mean:
    """The row of a mean over the window's count `weight`.

    `total` is the count whose sum is divided, in 1/`per`, where the mean is of one sum.
    `series` names it on the page where that takes another unit: `scale` times the figure.
    `is_share`: it is a mean of values in [0, 1], so its bounds lie there too.
    """

    name: str
    formula: str
    source: str
    weight: str
    total: str = ""
    per: int = 1
    series: str = ""
    scale: float = 1.0
    is_share: bool = False
    lower_is_better: bool = False


POSITIVE_RATE = Mean(
    name="positive_rate",
    formula="Mean over users with an impression of their positives divided by their impressions",
    source="Gorse's documented online evaluation, (1/|U|) sum over u of |R^p_u| / |R^r_u|",
    weight="users",
    is_share=True,
)
POSITIVES_PER_IMPRESSION = Mean(
    name="positives_per_impression",
    formula="Positives divided by impressions, pooled over users",
    source="click-through rate",
    weight="impressions",
    is_share=True,
)
RATES = (POSITIVE_RATE, POSITIVES_PER_IMPRESSION)
"""The rates of feedback, one for each kind of positive."""

_RANKING_MEANS = tuple(
    Mean(one.name, one.formula, one.source, "slates", is_share=one.is_share) for one in RANKING
)
"""The ranking metrics, one for each k."""

VALUE_MEANS = tuple(
    Mean(
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
    Mean(
        name="empty_rate",
        formula="Slates that showed nothing divided by slates",
        source="zero-result rate of search",
        weight="slates",
        total="empty_slates",
        is_share=True,
        lower_is_better=True,
    ),
    Mean(
        name="short_rate",
        formula="Slates with fewer items than the smallest k divided by slates",
        source="docs/rules.md",
        weight="slates",
        total="short_slates",
        is_share=True,
        lower_is_better=True,
    ),
    Mean(
        name="fallback_rate",
        formula="Slates that an event called a fallback divided by slates",
        source="docs/rules.md",
        weight="slates",
        total="fallback_slates",
        is_share=True,
        lower_is_better=True,
    ),
    Mean(
        name="abandonment_rate",
        formula="Slates without a positive divided by slates",
        source="abandonment of search: Li, Huffman and Tokuda, SIGIR 2009",
        weight="slates",
        total="abandoned_slates",
        is_share=True,
        lower_is_better=True,
    ),
    Mean(
        name="mean_rank_of_positives",
        formula="Sum of the ranks of items with a positive divided by their number",
        source="mean position of clicks",
        weight="positive_items",
        total="ranks_of_positive_items",
        lower_is_better=True,
    ),
    Mean(
        name="top3_share",
        formula="Items with a positive at rank 3 or above divided by all of them",
        source="docs/rules.md",
        weight="positive_items",
        total="positive_items_on_top",
        is_share=True,
    ),
    Mean(
        name="latency_ms_mean",
        formula="Mean time that it took to make the list of a slate, over slates with a latency",
        source="docs/rules.md",
        weight="slates_with_latency",
        total="latency",
        per=MILLI,
        lower_is_better=True,
        series="latency_mean_seconds",
        scale=1e-3,
    ),
)
"""The health of lists: means over slates with a request_id, or over their positive items."""


class Count(NamedTuple):
    """A count in the rows of a section: `window_{name}` on the page, with or without the label."""

    name: str
    formula: str
    by_label: bool = False


class Section(NamedTuple):
    """A section of figures with means. Its rows have a `label` beside their segment, or "".

    Windows have one that is `optional` only if the definition has figures of this name.
    """

    name: str
    label: str
    counts: tuple[Count, ...]
    means: tuple[Mean, ...]
    optional: str = ""


MEAN_SECTIONS = (
    Section(
        "rates",
        "feedback",
        (
            Count("users", "Users with an impression in the window"),
            Count("impressions", "Impressions in the window"),
            Count("positives", "Positives in the window", by_label=True),
        ),
        RATES,
    ),
    Section(
        "ranking",
        "k",
        (
            Count("slates", "Slates with a request_id in the window"),
            Count(
                "slates_with_positive",
                "Slates with a request_id in the window that have a positive",
            ),
        ),
        _RANKING_MEANS,
    ),
    Section(
        "values",
        "feedback",
        (Count("value", "Sum of the values of the window, no cap", by_label=True),),
        VALUE_MEANS,
    ),
    Section(
        "lists",
        "",
        (
            Count("empty_slates", "Slates that showed nothing in the window"),
            Count("short_slates", "Slates with fewer items than the smallest k in the window"),
            Count("fallback_slates", "Slates of the window that an event called a fallback"),
            Count("abandoned_slates", "Slates without a positive in the window"),
            Count("slates_with_latency", "Slates of the window with a latency"),
            Count("positive_items", "Items with a positive in the slates of the window"),
        ),
        LIST_MEANS,
        optional="lists",
    ),
)
"""All sections with means, in the order in which pages show them."""

MEANS = {mean.name: mean for section in MEAN_SECTIONS for mean in section.means}
"""All means of a window, by name."""
