"""The report of `streameval replay` on rejected lines: the first few, or all in a file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from streameval.base.errors import InputError
from streameval.base.limits import MAX_DEAD_LETTER_BYTES
from streameval.core.foreign_formats import Foreign, format_of, is_ours, sentence_on

if TYPE_CHECKING:
    from streameval.core.replay import RejectedLine

NAMED: Final = 5
"""Lines to name; the next ones rarely say anything new."""


class RejectedLines:
    """The rejected lines of a replay: a count, the first few, and all of them in `file`.

    `sort` is the option that puts events in order of time.
    """

    def __init__(self, file: IO[str] | None, *, foreign: bool = True, sort: str = "--sort") -> None:
        self.count = 0
        self.reasons: Counter[str] = Counter()
        self._file, self._foreign, self._sort = file, foreign, sort
        self._first: list[RejectedLine] = []
        self._formats: Counter[Foreign | None] = Counter()

    def add(self, line: RejectedLine) -> None:
        """Count a line, and write it to the file if there is one."""
        self.count += 1
        self.reasons[line.rejection.reason] += 1
        if self._foreign:
            self._formats[format_of(line.value)] += 1
        if len(self._first) < NAMED:
            self._first.append(line)
        if self._file is not None:
            value = line.value[:MAX_DEAD_LETTER_BYTES].decode(errors="replace")
            row = {
                "file": line.file,
                "line": line.line,
                "reason": line.rejection.reason,
                "detail": line.rejection.detail,
                "value": value,
            }
            self._file.write(json.dumps(row, ensure_ascii=False) + "\n")

    def report(self, advice: str = "", *, none_accepted: bool = False) -> Iterator[str]:
        """Yield the report's lines; nothing if no line was rejected.

        `advice` says how to get the lines that it does not name.
        """
        if not self.count:
            return
        if none_accepted:
            reason, count = self.reasons.most_common(1)[0]
            yield f"every line was rejected, {count:,} of {self.count:,} as {reason}"
        for line in self._first:
            yield f"{line.file}:{line.line}: {line.rejection.reason}: {line.rejection.detail}"
        more = self.count - len(self._first)
        if more:
            yield f"... and {more:,} more{advice}"
        if late := self.reasons["late"]:
            yield f"{late:,} late: the events are not in order of time; {self._sort} orders them"
        if formats := sentence_on(self._formats):
            yield formats
        elif none_accepted and self._foreign and not any(is_ours(one.value) for one in self._first):
            yield "are they of another tracker? `streameval map FILE --init` drafts a profile"


@contextmanager
def rejected_lines(path: Path | None, *, foreign: bool = True) -> Iterator[RejectedLines]:
    """Collect rejected lines, into a file at `path` if given. Raises `InputError`.

    Without a profile they may be of a `foreign` format, which the report names.
    """
    if path is None:
        yield RejectedLines(None, foreign=foreign)
        return
    try:
        with path.open("w", encoding="utf-8", errors="surrogateescape") as file:
            yield RejectedLines(file, foreign=foreign)
    except OSError as error:
        raise InputError(f"--rejected {path}: cannot be written: {error.strerror}") from error
