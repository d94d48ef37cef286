"""Counts of things, as sentences write them."""

from __future__ import annotations


def count_of(count: int, thing: str) -> str:
    """Write a count: `1 rating`, `2,000 ratings`."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
