"""Charts of the report for any input: tail, coverage, ROC, scores by class, and daily rates.

Items of lists and rated pairs are one table. DuckDB scans it in bounded memory and adds up integers
only, so threads and the order of files do not change a bit; they are divided here, once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from streameval.core.metrics.inputs import ITEMS
from streameval.core.metrics.rating_thresholds import RULES, THRESHOLD
from streameval.evaluation.readers.daily_reads import DAY, FEEDBACK, read_figures
from streameval.evaluation.readers.item_tables import items_of
from streameval.evaluation.readers.outcomes import file_of_other_shape, files_of
from streameval.evaluation.readers.ranked_tables import (
    Tables,
    Ties,
    drop_repeats,
    load_ranked,
    order,
)
from streameval.evaluation.readers.rating_tables import load_pairs, rating_figures
from streameval.evaluation.report.charts import by_cutoff, draw
from streameval.evaluation.report.curves import CUTOFFS, Curve, open_outcomes, tails
from streameval.evaluation.request import (
    EXCLUDE_SEEN,
    FILES,
    LABELS,
    QRELS,
    RATINGS,
    RELEVANT,
    RUN,
    TIES,
    Given,
)
from streameval.evaluation.sums import Asked
from streameval.files.tables import connect

BINS: Final = 20
POINTS: Final = 50
"""Points of a ROC curve, at most about so many."""

_RATED: Final = frozenset({"ratings", "rated_items", "rated_pairs"})
_LABELLED: Final = "labelled_scores"
_LISTED: Final = frozenset(
    {"lists", "items", "judged_items", "scored_items", _LABELLED, "item_counts", "users"}
)
_OUTCOMES: Final = """
    CREATE VIEW placements AS SELECT item, rank, score, {relevant} AS relevant
    FROM (SELECT unnest(items) AS item, unnest(ranks) AS rank, unnest(scores) AS score,
        unnest(gains) AS gain FROM slates WHERE request NOTNULL)
