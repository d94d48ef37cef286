"""R-precision: precision at R, where a perfect list has 1 and precision equals recall."""

from __future__ import annotations

from streameval.core.metrics.lists import NO_RELEVANT, Lists, Metric, Scores, ratio


def score(lists: Lists, k: int) -> Scores:  # noqa: ARG001 (the cutoff is each list's own R)
    """Return hits at rank <= R / R for each list."""
    hits = ((lists.ranks >= 1) & (lists.ranks <= lists.relevant[:, None])).sum(axis=1)
    return ratio(hits, lists.relevant)


METRIC = Metric(
    name="r_precision",
    formula="Mean over lists of relevant items at rank <= R divided by R, R being all relevant "
    "items",
    source="trec_eval Rprec",
    convention="the cutoff is each list's R",
    undefined=NO_RELEVANT,
    cutoff="none",
    score=score,
)
