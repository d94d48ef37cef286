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

`assignment` says how partitions come and go, and `restore` how one is made anew.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from streameval import __version__
from streameval.base.retry import Complaints, Waiting, answer_within
from streameval.kafka.consumer import open_event_log
from streameval.store.redis_store import RedisStateStore
from streameval.store.scorecards import ScorecardReader
from streameval.web.status import PartitionStatus, ProcessCounters, ServiceStatus
from streameval.worker.assignment import Assignment
from streameval.worker.commits import STRETCH_SECONDS
from streameval.worker.live_figures import LiveFigures
from streameval.worker.outcome_writer import OutcomeWriter, open_files
from streameval.worker.server_watch import PROBE_TIMEOUT, ServerWatch
from streameval.worker.shutdown import Life

if TYPE_CHECKING:
    from streameval.config.settings import Settings
    from streameval.experiments.words import Scorecard
    from streameval.files.outcome_files import OutcomeFolder
    from streameval.worker.assigned_partition import AssignedPartition
    from streameval.worker.ports import EventLog, StateStore

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
# Scorecards change with the checkpoints; reading them takes a few calls a partition.
SCORECARD_SECONDS: Final = 5.0


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
        self._most_bytes = settings.read_memory // WAITING_SHARE
        self._life = Life()
        self.assignment = Assignment(
            settings,
            event_log,
            store,
            self.outcome_writer,
            self.counters,
            life=self._life,
            reset_windows=reset_windows,
        )
        self.partitions = self.assignment.partitions
        self.commits = self.assignment.commits
        self._watch = ServerWatch(event_log, store, self.assignment, self._life)
        self._waiting = Waiting()  # for a schema registry
        self._left = asyncio.Event()
        self._joined = False
        self._reason = "starting"
        self._scorecards: Sequence[Scorecard] = ()
        self.live = LiveFigures(
            self.definition,
            event_log,
            self.partitions,
            self.counters,
            settings.tick / 1000,
            flush=self._flush,
            broker_up=lambda: self._watch.broker_up,
            all_here=lambda: self.assignment.is_whole,
        )
        self._started_at = time.time()

    # ---------------------------------------------------------------------- run

    async def run(self) -> None:
        """Work until stopped; raises the `StreamevalError` that ends the worker."""
        try:
            await self._join_and_turn()
        except Exception as error:
            self._life.fail(error)
            raise
        finally:
            self._left.set()

    async def _join_and_turn(self) -> None:
        await self.outcome_writer.check()
        self._reason = f"waiting for Redis since {Complaints().since}"
        await self._watch.wait_for_store()
        life = self._life
        if not life.stopping.is_set():
            self._reason = f"waiting for Kafka since {Complaints().since}"
            await life.unless_stopping(self._join())
        self._joined = self._watch.broker_up = not life.stopping.is_set()
        self._reason = "joining the group"
        life.spawn(self._watch.probe())
        life.spawn(self._watch.tell_group())
        if self.at_start is not None:
            life.spawn(self.at_start())
        if self.definition.experiments:
            life.spawn(self._judge())
        if self.definition.experiments and self._outcomes is not None:
            # Reading files needs modules that most workers need not load.
            from streameval.worker.experiment_fill import ExperimentFill

            fill = ExperimentFill(self._outcomes, self.definition, self.partitions)
            life.spawn(fill.run())
        while not life.stopping.is_set():
            await self._turn()
            if life.failure is not None:
                raise life.failure

    async def _join(self) -> None:
        """Join the group; where the stored state would be refused, raise before a rebalance."""
        await self.assignment.restorer.check_stored(await self.event_log.connect())
        await self.event_log.start(self.assignment)

    async def _turn(self) -> None:
        """Read, apply, and begin the commits that are due."""
        waiting = sum(
            partition.backlog.records
            for partition in self.partitions.values()
            if not partition.paused
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
        self.assignment.forget_past_batches()

    def _waiting_bytes(self) -> int:
        return sum(partition.waiting_bytes for partition in self.partitions.values())

    async def _work(self, partition: AssignedPartition) -> None:
        name = f"partition {partition.number}"
        blocked = name in self._waiting
        for number in range(1, TURN_SLICES + 1):
            if not partition.backlog or not self.assignment.holds(partition):
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
        if not self.assignment.holds(partition):
            return
        if partition.due(time.monotonic()):
            self.commits.begin(partition)
        self._regulate(partition, blocked=blocked)

    def _regulate(self, partition: AssignedPartition, *, blocked: bool) -> None:
        """Pause a partition that waits for the store, resume it when its backlog is gone."""
        number = partition.number
        if blocked and not partition.paused:
            partition.paused = True
            self.event_log.pause(number)
            if self._waiting_bytes() >= self._most_bytes:
                # Partitions that do not wait go on; this one reads its records again.
                partition.backlog.clear()
                self.event_log.seek(number, partition.next_offset)
        elif partition.paused and number not in self.commits.under_way:
            partition.paused = False
            self.event_log.resume(number)

    async def _judge(self) -> None:
        """Judge the experiments every few seconds; the last scorecards stay while Redis is away."""
        reader = ScorecardReader(self.store, self.definition)
        while True:
            found = await answer_within(reader.read(self.event_log.partitions), PROBE_TIMEOUT)
            self._scorecards = self._scorecards if found is None else found
            await asyncio.sleep(SCORECARD_SECONDS)

    # -------------------------------------------------------------------- figures

    async def tick(self) -> bool:
        """Compute the figures of all partitions anew where that is due; return whether it was."""
        try:
            return await self.live.tick()
        except Exception as error:
            self._life.fail(error)
            raise

    def _flush(self, partition: AssignedPartition) -> None:
        """Flush for the figures; a worker that stops commits with a checkpoint, by itself."""
        if not self._life.stopping.is_set():
            self.commits.begin(partition)

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
            PartitionStatus(number, restoring=True) for number in self.assignment.awaited
        ]
        reason = "" if self.assignment.told else self._reason
        unfit = self._watch.unfit
        return ServiceStatus(
            version=__version__,
            topic=self.settings.topic,
            group=self.settings.group,
            started_at=self._started_at,
            definition=self.definition,
            counters=self.counters,
            store_up=self._watch.store_up,
            broker_up=self._watch.broker_up,
            ready=self._joined and not (reason or unfit),
            reason=("" if self._joined else self.event_log.trouble) or reason or unfit,
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
        """Stop reading, flush, commit, tell the group, close; whether everything is committed."""
        self._life.stopping.set()
        await answer_within(self._left.wait(), max(0.1, deadline - time.monotonic() - 3))
        self.assignment.cancel_restores()
        self._life.cancel()
        self._waiting.close()
        # Also those that are fenced meanwhile, and dropped: their applied records are read again.
        going = list(self.partitions.values())
        flushed = await self.assignment.leave(going, max(0.5, deadline - time.monotonic() - 3))
        offsets = self.assignment.committed()
        if self._joined and offsets:
            await answer_within(self.event_log.commit(offsets), 1.0)
        left = max(0.2, (deadline - time.monotonic()) / 2)
        await answer_within(self.event_log.close(left), left)
        await answer_within(self.store.close(left), left)
        return flushed


def open_ingest(settings: Settings, *, reset_windows: bool = False) -> Ingest:
    """Make the service that the settings describe, on Kafka and Redis; nothing is connected yet."""
    return Ingest(
        settings,
        open_event_log(settings),
        RedisStateStore.of(settings),
        outcomes=open_files(settings),
        reset_windows=reset_windows,
    )


def _counted_to(partition: AssignedPartition) -> int:
    """Return the offset up to which events are in the store's counters."""
    return partition.next_offset if partition.stored is None else partition.stored
