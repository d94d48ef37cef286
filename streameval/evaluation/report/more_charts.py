"""Charts of the report for any input: tail, coverage, ROC, scores by class, and daily rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from streameval.core.metrics.rating_thresholds import RULES, THRESHOLD
from streameval.evaluation.readers.daily_reads import DAY, FEEDBACK, read_figures
from streameval.evaluation.readers.rating_tables import rating_figures
from streameval.evaluation.report.charts import by_cutoff, draw
from streameval.evaluation.report.curves import CUTOFFS, Curve
from streameval.evaluation.report.placements import PlacementCurves, placement_curves
from streameval.evaluation.request import RATINGS, Given
from streameval.evaluation.sums import Asked

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
