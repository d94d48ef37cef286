"""Lines of event files: plain, gzip, zstd, standard input, or rows in memory.

A file may also be one JSON array, or values that take several lines or stand on one: each value is
a line then.
"""

from __future__ import annotations

import gzip
import json
import mmap
import re
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

# The beginning of an array that goes on, and of a value on several lines.
_ARRAY: Final = re.compile(rb"\[\s*(?:[\[{]|\Z)")
_SPREAD: Final = re.compile(rb"[\[{]\Z")
_NEXT: Final = re.compile(rb"\}\s*\{")
# What tells where an object ends: its braces, where no text holds them.
_MARK: Final = re.compile(rb"\\.|[\"{}\n]", re.DOTALL)
_BETWEEN: Final = b"[], \t\r\n"
_CHUNK_BYTES: Final = 1 << 18


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
    line, following = line.removeprefix(MARK), b""
    if line.lstrip().startswith(b"[") and line.rstrip().endswith(b"]"):
        following = stream.readline(_READ_AT_MOST + 1)  # an array on each line is no document
    if not following.strip() and _is_document(_bare(line)):
        yield from _objects(stream, line)
        return
    while line:
        rest = line
        while not rest.endswith(b"\n") and len(rest) > MAX_EVENT_BYTES:
            rest = stream.readline(_READ_AT_MOST + 1)
        yield _bare(line)
        line, following = following or stream.readline(_READ_AT_MOST + 1), b""


def _is_document(line: bytes) -> bool:
    """Tell by the first line whether the values of a file do not have a line each."""
    if _ARRAY.match(line) or _SPREAD.match(line):
        return True
    if not (line.startswith(b"{") and _NEXT.search(line)):
        return False
    text = line.decode(errors="replace")
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return False
    return text[end:].lstrip().startswith("{")


def _objects(stream: IO[bytes], start: bytes) -> Iterator[bytes]:
    """Yield the JSON objects of a file wherever they stand, and what else stands between them."""
    held, depth, in_text = b"", 0, False
    for chunk in _chunks(stream, start):
        begin = 0
        braces, in_text = _braces(chunk, in_text)
        for brace in braces:
            opens = brace[0] == b"{"
            if opens and not depth:
                if other := (held + chunk[begin : brace.start()]).strip(_BETWEEN):
                    yield other
                held, begin = b"", brace.start()
            elif depth == 1 and not opens:
                yield (held + chunk[begin : brace.end()])[:_READ_AT_MOST]
                held, begin = b"", brace.end()
            depth = max(0, depth + (1 if opens else -1))
        held = (held + chunk[begin:])[:_READ_AT_MOST]
    if other := held.strip(_BETWEEN):
        yield other


def _chunks(stream: IO[bytes], chunk: bytes) -> Iterator[bytes]:
    """Yield the rest of a file after its first chunk; none ends within an escape."""
    while chunk:
        while chunk.endswith(b"\\") and (more := stream.read(1)):
            chunk += more
        yield chunk
        chunk = stream.read1(_CHUNK_BYTES)  # type: ignore[attr-defined]  # what a pipe has now


def _braces(chunk: bytes, in_text: bool) -> tuple[list[re.Match[bytes]], bool]:  # noqa: FBT001
    """Return the braces that no text holds, and whether the chunk ends within a text."""
    braces = []
    for found in _MARK.finditer(chunk):
        mark = found[0]
        if mark == b'"':
            in_text = not in_text
        elif mark == b"\n":
            in_text = False  # no text of JSON holds one: a lost quote costs its line alone
        elif not in_text and len(mark) == 1:
            braces.append(found)
    return braces, in_text


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
    return f"cannot read {name}: {reason}; give files of JSON, .gz or .zst too, a folder, or -"
