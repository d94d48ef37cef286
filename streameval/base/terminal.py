"""Parts of a terminal's output: figures, instants, tables, a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

Advance = Callable[[int], None]
"""Called with the number of bytes that were read since its last call."""
UNDEFINED: Final = "-"
WIDE: Final = 100
"""Columns that the widest table needs."""


def format_figure(figure: float | None, stderr: float | None = None) -> str:
    """Write a figure to four places, with its standard error if given."""
    if figure is None:
        return UNDEFINED
    return f"{figure:.4f}" if stderr is None else f"{figure:.4f} ±{stderr:.4f}"


def moment(ts: int | None) -> str:
    """Write an instant (ms) for people, in UTC."""
    if ts is None:
        return UNDEFINED
    return datetime.fromtimestamp(ts / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")


def size_of_file(name: str) -> int:
    """Return the bytes of a file; 0 for standard input and the like."""
    return Path(name).stat().st_size if Path(name).is_file() else 0


@contextmanager
def progress_bar(
    names: Sequence[str], size: Callable[[str], int] = size_of_file
) -> Iterator[Advance]:
    """Show a bar over the bytes of the files, on stderr and only on a terminal."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    total = sum(map(size, names)) if console.is_terminal else 0
    columns = ("reading", BarColumn(), DownloadColumn(), TimeRemainingColumn())
    hidden = not console.is_terminal or not total
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task("", total=total)
        yield lambda count: progress.update(task, advance=count)


@contextmanager
def share_bar(title: str, total: int) -> Iterator[Advance]:
    """Show a bar over the share of `total`, on stderr and only on a terminal."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (title, BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task("", total=total)
        yield lambda count: progress.update(task, advance=count)


def plain_table(title: str) -> Table:
    """Return an empty table with its title at the left."""
    return Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
