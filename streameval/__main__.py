"""The program: what happens before anything large is imported.

Imports take a second, and SIGTERM ends a process by default. A worker that is told to stop within
that second has read nothing, so it ends at once and well. `worker.shutdown` takes over the signals
before the first record is read.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Final

from streameval.base import signals

# Searches for cycles, of which there are few: each 1,000 new objects among the youngest, and of
# those that stay 100 times as seldom as by default. A worker has its own numbers (`worker.app`).
SEARCHES: Final = (1_000, 100, 100)


def main() -> None:
    """Run the command line; ends the process with the documented exit code."""
    if sys.argv[1:2] in (["worker"], ["forward"]):
        signals.take(_end)
    gc.set_threshold(*SEARCHES)
    from streameval.cli.app import main as command_line

    try:
        command_line()
    except SystemExit as end:
        from streameval.files.locations import end_process

        end_process(end.code)


def _end(_: object) -> None:
    # Past every `except` and `finally` in the modules being imported.
    os.write(2, b"streameval: stopped before anything was read\n")
    os._exit(0)


if __name__ == "__main__":
    main()
