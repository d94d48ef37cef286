"""The log: a member of Kafka's consumer group that keeps its offsets elsewhere.

The rules of working with aiokafka 0.14:

1. Positions are ours. Nothing of a partition is handed out before `seek`. A fetch for an older
   position is dropped, and the position set again to the end of the records handed out last.
2. A read that was begun is never cancelled: aiokafka would count the reader as busy for ever and
   not notice one that hangs. It goes on over calls of `poll`, also while the group rebalances.
3. Call `poll` also without partitions: a member that does not read for `MAX_POLL_MS` leaves the
   group, and without partitions it could not come back (its issue 1187).
4. A broken background task of aiokafka is silent: `poll` looks, and joins anew.
5. Offsets have gaps (compaction, aborted transactions). The next offset is the consumer's
   position, and moves on also where no record was handed out.

`record_source` says how records come out of aiokafka.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    IllegalStateError,
    KafkaError,
    NodeNotReadyError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
)

from streameval.base.errors import RefusedError, UnreachableError
from streameval.base.limits import READ_MEMORY
from streameval.base.nearest import nearest
from streameval.base.retry import Complaints, answer_within
from streameval.core.record_mark import RecordMark
from streameval.kafka.admin import creation
from streameval.kafka.aiokafka_internals import stop_whole
from streameval.kafka.connection_errors import REFUSALS, listening, refused_member
from streameval.kafka.dead_letters import DeadLetters
from streameval.kafka.record_source import RecordSource
from streameval.kafka.records import BatchLocation, DeadLetter, RecordLists, Records
from streameval.kafka.security import client_arguments
from streameval.kafka.unreadable_batches import UnreadableBatches

if TYPE_CHECKING:
    from streameval.config.settings import Settings
    from streameval.kafka.records import Listener

log = logging.getLogger(__name__)
T = TypeVar("T")

HEARTBEAT_MS: Final = 3_000
# A worker that does not read for this long loses its partitions.
MAX_POLL_MS: Final = 300_000
# A rebalance waits so long for a member that finishes with its partitions.
REBALANCE_MS: Final = 30_000
# Partitions that were added are noticed after this time.
METADATA_AGE_MS: Final = 30_000
REQUEST_SECONDS: Final = 5.0
# The ends of partitions that stand still are asked for by the way: nobody waits long for them.
LOOK_AHEAD_SECONDS: Final = 2.0
# An election takes less, once the broker is known to be away. A longer one is reported.
ELECTION_SECONDS: Final = 10.0
# Kafka takes 8 to 15 s to find that a broker is away and to elect other leaders.
SILENCE_SECONDS: Final = 20.0
RETRY_SECONDS: Final = 0.5
# A connection that is given up tells meanwhile where it was going.
GIVE_UP_SECONDS: Final = 0.05
# `poll` waits so long beyond its timeout for a read that a rebalance holds up.
HELD_UP_SECONDS: Final = 0.05
# Two members of one name take it from each other at each heartbeat.
TWIN_ASSIGNMENTS: Final = 5
TWIN_SECONDS: Final = 30.0
# The embedded broker tells end offsets that count batches (its high watermarks are good).
EMBEDDED_CLUSTER: Final = "tansu_cluster"


def open_event_log(settings: Settings) -> KafkaEventLog:
    """Make the log that the settings describe; it connects in `start`."""
    return KafkaEventLog(
        client_arguments(settings),
        settings.topic,
        settings.group,
        settings.dead_letter_topic,
        memory=settings.read_memory,
        session_ms=settings.session_timeout,
        rack=settings.kafka_rack,
        instance=settings.kafka_instance_id,
        whole=settings.decoder().reads_records,
    )


def member_arguments(group: str, memory: int, session_ms: int, rack: str | None) -> dict[str, Any]:
    """Return the arguments of a consumer in a group; the words are those of `KafkaEventLog`."""
    return {
        "group_id": group,
        "enable_auto_commit": False,
        "isolation_level": "read_committed",
        "session_timeout_ms": session_ms,
        "heartbeat_interval_ms": min(HEARTBEAT_MS, session_ms // 3),
        "client_rack": rack,
        "fetch_max_bytes": memory // 16,
        "metadata_max_age_ms": METADATA_AGE_MS,
    }


def unassigned_line(group: str, since: float | None) -> str:
    """Say that a group has owed an assignment `since` a monotonic time; "" if not for long."""
    if since is None or time.monotonic() - since <= SILENCE_SECONDS:
        return ""
    return f"the group {group} does not say which partitions are this worker's: none is read"


class KafkaEventLog:
    """One member of `group` that reads `topic`; offsets count records, times are ms.

    `client` are the arguments of `client_arguments`. Records that are fetched and not handed out
    take at most `memory` bytes, packed and unpacked. A worker silent for `session_ms` loses its
    partitions. With `rack`, a replica there answers. A member of the name `instance` that comes
    back in time has its partitions again without a rebalance. `whole` is that of `RecordSource`.
    `max_poll_ms` is for tests.
    """

    def __init__(
        self,
        client: Mapping[str, Any],
        topic: str,
        group: str,
        dead_letter_topic: str,
        *,
        memory: int = READ_MEMORY,
        session_ms: int = 10_000,
        rack: str | None = None,
        instance: str | None = None,
        whole: bool = False,
        max_poll_ms: int = MAX_POLL_MS,
    ) -> None:
        self.cluster_id = ""
        self.topic_id = ""
        self.partitions = 0
        self._trouble = self._refused = self._said = ""
        self._heard: dict[TopicPartition, tuple[int | None, float]] = {}
        self._silent: set[TopicPartition] = set()  # their leaders have not answered for long
        self._leaderless: dict[int, float] = {}  # since when, by partition
        self._unassigned: float | None = None  # since when the group owes an assignment
        self._client = dict(client)
        self._topic, self._group = topic, group
        self._arguments = {
            **client,
            **member_arguments(group, memory, session_ms, rack),
            "auto_offset_reset": "none",
            "max_poll_interval_ms": max_poll_ms,
            "rebalance_timeout_ms": REBALANCE_MS,
            "group_instance_id": instance,
        }
        self._memory, self._whole = memory, whole
        self._consumer: AIOKafkaConsumer | None = None
        self._listener: Listener | None = None
        self._source: RecordSource | None = None  # on `_consumer`
        self._positions: dict[TopicPartition, int] = {}  # after records handed out; open ones only
        self._reading: asyncio.Task[Mapping[TopicPartition, Sequence[RecordLists]]] | None = None
        self._stale: set[TopicPartition] = set()  # sought since `_reading` fetched
        self._paused: set[TopicPartition] = set()  # by the listener
        self._ends: dict[TopicPartition, int] = {}  # of partitions that stand still
        self._assignments: deque[tuple[float, frozenset[TopicPartition]]] = deque(
            maxlen=TWIN_ASSIGNMENTS
        )
        self._unreadable = UnreadableBatches()
        self._asking: asyncio.Task[None] | None = None  # whether a large batch may be unpacked
        self._allowed: set[TopicPartition] = set()  # to unpack one
        self._dead_letters = DeadLetters(client, topic, dead_letter_topic)
        self._complaints = Complaints(log, f"Kafka at {self._servers()}")

    # ------------------------------------------------------------------ start and end

    async def start(self, listener: Listener) -> None:
        """Connect, unless `connect` came before, and join the group.

        Returns before partitions are assigned. Raises `RefusedError` where Kafka forbids it.
        """
        self._listener = listener
        if self._consumer is None:
            await self.connect()
        self._unassigned = time.monotonic()
        self._open().subscribe([self._topic], listener=_Bridge(self))

    async def connect(self) -> int:
        """Wait for the brokers and the topic (a line every few seconds); return its partitions."""
        while True:
            consumer = AIOKafkaConsumer(**self._arguments)
            try:
                with listening() as heard:
                    await self._ask(consumer.start())
                self._source = RecordSource(consumer, self._topic, self._memory, whole=self._whole)
                self._consumer = consumer
                await self._identify()
            except UnreachableError as away:
                error: Exception = away
                # Once connected, a single server that is down does not explain the failure.
                if self._consumer is None:
                    error = heard.told(self._servers()) or away
                await self._disconnect(consumer, REQUEST_SECONDS)
                self._complaints.say("waiting for it", error)
                await asyncio.sleep(RETRY_SECONDS)
            except BaseException:
                await self._disconnect(consumer, REQUEST_SECONDS)
                raise
            else:
                self._source.verify(self.topic_id)
                return self.partitions

    async def _disconnect(self, consumer: AIOKafkaConsumer, deadline: float) -> None:
        source, self._source, self._consumer = self._source, None, None
        await answer_within(stop_whole(consumer) if source is None else source.stop(), deadline)

    async def close(self, deadline: float) -> None:
        """Leave the group and close, within `deadline` seconds."""
        if self._reading is not None:
            self._reading.cancel()
        if self._asking is not None:
            self._asking.cancel()
        self._reading = None
        closing = [self._dead_letters.close(deadline)]
        if self._consumer is not None:
            closing.append(self._disconnect(self._consumer, deadline))
        await asyncio.gather(*closing)

    async def _rejoin(self) -> None:
        """Join anew after a background task of aiokafka broke."""
        assert self._listener is not None, "start comes first"
        log.warning("the Kafka client of %s broke down, joining the group anew", self._topic)
        # All partitions that were ours, also those that the listener has not sought yet.
        lost = [topic_partition.partition for topic_partition in self._open().assignment()]
        self._positions.clear()
        self._unreadable.clear()
        await self.close(REQUEST_SECONDS)
        await self._listener.revoked(lost)
        await self.start(self._listener)

    @property
    def trouble(self) -> str:
        """One line on all that Kafka lacks though it answers; "" where it lacks nothing."""
        silent = ", ".join(str(each.partition) for each in sorted(self._silent))
        unread = f"the leader of partitions {silent} does not answer: they are not read"
        unassigned = unassigned_line(self._group, self._unassigned)
        lacks = self._trouble or (silent and unread), unassigned, self._dead_letters.trouble
        return self._refused or "; ".join(filter(None, lacks))

    # ------------------------------------------------------------------ reading

    async def poll(self, timeout: float, max_records: int) -> list[Records]:  # noqa: ASYNC109 - Kafka's word for how long an empty poll may take
        """Return the next records, by partition; wait about `timeout` seconds for some.

        Raises `RefusedError` where Kafka forbids to read; everything else is tried again.
        """
        consumer, source = self._consumer, self._source
        assert consumer is not None, "start comes first"
        assert source is not None, "start comes first"
        if source.broken:
            await self._rejoin()
            return []
        for topic_partition in self._unreadable.release():
            if topic_partition not in self._paused:
                consumer.resume(topic_partition)
        if self._reading is None:
            self._reading = asyncio.ensure_future(source.read(timeout, max_records))
        reading = self._reading
        await asyncio.wait({reading}, timeout=timeout + HELD_UP_SECONDS)
        if not reading.done():
            return []
        self._reading = None
        stale, self._stale = self._stale, set()
        try:
            found = reading.result()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - any codec's error too
            await self._recover(consumer, error)
            return []
        handed_out = [
            records
            for topic_partition in list(self._positions)
            for records in await self._hand_out(
                consumer, topic_partition, found.get(topic_partition, ()), stale
            )
        ]
        await self._hold_back(consumer, source)
        self._ask_for_room(source)
        return handed_out

    async def _hand_out(
        self,
        consumer: AIOKafkaConsumer,
        topic_partition: TopicPartition,
        found: Sequence[RecordLists],
        stale: Collection[TopicPartition],
    ) -> list[Records]:
        """Return the records of one partition; none but a new offset where some are gone."""
        before = self._positions.get(topic_partition)
        try:
            if found and topic_partition in stale:
                if before is not None:
                    consumer.seek(topic_partition, before)
                return []
            position = await consumer.position(topic_partition)
        except IllegalStateError:  # taken away meanwhile
            return []
        if topic_partition not in self._positions or position == before:
            return []
        self._positions[topic_partition] = position
        self._unreadable.read_on(topic_partition)
        parts = found or (RecordLists([], [], [], [], 0),)
        ends = [*(part.first for part in parts[1:]), position]
        return [
            Records(topic_partition.partition, *part[:4], end, part.size, part.missing)
            for part, end in zip(parts, ends, strict=True)
        ]

    def _ask_for_room(self, source: RecordSource) -> None:
        """Tell the listener of the large batch whose turn it is, before it is unpacked."""
        location = source.asked
        if location is not None and (self._asking is None or self._asking.done()):
            self._asking = asyncio.create_task(self._announce(source, location))

    async def _announce(self, source: RecordSource, location: BatchLocation) -> None:
        assert self._listener is not None, "start comes first"
        number = location.topic_partition.partition
        why = await self._listener.unpacking(number, location.first, location.last)
        if why:
            source.refuse(location, why)
        else:
            self._allowed.add(location.topic_partition)
            source.allow(location)

    async def _hold_back(self, consumer: AIOKafkaConsumer, source: RecordSource) -> None:
        """Leave partitions alone for a while whose next batch cannot be read; others go on."""
        for topic_partition, batch in source.unreadable.items():
            if topic_partition in self._allowed:
                self._allowed.discard(topic_partition)
                assert self._listener is not None, "start comes first"
                await self._listener.unpacked(topic_partition.partition)
            if topic_partition in self._positions:
                self._unreadable.hold(topic_partition, batch)
                consumer.pause(topic_partition)
        source.unreadable.clear()

    async def _recover(self, consumer: AIOKafkaConsumer, error: BaseException) -> None:
        """Set things right after a read that failed; records not handed out are read again."""
        if self._source is not None:
            self._source.forget_failed_read()
        if isinstance(error, TopicAuthorizationFailedError | GroupAuthorizationFailedError):
            raise RefusedError(
                f"Kafka forbids to read topic {self._topic} as group {self._group} ({error}):"
                " grant READ on both to this user"
            ) from error
        if refusal := refused_member(error, self._group):
            raise refusal from error
        if isinstance(error, OffsetOutOfRangeError):
            await self._start_over(error.args[0])
        elif not isinstance(error, NoOffsetForPartitionError):  # raised for one not sought yet
            places = ", ".join(f"{p.partition} at {at}" for p, at in self._positions.items())
            again = (
                f"reading again from partition {places}" if places else "joining the group again"
            )
            self._complaints.say(again, error)
            await asyncio.sleep(RETRY_SECONDS)
        for topic_partition, position in self._positions.items():
            with contextlib.suppress(IllegalStateError):
                consumer.seek(topic_partition, position)

    async def _start_over(self, topic_partitions: Mapping[TopicPartition, int]) -> None:
        """Have the listener begin anew with partitions whose position the log does not hold."""
        assert self._listener is not None, "start comes first"
        numbers = [
            topic_partition.partition
            for topic_partition in topic_partitions
            if topic_partition in self._positions
        ]
        for number in numbers:
            log.error("partition %d: the log does not go on at the offset to read next", number)
            del self._positions[TopicPartition(self._topic, number)]
            if self._source is not None:
                self._source.forget(number)
            self._unreadable.read_on(TopicPartition(self._topic, number))
            self.pause(number)
        await self._listener.revoked(numbers)
        await self._listener.assigned(numbers)

    def seek(self, partition: int, offset: int) -> None:
        """Read `partition` from `offset` on; without effect if it was taken away meanwhile."""
        topic_partition = TopicPartition(self._topic, partition)
        with contextlib.suppress(IllegalStateError, UnreachableError):
            self._open().seek(topic_partition, offset)
            self._positions[topic_partition] = offset
            if self._reading is not None:
                self._stale.add(topic_partition)

    def pause(self, partition: int) -> None:
        """Do not read `partition` for now; without effect if it was taken away meanwhile."""
        topic_partition = TopicPartition(self._topic, partition)
        with contextlib.suppress(IllegalStateError, UnreachableError):
            self._open().pause(topic_partition)
            self._paused.add(topic_partition)

    def resume(self, partition: int) -> None:
        """Read `partition` again; without effect if it was taken away meanwhile."""
        topic_partition = TopicPartition(self._topic, partition)
        self._paused.discard(topic_partition)
        if topic_partition not in self._unreadable:
            with contextlib.suppress(IllegalStateError, UnreachableError):
                self._open().resume(topic_partition)

    async def revoked(self, topic_partitions: Collection[TopicPartition]) -> None:
        """Hear from the group that `topic_partitions` go; nothing more of them is handed out."""
        assert self._listener is not None, "start comes first"
        if self._unassigned is None:  # else this is another try
            self._unassigned = time.monotonic()
        for topic_partition in topic_partitions:
            self._positions.pop(topic_partition, None)
            self._unreadable.forget(topic_partition)
            self._allowed.discard(topic_partition)
        await self._listener.revoked(
            [topic_partition.partition for topic_partition in topic_partitions]
        )

    async def assigned(self, topic_partitions: Collection[TopicPartition]) -> None:
        """Hear from the group that `topic_partitions` come; they wait for `seek` and `resume`."""
        assert self._listener is not None, "start comes first"
        self._unassigned = None
        self._notice_a_twin(topic_partitions)
        if self._source is not None:
            self._source.share(len(topic_partitions))
        for topic_partition in topic_partitions:
            self.pause(topic_partition.partition)
            # Without a position aiokafka asks Kafka for one at every turn, and each read fails.
            with contextlib.suppress(IllegalStateError, UnreachableError):
                self._open().seek(topic_partition, 0)
        await self._listener.assigned(
            [topic_partition.partition for topic_partition in topic_partitions]
        )

    def _notice_a_twin(self, topic_partitions: Collection[TopicPartition]) -> None:
        """Tell of another member of our name: Kafka hands all of ours to one and to the other."""
        instance, now = self._arguments["group_instance_id"], time.monotonic()
        self._assignments.append((now, frozenset(topic_partitions)))
        (first, _), several = self._assignments[0], {each for _, each in self._assignments}
        often = len(self._assignments) == TWIN_ASSIGNMENTS and now - first < TWIN_SECONDS
        if instance and topic_partitions and often and len(several) == 1:
            log.warning(
                "the same partitions were assigned %d times in %.0f s: has another worker the"
                " kafka_instance_id %s, too? Give each one of its own",
                TWIN_ASSIGNMENTS,
                now - first,
                instance,
            )

    # ------------------------------------------------------------------ asking

    async def bounds(self, partition: int) -> tuple[int, int | None]:
        """Return the first offset of the log, and the one after its last (None: not told).

        Also asks again which log it is: a topic may have been made anew. Raises
        `UnreachableError`.
        """
        await self._identify()
        topic_partition = TopicPartition(self._topic, partition)
        first = await self._ask(self._open().beginning_offsets([topic_partition]))
        if self.cluster_id == EMBEDDED_CLUSTER:
            return first[topic_partition], None
        end = await self._ask(self._open().end_offsets([topic_partition]))
        return first[topic_partition], end.get(topic_partition)

    async def mark_at(self, partition: int, offset: int) -> RecordMark | None:
        """Return the mark of the record at `offset`; None where the log holds no record there.

        Raises `UnreachableError`.
        """
        self._open()
        assert self._source is not None, "connect comes first"
        return await self._ask(self._source.mark_at(partition, offset))

    def lag(self, partition: int, next_offset: int) -> int | None:
        """Count records from `next_offset` to the end, as of the last fetch or probe, if known."""
        consumer = self._consumer
        topic_partition = TopicPartition(self._topic, partition)
        if consumer is None or topic_partition not in self._positions.keys() - self._silent:
            return None
        try:
            end = consumer.highwater(topic_partition)
        except IllegalStateError:
            return None
        end = (
            self._ends.get(topic_partition)
            if end is None
            else max(end, self._ends.get(topic_partition, 0))
        )
        return None if end is None else max(0, end - next_offset)

    def unreadable(self, partition: int) -> str | None:
        """Name the unreadable batch that `partition` waits before, and why it is unreadable."""
        return self._unreadable.named(TopicPartition(self._topic, partition))

    async def probe(self) -> bool:
        """Whether a broker answers; also notices added partitions, and new lag."""
        if self._consumer is None:
            return False
        answers = await self._answers()
        if answers and self.cluster_id != EMBEDDED_CLUSTER:
            await self._look_ahead()
        if self.trouble != self._said:
            self._said = self.trouble
            log.warning("%s", self._said or "Kafka serves all partitions again")
        return answers

    async def _answers(self) -> bool:
        """Ask who answers; note why nobody lets us in."""
        try:
            with listening() as heard:
                await self._identify()
        except UnreachableError:
            if told := heard.told(self._servers()):
                self._refused = str(told) if isinstance(heard.error, REFUSALS) else ""
            return False
        self._refused = ""
        return True

    async def _look_ahead(self) -> None:
        """Ask for the ends of partitions that stand still, and where no fetch has told since."""
        asked, now, consumer = [], time.monotonic(), self._open()
        for each in self._positions.keys() & consumer.assignment():
            told = consumer.last_poll_timestamp(each)
            heard = each not in self._heard or told != self._heard[each][0]
            if heard:
                self._heard[each] = told, now
            if not heard or each in self._paused or each in self._unreadable:
                asked.append(each)
        # A partition whose leader is away keeps its last end: the others are served.
        await asyncio.gather(*(self._ask_for_end(each) for each in asked))
        self._heard = {each: self._heard[each] for each in self._positions if each in self._heard}
        long_ago = time.monotonic() - SILENCE_SECONDS
        self._silent = {each for each, (_, at) in self._heard.items() if at < long_ago}

    async def _ask_for_end(self, topic_partition: TopicPartition) -> None:
        with contextlib.suppress(UnreachableError):
            ends = await self._ask(self._open().end_offsets([topic_partition]), LOOK_AHEAD_SECONDS)
            self._ends |= ends
            told, _ = self._heard[topic_partition]
            self._heard[topic_partition] = told, time.monotonic()

    async def _identify(self) -> None:
        self._open()
        assert self._source is not None, "connect comes first"
        identity = await self._ask(self._source.identify())
        if identity is None:
            self._trouble = await self._absence()
            raise UnreachableError(self._trouble)
        if self.partitions and identity.partitions != self.partitions:
            log.warning(
                "topic %s has %d partitions now, it had %d: users move to other partitions, and"
                " slates open at that time are attributed apart",
                self._topic,
                identity.partitions,
                self.partitions,
            )
        self.cluster_id, self.topic_id, self.partitions, leaderless = identity
        now = time.monotonic()
        self._leaderless = {number: self._leaderless.get(number, now) for number in leaderless}
        lasting = [n for n, since in self._leaderless.items() if now - since >= ELECTION_SECONDS]
        numbers = ", ".join(map(str, sorted(lasting)))
        self._trouble = f"Kafka has no leader for partitions {numbers}" if lasting else ""

    async def _absence(self) -> str:
        """Say that the topic does not exist, and what may help."""
        said = f"the topic {self._topic} does not exist: "
        with contextlib.suppress(UnreachableError, KafkaError):
            # To ask for all topics creates none.
            if near := nearest(self._topic, await self._ask(self._open().topics()), most=3):
                said += f"if {' or '.join(near)} is meant, correct `topic`; or "
        command = creation(self._client["bootstrap_servers"], self._topic, 4)
        return f"{said}create it, keyed by user: `{command}`"

    async def _ask(self, question: Coroutine[Any, Any, T], seconds: float = REQUEST_SECONDS) -> T:
        """Wait a few seconds for the answer to `question`; raises `UnreachableError`."""
        with listening() as heard:
            asking = asyncio.ensure_future(question)
            await asyncio.wait({asking}, timeout=seconds)
            if not asking.done():
                asking.cancel()
                await asyncio.sleep(GIVE_UP_SECONDS)
                told = heard.told(self._servers())
                said = told or f"Kafka at {self._servers()} does not answer."
                raise UnreachableError(str(said))
        try:
            return asking.result()
        except (KafkaError, OSError, asyncio.CancelledError) as error:
            told = heard.told(self._servers()) if isinstance(error, NodeNotReadyError) else None
            said = told or f"Kafka at {self._servers()} fails ({error!r})."
            raise UnreachableError(str(said)) from error

    # ------------------------------------------------------------------ writing

    async def commit(self, offsets: Mapping[int, int]) -> None:
        """Tell the group's offsets, for tools that show lag; failure is of no consequence."""
        consumer = self._consumer
        if consumer is None:
            return
        ours = {topic_partition.partition: topic_partition for topic_partition in self._positions}
        told = {ours[number]: offset for number, offset in offsets.items() if number in ours}
        if told:
            await answer_within(consumer.commit(told), REQUEST_SECONDS)

    async def write_dead_letters(self, dead_letters: Sequence[DeadLetter]) -> int:
        """Write to the dead-letter topic until acknowledged; count those that Kafka refuses."""
        return await self._dead_letters.write(dead_letters)

    # ------------------------------------------------------------------ saying

    def _open(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            raise UnreachableError(f"not connected to Kafka at {self._servers()}.")
        return self._consumer

    def _servers(self) -> str:
        return str(self._client["bootstrap_servers"])


class _Bridge(ConsumerRebalanceListener):  # type: ignore[misc]  # it has no types
    """Hands aiokafka's calls on; aiokafka only logs their errors."""

    def __init__(self, event_log: KafkaEventLog) -> None:
        self._event_log = event_log

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        await self._event_log.revoked(revoked)

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        await self._event_log.assigned(assigned)
