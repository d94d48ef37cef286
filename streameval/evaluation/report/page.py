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
from streameval.base.counts import count_of
from streameval.base.errors import InputError
from streameval.base.terminal import UNDEFINED, format_figure
from streameval.evaluation.answer import Answer, Figure
from streameval.evaluation.compared import Compared
from streameval.evaluation.report.charts import (
    bounds,
    forest_chart,
    list_charts,
    numbers,
    outcome_charts,
    table,
)
from streameval.evaluation.report.curves import curves
from streameval.evaluation.sources import Source
from streameval.files import locations

_VERDICTS: Final = {
    True: ("passed", "passed"),
    False: ("failed", "failed"),
    None: ("quiet", "not checked"),
}
"""Class and word for the result of a check."""


def write_report(
    path: Path,
    answer: Answer,
    files: Sequence[str],
    source: Source | None,
    checks: Path | None,
    *,
    more: Sequence[str] = (),
) -> None:
    """Write the page; the files of `source` are scanned again for the charts of ranked lists.

    `more` charts come after these. Raises `InputError` where something cannot be read or written.
    """
    results = _read_checks(checks) if checks is not None else []
    lists, charts = 0, list[str]()
    if source is not None:
        lists, charts = list_charts(source, answer.by)
    if source is not None and source.outcomes:
        # The last one has a table below it, which would leave a hole beside it further up.
        found = curves(source.files, answer.by)
        charts[-1:-1] = outcome_charts(found, answer.by, answer.differences or ())
    charts[-1:-1] = more
    about = f"{count_of(lists, 'ranked list')} from " if source is not None else ""
    page = _page(answer, about + _names(files), [text for text in charts if text], results)
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InputError(f"--report {path}: {error.strerror}") from error


def _names(files: Sequence[str]) -> str:
    names = ", ".join(Path(locations.redact(file)).name for file in files[:3])
    return names + (f" and {len(files) - 3:,} more" if len(files) > 3 else "")


def _page(
    answer: Answer, about: str, charts: Sequence[str], results: Sequence[Mapping[str, Any]]
) -> str:
    style = (resources("streameval.evaluation.report") / "page.css").read_text(encoding="utf-8")
    drawn = f'<h2>Charts</h2>\n<div class="charts">\n{"".join(charts)}</div>\n' if charts else ""
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
user: the lists of one user are not independent. It holds for one look: figures
that are watched until they differ will differ by chance.</p>
{_figures(answer)}
{_differences(answer.differences)}{_notes(answer)}{_checks(results)}
{drawn}<h2>Formulas</h2>
{_formulas(answer)}
</html>
"""


def _figures(answer: Answer) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in (*answer.by, "figure"))
    values = "".join(f'<th class="number">{name}</th>' for name in ("value", "low", "high", "n"))
    rows = _rows(["all"] * len(answer.by), answer.figures)
    for segment, figures in answer.segments.items():
        rows += _rows([value or UNDEFINED for value in segment], figures)
    return table(head + values, rows)


def _differences(rows: Sequence[Compared] | None) -> str:
    if not rows:
        return ""
    texts = ("arm", "control", *rows[0].labels, "figure", "verdict")
    head = "".join(f"<th>{escape(name)}</th>" for name in texts)
    columns = ("difference", "low", "high", "one look: low", "high", "users")
    head += "".join(f'<th class="number">{name}</th>' for name in columns)
    body = []
    for row in rows:
        scored = row.scored
        found = (scored.difference, scored.low, scored.high, scored.once_low, scored.once_high)
        names = (row.arm, row.control, *row.labels.values(), row.metric, scored.verdict)
        body.append(
            "".join(f"<td>{escape(name) or UNDEFINED}</td>" for name in names)
            + numbers(*map(format_figure, found), f"{row.users:,}")
        )
    about = (
        "<p>Low and high bound the difference at all looks together, with 95 % for each figure by"
        " itself: of many figures one stands out by chance.</p>"
    )
    return f"<h2>Differences</h2>\n{about}\n{table(head, body)}\n{forest_chart(rows)}\n"


def _notes(answer: Answer) -> str:
    return "".join(f"<p>{escape(note.text)}</p>\n" for note in answer.notes if note.text)


def _rows(segment: Sequence[str], figures: Mapping[str, Figure]) -> list[str]:
    return [
        "".join(f"<td>{escape(cell)}</td>" for cell in (*segment, name))
        + numbers(format_figure(figure.value), *bounds(figure), f"{figure.n:,}")
        for name, figure in figures.items()
    ]


def _formulas(answer: Answer) -> str:
    rows = []
    for metric in answer.entries:
        texts = (metric.name, metric.formula, metric.convention, metric.undefined, metric.source)
        rows.append("".join(f"<td>{escape(text)}</td>" for text in texts))
    names = ("figure", "formula", "convention", "undefined", "source")
    return table("".join(f"<th>{name}</th>" for name in names), rows)


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
    return f"<h2>Checks</h2>\n{table(head, rows)}"


def _read_checks(path: Path) -> list[Mapping[str, Any]]:
    """The results of `streameval check --json`."""
    try:
        results = list(json.loads(path.read_text(encoding="utf-8-sig"))["checks"])
        sound = all(result["name"] and result["passed"] in _VERDICTS for result in results)
    except OSError as error:
        raise InputError(f"--checks {path}: {error.strerror}") from error
    except (ValueError, LookupError, TypeError):
        sound = False
    if not sound:
        raise InputError(f"--checks {path}: not the results of `streameval check --json`")
    return results
