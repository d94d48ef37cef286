"""The ceiling: aiokafka's reader that only counts."""

import asyncio

from aiokafka import AIOKafkaConsumer
from meter import Meter, arguments


async def main() -> None:
    given = arguments()
    consumer = AIOKafkaConsumer(
        given.topic,
        bootstrap_servers=given.kafka,
        group_id=given.group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=4 << 20,
    )
    await consumer.start()
    meter = Meter(given.records)
    while not meter.done:
        found = await consumer.getmany(timeout_ms=100, max_records=20_000)
        meter.count(sum(map(len, found.values())))
    await consumer.stop()


asyncio.run(main())
