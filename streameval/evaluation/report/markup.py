"""The pieces of HTML that the report is made of."""

from __future__ import annotations

from collections.abc import Sequence

from streameval.base.terminal import format_figure
from streameval.evaluation.answer import Figure


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
