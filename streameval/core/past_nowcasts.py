"""Nowcasts of the past, held against the matured figures: how far a nowcast may be trusted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from streameval.core.definition import Definition, Window

# Nowcasts that wait for their end, of each window: one a minute with the default horizon.
_KEPT: Final = 32

_FIGURE: Final = "positives_per_impression"
_Key = tuple[Any, ...]


class PastNowcasts:
    """Nowcasts of positives per impression that have not matured yet, and the last errors.

    A nowcast at T covers the panes up to the one that holds T. They are the matured window once
    that pane can no longer change, about H later.
    """

    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        self._labels = ("window", *definition.dimensions, "feedback")
        self._waiting: dict[str, dict[int, dict[_Key, float]]] = {
            window.name: {} for window in definition.windows
        }
        self._errors: dict[str, dict[_Key, float]] = {}

    def note(self, reading_time: int, rates: Sequence[Mapping[str, Any]]) -> None:
        """Keep the nowcasts at T (ms), and compare those whose panes are the matured ones now."""
        for window in self._definition.windows:
            self._note(window, reading_time, [r for r in rates if r["window"] == window.name])

    def errors(self) -> list[dict[str, Any]]:
        """Return rows with `error_ratio`: (nowcast - matured) / matured, of the last comparison."""
        return [
            {**dict(zip(self._labels, key, strict=True)), "error_ratio": error}
            for found in self._errors.values()
            for key, error in found.items()
        ]

    def _note(self, window: Window, time: int, rates: Sequence[Mapping[str, Any]]) -> None:
        waiting = self._waiting[window.name]
        horizon, pane = self._definition.horizon, time // window.slide
        if pane % max(1, horizon // (_KEPT * window.slide)) == 0:
            waiting[pane] = self._of(rates, "nowcast")
        matured_pane = (time - horizon) // window.slide - 1
        before = waiting.get(matured_pane)
        if before is not None:
            matured = self._of(rates, "matured")
            self._errors[window.name] = {
                key: (value - matured[key]) / matured[key]
                for key, value in before.items()
                if matured.get(key)
            }
        for past in [number for number in waiting if number <= matured_pane]:
            del waiting[past]

    def _of(self, rates: Iterable[Mapping[str, Any]], basis: str) -> dict[_Key, float]:
        return {
            tuple(row[label] for label in self._labels): row[_FIGURE]
            for row in rates
            if row["basis"] == basis
        }
