"""Arguments as people have them: paths, frames of any library, events, names, instants.

A frame is an object with the Arrow C stream interface, such as frames of pandas, polars, pyarrow
and DuckDB. Its columns are read where they lie, as far as the library keeps them as Arrow does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import chain
from typing import Any, Protocol, TypeAlias

from streameval.base.errors import InputError
from streameval.base.extras import NOTEBOOK, require
from streameval.base.in_memory import InMemory
from streameval.files.event_tables import line_of, lines_of_rows, with_rows
from streameval.notebook.outcome_rows import Outcomes


class Frame(Protocol):
    """A table of any library that speaks Arrow."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return the rows as an Arrow C stream."""


Path: TypeAlias = str | os.PathLike[str]
Tables: TypeAlias = Path | Frame | Iterable[Path | Frame] | Mapping[str, Frame] | None
"""Paths and frames. In a mapping the names are the models'."""
Events: TypeAlias = Path | Frame | Iterable[Path | Mapping[str, Any] | bytes]
"""Event files, a frame with a row for each event, or the events: dicts, or JSON as bytes."""


def tables_of(argument: str, given: Tables) -> list[str]:
    """Return the names of tables, and of frames with their data. Raises `InputError`."""
    if given is None:
        return []
    if isinstance(given, str | os.PathLike):
        return [os.fspath(given)]
    if isinstance(given, Outcomes):
        return list(given.paths)
    _refuse_column(argument, given)
    if _is_frame(given):
        return [_in_memory(argument, given)]
    if isinstance(given, Mapping):
        return [_in_memory(str(name), frame, argument) for name, frame in given.items()]
    if isinstance(given, Iterable):
        return [
            os.fspath(one)
            if isinstance(one, str | os.PathLike)
            else _in_memory(f"{argument}[{number}]", one)
            for number, one in enumerate(given)
        ]
    raise _no_frame(argument, given)


def path_of(argument: str, given: Any) -> str:
    """Return the path of a file that cannot be a frame. Raises `InputError`."""
    if isinstance(given, str | os.PathLike):
        return os.fspath(given)
    raise InputError(
        f"{argument}: give the path of a TREC file, or a frame of lists as files, with labels"
    )


def _is_frame(given: Any) -> bool:
    return hasattr(given, "__arrow_c_stream__")


def _refuse_column(argument: str, given: Any) -> None:
    """Raise `InputError` for one column, such as a Series: its texts are no names of files."""
    kind = type(given)
    if hasattr(kind, "to_frame") or hasattr(kind, "dtype"):
        raise InputError(
            f"{argument}: is one column ({kind.__name__}): give a frame, such as to_frame('item')"
        )


def _no_frame(argument: str, given: Any) -> InputError:
    lazy = ": collect it first" if hasattr(given, "collect") else ""
    return InputError(
        f"{argument}: give a path, or a frame of pandas (2.2 or later), polars, pyarrow or DuckDB,"
        f" not {type(given).__name__}{lazy}"
    )


def _in_memory(name: str, frame: Any, argument: str = "") -> InMemory:
    _refuse_column(name, frame)
    if not _is_frame(frame):
        raise _no_frame(f"{argument}[{name!r}]" if argument else name, frame)
    return InMemory.of(name, arrow_of(name, frame))


def arrow_of(name: str, frame: Any) -> Any:
    """Return a frame as an Arrow table. Raises `InputError`."""
    require("reading a frame", "pyarrow", NOTEBOOK)
    import pyarrow as pa

    if isinstance(frame, pa.Table):
        return frame
    try:
        return pa.RecordBatchReader.from_stream(frame).read_all()
    except (pa.ArrowException, TypeError, ValueError) as error:
        said = " ".join(" ".join(map(str, error.args)).split())
        raise InputError(f"{name}: cannot be read as Arrow: {said}") from error


# ----------------------------------------------------------------------------------------- events


def events_of(argument: str, given: Events | None) -> list[str]:
    """Return the names of event files, or of the events themselves. Raises `InputError`."""
    if given is None:
        return []
    if isinstance(given, str | os.PathLike):
        return with_rows([os.fspath(given)])
    if _is_frame(given):
        return [InMemory.of(argument, lines_of_rows(arrow_of(argument, given)))]
    if isinstance(given, bytes | Mapping) or not isinstance(given, Iterable):
        raise InputError(
            f"{argument}: give paths, a frame, or events in a list, not {type(given).__name__}"
        )
    rest = iter(given)
    first = next(rest, None)
    if isinstance(first, str | os.PathLike):
        _refuse_column(argument, given)
        return with_rows([path_of_events(argument, one) for one in chain([first], rest)])
    there: Iterable[Any] = [] if first is None else chain([first], rest)
    return [InMemory.of(argument, _lines(argument, there))]


def path_of_events(argument: str, given: Any) -> str:
    """Return the path of an event file. Raises `InputError`."""
    if isinstance(given, str | os.PathLike):
        return os.fspath(given)
    raise InputError(f"{argument}: give either paths or events, not both")


def _lines(argument: str, events: Iterable[Any]) -> Iterator[bytes]:
    for number, event in enumerate(events):
        if isinstance(event, bytes | bytearray | memoryview):
            yield bytes(event)
        elif isinstance(event, Mapping):
            yield line_of(f"{argument}[{number}]", event)
        else:
            raise InputError(
                f"{argument}[{number}]: an event is a dict, or JSON as bytes, not"
                f" {type(event).__name__}"
            )


# ------------------------------------------------------------------------------ names and instants


def instant_of(given: str | int | datetime | None) -> str | None:
    """Return an instant as options have it."""
    if given is None:
        return None
    return given.isoformat() if isinstance(given, datetime) else str(given)
