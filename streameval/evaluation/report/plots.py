"""Charts as SVG for inside a page: matplotlib draws, the page's CSS variables colour.

Equal input gives equal bytes: ids come from a fixed salt, no date is written. Text stays text, in
the page's font.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, TypeVar

from streameval.base.extras import require
from streameval.evaluation.report.curves import Band, Curve

Point = TypeVar("Point", bound=tuple[float, ...])

INK: Final = "#010101"
GRID: Final = "#020202"
LINES: Final = ("#030301", "#030302", "#030303", "#030304", "#030305", "#030306")
"""Stand-ins that become CSS variables: --ink, --grid, --line-1 to --line-6."""

_VARIABLES: Final = {
    INK: "var(--ink)",
    GRID: "var(--grid)",
    **{colour: f"var(--line-{number})" for number, colour in enumerate(LINES, start=1)},
}
_BAND: Final = 0.18
"""The opacity of a band."""
_STYLES: Final = ("-", "--", ":", "-.")
_SETTINGS: Final = {
    "svg.hashsalt": "streameval",
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 9,
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "grid.linewidth": 0.5,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "legend.frameon": False,
    "savefig.transparent": True,
}


def chart(
    name: str,
    series: Mapping[str, Curve],
    *,
    x: str,
    y: str,
    time_step: int | None = None,
    diagonal: bool = False,
    bands: Mapping[str, Sequence[Band]] | None = None,
    band_names: Sequence[str] = (),
    signed: bool = False,
) -> str:
    """One chart of lines, as an `<svg>` element whose ids start with `name`.

    `x` and `y` label the axes. With `time_step` (ms) x is time (ms since the epoch), and a line is
    interrupted between points that are further apart. `diagonal`: with the line y = x. `bands` lie
    around the series of their name, the widest first; `band_names` tell what they are. `signed`:
    with the line y = 0, and values below it.
    Raises `InputError` where matplotlib is not installed.
    """

    def drawing() -> Any:
        return _figure(
            *(series, bands or {}, band_names, x, y),
            time_step=time_step,
            diagonal=diagonal,
            signed=signed,
        )

    return _svg(name, drawing)


class Interval(NamedTuple):
    """A row of a forest plot: `bounds` for all looks, `once` for one look; `colour` from 0."""

    label: str
    value: float
    bounds: tuple[float, float] | None
    once: tuple[float, float] | None
    colour: int


def forest(name: str, rows: Sequence[Interval], x: str) -> str:
    """Return intervals below one another, with a line at 0, as an `<svg>` element."""
    return _svg(name, lambda: _forest(rows, x))


def _svg(name: str, drawing: Callable[[], Any]) -> str:
    matplotlib = _matplotlib()
    with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        # The page's font has the letters: matplotlib's own only measures them.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        written = io.StringIO()
        drawing().savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    return _embed(name, written.getvalue())


def _forest(rows: Sequence[Interval], x: str) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 0.7 + 0.3 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    axes.axvline(0, color=INK, linewidth=1.0, linestyle=(0, (1, 3)))
    for height, row in enumerate(rows):
        colour = LINES[row.colour % len(LINES)]
        for ends, width in ((row.bounds, 1.4), (row.once, 4.0)):
            if ends is not None:
                axes.plot(ends, [height, height], color=colour, linewidth=width)
        axes.plot([row.value], [height], color=INK, marker="o", markersize=3.5)
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel(x)
    axes.grid(visible=False, axis="y")
    return figure


def _matplotlib() -> Any:
    require("--report", "matplotlib")
    import matplotlib as mpl

    return mpl


def _figure(
    series: Mapping[str, Curve],
    bands: Mapping[str, Sequence[Band]],
    band_names: Sequence[str],
    x: str,
    y: str,
    *,
    time_step: int | None,
    diagonal: bool,
    signed: bool,
) -> Any:
    # The figure by itself: pyplot would keep it and look for a screen.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.0), layout="constrained")
    axes = figure.add_subplot()
    handles: list[Any] = []
    for number, (name, curve) in enumerate(series.items()):
        points = curve if time_step is None else _with_gaps(curve, time_step)
        _paint(axes, bands.get(name, ()), time_step, LINES[number % len(LINES)])
        handles += axes.plot(
            _abscissas(points, time=time_step is not None),
            [value for _, value, *_ in points],
            color=LINES[number % len(LINES)],
            linestyle=_STYLES[number // len(LINES) % len(_STYLES)],
            marker="o",
            markersize=2.5,
            linewidth=1.4,
        )
    labels = [*series]
    if diagonal:
        handles += axes.plot([0, 1], [0, 1], color=INK, linewidth=1.0, linestyle=(0, (1, 3)))
        labels.append("y = x")
    handles += _swatches(len(band_names))
    labels += band_names
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if signed:
        axes.axhline(0, color=INK, linewidth=1.0, linestyle=(0, (1, 3)), zorder=1)
    else:
        tops = [y for points in series.values() for _, y in points]
        of_bands = [band for each in bands.values() for band in each]
        tops += [high for band in of_bands for *_, high in band if not math.isnan(high)]
        axes.set_ylim(0, 1.08 * max(tops) or 1)
    if time_step is not None:
        axes.xaxis.axis_date("UTC")
        figure.autofmt_xdate(rotation=30)
    _legend(axes, [(handle, label) for handle, label in zip(handles, labels, strict=True) if label])
    return figure


def _paint(axes: Any, bands: Sequence[Band], step: int | None, colour: str) -> None:
    """Fill bands; one within another is the darker for it."""
    for each in bands:
        band = each if step is None else _with_gaps(each, step)
        axes.fill_between(
            _abscissas(band, time=step is not None),
            [low for _, low, _ in band],
            [high for *_, high in band],
            color=colour,
            alpha=_BAND,
            linewidth=0,
        )


def _swatches(count: int) -> list[Any]:
    """Return patches for the legend, as dark as so many bands within one another."""
    from matplotlib.patches import Patch

    opacities = (1 - (1 - _BAND) ** inside for inside in range(1, count + 1))
    return [Patch(color=LINES[0], alpha=opacity, linewidth=0) for opacity in opacities]


def _legend(axes: Any, lines: Sequence[tuple[Any, str]]) -> None:
    """Name the lines by their labels, whatever these hold."""
    if len(axes.lines) < 2 or not lines:
        return
    # Of a label that begins with "_" matplotlib takes none into a legend.
    legend = axes.legend([handle for handle, _ in lines], ["?"] * len(lines))
    for text, (_, label) in zip(legend.get_texts(), lines, strict=True):
        text.set_text(label)


def _with_gaps(points: Sequence[Point], step: int) -> list[Point]:
    """Put a point without a value into each gap of more than a step: no line crosses it."""
    whole: list[Any] = []
    for point in points:
        at, *values = point
        if whole and at - whole[-1][0] > step:
            whole.append((whole[-1][0] + step, *(math.nan for _ in values)))
        whole.append(point)
    return whole


def _abscissas(points: Sequence[Sequence[float]], *, time: bool) -> Sequence[Any]:
    if time:
        return [datetime.fromtimestamp(ms / 1000, UTC) for ms, *_ in points]
    return [at for at, *_ in points]


def _embed(name: str, svg: str) -> str:
    """The element without its file header, its ids unique in a page, its colours variables."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, variable)
    # The page sets the size.
    return re.sub(r'<svg ([^>]*?)width="[^"]*" height="[^"]*"', r"<svg \1", svg, count=1)
