"""The metrics: each file holds a family, with its whole meaning.

Families of ranked lists: `precision_recall`, `discounted_gain`, `average_precision`, `user_models`.
Others share data of their own, as `beyond_accuracy` and `rating_errors` do. `catalogue` orders all
of them, `entry` describes their rows, `inputs` their tables and parameters. `lists` holds the
shapes that ranking metrics share, and `scorer` applies the metrics of a window to the slates of a
stream.
"""

from streameval.core.metrics.catalogue import METRICS, RANKING
from streameval.core.metrics.entry import UNCUT, Entry, UnitMetric
from streameval.core.metrics.lists import Lists, MeanMetric, Metric, RelevantItems, Scores, nano
from streameval.core.metrics.means import (
    LIST_MEANS,
    MEAN_SECTIONS,
    MEANS,
    RATES,
    VALUE_MEANS,
    Section,
)
from streameval.core.metrics.scorer import Scorer, order_ranks

__all__ = [
    "LIST_MEANS",
    "MEANS",
    "MEAN_SECTIONS",
    "METRICS",
    "RANKING",
    "RATES",
    "UNCUT",
    "VALUE_MEANS",
    "Entry",
    "Lists",
    "MeanMetric",
    "Metric",
    "RelevantItems",
    "Scorer",
    "Scores",
    "Section",
    "UnitMetric",
    "nano",
    "order_ranks",
]
