"""Partitions that wait before a batch that cannot be read, while the others go on."""

from __future__ import annotations

import logging
import time
from typing import Final

from aiokafka import TopicPartition

log = logging.getLogger(__name__)

# The batch is fetched again after this time; somebody may have skipped it, or an upgrade read it.
WAIT_SECONDS: Final = 5.0
# How often the log names it.
LOG_SECONDS: Final = 60.0


class UnreadableBatches:
    """Which partitions wait, before which batch, and until when.

    `with_topic`: they are of several topics, so words on them name the topic too.
    """

    def __init__(self, *, with_topic: bool = False) -> None:
        self._with_topic = with_topic
        self._until: dict[TopicPartition, float] = {}
        self._named: dict[
            TopicPartition, tuple[str, float]
        ] = {}  # with the time of the last log line

    def hold(self, topic_partition: TopicPartition, batch: str) -> None:
        """Let a partition wait before `batch`, which says the offsets and why."""
        now = time.monotonic()
        before, said = self._named.get(topic_partition, ("", now - LOG_SECONDS))
        if before != batch or now - said >= LOG_SECONDS:
            said = now
            topic, partition = topic_partition
            log.error(
                "partition %s: the batch at %s cannot be read, trying again;"
                " kafka-delete-records.sh skips it",
                f"{partition} of {topic}" if self._with_topic else partition,
                batch,
            )
        self._named[topic_partition] = batch, said
        self._until[topic_partition] = now + WAIT_SECONDS

    def release(self) -> list[TopicPartition]:
        """Return the partitions that have waited long enough; their batch is tried again."""
        now = time.monotonic()
        over = [each for each, until in self._until.items() if now >= until]
        for topic_partition in over:
            del self._until[topic_partition]
        return over

    def __contains__(self, topic_partition: TopicPartition) -> bool:
        """Whether a partition waits."""
        return topic_partition in self._until

    def named(self, topic_partition: TopicPartition) -> str | None:
        """Return the batch that a partition cannot read, until it has read on."""
        found = self._named.get(topic_partition)
        return None if found is None else found[0]

    def read_on(self, topic_partition: TopicPartition) -> None:
        """Forget the batch: the partition has read on, or begins anew."""
        self._named.pop(topic_partition, None)

    def forget(self, topic_partition: TopicPartition) -> None:
        """Forget a partition that went."""
        self._until.pop(topic_partition, None)
        self._named.pop(topic_partition, None)

    def clear(self) -> None:
        """Forget all partitions."""
        self._until.clear()
        self._named.clear()
