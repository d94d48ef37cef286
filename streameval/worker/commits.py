"""Commits under way: made in steps and sent in the background, one at a time for each partition.

The steps are numbered as in `worker_loop`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Final

from streameval.store.stored_values import CheckpointWrite, Commit, Fenced, Torn
from streameval.worker.assigned_partition import AssignedPartition, PendingCommit
from streameval.worker.tallies import Rejections, settle

if TYPE_CHECKING:
    from streameval.core.definition import Positive
    from streameval.web.status import ProcessCounters
    from streameval.worker.outcome_writer import OutcomeWriter
    from streameval.worker.ports import EventLog, StateStore
    from streameval.worker.restore import PartitionRestorer

log = logging.getLogger(__name__)

# Making a commit may hold the loop for so long before heartbeats and pages get their turn. A full
# batch of ordinary events takes as long; a longer flush goes on in stretches.
AT_ONCE_SECONDS: Final = 0.05
STRETCH_SECONDS: Final = 0.01


class Commits:
    """The commits of one worker; `under_way`: their tasks, by partition.

    `held` are the partitions that the worker has at the time. `fenced` is told the partition whose
    commit was refused, and the stored offset; `torn` the partition of which an earlier commit was
    applied in part, and where its next batch must end. `failed` is told the error that ends the
    worker.
    """

    def __init__(
        self,
        event_log: EventLog,
        store: StateStore,
        outcome_writer: OutcomeWriter,
        restorer: PartitionRestorer,
        *,
        counters: ProcessCounters,
        held: Mapping[int, AssignedPartition],
        fenced: Callable[[AssignedPartition, int | None], None],
        torn: Callable[[AssignedPartition, int | None], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._event_log = event_log
        self._store = store
        self._outcome_writer = outcome_writer
        self._restorer = restorer
        self._counters = counters
        self._held = held
        self._fenced = fenced
        self._torn = torn
        self._failed = failed
        self.under_way: dict[int, asyncio.Task[None]] = {}
        self._warned: set[Positive] = set()
        self._warned_of_gaps: set[int] = set()  # partitions
        self.rejections = Rejections()

    def begin(self, partition: AssignedPartition, *, with_checkpoint: bool = False) -> bool:
        """Make the commit and send it in the background.

        False while another is under way, and for a partition that is no longer this worker's.
        """
        if partition.number in self.under_way or not self._is_held(partition):
            return False
        # 3. make the commit
        steps = partition.make_commit(time.monotonic(), with_checkpoint=with_checkpoint)
        # Nearly always it is made at once, and the next batch is applied while it is committed.
        pending = _advance(steps, AT_ONCE_SECONDS)
        task = asyncio.create_task(self._commit(partition, steps, pending))
        self.under_way[partition.number] = task
        return True

    def _is_held(self, partition: AssignedPartition) -> bool:
        return self._held.get(partition.number) is partition

    async def _commit(
        self,
        partition: AssignedPartition,
        steps: Generator[None, None, PendingCommit],
        pending: PendingCommit | None,
    ) -> None:
        try:
            while pending is None:
                await asyncio.sleep(0)
                if not self._is_held(partition):
                    return  # it went before its commit was made: the next owner reads it again
                pending = _advance(steps, STRETCH_SECONDS)
            await self._send(partition, pending)
        except Exception as error:  # noqa: BLE001  a bug of ours must end the worker, not a task
            self._failed(error)
        finally:
            partition.committing_bytes = 0
            self.under_way.pop(partition.number, None)

    async def _send(self, partition: AssignedPartition, pending: PendingCommit) -> None:
        counters = self._counters
        began = time.monotonic()
        for _ in partition.save(pending):
            await asyncio.sleep(0)
        if pending.checkpoint is not None:
            counters.checkpoint_seconds.observe(time.monotonic() - began)
        if pending.dead_letters:
            refused = await self._event_log.write_dead_letters(pending.dead_letters)  # 4. write
            pending.tally.dead_letters -= refused
            pending.tally.dead_letters_refused = refused
        await self._outcome_writer.write(pending)
        began = time.monotonic()
        answer = await self._store.commit(self._written(pending))  # 5. commit
        counters.commit_seconds.observe(time.monotonic() - began)
        if isinstance(answer, Fenced | Torn):
            if isinstance(answer, Fenced):
                self._fenced(partition, answer.offset)
            else:
                self._torn(partition, answer.end)
            await self._outcome_writer.publish(pending)
            return
        partition.stored = pending.end
        await self._outcome_writer.publish(pending)  # 6. publish, count
        partition.published(pending)
        settle(pending, counters, counters.definition.kinds)
        counted = pending.tally.counters
        accepted = sum(counted["accepted"].values())
        self.rejections.note(accepted, counted["rejected"], pending.dead_letters, time.monotonic())
        for line in partition.decoder.fresh():
            log.warning("%s", line)
        if pending.tally.gaps and pending.partition not in self._warned_of_gaps:
            self._warned_of_gaps.add(pending.partition)
            log.error(
                "partition %d: %d records between the offsets %d and %d are gone from the log, as"
                " compaction takes them; they and further ones are counted as lost; set"
                " cleanup.policy=delete",
                pending.partition,
                pending.tally.gaps,
                pending.start or 0,
                pending.end,
            )
        for positive in partition.state.attribution.counted_anyway - self._warned:
            self._warned.add(positive)
            log.warning("%s", positive.counts_anyway())
        if pending.checkpoint is not None:
            partition.checkpointed_at = time.monotonic()
            partition.checkpoint_bytes = pending.checkpoint.size

    def _written(self, pending: PendingCommit) -> Commit:
        saved = pending.checkpoint
        return Commit(
            partition=pending.partition,
            start=pending.start,
            end=pending.end,
            users=pending.users,
            cluster_id=self._restorer.cluster_id,
            topic_id=self._restorer.topic_id,
            fingerprint=self._restorer.fingerprint,
            definition=self._restorer.described,
            now=int(time.time() * 1000),
            checkpoint=None
            if saved is None
            else CheckpointWrite(saved.header, saved.chunks, saved.keep, pending.since),
            last_record=pending.last_record,
            visits=pending.visits,
            first=pending.first,
        )


def _advance(steps: Generator[None, None, PendingCommit], seconds: float) -> PendingCommit | None:
    """Take steps of making a commit for so long, at least one; return the commit once made."""
    end = time.monotonic() + seconds
    try:
        next(steps)
        while time.monotonic() < end:
            next(steps)
    except StopIteration as made:
        pending: PendingCommit = made.value
        return pending
    return None
