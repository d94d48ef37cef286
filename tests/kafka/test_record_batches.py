"""Record lists hold the records that aiokafka itself hands out, whatever the units."""

import contextlib
import random
import struct
import tracemalloc
from types import SimpleNamespace

import pytest
from aiokafka.consumer.fetcher import READ_COMMITTED, FetchResult, PartitionRecords
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.util import calc_crc32c
from aiokafka.structs import TopicPartition
from hypothesis import given, settings
from hypothesis import strategies as st

from streameval.core.events import TooLarge
from streameval.core.record_mark import mark
from streameval.kafka import batch_format, unpacking
from streameval.kafka.aiokafka_internals import KeptRecords
from streameval.kafka.batch_format import RECORDS
from streameval.kafka.fetch_by_id import _mark_in
from streameval.kafka.record_batches import Fetched, ListedRecords
from streameval.kafka.unpacking import Memory, bound_legacy_codecs

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
    struct.pack_into(">I", raw, ATTRIBUTES - 4, calc_crc32c(bytes(raw[ATTRIBUTES:])))
    return bytes(raw)


@st.composite
def fetches(draw):
    """Batches one after the other (compacted, transactional, markers), and where to begin."""
    raw, at, aborted = b"", draw(st.integers(0, 50)), []
    starts = []
    for _ in range(draw(st.integers(1, 8))):
        producer = draw(st.sampled_from([-1, 5]))
        length = draw(st.integers(1, 12))
        at += draw(st.sampled_from([0, 0, 3]))
        if producer >= 0 and draw(st.booleans()):
            marker = draw(st.sampled_from([ABORT, COMMIT]))
            raw += batch(at, [], codec=NONE, producer=producer, marker=marker)
            starts += [at]
            at += 1
            continue
        kept = draw(st.sets(st.integers(0, length - 1)))
        if kept and producer >= 0 and draw(st.booleans()):
            aborted.append((producer, at))
        codec = draw(st.sampled_from([1, 2, LZ4, 4, NONE])) if kept else NONE
        raw += batch(at, sorted(kept), codec=codec, producer=producer, length=length)
        starts += [draw(st.integers(at, at + length - 1))]
        at += length
    return raw, aborted, starts[0]  # a broker answers from the batch that holds the offset


def lost_of(raw, aborted, start):
    """The offsets from `start` on that these batches lack, parsed without our code."""
    lost, at, producers, transactional = [], start, set(), False
    left = sorted(aborted, key=lambda one: one[1])
    while raw:
        size = 12 + struct.unpack_from(">i", raw, 8)[0]
        one, raw = DefaultRecordBatch(raw[:size]), raw[size:]
        transactional |= one.is_transactional or one.is_control_batch
        if not transactional:
            lost += range(at, one.base_offset)
        while left and left[0][1] <= one.base_offset:
            producers.add(left.pop(0)[0])
        if one.is_control_batch and next(iter(one)).key == ABORT:
            producers.discard(one.producer_id)
        skipped = one.is_transactional and one.producer_id in producers
        if not skipped and not one.is_control_batch:
            has = {record.offset for record in one} if one.next_offset > at else set()
            lost += [
                n for n in range(one.base_offset, one.next_offset) if n >= start and n not in has
            ]
        at = max(at, one.next_offset)
    return lost


PARTITION = TopicPartition("topic", 0)


def plain(raw, aborted, start, *, check_crcs=False, topic_partition=PARTITION):
    arguments = (
        topic_partition,
        KeptRecords(raw),
        aborted,
        start,
        None,
        None,
        check_crcs,
        READ_COMMITTED,
    )
    return PartitionRecords(*arguments)


def read(fetched, fetch, *, turn=lambda: None):
    """The lists of a fetch; what waits for room is given it, after `turn`."""
    ours = ListedRecords(fetched, plain(*fetch))
    memory = fetched.memory
    while True:
        for lists in ours:
            yield ours, lists
        if not ours.interrupted:
            return
        ours.interrupted = False
        turn()
        if memory.asked is not None:
            memory.allow(memory.asked)


def rows_of(lists):
    return zip(lists.offsets, lists.timestamps, lists.keys, lists.values, strict=True)