"""
_RATINGS: Final = (
    "CREATE VIEW placements AS SELECT item, NULL::BIGINT AS rank, prediction AS score,"
    " {relevant} AS relevant FROM pairs"
)


@dataclass(frozen=True, slots=True)
class PlacementCurves:
    """Curves of placements; an empty one has nothing to show.

    `tail`: share of placements by share of the `items`, most placed first. `coverage`: distinct
    items by cutoff, as a share of `known_items` where the catalogue was given. `roc`: share of the
    relevant placements by share of the others, from the highest score on, and its area `auc`.
    `separation`: share of the relevant placements, and of the others, by bin of the score.
    """

    items: int
    tail: Curve
    coverage: Curve
    known_items: int | None
    roc: Curve
    auc: float | None
    separation: dict[str, Curve]


def placement_curves(given: Given, kinds: Collection[str]) -> tuple[PlacementCurves, bool] | None:
    """Scan the files that were given; also tell whether they are outcome files.

    `kinds` of input that were asked for say which. None without any. Raises `InputError`.
    """
    with _placements(given, kinds) as found:
        if found is None:
            return None
        connection, outcomes = found
        known = len(items_of(given[ITEMS])) if given[ITEMS] else None
        by_item = "SELECT item, count(*) AS times FROM placements GROUP BY item"
        items, (tail,) = tails(connection, by_item, ("times",))
        roc, auc = _roc(connection)
        curves = PlacementCurves(
            items=items,
            tail=tail,
            coverage=_coverage_curve(connection, known),
            known_items=known,
            roc=roc,
            auc=auc,
            separation=_separation(connection),
        )
        return curves, outcomes


@contextmanager
def _placements(given: Given, kinds: Collection[str]) -> Iterator[tuple[Any, bool] | None]:
    """Open a DuckDB with the view `placements`: item, rank, score, relevant; null is unknown."""
    with connect(*given.all_files()) as connection:
        of_ratings = _LABELLED in kinds and not given[FILES]
        if of_ratings or not _RATED.isdisjoint(kinds):
            load_pairs(connection, given, _no_progress)
            threshold = given.value(THRESHOLD)
            relevant = _is_relevant(given, "rating") if of_ratings else "NULL"
            if threshold is not None:
                relevant = f"rating > {float(threshold)!r}"
            connection.execute(_RATINGS.format(relevant=relevant))
            yield connection, False
        elif not _LISTED.isdisjoint(kinds):
            outcomes = _are_outcomes(given)
            _read_outcomes(connection, given) if outcomes else _read_slates(connection, given)
            yield connection, outcomes
        else:
            yield None


def _no_progress(_: int) -> None:
    """Say nothing: the bar has passed these files already."""


def _are_outcomes(given: Given) -> bool:
    return bool(given[FILES]) and file_of_other_shape(files_of(given[FILES])) is None


def _read_outcomes(connection: Any, given: Given) -> None:
    open_outcomes(connection, files_of(given[FILES]))
    connection.execute(_OUTCOMES.format(relevant=_is_relevant(given)))


def _is_relevant(given: Given, gain: str = "gain") -> str:
    """Return the condition on a gain that makes an item relevant."""
    level = given.value(RELEVANT)
    return f"{gain} > 0" if level is None else f"{gain} >= {float(level)!r}"


def _read_slates(connection: Any, given: Given) -> None:
    run, qrels = given.file(RUN), given.file(QRELS)
    ties: Ties = given.value(TIES) or ("input" if run is None else "trec")
    tables = Tables(
        [run] if run is not None else files_of(given[FILES]),
        [qrels] if qrels is not None else files_of(given[LABELS]),
        "tables" if run is None else "trec",
        ties=ties,
        seen=given[EXCLUDE_SEEN],
    )
    load_ranked(connection, tables, _no_progress, [])
    drop_repeats(connection, ties)
    labelled = f"SELECT (list, item) FROM labels WHERE {_is_relevant(given)}"  # noqa: S608  # ours
    relevant = f"(list, item) IN ({labelled})" if tables.labels else "NULL"
    connection.execute(f"""
        CREATE TABLE placements AS WITH {order(ties)}
        SELECT item, rank, score, {relevant} AS relevant FROM ranked
    """)  # noqa: S608  # our own words


def _coverage_curve(connection: Any, known: int | None) -> Curve:
    rows = connection.execute(
        "SELECT best, count(*) FROM (SELECT min(rank) AS best FROM placements WHERE rank NOTNULL"
        " GROUP BY item) GROUP BY best ORDER BY best"
    ).fetchall()
    if not rows:
        return []
    within = [(k, sum(count for best, count in rows if best <= k)) for k in CUTOFFS]
    longest = next((k for k in CUTOFFS if k >= rows[-1][0]), CUTOFFS[-1])
    return [(k, count / known if known else count) for k, count in within if k <= longest]


def _roc(connection: Any) -> tuple[Curve, float | None]:
    """Return the curve at about `POINTS` scores, and the exact area under all of it."""
    connection.execute("""
        CREATE TABLE by_score AS
        SELECT score, relevant_here, others_here,
            sum(relevant_here) OVER above AS relevant, sum(others_here) OVER above AS others
        FROM (SELECT score, count(*) FILTER (relevant) AS relevant_here,
            count(*) FILTER (NOT relevant) AS others_here FROM placements
            WHERE score NOTNULL AND isfinite(score) AND relevant NOTNULL GROUP BY score)
        WINDOW above AS (ORDER BY score DESC)
    """)
    ((relevant, others, twice),) = connection.execute(
        "SELECT max(relevant), max(others),"
        " sum((2 * relevant - relevant_here)::HUGEINT * others_here) FROM by_score"
    ).fetchall()
    if not relevant or not others:
        return [], None
    rows = connection.execute(f"""
        SELECT max(others), max(relevant) FROM by_score
        GROUP BY ((others + relevant) * {POINTS}) // {relevant + others} ORDER BY 1, 2
    """).fetchall()  # noqa: S608  # our own numbers
    curve = [(0.0, 0.0), *((x / others, y / relevant) for x, y in rows)]
    return curve, int(twice) / (2 * int(relevant) * int(others))


def _separation(connection: Any) -> dict[str, Curve]:
    """Return the share of relevant and other placements in each of `BINS` of the score."""
    scored = "FROM placements WHERE score NOTNULL AND isfinite(score)"
    low, high = connection.execute(f"SELECT min(score), max(score) {scored}").fetchone()
    if low is None or not high > low:
        return {}
    rows = connection.execute(f"""
        SELECT least(floor((score - {low!r}) / {(high - low)!r} * {BINS}), {BINS - 1})::INT AS bin,
            CASE WHEN relevant THEN 'relevant' WHEN relevant IS NULL THEN 'all' ELSE 'others' END,
            count(*)
        {scored} GROUP BY ALL ORDER BY ALL
    """).fetchall()  # our own numbers
    width = (high - low) / BINS
    found: dict[str, Curve] = {}
    for name in ("relevant", "others", "all"):
        counts = {number: count for number, of, count in rows if of == name}
        whole = sum(counts.values())
        if whole:
            found[name] = [(low + (n + 0.5) * width, counts.get(n, 0) / whole) for n in range(BINS)]
    return found


_DAY_MS: Final = 86_400_000


def more_charts(given: Given, asked: Sequence[Asked]) -> list[str]:
    """Return the charts of the files that were given and of the figures that were asked for."""
    kinds = {figure.entry.input_kind for figure in asked}
    charts = []
    if found := placement_curves(given, kinds):
        curves, outcomes = found
        charts = _of_placements(curves, rated=bool(given[RATINGS]), with_tail=not outcomes)
    if given[RATINGS] and given.value(THRESHOLD) is not None:
        charts.append(_at_threshold(given, asked))
    reads = [figure for figure in asked if figure.entry.input_kind == "reads"]
    return [*charts, *([_daily(given, reads)] if reads else [])]


def _of_placements(found: PlacementCurves, *, rated: bool, with_tail: bool) -> list[str]:
    what = "ratings" if rated else "places in lists"
    score = "prediction" if rated else "score"
    area = "" if found.auc is None else f" The area under the curve is {found.auc:.4f}."
    tail = draw(
        "long-tail",
        f"Long tail of {what}",
        f"Share of all {what} that goes to the most frequent of {found.items:,} items. The further"
        " above the dotted line, the fewer items take it all.",
        {"": found.tail},
        x="share of items, most frequent first",
        y=f"share of {what}",
        diagonal=True,
    )
    return [
        tail if with_tail else "",
        _coverage(found),
        draw(
            "roc",
            "ROC",
            f"Share of relevant items with a {score} of at least a threshold, against the same"
            " share of the others, from the highest threshold on, over all lists and users at once."
            f" On the dotted line a {score} says nothing.{area}",
            {"": found.roc},
            x="share of others",
            y="share of relevant items",
            diagonal=True,
        ),
        draw(
            "separation",
            "Scores by class" if "others" in found.separation else "Scores",
            f"Share of the items of each class in bins of the {score}. The less the lines overlap,"
            " the better it tells relevant items from others.",
            found.separation,
            x=score,
            y="share of the class",
        ),
    ]


def _coverage(found: PlacementCurves) -> str:
    known = found.known_items
    what = "Share of the catalogue" if known else "Number of distinct items"
    return draw(
        "coverage",
        "Coverage",
        f"{what} that stands at the first ranks of any list, at the cutoffs"
        f" {', '.join(map(str, CUTOFFS))}, as far as a further one adds an item.",
        {"": found.coverage},
        x="cutoff",
        y="share of the catalogue" if known else "distinct items",
    )


def _at_threshold(given: Given, asked: Sequence[Asked]) -> str:
    """Draw figures at the threshold by cutoff, under the rules that were asked for."""
    names = {figure.entry.name for figure in asked}
    rules = [
        [f"{share}_threshold{rule.suffix}" for share in ("precision", "recall", "f1")]
        for rule in RULES
    ]
    rules = [rule for rule in rules if not names.isdisjoint(rule)] or rules[:1]
    chosen = [name for rule in rules for name in rule]
    figures = [Asked.parse(f"{name}@{k}", given.values) for name in chosen for k in CUTOFFS]
    found = rating_figures(replace(given, against=None, per_list=False), figures, lambda _: None)
    return by_cutoff(found.figures, chosen, [recall for _, recall, _ in rules], "users")


def _daily(given: Given, asked: Sequence[Asked]) -> str:
    """Draw the daily rate, of each kind where the run is split by it. The files are read again."""
    by = (DAY, FEEDBACK) if FEEDBACK in given.by else (DAY,)
    split = replace(given, by=by, against=None, per_list=False)
    segments = read_figures(split, asked, lambda _: None).segments
    series: dict[str, Curve] = {}
    for (day, *kind), figures in segments.items():
        at = datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() * 1000
        for name, figure in figures.items():
            if figure.value is not None:
                series.setdefault(" · ".join([name, *kind]), []).append((at, figure.value))
    return draw(
        "daily",
        "Positive rate by day",
        "Mean over the users of a day (UTC) of the share of positives among what they read. The"
        " line is interrupted at a day without reads.",
        series,
        x="day",
        y="positive rate",
        time_step=_DAY_MS,
    )
