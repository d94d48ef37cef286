"""What one writes by hand: json, and counters in Redis by a pipeline for each 1,000 events.

Generous to it: counts of a user are added up within the 1,000, and nothing is exactly once.
"""

import asyncio
import json
from collections import Counter
from typing import Any

from aiokafka import AIOKafkaConsumer
from meter import Meter, arguments
from redis import Redis

PIPELINE = 1_000


def apply(store: Redis, messages: list[Any]) -> None:
    counts: Counter[tuple[str, str]] = Counter()
    for message in messages:
        event = json.loads(message.value)
        if event["type"] == "impression":
            counts[event["user_id"], "impressions"] += 1
        elif event["type"] == "feedback" and event["feedback"] in {"click", "like"}:
            counts[event["user_id"], "positives"] += 1
    pipeline = store.pipeline(transaction=False)
    for (user, field), count in counts.items():
        pipeline.hincrby(f"user:{user}", field, count)
    pipeline.execute()


async def main() -> None:
    given = arguments()
    store = Redis.from_url(given.redis)
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
        messages = [message for batch in found.values() for message in batch]
        for start in range(0, len(messages), PIPELINE):
            apply(store, messages[start : start + PIPELINE])
        if messages:
            await consumer.commit()
        meter.count(len(messages))
    await consumer.stop()


asyncio.run(main())
