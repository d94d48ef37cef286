"""What the machine is, which core does what, and what a process has used."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import pathlib
import platform
from collections.abc import Iterator
from typing import Final

import programs

PACKAGES: Final = ("aiokafka", "faust-streaming", "msgspec", "numpy", "redis", "hiredis")
TICKS: Final = os.sysconf("SC_CLK_TCK")


@functools.cache
def cores() -> tuple[int, int]:
    """The core of what is measured, and the core of servers and harness (the same if alone).

    As found at the first call: the harness binds itself to its own after that.
    """
    usable = sorted(os.sched_getaffinity(0))
    return usable[0], usable[-1]


@contextlib.contextmanager
def on_core(core: int) -> Iterator[None]:
    """Processes started inside run on `core` alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process so far."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_bytes(pid: int | str = "self", field: str = "VmHWM") -> int:
    """Resident memory of a process: VmHWM is the peak so far, VmRSS now."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) << 10
    raise KeyError(field)


def facts() -> list[str]:
    """The lines that say where these numbers come from."""
    model = "unknown processor"
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    measured, other = cores()
    packages = (f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    return [
        f"{model}, {os.cpu_count()} cores, {memory:.0f} GB, Linux {platform.release()}",
        f"measured process on core {measured}, Kafka, Redis and harness on core {other}",
        f"Python {platform.python_version()}, {', '.join(packages)}",
        f"Kafka {_kafka_version()}, {_redis_version()}",
    ]


def _kafka_version() -> str:
    jars = sorted(programs.KAFKA_LIBS.glob("kafka_2.13-*.jar"))
    return jars[0].stem.removeprefix("kafka_2.13-") if jars else "unknown"


def _redis_version() -> str:
    return f"Redis {programs.version_of(programs.need('redis-server'), '--version')}"
