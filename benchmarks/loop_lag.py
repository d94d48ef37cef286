"""`streameval` with a thread that asks its event loop for a sign of life, and notes each answer.

    python benchmarks/loop_lag.py FILE worker ...

FILE gets a line for each answer: the seconds it took. The pages have a thread of their own, so they
answer while the loop is held; heartbeats to Kafka and the lease in Redis do not.
"""

import asyncio
import sys
import threading
import time
from typing import Final

EACH_SECONDS: Final = 0.02


def ask(loop: asyncio.AbstractEventLoop, path: str) -> None:
    answered = threading.Event()
    with open(path, "w", buffering=1) as lines:  # noqa: PTH123 - a line at a time
        while True:
            time.sleep(EACH_SECONDS)
            asked = time.monotonic()
            try:
                loop.call_soon_threadsafe(answered.set)
            except RuntimeError:  # closed
                return
            answered.wait()
            answered.clear()
            print(f"{time.monotonic() - asked:.4f}", file=lines)


def watched(new_loop, path):
    def new():
        loop = new_loop()
        threading.Thread(target=ask, args=(loop, path), daemon=True).start()
        return loop

    return new


if __name__ == "__main__":
    asyncio.new_event_loop = watched(asyncio.new_event_loop, sys.argv.pop(1))
    from streameval.__main__ import main

    main()
