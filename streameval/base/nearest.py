"""Names that a misspelt one may have meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return up to `most` names that are like `name`, the nearest first; case does not matter."""
    by_word = {one.lower(): one for one in known}
    return [by_word[word] for word in get_close_matches(name.lower(), by_word, most, cutoff)]
