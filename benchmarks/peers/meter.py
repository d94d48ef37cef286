"""How every peer measures itself: from the first records to the last, start-up left out."""

import argparse
import json
import os
import pathlib
import time


def arguments(*, add_up: bool = False) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    if add_up:
        parser.add_argument("--add-up", action="store_true")
    for name in ("kafka", "redis", "topic", "group"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--records", type=int, required=True)
    return parser.parse_args()


def peak_bytes() -> int:
    """Our peak of resident memory (ru_maxrss would begin at that of who started us)."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


class Meter:
    """Counts up to `records`, then prints one line of JSON; the first records start the clock."""

    def __init__(self, records: int) -> None:
        self.records = records
        self.done = False
        self._counted = self._before = 0
        self._began = self._cpu = 0.0

    def count(self, records: int) -> None:
        """Count records just handled."""
        if not records or self.done:
            return
        if not self._counted:
            self._before, self._began, self._cpu = records, time.monotonic(), time.process_time()
        self._counted += records
        if self._counted >= self.records:
            self.done = True
            self._report()

    def _report(self) -> None:
        answer = {
            "records": self._counted - self._before,
            "seconds": time.monotonic() - self._began,
            "cpu_seconds": time.process_time() - self._cpu,
            "peak_bytes": peak_bytes(),
        }
        # On a line of its own, past what Faust does to sys.stdout.
        os.write(1, f"\n{json.dumps(answer)}\n".encode())
