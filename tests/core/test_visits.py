"""Visits of arms on their way to the store: in bounded commits, and none is ever lost."""

import dataclasses

import cramjam
import pytest
from default_events import ImpressionEvent
from streams import to_json

from streameval.base.steps import drain
from streameval.core.checkpoint import CHECKSUM_BYTES, restore
from streameval.core.definition import Definition
from streameval.core.events import EventDecoder
from streameval.core.experiments.definition import Experiment
from streameval.core.partition import Partition
from streameval.kafka.records import Records
from streameval.worker import assigned_partition
from streameval.worker.assigned_partition import AssignedPartition, Limits

TS = 1_700_000_000_000
USERS = 25
DEFINITION = dataclasses.replace(
    Definition(), experiments=(Experiment("e", "variant", "A", "ndcg@10"),)
)


@pytest.fixture
def few(monkeypatch):
    """Visits of one commit are ten."""
    monkeypatch.setattr(assigned_partition, "MAX_BATCH_VISITS", 10)


def users_of(visits):
    return {visit.user for visit in visits}


def filled(committed=0):
    """A partition with a final slate of each user, that is not committed yet."""
    limits = Limits(events=1_000, users=1_000, seconds=1.0, checkpoint_seconds=1e9)
    state = Partition(DEFINITION, journal=True)
    partition = AssignedPartition(
        0,
        limits,
        state,
        EventDecoder.of(DEFINITION),
        next_offset=0,
        committed=committed,
        checkpoint_at=1e9,
    )
    events = [
        ImpressionEvent(TS + n, f"u{n}", "i", f"r{n}", variant="AB"[n % 2]) for n in range(USERS)
    ]
    events.append(ImpressionEvent(TS + 2 * DEFINITION.horizon, "late", "i", "r"))
    take(partition, events)
    return partition


def take(partition, events):
    begin = partition.next_offset
    offsets = list(range(begin, begin + len(events)))
    values = [to_json(event) for event in events]
    keys = [event.user_id.encode() for event in events]
    partition.take(
        Records(0, offsets, [2 * TS] * len(events), keys, values, next_offset=offsets[-1] + 1)
    )
    assert list(partition.work(0.0)) == []


def committed(partition, *, with_checkpoint=False):
    pending = drain(partition.make_commit(0.0, with_checkpoint=with_checkpoint))
    list(partition.save(pending))
    partition.stored = pending.end
    return pending


def test_visits_go_with_the_commits_until_all_are_stored(few):
    """Also while no event comes: an empty commit is due for each portion."""
    partition = filled()
    first = committed(partition, with_checkpoint=True)
    assert (first.start, first.end, len(first.visits)) == (0, USERS + 1, 10)
    found = [*first.visits]
    while partition.due(0.0):
        pending = committed(partition)
        assert (pending.start, pending.users, pending.checkpoint) == (USERS + 1, [], None)
        assert 0 < len(pending.visits) <= 10
        found += pending.visits
    assert sorted(found) == sorted(set(found)), "each once"
    assert users_of(found) == {f"u{n}" for n in range(USERS)}


def test_a_checkpoint_holds_the_visits_that_no_moved_offset_confirms(few):
    """A store that loses its last moments shows it by its offset, and only by that."""
    partition = filled()
    first = committed(partition, with_checkpoint=True)
    state = restore(DEFINITION, first.checkpoint.header, first.checkpoint.chunks)
    rest = {f"u{n}" for n in range(USERS)} - users_of(first.visits)
    assert users_of(state.experiments.visits) == rest
    empty = committed(partition)
    again = committed(partition, with_checkpoint=True)
    held = users_of(partition.state.experiments.visits)
    assert users_of(empty.visits) <= held and users_of(again.visits) <= held
    take(partition, [ImpressionEvent(TS + 2 * DEFINITION.horizon, "late", "j", "r2")])
    moved = committed(partition)
    assert moved.start < moved.end
    assert users_of(moved.visits) == users_of(empty.visits), "stored once more, and confirmed"
    assert users_of(partition.state.experiments.visits) == held - users_of(moved.visits)


def test_visits_make_no_header_longer(few):
    """Every scorecard reads the headers; on an idle partition nothing confirms its visits."""
    partition = filled()
    found = committed(partition, with_checkpoint=True).checkpoint
    header = bytes(cramjam.zstd.decompress(found.header[CHECKSUM_BYTES:]))
    (chunk,) = (chunk for name, chunk in found.chunks.items() if ".visits." in name)
    waiting = [visit.user.encode() for visit in partition.state.experiments.visits]
    assert len(waiting) == USERS - 10
    assert all(user in bytes(cramjam.zstd.decompress(chunk)) for user in waiting)
    assert not any(user in header for user in waiting)


def test_what_a_restored_partition_reads_again_waits_for_its_end(few):
    """Nothing may be committed before the stored offset is reached."""
    partition = filled(committed=USERS + 2)
    assert partition.restoring
    assert not partition.due(0.0)
