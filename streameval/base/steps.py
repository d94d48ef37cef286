"""Work in bounded steps: generators that return a result, between whose steps others go on."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def drain(steps: Generator[None, None, T]) -> T:
    """Take all steps in one go; returns their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
