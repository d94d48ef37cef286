"""Spacing out repeated work so that it takes at most a share of a worker's time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


class Pace:
    """Says when repeated work is due again: the longer a turn took, the later.

    Turns begin at least `seconds` apart. A turn is measured in processor time. Neither other tasks
    at its pauses count, nor time that the machine gave to other programs.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds
        self._began = self._spent = self._since = 0.0

    def begins(self, share: float) -> bool:
        """Begin a turn if one is due at this share of the clock's time (0 to 1); whether it is."""
        now = time.monotonic()
        if now < self._began + max(self._seconds, self._spent / share):
            return False
        self._began, self._spent, self._since = now, 0.0, time.thread_time()
        return True

    async def pause(self) -> None:
        """Let other tasks go on."""
        self._spent += time.thread_time() - self._since
        await asyncio.sleep(0)
        self._since = time.thread_time()

    async def take(self, steps: Generator[None, None, T]) -> T:
        """Take all steps, and pause after each; returns their result."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            await self.pause()

    def end(self) -> None:
        """End the turn."""
        self._spent += time.thread_time() - self._since
