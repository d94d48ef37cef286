"""What `evaluate` was given: files by their role, and the parameters of figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from streameval.core.definition import Definition
from streameval.core.metrics.half_life import HALF_LIFE
from streameval.evaluate.readers.ranked_tables import Ties


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Files and parameters; each is the option of this name, and empty where it was not given.

    `files` are outcome files, slates, or an index's approximate results (with `exact`).
    `definition` reads the configuration, which says what feedback is a positive.
    """

    definition: Callable[[], Definition]
    files: Sequence[str] = ()
    labels: Sequence[str] = ()
    run: str | None = None
    qrels: str | None = None
    ties: Ties | None = None
    complete: bool = True
    half_life: float = HALF_LIFE
    neutral: float = 0.0
    ratings: Sequence[str] = ()
    predictions: Sequence[str] = ()
    threshold: float | None = None
    scale: tuple[float, float] | None = None
    train: Sequence[str] = ()
    features: Sequence[str] = ()
    catalogue: Sequence[str] = ()
    neighbours: Sequence[str] = ()
    exact: Sequence[str] = ()
    sampled: Sequence[str] = ()
    events: Sequence[str] = ()
    by: Sequence[str] = ()
    per_list: bool = False

    def all_files(self) -> list[str]:
        """Every file that was given, the outcome files and slates first."""
        trec = [name for name in (self.run, self.qrels) if name is not None]
        tables = (
            *(self.labels, trec, self.exact, self.sampled, self.ratings, self.predictions),
            *(self.train, self.features, self.catalogue, self.neighbours, self.events),
        )
        return [*self.files, *(name for table in tables for name in table)]
