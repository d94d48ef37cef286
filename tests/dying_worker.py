"""A worker that ends, as by kill -9, at a named point of its work, the `count`th time it is there.

Run as `python -c TEXT_OF_THIS_FILE POINT COUNT worker --config FILE`.
"""

import functools
import inspect
import os
import sys
from importlib import import_module

POINTS = {
    "read, not applied": ("kafka.consumer", "KafkaEventLog", "poll", "after"),
    "applied, commit not made": ("worker.assigned_partition", "AssignedPartition", "work", "after"),
    "commit made, dead letters not written": (
        "worker.assigned_partition",
        "AssignedPartition",
        "make_commit",
        "after",
    ),
    "dead letters written, not committed": (
        "kafka.consumer",
        "KafkaEventLog",
        "write_dead_letters",
        "after",
    ),
    "chunks half written": ("store.redis_store", "RedisStateStore", "_upload", "before"),
    "chunks written, pointer not flipped": (
        "store.redis_store",
        "RedisStateStore",
        "_upload",
        "after",
    ),
    "committed, not answered": ("store.redis_store", "RedisStateStore", "_script", "after"),
    "answered, not counted": ("store.redis_store", "RedisStateStore", "commit", "after"),
    "told to the group": ("kafka.consumer", "KafkaEventLog", "commit", "after"),
    "about to restore": ("store.redis_store", "RedisStateStore", "load", "after"),
}
# What usual traffic does not come by.
RARE_POINTS = {"large batch about to be unpacked": ("kafka.unpacking", "Memory", "allow", "after")}
EXIT_CODE = 9


def install(point, count):
    """Make the process end at `point`."""
    module, owner, name, moment = (POINTS | RARE_POINTS)[point]
    owner = getattr(import_module(f"streameval.{module}"), owner)
    call = getattr(owner, name)
    left = count

    def pass_by(when):
        nonlocal left
        left -= when == moment
        if not left:
            os._exit(EXIT_CODE)

    @functools.wraps(call)
    def plain(*arguments, **options):
        pass_by("before")
        answer = call(*arguments, **options)
        pass_by("after")
        return answer

    @functools.wraps(call)
    async def awaited(*arguments, **options):
        pass_by("before")
        answer = await call(*arguments, **options)
        pass_by("after")
        return answer

    setattr(owner, name, awaited if inspect.iscoroutinefunction(call) else plain)


def main():
    from streameval.cli.app import main as command_line

    _, point, count, *sys.argv[1:] = sys.argv
    install(point, int(count))
    command_line()


if __name__ == "__main__":
    main()
