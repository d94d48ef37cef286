"""Rows that print as a table, and convert to a frame of any library."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final

from rich.console import Console

from streameval.base.errors import InputError
from streameval.base.extras import NOTEBOOK, is_installed, require
from streameval.base.terminal import UNDEFINED, plain_table

Row = Mapping[str, Any]
# Rows that a longer table begins with when it is printed.
_ROWS: Final = 60
# Columns of text that a notebook shows without a scroll bar.
_WIDTH: Final = 120
# Other columns without any value hold figures.
_WHOLE: Final = frozenset({"users_needed"})


class Frames:
    """Converts an Arrow table to frames of other libraries."""

    def to_arrow(self) -> Any:
        """Return all rows as an Arrow table."""
        raise NotImplementedError

    def to_pandas(self) -> Any:
        """Return all rows as a frame of pandas."""
        return frame_of("pandas", self.to_arrow())

    def to_polars(self) -> Any:
        """Return all rows as a frame of polars."""
        return frame_of("polars", self.to_arrow())


class Rows(Frames):
    """Rows of named values, in order."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        """Iterate over the rows, as dicts."""
        return iter(self._rows)

    def to_arrow(self) -> Any:
        """Return the rows as an Arrow table."""
        require("to_arrow", "pyarrow", NOTEBOOK)
        import pyarrow as pa

        names = list(dict.fromkeys(name for row in self._rows for name in row))
        columns = {name: pa.array([row.get(name) for row in self._rows]) for name in names}
        for name, column in columns.items():
            if column.null_count == len(column):
                columns[name] = column.cast(pa.int64() if name in _WHOLE else pa.float64())
        return pa.table(columns)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return the rows as an Arrow C stream."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        """Return the rows as text."""
        return printed_text(self._print)

    def _repr_html_(self) -> str:
        return html_table(self._rows)

    def _print(self, console: Console) -> None:
        table = plain_table("")
        rows = self._rows[:_ROWS]
        names = list(dict.fromkeys(name for row in rows for name in row))
        for name in names:
            table.add_column(
                name, overflow="fold", justify="left" if _text(rows, name) else "right"
            )
        for row in rows:
            table.add_row(*(_cell(row.get(name)) for name in names))
        console.print(table, markup=False)
        if more := len(self._rows) - len(rows):
            console.print(f"... and {more:,} more rows")


def frame_of(library: str, table: Any) -> Any:
    """Return an Arrow table as a frame of pandas or polars. Raises `InputError` without it."""
    if not is_installed(library):
        raise InputError(
            f"to_{library} needs {library}, which is not installed: pip install {library}"
        )
    if library == "pandas":
        return table.to_pandas()
    import polars as pl

    return pl.from_arrow(table)


def printed_text(printed: Any) -> str:
    """Return as text what `printed` prints on a console."""
    text = io.StringIO()
    # In a notebook rich would else show the table itself, before the text is returned.
    console = Console(
        file=text, width=_WIDTH, highlight=False, force_terminal=False, force_jupyter=False
    )
    printed(console)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()).strip("\n")


def html_table(rows: Sequence[Row], title: str = "") -> str:
    """Return rows as a table in HTML, the first of many."""
    first = rows[:_ROWS]
    names = list(dict.fromkeys(name for row in first for name in row))
    text = {name for name in names if _text(first, name)}

    def cells(tag: str, values: Mapping[str, str]) -> str:
        return "".join(
            f'<{tag} style="text-align: {"left" if name in text else "right"}">'
            f"{escape(values[name])}</{tag}>"
            for name in names
        )

    body = "\n".join(
        f"<tr>{cells('td', {name: _cell(row.get(name)) for name in names})}</tr>" for row in first
    )
    head = cells("th", {name: name.replace("_", " ") for name in names})
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    more = f"<p>... and {len(rows) - len(first):,} more rows</p>" if len(rows) > _ROWS else ""
    return f"<table>{caption}<thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>{more}"


def _text(rows: Sequence[Row], name: str) -> bool:
    return any(isinstance(row.get(name), str) for row in rows)


def _cell(value: Any) -> str:
    if value is None:
        return UNDEFINED
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)
