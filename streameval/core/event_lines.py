"""Lines of event files: plain, gzip, zstd, standard input, or rows in memory."""

from __future__ import annotations

import gzip
import mmap
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO, Final, NamedTuple

from streameval.base.encodings import MARK, NOT_UTF8, binary_kind, is_wide
from streameval.base.errors import InputError
from streameval.base.in_memory import InMemory
from streameval.base.limits import MAX_EVENT_BYTES
from streameval.base.paths import exists, is_file

STDIN: Final = "-"
# Lines read together: readers that put them into tables do so by the thousand.
BATCH_LINES: Final = 1_000
# Of a longer line only this much is read into memory; one byte more than allowed is too large.
_READ_AT_MOST: Final = MAX_EVENT_BYTES + 1


class Lines(NamedTuple):
    """Lines of a file without the blank ones, and the number of each: parallel sequences."""

    values: list[bytes]
    numbers: Sequence[int]


def lines_of(name: str) -> Iterator[list[bytes]]:
    """Yield the lines of a file without blank ones, a slice at a time; raises `InputError`."""
    yield from (lines.values for lines in numbered_lines_of(name))


def numbered_lines_of(name: str) -> Iterator[Lines]:
    """Yield lines as `lines_of` does, with their numbers."""
    with open_lines(name) as (found, _, _):
        yield from batches(found)


def is_pipe(name: str) -> bool:
    """Return whether a file is a pipe, which can be read only once."""
    if isinstance(name, InMemory):
        return False
    try:
        return name == STDIN or (exists(name) and not is_file(name))
    except OSError:
        return False  # whoever opens it is told why that cannot be


def batches(lines: Iterator[bytes]) -> Iterator[Lines]:
    """Take lines by the thousand."""
    begin = 1
    while values := list(islice(lines, BATCH_LINES)):
        numbers: Sequence[int] = range(begin, begin + len(values))
        begin += len(values)
        if b"" in values:
            numbers = [number for number, value in zip(numbers, values, strict=True) if value]
            values = [value for value in values if value]
        yield Lines(values, numbers)


def _lines(name: str, stream: IO[bytes]) -> Iterator[bytes]:
    """Yield each line without its end and blanks around it; of too long a line, the beginning.

    Raises `InputError` for a file that is not UTF-8, or no text.
    """
    line = stream.readline(_READ_AT_MOST + 1)
    if is_wide(line):
        raise InputError(f"cannot read {name}: it {NOT_UTF8}")
    if kind := binary_kind(line):
        raise InputError(f"cannot read {name}: it is {kind}")
    while line:
        rest = line
        while not rest.endswith(b"\n") and len(rest) > MAX_EVENT_BYTES:
            rest = stream.readline(_READ_AT_MOST + 1)
        yield _bare(line)
        line = stream.readline(_READ_AT_MOST + 1)


def _bare(line: bytes) -> bytes:
    """Return a line without blanks around it, and without the mark that Windows puts before UTF-8.

    Files that were put one behind the other have that mark in the middle too.
    """
    return line.removeprefix(MARK).strip()


@contextmanager
def open_lines(name: str) -> Iterator[tuple[Iterator[bytes], Callable[[], int], int]]:
    """Yield the lines of a file, a function for the bytes read, and its size."""
    if isinstance(name, InMemory):
        size = 0
        with suppress(OSError, ValueError):  # it is no file, and the rows of one say what is wrong
            size = Path(name).stat().st_size
        yield map(_bare, name.data), lambda: 0, size
        return
    if name == STDIN:
        yield _lines(name, sys.stdin.buffer), lambda: 0, 0
        return
    try:
        with Path(name).open("rb") as raw, _decompress(name, raw) as stream:
            # A pipe has neither a position nor a size.
            position = raw.tell if raw.seekable() else lambda: 0
            yield _lines(name, stream), position, Path(name).stat().st_size
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(_unreadable(name, f"damaged gzip data ({error})")) from error
    except OSError as error:
        raise InputError(_unreadable(name, error.strerror or str(error))) from error


@contextmanager
def _decompress(name: str, raw: IO[bytes]) -> Iterator[IO[bytes]]:
    if name.endswith(".gz"):
        with gzip.open(raw) as stream:
            yield stream  # type: ignore[misc]
    elif name.endswith(".zst"):
        with tempfile.NamedTemporaryFile() as plain:
            _unpack_zstd(name, raw, plain.name)
            yield plain.file
    else:
        yield raw


def _unpack_zstd(name: str, raw: IO[bytes], target: str) -> None:
    """Decompress a whole file to `target` on disk: cramjam has no stream to read lines from."""
    import cramjam

    if not raw.seekable():
        raise InputError(f"cannot read {name}: it is a pipe: unpack it before (zstd -dc)")
    if not Path(name).stat().st_size:
        raise InputError(_unreadable(name, "it is empty, which no zstd file is"))
    with mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ) as packed:
        try:
            cramjam.zstd.decompress_into(packed, cramjam.File(target))
        except cramjam.DecompressionError as error:
            raise InputError(_unreadable(name, f"damaged zstd data ({error})")) from error


def _unreadable(name: str, reason: str) -> str:
    return f"cannot read {name}: {reason}; give files of JSON lines, plain, .gz or .zst, or -"
