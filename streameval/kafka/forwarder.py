"""`streameval forward`: other topics, mapped by profiles and keyed by user, onto one topic.

1. Records of all sources are read and mapped, and wait in memory.
2. They are sent in step by time: none that is more than half of `allowed_lateness` ahead of a
   partition that has records to read. So a source with a backlog does not make the events of the
   others late. Processes share through Redis how far each partition has come.
3. Offsets are committed when Kafka has acknowledged the events. After a kill records are sent
   again, and duplicates count once. They are not late either: between two commits no more is sent
   than half of `allowed_lateness` (a second at least).

A partition without records holds nobody. One that is not read for `HOLD_SECONDS` does not either.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    CommitFailedError,
    GroupAuthorizationFailedError,
    IllegalStateError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    UnknownError,
    UnsupportedForMessageFormatError,
    UnsupportedVersionError,
)
from aiokafka.partitioner import DefaultPartitioner

from streameval.base.counts import count_of
from streameval.base.errors import RefusedError, UnreachableError
from streameval.base.nearest import nearest
from streameval.base.retry import RETRY_SECONDS, Complaints, Waiting, answer_within
from streameval.kafka.admin import cluster, our_errors, partitions, warn_of_compaction
from streameval.kafka.aiokafka_internals import stop_whole
from streameval.kafka.connection_errors import refused_member
from streameval.kafka.consumer import member_arguments, unassigned_line
from streameval.kafka.dead_letters import DeadLetters
from streameval.kafka.record_source import RecordSource
from streameval.kafka.records import DeadLetter, RecordLists
from streameval.kafka.security import client_arguments
from streameval.kafka.unreadable_batches import UnreadableBatches

if TYPE_CHECKING:
    from streameval.config.settings import Settings
    from streameval.core.events import EventDecoder

log = logging.getLogger(__name__)
T = TypeVar("T")

HOLD_SECONDS: Final = 60.0
"""A partition that has told nothing for so long, or is not read, holds the others no more.

