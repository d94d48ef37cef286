"""The catalogue of metrics: one metric is one file, with its whole meaning in it.

`catalogue` orders them, `entry` says what each of them states, `lists` holds the shapes they
share, `scorer` applies those of a window to the slates of a stream.
"""

from streameval.core.metrics.catalogue import CATALOGUE, RANKING, RATES
from streameval.core.metrics.entry import UNCUT, Entry, UnitMetric
from streameval.core.metrics.lists import Lists, MeanMetric, Metric, Row, Scores, nano
from streameval.core.metrics.rates import Rate
from streameval.core.metrics.scorer import Scorer, order_ranks

__all__ = [
    "CATALOGUE",
    "RANKING",
    "RATES",
    "UNCUT",
    "Entry",
    "Lists",
    "MeanMetric",
    "Metric",
    "Rate",
    "Row",
    "Scorer",
    "Scores",
    "UnitMetric",
    "nano",
    "order_ranks",
]
