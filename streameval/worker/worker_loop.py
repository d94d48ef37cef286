"""The running service: partitions come and go, records become commits and checkpoints.

The steps of one batch of one partition (numbers stand in the code):

1. *read* the log (`_turn`). A partition whose store is behind is paused, which bounds memory and
   keeps up the membership in the group.
2. *decode and apply*, a slice at a time (`AssignedPartition.work`).
3. *make the commit*: flush, and every `checkpoint_interval` make a checkpoint
   (`AssignedPartition.make_commit`, `AssignedPartition.save`). Both are made in steps while
   nothing is applied to this partition. So heartbeats and pages have their turn, whatever the log
   holds.
4. *write* rejected records to the dead-letter topic, until acknowledged. With a checkpoint, also
   write the outcome files of the slates that it gives up; they are not visible yet.
5. *commit*: one script applies counters and offset (and the checkpoint's pointer) whole, if the
   stored offset is still the one the batch began at. The next batch is applied meanwhile.
6. *publish* the outcome files that the checkpoint names, and count the batch in the process'
   counters.
7. *tell* Kafka's group the offset, for tools that show lag. Nothing depends on it.

If the worker dies before step 5, the batch is read again, and dead letters may repeat with the same
source offset. After step 5 it is not. A refused commit means that another owner went on, or that
Redis lost its data. Then the partition's state is dropped and restored from the store.

`restore` says how a partition comes to a worker.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from streameval import __version__
from streameval.base.errors import RefusedError, StreamevalError, UnreachableError
from streameval.base.retry import Complaints, Waiting, answer_within
from streameval.kafka.consumer import open_event_log
from streameval.store.redis_store import RedisStateStore
from streameval.store.scorecards import ScorecardReader
from streameval.web.status import PartitionStatus, ProcessCounters, ServiceStatus
from streameval.worker.assigned_partition import AssignedPartition
from streameval.worker.commits import STRETCH_SECONDS, Commits
from streameval.worker.large_batches import LargeBatches
from streameval.worker.live_figures import LiveFigures
from streameval.worker.outcome_writer import OutcomeWriter, open_files
from streameval.worker.ports import EventLog, StateStore
from streameval.worker.restore import PartitionRestorer

if TYPE_CHECKING:
    from streameval.config.settings import Settings
    from streameval.experiments.words import Scorecard
    from streameval.files.outcome_files import OutcomeFolder

log = logging.getLogger(__name__)

# Records of one read: some slices of each partition, so that commits and pages get their turn.
POLL_RECORDS: Final = 8_000
# The share of `read_memory` for records that wait to be applied; a read brings as much again.
WAITING_SHARE: Final = 16
# Seconds of a read that finds nothing; a batch that is due waits no longer than this.
POLL_SECONDS: Final = 0.1
# Slices applied of one partition before the others get their turn. A batch that is due ends the
# turn: its commit is made while the slates it touched are still in the processor's caches.
TURN_SLICES: Final = 32
# Slices applied before commits and pages get their turn: about 10 ms.
STRIDE_SLICES: Final = 4
PROBE_SECONDS: Final = 2.0
PROBE_TIMEOUT: Final = 5.0
GROUP_COMMIT_SECONDS: Final = 5.0
# Scorecards change with the checkpoints; reading them takes a few calls a partition.
SCORECARD_SECONDS: Final = 5.0
# A rebalance waits so long for the last commit of a partition that goes. After that, the fence
# decides.
REVOKE_SECONDS: Final = 8.0
# After a fence: time for the group to say who owns the partition now.
FENCE_SECONDS: Final = 3.0


class Ingest:
    """The loop around an `EventLog` and a `StateStore`; `app` runs it, ticks and stops it.

    `at_start` runs once the group is joined; it may raise no error.
    """

    at_start: Callable[[], Coroutine[Any, Any, None]] | None = None

    def __init__(
        self,
        settings: Settings,
        event_log: EventLog,
        store: StateStore,
        *,
        outcomes: OutcomeFolder | None = None,
        reset_windows: bool = False,
    ) -> None:
        self.settings = settings
        self.definition = settings.definition()
        self.event_log = event_log
        self.store = store
        self._outcomes = outcomes
        self.outcome_writer = OutcomeWriter(outcomes, store)
        self.counters = ProcessCounters(self.definition)
        self.partitions: dict[int, AssignedPartition] = {}
        self._most_bytes = settings.read_memory // WAITING_SHARE
        self._restorer = PartitionRestorer(
            settings, event_log, store, self.outcome_writer, reset_windows=reset_windows
        )
        self._assigned: set[int] = set()
        self._parked: dict[int, AssignedPartition] = {}
        self._paused: set[int] = set()
        self.commits = Commits(
            event_log,
            store,
            self.outcome_writer,
            self._restorer,
            counters=self.counters,
            held=self.partitions,
            fenced=self._drop,
            torn=self._mend,
            failed=self._fail,
        )
        self._large = LargeBatches(store)
        self._waiting = Waiting()  # for a schema registry
        self._restores: dict[int, asyncio.Task[None]] = {}
        self._batch_ends: dict[int, int | None] = {}  # of the next batch, where it must end there
        self._background: set[asyncio.Task[Any]] = set()
        self._failure: BaseException | None = None
        self._stopping = asyncio.Event()
        self._left = asyncio.Event()
        self._joined = False
        self._store_up = False
        self._broker_up = False
        self._reason = "starting"
        self._unfit = ""
        self._scorecards: Sequence[Scorecard] = ()
        self.live = LiveFigures(
            self.definition,
            event_log,
            self.partitions,
            self.counters,
            settings.tick / 1000,
            flush=self._flush,
            broker_up=lambda: self._broker_up,
            all_here=self._all_here,
        )
        self._started_at = time.time()

    # ---------------------------------------------------------------------- run

    async def run(self) -> None:
        """Work until stopped; raises the `StreamevalError` that ends the worker."""
        try:
            await self._join_and_turn()
        except Exception as error:
            self._fail(error)
            raise
        finally:
            self._left.set()

    async def _join_and_turn(self) -> None:
        await self.outcome_writer.check()
        await self._wait_for_store()
        if not self._stopping.is_set():
            self._reason = f"waiting for Kafka since {Complaints().since}"
            await self._unless_stopping(self._join())
        self._joined = not self._stopping.is_set()
        self._broker_up = self._joined
        self._reason = "joining the group"
        self._spawn(self._probe())
        self._spawn(self._tell_group())
        if self.at_start is not None:
            self._spawn(self.at_start())
        if self.definition.experiments:
            self._spawn(self._judge())
        if self.definition.experiments and self._outcomes is not None:
            # Reading files needs modules that most workers need not load.
            from streameval.worker.experiment_fill import ExperimentFill

            fill = ExperimentFill(self._outcomes, self.definition, self.partitions)
            self._spawn(fill.run())
        while not self._stopping.is_set():
            await self._turn()
            if self._failure is not None:
                raise self._failure

    async def _join(self) -> None:
        """Join the group; where the stored state would be refused, raise before a rebalance."""
        await self._restorer.check_stored(await self.event_log.connect())
        await self.event_log.start(self)

    async def _wait_for_store(self) -> None:
        complaints = Complaints()
        self._reason = f"waiting for Redis since {complaints.since}"
        while not self._stopping.is_set():
            try:
                await self.store.check()
            except UnreachableError as error:
                complaints.tell(f"{error} Waiting for it.")
            else:
                self._store_up = True
                return
            await self._unless_stopping(asyncio.sleep(0.5))

    async def _unless_stopping(self, work: Coroutine[Any, Any, Any]) -> None:
        """Await `work`, but no longer than until the worker is told to stop."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if task.done():
            await task
        else:
            task.cancel()

    async def _turn(self) -> None:
        """Read, apply, and begin the commits that are due."""
        waiting = sum(
            partition.waiting
            for number, partition in self.partitions.items()
            if number not in self._paused
        )
        # 1. read, unless the last read was more than one round applies: memory is bounded
        room = not waiting or self._waiting_bytes() < self._most_bytes
        if waiting < POLL_RECORDS and room:
            for records in await self.event_log.poll(
                0.0 if waiting else POLL_SECONDS, POLL_RECORDS
            ):
                partition = self.partitions.get(records.partition)
                if partition is not None:
                    partition.take(records)
        for partition in list(self.partitions.values()):
            await self._work(partition)
        for number in list(self._large.noted):
            ours = self.partitions.get(number)
            if ours is not None and self._large.is_past(number, ours.stored or 0):
                self._forget_batches([number])

    def _waiting_bytes(self) -> int:
        return sum(partition.waiting_bytes for partition in self.partitions.values())

    async def _work(self, partition: AssignedPartition) -> None:
        name = f"partition {partition.number}"
        blocked = name in self._waiting
        for number in range(1, TURN_SLICES + 1):
            if not partition.backlog or self.partitions.get(partition.number) is not partition:
                break
            waits = partition.due(time.monotonic()) and not self.commits.begin(partition)
            if waits or partition.held or self._waiting.holds(name, partition.unready()):
                blocked = True
                break
            began = time.monotonic()
            for _ in partition.work(began):  # 2. decode and apply
                await asyncio.sleep(0)
            now = time.monotonic()
            if partition.due(now):
                break
            if number % STRIDE_SLICES == 0 or now - began > STRETCH_SECONDS:
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        if self.partitions.get(partition.number) is not partition:
            return
        if partition.due(time.monotonic()):
            self.commits.begin(partition)
        self._regulate(partition, blocked=blocked)

    def _regulate(self, partition: AssignedPartition, *, blocked: bool) -> None:
        """Pause a partition that waits for the store, resume it when its backlog is gone."""
        number = partition.number
        if blocked and number not in self._paused:
            self._paused.add(number)
            self.event_log.pause(number)
            if self._waiting_bytes() >= self._most_bytes:
                # Partitions that do not wait go on; this one reads its records again.
                partition.drop_backlog()
                self.event_log.seek(number, partition.next_offset)
        elif number in self._paused and number not in self.commits.under_way:
            self._paused.discard(number)
            self.event_log.resume(number)

    # ------------------------------------------------------------------ commits

    def _drop(self, partition: AssignedPartition, stored: int | None) -> None:
        """Start again from the store: another owner moved on, or the store lost data."""
        log.warning(
            "partition %d: fenced at offset %s, Redis is at %s: another worker (or a second"
            " deployment named %s) went on, or Redis lost data; reading again from there",
            partition.number,
            partition.committed,
            stored,
            self.settings.group,
        )
        self._start_again(partition, 0.0 if stored is None else FENCE_SECONDS)

    def _mend(self, partition: AssignedPartition, end: int | None) -> None:
        """Start again from the store, and end a batch at `end`: users are counted up to there."""
        log.warning("partition %d: a commit was applied in part, reading again", partition.number)
        self._batch_ends[partition.number] = end
        self._start_again(partition, 0.0)

    def _start_again(self, partition: AssignedPartition, delay: float) -> None:
        self.counters.fences += 1
        if self._parked.get(partition.number) is partition:
            # Its last commit is not stored, so nobody may go on with it.
            del self._parked[partition.number]
        if self.partitions.get(partition.number) is partition:
            del self.partitions[partition.number]
            if partition.number in self._assigned:
                self._begin_restore(partition.number, delay)

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error

    # ------------------------------------------------------------- large batches

    async def unpacking(self, partition: int, first: int, last: int) -> str:
        """Note a large batch before it is unpacked; return why it must not be, or ""."""
        try:
            why = await self._large.note(partition, first, last)
        except StreamevalError as error:
            self._fail(error)
            return str(error)
        if not why and partition not in self._assigned:  # it went while Redis was waited for
            self._forget_batches([partition])
            return "it is another worker's by now"
        return why

    async def unpacked(self, partition: int) -> None:
        """Withdraw the note about a batch that cannot be read."""
        self._forget_batches([partition])

    def _forget_batches(self, partitions: Sequence[int]) -> None:
        for number in self._large.drop(partitions):
            self._spawn(answer_within(self.store.forget_batch(number), PROBE_TIMEOUT))

    # ------------------------------------------------------- partitions come and go

    async def assigned(self, partitions: Sequence[int]) -> None:
        """Restore the partitions; nothing is read of them before that."""
        for number in partitions:
            self._assigned.add(number)
            self._begin_restore(number, 0.0)
        # Partitions that went to another worker are gone for good.
        gone = [self._parked.pop(number) for number in self._parked.keys() - self._assigned]
        if gone:
            self._spawn(_free(gone))
        if partitions:
            log.info("assigned partitions %s", ", ".join(map(str, sorted(partitions))))
        self._reason = ""

    async def revoked(self, partitions: Sequence[int]) -> None:
        """Commit all applied, then let go; keep the state in case the partition comes back."""
        for number in partitions:
            self._assigned.discard(number)
            restoring = self._restores.pop(number, None)
            if restoring is not None:
                restoring.cancel()
        self._forget_batches(partitions)
        going = [self.partitions[number] for number in partitions if number in self.partitions]
        await self._finish(going, REVOKE_SECONDS)
        for partition in going:
            whole = not (partition.uncommitted or partition.held)
            if self.partitions.pop(partition.number, None) is partition and whole:
                self._parked[partition.number] = partition
            self._paused.discard(partition.number)

    async def _finish(self, going: Sequence[AssignedPartition], seconds: float) -> None:
        """Commit everything applied to `going`, with a checkpoint, if the time suffices."""
        end = time.monotonic() + seconds
        for partition in going:
            partition.drop_backlog()
        while time.monotonic() < end:
            for partition in going:
                if self.partitions.get(partition.number) is partition and partition.unsaved:
                    self.commits.begin(partition, with_checkpoint=True)
            running = {
                self.commits.under_way[partition.number]
                for partition in going
                if partition.number in self.commits.under_way
            }
            if not running or self._failure is not None:
                return
            await asyncio.wait(running, timeout=max(0.0, end - time.monotonic()))

    def _begin_restore(self, number: int, delay: float) -> None:
        if self._stopping.is_set():
            return
        self.event_log.pause(number)
        self.partitions.pop(number, None)
        self._paused.discard(number)
        before = self._restores.pop(number, None)
        if before is not None:
            before.cancel()
        self._restores[number] = asyncio.create_task(self._restore(number, delay))

    async def _restore(self, number: int, delay: float) -> None:
        try:
            await asyncio.sleep(delay)
            partition = await self._restorer.open(number, self._parked.pop(number, None))
            if number in self._assigned:
                partition.batch_end, partition.first = self._batch_ends.pop(number, None), True
                self.partitions[number] = partition
                self.event_log.seek(number, partition.next_offset)
                self.event_log.resume(number)
        except Exception as error:  # noqa: BLE001  whatever ends a restore ends the worker
            self._fail(error)
        else:
            self._restores.pop(number, None)

    # ------------------------------------------------------------- in the background

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """End the worker where a task in the background failed: nobody else would notice."""
        self._background.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    async def _probe(self) -> None:
        """Ask every few seconds whether both servers answer."""
        while True:
            self.commits.rejections.say(time.monotonic())
            self._broker_up = bool(await answer_within(self.event_log.probe(), PROBE_TIMEOUT))
            if self._broker_up:
                try:
                    self._restorer.refuse_another_log()
                except RefusedError as error:
                    self._fail(error)
            facts = await answer_within(self.store.facts(), PROBE_TIMEOUT)
            self._store_up = facts is not None
            if facts is not None:
                evicts = facts.policy != "noeviction"
                self._unfit = (
                    f"Redis evicts keys (maxmemory-policy {facts.policy})" if evicts else ""
                )
            for partition in list(self.partitions.values()) if self._store_up else ():
                await self._check_offset(partition)
            await asyncio.sleep(PROBE_SECONDS)

    async def _check_offset(self, partition: AssignedPartition) -> None:
        """Notice a store that lost or rolled back its data, also while no events come."""
        before = partition.stored
        if before is None or partition.number in self.commits.under_way:
            return

        async def look() -> tuple[int | None]:
            return (await self.store.offset(partition.number),)

        answer = await answer_within(look(), PROBE_TIMEOUT)
        if answer is None or answer[0] == before or partition.stored != before:
            return
        if (
            partition.number not in self.commits.under_way
            and self.partitions.get(partition.number) is partition
        ):
            self._drop(partition, answer[0])

    async def _tell_group(self) -> None:
        """Tell Kafka's group the committed offsets, for tools that show lag."""
        told: dict[int, int] = {}
        while True:
            await asyncio.sleep(GROUP_COMMIT_SECONDS)
            offsets = self._committed()
            if offsets and offsets != told:
                await self.event_log.commit(offsets)  # 7. tell the group
                told = offsets

    async def _judge(self) -> None:
        """Judge the experiments every few seconds; the last scorecards stay while Redis is away."""
        reader = ScorecardReader(self.store, self.definition)
        while True:
            found = await answer_within(reader.read(self.event_log.partitions), PROBE_TIMEOUT)
            self._scorecards = self._scorecards if found is None else found
            await asyncio.sleep(SCORECARD_SECONDS)

    def _committed(self) -> dict[int, int]:
        return {
            number: partition.stored
            for number, partition in self.partitions.items()
            if partition.stored is not None
        }

    # -------------------------------------------------------------------- figures

    async def tick(self) -> bool:
        """Compute the figures of all partitions anew where that is due; return whether it was."""
        try:
            return await self.live.tick()
        except Exception as error:
            self._fail(error)
            raise

    def _flush(self, partition: AssignedPartition) -> None:
        """Flush for the figures; a worker that stops commits with a checkpoint, by itself."""
        if not self._stopping.is_set():
            self.commits.begin(partition)

    def _all_here(self) -> bool:
        restoring = any(partition.restoring for partition in self.partitions.values())
        return not (self._restores or restoring)

    def status(self) -> ServiceStatus:
        """Describe the worker for the pages and `/metrics`.

        Another thread reads the description. `partitions` and `figures` are new objects each time,
        while `counters` may be the living ones.
        """
        now = time.monotonic()
        partitions = [
            partition.status(now, self.event_log.lag(number, _counted_to(partition)))
            for number, partition in sorted(self.partitions.items())
        ]
        for partition in partitions:
            partition.unreadable = self.event_log.unreadable(partition.partition) or ""
            partition.waits_for = self._waiting.why.get(f"partition {partition.partition}", "")
        partitions += [
            PartitionStatus(number, restoring=True)
            for number in sorted(self._assigned - self.partitions.keys())
        ]
        return ServiceStatus(
            version=__version__,
            topic=self.settings.topic,
            group=self.settings.group,
            started_at=self._started_at,
            definition=self.definition,
            counters=self.counters,
            store_up=self._store_up,
            broker_up=self._broker_up,
            ready=self._joined and not (self._reason or self._unfit),
            reason=("" if self._joined else self.event_log.trouble) or self._reason or self._unfit,
            kafka_trouble=self.event_log.trouble,
            partitions=partitions,
            topic_partitions=self.event_log.partitions,
            figures=self.live.figures,
            nowcast_errors=self.live.past_nowcasts.errors(),
            scorecards=self._scorecards,
            rejected=self.commits.rejections.recent(now),
        )

    # ----------------------------------------------------------------------- stop

    async def stop(self, deadline: float) -> bool:
        """Stop reading, flush, commit, tell the group, close; whether everything is committed.

        After an error nothing more is committed: the state may be what raised it, and a checkpoint
        of it would end every next worker. The applied events are read again.
        """
        self._stopping.set()
        await answer_within(self._left.wait(), max(0.1, deadline - time.monotonic() - 3))
        for task in (*self._restores.values(), *self._background):
            task.cancel()
        self._waiting.close()
        # Also those that are fenced meanwhile, and dropped: their applied records are read again.
        going = list(self.partitions.values())
        if self._failure is None:
            await self._finish(going, max(0.5, deadline - time.monotonic() - 3))
        left_over = any(each.uncommitted or each.under_way for each in going)
        flushed = self._failure is None and not left_over
        for task in list(self.commits.under_way.values()):
            task.cancel()
        if self._failure is None:
            notes = [self.store.forget_batch(number) for number in self._large.noted]
            await asyncio.gather(*(answer_within(note, 1.0) for note in notes))
        offsets = self._committed()
        if self._joined and offsets:
            await answer_within(self.event_log.commit(offsets), 1.0)
        left = max(0.2, (deadline - time.monotonic()) / 2)
        await answer_within(self.event_log.close(left), left)
        await answer_within(self.store.close(left), left)
        return flushed


async def _free(gone: list[AssignedPartition]) -> None:
    """Free partitions that nobody goes on with, while the loop breathes."""
    while gone:
        for _ in gone.pop().state.emptying():
            await asyncio.sleep(0)


def open_ingest(settings: Settings, *, reset_windows: bool = False) -> Ingest:
    """Make the service that the settings describe, on Kafka and Redis; nothing is connected yet."""
    definition = settings.definition()
    store = RedisStateStore(
        settings.redis_url,
        settings.group,
        settings.topic,
        definition.kinds,
        user_ttl=settings.user_ttl,
    )
    return Ingest(
        settings,
        open_event_log(settings),
        store,
        outcomes=open_files(settings),
        reset_windows=reset_windows,
    )


def _counted_to(partition: AssignedPartition) -> int:
    """Return the offset up to which events are in the store's counters."""
    return partition.next_offset if partition.stored is None else partition.stored
