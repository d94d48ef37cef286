"""The log of a worker: lines for people, or one JSON object a line for programs; to stderr.

What libraries repeat is said once in a while: aiokafka writes 50 lines a second while Kafka is
away, and what matters about that, the worker says itself. Their tracebacks are one line, and what
only their authors understand is said in our words.

Configured once, by the worker process; nothing else in the package touches logging's setup.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Final, Literal

# What these say at INFO is about themselves; their warnings we want.
_QUIET: Final = ("aiokafka", "asyncio", "faust", "kafka", "mode")

# What libraries say of one fact, and what it means to whoever runs a worker.
_IN_OUR_WORDS: Final = {
    "Thread keepalive is not responding": "the pages were held up for some seconds: the machine is"
    " too busy, or the worker was stopped",
    "is overlapping (interval=": "a step of the work took longer than its interval: the machine is"
    " too busy, or there is too much for one worker",
}
# What asyncio says of an error that nobody waits for any more. Of a connection that is no reason to
# worry: whoever asks next gets the error of its own.
_LEFT_OVER: Final = (
    "Task exception was never retrieved",
    "Future exception was never retrieved",
    "_GatheringFuture exception was never retrieved",
)

# Seconds between two lines of a library that say the same, whatever the numbers in them.
REPEAT_SECONDS: Final = 30.0


def configure(level: str, form: Literal["text", "json"]) -> None:
    """Log from `level` ("info", …) on, in `form`; libraries from warnings on."""
    handler = logging.StreamHandler()
    handler.addFilter(Seldom())
    handler.setFormatter(_Json() if form == "json" else _TEXT)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


class Seldom(logging.Filter):
    """Lets a library's message through once in `REPEAT_SECONDS`, by its text before formatting.

    Lines of streameval itself always pass; what every first start of a group brings passes if it
    lasts. Tracebacks of libraries are cut to the error, but for those that asyncio logs: they are
    of our own code, or of a connection and then left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is to be written."""
        library = record.name.partition(".")[0]
        if library not in _QUIET:
            return True
        error = record.exc_info[1] if record.exc_info else None
        if library == "asyncio" and error is not None:
            return not (str(record.msg).startswith(_LEFT_OVER) and _is_of_a_connection(error))
        if error is not None:
            record.msg, record.args = f"{record.getMessage()}: %r", (error,)
            record.exc_info = record.exc_text = None
        for theirs, ours in _IN_OUR_WORDS.items():
            if theirs in str(record.msg):
                record.msg, record.args = ours, ()
                record.levelno, record.levelname = logging.WARNING, "WARNING"
        # A closed set of templates; the cut keeps those few that are formatted by their caller.
        said = (record.name, str(record.msg)[:40])
        if record.created - self._last.get(said, -REPEAT_SECONDS) < REPEAT_SECONDS:
            return False
        first = said not in self._last
        self._last[said] = record.created
        return not (first and _is_of_a_first_start(record))


def _is_of_a_connection(error: BaseException) -> bool:
    """Whether a client of Kafka, or the network, raised an error."""
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] == "aiokafka"


def _is_of_a_first_start(record: logging.LogRecord) -> bool:
    """Whether this is aiokafka's error that no broker coordinates the group yet.

    Kafka makes its topic of offsets when the first group asks for its coordinator, and says so
    until that is done; aiokafka asks again. It is no error unless it lasts.
    """
    arguments = record.args if isinstance(record.args, tuple) else ()
    return record.name == "aiokafka.consumer.group_coordinator" and any(
        type(argument).__name__ == "GroupCoordinatorNotAvailableError" for argument in arguments
    )


_TEXT: Final = logging.Formatter("%(asctime)s %(levelname)-7s %(message)s")


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
