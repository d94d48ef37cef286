"""The log read again beside the workers, by a consumer without a group: what checks recount.

Nothing that the workers do depends on it: it commits no offset and joins nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from streameval.base.errors import UnreachableError
from streameval.kafka.admin import Client, our_errors
from streameval.kafka.record_batches import RecordLists, read_record_lists
from streameval.kafka.topic_identity import LogIdentity, identify

REQUEST_MS: Final = 10_000
FETCH_MS: Final = 500
# A log that gives nothing for so long, before its end, has nobody who serves it.
SILENCE_SECONDS: Final = 30.0


class RangeReader:
    """One consumer on `topic`; offsets count records, times are ms."""

    def __init__(self, consumer: AIOKafkaConsumer, topic: str) -> None:
        self._consumer, self._topic = consumer, topic

    async def identity(self) -> LogIdentity | None:
        """Which log this is; None where there is no such topic."""
        return await identify(self._consumer._client, self._topic)  # noqa: SLF001 - the only way to send a request of our own

    async def starts(self, partitions: Iterable[int]) -> dict[int, int]:
        """The offset of the first record that each partition still holds."""
        topic_partitions = [TopicPartition(self._topic, number) for number in partitions]
        found = await self._consumer.beginning_offsets(topic_partitions)
        return {topic_partition.partition: offset for topic_partition, offset in found.items()}

    async def since(self, times: Mapping[int, int]) -> dict[int, int | None]:
        """By partition, the first offset whose record has this timestamp or a later one.

        None where no record has. All records before the offset have earlier timestamps.
        """
        asked = {TopicPartition(self._topic, number): moment for number, moment in times.items()}
        found = await self._consumer.offsets_for_times(asked)
        return {
            topic_partition.partition: None if entry is None else entry.offset
            for topic_partition, entry in found.items()
        }

    async def read(self, partition: int, begin: int, end: int) -> AsyncIterator[RecordLists]:
        """The records with offsets from `begin` up to and without `end`, in order.

        Raises `UnreachableError` where they stop coming.
        """
        topic_partition = TopicPartition(self._topic, partition)
        self._consumer.assign([topic_partition])
        self._consumer.seek(topic_partition, begin)
        give_up = time.monotonic() + SILENCE_SECONDS
        # The position counts what a compacted or transactional log has no record for, too.
        while await self._consumer.position(topic_partition) < end:
            for lists in (await self._consumer.getmany(timeout_ms=FETCH_MS)).get(
                topic_partition, ()
            ):
                give_up = time.monotonic() + SILENCE_SECONDS
                inside = sum(offset < end for offset in lists.offsets)
                if inside:
                    offsets, timestamps, keys, values, size = lists
                    yield RecordLists(
                        offsets[:inside], timestamps[:inside], keys[:inside], values[:inside], size
                    )
            if time.monotonic() > give_up:
                raise UnreachableError(
                    f"partition {partition} of {self._topic} gave nothing for"
                    f" {SILENCE_SECONDS:.0f} s"
                )


@asynccontextmanager
async def open_range_reader(client: Client, topic: str) -> AsyncIterator[RangeReader]:
    """A consumer on a topic; raises as every call of `admin` does."""
    with our_errors(client):
        consumer = AIOKafkaConsumer(
            **client,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level="read_committed",
            request_timeout_ms=REQUEST_MS,
        )
        try:
            await consumer.start()
            # A consumer stopped before its own tasks have begun raises their cancellation.
            await asyncio.sleep(0)
            read_record_lists(consumer)
            yield RangeReader(consumer, topic)
        finally:
            await consumer.stop()
