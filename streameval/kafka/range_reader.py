"""A part of the log, read again beside the workers by a consumer without a group: for recounts.

The workers do not depend on it: it commits no offset and joins nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from streameval.base.errors import UnreachableError
from streameval.kafka.admin import our_errors
from streameval.kafka.aiokafka_internals import stop_whole
from streameval.kafka.record_source import RecordSource
from streameval.kafka.records import LogIdentity, RecordLists
from streameval.kafka.security import client_arguments

if TYPE_CHECKING:
    from streameval.config.settings import Settings

REQUEST_MS: Final = 10_000
FETCH_SECONDS: Final = 0.5
# Records of one read.
FETCH_RECORDS: Final = 100_000
# A log that gives nothing for so long, before its end, has nobody who serves it.
SILENCE_SECONDS: Final = 30.0


class RangeReader:
    """One consumer on `topic`; offsets count records, times are ms."""

    def __init__(self, consumer: AIOKafkaConsumer, source: RecordSource, topic: str) -> None:
        self._consumer, self._source, self._topic = consumer, source, topic

    async def identity(self) -> LogIdentity | None:
        """Ask which log this is; None if the topic does not exist."""
        return await self._source.identify()

    async def starts(self, partitions: Iterable[int]) -> dict[int, int]:
        """Return the offset of the first record that each partition still holds."""
        asked = [TopicPartition(self._topic, number) for number in partitions]
        found = await self._consumer.beginning_offsets(asked)
        return {each.partition: offset for each, offset in found.items()}

    async def since(self, times: Mapping[int, int]) -> dict[int, int | None]:
        """Return, by partition, the first offset with this timestamp or a later one.

        None where no record has one. All records before the offset have earlier timestamps.
        """
        asked = {TopicPartition(self._topic, number): moment for number, moment in times.items()}
        found = await self._consumer.offsets_for_times(asked)
        return {
            each.partition: None if entry is None else entry.offset for each, entry in found.items()
        }

    async def read(self, partition: int, begin: int, end: int) -> AsyncIterator[RecordLists]:
        """Yield the records with offsets from `begin` up to and without `end`, in order.

        Raises `UnreachableError` where they stop coming.
        """
        source = self._source
        topic_partition = TopicPartition(self._topic, partition)
        self._consumer.assign([topic_partition])
        self._consumer.seek(topic_partition, begin)
        give_up = time.monotonic() + SILENCE_SECONDS
        # The position also counts offsets without a record of a compacted or transactional log.
        while await self._consumer.position(topic_partition) < end:
            if source.asked is not None:  # nobody else has a large batch unpacked
                source.allow(source.asked)
            found = (await source.read(FETCH_SECONDS, FETCH_RECORDS)).get(topic_partition, ())
            for lists in found:
                inside = sum(offset < end for offset in lists.offsets)
                if inside:
                    offsets, timestamps, keys, values, size, _ = lists
                    yield RecordLists(
                        offsets[:inside], timestamps[:inside], keys[:inside], values[:inside], size
                    )
            # The caller that takes the records may have taken long.
            if found:
                source.unreadable.clear()
                give_up = time.monotonic() + SILENCE_SECONDS
            elif time.monotonic() > give_up:
                batch = source.unreadable.get(topic_partition)
                why = f": the batch at {batch} cannot be read" if batch else ""
                raise UnreachableError(
                    f"partition {partition} of {self._topic} gave nothing for"
                    f" {SILENCE_SECONDS:.0f} s{why}"
                )


@asynccontextmanager
async def open_range_reader(settings: Settings) -> AsyncIterator[RangeReader]:
    """Open a consumer on the topic of the settings; raises like every call of `admin`."""
    client, topic = client_arguments(settings), settings.topic
    with our_errors(client):
        consumer = AIOKafkaConsumer(
            **client,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level="read_committed",
            request_timeout_ms=REQUEST_MS,
        )
        source: RecordSource | None = None
        try:
            await consumer.start()
            # A consumer stopped before its own tasks have begun raises their cancellation.
            await asyncio.sleep(0)
            whole = settings.decoder().reads_records
            source = RecordSource(consumer, topic, settings.read_memory, whole=whole)
            yield RangeReader(consumer, source, topic)
        finally:
            await (stop_whole(consumer) if source is None else source.stop())


def records_of(
    settings: Settings, partition: int, begin: int, end: int
) -> Generator[RecordLists, None, None]:
    """Yield records as `RangeReader.read`; the consumer lives as long as the generator."""

    async def read() -> AsyncGenerator[RecordLists, None]:
        async with open_range_reader(settings) as reader:
            async for lists in reader.read(partition, begin, end):
                yield lists

    async def following() -> RecordLists | None:
        return await anext(parts, None)

    async def close() -> None:
        await parts.aclose()

    with asyncio.Runner() as runner:
        parts = read()
        try:
            while (lists := runner.run(following())) is not None:
                yield lists
        finally:
            runner.run(close())
