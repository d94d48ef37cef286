"""Rate, CPU and added latency of `streameval forward`, on real Kafka and Redis.

Messages of Segment, keyed by item, become events keyed by user. First a backlog, then a trickle:
its latency is the time from the record's append to that of its event, by the broker's clock.

    python benchmarks/forward.py --events 200000
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import servers
import service
import trackers
from aiokafka import AIOKafkaConsumer, TopicPartition

PARTITIONS = 2
TRICKLE = 400
TRICKLE_SECONDS = 40
STAMPED = {"message.timestamp.type": "LogAppendTime"}


async def raw(port: int, topic: str) -> tuple[float, float]:
    """Seconds and CPU seconds of aiokafka's bare reading."""
    consumer = AIOKafkaConsumer(bootstrap_servers=f"127.0.0.1:{port}", auto_offset_reset="earliest")
    await consumer.start()
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    consumer.assign(places)
    ends = await consumer.end_offsets(places)
    began, cpu = time.monotonic(), time.process_time()
    while any([await consumer.position(place) < ends[place] for place in places]):
        await consumer.getmany(timeout_ms=200)
    found = time.monotonic() - began, time.process_time() - cpu
    await consumer.stop()
    return found


def key_of(call: dict[str, Any]) -> tuple[str, str]:
    """The time and the user of a call."""
    return call["timestamp"], call["userId"]


def cpu_of(process: subprocess.Popen[bytes]) -> float:
    """The CPU seconds of a process until now."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def count(port: int, topic: str) -> int:
    """How many records a topic has had."""

    async def ends() -> int:
        async with AIOKafkaConsumer(bootstrap_servers=f"127.0.0.1:{port}") as consumer:
            places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
            return sum((await consumer.end_offsets(places)).values())

    return asyncio.run(ends())


def measure(events: list[dict[str, object]], folder: Path) -> None:
    values = [json.dumps(trackers.segment(event)).encode() for event in events]
    records = [
        (str(event.get("item_id", event["request_id"])).encode(), value)
        for event, value in zip(events, values, strict=True)
    ]
    with contextlib.ExitStack() as stack:
        kafka = stack.enter_context(servers.kafka())
        redis = stack.enter_context(servers.redis())
        for name in ("calls", "events", "events.dead-letter"):
            service.create_topic(kafka.port, name, PARTITIONS, **STAMPED)
        backlog = len(records) - TRICKLE
        service.produce(kafka.port, "calls", records[:backlog])
        plain, plain_cpu = asyncio.run(raw(kafka.port, "calls"))
        config = folder / "streameval.yaml"
        keys = {"kafka": f"127.0.0.1:{kafka.port}", "redis": redis.url, "topic": "events"}
        sources = [{"topic": "calls", "profile": "segment"}]
        config.write_text(json.dumps(keys | {"listen": "127.0.0.1:0", "forward": sources}))
        began = time.monotonic()
        command = [sys.executable, "-m", "streameval", "forward", "--config", str(config)]
        process = stack.enter_context(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        stack.callback(process.terminate)
        started = None
        while (found := count(kafka.port, "events")) < backlog:
            if found and started is None:
                started = found, time.monotonic(), cpu_of(process)
            time.sleep(0.5)
        assert started is not None, "the backlog takes longer than a look"
        done = backlog - started[0]
        seconds, cpu = time.monotonic() - started[1], cpu_of(process) - started[2]
        print(f"backlog of {backlog:,} messages of Segment, after {started[0]:,}:")
        for name, rate, each in (
            ("raw reading", backlog / plain, plain_cpu / backlog),
            ("forward", done / seconds, cpu / done),
        ):
            print(f"  {name:12} {rate:9,.0f} a second {1e6 * each:6.1f} us of CPU each")
        for at in range(backlog, len(records), 10):
            service.produce(kafka.port, "calls", records[at : at + 10])
            time.sleep(10 * TRICKLE_SECONDS / TRICKLE)
        service.wait_for(lambda: count(kafka.port, "events") == len(records), 60, "the trickle")
        log = service.read_log(kafka.port, "calls", PARTITIONS)[0].values()
        appended = {key_of(json.loads(value)): at for each in log for _, at, _, value in each}
        trickle = {key_of(json.loads(value)) for _, value in records[backlog:]}
        log = service.read_log(kafka.port, "events", PARTITIONS)[0].values()
        delays = []
        for _, at, _, value in (record for each in log for record in each):
            event = json.loads(value)
            key = event["ts"], event["user_id"]
            if key in trickle:
                delays.append(at - appended[key])
        late = sorted(delays)[int(0.95 * len(delays))]
        print(f"a trickle of {TRICKLE // TRICKLE_SECONDS} a second: {len(delays)} events later by")
        print(f"  {statistics.median(delays):.0f} ms (median), {late} ms (95 %)")
        print(f"in all {time.monotonic() - began:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument(
        "--times", type=int, default=100, help="1: 2.6 events a second of their time"
    )
    options = parser.parse_args()
    events = trackers.stream(1, count=options.events // 2, users=options.events // 20)
    for event in events:
        event["ts"] = trackers.BEGIN + (event["ts"] - trackers.BEGIN) // options.times
    with tempfile.TemporaryDirectory() as folder:
        measure(events[: options.events], Path(folder))


if __name__ == "__main__":
    main()