@contextlib.contextmanager
def bounds(**changed):
    """Other bounds than the real ones, so that small batches are treated like large ones."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in changed.items():
            for module in (unpacking, batch_format):
                patch.setattr(module, name, value, raising=False)
        yield


# Bytes of the scratch space: all fits; some batches are large; all that are compressed are.
SCRATCH = st.sampled_from([1 << 20, 120, 0])


def in_use(memory):
    """Bytes that batches take while they are handed out."""
    held = memory.total // 16 - memory._free
    return held + (0 if memory._allowed is None else memory.largest)


@settings(max_examples=200)
@given(fetches(), st.integers(1, 5), SCRATCH, st.sampled_from([8_000, 3, 0]))
def test_record_lists_are_the_records_of_aiokafka_with_the_same_next_offset(
    fetch, unit, scratch, at_once
):
    """Also where batches are split, held, or large."""
    theirs = plain(*fetch)
    records = [(r.offset, r.timestamp, r.key, r.value) for r in theirs]
    fetched = Fetched(Memory(32 * scratch + 4_096))
    fetched.unit = unit
    rows, missing = [], []
    with bounds(AT_ONCE=at_once):
        for ours, lists in read(fetched, fetch):
            assert 1 <= len(lists.offsets) <= unit or lists.missing
            missing += [at for run in lists.missing for at in range(*run)]
            rows += rows_of(lists)
            if not rows:
                continue
            after = [row[0] for row in records if row[0] > rows[-1][0]]
            assert rows[-1][0] < ours.next_fetch_offset
            assert not after or ours.next_fetch_offset <= after[0], "a seek back here loses nothing"
    assert not fetched.unreadable
    assert rows == records
    assert not records or ours.next_fetch_offset == theirs.next_fetch_offset
    assert missing == sorted(lost_of(*fetch))
    assert in_use(fetched.memory) == 0


@settings(max_examples=200)
@given(fetches(), st.integers(1, 5), SCRATCH, st.integers(0, 9))
def test_a_fetch_that_is_dropped_and_read_again_from_its_offset_loses_and_repeats_nothing(
    fetch, unit, scratch, parts
):
    """As by a pause or a seek; batches that were split go on where they stopped."""
    raw, aborted, start = fetch
    records = [(r.offset, r.timestamp, r.key, r.value) for r in plain(*fetch)]
    fetched = Fetched(Memory(32 * scratch + 4_096))
    fetched.unit = unit
    rows, missing = [], []
    with bounds(AT_ONCE=0):
        for _ in [None, *records]:
            for count, (ours, lists) in enumerate(read(fetched, (raw, aborted, start))):
                rows += rows_of(lists)
                begin, start = start, ours.next_fetch_offset
                runs = [range(max(run[0], begin), min(run[1], start)) for run in lists.missing]
                missing += [at for run in runs for at in run]
                if count >= parts:
                    ours.close()
                    break
            assert in_use(fetched.memory) == 0
    assert rows == records
    lost = lost_of(*fetch)
    # A transaction that was seen farther on is known when batches before it are read again.
    assert missing == lost or (fetched.transactional and set(missing) < set(lost))


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_what_is_too_large_is_dropped_before_it_is_an_object_and_the_rest_is_kept(codec):
    values = [b"a", b"b" * 101, None, b"c" * 100, b"", b"d" * 5_000, b"e"]
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=0,
        base_sequence=0,
        batch_size=1 << 20,
    )
    for offset, value in enumerate(values):
        headers = [("many", b"")] * (5_000 if offset == 2 else 0)
        builder.append(offset, 1_000 + offset, b"k" * (300 if offset == 3 else 1), value, headers)
    fetched = Fetched(Memory())
    with bounds(MAX_EVENT_BYTES=100, MAX_DEAD_LETTER_BYTES=50):
        rows = [
            row
            for _, lists in read(fetched, (bytes(builder.build()), [], 0))
            for row in rows_of(lists)
        ]
    assert [row[0] for row in rows] == list(range(7))
    assert [row[1] for row in rows] == list(range(1_000, 1_007))
    assert [row[3] for row in rows] == [b"a", b"", None, b"c" * 100, b"", b"", b"e"]
    assert rows[3][2] == b"k" * 50, "of such a record's key a dead letter's worth is kept"
    large = {at: row[3] for at, row in enumerate(rows) if isinstance(row[3], TooLarge)}
    assert {at: value.size for at, value in large.items()} == {1: 101, 5: 5_000}
    assert large[5].head == b"d" * 50


@pytest.mark.parametrize("unit", [1, 10])
def test_reading_ends_before_a_damaged_batch_which_is_named(unit):
    good, bad = batch(0, [0, 1]), bytearray(batch(2, [0, 1]))
    bad[-1] ^= 1
    fetched = Fetched(Memory())
    fetched.unit = unit
    records = ListedRecords(fetched, plain(good + bytes(bad), [], 0, check_crcs=True))
    assert [offset for lists in records for offset in lists.offsets] == [0, 1]
    assert records.next_fetch_offset == 2, "the next fetch begins with it"
    assert (
        "offsets 2 to 3 ([Error 2] CorruptRecord" in fetched.unreadable[TopicPartition("topic", 0)]
    )


def test_nothing_of_a_batch_that_breaks_in_the_middle_is_handed_out():
    bad = bytearray(batch(2, [0, 1, 2], codec=NONE))
    struct.pack_into(">i", bad, RECORD_COUNT, 5)
    fetched = Fetched(Memory())
    records = ListedRecords(fetched, plain(batch(0, [0, 1]) + bytes(bad), [], 0))
    assert [offset for lists in records for offset in lists.offsets] == [0, 1]
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
    fetched = Fetched(Memory())
    records = ListedRecords(fetched, plain(bytes(raw), [], 2, check_crcs=True))
    assert [offset for lists in records for offset in lists.offsets] == [2, 3, 4]
    assert records.next_fetch_offset == 5
    raw[-1] ^= 1
    damaged = ListedRecords(fetched, plain(bytes(raw), [], 2, check_crcs=True))
    whole = [offset for lists in damaged for offset in lists.offsets]
    assert whole == ([] if packed else [2, 3])  # unpacked, each record is a batch of its own
    assert fetched.unreadable


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_batch_that_fits_no_space_is_named_and_not_unpacked_again(codec):
    """It is announced before it is tried; what is before it is handed out."""
    first = batch(0, [0, 1])
    fetched = Fetched(Memory(32 * 100))
    topic_partition = TopicPartition("topic", 0)
    for count in (1, 0):
        turns = []
        builder = one(random.Random(1).randbytes(2_000), codec)
        seen = list(read(fetched, (first + builder, [], 0), turn=lambda at=turns: at.append(1)))
        assert [offset for _, lists in seen for offset in lists.offsets] == [0, 1]
        assert "offsets 2 to 2 (damaged, or larger than 0 MiB" in fetched.unreadable.pop(
            topic_partition
        )
        assert len(turns) == count, "announced the first time"
        assert in_use(fetched.memory) == 0
    # A batch of a topic that was made anew stands at the same place and is another one.
    assert len(list(read(fetched, (first + one(bytes(200), codec), [], 0)))) == 2


def one(value, codec):
    """A batch of one record at offset 2, with this value."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=0,
        base_sequence=0,
        batch_size=1 << 20,
    )
    builder.append(0, 1_000, b"key", value, [])
    raw = bytearray(builder.build())
    struct.pack_into(">q", raw, 0, 2)
    return bytes(raw)


