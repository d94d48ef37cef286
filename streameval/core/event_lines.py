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
# A text up to its end. None of JSON holds a line's end: a lost quote costs its line alone.
_TEXT: Final = rb'[^"\\\n]*(?:\\.[^"\\\n]*)*(["\n]?)'
_REST_OF_TEXT: Final = re.compile(_TEXT, re.DOTALL)
# What tells where an object ends: braces and brackets, where no text holds them.
_MARK: Final = re.compile(rb'"' + _TEXT + rb"|([{}\[\]])", re.DOTALL)
# More blanks than a program writes between a name and its object.
_LOOK_BACK: Final = 64
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
    held, before, in_text = b"", b"", False
    nesting = bytearray()  # the braces and brackets that are open, from an object's first one on
    for chunk in _chunks(stream, start):
        begin = 0
        marks, in_text = _marks(chunk, in_text)
        for at, mark in marks:
            if mark in b"]}":
                if _close(nesting, mark):
                    yield (held + chunk[begin : at + 1])[:_READ_AT_MOST]
                    held, begin = b"", at + 1
                continue
            if mark == b"{" and nesting.endswith(b"{") and not _is_named(before, chunk, at):
                nesting.clear()  # the object before has lost its end
            if nesting:
                nesting += mark
            elif mark == b"{":
                if other := (held + chunk[begin:at]).strip(_BETWEEN):
                    yield other[:_READ_AT_MOST]
                held, begin = b"", at
                nesting += mark
        held = (held + chunk[begin:])[:_READ_AT_MOST]
        before = (before + chunk)[-_LOOK_BACK:]
    if other := held.strip(_BETWEEN):
        yield other


def _close(nesting: bytearray, mark: bytes) -> bool:
    """Take off what a mark closes, and in it what has lost its end; tell if that was all."""
    at = nesting.rfind(b"{" if mark == b"}" else b"[")
    if at >= 0:
        del nesting[at:]
    return at == 0


def _is_named(before: bytes, chunk: bytes, at: int) -> bool:
    """Tell whether an object in a chunk follows a name, as each does that is directly in another.

    `before` is what stands before the chunk. Blanks alone tell nothing.
    """
    near = chunk[max(0, at - _LOOK_BACK) : at]
    if at < _LOOK_BACK:
        near = before + near
    near = near.rstrip()
    return not near or near.endswith(b":")


def _chunks(stream: IO[bytes], chunk: bytes) -> Iterator[bytes]:
    """Yield the rest of a file after its first chunk; none ends within an escape."""
    while chunk:
        while chunk.endswith(b"\\") and (more := stream.read(1)):
            chunk += more
        yield chunk
        chunk = stream.read1(_CHUNK_BYTES)  # type: ignore[attr-defined]  # what a pipe has now


def _marks(chunk: bytes, in_text: bool) -> tuple[list[tuple[int, bytes]], bool]:  # noqa: FBT001
    """Return the braces and brackets that no text holds, and whether the chunk ends in a text."""
    start, marks = 0, []
    if in_text:
        found = _REST_OF_TEXT.match(chunk)
        assert found is not None, "it may be empty"
        start, in_text = found.end(), not found[1]
    for found in _MARK.finditer(chunk, start):
        if found.lastindex == 1:
            in_text = not found[1]
        else:
            marks.append((found.start(), found[0]))
    return marks, in_text


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
