"""The records and the identity of one topic, through one consumer that was started.

Records come as parallel lists, within a budget of memory, from fetches that name the topic by id.
All this stands on private parts of aiokafka.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aiokafka import AIOKafkaConsumer, TopicPartition

from streameval.base.limits import READ_MEMORY
from streameval.core.record_mark import RecordMark
from streameval.kafka import aiokafka_internals
from streameval.kafka.fetch_by_id import VerifyingClient
from streameval.kafka.record_batches import read_record_lists
from streameval.kafka.records import UNIT, BatchLocation, LogIdentity, RecordLists
from streameval.kafka.topic_identity import identify


class RecordSource:
    """The source of records of a consumer that was just started and has no subscription yet.

    Without the `topic`, which may be one of several then, it reads, and answers no questions on it.
    Records that are fetched and not handed out take at most `memory` bytes. With `whole`, values
    know the keys and headers of their records. `unreadable` names, by partition, the batch that
    cannot be read and why; the reader clears it.
    """

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        topic: str = "",
        memory: int = READ_MEMORY,
        *,
        whole: bool = False,
    ) -> None:
        self._consumer, self._topic = consumer, topic
        self._fetched = read_record_lists(consumer, memory, whole=whole)
        self.unreadable: dict[TopicPartition, str] = self._fetched.unreadable
        self._verifying: VerifyingClient = aiokafka_internals.replace_fetch_client(
            consumer, lambda client: VerifyingClient(client, topic)
        )

    @property
    def asked(self) -> BatchLocation | None:
        """The large batch that waits until it is allowed or refused."""
        return self._fetched.memory.asked

    async def read(
        self, seconds: float, max_records: int
    ) -> Mapping[TopicPartition, Sequence[RecordLists]]:
        """Return the next records; wait about `seconds` for some. Raises aiokafka's errors."""
        self._fetched.unit = unit = min(UNIT, max_records)
        found: dict[TopicPartition, list[RecordLists]] = await self._consumer.getmany(
            timeout_ms=int(seconds * 1000), max_records=max_records // unit
        )
        return found

    def share(self, partitions: int) -> None:
        """Share the memory for fetched records among so many partitions."""
        self._fetched.share(partitions)

    def allow(self, location: BatchLocation) -> None:
        """Let a large batch be unpacked, if it still waits."""
        self._fetched.memory.allow(location)

    def refuse(self, location: BatchLocation, why: str) -> None:
        """Leave a large batch alone this time, because of `why`."""
        self._fetched.memory.refuse(location, why)

    def forget_failed_read(self) -> None:
        """Put right what aiokafka counts after a read that raised."""
        aiokafka_internals.forget_failed_read(self._consumer)

    @property
    def broken(self) -> bool:
        """Whether a background task of aiokafka has ended: it reads nothing any more."""
        return aiokafka_internals.is_broken(self._consumer)

    async def identify(self) -> LogIdentity | None:
        """Ask which log this is; None if the topic does not exist. Raises aiokafka's errors."""
        return await identify(aiokafka_internals.client_of(self._consumer), self._topic)

    def verify(self, topic_id: str) -> None:
        """Verify at each fetch that the log is the topic `topic_id`."""
        self._verifying.topic_id = topic_id

    def forget(self, partition: int) -> None:
        """Compare the next fetch of a partition with nothing that was read before."""
        self._verifying.forget(partition)

    async def mark_at(self, partition: int, offset: int) -> RecordMark | None:
        """Return the mark of the record at `offset`; None where the log holds no record there.

        Raises aiokafka's errors.
        """
        return await self._verifying.mark_at(partition, offset)

    async def stop(self) -> None:
        """Stop the consumer and forget its fetches."""
        self._fetched.clear()
        await aiokafka_internals.stop_whole(self._consumer)