def test_large_batches_of_several_partitions_take_turns_and_small_ones_go_on():
    fetched = Fetched(Memory(32 * 100))
    fetched.unit = 1
    memory = fetched.memory
    raw = one(bytes(300), 4) + batch(3, [0, 1])
    topic_partitions = [TopicPartition("topic", number) for number in range(3)]
    readers = [
        ListedRecords(fetched, plain(raw, [], 2, topic_partition=topic_partition))
        for topic_partition in topic_partitions[:2]
    ]
    small = ListedRecords(
        fetched, plain(batch(0, [0, 1]), [], 0, topic_partition=topic_partitions[2])
    )
    assert [list(each) for each in readers] == [[], []]
    assert memory.asked == (topic_partitions[0], 2, 2), "the first that came"
    assert len(list(small)) == 2
    memory.allow(memory.asked)
    assert next(readers[0]).offsets == [2]
    assert list(readers[1]) == []
    assert memory.asked is None, "one at a time"
    assert in_use(memory) == memory.largest
    assert next(readers[0]).offsets == [3], "its large batch is read"
    assert list(readers[1]) == []
    assert memory.asked == (topic_partitions[1], 2, 2)
    memory.refuse(memory.asked, "somebody died of it")
    assert list(readers[1]) == []
    assert fetched.unreadable == {topic_partitions[1]: "offsets 2 to 2 (somebody died of it)"}
    assert in_use(memory) == 0


