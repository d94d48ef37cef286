"""What a worker makes of stored windows that it cannot use, on real Redis: it refuses or resets."""

import asyncio
import contextlib
import functools
from types import SimpleNamespace

import cramjam
import pytest
import redis
import servers
from default_events import ImpressionEvent

from streameval.base.errors import RefusedError, UnreachableError, UnusableStateError
from streameval.core.checkpoint import checkpoint
from streameval.core.definition import Definition
from streameval.core.events import EventDecoder
from streameval.core.fingerprint import fingerprint
from streameval.core.partition import Partition
from streameval.core.record_mark import RecordMark, mark
from streameval.store.redis_store import RedisStateStore
from streameval.store.stored_values import CheckpointWrite, Commit
from streameval.worker import restore as restore_module
from streameval.worker.outcome_writer import OutcomeWriter
from streameval.worker.restore import PartitionRestorer

pytestmark = pytest.mark.servers

TS = 1_700_000_000_000


class Log:
    """The part of a reader that is asked: a log from 0 to 100."""

    cluster_id, topic_id = "cluster", "topic"
    first = 0

    async def bounds(self, _):
        return self.first, 100

    async def mark_at(self, _, offset):
        return mark(offset, TS, b"u", b"v")


def spoil(client, key):
    client.set(key, bytes(cramjam.zstd.compress(b"\x93")))


def delete(client, key):
    client.delete(key)


@contextlib.asynccontextmanager
async def stored(topic, definition, log=Log):
    """A store with one checkpoint at offset 50, and restorers of it, with and without a reset."""
    url = servers.shared_redis().url
    store = RedisStateStore(url, "g", topic, definition.kinds)
    state = Partition(definition, journal=True)
    state.apply([ImpressionEvent(TS, "u", "i", "r")])
    users = state.flush()
    saved = checkpoint(state, "c")
    written = CheckpointWrite(saved.header, saved.chunks, saved.keep)
    identity = "cluster", "topic", fingerprint(definition), "{}"
    last = mark(49, TS, b"u", b"v")
    await store.commit(Commit(0, None, 50, users, *identity, TS, written, last))
    try:
        yield store, functools.partial(restorer, store, log)
    finally:
        await store.close()


def restorer(store, log, definition, *, reset=False):
    settings = SimpleNamespace(
        definition=lambda: definition,
        decoder=lambda: EventDecoder.of(definition),
        start_from="earliest",
        batch_events=1,
        batch_users=1,
        batch_interval=1_000,
        checkpoint_interval=1_000,
    )
    return PartitionRestorer(
        settings, log(), store, OutcomeWriter(None, store), reset_windows=reset
    )


@pytest.mark.parametrize("how", [delete, spoil])
def test_windows_whose_chunk_is_gone_or_spoiled_start_anew_only_where_that_is_wanted(how):
    async def scenario():
        topic, definition = servers.unique("restore"), Definition()
        async with stored(topic, definition) as (store, of):
            with contextlib.closing(redis.Redis.from_url(servers.shared_redis().url)) as client:
                for key in client.scan_iter(f"streameval:{{g:{topic}:0}}:chunk:*"):
                    how(client, key)
            with pytest.raises(UnusableStateError, match=r"chunk .* is (missing|damaged)"):
                await of(definition).open(0, None)
            partition = await of(definition, reset=True).open(0, None)
            assert (partition.committed, partition.next_offset) == (50, 50)
            assert partition.state.watermark is None
            assert (await store.user("u", 1)).impressions == 1

    asyncio.run(scenario())


def test_partitions_are_loaded_and_restored_one_at_a_time():
    """What is stored of one, unpacked, may take as much memory as the state."""

    async def scenario():
        topic, definition = servers.unique("restore"), Definition()
        async with stored(topic, definition) as (store, of):
            under_way = []
            load = store.load

            async def loading(number):
                under_way.append(number)
                assert under_way == [number]
                return await load(number)

            store.load = loading
            opening = of(definition)
            opened = opening._opened

            def ready(number, *facts):
                under_way.remove(number)
                return opened(number, *facts)

            opening._opened = ready
            await asyncio.gather(*(opening.open(number, None) for number in range(4)))

    asyncio.run(scenario())


def test_a_partition_that_no_broker_serves_holds_up_no_other():
    class Leaderless(Log):
        async def bounds(self, number):
            if number == 0:
                raise UnreachableError("no leader")
            return await super().bounds(number)

    async def scenario():
        topic, definition = servers.unique("restore"), Definition()
        async with stored(topic, definition, Leaderless) as (_, of):
            opening = of(definition)
            waiting = asyncio.create_task(opening.open(0, None))
            await asyncio.sleep(0.1)
            assert (await asyncio.wait_for(opening.open(1, None), 5)).number == 1
            assert not waiting.done()
            waiting.cancel()

    asyncio.run(scenario())


@pytest.mark.parametrize("later", [(60, 100), (0, 40)])
def test_a_log_that_changes_before_its_last_record_is_compared_is_asked_anew(later, monkeypatch):
    """Retention takes the record, or an election the end: no broker answers a fetch of it then."""
    monkeypatch.setattr(restore_module, "END_SECONDS", 0.01)

    class Changing(Log):
        extent = 0, 100

        async def bounds(self, _):
            return self.extent

        async def mark_at(self, _number, _offset):
            self.extent = later
            raise UnreachableError("the offset is out of range")

    async def scenario():
        async with stored(servers.unique("restore"), Definition(), Changing) as (_, of):
            opening = asyncio.wait_for(of(Definition()).open(0, None), 5)
            if later[0]:
                assert (await opening).lost == 10
                return
            with pytest.raises(RefusedError, match="lies beyond the log's end 40"):
                await opening

    asyncio.run(scenario())


