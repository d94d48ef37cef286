"""Topics filled before the clock starts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import service
from aiokafka import AIOKafkaProducer
from workload import Record

# Uncompressed bytes of a batch, as a busy producer with a short linger makes them.
BATCH_BYTES: Final = 128 << 10


@dataclass(frozen=True)
class Filled:
    """What a topic holds: records and bytes of their values (before compression)."""

    topic: str
    records: int
    value_bytes: int


def fill(kafka_port: int, topic: str, records: Iterable[Record], *, partitions: int = 4) -> Filled:
    """Create `topic` and write `records`, compressed with lz4."""
    service.create_topic(kafka_port, topic, partitions)
    return extend(kafka_port, topic, records, partitions=partitions)


def extend(
    kafka_port: int, topic: str, records: Iterable[Record], *, partitions: int = 4
) -> Filled:
    """Write `records` to a topic that is there."""
    return asyncio.run(_write(kafka_port, topic, records, partitions))


async def _write(kafka_port: int, topic: str, records: Iterable[Record], partitions: int) -> Filled:
    producer = AIOKafkaProducer(
        bootstrap_servers=f"127.0.0.1:{kafka_port}",
        compression_type="lz4",
        max_batch_size=BATCH_BYTES,
        acks=1,
    )
    await producer.start()
    try:
        batches = [producer.create_batch() for _ in range(partitions)]
        count = size = 0
        for partition, key, value in records:
            count += 1
            size += len(value)
            while batches[partition].append(key=key, value=value, timestamp=None) is None:
                await producer.send_batch(batches[partition], topic, partition=partition)
                batches[partition] = producer.create_batch()
        for partition, batch in enumerate(batches):
            if batch.record_count():
                await producer.send_batch(batch, topic, partition=partition)
        await producer.flush()
    finally:
        await producer.stop()
    return Filled(topic, count, size)
