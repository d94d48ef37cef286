"""The charts of the report: title, explanation and, where it helps, a table of each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from html import escape
from itertools import pairwise
from statistics import NormalDist
from typing import Any, Final

from streameval.base.terminal import format_figure
from streameval.core.metrics import curve
from streameval.evaluation.answer import Figure
from streameval.evaluation.compared import Compared
from streameval.evaluation.report.curves import CUTOFFS, Band, Curve, Curves, segment_name
from streameval.evaluation.report.plots import Interval, chart, forest
from streameval.evaluation.sources import Source
from streameval.evaluation.sums import evaluate
from streameval.stats.cluster_sums import ClusterSums
from streameval.stats.experiments import Rules, Scored, compare_ratios


def table(head: str, rows: Sequence[str]) -> str:
    """A table from the cells of its head and of each row."""
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n{body}\n</table></div>'


def numbers(*cells: str) -> str:
    """Cells of a row that hold numbers."""
    return "".join(f'<td class="number">{cell}</td>' for cell in cells)


def bounds(figure: Figure) -> tuple[str, str]:
    """Return the two bounds of an interval as text."""
    return format_figure(figure.low), format_figure(figure.high)


BY_CUTOFF: Final = ("map", "mar", "ndcg", "hit_rate")
"""Figures that are drawn by cutoff, beside precision and recall."""

_AT_LEVELS: Final = {level: f"{curve.METRIC.name}@{level:.1f}" for level in curve.LEVELS}
"""The figure at each level of recall."""

SHARE: Final = "share with a positive"

ONE_LOOK: Final = NormalDist().inv_cdf(0.975)
"""Standard errors to either side of a 95 % interval of one look."""


def list_charts(source: Source, by: Sequence[str]) -> tuple[int, list[str]]:
    """Return the number of lists, and the charts of precision over recall."""
    at_cutoffs = [f"{name}@{k}" for k in CUTOFFS for name in ("precision", "recall")]
    at_cutoffs += [f"{name}@{k}" for k in CUTOFFS for name in BY_CUTOFF]
    names = [*at_cutoffs, *_AT_LEVELS.values()]
    evaluation = evaluate(source.read(lambda _: None), names, by)
    found = evaluation.figures()
    segments = {
        segment_name(segment): evaluation.figures(segment)
        for segment in (sorted(evaluation.segments) if by else ())
    }
    lines = segments or {"": found}
    cutoffs = by_cutoff(found, ("precision", "recall", *BY_CUTOFF), ("recall",), "lists")
    charts = [_precision_recall(lines), cutoffs, _draw_interpolated(found, lines)]
    return found[_AT_LEVELS[0.0]].n, charts


def by_cutoff(
    found: Mapping[str, Figure], names: Sequence[str], recalls: Sequence[str], mean_over: str
) -> str:
    """Draw the figures `names` at `CUTOFFS`, as far as one of `recalls` grows."""
    longest = max(map(partial(_longest, found), recalls))
    series: dict[str, Curve] = {
        name: [
            (k, value)
            for k in CUTOFFS
            if k <= longest and (value := found[f"{name}@{k}"].value) is not None
        ]
        for name in names
    }
    return draw(
        "by-cutoff",
        "Figures by cutoff",
        f"Mean over {mean_over} of each figure at the cutoffs {', '.join(map(str, CUTOFFS))}, as"
        " far as a further one finds anything.",
        series,
        x="cutoff",
        y=f"mean over {mean_over}",
    )


def _longest(found: Mapping[str, Figure], recall: str) -> int:
    """Return the last cutoff at which recall is more than at the one before, or the first."""
    recalls = [found[f"{recall}@{k}"].value or 0.0 for k in CUTOFFS]
    grows = [
        k for k, (one, other) in zip(CUTOFFS[1:], pairwise(recalls), strict=True) if one < other
    ]
    return max(grows, default=CUTOFFS[0])


def _draw_interpolated(
    found: Mapping[str, Figure], segments: Mapping[str, Mapping[str, Figure]]
) -> str:
    """Draw a line for each segment; the table is over all lists."""
    series: dict[str, Curve] = {
        segment: [
            (level, value)
            for level, name in _AT_LEVELS.items()
            if (value := figures[name].value) is not None
        ]
        for segment, figures in segments.items()
    }
    curve_drawn = draw(
        "interpolated",
        "Precision at recall",
        "At each level of recall the largest precision at any rank from where it is reached on, as"
        " the mean over lists: trec_eval's iprec_at_recall (version 10). A list that never reaches"
        " a level has 0 there. The table is over all lists.",
        series,
        x="recall",
        y="interpolated precision",
    )
    if not curve_drawn:
        return ""
    head = "".join(
        f'<th class="number">{name}</th>' for name in ("recall", "precision", "low", "high")
    )
    rows = [
        numbers(f"{level:.1f}", format_figure(found[name].value), *bounds(found[name]))
        for level, name in _AT_LEVELS.items()
    ]
    return curve_drawn.replace("</figure>", f"{table(head, rows)}</figure>")


def _precision_recall(segments: Mapping[str, Mapping[str, Figure]]) -> str:
    return draw(
        "precision-recall",
        "Precision and recall",
        f"Mean precision against mean recall at the cutoffs {', '.join(map(str, CUTOFFS))}, from"
        " left to right, as far as a further one finds anything. Precision divides by the cutoff"
        " also where a list is shorter.",
        {name: _over_recall(found) for name, found in segments.items()},
        x="recall",
        y="precision",
    )


def _over_recall(found: Mapping[str, Figure]) -> Curve:
    points: Curve = []
    for k in CUTOFFS:
        precision, recall = found[f"precision@{k}"].value, found[f"recall@{k}"].value
        # Beyond the longest list only the divisor grows.
        if precision is not None and recall is not None and recall > (points or [(0, 0)])[-1][0]:
            points.append((recall, precision))
    return points


def forest_chart(rows: Sequence[Compared]) -> str:
    """Return the differences as intervals below one another; "" where none has a value."""
    arms = sorted({row.arm for row in rows})
    intervals = []
    for row in rows:
        scored, control = row.scored, abs(row.scored.control_value or 0)
        if scored.difference is None or not control:
            continue
        share = 100 / control
        label = segment_name((row.metric, row.arm, *row.labels.values()))
        intervals.append(
            Interval(
                label,
                scored.difference * share,
                _scale(scored.low, scored.high, share),
                _scale(scored.once_low, scored.once_high, share),
                arms.index(row.arm),
            )
        )
    if not intervals:
        return ""
    title = "Differences from the control"
    explanation = (
        f"Differences from {rows[0].control}, as a share of its figure. The thin line bounds a"
        " difference at all looks together, the thick one at one look. Without a line there are"
        " too few users."
    )
    return _frame(title, explanation, forest("forest", intervals, "difference, %"))


def _scale(low: float | None, high: float | None, by: float) -> tuple[float, float] | None:
    return None if low is None or high is None else (low * by, high * by)


def _around(points: Curve, errors: Sequence[float]) -> Band:
    """Return 95 % bounds of shares for one look; NaN where there are none."""
    found = [(*point, ONE_LOOK * error) for point, error in zip(points, errors, strict=True)]
    return [(at, max(0, share - reach), share + reach) for at, share, reach in found]


def _differences_over_time(found: Curves, rows: Sequence[Compared]) -> str:
    """Draw the difference of each arm from the control, of all slates up to each step."""
    pairs = {(row.arm, row.control, tuple(row.labels.values())): None for row in rows}
    series: dict[str, Curve] = {}
    bands: dict[str, list[Band]] = {}
    for arm, control, labels in pairs:
        one, other = segment_name((arm, *labels)), segment_name((control, *labels))
        name = f"{one} − {other}"
        series[name], bands[name] = [], [[], []]
        for at, scored in compared_by_step(found.so_far.get(one, {}), found.so_far.get(other, {})):
            if scored.difference is None:
                continue
            series[name].append((at, scored.difference))
            ends = (scored.low, scored.high, scored.once_low, scored.once_high)
            # Without the wide band the narrow one would be taken for it.
            known = [math.nan if end is None or scored.low is None else end for end in ends]
            bands[name][0].append((at, known[0], known[1]))
            bands[name][1].append((at, known[2], known[3]))
    return draw(
        "time-differences",
        "Differences over time",
        f"Share of impressions with a positive less that of {rows[0].control if rows else ''}, of"
        " all slates up to the end of each step, clustered by user. The wide band bounds each"
        " difference at all looks together: decide by it when you watch. The narrow one holds at"
        " one look. Both begin where there are users enough.",
        series,
        x="time",
        y="difference",
        time_step=found.step,
        bands=bands,
        band_names=("all looks", "one look"),
        signed=True,
    )


def compared_by_step(
    one: Mapping[int, ClusterSums], other: Mapping[int, ClusterSums]
) -> Iterator[tuple[int, Scored]]:
    """Compare two arms at each step of either, from the first on at which both have slates."""
    here = there = None
    for at in sorted({*one, *other}):
        here, there = one.get(at, here), other.get(at, there)
        if here is not None and there is not None:
            yield at, compare_ratios(here, there, Rules())


def outcome_charts(
    found: Curves, by: Sequence[str], differences: Sequence[Compared] = ()
) -> list[str]:
    """The charts of outcome files."""
    minutes = found.step // 60_000
    step = f"{minutes // 60} h" if minutes >= 60 else f"{minutes} min"
    split = f" and {', '.join(by)}" if by else ""
    charts = [
        draw(
            "time",
            "Over time",
            f"Share of impressions with a positive, by the time (UTC) of the slate in steps of"
            f" {step}{split}. The band is the 95 % interval of one step, clustered by user. The"
            " line is interrupted at a step without impressions.",
            found.time,
            x="time",
            y=SHARE,
            time_step=found.step,
            bands={
                name: [_around(points, errors)]
                for (name, points), errors in zip(
                    found.time.items(), found.time_errors.values(), strict=True
                )
            },
        ),
        _differences_over_time(found, differences),
        draw(
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
        draw(
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
    return draw(
        "calibration",
        "Calibration",
        "Observed share of positives by mean score, in ten bins of the score. On the dotted line"
        " a score is the probability of a positive.",
        {"scores": points} if points else {},
        x="mean score",
        y=SHARE,
        diagonal=True,
    )


def draw(
    name: str,
    title: str,
    explanation: str,
    series: Mapping[str, Curve],
    **options: Any,
) -> str:
    """A chart with its title and explanation; "" where there is nothing to draw.

    `plots.chart` takes the `options`.
    """
    if not any(series.values()):
        return ""
    return _frame(title, explanation, chart(name, series, **options))


def _frame(title: str, explanation: str, svg: str) -> str:
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{escape(title)}" ', 1)
    return (
        f"<figure><h2>{escape(title)}</h2>\n{svg}"
        f"<figcaption>{escape(explanation)}</figcaption></figure>\n"
    )


def _note(title: str, text: str) -> str:
    return f'<div><h2>{escape(title)}</h2><p class="quiet">{escape(text)}</p></div>\n'
