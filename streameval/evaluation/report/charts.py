"""The charts of the report: title, explanation and, where it helps, a table of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Final

from streameval.core.metrics import curve
from streameval.evaluation.answer import Figure
from streameval.evaluation.report.curves import Curve, Curves
from streameval.evaluation.report.markup import bounds, format_figure, numbers, table
from streameval.evaluation.report.plots import chart
from streameval.evaluation.sources import Source
from streameval.evaluation.sums import evaluate

CUTOFFS: Final = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50)
"""The cutoffs of the precision-recall curve."""

BY_CUTOFF: Final = ("map", "mar", "ndcg", "hit_rate")
"""Figures that are drawn by cutoff, beside precision and recall."""

SHARE: Final = "share with a positive"


def list_charts(source: Source) -> tuple[int, list[str]]:
    """Return the number of lists, and the charts of precision over recall."""
    at_cutoffs = [f"{name}@{k}" for k in CUTOFFS for name in ("precision", "recall")]
    at_cutoffs += [f"{name}@{k}" for k in CUTOFFS for name in BY_CUTOFF]
    at_levels = {level: f"{curve.METRIC.name}@{level:.1f}" for level in curve.LEVELS}
    found = evaluate(source.read(lambda _: None), [*at_cutoffs, *at_levels.values()]).figures()
    levels = {level: found[name] for level, name in at_levels.items()}
    charts = [_precision_recall(found), _by_cutoff(found), _interpolated(levels)]
    return levels[0.0].n, charts


def _by_cutoff(found: Mapping[str, Figure]) -> str:
    names = ("precision", "recall", *BY_CUTOFF)
    longest = _longest(found)
    series: dict[str, Curve] = {
        name: [
            (k, value)
            for k in CUTOFFS
            if k <= longest and (value := found[f"{name}@{k}"].value) is not None
        ]
        for name in names
    }
    return drawn(
        "by-cutoff",
        "Figures by cutoff",
        f"Mean over lists of each figure at the cutoffs {', '.join(map(str, CUTOFFS))}, as far as a"
        " further one finds anything.",
        series,
        x="cutoff",
        y="mean over lists",
    )


def _longest(found: Mapping[str, Figure]) -> int:
    """Return the last cutoff at which recall is more than at the one before, or the first."""
    recalls = [found[f"recall@{k}"].value or 0.0 for k in CUTOFFS]
    grows = [
        k for k, (one, other) in zip(CUTOFFS[1:], pairwise(recalls), strict=True) if one < other
    ]
    return max(grows, default=CUTOFFS[0])


def _interpolated(levels: Mapping[float, Figure]) -> str:
    points = [(level, figure.value) for level, figure in levels.items() if figure.value is not None]
    curve_drawn = drawn(
        "interpolated",
        "Precision at recall",
        "At each level of recall the largest precision at any rank from where it is reached on, as"
        " the mean over lists: trec_eval's iprec_at_recall (version 10). A list that never reaches"
        " a level has 0 there.",
        {"": points},
        x="recall",
        y="interpolated precision",
    )
    if not curve_drawn:
        return ""
    head = "".join(
        f'<th class="number">{name}</th>' for name in ("recall", "precision", "low", "high")
    )
    rows = [
        numbers(f"{level:.1f}", format_figure(figure.value), *bounds(figure))
        for level, figure in levels.items()
    ]
    return curve_drawn.replace("</figure>", f"{table(head, rows)}</figure>")


def _precision_recall(found: Mapping[str, Figure]) -> str:
    points: Curve = []
    for k in CUTOFFS:
        precision, recall = found[f"precision@{k}"].value, found[f"recall@{k}"].value
        # Beyond the longest list only the divisor grows.
        if precision is not None and recall is not None and recall > (points or [(0, 0)])[-1][0]:
            points.append((recall, precision))
    return drawn(
        "precision-recall",
        "Precision and recall",
        f"Mean precision against mean recall at the cutoffs {', '.join(map(str, CUTOFFS))}, from"
        " left to right, as far as a further one finds anything. Precision divides by the cutoff"
        " also where a list is shorter.",
        {"": points},
        x="recall",
        y="precision",
    )


def outcome_charts(found: Curves, by: Sequence[str]) -> list[str]:
    """The charts of outcome files."""
    minutes = found.step // 60_000
    step = f"{minutes // 60} h" if minutes >= 60 else f"{minutes} min"
    split = f" and {', '.join(by)}" if by else ""
    charts = [
        drawn(
            "time",
            "Over time",
            f"Share of impressions with a positive, by the time (UTC) of the slate in steps of"
            f" {step}{split}. A step of few impressions moves a lot by chance. The line is"
            " interrupted at a step without impressions.",
            found.time,
            x="time",
            y=SHARE,
            time_step=found.step,
        ),
        drawn(
            "rank",
            "By rank and by position",
            "Share of impressions with a positive, by rank in the list and by the position that"
            " was sent. Better items stand first and are also seen first: it is not the effect of"
            " the rank alone.",
            {
                name: points
                for name, points in (("rank", found.rank), ("position", found.position))
                if points
            },
            x="rank or position",
            y=SHARE,
        ),
        drawn(
            "tail",
            "Long tail",
            f"Share of all impressions and positives that goes to the most shown of the"
            f" {found.items:,} items that were shown at all. The further above the dotted line,"
            " the fewer items take it all.",
            {
                name: points
                for name, points in (
                    ("impressions", found.tail),
                    ("positives", found.tail_positives),
                )
                if points
            },
            x="share of items, most shown first",
            y="share",
            diagonal=True,
        ),
    ]
    return [*charts, _calibration(found.calibration)]


def _calibration(points: Curve | None) -> str:
    if points is None:
        return _note(
            "Calibration",
            "Scores are logged, but not all within 0 and 1: they cannot be"
            " compared with observed shares as probabilities can.",
        )
    return drawn(
        "calibration",
        "Calibration",
        "Observed share of positives by mean score, in ten bins of the score. On the dotted line"
        " a score is the probability of a positive.",
        {"scores": points} if points else {},
        x="mean score",
        y=SHARE,
        diagonal=True,
    )


def drawn(
    name: str,
    title: str,
    explanation: str,
    series: Mapping[str, Curve],
    *,
    x: str,
    y: str,
    time_step: int | None = None,
    diagonal: bool = False,
) -> str:
    """A chart with its title and explanation; "" where there is nothing to draw."""
    if not any(series.values()):
        return ""
    svg = chart(name, series, x=x, y=y, time_step=time_step, diagonal=diagonal)
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{escape(title)}" ', 1)
    return (
        f"<figure><h2>{escape(title)}</h2>\n{svg}"
        f"<figcaption>{escape(explanation)}</figcaption></figure>\n"
    )


def _note(title: str, text: str) -> str:
    return f'<div><h2>{escape(title)}</h2><p class="quiet">{escape(text)}</p></div>\n'
