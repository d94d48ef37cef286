"""Batches are unpacked as brokers and clients in Java unpack them."""

import gzip
import struct

import cramjam
import pytest

from streameval.kafka.codecs import UNPACK_INTO

GZIP, SNAPPY = 1, 2
TEXT = b"".join(b"value %d, " % number for number in range(5_000))
FIRST, SECOND = TEXT[:30_000], TEXT[30_000:]
XERIAL = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)


def block(text):
    packed = bytes(cramjam.snappy.compress_raw(text))
    return struct.pack(">i", len(packed)) + packed


def unpacked(codec, packed, room=100_000):
    buffer = bytearray(room)
    return bytes(buffer[: UNPACK_INTO[codec](packed, buffer)])


@pytest.mark.parametrize("end", [b"", b"\0" * 8, b"junk", gzip.compress(b"")[:2], b"\0" * 5_000])
@pytest.mark.parametrize("members", [(TEXT,), (FIRST, SECOND), (FIRST, b"", SECOND)])
def test_members_of_gzip_are_joined_and_bytes_after_them_ignored(members, end):
    packed = b"".join(map(gzip.compress, members)) + end
    assert unpacked(GZIP, packed) == TEXT


def test_blocks_of_snappy_may_begin_anew_with_a_header():
    assert unpacked(SNAPPY, XERIAL + block(FIRST) + XERIAL + block(SECOND)) == TEXT
    assert unpacked(SNAPPY, XERIAL + XERIAL + block(TEXT)) == TEXT


def test_gzip_that_is_damaged_cut_off_or_too_large_is_refused():
    packed = gzip.compress(TEXT)
    wrong_sum = bytearray(packed)
    wrong_sum[-8] ^= 1
    for bad in (packed[:-1], packed[:100], b"", b"no gzip", bytes(wrong_sum), packed * 2):
        with pytest.raises(cramjam.DecompressionError):
            unpacked(GZIP, bad)
    with pytest.raises(cramjam.DecompressionError):
        unpacked(GZIP, packed, len(TEXT) - 1)
