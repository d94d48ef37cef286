"""The log of a worker: lines for people, or one JSON object a line for programs; to stderr.

Repeated lines of libraries pass once in a while: aiokafka writes 50 a second while Kafka is away,
and the worker reports that itself. Tracebacks of libraries shrink to one line. Messages that only
their authors understand are replaced by ours.

The worker process configures the log once; no other module touches logging's setup.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Final, Literal

# At INFO these libraries talk about themselves; we want their warnings.
_QUIET: Final = ("aiokafka", "asyncio", "faust", "kafka", "mode")

# Messages of libraries, and our words for the people who run a worker.
_IN_OUR_WORDS: Final = {
    "Thread keepalive is not responding": "the pages were held up for some seconds: the machine is"
    " too busy, or the worker was stopped",
    "is overlapping (interval=": "a step of the work took longer than its interval: the machine is"
    " too busy, or there is too much for one worker",
}
# asyncio's messages about an error that nobody awaits any more. A connection's error is harmless
# there: the next caller gets an error of its own.
_LEFT_OVER: Final = (
    "Task exception was never retrieved",
    "Future exception was never retrieved",
    "_GatheringFuture exception was never retrieved",
)

# Seconds between two lines of a library that say the same, whatever the numbers in them.
REPEAT_SECONDS: Final = 30.0


def configure(level: str, form: Literal["text", "json"]) -> None:
    """Set the log up: from `level` ("info", …) on, in `form`; libraries from warnings on."""
    handler = logging.StreamHandler()
    handler.addFilter(Seldom())
    handler.setFormatter(_Json() if form == "json" else _TEXT)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


class Seldom(logging.Filter):
    """Filter that passes a library's message once in `REPEAT_SECONDS`, by its unformatted text.

    Lines of streameval itself always pass. The error that every first start of a group brings
    passes if it lasts. Tracebacks of libraries shrink to the error. Those that asyncio logs stay
    whole when they come from our own code, and are left out when they come from a connection.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Decide whether the record is written."""
        library = record.name.partition(".")[0]
        error = record.exc_info[1] if record.exc_info else None
        if _is_of_a_bad_request(error):
            _say(record, "a request to the pages is no valid HTTP (%s)", type(error).__name__)
        elif library not in _QUIET:
            return True
        if library == "asyncio" and error is not None:
            return not (str(record.msg).startswith(_LEFT_OVER) and _is_of_a_connection(error))
        if record.exc_info and error is not None:
            record.msg, record.args = f"{record.getMessage()}: %r", (error,)
            record.exc_info = record.exc_text = None
        for theirs, ours in _IN_OUR_WORDS.items():
            if theirs in str(record.msg):
                _say(record, ours)
        # A closed set of templates; 40 characters suffice for the few that come formatted.
        said = (record.name, str(record.msg)[:40])
        if record.created - self._last.get(said, -REPEAT_SECONDS) < REPEAT_SECONDS:
            return False
        first = said not in self._last
        self._last[said] = record.created
        return not (first and _is_of_a_first_start(record))


def _say(record: logging.LogRecord, message: str, *arguments: object) -> None:
    """Turn a library's line into a warning in our words."""
    record.msg, record.args = message, arguments
    record.levelno, record.levelname = logging.WARNING, "WARNING"
    record.exc_info = record.exc_text = None


def _is_of_a_bad_request(error: BaseException | None) -> bool:
    """Tell whether a client of the pages made the error; a handler's own stays whole."""
    return type(error).__module__ == "aiohttp.http_exceptions"


def _is_of_a_connection(error: BaseException) -> bool:
    """Tell whether a client of Kafka, or the network, raised an error."""
    return isinstance(error, OSError) or type(error).__module__.partition(".")[0] == "aiokafka"


def _is_of_a_first_start(record: logging.LogRecord) -> bool:
    """Recognise aiokafka's error that no broker coordinates the group yet.

    Kafka creates its topic of offsets when the first group asks for its coordinator, and reports
    this error until then; aiokafka asks again. Only a lasting error matters.
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
