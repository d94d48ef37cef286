"""The metrics' formulas in DuckDB's SQL, from outcome rows, to check the kernel's results.

`core.metrics` shares only the definition and the names: positives come from the rows' feedback and
not from their gains, scores are rounded to nano-units half to even, sums are integers.
"""

from __future__ import annotations

from streameval.base.limits import NANO
from streameval.core.definition import Definition
from streameval.core.metrics import RANKING
from streameval.files.table_scans import literal

METRICS = tuple(metric.name for metric in RANKING)


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
    near = f"list_filter(relevant, lambda x: x.rank <= {k})"
    gain = "{}"
    if definition.ndcg_gain == "exponential":
        gain = "(pow(2.0::DOUBLE, {}) - 1)"
    formula = {
        "precision": f"len({near})::DOUBLE / {k}",
        "recall": f"len({near})::DOUBLE / len(relevant)",
        "ndcg": f"list_sum(list_transform({near}, "
        f"lambda x: {gain.format('x.gain')} / log2(x.rank + 1)))"
        " / list_sum(list_transform(list_reverse_sort("
        f"list_transform(relevant, lambda x: x.gain))[:{k}], "
        f"lambda g, i: {gain.format('g')} / log2(i + 1)))",
        "map": f"list_sum(list_transform({near}, lambda x, i: i::DOUBLE / x.rank)) / len(relevant)",
        "mrr": f"1.0::DOUBLE / ({near})[1].rank",
        "hit_rate": f"(len({near}) > 0)::INTEGER::DOUBLE",
    }[metric]
    score = f"CASE WHEN len({near}) = 0 THEN 0.0::DOUBLE ELSE least({formula}, 1.0::DOUBLE) END"
    return f"round_even({score} * {NANO}, 0)::BIGINT"
