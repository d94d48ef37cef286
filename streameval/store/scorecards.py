"""Scorecards of the whole topic, from the stored state of the partitions.

The sums of a partition are in the header of its checkpoint, and change with it only. The users of
the arms are beside its state. All are integers of disjoint users, so they add up to the sums that
one partition would hold. No worker is needed to read them. The differences that are adjusted, or
without crossed users, come from the last snapshot, and stand beside the plain ones.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

from streameval.core.checkpoint import arm_sums_of
from streameval.core.definition import Definition
from streameval.core.experiments.definition import MAX_ARMS
from streameval.core.experiments.sums import ArmSums
from streameval.core.experiments.users import ArmUsers
from streameval.experiments.scorecard import Row
from streameval.experiments.words import Scorecard, scorecards, with_beside

ADJUSTED: Final = "adjusted"
"""The leader's report of the differences that are adjusted by the users' past."""
WITHOUT_CROSSED: Final = "without_crossed"
"""The leader's report of the differences without the users who were in several arms."""


def report_of(
    time: int, rows: Mapping[str, Sequence[Row]], notes: Mapping[str, Sequence[str]]
) -> str:
    """Return a report as of `time` (ms): rows and sentences by `Experiment.key`."""
    return json.dumps({"time": time, "experiments": rows, "notes": notes}, allow_nan=False)


def _failing(report: dict[str, Any]) -> list[str]:
    """Return a sentence for each check that doubts the data, in the report of the checks.

    A figure that got worse is no doubt of it.
    """
    return [
        f"The check {one['name']} fails ({one['message'].partition('. ')[0]}): find out why before"
        " you trust a figure."
        for one in report["checks"]
        if one["state"] == "failed" and one["name"] != "metric_regression"
    ]


def _beside(name: str, report: dict[str, Any], key: str, card: Scorecard) -> Scorecard:
    if name == WITHOUT_CROSSED and not card.leaves_out:
        return card  # a report from before they were kept
    rows, notes = (report.get(part, {}).get(key, ()) for part in ("experiments", "notes"))
    return with_beside(card, name, rows, report["time"], notes)


class ExperimentStore(Protocol):
    """The part of the store that experiments read."""

    async def header(self, partition: int) -> bytes | None:
        """Read the header of the stored checkpoint alone."""

    async def arm_users(self, partition: int, experiment: str) -> ArmUsers:
        """Read the users of an experiment (`ArmSums.users_key`) by arm."""

    async def reported(self, name: str) -> str | None:
        """Return the last report of the leader."""


class ScorecardReader:
    """Reads the scorecards of the experiments of a definition, again and again."""

    def __init__(self, store: ExperimentStore, definition: Definition) -> None:
        self._store = store
        self._definition = definition
        self._sums: dict[int, tuple[bytes | None, list[ArmSums]]] = {}

    async def read(self, partitions: int) -> list[Scorecard]:
        """Add up `partitions` partitions, and judge each experiment.

        Raises `UnreachableError`, and `UnusableStateError` for state of another definition.
        """
        experiments = self._definition.experiments
        found = {experiment.key: ArmSums(experiment) for experiment in experiments}
        users = {experiment.key: ArmUsers() for experiment in experiments}
        for number in range(partitions):
            for part in await self._sums_of(number):
                found[part.experiment.key].merge(part)
                counts = await self._store.arm_users(number, part.users_key)
                users[part.experiment.key].add(counts)
        for key, arms in found.items():
            # An arm has users a moment before a checkpoint has its sums.
            if len(users[key].by_arm) > MAX_ARMS:
                users[key] = users[key].within({*arms.sums, *arms.experiment.named_arms})
        # Some hundred comparisons: the caller's loop goes on meanwhile.
        cards = await asyncio.to_thread(scorecards, self._definition, list(found.values()), users)
        for name in (ADJUSTED, WITHOUT_CROSSED):
            text = await self._store.reported(name)
            if text is not None:
                cards = [*map(partial(_beside, name, json.loads(text)), found, cards)]
        checks = await self._store.reported("checks")
        failing = [] if checks is None else _failing(json.loads(checks))
        return [replace(card, failing=failing) for card in cards]

    async def _sums_of(self, number: int) -> list[ArmSums]:
        """Return the sums of a partition; a header that is known is not decoded again.

        The offset of the checkpoint does not tell: a fill of an idle stream leaves it as it is.
        """
        header = await self._store.header(number)
        known = self._sums.get(number)
        if known is None or known[0] != header:
            sums = [] if header is None else arm_sums_of(header, self._definition)
            known = self._sums[number] = header, sums
        return known[1]
