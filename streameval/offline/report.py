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
from streameval.core.metrics import curve
from streameval.offline import places
from streameval.offline.answer import Answer, Figure
from streameval.offline.curves import Curve, Curves, curves
from streameval.offline.evaluate import evaluate
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


def write_report(
    path: Path, answer: Answer, files: Sequence[str], source: Source | None, checks: Path | None
) -> None:
    """Write the page; the files of `source` are scanned again for the charts of ranked lists.

    Raises `InputError` where something cannot be read or written.
    """
    results = _read_checks(checks) if checks is not None else []
    lists, charts = 0, list[str]()
    if source is not None:
        lists, charts = _list_charts(source)
    if source is not None and source.outcomes:
        charts += _outcome_charts(curves(source.files, answer.by), answer.by)
    about = f"{lists:,} ranked lists from " if source is not None else ""
    page = _page(answer, about + _names(files), [text for text in charts if text], results)
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--report {path}: {error.strerror}") from error


def _names(files: Sequence[str]) -> str:
    names = ", ".join(Path(places.shown(file)).name for file in files[:3])
    return names + (f" and {len(files) - 3:,} more" if len(files) > 3 else "")


def _page(
    answer: Answer, about: str, charts: Sequence[str], results: Sequence[Mapping[str, Any]]
) -> str:
    style = (resources("streameval.offline") / "page.css").read_text(encoding="utf-8")
    shown = f'<h2>Charts</h2>\n<div class="charts">\n{"".join(charts)}</div>\n' if charts else ""
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>streameval report</title>
<style>
{style}</style>
<h1>Offline figures</h1>
<p class="quiet">{escape(about)} · streameval {__version__}</p>
<h2>Figures</h2>
<p>n counts the lists (users, pairs, items) that have a value. The interval is 95 %, clustered by
user: the lists of one user are not independent. It holds for one look; who watches figures until
they differ will see them differ by chance.</p>
{_figures(answer)}
{_notes(answer)}{_checks(results)}
{shown}<h2>Formulas</h2>
{_formulas(answer)}
</html>
"""


def _figures(answer: Answer) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in (*answer.by, "figure"))
    numbers = "".join(f'<th class="number">{name}</th>' for name in ("value", "low", "high", "n"))
    rows = _rows(["all"] * len(answer.by), answer.figures)
    for segment, figures in answer.segments.items():
        rows += _rows([value or UNDEFINED for value in segment], figures)
    return _table(head + numbers, rows)


def _notes(answer: Answer) -> str:
    return "".join(f"<p>{escape(note.text)}</p>\n" for note in answer.notes)


def _rows(segment: Sequence[str], figures: Mapping[str, Figure]) -> list[str]:
    return [
        "".join(f"<td>{escape(cell)}</td>" for cell in (*segment, name))
        + _numbers(_shown(figure.value), *_bounds(figure), f"{figure.n:,}")
        for name, figure in figures.items()
    ]


def _bounds(figure: Figure) -> tuple[str, str]:
    return _shown(figure.low), _shown(figure.high)


def _numbers(*cells: str) -> str:
    return "".join(f'<td class="number">{cell}</td>' for cell in cells)


def _table(head: str, rows: Sequence[str]) -> str:
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n{body}\n</table></div>'


def _shown(value: float | None) -> str:
    return UNDEFINED if value is None else f"{value:.4f}"


def _formulas(answer: Answer) -> str:
    rows = []
    for metric in answer.entries:
        texts = (metric.name, metric.formula, metric.convention, metric.undefined, metric.source)
        rows.append("".join(f"<td>{escape(text)}</td>" for text in texts))
    names = ("figure", "formula", "convention", "undefined", "source")
    return _table("".join(f"<th>{name}</th>" for name in names), rows)


def _list_charts(source: Source) -> tuple[int, list[str]]:
    """How many lists there are, and the charts of precision over recall."""
    at_cuts = [f"{name}@{k}" for k in CUTS for name in ("precision", "recall")]
    at_levels = {level: f"{curve.METRIC.name}@{level:.1f}" for level in curve.LEVELS}
    found = evaluate(source.read(lambda _: None), [*at_cuts, *at_levels.values()]).figures()
    levels = {level: found[name] for level, name in at_levels.items()}
    return levels[0.0].n, [_precision_recall(found), _interpolated(levels)]


def _interpolated(levels: Mapping[float, Figure]) -> str:
    points = [(level, figure.value) for level, figure in levels.items() if figure.value is not None]
    shown = _chart(
        "interpolated",
        "Precision at recall",
        "At each level of recall the largest precision at any rank from where it is reached on, as"
        " the mean over lists: trec_eval's iprec_at_recall (version 10). A list that never reaches"
        " a level has 0 there.",
        {"": points},
        x="recall",
        y="interpolated precision",
    )
    if not shown:
        return ""
    head = "".join(
        f'<th class="number">{name}</th>' for name in ("recall", "precision", "low", "high")
    )
    rows = [
        _numbers(f"{level:.1f}", _shown(figure.value), *_bounds(figure))
        for level, figure in levels.items()
    ]
    return shown.replace("</figure>", f"{_table(head, rows)}</figure>")


def _precision_recall(found: Mapping[str, Figure]) -> str:
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
