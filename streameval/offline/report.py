"""The report: one HTML file with figures, charts and checks, that needs no network and no script.

Equal input gives equal bytes. It opens in light and dark, and prints.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files as resources
from pathlib import Path
from typing import Any, Final

from streameval import __version__
from streameval.core.errors import InputError
from streameval.offline.curves import Curve, Curves, curves
from streameval.offline.evaluate import Evaluation, Figure, evaluate
from streameval.offline.plots import chart
from streameval.offline.sources import Source

CUTS: Final = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50)
"""The cut-offs of the precision-recall curve."""

SHARE: Final = "share with a positive"
UNDEFINED: Final = "-"

_VERDICTS: Final = {
    True: ("passed", "passed"),
    False: ("failed", "failed"),
    None: ("quiet", "not checked"),
}
"""Class and word of what a check said."""


def write_report(path: Path, evaluation: Evaluation, source: Source, checks: Path | None) -> None:
    """Write the page; the files of `source` are scanned again for the charts.

    Raises `InputError` where something cannot be read or written.
    """
    results = _read_checks(checks) if checks is not None else []
    charts = [_precision_recall(source)]
    if source.outcomes:
        charts += _outcome_charts(curves(source.files, evaluation.by), evaluation.by)
    page = _page(evaluation, source, [text for text in charts if text], results)
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--report {path}: {error.strerror}") from error


def _page(
    evaluation: Evaluation,
    source: Source,
    charts: Sequence[str],
    results: Sequence[Mapping[str, Any]],
) -> str:
    style = (resources("streameval.offline") / "page.css").read_text(encoding="utf-8")
    names = ", ".join(Path(file).name for file in source.files[:3])
    more = f" and {len(source.files) - 3:,} more" if len(source.files) > 3 else ""
    lists = max((figure.n for figure in evaluation.figures().values()), default=0)
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>streameval report</title>
<style>
{style}</style>
<h1>Ranking figures</h1>
<p class="quiet">{lists:,} ranked lists from {escape(names)}{more} · streameval {__version__}</p>
<h2>Figures</h2>
<p>Each is a mean over lists. The interval is 95 %, clustered by user: the lists of one user are
not independent. It holds for one look; who watches figures until they differ will see them
differ by chance.</p>
{_figures(evaluation)}
{_checks(results)}
<h2>Charts</h2>
<div class="charts">
{"".join(charts)}</div>
<h2>Formulas</h2>
{_formulas(evaluation)}
</html>
"""


def _figures(evaluation: Evaluation) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in (*evaluation.by, "figure"))
    numbers = "".join(
        f'<th class="number">{name}</th>' for name in ("value", "low", "high", "lists")
    )
    rows = _rows(["all"] * len(evaluation.by), evaluation.figures())
    if evaluation.by:
        for segment in sorted(evaluation.segments):
            rows += _rows([value or UNDEFINED for value in segment], evaluation.figures(segment))
    return _table(head + numbers, rows)


def _rows(segment: Sequence[str], figures: Mapping[str, Figure]) -> list[str]:
    rows = []
    for name, figure in figures.items():
        words = "".join(f"<td>{escape(cell)}</td>" for cell in (*segment, name))
        values = (_shown(value) for value in (figure.value, figure.low, figure.high))
        numbers = "".join(f'<td class="number">{cell}</td>' for cell in (*values, f"{figure.n:,}"))
        rows.append(words + numbers)
    return rows


def _table(head: str, rows: Sequence[str]) -> str:
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n{body}\n</table></div>'


def _shown(value: float | None) -> str:
    return UNDEFINED if value is None else f"{value:.4f}"


def _formulas(evaluation: Evaluation) -> str:
    rows = []
    for metric in dict.fromkeys(asked.entry for asked in evaluation.asked):
        texts = (metric.name, metric.formula, metric.convention, metric.undefined, metric.source)
        rows.append("".join(f"<td>{escape(text)}</td>" for text in texts))
    names = ("figure", "formula", "convention", "undefined", "source")
    return _table("".join(f"<th>{name}</th>" for name in names), rows)


