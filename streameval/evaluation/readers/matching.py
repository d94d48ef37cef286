"""Ids of two tables that should meet: with none in common, they are written in two ways."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from streameval.base.counts import count_of
from streameval.base.errors import InputError
from streameval.evaluation.answer import Note
from streameval.files.table_scans import quote

# So many ids of a side are looked through for two that mean the same.
_MOST: Final = 100_000


class Side(NamedTuple):
    """The ids in a column of a table, and the files that these come from."""

    files: Sequence[str]
    table: str
    column: str

    def ids(self, connection: Any) -> list[str]:
        """Return distinct ids, in order."""
        column = quote(self.column)
        query = f"SELECT DISTINCT {column} FROM {self.table} ORDER BY ALL LIMIT {_MOST}"  # noqa: S608  # quoted
        return [name for (name,) in connection.execute(query).fetchall()]


def require_common(connection: Any, one: Side, other: Side) -> None:
    """Raise `InputError` if two tables have rows and no id in common."""
    found = connection.execute(
        f"SELECT EXISTS (FROM {one.table} AS a SEMI JOIN {other.table} AS b"
        f" ON a.{quote(one.column)} = b.{quote(other.column)})"
    ).fetchall()
    if not found[0][0]:
        sides = (one.ids(connection), other.ids(connection))
        refuse_strangers(one.column, one.files, sides[0], other.files, sides[1])


def refuse_strangers(
    what: str,
    files: Sequence[str],
    ids: Iterable[str],
    other_files: Sequence[str],
    other_ids: Iterable[str],
) -> None:
    """Raise `InputError` for ids without one in common, if both sides have any.

    It names an id of each, which mean the same if any two seem to.
    """
    ours, theirs = sorted(ids), sorted(other_ids)
    if not (ours and theirs):
        return
    meant = {_bare(name): name for name in reversed(theirs)}
    alike = ((name, meant[_bare(name)]) for name in ours if _bare(name) in meant)
    one, other = next(alike, (ours[0], theirs[0]))
    raise InputError(
        f"{', '.join(files)} and {', '.join(other_files)} have no {what} in common: the first has"
        f" {one!r}, the second {other!r}; write ids alike in both"
    )


def refuse_several(
    connection: Any, table: str, keys: Sequence[str], value: str, message: Callable[..., str]
) -> None:
    """Raise `InputError` for a key of a table with two values; `message` says it of the key."""
    key = ", ".join(keys)
    found = connection.execute(
        f"SELECT {key} FROM {table} GROUP BY ALL HAVING min({value}) < max({value})"  # noqa: S608  # ours
        " ORDER BY ALL LIMIT 1"
    )
    for names in found.fetchall():
        raise InputError(message(*names))


def _bare(name: str) -> str:
    """Return an id without what other programs add to it or leave out."""
    inner = name.strip(" \t\r\n'\"\ufeff").casefold()
    return re.sub(r"\.0+$", "", inner).lstrip("0")


def part_note(key: str, count: int, thing: str, text: str) -> list[Note]:
    """Note how many things were left out or met nothing, if any; `text` has their place."""
    return [Note(key, count, text.format(count_of(count, thing)), "loss")] if count else []
