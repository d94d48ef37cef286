"""The choice between two ways to a topic: a fast one and a plain one.

`FastSource` stands on private parts of aiokafka. `PlainSource` uses its public ones only: it is
slower and does less (docs/guarantees.md says what). It serves where this version of aiokafka lacks
a private part, so that another version costs speed and not the service.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from aiokafka import AIOKafkaConsumer, TopicPartition

from streameval.base.limits import READ_MEMORY
from streameval.core.record_mark import RecordMark
from streameval.kafka.plain_source import PlainSource
from streameval.kafka.records import BatchLocation, LogIdentity, RecordLists

if TYPE_CHECKING:
    from streameval.kafka.fast_source import FastSource

log = logging.getLogger(__name__)


class RecordSource(Protocol):
    """The records and the identity of one topic, through one consumer that was started.

    `unreadable` names, by partition, the batch that cannot be read and why; the reader clears it.
    """

    unreadable: dict[TopicPartition, str]

    @property
    def asked(self) -> BatchLocation | None:
        """The large batch that waits until it is allowed or refused."""

    async def read(
        self, seconds: float, max_records: int
    ) -> Mapping[TopicPartition, Sequence[RecordLists]]:
        """Return the next records; wait about `seconds` for some. Raises aiokafka's errors."""

    def share(self, partitions: int) -> None:
        """Share the memory for fetched records among so many partitions."""

    def allow(self, location: BatchLocation) -> None:
        """Let a large batch be unpacked, if it still waits."""

    def refuse(self, location: BatchLocation, why: str) -> None:
        """Leave a large batch alone this time, because of `why`."""

    def forget_failed_read(self) -> None:
        """Put right what aiokafka counts after a read that raised."""

    @property
    def broken(self) -> bool:
        """Whether a background task of aiokafka has ended: it reads nothing any more."""

    async def identify(self) -> LogIdentity | None:
        """Ask which log this is; None if the topic does not exist. Raises aiokafka's errors."""

    def verify(self, topic_id: str) -> None:
        """Verify at each fetch, where possible, that the log is the topic `topic_id`."""

    def forget(self, partition: int) -> None:
        """Compare the next fetch of a partition with nothing that was read before."""

    async def mark_at(self, partition: int, offset: int) -> RecordMark | None:
        """Return the mark of the record at `offset`; None where the log holds no record there.

        Raises aiokafka's errors.
        """

    async def stop(self) -> None:
        """Stop the consumer and forget its fetches."""


def open_source(
    consumer: AIOKafkaConsumer,
    client: Mapping[str, object],
    topic: str = "",
    memory: int = READ_MEMORY,
    *,
    whole: bool = False,
) -> RecordSource:
    """Open the fast source where this aiokafka allows it, else the plain one.

    `consumer` was just started with the arguments `client`, and has no subscription yet. Without
    the `topic`, which may be one of several then, the source reads, and answers no questions on it.
    Records that are fetched and not handed out take at most `memory` bytes; the plain source bounds
    fetches only. With `whole`, values know the keys and headers of their records.
    """
    fast = _fast(consumer)
    if fast is None:
        return PlainSource(consumer, client, topic, whole=whole)
    return fast(consumer, topic, memory, whole=whole)


def _fast(consumer: AIOKafkaConsumer) -> type[FastSource] | None:
    try:
        from streameval.kafka.aiokafka_internals import lacking
        from streameval.kafka.fast_source import FastSource
    except (ImportError, AttributeError) as error:
        _warn(str(error))
        return None
    missing = lacking(consumer)
    if missing:
        _warn(missing)
        return None
    return FastSource


@functools.cache
def _warn(missing: str) -> None:
    log.warning(
        "this aiokafka lacks a part that fast reading needs (%s): records are read several times"
        " slower, read_memory does not bound them unpacked, and a log that is set back is noticed"
        " only where a partition is restored; install aiokafka 0.14",
        missing,
    )
