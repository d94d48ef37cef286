"""Records by column are the records that aiokafka itself hands out, whatever the units."""

import mmap
import random
import struct
import sys

import cramjam
import pytest
from aiokafka.consumer.fetcher import READ_COMMITTED, PartitionRecords
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import TopicPartition
from hypothesis import given, settings
from hypothesis import strategies as st

from streameval.stream import columns as columns_module
from streameval.stream.columns import Fetched, _ColumnRecords

LZ4, NONE = 3, 0
ABORT, COMMIT = b"\0\0\0\0", b"\0\0\0\1"
ATTRIBUTES, CONTROL, RECORD_COUNT = 21, 0x20, 57


def batch(base, offsets, *, codec=LZ4, producer=-1, length=None, marker=None):
    """A batch of Kafka as bytes: records at `base` + `offsets`, `length` offsets long."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=producer >= 0,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        batch_size=1 << 20,
    )
    if marker is not None:
        builder.append(0, 1_000, marker, b"\0\0\0\0\0\0", [])
    for offset in offsets:
        value = None if offset % 7 == 3 else b"value %d" % (base + offset)
        builder.append(offset, 1_000 + offset, b"key %d" % offset, value, [("header", b"x")])
    raw = bytearray(builder.build())
    struct.pack_into(">q", raw, 0, base)
    struct.pack_into(">i", raw, 23, (length or (offsets[-1] + 1 if offsets else 1)) - 1)
    if marker is not None:
        raw[ATTRIBUTES + 1] |= CONTROL
    return bytes(raw)


@st.composite
def fetches(draw):
    """Batches one after the other (compacted, transactional, markers), and where to begin."""
    raw, at, aborted = b"", draw(st.integers(0, 50)), []
    starts = []
    for _ in range(draw(st.integers(1, 8))):
        producer = draw(st.sampled_from([-1, 5]))
        length = draw(st.integers(1, 12))
        if producer >= 0 and draw(st.booleans()):
            marker = draw(st.sampled_from([ABORT, COMMIT]))
            raw += batch(at, [], codec=NONE, producer=producer, marker=marker)
            starts += [at]
            at += 1
            continue
        kept = draw(st.sets(st.integers(0, length - 1)))
        if kept and producer >= 0 and draw(st.booleans()):
            aborted.append((producer, at))
        codec = draw(st.sampled_from([LZ4, NONE])) if kept else NONE
        raw += batch(at, sorted(kept), codec=codec, producer=producer, length=length)
        starts += [draw(st.integers(at, at + length - 1))]
        at += length
    return raw, aborted, starts[0]  # a broker answers from the batch that holds the offset


def plain(raw, aborted, start, *, check_crcs=False):
    place = TopicPartition("topic", 0)
    arguments = (place, MemoryRecords(raw), aborted, start, None, None, check_crcs, READ_COMMITTED)
    return PartitionRecords(*arguments)


@settings(max_examples=500)
@given(fetches(), st.integers(1, 5))
def test_columns_are_the_records_of_aiokafka_with_the_same_next_offset(fetch, unit):
    theirs = plain(*fetch)
    records = [(r.offset, r.timestamp, r.key, r.value) for r in theirs]
    fetched = Fetched()
    fetched.unit = unit
    ours = _ColumnRecords(fetched, plain(*fetch))
    rows = []
    for columns in ours:
        assert 1 <= len(columns.offsets) <= unit
        rows += zip(*columns, strict=True)
        after = [row[0] for row in records if row[0] > rows[-1][0]]
        assert rows[-1][0] < ours.next_fetch_offset
        assert not after or ours.next_fetch_offset <= after[0], "a seek back here loses nothing"
    assert rows == records
    assert ours.next_fetch_offset == theirs.next_fetch_offset


@pytest.mark.parametrize("unit", [1, 10])
def test_reading_ends_before_a_damaged_batch_which_is_named(unit):
    good, bad = batch(0, [0, 1]), bytearray(batch(2, [0, 1]))
    bad[-1] ^= 1
    fetched = Fetched()
    fetched.unit = unit
    records = _ColumnRecords(fetched, plain(good + bytes(bad), [], 0, check_crcs=True))
    assert [offset for columns in records for offset in columns.offsets] == [0, 1]
    assert records.next_fetch_offset == 2, "the next fetch begins with it"
    assert (
        "offsets 2 to 3 ([Error 2] CorruptRecord" in fetched.unreadable[TopicPartition("topic", 0)]
    )


def test_nothing_of_a_batch_that_breaks_in_the_middle_is_handed_out():
    bad = bytearray(batch(2, [0, 1, 2], codec=NONE))
    struct.pack_into(">i", bad, RECORD_COUNT, 5)
    fetched = Fetched()
    records = _ColumnRecords(fetched, plain(batch(0, [0, 1]) + bytes(bad), [], 0))
    assert [offset for columns in records for offset in columns.offsets] == [0, 1]
    assert "offsets 2 to 4" in fetched.unreadable[TopicPartition("topic", 0)]


@pytest.mark.parametrize("packed", [False, True])
def test_batches_of_the_format_before_this_one_are_read(packed):
    """Segments from before an upgrade; a packed batch has the offset of its last record."""
    builder = LegacyRecordBatchBuilder(magic=1, compression_type=packed, batch_size=1 << 20)
    for offset in range(5):
        builder.append(offset, timestamp=1_000, key=b"k", value=b"v")
    raw = bytearray(builder.build())
    if packed:
        struct.pack_into(">q", raw, 0, 4)
    fetched = Fetched()
    records = _ColumnRecords(fetched, plain(bytes(raw), [], 2, check_crcs=True))
    assert [offset for columns in records for offset in columns.offsets] == [2, 3, 4]
    assert records.next_fetch_offset == 5
    raw[-1] ^= 1
    damaged = _ColumnRecords(fetched, plain(bytes(raw), [], 2, check_crcs=True))
    whole = [offset for columns in damaged for offset in columns.offsets]
    assert whole == ([] if packed else [2, 3])  # unpacked, each record is a batch of its own
    assert fetched.unreadable


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_a_batch_is_unpacked_up_to_the_limit_and_not_beyond(codec):
    codec = getattr(cramjam, codec)
    decode = columns_module._bounded(codec.decompress_into, mmap.mmap(-1, 4_096))
    small, text = codec.compress(b"a"), random.Random(1).randbytes(4_096)
    assert decode(codec.compress(text)) == text
    assert decode(bytes(small)) == b"a"
    with pytest.raises(ValueError, match="unpacked"):
        decode(bytes(codec.compress(text + b"b")))
    with pytest.raises(ValueError, match="unpacked"):
        decode(b"no such thing")
    assert decode(bytes(small)) == b"a"


def test_aiokafka_unpacks_by_the_bounded_codecs():
    """They are found by name in the module of its batches: see `columns`."""
    columns_module._bound_codecs()
    module = sys.modules[DefaultRecordBatch.__module__]
    for name in ("gzip", "lz4", "zstd"):
        assert getattr(module, f"{name}_decode").__module__ == columns_module.__name__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "lz4_decode", lambda _: b"")
        fetched = Fetched()
        assert list(_ColumnRecords(fetched, plain(batch(0, [0]), [], 0))) == []
        assert fetched.unreadable
