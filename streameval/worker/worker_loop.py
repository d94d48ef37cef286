"""The running service: partitions come and go, records become commits and checkpoints.

The steps of one batch of one partition (numbers stand in the code):

1. *read* what the log has (`_turn`); a partition whose store is behind is paused, so memory is
   bounded and the group's membership is kept up.
2. *decode and apply*, a slice at a time (`Owned.work`).
3. *cut*: flush, and make the commit; every `checkpoint_interval` with a checkpoint (`Owned.cut`,
   `Owned.save`). Both are made in steps while nothing is applied to this partition, so that
   heartbeats and pages have their turn whatever the log holds.
4. *bury* what was rejected in the dead-letter topic, acknowledged; with a checkpoint, write the
   outcome files of the slates that it gives up, not visible yet.
5. *commit*: one script that applies counters and offset (and the checkpoint's pointer) whole, if
   the stored offset is still the one the batch began at. The next batch is applied meanwhile.
6. *publish* the outcome files that the checkpoint names, and count the batch in the process'
   counters.
7. tell Kafka's group the offset, for tools; nothing depends on it.

A death between any two steps: before 5 the batch is read again (dead letters may repeat, with the
same source offset), after 5 it is not. A refused commit (5) means another owner went on, or Redis
lost its data: the partition's state is dropped and restored from what is stored.

How a partition comes to a worker stands in `takeover`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Generator, Sequence
from typing import TYPE_CHECKING, Any, Final

from streameval import __version__
from streameval.base.errors import RefusedError, StreamevalError, UnreachableError
from streameval.base.retry import answer_within, persist
from streameval.core.figures import Figures, Segment, ShownSegments, Sums, figures, merge
from streameval.kafka.consumer import open_reader
from streameval.store.redis_store import CheckpointWrite, Commit, Fenced, Store
from streameval.web.status import PartitionStatus, ProcessCounters, ServiceStatus
from streameval.worker.assigned_partition import Cut, Limits, Owned, settle
from streameval.worker.outcome_writer import Files, Outbox, open_files
from streameval.worker.ports import Keeper, Log
from streameval.worker.restore import Takeover

if TYPE_CHECKING:
    from streameval.config.settings import Settings

log = logging.getLogger(__name__)

# Records of one read: some slices of each partition, so that commits and pages get their turn.
POLL_RECORDS: Final = 8_000
# What may wait to be applied, as a share of `read_memory`; a read brings as much again.
WAITING_SHARE: Final = 16
# A batch that this many workers died of is left alone for an hour.
MOST_DEATHS: Final = 2
# Seconds of a read that finds nothing; a batch that is due waits no longer than this.
POLL_SECONDS: Final = 0.1
# Slices applied of one partition before the others get their turn, which a batch that is due ends:
# it is cut while what it touched is still in the processor's caches.
TURN_SLICES: Final = 32
# Slices applied before commits and pages get their turn: about 10 ms.
STRIDE_SLICES: Final = 4
# A flush and a cut may hold the loop for so long before heartbeats and pages get their turn: what
# a full batch of ordinary events takes. Whatever takes longer goes on in stretches.
AT_ONCE_SECONDS: Final = 0.05
STRETCH_SECONDS: Final = 0.01
PROBE_SECONDS: Final = 2.0
PROBE_TIMEOUT: Final = 5.0
GROUP_COMMIT_SECONDS: Final = 5.0
# What a rebalance waits for the last commit of a partition that goes; beyond, the fence decides.
REVOKE_SECONDS: Final = 8.0
# After a fence: time for the group to say who owns the partition now.
FENCE_SECONDS: Final = 3.0
# A figure is computed anew at most this share of the time (a tick gets rarer with many users).
TICK_SHARE: Final = 0.05


class Ingest:
    """The loop around one `Log` and one `Keeper`; `IngestLike` says how the frame uses it."""

    def __init__(
        self,
        settings: Settings,
        reader: Log,
        store: Keeper,
        *,
        outcomes: Files | None = None,
        reset_windows: bool = False,
    ) -> None:
        self.settings = settings
        self.definition = settings.definition()
        self.reader = reader
        self.store = store
        self.outbox = Outbox(outcomes, store)
        self.counters = ProcessCounters(self.definition)
        self.owned: dict[int, Owned] = {}
        self._limits = Limits(
            events=settings.batch_events,
            users=settings.batch_users,
            seconds=settings.batch_interval / 1000,
            checkpoint_seconds=settings.checkpoint_interval / 1000,
            max_clock_skew=self.definition.max_clock_skew,
        )
        self._most_bytes = settings.read_memory // WAITING_SHARE
        self._takeover = Takeover(
            settings, self._limits, reader, store, self.outbox, reset_windows=reset_windows
        )
        self._assigned: set[int] = set()
        self._parked: dict[int, Owned] = {}
        self._paused: set[int] = set()
        self._commits: dict[int, asyncio.Task[None]] = {}
        self._large: dict[int, int] = {}  # by partition, the offset beyond its large batch
        self._restores: dict[int, asyncio.Task[None]] = {}
        self._background: set[asyncio.Task[Any]] = set()
        self._failure: BaseException | None = None
        self._stopping = asyncio.Event()
        self._left = asyncio.Event()
        self._joined = False
        self._store_up = False
        self._broker_up = False
        self._reason = "starting"
        self._unfit = ""
        self._figures: Figures | None = None
        self._shown = ShownSegments(self.definition.max_segments)
        self._tick_at = 0.0
        self._started_at = time.time()

    # ---------------------------------------------------------------------- run

    async def run(self) -> None:
        """Work until stopped; raises the `StreamevalError` that ends the worker."""
        try:
            await self.outbox.check()
            await self._wait_for_store()
            if not self._stopping.is_set():
                self._reason = "waiting for Kafka"
                await self._unless_stopping(self._join())
            self._joined = not self._stopping.is_set()
            self._broker_up = self._joined
            self._reason = "joining the group"
            self._spawn(self._probe())
            self._spawn(self._tell_group())
            while not self._stopping.is_set():
                await self._turn()
                if self._failure is not None:
                    raise self._failure
        finally:
            self._left.set()

    async def _join(self) -> None:
        """Join the group, unless what is stored would be refused: others need not rebalance."""
        await self._takeover.check_stored(await self.reader.connect())
        await self.reader.start(self)

    async def _wait_for_store(self) -> None:
        self._reason = "waiting for Redis"
        said = 0.0
        while not self._stopping.is_set():
            try:
                await self.store.check()
            except UnreachableError as error:
                if time.monotonic() - said >= 3:
                    said = time.monotonic()
                    log.warning("%s Waiting for it.", error)
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
        """One round: read, apply, commit what is due."""
        waiting = sum(
            owned.waiting for number, owned in self.owned.items() if number not in self._paused
        )
        # 1. read, unless the last read was more than one round applies: memory is bounded
        room = not waiting or self._waiting_bytes() < self._most_bytes
        if waiting < POLL_RECORDS and room:
            for records in await self.reader.poll(0.0 if waiting else POLL_SECONDS, POLL_RECORDS):
                owned = self.owned.get(records.partition)
                if owned is not None:
                    owned.take(records)
        for owned in list(self.owned.values()):
            await self._work(owned)
        if self._large:
            self._forget_batches(
                [
                    number
                    for number, end in self._large.items()
                    if number in self.owned and (self.owned[number].stored or 0) >= end
                ]
            )

    def _waiting_bytes(self) -> int:
        return sum(owned.waiting_bytes for owned in self.owned.values())

    async def _work(self, owned: Owned) -> None:
        blocked = False
        for number in range(1, TURN_SLICES + 1):
            if not owned.backlog or self.owned.get(owned.number) is not owned:
                break
            waits = owned.due(time.monotonic()) and not self._begin_commit(owned)
            if waits or owned.held:
                blocked = True
                break
            began = time.monotonic()
            for _ in owned.work(began):  # 2. decode and apply
                await asyncio.sleep(0)
            now = time.monotonic()
            if owned.due(now):
                break
            if number % STRIDE_SLICES == 0 or now - began > STRETCH_SECONDS:
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        if self.owned.get(owned.number) is not owned:
            return
        if owned.due(time.monotonic()):
            self._begin_commit(owned)
        self._regulate(owned, blocked)

    def _regulate(self, owned: Owned, blocked: bool) -> None:
        """Pause a partition that waits for the store, resume it when its backlog is gone."""
        number = owned.number
        if blocked and number not in self._paused:
            self._paused.add(number)
            self.reader.pause(number)
            if self._waiting_bytes() >= self._most_bytes:
                # Partitions that do not wait go on; what this one has is read again.
                owned.drop_backlog()
                self.reader.seek(number, owned.next_offset)
        elif number in self._paused and number not in self._commits:
            self._paused.discard(number)
            self.reader.resume(number)

    # ------------------------------------------------------------------ commits

    def _begin_commit(self, owned: Owned, *, with_checkpoint: bool = False) -> bool:
        """Cut the batch and commit it in the background; False while another is under way."""
        if owned.number in self._commits:
            return False
        steps = owned.cut(time.monotonic(), with_checkpoint=with_checkpoint)  # 3. cut
        # Nearly always it is made at once, and the next batch is applied while it is committed.
        cut = _stretch(steps, AT_ONCE_SECONDS)
        task = asyncio.create_task(self._commit(owned, steps, cut))
        self._commits[owned.number] = task
        return True

    async def _commit(
        self, owned: Owned, steps: Generator[None, None, Cut], cut: Cut | None
    ) -> None:
        try:
            while cut is None:
                await asyncio.sleep(0)
                if self.owned.get(owned.number) is not owned:
                    return  # it was let go before it was cut: whoever has it now reads it again
                cut = _stretch(steps, STRETCH_SECONDS)
            began = time.monotonic()
            for _ in owned.save(cut):
                await asyncio.sleep(0)
            if cut.checkpoint is not None:
                self.counters.checkpoint_seconds.observe(time.monotonic() - began)
            if cut.letters:
                refused = await self.reader.bury(cut.letters)  # 4. bury, write
                cut.tally.dead_letters -= refused
                cut.tally.dead_letters_refused = refused
            await self.outbox.write(cut)
            began = time.monotonic()
            answer = await self.store.commit(self._written(cut))  # 5. commit
            self.counters.commit_seconds.observe(time.monotonic() - began)
            if isinstance(answer, Fenced):
                self._drop(owned, answer.offset)
                await self.outbox.discard(cut)
                return
            owned.stored = cut.end
            await self.outbox.publish(cut)  # 6. publish, count
            owned.published(cut)
            settle(cut, self.counters, self.definition.kinds)
            if cut.checkpoint is not None:
                owned.checkpointed_at = time.monotonic()
                owned.checkpoint_bytes = cut.checkpoint.size
        except StreamevalError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001  a bug of ours must end the worker, not a task
            self._fail(error)
        finally:
            owned.buried_bytes = 0
            self._commits.pop(owned.number, None)

    def _written(self, cut: Cut) -> Commit:
        saved = cut.checkpoint
        return Commit(
            partition=cut.partition,
            start=cut.start,
            end=cut.end,
            users=cut.users,
            cluster_id=self._takeover.cluster_id,
            topic_id=self._takeover.topic_id,
            fingerprint=self._takeover.fingerprint,
            definition=self._takeover.described,
            now=int(time.time() * 1000),
            checkpoint=None
            if saved is None
            else CheckpointWrite(saved.header, saved.chunks, saved.keep, cut.since),
            last_record=cut.last_record,
        )

    def _drop(self, owned: Owned, stored: int | None) -> None:
        """Another owner moved on, or the store lost data: start again from what is stored."""
        self.counters.fences += 1
        log.warning(
            "partition %d: fenced at offset %s, Redis is at %s: another worker (or a second"
            " deployment named %s) went on, or Redis lost data; reading again from what is stored",
            owned.number,
            owned.committed,
            stored,
            self.settings.group,
        )
        if self._parked.get(owned.number) is owned:
            # Its last commit is not stored, so nobody may go on with it.
            del self._parked[owned.number]
        if self.owned.get(owned.number) is owned:
            del self.owned[owned.number]
            if owned.number in self._assigned:
                self._begin_restore(owned.number, 0.0 if stored is None else FENCE_SECONDS)

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error

    # ------------------------------------------------------------- large batches

    async def unpacking(self, partition: int, first: int, last: int) -> str:
        """Note a large batch before it is unpacked; why it must not be, if workers died of it."""
        if self._large.get(partition) == last + 1:  # our own note: it was paused, and goes on
            return ""
        try:
            deaths = await persist(lambda: self.store.note_batch(partition, first, MOST_DEATHS))
        except StreamevalError as error:
            self._fail(error)
            return str(error)
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
        self._large[partition] = last + 1
        if partition not in self._assigned:  # it went while Redis was waited for
            self._forget_batches([partition])
            return "it is another worker's by now"
        return ""

    async def unpacked(self, partition: int) -> None:
        """Take the note back of a batch that cannot be read."""
        self._forget_batches([partition])

    def _forget_batches(self, partitions: Sequence[int]) -> None:
        for number in [number for number in partitions if self._large.pop(number, None)]:
            self._spawn(answer_within(self.store.forget_batch(number), PROBE_TIMEOUT))

    # ------------------------------------------------------- partitions come and go

    async def assigned(self, partitions: Sequence[int]) -> None:
        """Restore the partitions; nothing is read of them before that."""
        for number in partitions:
            self._assigned.add(number)
            self._begin_restore(number, 0.0)
        # What went to another worker is gone for good.
        self._parked = {n: owned for n, owned in self._parked.items() if n in self._assigned}
        if partitions:
            log.info("assigned partitions %s", ", ".join(map(str, sorted(partitions))))
        self._reason = ""

    async def revoked(self, partitions: Sequence[int]) -> None:
        """Commit what was applied, then let go; the state is kept in case it comes back."""
        for number in partitions:
            self._assigned.discard(number)
            restoring = self._restores.pop(number, None)
            if restoring is not None:
                restoring.cancel()
        self._forget_batches(partitions)
        going = [self.owned[number] for number in partitions if number in self.owned]
        await self._finish(going, REVOKE_SECONDS)
        for owned in going:
            whole = not (owned.uncommitted or owned.held)
            if self.owned.pop(owned.number, None) is owned and whole:
                self._parked[owned.number] = owned
            self._paused.discard(owned.number)

    async def _finish(self, going: Sequence[Owned], seconds: float) -> None:
        """Commit all that is applied of `going`, with a checkpoint, if the time suffices."""
        end = time.monotonic() + seconds
        for owned in going:
            owned.drop_backlog()
        while time.monotonic() < end:
            for owned in going:
                if self.owned.get(owned.number) is owned and owned.unsaved:
                    self._begin_commit(owned, with_checkpoint=True)
            running = {
                self._commits[owned.number] for owned in going if owned.number in self._commits
            }
            if not running or self._failure is not None:
                return
            await asyncio.wait(running, timeout=max(0.0, end - time.monotonic()))

    def _begin_restore(self, number: int, delay: float) -> None:
        if self._stopping.is_set():
            return
        self.reader.pause(number)
        self.owned.pop(number, None)
        self._paused.discard(number)
        before = self._restores.pop(number, None)
        if before is not None:
            before.cancel()
        self._restores[number] = asyncio.create_task(self._restore(number, delay))

    async def _restore(self, number: int, delay: float) -> None:
        try:
            await asyncio.sleep(delay)
            owned = await self._takeover.open(number, self._parked.pop(number, None))
            if number in self._assigned:
                self.owned[number] = owned
                self.reader.seek(number, owned.next_offset)
                self.reader.resume(number)
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
        """Ask both servers every few seconds whether they are there."""
        while True:
            self._broker_up = bool(await answer_within(self.reader.probe(), PROBE_TIMEOUT))
            if self._broker_up:
                try:
                    self._takeover.refuse_another_log()
                except RefusedError as error:
                    self._fail(error)
            facts = await answer_within(self.store.facts(), PROBE_TIMEOUT)
            self._store_up = facts is not None
            if facts is not None:
                evicts = facts.policy != "noeviction"
                self._unfit = (
                    f"Redis evicts keys (maxmemory-policy {facts.policy})" if evicts else ""
                )
            for owned in list(self.owned.values()) if self._store_up else ():
                await self._check_offset(owned)
            await asyncio.sleep(PROBE_SECONDS)

    async def _check_offset(self, owned: Owned) -> None:
        """Notice a store that lost or rolled back its data, also while no events come."""
        before = owned.stored
        if before is None or owned.number in self._commits:
            return

        async def look() -> tuple[int | None]:
            return (await self.store.offset(owned.number),)

        answer = await answer_within(look(), PROBE_TIMEOUT)
        if answer is None or answer[0] == before or owned.stored != before:
            return
        if owned.number not in self._commits and self.owned.get(owned.number) is owned:
            self._drop(owned, answer[0])

    async def _tell_group(self) -> None:
        """Tell Kafka's group the committed offsets, for tools that show lag."""
        told: dict[int, int] = {}
        while True:
            await asyncio.sleep(GROUP_COMMIT_SECONDS)
            offsets = self._committed()
            if offsets and offsets != told:
                await self.reader.commit(offsets)  # 7. tell the group
                told = offsets

    def _committed(self) -> dict[int, int]:
        return {
            number: owned.stored for number, owned in self.owned.items() if owned.stored is not None
        }

    # -------------------------------------------------------------------- figures

    async def tick(self) -> None:
        """Compute the figures of all partitions anew (rarer where that takes long)."""
        began = time.monotonic()
        if began < self._tick_at:
            return
        sums: Sums = {}
        present: set[Segment] = set()
        for owned in list(self.owned.values()):
            if not owned.restoring:
                found = owned.state.sums(self._reading_time(owned, began))
                present.update(*found.values())
                sums = merge((sums, found), self._shown)
                await asyncio.sleep(0)
        if not self._restores and not any(owned.restoring for owned in self.owned.values()):
            self._shown.keep(present)
            self.counters.keep(present)
        self._figures = figures(self.definition, sums)
        self._tick_at = began + (time.monotonic() - began) / TICK_SHARE

    def _reading_time(self, owned: Owned, now: float) -> int | None:
        """T of a partition that is caught up and idle: the watermark and the time since."""
        watermark = owned.state.watermark
        idle = now - owned.idle_since
        lag = self.reader.lag(owned.number, owned.next_offset)
        if watermark is None or owned.backlog or lag != 0 or not self._broker_up or idle < 1:
            return None
        return watermark + int(idle * 1000)

    def status(self) -> ServiceStatus:
        """What the pages and `/metrics` show."""
        now = time.monotonic()
        partitions = [
            owned.status(now, self.reader.lag(number, _counted_to(owned)))
            for number, owned in sorted(self.owned.items())
        ]
        for partition in partitions:
            partition.unreadable = self.reader.unreadable(partition.partition) or ""
        partitions += [
            PartitionStatus(number, restoring=True)
            for number in sorted(self._assigned - self.owned.keys())
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
            reason=("" if self._joined else self.reader.trouble) or self._reason or self._unfit,
            kafka_trouble=self.reader.trouble,
            partitions=partitions,
            topic_partitions=self.reader.partitions,
            figures=self._figures,
        )

    # ----------------------------------------------------------------------- stop

    async def stop(self, deadline: float) -> bool:
        """Stop reading, flush and commit, tell the group, close; True if nothing is left over."""
        self._stopping.set()
        await answer_within(self._left.wait(), max(0.1, deadline - time.monotonic() - 3))
        for task in (*self._restores.values(), *self._background):
            task.cancel()
        await self._finish(list(self.owned.values()), max(0.5, deadline - time.monotonic() - 3))
        left_over = any(each.uncommitted or each.under_way for each in self.owned.values())
        flushed = self._failure is None and not left_over
        for task in list(self._commits.values()):
            task.cancel()
        if self._failure is None:
            notes = [self.store.forget_batch(number) for number in self._large]
            await asyncio.gather(*(answer_within(note, 1.0) for note in notes))
        offsets = self._committed()
        if self._joined and offsets:
            await answer_within(self.reader.commit(offsets), 1.0)
        left = max(0.2, (deadline - time.monotonic()) / 2)
        await answer_within(self.reader.close(left), left)
        await answer_within(self.store.close(left), left)
        return flushed


def open_ingest(settings: Settings, *, reset_windows: bool = False) -> Ingest:
    """The service that the settings describe, on Kafka and Redis; nothing is connected yet."""
    definition = settings.definition()
    store = Store(
        settings.redis_url,
        settings.group,
        settings.topic,
        definition.kinds,
        user_ttl=settings.user_ttl,
    )
    return Ingest(
        settings,
        open_reader(settings),
        store,
        outcomes=open_files(settings),
        reset_windows=reset_windows,
    )


def _counted_to(owned: Owned) -> int:
    """The offset up to which events are in the store's counters."""
    return owned.next_offset if owned.stored is None else owned.stored


def _stretch(steps: Generator[None, None, Cut], seconds: float) -> Cut | None:
    """Take steps of a cut for so long, at least one; answers it if it is made."""
    end = time.monotonic() + seconds
    try:
        next(steps)
        while time.monotonic() < end:
            next(steps)
    except StopIteration as made:
        cut: Cut = made.value
        return cut
    return None
