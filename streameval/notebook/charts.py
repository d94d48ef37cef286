"""Charts of figures with their intervals, drawn by matplotlib."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from streameval.base.errors import InputError
from streameval.base.extras import NOTEBOOK, require

# Inches: the width of a chart, of a line in it, and of the title and axis of a panel.
_WIDTH: Final = 7.0
_LINE: Final = 0.26
_FRAME: Final = 0.7
_INK: Final = "#1a56a0"
_SETTINGS: Final[dict[Any, Any]] = {
    "svg.hashsalt": "streameval",
    "text.parse_math": False,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "x",
    "grid.linewidth": 0.5,
}


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and its bounds, None where it has none."""

    label: str
    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Panel:
    """Intervals on one axis; `shares` are differences, shown in per cent beside a line at 0."""

    title: str
    intervals: Sequence[Interval]
    shares: bool = False


class Chart:
    """A chart that a notebook shows; `figure` is matplotlib's, to be changed as one likes."""

    def __init__(self, figure: Any) -> None:
        self.figure = figure

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the chart to a file: the end of its name says how, such as .png or .svg."""
        import matplotlib as mpl

        with mpl.rc_context(_SETTINGS):
            self.figure.savefig(path, dpi=160)

    def _repr_svg_(self) -> str:
        import matplotlib as mpl

        text = io.StringIO()
        with mpl.rc_context(_SETTINGS):
            self.figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
        return text.getvalue()


def draw(panels: Sequence[Panel]) -> Chart:
    """Draw panels, one below the other. Raises `InputError` where there is nothing to draw."""
    require("chart", "matplotlib", NOTEBOOK)
    import matplotlib as mpl
    from matplotlib.figure import Figure

    drawable = [panel for panel in panels if panel.intervals]
    if not drawable:
        names = ", ".join(panel.title for panel in panels)
        raise InputError(f"chart: there is nothing to draw{f' of {names}' if names else ''}")
    heights = [len(panel.intervals) * _LINE + _FRAME for panel in drawable]
    with mpl.rc_context(_SETTINGS):
        # The figure by itself: pyplot would keep it and look for a screen.
        figure = Figure(figsize=(_WIDTH, sum(heights)), layout="constrained")
        grid = figure.subplots(len(drawable), 1, height_ratios=heights, squeeze=False)
        for axes, panel in zip(grid[:, 0], drawable, strict=True):
            _draw(axes, panel)
    return Chart(figure)


def _draw(axes: Any, panel: Panel) -> None:
    lines = range(len(panel.intervals))
    for line, interval in zip(lines, panel.intervals, strict=True):
        if interval.low is not None and interval.high is not None:
            axes.plot([interval.low, interval.high], [line, line], color=_INK, linewidth=1.6)
        if interval.value is not None:
            axes.plot([interval.value], [line], color=_INK, marker="o", markersize=4.5)
    axes.set_yticks(list(lines), [interval.label for interval in panel.intervals])
    # The first line stands at the top.
    axes.set_ylim(len(panel.intervals) - 0.4, -0.6)
    axes.set_title(panel.title, loc="left", fontsize=9, fontweight="bold")
    if panel.shares:
        from matplotlib.ticker import PercentFormatter

        axes.axvline(0, color="#555555", linewidth=0.9)
        axes.xaxis.set_major_formatter(PercentFormatter(1.0))
