"""Whether Kafka and Redis answer, and still have what the worker relies on."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from streameval.base.errors import RefusedError, UnreachableError
from streameval.base.retry import Complaints, answer_within

if TYPE_CHECKING:
    from streameval.worker.assigned_partition import AssignedPartition
    from streameval.worker.assignment import Assignment
    from streameval.worker.ports import EventLog, StateStore
    from streameval.worker.shutdown import Life

PROBE_SECONDS: Final = 2.0
PROBE_TIMEOUT: Final = 5.0
GROUP_COMMIT_SECONDS: Final = 5.0


class ServerWatch:
    """Asks both servers every few seconds; `unfit` says why Redis cannot be relied on, or ""."""

    def __init__(
        self, event_log: EventLog, store: StateStore, assignment: Assignment, life: Life
    ) -> None:
        self._event_log = event_log
        self._store = store
        self._assignment = assignment
        self._life = life
        self.store_up = False
        self.broker_up = False
        self.unfit = ""

    async def wait_for_store(self) -> None:
        """Wait until Redis answers, or the worker stops. Raises `RefusedError` for an unfit one."""
        complaints = Complaints()
        while not self._life.stopping.is_set():
            try:
                await self._store.check()
            except UnreachableError as error:
                complaints.tell(f"{error} Waiting for it.")
            else:
                self.store_up = True
                return
            await self._life.unless_stopping(asyncio.sleep(0.5))

    async def probe(self) -> None:
        """Ask both servers whether they answer, for ever."""
        while True:
            self._assignment.commits.rejections.say(time.monotonic())
            self.broker_up = bool(await answer_within(self._event_log.probe(), PROBE_TIMEOUT))
            if self.broker_up:
                try:
                    self._assignment.restorer.refuse_another_log()
                except RefusedError as error:
                    self._life.fail(error)
            facts = await answer_within(self._store.facts(), PROBE_TIMEOUT)
            self.store_up = facts is not None
            if facts is not None:
                evicts = f"Redis evicts keys (maxmemory-policy {facts.policy})"
                self.unfit = evicts if facts.evicts else ""
            for partition in list(self._assignment.partitions.values()) if self.store_up else ():
                await self._check_offset(partition)
            await asyncio.sleep(PROBE_SECONDS)

    async def _check_offset(self, partition: AssignedPartition) -> None:
        """Notice a store that lost or rolled back its data, also while no events come."""
        before = partition.stored
        if before is None or not self._assignment.is_idle(partition):
            return

        async def look() -> tuple[int | None]:
            return (await self._store.offset(partition.number),)

        answer = await answer_within(look(), PROBE_TIMEOUT)
        if answer is None or answer[0] == before or partition.stored != before:
            return
        if self._assignment.is_idle(partition):
            self._assignment.drop(partition, answer[0])

    async def tell_group(self) -> None:
        """Tell Kafka's group the committed offsets, for tools that show lag."""
        told: dict[int, int] = {}
        while True:
            await asyncio.sleep(GROUP_COMMIT_SECONDS)
            offsets = self._assignment.committed()
            if offsets and offsets != told:
                await self._event_log.commit(offsets)  # 7. tell the group
                told = offsets
