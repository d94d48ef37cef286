"""The partitions of a worker: how they come, go, and begin again from the store.

A note in the store is written before a large batch is unpacked, so that workers do not die of one
for ever. It goes when the batch is committed or given up, or when the partition goes. The note of a
worker that died stays and is counted by the next one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from streameval.base.errors import StreamevalError
from streameval.base.retry import answer_within, persist
from streameval.worker.commits import Commits
from streameval.worker.restore import PartitionRestorer

if TYPE_CHECKING:
    from streameval.config.settings import Settings
    from streameval.web.status import ProcessCounters
    from streameval.worker.assigned_partition import AssignedPartition
    from streameval.worker.outcome_writer import OutcomeWriter
    from streameval.worker.ports import EventLog, StateStore
    from streameval.worker.shutdown import Life

log = logging.getLogger(__name__)

# A batch that this many workers died of is left alone for an hour.
MOST_DEATHS: Final = 2


class LargeBatches:
    """The notes of one worker: by partition, the offset after its large batch."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._ends: dict[int, int] = {}

    @property
    def noted(self) -> Collection[int]:
        """The partitions that have a note."""
        return self._ends.keys()

    async def note(self, partition: int, first: int, last: int) -> str:
        """Note a batch before it is unpacked; return why it must not be, if workers died of it.

        Raises `RefusedError`.
        """
        if self._ends.get(partition) == last + 1:  # our own note: it was paused, and goes on
            return ""
        deaths = await persist(lambda: self._store.note_batch(partition, first, MOST_DEATHS))
        if deaths >= MOST_DEATHS:
            return (
                f"{deaths} workers ended while they had it unpacked: it is left alone for an hour;"
                " give workers more memory, or lower read_memory"
            )
        if deaths:
            log.error(
                "partition %d: a worker ended while it had the batch at offsets %d to %d"
                " unpacked; trying it once more",
                partition,
                first,
                last,
            )
        self._ends[partition] = last + 1
        return ""

    def is_past(self, partition: int, offset: int) -> bool:
        """Whether the large batch of a partition lies before `offset`."""
        return offset >= self._ends[partition]

    def drop(self, partitions: Iterable[int]) -> list[int]:
        """Drop notes; return the partitions whose note the store may still have."""
        return [number for number in partitions if self._ends.pop(number, None) is not None]


# A rebalance waits so long for the last commit of a partition that goes. After that, the fence
# decides.
REVOKE_SECONDS: Final = 8.0
# After a fence: time for the group to say who owns the partition now.
FENCE_SECONDS: Final = 3.0
NOTE_TIMEOUT: Final = 5.0


