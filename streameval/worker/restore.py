"""A partition comes to this worker: its stored data becomes state, or is refused.

1. Ask for the stored data, and which log this is and where it begins and ends. Each partition
   waits for Kafka by itself.
2. *Refuse* data that would make every figure wrong: another log, another definition, another
   format. With `reset_windows`, windows that cannot be used start anew and the counters go on.
3. Take a state kept from before, if nobody went on with it. Else *load* the stored data and
   *restore* the checkpoint at X, one partition at a time. The caller reads from X up to the
   committed offset again.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import time
from typing import TYPE_CHECKING, Final

from streameval.base.errors import RefusedError, UnusableStateError
from streameval.base.retry import persist
from streameval.core.checkpoint import refuse_header, restore
from streameval.core.fingerprint import describe, fingerprint, refuse_other_description
from streameval.core.partition import Partition
from streameval.core.record_mark import RecordMark
from streameval.store.stored_values import Stored
from streameval.worker.assigned_partition import AssignedPartition, Limits
from streameval.worker.outcome_writer import OutcomeWriter
from streameval.worker.ports import EventLog, StateStore

if TYPE_CHECKING:
    from streameval.config.settings import Settings

log = logging.getLogger(__name__)

# A broker that leads no longer and does not know it yet names an end from before. It learns of it
# within the session of brokers (9 s by default), or once it is no longer starved of processor.
END_TRIES: Final = 15
END_SECONDS: Final = 2.0
_START_OVER: Final = (
    "Choose another `group`, or delete the keys of this one in Redis to count from zero"
)


class PartitionRestorer:
    """Brings partitions to a worker; `cluster_id` and `topic_id` identify its log."""

    def __init__(
        self,
        settings: Settings,
        event_log: EventLog,
        store: StateStore,
        outcome_writer: OutcomeWriter,
        *,
        reset_windows: bool,
    ) -> None:
        self.definition = settings.definition()
        self.fingerprint = fingerprint(self.definition)
        self.described = json.dumps(describe(self.definition), sort_keys=True)
        self.cluster_id = self.topic_id = ""
        self._decoder = settings.decoder()
        self._start_from = settings.start_from
        self._limits = Limits.of(settings)
        self._event_log, self._store, self._outcome_writer = event_log, store, outcome_writer
        self._reset = reset_windows
        # One partition at a time: packed data, unpacked data and state are in memory together.
        self._restoring = asyncio.Lock()
        # The same for a batch of the log, packed and unpacked.
        self._comparing = asyncio.Lock()

    async def check_stored(self, partitions: int) -> None:
        """Refuse before any assignment what `open` would, as far as Redis alone tells it.

        Raises `RefusedError`.
        """
        self.refuse_another_log()
        for number in range(partitions):
            stored = await persist(functools.partial(self._store.standing, number))
            self._refuse_another_log_than(number, stored)
            if not self._reset:
                self._refuse_another_definition(stored)
                if stored.header is not None:
                    await asyncio.to_thread(refuse_header, stored.header, self.definition)

    async def open(self, number: int, parked: AssignedPartition | None) -> AssignedPartition:
        """Make the partition `number` ready to read on from `next_offset`.

        `parked` is its state from before, if there is one. Waits for servers that are away; raises
        `RefusedError`.
        """
        while True:
            # The store is asked first: an offset stored later may lie beyond an end asked earlier.
            standing = await persist(functools.partial(self._store.standing, number))
            if standing.torn is not None:
                log.error(
                    "partition %d: Redis lost the end of its append-only file and applied a part of"
                    " a commit; users of experiments are counted anew, and users who are ahead of"
                    " the stored offset are not counted twice",
                    number,
                )
                await persist(functools.partial(self._store.mend, number, standing.torn))
            # Not under the lock below: a partition that no broker serves must hold up no other.
            first, end = await persist(functools.partial(self._extent, number, standing))
            if parked is not None and standing.offset is not None:
                held = first <= parked.next_offset  # the end has been compared
                if standing.offset == parked.committed and held:
                    return parked
            async with self._restoring:
                partition = await self._open_stored(number, standing, first, end)
            if partition is not None:
                return partition

    async def _open_stored(
        self, number: int, standing: Stored, first: int, end: int | None
    ) -> AssignedPartition | None:
        """Restore the stored data; None where another worker went on since the comparison."""
        try:
            stored = await persist(lambda: self._store.load(number))
        except UnusableStateError as error:
            stored = await self._start_anew(number, error)
        compared = standing.offset, standing.last_record
        if (stored.offset, stored.last_record) != compared:
            return None
        try:
            state = await self._restored(stored)
        except UnusableStateError as error:
            stored = await self._start_anew(number, error)
            state = await self._restored(stored)
        partition = self._opened(number, state, stored, first, end)
        await self._outcome_writer.settle(partition, stored)
        return partition

    async def _start_anew(self, number: int, why: UnusableStateError) -> Stored:
        """Forget windows that cannot be used, with `reset_windows`; else raise `why`.

        Windows that can be used stay. So a partition that moves between workers with this option,
        or comes back to one, loses its windows once.
        """
        if not self._reset:
            raise why
        log.warning("partition %d: its windows start anew, because %s", number, why)
        await persist(lambda: self._store.reset_windows(number, self.fingerprint, self.described))
        return await persist(lambda: self._store.load(number))

    async def _restored(self, stored: Stored) -> Partition:
        """Make the state of the checkpoint; raises `UnusableStateError`."""
        self._refuse_another_definition(stored)
        if stored.header is None:
            return Partition(self.definition, journal=True, keep_outcomes=self._outcome_writer.on)
        try:
            return await asyncio.to_thread(
                restore,
                self.definition,
                stored.header,
                stored.chunks,
                keep_outcomes=self._outcome_writer.on,
            )
        except (UnusableStateError, MemoryError):
            raise
        except Exception as error:
            log.exception("the stored checkpoint cannot be restored")
            raise UnusableStateError(
                f"a bug of streameval: the stored checkpoint cannot be restored ({error!r}); run"
                " the version that wrote it, or `worker --reset-windows`"
            ) from error

    def _refuse_another_definition(self, stored: Stored) -> None:
        """Raise `UnusableStateError` for figures that mean something else."""
        if stored.offset is not None:
            refuse_other_description(stored.fingerprint, stored.definition, self.definition)

    def _opened(
        self, number: int, state: Partition, stored: Stored, first: int, end: int | None
    ) -> AssignedPartition:
        committed, lost = stored.offset, 0
        if committed is None:
            at = first if self._start_from == "earliest" or end is None else end
        else:
            at = committed if stored.checkpoint_offset is None else stored.checkpoint_offset
            state.experiments.begin_at(at)
            if committed < first:
                lost = first - committed
                log.error(
                    "partition %d: the log begins at %d, beyond the stored offset %d: %d events"
                    " are lost; keep the topic longer than a worker can be away",
                    number,
                    first,
                    committed,
                    lost,
                )
            elif at < first:
                log.error(
                    "partition %d: the log begins at %d, beyond the checkpoint at %d: counters"
                    " are whole, windows lack up to %d events until they have passed",
                    number,
                    first,
                    at,
                    first - at,
                )
        idle = 0.0
        if stored.committed_at is not None:
            idle = max(0.0, time.time() - stored.committed_at / 1000)
        return AssignedPartition(
            number,
            self._limits,
            state,
            self._decoder,
            next_offset=max(at, first),
            committed=committed,
            lost=lost,
            idle_since=time.monotonic() - idle,
            checkpoint_offset=stored.checkpoint_offset,
            checkpoint_bytes=stored.checkpoint_bytes,
        )

    # ------------------------------------------------------------- which log is this

    async def _extent(self, number: int, stored: Stored) -> tuple[int, int | None]:
        """Return first offset and end of the log; refuse one that `stored` was not read from.

        The caller asks all of it again where a part was not answered: meanwhile the log may have
        lost its beginning, or its end. Raises `RefusedError` and `UnreachableError`.
        """
        for tries in range(1, END_TRIES + 1):
            first, end = await self._event_log.bounds(number)
            self.refuse_another_log()
            self._refuse_another_log_than(number, stored)
            if end is None or stored.offset is None or stored.offset <= end:
                break
            if tries == END_TRIES:
                raise RefusedError(
                    f"the stored offset {stored.offset} of partition {number} lies beyond the log's"
                    f" end {end}: the topic was made anew or truncated. {_START_OVER}"
                )
            if tries == 1:
                log.warning(
                    "partition %d: Kafka says that the log ends at %d, before the stored offset %d;"
                    " asking again for %d seconds",
                    number,
                    end,
                    stored.offset,
                    END_TRIES * END_SECONDS,
                )
            await asyncio.sleep(END_SECONDS)
        await self._refuse_a_log_set_back(number, stored.last_record, first)
        return first, end

    def refuse_another_log(self) -> None:
        """Refuse another log than the one this worker began to read."""
        for what in ("cluster", "topic"):
            ours = getattr(self._event_log, f"{what}_id")
            before = getattr(self, f"{what}_id") or ours
            setattr(self, f"{what}_id", before)
            if ours and before != ours:  # "" where the broker does not say
                raise RefusedError(
                    f"this is another Kafka {what} (id {ours}) than the one that was read until now"
                    f" (id {before}): was it deleted and made anew? {_START_OVER}"
                )

    def _refuse_another_log_than(self, number: int, stored: Stored) -> None:
        """Refuse state of another cluster or topic: no figure of it would be right."""
        if stored.offset is None:
            return
        for what, theirs, ours in (
            ("cluster", stored.cluster_id, self.cluster_id),
            ("topic", stored.topic_id, self.topic_id),
        ):
            if theirs and ours and theirs != ours:
                raise RefusedError(
                    f"Redis holds the state of partition {number} of another Kafka {what}"
                    f" (id {theirs}, this one is {ours}): was it deleted and made anew?"
                    f" {_START_OVER}"
                )

    async def _refuse_a_log_set_back(
        self, number: int, last: RecordMark | None, first: int
    ) -> None:
        """Refuse a log that holds another record where the last one applied was.

        Without effect where retention or compaction has removed that record.
        """
        if last is None or last.offset < first:
            return
        async with self._comparing:
            found = await self._event_log.mark_at(number, last.offset)
        if found is not None and found != last:
            raise RefusedError(
                f"the record at offset {last.offset} of partition {number} is not the one that was"
                " counted: the log was set back and has grown again (an unclean leader election,"
                f" a restored disk). {_START_OVER}"
            )