def test_an_end_from_before_an_election_is_no_reason_to_start_over(monkeypatch):
    """A leader that was replaced and does not know it yet names it, and advice must not destroy."""
    monkeypatch.setattr(restore_module, "END_SECONDS", 0.01)

    class Replaced(Log):
        ends = iter([30, 30, 49, 100])

        async def bounds(self, _):
            return 0, next(self.ends)

    async def scenario():
        async with stored(servers.unique("restore"), Definition(), Replaced) as (_, of):
            opened = await asyncio.wait_for(of(Definition()).open(0, None), 5)
            assert (opened.next_offset, opened.stored) == (50, 50)

    asyncio.run(scenario())


def test_what_another_worker_stores_before_a_turn_comes_is_compared_again():
    """Its last record may be another one than the log holds by now."""

    async def scenario():
        topic, definition = servers.unique("restore"), Definition()
        async with stored(topic, definition) as (store, of):
            opening, load = of(definition), store.load

            async def loading(number):
                store.load = load
                known = await load(number)
                identity = known.cluster_id, known.topic_id, known.fingerprint, "{}"
                last = RecordMark(69, 1)
                await store.commit(Commit(number, 50, 70, [], *identity, TS, None, last))
                return await load(number)

            store.load = loading
            with pytest.raises(RefusedError, match=r"the record at offset 69 .* was set back"):
                await opening.open(0, None)

    asyncio.run(scenario())


def test_windows_that_a_missing_right_hides_are_kept_also_where_a_reset_is_allowed():
    async def scenario():
        topic, definition = servers.unique("restore"), Definition()
        async with stored(topic, definition) as (store, _):
            url = servers.shared_redis().url
            with contextlib.closing(redis.Redis.from_url(url)) as client:
                client.acl_setuser(
                    topic, enabled=True, passwords=["+p"], commands=["+@all", "-get"], keys=["*"]
                )
            limited = RedisStateStore(
                url.replace("//", f"//{topic}:p@"), "g", topic, definition.kinds
            )
            with pytest.raises(RefusedError, match="extend the rights"):
                await restorer(limited, Log, definition, reset=True).open(0, None)
            await limited.close()
            assert (await store.load(0)).header is not None

    asyncio.run(scenario())


def test_windows_that_can_be_used_are_kept_also_where_a_reset_is_allowed():
    async def scenario():
        definition = Definition()
        async with stored(servers.unique("restore"), definition) as (_, of):
            partition = await of(definition, reset=True).open(0, None)
            assert partition.state.watermark == TS

    asyncio.run(scenario())


def test_windows_of_another_definition_start_anew_once():
    async def scenario():
        other = Definition(ks=(3,))
        async with stored(servers.unique("restore"), Definition()) as (store, of):
            with pytest.raises(RefusedError, match="another configuration"):
                await of(other).open(0, None)
            assert (await of(other, reset=True).open(0, None)).state.watermark is None
            stored_now = await store.load(0)
            assert stored_now.fingerprint == fingerprint(other)
            assert (await of(other).open(0, None)).committed == 50

    asyncio.run(scenario())


def test_nothing_is_reset_of_another_log():
    """The worker is wrong here, whatever it was told."""

    class Another(Log):
        topic_id = "another"

    async def scenario():
        async with stored(servers.unique("restore"), Definition(), Another) as (store, of):
            with pytest.raises(RefusedError, match="another Kafka topic"):
                await of(Definition(ks=(3,)), reset=True).open(0, None)
            assert (await store.load(0)).header is not None

    asyncio.run(scenario())


def marked(found, first_offset=0):
    """A log whose record at the last applied offset has the mark `found`."""

    class Marked(Log):
        first = first_offset

        async def mark_at(self, _, offset):
            assert offset >= self.first, "what is deleted is not asked for"
            return found and RecordMark(offset, found)

    return Marked


def test_a_log_with_another_record_where_the_last_one_was_is_refused_at_each_restore():
    """Also where the state is still there from before, because the partition only went and came."""

    async def scenario():
        async with stored(servers.unique("restore"), Definition(), marked(1)) as (_, of):
            with pytest.raises(RefusedError, match=r"the record at offset 49 .* was set back"):
                await of(Definition()).open(0, None)
        async with stored(servers.unique("restore"), Definition()) as (store, of):
            parked = await of(Definition()).open(0, None)
            assert await of(Definition()).open(0, parked) is parked
            with pytest.raises(RefusedError, match=r"the record at offset 49 .* was set back"):
                await restorer(store, marked(1), Definition()).open(0, parked)

    asyncio.run(scenario())


@pytest.mark.parametrize("log", [marked(None), marked(1, first_offset=50)])
def test_a_last_record_that_compaction_or_retention_took_is_not_compared(log):
    async def scenario():
        async with stored(servers.unique("restore"), Definition(), log) as (_, of):
            assert (await of(Definition()).open(0, None)).committed == 50

    asyncio.run(scenario())


def test_what_redis_alone_refuses_is_refused_before_there_is_an_assignment():
    """Nobody else rebalances for a worker that cannot work; a reset may change a definition."""

    class Another(Log):
        topic_id = "another"

    async def scenario():
        other = Definition(ks=(3,))
        async with stored(servers.unique("restore"), Definition(), Another) as (_, of):
            with pytest.raises(RefusedError, match="another Kafka topic"):
                await of(Definition()).check_stored(2)
        async with stored(servers.unique("restore"), Definition()) as (_, of):
            await of(Definition()).check_stored(2)
            await of(other, reset=True).check_stored(2)
            with pytest.raises(RefusedError, match="another configuration"):
                await of(other).check_stored(2)

    asyncio.run(scenario())