def test_a_batch_of_many_records_becomes_objects_part_by_part():
    """At 7 bytes a record; the objects of all of them would take 300 times as much."""
    records = b"\x0c\0\0\0\1\1\0" * 50_000
    header = bytearray(batch(0, [0], codec=NONE)[:RECORDS])
    struct.pack_into(">i", header, 8, RECORDS - 12 + len(records))
    struct.pack_into(">i", header, RECORD_COUNT, 50_000)
    fetched = Fetched(Memory())
    tracemalloc.start()
    try:
        count = sum(
            len(lists.offsets) for _, lists in read(fetched, (bytes(header) + records, [], 0))
        )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 50_000
    assert peak < 2 << 20


def test_a_batch_of_the_format_before_is_unpacked_up_to_the_scratch_space():
    bound_legacy_codecs(1_000)
    try:
        for count, found in ((5, 5), (100, 0)):
            builder = LegacyRecordBatchBuilder(magic=1, compression_type=1, batch_size=1 << 20)
            for offset in range(count):
                builder.append(offset, timestamp=1_000, key=b"k", value=b"v")
            raw = bytearray(builder.build())
            struct.pack_into(">q", raw, 0, count - 1)
            fetched = Fetched(Memory())
            seen = [offset for _, part in read(fetched, (bytes(raw), [], 0)) for offset in part[0]]
            assert len(seen) == found
            assert ("larger than" in fetched.unreadable.get(PARTITION, "")) == (not found)
    finally:
        bound_legacy_codecs(8 << 20)


@settings(max_examples=60)
@given(fetches(), SCRATCH, st.sampled_from([8_000, 0]), st.sampled_from([1 << 20, 8]))
def test_the_mark_of_a_record_in_the_log_is_that_of_the_record_as_it_was_read(
    fetch, scratch, at_once, largest
):
    """Also where its batch is split, or its value too large to be kept."""
    raw, _, start = fetch
    fetched = Fetched(Memory(32 * scratch + 4_096))
    with bounds(AT_ONCE=at_once, MAX_EVENT_BYTES=largest, MAX_DEAD_LETTER_BYTES=4):
        for _, lists in read(fetched, (raw, [], start)):
            for row in rows_of(lists):
                at = next(bytes(b) for b in batch_format.batches(raw) if holds(b, row[0]))
                assert _mark_in(PARTITION, at, row[0]) == mark(*row)


class Assignment:
    """The part of aiokafka's that says what is paused."""

    def __init__(self, topic_partitions):
        self.tps, self.paused = topic_partitions, set()

    def state_value(self, topic_partition):
        return SimpleNamespace(paused=topic_partition in self.paused)


@pytest.fixture
def held_back():
    """Three partitions, of which two take the share; what comes, and what is asked for."""
    raw = batch(0, range(100), codec=NONE)
    fetched = Fetched(Memory(16 * 2 * len(raw)))
    topic_partitions = [TopicPartition("topic", number) for number in range(3)]
    assignment = Assignment(topic_partitions)
    actions = fetched.restrained(lambda _assignment: (["request"], {}, 0.2, False, []))
    for topic_partition in topic_partitions[:2]:
        assert actions(assignment) == (["request"], {}, 0.2, False, [])
        records = plain(raw, [], 0, topic_partition=topic_partition)
        fetched[topic_partition] = FetchResult(
            topic_partition, assignment=None, partition_records=records, backoff=0
        )
    return fetched, assignment, lambda: actions(assignment)[0]


def test_no_more_is_fetched_while_what_is_fetched_takes_its_share(held_back):
    """However many partitions there are: a broker sends a whole batch of each."""
    fetched, assignment, asked = held_back
    assert asked() == []
    del fetched[assignment.tps[0]]
    assert asked() == ["request"]


def test_what_is_paused_does_not_keep_the_others_from_being_fetched(held_back):
    fetched, assignment, asked = held_back
    assignment.paused = set(assignment.tps[1:])
    assert asked() == ["request"]
    assert list(fetched) == assignment.tps[:1]


def holds(raw, offset):
    batch = batch_format.open_batch(raw)
    return batch.base_offset <= offset < batch.next_offset
