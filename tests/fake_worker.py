"""A worker process around an ingest that only pretends: run by worker/test_app.py as a script.

Usage: fake_worker.py PORT BEHAVIOUR SECONDS. BEHAVIOUR is how `run` or `stop` goes wrong, or
"good"; SECONDS is the deadline of a stop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time

from streameval.base.errors import RefusedError, StreamevalError
from streameval.core.definition import Definition
from streameval.web.status import PartitionStatus, ProcessCounters, ServiceStatus
from streameval.worker.app import FrameOptions, run


class FakeIngest:
    """Counts its ticks as commits; `behaviour` chooses what goes wrong."""

    def __init__(self, behaviour: str) -> None:
        self.behaviour = behaviour
        self.started_at = time.time()
        self.stopped = asyncio.Event()
        definition = Definition()
        self.definition = definition
        self.counters = ProcessCounters(definition)

    async def run(self) -> None:
        print("running", flush=True)
        if self.behaviour == "blocked":
            time.sleep(60)  # noqa: ASYNC251  this is the fault
        if self.behaviour == "ends":
            return
        if self.behaviour == "refused":
            raise RefusedError("redis: the eviction policy is allkeys-lru; set it to noeviction")
        if self.behaviour == "bug":
            raise ZeroDivisionError
        await self.stopped.wait()

    async def stop(self, deadline: float) -> bool:
        self.stopped.set()
        if self.behaviour == "hangs":
            await asyncio.sleep(60)
        if self.behaviour == "stubborn":
            while True:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    continue
        return self.behaviour != "unflushed"

    async def tick(self) -> bool:
        if self.behaviour == "bug in tick":
            raise ZeroDivisionError
        self.counters.commits += 1
        return True

    def status(self) -> ServiceStatus:
        return ServiceStatus(
            version="1.0",
            topic="recsys-events",
            group="streameval",
            started_at=self.started_at,
            definition=self.definition,
            counters=self.counters,
            store_up=True,
            broker_up=self.behaviour != "no-broker",
            ready=True,
            partitions=[PartitionStatus(partition=0, restoring=self.behaviour == "restoring")],
        )


class FakeLease:
    """A lease that is always free; says on standard output what happens to it."""

    def __init__(self, behaviour: str) -> None:
        self.behaviour = behaviour

    async def acquire(self) -> int | None:
        if self.behaviour == "bug in lease":
            raise ZeroDivisionError
        return 7

    async def release(self) -> None:
        print("released", flush=True)


def main(port: int, behaviour: str, seconds: float) -> int:
    """Run the fake; the exit code."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)

    async def build() -> tuple[FakeIngest, FakeLease, None]:
        return FakeIngest(behaviour), FakeLease(behaviour), None

    held = float(os.environ.get("CONNECTION_SECONDS", "30"))
    options = FrameOptions("fake", "127.0.0.1", port, seconds, held)
    try:
        return run(options, build)
    except StreamevalError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
