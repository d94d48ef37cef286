"""A sample producer: lists of ten items for made-up users, and what they do. Ends with SIGTERM.

Replace it by your own: the fields are in docs/events.md, and each record has its user as key.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
import uuid
import zlib
from pathlib import Path

from aiokafka import AIOKafkaProducer

SERVERS = os.environ.get("KAFKA", "localhost:9092")
TOPIC = os.environ.get("TOPIC", "recsys-events")
LISTS_PER_SECOND = float(os.environ.get("LISTS_PER_SECOND", "20"))
USERS = 2_000
ALIVE = Path(os.environ.get("ALIVE", "/tmp/alive"))  # noqa: S108  # for the health check


def reactions(slate: dict, chance: random.Random) -> list[dict]:
    """What a user does with a list: variant B puts better items first."""
    better = 1.25 if slate["variant"] == "B" else 1.0
    found = []
    for rank, item in enumerate(slate["items"]):
        if chance.random() < 0.08 * better * 0.85**rank:
            about = {
                "user_id": slate["user_id"],
                "item_id": item,
                "request_id": slate["request_id"],
            }
            seen = slate["ts"] + chance.randrange(1_000, 60_000)
            found.append({"type": "feedback", "ts": seen, **about, "feedback": "click"})
            if chance.random() < 0.1:
                price = round(chance.lognormvariate(3, 0.8), 2)
                bought = {"feedback": "purchase", "value": price}
                found.append({"type": "feedback", "ts": seen + 5_000, **about, **bought})
    return found


def shown(chance: random.Random) -> dict:
    """A list that one request showed. A user is always in the same variant."""
    user = f"user-{int(USERS * chance.random() ** 2)}"
    return {
        "type": "slate",
        "ts": int(time.time() * 1000),
        "user_id": user,
        "request_id": uuid.uuid4().hex,
        "variant": "AB"[zlib.crc32(user.encode()) % 2],
        "items": [f"item-{number}" for number in chance.sample(range(500), 10)],
        "latency_ms": round(chance.lognormvariate(3.5, 0.4), 1),
    }


async def main() -> None:
    """Send lists at a steady rate, and each reaction when it happens."""
    stopped = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stopped.set)
    chance, later = random.Random(), []
    async with AIOKafkaProducer(bootstrap_servers=SERVERS, linger_ms=20) as producer:
        while not stopped.is_set():
            slate = shown(chance)
            later += reactions(slate, chance)
            now = slate["ts"]
            for event in [slate, *(one for one in later if one["ts"] <= now)]:
                value = json.dumps(event).encode()
                await producer.send(TOPIC, value, key=event["user_id"].encode())
            later = [one for one in later if one["ts"] > now]
            ALIVE.touch()
            await asyncio.sleep(chance.expovariate(LISTS_PER_SECOND))


if __name__ == "__main__":
    asyncio.run(main())
