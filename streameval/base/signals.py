"""SIGTERM and SIGINT, taken in a thread of their own.

The system gives a signal to any thread that does not block it, and a thread takes over the mask of
the one that starts it. Libraries start threads when they are imported, as numpy does. So `take`
comes before every other import: then nobody but its thread hears the signals, also while the main
thread imports, or its event loop is blocked.
"""

from __future__ import annotations

import signal
import threading

# Type checkers know this name. `typing` would double the time until signals are taken.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    OnSignal: TypeAlias = Callable[[signal.Signals], None]

SIGNALS = (signal.SIGTERM, signal.SIGINT)

_takers: list[OnSignal] = []


def take(on_signal: OnSignal) -> None:
    """Have the thread call `on_signal` with each signal from now on, in place of the one before."""
    _takers.append(on_signal)
    if len(_takers) == 1:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        threading.Thread(target=_wait, name="streameval-signals", daemon=True).start()


def _wait() -> None:
    while True:
        taken = signal.sigwait(SIGNALS)
        _takers[-1](signal.Signals(taken))
