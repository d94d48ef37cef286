"""Workers against nodes of Redis: the rate of all, and CPU of workers and of Redis an event.

Each number of workers reads a topic from its beginning, on one Redis and on a cluster, in turns.
CPU is what to compare: on few cores the processes take it from each other.

    python benchmarks/nodes.py --impressions 400000 --turns 3
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import servers
import service
from log import Filled, fill
from machine import cpu_seconds
from measure import wait_for
from workload import Shape, records

PARTITIONS = 12


def run(
    kafka: servers.Server, url: str, nodes: Sequence[servers.Server], log: Filled, count: int
) -> tuple[float, float, list[float]]:
    """Events a second, and CPU seconds of the workers and of each node, of one run."""
    group = servers.unique("nodes")
    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(service.Worker(kafka.port, url, log.topic, group=group))
            for _ in range(count)
        ]
        for worker in workers:
            worker.wait_until_up()
        pids = [worker.process.pid for worker in workers]
        redis = [node.process.pid for node in nodes]
        before, began = [*map(cpu_seconds, (*pids, *redis))], time.monotonic()

        def stored() -> int:
            found = service.stored_offsets(url, log.topic, PARTITIONS, group)
            return sum(int(offset or 0) for offset in found.values())

        wait_for(lambda: stored() >= log.records, "the last commit")
        seconds = time.monotonic() - began
        used = [
            after - first
            for after, first in zip(map(cpu_seconds, (*pids, *redis)), before, strict=True)
        ]
    return log.records / seconds, sum(used[:count]), used[count:]


@contextlib.contextmanager
def stores() -> Iterator[dict[str, tuple[str, list[servers.Server]]]]:
    """One Redis, and a cluster of three primaries: their URLs and servers."""
    with servers.redis() as one, servers.redis_cluster(replicas=0, aof=None) as cluster:
        yield {"one": (one.url, [one]), "3 nodes": (cluster.url, cluster.nodes)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--impressions", type=int, default=400_000)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    print("| events | workers | Redis | events/s | worker, us | Redis, us | busiest node |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with servers.kafka() as kafka, stores() as by_name:
        for sent in ("impressions", "slates"):
            shape = Shape(options.impressions, sent, partitions=PARTITIONS)
            topic = servers.unique(sent)
            log = fill(kafka.port, topic, records(shape), partitions=PARTITIONS)
            ways = [*itertools.product((1, 2), by_name)]
            found: dict[tuple[int, str], list[tuple[float, float, list[float]]]] = {}
            for _ in range(options.turns):
                for count, name in ways:
                    url, nodes = by_name[name]
                    found.setdefault((count, name), []).append(run(kafka, url, nodes, log, count))
            for (count, name), runs in found.items():
                rate = statistics.median(one[0] for one in runs)
                worker = statistics.median(one[1] for one in runs) / log.records * 1e6
                redis = statistics.median(sum(one[2]) for one in runs) / log.records * 1e6
                busiest = statistics.median(max(one[2]) / sum(one[2]) for one in runs)
                row = f"| {sent} | {count} | {name} | {rate:,.0f} | {worker:.2f} | {redis:.2f} |"
                print(f"{row} {busiest:.0%} |", flush=True)


if __name__ == "__main__":
    main()
