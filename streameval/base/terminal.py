"""Parts of a terminal's output: figures, instants, tables, a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

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


def progress_bar(
    names: Sequence[str], size: Callable[[str], int] = size_of_file
) -> AbstractContextManager[Advance]:
    """Show a bar over the bytes of the files."""
    from rich.progress import DownloadColumn

    return _bar("reading", DownloadColumn(), lambda: sum(map(size, names)))


def share_bar(title: str, total: int) -> AbstractContextManager[Advance]:
    """Show a bar over the share of `total`."""
    from rich.progress import TaskProgressColumn

    return _bar(title, TaskProgressColumn(), lambda: total)


@contextmanager
def _bar(title: str, column: ProgressColumn, total: Callable[[], int]) -> Iterator[Advance]:
    """Show a bar on stderr, only on a terminal and if there is anything to do."""
    from rich.progress import BarColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    whole = total() if console.is_terminal else 0
    columns = (title, BarColumn(), column, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not whole) as progress:
        task = progress.add_task("", total=whole)
        yield lambda count: progress.update(task, advance=count)


def plain_table(title: str = "", names: Sequence[str] = (), numbers: Sequence[str] = ()) -> Table:
    """Return a table with its title at the left, columns of names, then columns of numbers."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right")
    return table
