"""Data in memory that stand where a file does."""

from __future__ import annotations

from typing import Any


class InMemory(str):
    """A name for messages and for the answer, in place of a file's name, and the data themselves.

    `data` is an Arrow table, or the lines of an event file. Readers that pass names on, compare
    them and put them into messages need not know of it; only those that open a file do.
    """

    __slots__ = ("data",)

    data: Any

    @classmethod
    def of(cls, name: str, data: Any) -> InMemory:
        """Return the data under a name."""
        made = cls(name)
        made.data = data
        return made
