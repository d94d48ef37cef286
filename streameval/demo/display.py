"""The demo's display: a table that refreshes on a terminal, else plain lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from streameval.base.terminal import UNDEFINED, format_figure
from streameval.demo.comparison import LIMIT, Comparison, bounds_hold, within
from streameval.experiments.words import Scorecard, in_units, metric_name, sentences, warnings

LINE_EVERY: Final = 5
"""Seconds between two plain lines."""


class View(NamedTuple):
    """One moment of the demo.

    Seconds since the start, events sent, records not yet counted, figures beside the truth, and the
    experiment.
    """

    seconds: int
    sent: int
    lag: int
    comparisons: Sequence[Comparison]
    card: Scorecard


class Titles(NamedTuple):
    """The fixed parts.

    The pages' address, the windows of the live and the matured column, and the true differences of
    the experiment's metrics.
    """

    address: str
    live: str
    matured: str
    differences: Mapping[str, float]


class Show(Protocol):
    """A function that shows one moment."""

    def __call__(self, view: View) -> None:
        """Show it."""


@contextmanager
def display(console: Console, titles: Titles) -> Iterator[Show]:
    """Yield a function that shows moments, until the block ends."""
    console.print(f"status page  {titles.address}/", highlight=False)
    console.print(f"metrics      {titles.address}/metrics", highlight=False)
    console.print("Ctrl-C ends the demo.\n", highlight=False)
    if not console.is_terminal:
        yield lambda view: _print_line(console, view)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield lambda view: live.update(_moment(view, titles), refresh=True)


def _moment(view: View, titles: Titles) -> Group:
    head = Text(f"{view.seconds:4} s   {view.sent:,} events sent   lag {view.lag:,}")
    said = Text("\n".join(experiment_lines(view.card, titles)))
    return Group(head, comparison_table(view.comparisons, titles), said)


def experiment_lines(card: Scorecard, titles: Titles) -> list[str]:
    """Say how the experiment stands, and the truth beside it."""
    true = "; ".join(_difference(metric, by) for metric, by in titles.differences.items())
    return [*sentences(card), *warnings(card), f"In truth: {true}."]


def _difference(metric: str, by: float) -> str:
    scale, unit = in_units(metric)
    return f"{metric_name(metric)} {f'{by * scale:+.2f} {unit}'.rstrip() if by else 'equal'}"


def comparison_table(comparisons: Sequence[Comparison], titles: Titles) -> Table:
    """Build a table of live and matured figures beside the truth."""
    table = Table("variant", "figure")
    headings = (f"live {titles.live}", f"matured {titles.matured} ± se", "truth", "off by")
    for heading in headings:
        table.add_column(heading, justify="right")
    previous = None
    for row in comparisons:
        if previous not in (None, row.variant):
            table.add_section()
        previous = row.variant
        figures = (
            format_figure(row.live),
            format_figure(row.matured, row.stderr),
            format_figure(row.truth),
        )
        table.add_row(row.variant, row.label, *figures, _distance(row))
    return table


def _distance(row: Comparison) -> Text:
    if row.distance is None:
        return Text(UNDEFINED)
    style = "green" if abs(row.distance) <= LIMIT else "bold red"
    return Text(f"{row.distance:+.1f} se", style=style)


def _print_line(console: Console, view: View) -> None:
    if view.seconds % LINE_EVERY:
        return
    console.print(f"{view.seconds:4} s  {view.sent:,} sent  lag {view.lag:,}", highlight=False)
    for sentence in (*sentences(view.card), *warnings(view.card)):
        console.print(Padding(Text(sentence), (0, 0, 0, 8)))


def print_summary(
    console: Console,
    titles: Titles,
    view: View,
    sent: Mapping[str, int],
    counted: Mapping[str, int],
) -> None:
    """Print the result, figure by figure and event by event."""
    console.print(comparison_table(view.comparisons, titles))
    console.print(*experiment_lines(view.card, titles), sep="\n", markup=False, highlight=False)
    console.print(f"sent:    {_counts(sent)}", highlight=False)
    console.print(f"counted: {_counts(counted)}", highlight=False)
    console.print(f"every event accounted for: {_answer(good=dict(sent) == dict(counted))}")
    if any(row.matured is not None for row in view.comparisons):
        good = within(view.comparisons)
        console.print(f"within {LIMIT:.0f} standard errors: {_answer(good=good)}")
        good = bounds_hold(view.card, titles.differences)
        console.print(f"bounds hold the truth: {_answer(good=good)}")
    else:
        console.print("no figure has matured yet: let the demo run for half a minute")


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{counts[fate]:,} {fate}" for fate in sorted(counts))


def _answer(*, good: bool) -> str:
    return "[green]yes[/green]" if good else "[bold red]no[/bold red]"
