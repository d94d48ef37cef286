"""The leader's minute: a point of the figures' history, and points of the experiments' bounds.

A point is added once every partition has shared its sums of the minute. A worker that was replaced
as leader may write a minute again, with figures that are as right.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from streameval.core.definition import Definition
from streameval.experiments.words import Scorecard
from streameval.store.shared_store import SharedStore
from streameval.web.experiment_history import RINGS, name_of, point
from streameval.web.whole_topic import WholeTopic

# Owners share at the beginning of a minute, after a tick and a turn.
AFTER_SECONDS: Final = 10.0
# The share of the leader's time; with many segments there are fewer points.
SHARE: Final = 0.004
MINUTE_MS: Final = 60_000


class HistoryJob:
    """Adds points to the histories; `turn` is called every few seconds on the leader."""

    def __init__(self, store: SharedStore, topic: WholeTopic, definition: Definition) -> None:
        self._store, self._topic = store, topic
        self._keys = {experiment.name: experiment.key for experiment in definition.experiments}
        self._minute = 0
        self._not_before = 0.0

    async def turn(self, now: float, cards: Sequence[Scorecard]) -> None:
        """Add the points of this minute, unless they are there; `now` in seconds."""
        minute, seconds = divmod(now, 60)
        if seconds < AFTER_SECONDS or minute == self._minute or now < self._not_before:
            return
        points, took = await self._topic.points()
        for name, data in points.items():
            await self._store.remember(name, int(minute), data, MINUTE_MS)
        for card in cards:
            await self._remember(card, now)
        if points:
            self._minute, self._not_before = int(minute), now + took / SHARE

    async def _remember(self, card: Scorecard, now: float) -> None:
        data = point(card, round(now * 1000))
        if data is None:
            return
        for period in RINGS:
            name = name_of(self._keys[card.name], period)
            await self._store.remember(name, round(now * 1000) // period, data, period)
