"""Shapes of lists: the worth of a list in the figures of `lists` and `ranks`.

Lists repeat: most have the ranks 1 to n and no positive. So each shape is one object that knows its
worth, and a change of a list is booked as two of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from streameval.base.arrays import Ints
from streameval.base.limits import MAX_MEMOISED_ROWS
from streameval.core.definition import Definition

Hits = tuple[tuple[int, int], ...]
"""The items with a positive, rising: the rank of each, and its kinds as the bits of a number."""

TOP: Final = 3
"""The ranks of `top3_share`."""
SINGLE_RANKS: Final = 20
"""Ranks that are counted one by one; the deeper ones are counted together."""

Worth = tuple[int, int, int, int, int, int, int]
"""Empty, short, fallback, with a positive; positive items, the sum of their ranks, those on top."""


class ListShape(msgspec.Struct, gc=False, eq=False, frozen=True):
    """One shape; `worth` is None where all of it is 0.

    `slots` has the slots of `slots_of`, each with its count.
    """

    size: int
    ranks: tuple[int, ...] | None
    fallback: bool
    hits: Hits
    worth: Worth | None
    slots: tuple[tuple[int, int], ...]


DEEPER_SLOT: Final = 2 * SINGLE_RANKS
"""The slot of impressions beyond the single ranks."""


def slots_of(kinds: int) -> int:
    """Return the number of slots: the first 20 count lists with the ranks 1 to n by n, up to 20.

    The next 21 count impressions by rank, the last of them those deeper. Then each kind has 21 for
    its positives.
    """
    return SINGLE_RANKS + (1 + kinds) * (SINGLE_RANKS + 1)


def by_rank(counts: Ints) -> list[Ints]:
    """Return impressions by rank, then the positives of each kind, all of shape (21, …).

    `counts` (slots, …) follow `slots_of`.
    """
    lengths, impressions, *positives = np.split(
        counts, range(SINGLE_RANKS, len(counts), SINGLE_RANKS + 1)
    )
    impressions = impressions.copy()
    impressions[:SINGLE_RANKS] += lengths[::-1].cumsum(axis=0)[::-1]
    return [impressions, *positives]


class ListShapes:
    """The shapes that lists have had under a definition, each one object."""

    def __init__(self, definition: Definition) -> None:
        self._smallest = definition.ks[0]
        self._known: dict[tuple[object, ...], ListShape] = {}
        self._plain = [
            self._made(size, None, fallback=False, hits=()) for size in range(2 * SINGLE_RANKS)
        ]

    def of(
        self, size: int, ranks: tuple[int, ...] | None, *, fallback: int, hits: Hits
    ) -> ListShape:
        """Return the shape of a list; `ranks` of its items, rising, None where they are 1 to n."""
        if ranks is None and not hits and not fallback and size < len(self._plain):
            return self._plain[size]
        key = (size, ranks, fallback, hits)
        shape = self._known.get(key)
        if shape is None:
            if len(self._known) >= MAX_MEMOISED_ROWS:
                self._known.clear()
            shape = self._known[key] = self._made(size, ranks, fallback=bool(fallback), hits=hits)
        return shape

    def _made(
        self, size: int, ranks: tuple[int, ...] | None, *, fallback: bool, hits: Hits
    ) -> ListShape:
        found = [rank for rank, _ in hits]
        worth = (
            size == 0,
            size < self._smallest,
            fallback,
            bool(found),
            len(found),
            sum(found),
            sum(rank <= TOP for rank in found),
        )
        of_hits = (
            (SINGLE_RANKS + (1 + kind) * (SINGLE_RANKS + 1) + min(rank - 1, SINGLE_RANKS), 1)
            for rank, kinds in hits
            for kind in range(kinds.bit_length())
            if kinds >> kind & 1
        )
        return ListShape(
            size,
            ranks,
            fallback,
            hits,
            worth if any(worth) else None,
            (*_slots(size, ranks), *of_hits),
        )


def _slots(size: int, ranks: Sequence[int] | None) -> list[tuple[int, int]]:
    """Return the slots of the impressions."""
    if ranks is None:
        single = [(min(size, SINGLE_RANKS) - 1, 1)] if size else []
        deeper = max(0, size - SINGLE_RANKS)
    else:
        single = [(SINGLE_RANKS + rank - 1, 1) for rank in ranks if rank <= SINGLE_RANKS]
        deeper = len(ranks) - len(single)
    return [*single, (DEEPER_SLOT, deeper)] if deeper else single