def _precision_recall(source: Source) -> str:
    names = [f"{name}@{k}" for k in CUTS for name in ("precision", "recall")]
    found = evaluate(source.read(lambda _: None), names).figures()
    points: Curve = []
    for k in CUTS:
        precision, recall = found[f"precision@{k}"].value, found[f"recall@{k}"].value
        # Beyond the longest list only the divisor grows.
        if precision is not None and recall is not None and recall > (points or [(0, 0)])[-1][0]:
            points.append((recall, precision))
    return _chart(
        "precision-recall",
        "Precision and recall",
        f"Mean precision against mean recall at the cuts {', '.join(map(str, CUTS))}, from left to"
        " right, as far as a further one finds anything. Precision divides by the cut also where"
        " a list is shorter.",
        {"": points},
        x="recall",
        y="precision",
    )


def _outcome_charts(found: Curves, by: Sequence[str]) -> list[str]:
    minutes = found.step // 60_000
    step = f"{minutes // 60} h" if minutes >= 60 else f"{minutes} min"
    split = f" and {', '.join(by)}" if by else ""
    charts = [
        _chart(
            "time",
            "Over time",
            f"Share of impressions with a positive, by the time (UTC) of the slate in steps of"
            f" {step}{split}. A list of few impressions moves a lot by chance.",
            found.time,
            x="time",
            y=SHARE,
            time=True,
        ),
        _chart(
            "rank",
            "By rank and by position",
            "Share of impressions with a positive, by rank in the list and by the position that"
            " was sent. It mixes what was better with what was seen first: it is not the effect of"
            " the place.",
            {
                name: points
                for name, points in (("rank", found.rank), ("position", found.position))
                if points
            },
            x="rank or position",
            y=SHARE,
        ),
        _chart(
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
            "Scores are logged, but not all within 0 and 1: they are no"
            " probabilities that could be compared with what happened.",
        )
    return _chart(
        "calibration",
        "Calibration",
        "Observed share of positives by mean score, in ten bins of the score. On the dotted line"
        " a score is the probability of a positive.",
        {"scores": points} if points else {},
        x="mean score",
        y=SHARE,
        diagonal=True,
    )


def _chart(
    name: str,
    title: str,
    explanation: str,
    series: Mapping[str, Curve],
    *,
    x: str,
    y: str,
    time: bool = False,
    diagonal: bool = False,
) -> str:
    """A chart with its title and explanation; "" where there is nothing to draw."""
    if not any(series.values()):
        return ""
    svg = chart(name, series, x=x, y=y, time=time, diagonal=diagonal)
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{escape(title)}" ', 1)
    return (
        f"<figure><h2>{escape(title)}</h2>\n{svg}"
        f"<figcaption>{escape(explanation)}</figcaption></figure>\n"
    )


def _note(title: str, text: str) -> str:
    return f'<div><h2>{escape(title)}</h2><p class="quiet">{escape(text)}</p></div>\n'


def _checks(results: Sequence[Mapping[str, Any]]) -> str:
    if not results:
        return ""
    rows = []
    for result in results:
        style, word = _VERDICTS[result["passed"]]
        rows.append(
            f"<td>{escape(str(result['name']))}</td>"
            f'<td class="{style}">{word}</td>'
            f"<td>{escape(str(result.get('severity', '')))}</td>"
            f"<td>{escape(str(result.get('message', '')))}</td>"
        )
    head = "".join(f"<th>{name}</th>" for name in ("check", "result", "severity", "what was found"))
    return f"<h2>Checks</h2>\n{_table(head, rows)}"


def _read_checks(path: Path) -> list[Mapping[str, Any]]:
    """The results of `streameval check --json`."""
    try:
        results = list(json.loads(path.read_text(encoding="utf-8"))["checks"])
        sound = all(result["name"] and result["passed"] in _VERDICTS for result in results)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(f"--checks {path}: {error}") from error
    if not sound:
        raise InputError(f"--checks {path}: not the results of `streameval check --json`")
    return results
