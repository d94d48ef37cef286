"""What a batch keeps of rejected records is bounded in bytes; no server is needed."""

import pytest

from streameval.base.limits import (
    MAX_BATCH_DEAD_LETTER_BYTES,
    MAX_DEAD_LETTER_BYTES,
    MAX_EVENT_BYTES,
)
from streameval.base.steps import drain
from streameval.core.definition import Definition
from streameval.core.events import EventDecoder, TooLarge
from streameval.core.partition import Partition
from streameval.kafka.records import Records
from streameval.worker.assigned_partition import AssignedPartition, Limits

LIMITS = Limits(50_000, 5_000, 1.0, 30.0)
DECODER = EventDecoder.of(Definition())


def owned_with(values, keys=None):
    partition = AssignedPartition(
        0, LIMITS, Partition(Definition(), journal=True), DECODER, next_offset=0, committed=0
    )
    count = len(values)
    keys = keys or [b"k"] * count
    partition.take(
        Records(0, range(count), [0] * count, keys, values, count, sum(map(len, values)))
    )
    return partition


def test_a_batch_ends_where_its_rejected_records_have_become_many_bytes():
    partition = owned_with([b"x" * MAX_DEAD_LETTER_BYTES * 2] * 1_000)
    assert partition.waiting_bytes == MAX_DEAD_LETTER_BYTES * 2_000
    while not partition.due(0.5):
        list(partition.work(0.0))
    pending = drain(partition.make_commit(0.5))
    assert 1 <= len(pending.dead_letters) <= 250, "a slice at most beyond the bound"
    assert {len(letter.value) for letter in pending.dead_letters} == {MAX_DEAD_LETTER_BYTES}
    assert partition.committing_bytes > MAX_BATCH_DEAD_LETTER_BYTES, (
        "they count until they are written"
    )


@pytest.mark.parametrize("size", [MAX_EVENT_BYTES + 1, 1 << 40])
def test_a_value_that_nobody_keeps_is_too_large_and_its_beginning_is_a_dead_letter(size):
    partition = owned_with([TooLarge.of(size, b"beginning")], keys=[b"k" * MAX_EVENT_BYTES])
    list(partition.work(0.0))
    (letter,) = drain(partition.make_commit(0.0)).dead_letters
    assert letter.rejection == ("too_large", f"{size} bytes, at most {MAX_EVENT_BYTES}")
    assert letter.value == b"beginning"
    assert letter.key == b"k" * MAX_DEAD_LETTER_BYTES