The group needs 10 s to miss a process that was killed, and more where several are.
"""
_HOLD_MS: Final = round(HOLD_SECONDS * 1000)
_LOOK_SECONDS: Final = 10.0
_FETCH_SECONDS: Final = 0.2
# The same while records wait for others to come nearer.
_STEP_SECONDS: Final = 0.01
_RECORDS: Final = 2_000
# Records of a partition in memory, and their bytes; then it is paused.
_MOST_HELD: Final = 4_000
_MOST_BYTES: Final = 8 << 20
# The least time of events between two commits, since each waits for Kafka.
_LEAST_MS: Final = 1_000
# Bytes of a batch before compression: a topic may bound batches, at a megabyte by default.
_BATCH_BYTES: Final = 64 << 10
# Users whose partition is known without a hash.
_KNOWN_USERS: Final = 100_000
_TELL_SECONDS: Final = 0.5
_SAY_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 5.0
_NOTHING: Final = "-"
"""The word of a partition without records to read."""


@lru_cache(_KNOWN_USERS)
def _partition_of(key: bytes, count: int) -> int:
    """Return the partition of a key, among so many: the one that any producer takes."""
    numbers = range(count)
    return int(DefaultPartitioner()(key, numbers, numbers))


async def _until(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Await `work`, or leave it `_STOP_SECONDS` after `stop`: it may wait for a server for ever."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    await asyncio.wait({working}, timeout=_STOP_SECONDS)
    if working.done():
        working.result()
    working.cancel()


class Pace(Protocol):
    """A place at which processes share the time of each partition, as `SharedStore` is."""

    async def tell(self, worker: str, said: str, lasts: int) -> None:
        """Write the word on a partition, which lasts so long (ms)."""

    async def workers(self, lasts: int) -> dict[str, tuple[int, str]]:
        """Return the latest words on each partition, and their age (ms)."""


class _Held(NamedTuple):
    """A record of `size` bytes that waits: its time (ms), and its events or dead letter."""

    time: int
    size: int
    offset: int
    timestamp: int
    events: Sequence[tuple[bytes, bytes]]
    letter: DeadLetter | None


class _Source:
    """One partition of a source: the records that wait, and how far it has come."""

    def __init__(self) -> None:
        self.held: deque[_Held] = deque()
        self.size = 0
        self.time = 0
        self.next: int | None = None  # the offset to read next, once it is known
        self.read_at = time.monotonic()

    def take(self, partition: int, records: RecordLists, decoder: EventDecoder) -> int:
        """Map records just read, and let them wait; return how many messages no rule takes."""
        self.read_at = time.monotonic()
        decoded, written = decoder.rewrite(records.values, records.timestamps, short=True)
        events: list[list[tuple[bytes, bytes]]] = [[] for _ in records.values]
        times = [0] * len(events)
        for event, line, index in zip(decoded.events, written, decoded.records, strict=True):
            events[index].append((event.user_id.encode(), line))
            times[index] = max(times[index], event.ts)
        letters = {
            index: DeadLetter(
                partition,
                records.offsets[index],
                records.timestamps[index],
                records.keys[index],
                records.values[index],
                rejection,
            )
            for index, rejection in decoded.rejected
        }
        for index, value in enumerate(records.values):
            self.time = max(self.time, times[index])
            size = 0 if value is None else len(value)
            self.size += size
            place = self.time, size, records.offsets[index], records.timestamps[index]
            self.held.append(_Held(*place, events[index], letters.get(index)))
        return decoded.ignored

    def due(self, horizon: float) -> list[_Held]:
        """Take the records up to a time."""
        found = []
        while self.held and self.held[0].time <= horizon:
            found.append(self.held.popleft())
            self.size -= found[-1].size
        return found

    @property
    def is_full(self) -> bool:
        """Whether no more records should be read for now."""
        return len(self.held) >= _MOST_HELD or self.size >= _MOST_BYTES


class Forwarder(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """Reads the sources of the settings until it is told to stop."""

    def __init__(self, settings: Settings, pace: Pace) -> None:
        self._settings, self._pace = settings, pace
        self._client = client_arguments(settings)
        self._decoders: dict[str, EventDecoder] = {}
        for source in settings.forward:
            self._decoders[source.topic] = settings.decoder_by(source.profile)
        self._letters = {
            topic: DeadLetters(self._client, topic, settings.dead_letter_topic)
            for topic in self._decoders
        }
        self._group = f"{settings.group}.forward"
        # What some servers refuse that speak Kafka's protocol:
        self._packing: str | None = "zstd"
        self._idempotent = True
        self._reader: RecordSource | None = None
        self._unreadable = UnreadableBatches(with_topic=True)
        self._sources: dict[TopicPartition, _Source] = {}
        self._step = settings.allowed_lateness // 2
        self._fronts: Mapping[str, str] = {}
        self._told_at = self._said_at = 0.0
        self._began = time.monotonic()
        self._all: set[str] = set()
        self._counts: dict[str, Counter[str]] = {topic: Counter() for topic in self._decoders}
        self._lags: dict[TopicPartition, int] = {}
        self._looked_at = time.monotonic()
        self._trouble = "starting"
        self._away = self._gone = ""
        self._unassigned: float | None = None  # since when the group owes an assignment
        self._complaints = Complaints(log)
        self._waiting = Waiting()

    async def run(self, stop: asyncio.Event) -> None:
        """Forward until `stop`, and wait for servers that are away. Raises `RefusedError`."""
        while not stop.is_set():
            try:
                with our_errors(self._client), self._refusals():
                    await self._session(stop)
            except UnreachableError as error:
                self._trouble = str(error)
                self._complaints.tell(f"{error} Waiting for it.")
                self._sources.clear()  # their records are read again from what was committed
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), RETRY_SECONDS)

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        """Name the rights that Kafka may have missed: it says which kind, at most."""
        try:
            yield
        except (
            ClusterAuthorizationFailedError,
            GroupAuthorizationFailedError,
            TopicAuthorizationFailedError,
        ) as error:
            raise RefusedError(
                f"Kafka forbids to forward ({error!r}): grant READ on {', '.join(self._decoders)}"
                f" and on the group {self._group}, and WRITE on {self._settings.topic} and"
                f" {self._settings.dead_letter_topic}"
            ) from error
        except KafkaError as error:
            if refusal := refused_member(error, self._group):
                raise refusal from error
            raise

    async def _session(self, stop: asyncio.Event) -> None:
        """Forward until `stop`, or until Kafka is away."""
        await self._find_topics()
        memory, rack = self._settings.read_memory, self._settings.kafka_rack
        consumer = AIOKafkaConsumer(
            **self._client,
            **member_arguments(self._group, memory, self._settings.session_timeout, rack),
            auto_offset_reset="earliest",
        )
        producer = AIOKafkaProducer(
            **self._client,
            acks="all",
            enable_idempotence=self._idempotent,
            max_batch_size=_BATCH_BYTES,
            compression_type=self._packing,
        )
        try:
            await self._start(producer)
            await consumer.start()
            whole = any(each.reads_records for each in self._decoders.values())
            self._reader = RecordSource(consumer, memory=memory, whole=whole)
            self._unassigned = time.monotonic()
            consumer.subscribe(list(self._decoders), listener=self)
            while not stop.is_set():
                await _until(stop, self._turn(consumer, producer))
        finally:
            self._waiting.close()
            reader, self._reader = self._reader, None
            reading = stop_whole(consumer) if reader is None else reader.stop()
            for ending in (reading, producer.stop()):  # they may raise what ended a task of theirs
                await answer_within(ending, _STOP_SECONDS)
            for letters in self._letters.values():
                await letters.close(_STOP_SECONDS)

    async def _start(self, producer: AIOKafkaProducer) -> None:
        """Start it; the next one is not idempotent if Kafka has no such producers."""
        try:
            await producer.start()
        except (UnknownError, UnsupportedVersionError) as error:
            if not self._idempotent:
                raise
            self._idempotent = False
            raise UnreachableError(
                f"Kafka has no idempotent producers ({error!r}): an event may be sent twice."
            ) from error

    @property
    def trouble(self) -> str:
        """Say why not all topics are forwarded; "" where they are.

        A turn lasts until its dead letters are taken, so they are asked.
        """
        letters = {each.trouble for each in self._letters.values()}
        return "; ".join(filter(None, (self._trouble, *letters)))

    def counts(self) -> dict[str, dict[str, int]]:
        """Return by topic what was done since the start, and what waits."""
        found = {topic: dict(counts) for topic, counts in self._counts.items()}
        for levels in found.values():
            levels |= {"waiting": 0, "lag": 0}
        for place, source in list(self._sources.items()):
            found[place.topic]["waiting"] += len(source.held)
            found[place.topic]["lag"] += len(source.held) + self._lags.get(place, 0)
        return found

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Forget records that wait: the next owner reads them again."""
        if self._unassigned is None:  # else this is another try
            self._unassigned = time.monotonic()
        for place in revoked:
            self._sources.pop(place, None)
            self._unreadable.forget(place)

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Begin with new partitions."""
        self._unassigned = None
        for place in assigned:
            self._sources[place] = _Source()
        if self._reader is not None:
            self._reader.share(len(self._sources))

    async def _find_topics(self) -> None:
        found = (await cluster(self._client)).topics
        for topic in (*self._decoders, self._settings.topic):
            if topic not in found:
                near = nearest(topic, list(found))
                meant = f"; did you mean {near[0]}?" if near else ""
                raise RefusedError(
                    f"forward: the topic {topic} does not exist, or this user may not see it{meant}"
                )
        for topic in self._decoders:
            count = await partitions(self._client, topic)
            self._all |= {f"{topic}:{number}" for number in range(count)}
            await warn_of_compaction(self._client, topic)

    async def _turn(self, consumer: AIOKafkaConsumer, producer: AIOKafkaProducer) -> None:
        await self._read(consumer)
        horizon = await self._horizon(consumer)
        # No longer than our words are fresh: others wait for them, and so does who stops us.
        until = time.monotonic() + _TELL_SECONDS
        while time.monotonic() < until and (due := self._due(horizon)):
            await self._send(consumer, producer, due)
        await self._look_for_sources(consumer)
        for place, source in self._sources.items():
            if waits := place.topic in self._waiting:
                source.read_at = time.monotonic()  # its events must not be late for it
            rests = waits or source.is_full or place in self._unreadable
            if rests != (place in consumer.paused()):
                (consumer.pause if rests else consumer.resume)(place)
        unreadable = [
            f"partition {place.partition} of {place.topic} waits before the batch at {batch}"
            for place in self._sources
            if (batch := self._unreadable.named(place)) is not None
        ]
        self._trouble = "; ".join(
            filter(None, (self._away, self._gone, *self._waiting.why.values(), *unreadable))
        )
        self._say()

    async def _read(self, consumer: AIOKafkaConsumer) -> None:
        """Read records that have come, and let them wait."""
        reader = self._reader
        assert reader is not None, "a session opens it"
        if reader.broken:
            raise UnreachableError("the Kafka client broke down.")
        self._unreadable.release()
        if reader.asked is not None:
            reader.allow(reader.asked)
        waiting = any(source.held for source in self._sources.values())
        seconds = _STEP_SECONDS if waiting else _FETCH_SECONDS
        read = await self._until_assigned(reader.read(seconds, _RECORDS))
        for place, parts in read.items():
            await self._take(consumer, place, parts)
        for place, batch in reader.unreadable.items():
            if place in self._sources:
                self._unreadable.hold(place, batch)
        reader.unreadable.clear()

    async def _until_assigned(self, reading: Coroutine[Any, Any, T]) -> T:
        """Await a read; say so where the group holds it up for long."""
        task = asyncio.ensure_future(reading)
        try:
            while not (await asyncio.wait({task}, timeout=_TELL_SECONDS))[0]:
                if unassigned := unassigned_line(self._group, self._unassigned):
                    self._trouble = unassigned
                    self._complaints.tell(unassigned)
            return task.result()
        finally:
            task.cancel()

    async def _take(
        self, consumer: AIOKafkaConsumer, place: TopicPartition, parts: Sequence[RecordLists]
    ) -> None:
        """Map records of a partition and let them wait, unless their schemas are missing."""
        decoder, source = self._decoders[place.topic], self._sources.get(place)
        if source is None or not parts:
            return
        await self._look_for_lost(consumer, place, source, parts[0].first)
        if self._sources.get(place) is not source:  # the partition has gone meanwhile
            return
        for records in parts:
            if self._waiting.holds(place.topic, decoder.unready(records.values)):
                consumer.seek(place, records.first)
                return
            source.next = records.beyond
            # Compaction took these.
            self._counts[place.topic]["lost"] += sum(end - at for at, end in records.missing)
            self._counts[place.topic]["ignored"] += source.take(place.partition, records, decoder)
            self._unreadable.read_on(place)

    def _due(self, horizon: float) -> dict[TopicPartition, list[_Held]]:
        """Take records up to a time, and of them no more than what one commit may cover."""
        first = min(
            (source.held[0].time for source in self._sources.values() if source.held), default=0
        )
        end = min(horizon, first + max(self._step, _LEAST_MS))
        return {
            place: records
            for place, source in self._sources.items()
            if (records := source.due(end))
        }

    async def _look_for_sources(self, consumer: AIOKafkaConsumer) -> None:
        """Name a topic that was deleted; the others go on."""
        if time.monotonic() - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = time.monotonic()
            with contextlib.suppress(KafkaError):  # no answer tells nothing
                gone = ", ".join(sorted(self._decoders.keys() - await consumer.topics()))
                cure = "make it anew, or drop it from `forward`"
                self._gone = f"the topic {gone} was deleted: {cure}" if gone else ""
        if self._gone:
            self._complaints.tell(self._gone)

    async def _horizon(self, consumer: AIOKafkaConsumer) -> float:
        """Tell how far our partitions have come, and return up to which time records may go.

        Ours go together, in the order of time: what counts of them is how far they have been read.
        Of the others' it is the first record that has not gone.
        """
        own: dict[str, str] = {}
        reached: list[float] = []
        for place, source in list(self._sources.items()):
            front, reach = await self._progress(consumer, place, source)
            own[f"{place.topic}:{place.partition}"] = front
            reached.append(reach)
        fresh = {name: front for name, front in own.items() if self._fronts.get(name) != front}
        if time.monotonic() - self._told_at >= _TELL_SECONDS:
            self._told_at, fresh = time.monotonic(), own
        if fresh or any(source.held for source in self._sources.values()):
            try:
                for name, front in fresh.items():
                    await self._pace.tell(name, front, _HOLD_MS)
                told = await self._pace.workers(_HOLD_MS)
                self._fronts = {name: said for name, (_, said) in told.items()}
            except UnreachableError as error:
                self._away = str(error)
                self._complaints.tell(f"{error} Nothing is forwarded meanwhile.")
                return -1.0
            self._away = ""
        if self._all - self._fronts.keys() - own.keys() and (
            time.monotonic() - self._began < HOLD_SECONDS
        ):
            return -1.0  # somebody has not told where it begins
        reached += [
            float(front)
            for name, front in self._fronts.items()
            if name not in own and front != _NOTHING
        ]
        return min(reached, default=float("inf")) + self._step

    async def _progress(
        self, consumer: AIOKafkaConsumer, place: TopicPartition, source: _Source
    ) -> tuple[str, float]:
        """Return the time of the first record that has not gone, and up to which all are read.

        These are `_NOTHING` and infinity where there is nothing to read.
        """
        front = str(source.held[0].time if source.held else source.time)
        end = consumer.highwater(place)
        try:
            if end is None:
                end = (await consumer.end_offsets([place]))[place]
            at = await consumer.position(place)
            await self._look_for_lost(consumer, place, source, at)
            self._lags[place] = max(0, end - at)
            if at >= end:
                source.read_at = time.monotonic()
                return front if source.held else _NOTHING, float("inf")
        except (KafkaError, IllegalStateError):
            pass
        silent = time.monotonic() - source.read_at
        if not source.held and silent > _LOOK_SECONDS:
            self._complaints.tell(f"partition {place.partition} of {place.topic} is not read")
            if silent > HOLD_SECONDS:
                return _NOTHING, float("inf")
        return front, source.time

    async def _look_for_lost(
        self, consumer: AIOKafkaConsumer, place: TopicPartition, source: _Source, at: int
    ) -> None:
        """Tell of records that Kafka deleted before they were read, where reading goes on `at`."""
        before = await consumer.committed(place) if source.next is None else source.next
        source.next = at
        if before is None or before >= at:
            return
        # Most jumps are markers of transactions.
        lost = (await consumer.beginning_offsets([place]))[place] - before
        if lost > 0:
            self._counts[place.topic]["lost"] += lost
            log.error(
                "partition %d of %s: %s were deleted before they were read: raise its retention",
                place.partition,
                place.topic,
                count_of(lost, "record"),
            )

    async def _send(
        self,
        consumer: AIOKafkaConsumer,
        producer: AIOKafkaProducer,
        due: Mapping[TopicPartition, Sequence[_Held]],
    ) -> None:
        """Send records, write dead letters, and commit when both are acknowledged."""
        await self._write(producer, due)
        letters: dict[str, list[DeadLetter]] = {}
        for place, records in due.items():
            rejected = [held.letter for held in records if held.letter is not None]
            if rejected:
                letters.setdefault(place.topic, []).extend(rejected)
        for topic, rejected in letters.items():
            refused = await self._letters[topic].write(rejected)
            self._counts[topic].update(rejected=len(rejected), dead_letters_refused=refused)
        for place, records in due.items():
            counts = self._counts[place.topic]
            counts["records"] += len(records)
            counts["events"] += sum(len(held.events) for held in records)
        ours = consumer.assignment()
        ends = {place: records[-1].offset + 1 for place, records in due.items() if place in ours}
        try:
            await consumer.commit(ends)
        except (CommitFailedError, IllegalStateError) as error:
            log.warning("partitions went elsewhere before a commit, and are sent again: %s", error)

    async def _write(
        self, producer: AIOKafkaProducer, due: Mapping[TopicPartition, Sequence[_Held]]
    ) -> None:
        """Send the events of records, until all are acknowledged.

        They go in batches of our own: `send` takes longer for an event than all the rest.
        """
        topic = self._settings.topic
        count = len(await producer.partitions_for(topic))
        batches: dict[int, Any] = {}
        sent: list[Awaitable[Any]] = []

        async def send(partition: int) -> None:
            batch = batches.pop(partition)
            batch.close()
            sent.append(await producer.send_batch(batch, topic, partition=partition))

        # In the order of time, so that a partition of the topic has no steps back.
        for held in sorted(itertools.chain(*due.values()), key=attrgetter("time")):
            stamp = held.timestamp if held.timestamp >= 0 else None
            for key, value in held.events:
                partition = _partition_of(key, count)
                if partition in batches:
                    if batches[partition].append(timestamp=stamp, key=key, value=value):
                        continue
                    await send(partition)
                batches[partition] = producer.create_batch()
                batches[partition].append(timestamp=stamp, key=key, value=value)
        for partition in list(batches):
            await send(partition)
        try:
            await asyncio.gather(*sent)
        except (MessageSizeTooLargeError, RecordListTooLargeError) as error:
            raise RefusedError(
                f"forward: the topic {topic} refuses events as too large: raise its"
                " max.message.bytes to what the topics read have, and start again (nothing is lost)"
            ) from error
        except (UnsupportedForMessageFormatError, UnknownError) as error:
            # Of Azure's Event Hubs, and of a broker that has no zstd (aiokafka lacks its error).
            if self._packing is None:
                raise
            refused, self._packing = self._packing, None
            raise UnreachableError(
                f"Kafka refuses events packed by {refused} ({error!r}): they are sent unpacked."
            ) from error

    def _say(self) -> None:
        """Log the counts, once a minute at most."""
        if time.monotonic() - self._said_at < _SAY_SECONDS:
            return
        self._said_at = time.monotonic()
        for topic, counts in self.counts().items():
            log.info(
                "%s: %d records became %d events; %d ignored, %d rejected, %d wait",
                topic,
                *(counts.get(name, 0) for name in ("records", "events", "ignored", "rejected")),
                counts["waiting"],
            )
        for decoder in self._decoders.values():
            for line in decoder.fresh():
                log.warning("%s", line)
