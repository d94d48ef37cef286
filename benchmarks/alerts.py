"""Alerts fired for real: workers on Kafka and Redis, a Prometheus with our rules, planted faults.

    python benchmarks/alerts.py [--seconds 360]

Five deployments run side by side, each with an experiment of 50/50 between A and B:

* *equal*: equal arms and a daily rhythm. Nothing may fire.
* *worse*: clicks of B fall from 30 % to 24 %.
* *split*: users come 48/52.
* *crossed*: 10 % of the users are in both arms, those who come once aside.
* *empty*: at half time empty slates rise from 2 % to 12 %.

A second is a minute: event time passes sixty times as fast as the clock, and all durations of the
rules are divided by sixty. The rules are those of `streameval rules`.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import servers
import service
from aiokafka import AIOKafkaProducer

SPEED: Final = 60
# Between two slates, ms of event time: 200 slates a second.
STEP: Final = 300
DAY_MS: Final = 86_400_000
WANTED: Final = {
    "equal": None,
    "worse": "StreamevalVariantWorse",
    "split": "StreamevalSampleRatioMismatch",
    "crossed": "StreamevalUsersCrossed",
    "empty": "StreamevalEmptySlates",
}
SETTINGS: Final[dict[str, Any]] = {
    "positives": ["click"],
    "dimensions": ["variant"],
    "attribution_window": "2m",
    "allowed_lateness": "1m",
    "windows": [{"size": "5m", "slide": "5s"}, {"size": "1h", "slide": "1m"}],
    "batch_interval": "500ms",
    "experiments": [
        {
            "name": "ranker",
            "arm": "variant",
            "control": "A",
            "split": {"A": 1, "B": 1},
            "planned_users": 20_000,
            "primary": "positives_per_impression{feedback=click}",
            "guardrails": ["ndcg@10", "empty_rate"],
        }
    ],
}


def events(fault: str, seed: int, begin: int, turn: int) -> Iterator[tuple[int, str, bytes]]:
    """Yield (ts, user, event) in order of time for ever; `turn` is when empty slates rise."""
    rng = random.Random(seed)
    waiting: list[tuple[int, int, str, bytes]] = []
    ts, number, users = begin, 0, 0
    while True:
        # Half as much at night as by day.
        ts += round(STEP / (1 + math.sin(2 * math.pi * ts / DAY_MS) / 3))
        while waiting and waiting[0][0] <= ts:
            at, _, user, value = heapq.heappop(waiting)
            yield at, user, value
        users += rng.random() < 0.6
        name = users if rng.random() < 0.6 else max(0, users - rng.randrange(5_000))
        user = f"u{name}"
        share = 0.52 if fault == "split" else 0.5
        arm = "B" if random.Random(f"{seed}/{name}").random() < share else "A"
        if fault == "crossed" and name % 10 == 0:
            arm = rng.choice("AB")
        is_empty = rng.random() < (0.12 if fault == "empty" and ts > turn else 0.02)
        number += 1
        head = {"ts": ts, "user_id": user, "request_id": f"r{number}"}
        items = [] if is_empty else [f"i{item}" for item in rng.sample(range(300), 5)]
        yield ts, user, _line({"type": "slate", **head, "variant": arm, "items": items})
        rate = 0.24 if fault == "worse" and arm == "B" else 0.3
        if items and rng.random() < rate:
            delay = 1_000 + round(rng.expovariate(1 / 15_000))
            click = {"type": "feedback", "feedback": "click", "item_id": rng.choice(items)}
            value = _line({**click, **head, "ts": ts + delay})
            heapq.heappush(waiting, (ts + delay, number, user, value))


def _line(event: dict[str, Any]) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode()


async def send(port: int, topics: dict[str, str], seconds: float) -> None:
    """Send the streams of all deployments, each minute of event time in a second."""
    begin = round(time.time() * 1000) - 12 * 3_600_000
    turn = begin + round(seconds * 500 * SPEED)
    streams = {
        topic: events(fault, number, begin, turn)
        for number, (fault, topic) in enumerate(topics.items())
    }
    producer = AIOKafkaProducer(bootstrap_servers=f"127.0.0.1:{port}", linger_ms=20)
    await producer.start()
    began = time.monotonic()
    try:
        while (elapsed := time.monotonic() - began) < seconds:
            for topic, stream in streams.items():
                for ts, user, value in stream:
                    await producer.send(topic, value, key=user.encode())
                    if ts > begin + elapsed * 1000 * SPEED:
                        break
            await asyncio.sleep(0.2)
    finally:
        await producer.stop()


def faster(rules: str) -> str:
    """Divide all durations of rules by `SPEED`, but for those that are names of windows."""
    units = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

    def scaled(found: re.Match[str]) -> str:
        parts = re.findall(r"(\d+)([smhd])", found[2])
        ms = sum(int(count) * units[unit] for count, unit in parts) * 1000 // SPEED
        return f"{found[1]}{max(ms, 1000)}ms"

    return re.sub(r"(\[|:(?=\d)|offset |for: |interval: )((?:\d+[smhd])+)", scaled, rules)


def configuration(rules: Path, jobs: dict[str, int]) -> str:
    """Return the configuration of a Prometheus that scrapes each job's port every second."""
    scraped = [
        {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
        for job, port in jobs.items()
    ]
    document = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": scraped,
    }
    return json.dumps(document)


