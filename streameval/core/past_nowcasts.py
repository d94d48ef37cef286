"""Nowcasts of the past, held against the matured figures: how far a nowcast may be trusted."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final

from streameval.core.definition import Definition, Window
from streameval.core.metrics import MEAN_SECTIONS

# Nowcasts that wait for their end, of each window: one a minute with the default horizon.
_KEPT: Final = 32

# No list has a nowcast.
_FIGURES: Final = {
    section.name: [mean.name for mean in section.means]
    for section in MEAN_SECTIONS
    if section.name != "lists"
}
_Sections = Mapping[str, Sequence[Mapping[str, Any]]]
_Key = tuple[Any, ...]


class PastNowcasts:
    """Nowcasts that have not matured yet, and the last error of each figure that has nowcasts.

    A nowcast at T covers the panes up to the one that holds T. They are the matured window once
    that pane can no longer change, about H later.
    """

    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        self._labels = ("window", *definition.dimensions, "feedback", "k")
        windows = [window.name for window in definition.windows]
        # Panes that have the same figures share their keys, which are larger than the figures.
        self._keys: dict[str, tuple[_Key, ...]] = dict.fromkeys(windows, ())
        self._waiting: dict[str, dict[int, tuple[tuple[_Key, ...], array[float]]]] = {
            window: {} for window in windows
        }
        self._errors: dict[str, dict[_Key, float]] = {}

    def note(self, reading_time: int, sections: _Sections) -> None:
        """Keep the nowcasts at T (ms), and compare those whose panes are the matured ones now."""
        for window in self._definition.windows:
            self._note(window, reading_time, sections)

    def errors(self) -> list[dict[str, Any]]:
        """Return rows with `error_ratio`: (nowcast - matured) / matured, of the last comparison.

        Each has a `feedback` or a `k`, as its `metric` needs; the other is empty.
        """
        return [
            {**dict(zip((*self._labels, "metric"), key, strict=True)), "error_ratio": error}
            for found in self._errors.values()
            for key, error in found.items()
        ]

    def _note(self, window: Window, time: int, sections: _Sections) -> None:
        waiting = self._waiting[window.name]
        horizon, pane = self._definition.horizon, time // window.slide
        if pane % max(1, horizon // (_KEPT * window.slide)) == 0:
            nowcasts = self._of(sections, window, "nowcast")
            if (keys := tuple(nowcasts)) != self._keys[window.name]:
                self._keys[window.name] = keys
            waiting[pane] = self._keys[window.name], array("d", nowcasts.values())
        matured_pane = (time - horizon) // window.slide - 1
        if matured_pane in waiting:
            matured = self._of(sections, window, "matured")
            self._errors[window.name] = {
                key: (value - matured[key]) / matured[key]
                for key, value in zip(*waiting[matured_pane], strict=True)
                if matured.get(key)
            }
        for past in [number for number in waiting if number <= matured_pane]:
            del waiting[past]

    def _of(self, sections: _Sections, window: Window, basis: str) -> dict[_Key, float]:
        """Return the figures of a window, without those that are undefined."""
        wanted = window.name, basis
        return {
            (*labels, name): row[name]
            for section, names in _FIGURES.items()
            for row in sections[section]
            if (row["window"], row["basis"]) == wanted
            for labels in [[row.get(label, "") for label in self._labels]]
            for name in names
            if row[name] is not None
        }
