"""F-beta at k, list by list: the weighted harmonic mean of precision and recall, then averaged.

`(1 + b²) PR / (b² P + R)` is `(1 + b²) hits / (b² R + k)`, one division. A beta above 1 makes
recall count more, one below 1 precision; with 1 it is `f1_user`.
"""

from __future__ import annotations

import numpy as np

from streameval.core.metrics.inputs import Number
from streameval.core.metrics.lists import NO_RELEVANT, Lists, Metric, Scores, ratio

BETA = Number(
    name="beta",
    meaning="how many times recall counts as much as precision in f_beta_user",
    default=2.0,  # the usual choice beside 1 (van Rijsbergen's F2)
    above=0.0,
)


def score(lists: Lists, k: int, beta: float = BETA.default) -> Scores:
    """Return (1 + beta²) hits / (beta² R + k) for each list."""
    square = np.float64(beta * beta)
    return ratio((1.0 + square) * lists.hits(k), square * lists.relevant + k)


METRIC = Metric(
    name="f_beta_user",
    formula="Mean over lists of (1 + beta²) PR / (beta² P + R), P and R being precision and recall "
    "at k",
    source="van Rijsbergen 1979; scikit-learn fbeta_score; RecTools F1Beta",
    convention="beta {beta:g}; harmonic mean within each list",
    undefined=NO_RELEVANT,
    cutoff="required",
    parameters=(BETA,),
    score=score,
)
