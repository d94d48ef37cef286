"""Compression of batches, always into a buffer of known size."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from typing import Any, Final

import cramjam
from aiokafka.errors import CorruptRecordException

_INT32: Final = struct.Struct(">i")
_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = 16


def bounded(codec: int, size: int) -> Callable[[Any], bytes]:
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


def _snappy_into(packed: Any, buffer: Any) -> int:
    """Unpack Snappy, plain or in the blocks that clients in Java write."""
    packed = memoryview(packed)
    if packed[: len(_XERIAL)] != _XERIAL:
        return cramjam.snappy.decompress_raw_into(packed, buffer)
    buffer, size, at = memoryview(buffer), 0, _XERIAL_HEADER
    while at < len(packed):
        end = at + 4 + _INT32.unpack_from(packed, at)[0]
        if not at + 4 <= end <= len(packed):
            raise CorruptRecordException(f"a block of Snappy ends at {end} of {len(packed)}")
        size += cramjam.snappy.decompress_raw_into(packed[at + 4 : end], buffer[size:])
        at = end
    return size


UNPACK_INTO: Final[dict[int, Callable[[Any, Any], int]]] = {
    1: cramjam.gzip.decompress_into,
    2: _snappy_into,
    3: cramjam.lz4.decompress_into,
    4: cramjam.zstd.decompress_into,
}
"""By Kafka's number of a codec, the function that fills a buffer and returns how many bytes."""
