"""Positives and scores in DuckDB's SQL, from outcome rows, to check the kernel's results.

The row of a metric has its formula in SQL beside its function, and the two share nothing. Positives
come from the rows' feedback and not from their gains, scores are rounded to nano-units half to
even, sums are integers.
"""

from __future__ import annotations

from streameval.base.limits import NANO
from streameval.core.definition import Definition
from streameval.core.metrics import RANKING
from streameval.files.table_scans import literal

_FORMULAS = {metric.name: metric.windowed.sql for metric in RANKING if metric.windowed}
METRICS = tuple(_FORMULAS)


def judge(definition: Definition, source: str) -> str:
    """Write a query that adds the columns `positive` and `relevant` to the rows of `source`.

    `positive`: the feedback that counts (the latest of an item and kind decides, at equal time the
    retraction), `relevant`: structs of rank and gain (gain > 0), in the order of rank.
    """
    gains = " ".join(
        f"WHEN {literal(kind)} THEN {definition.gain(kind)!r}::DOUBLE" for kind in definition.kinds
    )
    gain = f"CASE f.kind {gains} ELSE 0.0::DOUBLE END"
    return f"""
        SELECT *, list_filter(
            list_transform(ranks, lambda r, i: {{'rank': r::INTEGER, 'gain': coalesce(list_max(
                list_transform(
                    list_filter(positive, lambda f: f.item = i - 1), lambda f: {gain}
                )), 0.0::DOUBLE)}}),
            lambda x: x.gain > 0) AS relevant
        FROM (
            SELECT *, list_filter(feedback, lambda f: NOT f.retract AND len(list_filter(feedback,
                lambda g: g.retract AND g.item = f.item AND g.kind = f.kind AND g.delay >= f.delay
            )) = 0) AS positive
            FROM {source}
        )"""  # noqa: S608  # names and numbers of the definition, quoted


def positives(kind: str) -> str:
    """Count the items of a judged row that have a positive of `kind`."""
    chosen = f"list_filter(positive, lambda f: f.kind = {literal(kind)})"
    return f"len(list_distinct(list_transform({chosen}, lambda f: f.item)))"


def nano_score(metric: str, k: int, definition: Definition) -> str:
    """Compute the score of a judged row at k, in integer nano-units."""
    relevant = "relevant"
    if definition.ndcg_gain == "exponential":
        exponential = "{'rank': x.rank, 'gain': pow(2.0::DOUBLE, x.gain) - 1}"
        relevant = f"list_transform(relevant, lambda x: {exponential})"
    near = f"list_filter({relevant}, lambda x: x.rank <= {k})"
    formula = _FORMULAS[metric].format(relevant=relevant, near=near, k=k)
    score = f"CASE WHEN len({near}) = 0 THEN 0.0::DOUBLE ELSE least({formula}, 1.0::DOUBLE) END"
    return f"round_even({score} * {NANO}, 0)::BIGINT"
