"""Compression of batches, always into a buffer of known size.

Brokers and clients in Java are the measure of what can be unpacked: a batch that they take and this
file does not would hold up its partition.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Callable
from typing import Any, Final

import cramjam
from aiokafka.errors import CorruptRecordException

_INT32: Final = struct.Struct(">i")
_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = 16
_GZIP: Final = b"\x1f\x8b"
_SHORTEST_GZIP: Final = 20
# Packed bytes that are read at once: what they become takes 4 MB at most, beside the buffer.
_STRETCH: Final = 4_096


def bounded_decoder(codec: int, size: int) -> Callable[[Any], bytes]:
    """Make a decoder of at most `size` bytes, which raises `ValueError` beyond."""
    into = UNPACK_INTO[codec]

    def decode(packed: Any) -> bytes:
        buffer = space(size)
        try:
            return buffer[: into(packed, buffer)]
        except cramjam.DecompressionError as error:
            raise too_large(size, error) from error

    return decode


def too_large(size: int, error: Exception) -> ValueError:
    """Make the error for bytes that do not fit in `size` of them, or are damaged."""
    return ValueError(f"damaged, or larger than {size >> 20} MiB unpacked: {error}")


def space(size: int) -> mmap.mmap:
    """Reserve memory, of which a page takes some only when it is written to."""
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _gzip_into(packed: Any, buffer: Any) -> int:
    """Unpack one member of gzip or several; other bytes after a member are ignored."""
    packed, buffer = memoryview(packed), memoryview(buffer)
    at, size = _member_into(packed, 0, buffer)
    while len(packed) - at >= _SHORTEST_GZIP and packed[at : at + len(_GZIP)] == _GZIP:
        at, more = _member_into(packed, at, buffer[size:])
        size += more
    return size


def _member_into(packed: memoryview, at: int, buffer: memoryview) -> tuple[int, int]:
    """Unpack the member of gzip that begins at `at`; return where it ends, and its size."""
    member, size = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS), 0
    while not member.eof:
        some = packed[at : at + _STRETCH]
        try:
            found = member.decompress(some, len(buffer) - size + 1)
        except zlib.error as error:
            raise cramjam.DecompressionError(str(error)) from error
        if not some or len(found) > len(buffer) - size:
            raise cramjam.DecompressionError("no whole member of gzip fits")
        buffer[size : size + len(found)] = found
        size += len(found)
        at += len(some) - len(member.unconsumed_tail) - len(member.unused_data)
    return at, size


def _snappy_into(packed: Any, buffer: Any) -> int:
    """Unpack Snappy, plain or in the blocks that clients in Java write, also one after another."""
    packed = memoryview(packed)
    if packed[: len(_XERIAL)] != _XERIAL:
        return cramjam.snappy.decompress_raw_into(packed, buffer)
    buffer, size, at = memoryview(buffer), 0, _XERIAL_HEADER
    while at < len(packed):
        if packed[at : at + len(_XERIAL)] == _XERIAL:
            at += _XERIAL_HEADER
            continue
        end = at + 4 + _INT32.unpack_from(packed, at)[0]
        if not at + 4 <= end <= len(packed):
            raise CorruptRecordException(f"a block of Snappy ends at {end} of {len(packed)}")
        size += cramjam.snappy.decompress_raw_into(packed[at + 4 : end], buffer[size:])
        at = end
    return size


UNPACK_INTO: Final[dict[int, Callable[[Any, Any], int]]] = {
    1: _gzip_into,
    2: _snappy_into,
    3: cramjam.lz4.decompress_into,
    4: cramjam.zstd.decompress_into,
}
"""By Kafka's number of a codec, the function that fills a buffer and returns how many bytes."""
