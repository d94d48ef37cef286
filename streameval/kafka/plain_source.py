"""Records and identity of a topic on aiokafka's public ways only: slower, and with fewer promises.

Partitions are read one by one, so that an error belongs to one of them. An unreadable batch is
found by halving: reads before it get shorter, until one record alone fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import (
    CorruptRecordException,
    IllegalStateError,
    KafkaError,
    RecordTooLargeError,
    UnsupportedCodecError,
)

from streameval.base.limits import MAX_DEAD_LETTER_BYTES, MAX_EVENT_BYTES
from streameval.core.events import TooLarge
from streameval.core.record_mark import RecordMark, mark
from streameval.kafka.records import UNIT, BatchLocation, LogIdentity, RecordLists, value_of

# How often partitions are looked through while nothing has come.
PAUSE_SECONDS: Final = 0.02
FETCH_MS: Final = 1_000
_NOBODY: Final = TopicPartition("", 0)
_UNREADABLE: Final = (CorruptRecordException, RecordTooLargeError, UnsupportedCodecError)


class _Suspect(NamedTuple):
    """An unreadable record lies before `end`; reads are `most` records long."""

    most: int
    end: int


class PlainSource:
    """The `RecordSource` on public parts of aiokafka; `client` are the arguments of any client.

    It does not bound the memory of unpacked batches, does not compare topic ids or epochs, and does
    not notice a background task of aiokafka that has ended.
    """

    asked: BatchLocation | None = None
    broken = False

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        client: Mapping[str, Any],
        topic: str,
        *,
        whole: bool = False,
    ) -> None:
        self._consumer, self._client, self._topic = consumer, client, topic
        self._whole = whole
        self._admin: AIOKafkaAdminClient | None = None
        self._suspects: dict[TopicPartition, _Suspect] = {}
        self.unreadable: dict[TopicPartition, str] = {}

    async def read(
        self, seconds: float, max_records: int
    ) -> Mapping[TopicPartition, Sequence[RecordLists]]:
        """Return the next records; wait about `seconds` for some. Raises aiokafka's errors."""
        end = time.monotonic() + seconds
        while True:
            open_ones = self._consumer.assignment() - self._consumer.paused()
            partitions = sorted(open_ones - self.unreadable.keys())
            found: dict[TopicPartition, list[ConsumerRecord]] = {}
            for topic_partition in partitions:
                with contextlib.suppress(IllegalStateError):  # taken away meanwhile
                    most = max_records // len(partitions) or 1
                    found |= await self._read(topic_partition, most)
            if not partitions:  # a member that does not read leaves the group
                await self._consumer.getmany(_NOBODY)
            left = end - time.monotonic()
            if found or left <= 0:
                return {each: self._lists(records) for each, records in found.items()}
            await asyncio.sleep(min(left, PAUSE_SECONDS))

    async def _read(
        self, topic_partition: TopicPartition, most: int
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Read one partition; raise for an unreadable batch until reads are one record long.

        aiokafka drops the records before the batch with the error, so the caller seeks back.
        """
        consumer, suspect = self._consumer, self._suspects.get(topic_partition)
        if suspect is not None:
            most = min(most, suspect.most)
        position = await consumer.position(topic_partition)
        try:
            found: dict[TopicPartition, list[ConsumerRecord]] = await consumer.getmany(
                topic_partition, timeout_ms=0, max_records=most
            )
        except Exception as error:
            if isinstance(error, KafkaError) and not isinstance(error, _UNREADABLE):
                raise
            self._suspects[topic_partition] = _Suspect(max(1, most // 2), position + most)
            if most > 1:
                raise
            self.unreadable[topic_partition] = f"offset {position} ({str(error) or repr(error)})"
            return {}
        if suspect is not None and await consumer.position(topic_partition) >= suspect.end:
            del self._suspects[topic_partition]
        return found

    def share(self, partitions: int) -> None:
        """Do nothing: the bounds of fetches are arguments of the consumer."""

    def allow(self, location: BatchLocation) -> None:
        """Do nothing: aiokafka unpacks batches without asking."""

    def refuse(self, location: BatchLocation, why: str) -> None:
        """Do nothing: aiokafka unpacks batches without asking."""

    def forget_failed_read(self) -> None:
        """Do nothing: aiokafka's count of failed reads is its own."""

    def verify(self, topic_id: str) -> None:
        """Do nothing: aiokafka fetches by name."""

    def forget(self, partition: int) -> None:
        """Suspect no batch of a partition any more."""
        self._suspects.pop(TopicPartition(self._topic, partition), None)

    async def identify(self) -> LogIdentity | None:
        """Ask which log this is, without its topic id; None if the topic does not exist."""
        admin = await self._connected()
        cluster = await admin.describe_cluster()
        # Asking for one topic might create it.
        for topic in await admin.describe_topics():
            if topic["topic"] == self._topic:
                leaders = {each["partition"]: each["leader"] for each in topic["partitions"]}
                leaderless = frozenset(number for number, leader in leaders.items() if leader < 0)
                return LogIdentity(cluster["cluster_id"] or "", "", len(leaders), leaderless)
        return None

    async def _connected(self) -> AIOKafkaAdminClient:
        if self._admin is None:
            admin = AIOKafkaAdminClient(**self._client)
            try:
                await admin.start()
            except BaseException:
                await admin.close()
                raise
            self._admin = admin
        return self._admin

    async def mark_at(self, partition: int, offset: int) -> RecordMark | None:
        """Return the mark of the record at `offset`; None where the log holds no record there.

        A consumer of its own reads the record, so that the position of ours stays.
        """
        topic_partition = TopicPartition(self._topic, partition)
        consumer = AIOKafkaConsumer(
            **self._client, enable_auto_commit=False, auto_offset_reset="none"
        )
        await consumer.start()
        try:
            end = (await consumer.end_offsets([topic_partition]))[topic_partition]
            consumer.assign([topic_partition])
            consumer.seek(topic_partition, offset)
            while await consumer.position(topic_partition) < end:
                found = await consumer.getmany(timeout_ms=FETCH_MS, max_records=1)
                for lists in self._lists(found.get(topic_partition, ())):
                    row = (lists.offsets[0], lists.timestamps[0], lists.keys[0], lists.values[0])
                    return mark(*row) if row[0] == offset else None
            return None
        finally:
            await stop(consumer)

    def _lists(self, records: Sequence[ConsumerRecord]) -> list[RecordLists]:
        """Turn records into lists of `UNIT` at most."""
        parts = (records[at : at + UNIT] for at in range(0, len(records), UNIT))
        return [_unit(part, whole=self._whole) for part in parts]

    async def stop(self) -> None:
        """Stop the consumer, and the connection that tells which log this is."""
        admin, self._admin = self._admin, None
        if admin is not None:
            await admin.close()
        await stop(self._consumer)


async def stop(consumer: AIOKafkaConsumer) -> None:
    """Stop a consumer, perhaps in the middle of its start; its connections too, where possible."""
    try:
        from streameval.kafka.aiokafka_internals import stop_whole
    except (ImportError, AttributeError):
        await consumer.stop()
    else:
        await stop_whole(consumer)


def _unit(records: Sequence[ConsumerRecord], *, whole: bool) -> RecordLists:
    """Turn records into lists; nothing is kept of a value that is too large."""
    keys = [each.key for each in records]
    values = [value_of(each, whole=whole) for each in records]
    for at, value in enumerate(values):
        if value is not None and len(value) > MAX_EVENT_BYTES:
            values[at] = TooLarge.of(len(value), value[:MAX_DEAD_LETTER_BYTES])
            keys[at] = None if keys[at] is None else keys[at][:MAX_DEAD_LETTER_BYTES]
    return RecordLists(
        [each.offset for each in records],
        [each.timestamp for each in records],
        keys,
        values,
        sum(len(text) for each in records for text in (each.key, each.value) if text),
    )