class Assignment:
    """The `Listener` of the log: it restores what comes, and commits what goes.

    `partitions` are those that are read, by number. `told`: the group has said at least once
    which these are.
    """

    def __init__(
        self,
        settings: Settings,
        event_log: EventLog,
        store: StateStore,
        outcome_writer: OutcomeWriter,
        counters: ProcessCounters,
        *,
        life: Life,
        reset_windows: bool = False,
    ) -> None:
        self._group = settings.group
        self._event_log = event_log
        self._store = store
        self._counters = counters
        self._life = life
        self.partitions: dict[int, AssignedPartition] = {}
        self.told = False
        self.restorer = PartitionRestorer(
            settings, event_log, store, outcome_writer, reset_windows=reset_windows
        )
        self.commits = Commits(
            event_log,
            store,
            outcome_writer,
            self.restorer,
            counters=counters,
            held=self.partitions,
            fenced=self.drop,
            torn=self._mend,
            failed=life.fail,
        )
        self._numbers: set[int] = set()  # also of those that are not restored yet
        self._parked: dict[int, AssignedPartition] = {}
        self._large = LargeBatches(store)
        self._restores: dict[int, asyncio.Task[None]] = {}
        self._batch_ends: dict[int, int | None] = {}  # of the next batch, where it must end there

    @property
    def awaited(self) -> list[int]:
        """The partitions that are ours and not restored yet."""
        return sorted(self._numbers - self.partitions.keys())

    @property
    def is_whole(self) -> bool:
        """Whether no partition is being restored."""
        return not (self._restores or any(each.restoring for each in self.partitions.values()))

    def holds(self, partition: AssignedPartition) -> bool:
        """Whether this very state is still ours: a partition may have gone and come again."""
        return self.partitions.get(partition.number) is partition

    def is_idle(self, partition: AssignedPartition) -> bool:
        """Whether it is ours, and no commit of it is under way."""
        return partition.number not in self.commits.under_way and self.holds(partition)

    def committed(self) -> dict[int, int]:
        """Return the stored offset of each partition that has one."""
        offsets = {number: partition.stored for number, partition in self.partitions.items()}
        return {number: offset for number, offset in offsets.items() if offset is not None}

    # ------------------------------------------------------------- the group's word

    async def assigned(self, partitions: Sequence[int]) -> None:
        """Restore the partitions; nothing is read of them before that."""
        for number in partitions:
            self._numbers.add(number)
            self._begin_restore(number, 0.0)
        # Partitions that went to another worker are gone for good.
        gone = [self._parked.pop(number) for number in self._parked.keys() - self._numbers]
        if gone:
            self._life.spawn(_free(gone))
        if partitions:
            log.info("assigned partitions %s", ", ".join(map(str, sorted(partitions))))
        self.told = True

    async def revoked(self, partitions: Sequence[int]) -> None:
        """Commit all applied, then let go; keep the state in case the partition comes back."""
        for number in partitions:
            self._numbers.discard(number)
            restoring = self._restores.pop(number, None)
            if restoring is not None:
                restoring.cancel()
        self._forget_batches(partitions)
        going = [self.partitions[number] for number in partitions if number in self.partitions]
        await self.finish(going, REVOKE_SECONDS)
        for partition in going:
            whole = not (partition.uncommitted or partition.held)
            if self.partitions.pop(partition.number, None) is partition and whole:
                self._parked[partition.number] = partition
            partition.paused = False

    async def finish(self, going: Sequence[AssignedPartition], seconds: float) -> None:
        """Commit everything applied to `going`, with a checkpoint, if the time suffices."""
        end = time.monotonic() + seconds
        for partition in going:
            partition.backlog.clear()
        while time.monotonic() < end:
            for partition in going:
                if self.holds(partition) and partition.unsaved:
                    self.commits.begin(partition, with_checkpoint=True)
            running = {
                self.commits.under_way[partition.number]
                for partition in going
                if partition.number in self.commits.under_way
            }
            if not running or self._life.failure is not None:
                return
            await asyncio.wait(running, timeout=max(0.0, end - time.monotonic()))

    # ------------------------------------------------------- beginning from the store

    def _begin_restore(self, number: int, delay: float) -> None:
        if self._life.stopping.is_set():
            return
        self._event_log.pause(number)
        self.partitions.pop(number, None)
        before = self._restores.pop(number, None)
        if before is not None:
            before.cancel()
        self._restores[number] = asyncio.create_task(self._restore(number, delay))

    async def _restore(self, number: int, delay: float) -> None:
        try:
            await asyncio.sleep(delay)
            partition = await self.restorer.open(number, self._parked.pop(number, None))
            if number in self._numbers:
                partition.batch_end, partition.first = self._batch_ends.pop(number, None), True
                self.partitions[number] = partition
                self._event_log.seek(number, partition.next_offset)
                self._event_log.resume(number)
        except Exception as error:  # noqa: BLE001  whatever ends a restore ends the worker
            self._life.fail(error)
        else:
            self._restores.pop(number, None)

    def drop(self, partition: AssignedPartition, stored: int | None) -> None:
        """Start again from the store: another owner moved on, or the store lost data."""
        log.warning(
            "partition %d: fenced at offset %s, Redis is at %s: another worker (or a second"
            " deployment named %s) went on, or Redis lost data; reading again from there",
            partition.number,
            partition.committed,
            stored,
            self._group,
        )
        self._start_again(partition, 0.0 if stored is None else FENCE_SECONDS)

    def _mend(self, partition: AssignedPartition, end: int | None) -> None:
        """Start again from the store, and end a batch at `end`: users are counted up to there."""
        log.warning("partition %d: a commit was applied in part, reading again", partition.number)
        self._batch_ends[partition.number] = end
        self._start_again(partition, 0.0)

    def _start_again(self, partition: AssignedPartition, delay: float) -> None:
        self._counters.fences += 1
        if self._parked.get(partition.number) is partition:
            # Its last commit is not stored, so nobody may go on with it.
            del self._parked[partition.number]
        if self.holds(partition):
            del self.partitions[partition.number]
            if partition.number in self._numbers:
                self._begin_restore(partition.number, delay)

    # ------------------------------------------------------------- large batches

    async def unpacking(self, partition: int, first: int, last: int) -> str:
        """Note a large batch before it is unpacked; return why it must not be, or ""."""
        try:
            why = await self._large.note(partition, first, last)
        except StreamevalError as error:
            self._life.fail(error)
            return str(error)
        if not why and partition not in self._numbers:  # it went while Redis was waited for
            self._forget_batches([partition])
            return "it is another worker's by now"
        return why

    async def unpacked(self, partition: int) -> None:
        """Withdraw the note about a batch that cannot be read."""
        self._forget_batches([partition])

    def forget_past_batches(self) -> None:
        """Withdraw the notes about batches that are committed."""
        for number in list(self._large.noted):
            ours = self.partitions.get(number)
            if ours is not None and self._large.is_past(number, ours.stored or 0):
                self._forget_batches([number])

    def _forget_batches(self, partitions: Sequence[int]) -> None:
        for number in self._large.drop(partitions):
            self._life.spawn(answer_within(self._store.forget_batch(number), NOTE_TIMEOUT))

    # ----------------------------------------------------------------------- stop

    def cancel_restores(self) -> None:
        """Restore nothing any more."""
        for task in self._restores.values():
            task.cancel()

    async def leave(self, going: Sequence[AssignedPartition], seconds: float) -> bool:
        """Commit `going`, and withdraw all notes; whether everything is committed.

        After an error nothing more is committed: the state may be what raised it, and a checkpoint
        of it would end every next worker. The applied events are read again.
        """
        if self._life.failure is None:
            await self.finish(going, seconds)
        left_over = any(each.uncommitted or each.under_way for each in going)
        flushed = self._life.failure is None and not left_over
        for task in list(self.commits.under_way.values()):
            task.cancel()
        if self._life.failure is None:
            notes = [self._store.forget_batch(number) for number in self._large.noted]
            await asyncio.gather(*(answer_within(note, 1.0) for note in notes))
        return flushed


async def _free(gone: list[AssignedPartition]) -> None:
    """Free partitions that nobody goes on with, while the loop breathes."""
    while gone:
        for _ in gone.pop().state.emptying():
            await asyncio.sleep(0)
