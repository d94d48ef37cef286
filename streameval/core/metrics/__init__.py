"""The catalogue of metrics: one metric is one file, with its whole meaning in it.

`catalogue` orders them, `lists` holds the shapes they share, `scorer` applies all of them to the
slates of a stream.
"""

from streameval.core.metrics.catalogue import CATALOGUE, RANKING, RATES
from streameval.core.metrics.lists import Lists, Metric, Row, Scores, nano
from streameval.core.metrics.rates import Rate
from streameval.core.metrics.scorer import Scorer, order_ranks

__all__ = [
    "CATALOGUE",
    "RANKING",
    "RATES",
    "Lists",
    "Metric",
    "Rate",
    "Row",
    "Scorer",
    "Scores",
    "nano",
    "order_ranks",
]
