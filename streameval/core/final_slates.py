"""Consumers of final slates: each slate that can no longer change reaches them exactly once.

A slate is final once its time is before wm - H (rule 4 of `attribution`). Its worth is then added
to sums that only grow, and nothing is ever retracted. A flush hands over most of the slates that it
can; after `Partition.finalizing` the sums hold exactly the slates before wm - H, with the watermark
of the last flush. They are part of the checkpoint, so a slate counts once however often
the state is restored.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Protocol

from streameval.core.slate import Slate


class FinalConsumer(Protocol):
    """A consumer of final slates; `name` stands in checkpoints."""

    name: str

    def add(self, slates: Sequence[Slate]) -> None:
        """Take in slates that became final, each once, in any order."""

    def settling(self) -> Generator[None, None, None]:
        """Take note that all slates before wm - H have been added, with the flush's watermark.

        It does so in steps of bounded work.
        """

    def state(self) -> Any:
        """Return its sums as plain values for a checkpoint."""

    def restore(self, stored: Any, watermark: int | None) -> None:
        """Take its sums from a checkpoint; None where the checkpoint has none of this name.

        The slates before `watermark` - H were final by then.
        """