def fired(port: int, since: float) -> dict[tuple[str, str], float]:
    """Return the alerts that fired, by job and name, with the seconds until they first did."""
    query = {
        "query": 'ALERTS{alertstate="firing"}',
        "start": since,
        "end": time.time(),
        "step": "1",
    }
    address = f"http://127.0.0.1:{port}/api/v1/query_range?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(address, timeout=30) as answer:
        rows = json.load(answer)["data"]["result"]
    found: dict[tuple[str, str], float] = {}
    for row in rows:
        key = row["metric"].get("job", ""), row["metric"]["alertname"]
        first = row["values"][0][0] - since
        found[key] = min(first, found.get(key, first))
    return found


def main() -> int:
    """Print which alert each deployment fired, and return 1 where it is not the one wanted."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=360.0)
    seconds = parser.parse_args().seconds
    with ExitStack() as stack:
        kafka, redis = stack.enter_context(servers.kafka()), stack.enter_context(servers.redis())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        topics = {fault: f"alerts-{fault}" for fault in WANTED}
        workers = {}
        for fault, topic in topics.items():
            service.create_topic(kafka.port, topic, 1)
            worker = service.Worker(kafka.port, redis.url, topic, group=fault, **SETTINGS)
            workers[fault] = stack.enter_context(worker)
            # The next port that is free must not be that of a worker that has not taken it yet.
            worker.wait_until_up()
        command = [sys.executable, "-m", "streameval", "rules", "--config", worker.config]
        rules = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        for worker in workers.values():
            service.wait_for(lambda worker=worker: worker.page("/readyz"), 60, "workers are ready")
        (folder / "rules.yml").write_text(faster(rules))
        scraped = {fault: one.port for fault, one in workers.items()}
        prometheus = stack.enter_context(
            servers.prometheus(configuration(folder / "rules.yml", scraped))
        )
        since = time.time()
        asyncio.run(send(kafka.port, topics, seconds))
        found = fired(prometheus.port, since)
    return report(found, seconds)


def report(found: dict[tuple[str, str], float], seconds: float) -> int:
    """Print a row for each deployment."""
    load = os.getloadavg()[0]
    today = datetime.now(UTC).date()
    print(
        f"{today}, {seconds:.0f} s for as many minutes, {os.cpu_count()} cores, load {load:.1f}\n"
    )
    print("| deployment | wanted | fired, after minutes of event time |")
    print("| --- | --- | --- |")
    right = True
    for fault, alert in WANTED.items():
        alerts = {name: first for (job, name), first in found.items() if job == fault}
        listed = ", ".join(f"`{name}` ({first:.0f})" for name, first in sorted(alerts.items()))
        print(f"| {fault} | {f'`{alert}`' if alert else 'nothing'} | {listed or 'nothing'} |")
        right = right and (alert in alerts if alert else not alerts)
    strays = [name for (job, name) in found if job not in WANTED]
    print(f"\nof no deployment: {', '.join(strays) or 'nothing'}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
