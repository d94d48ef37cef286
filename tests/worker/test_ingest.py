"""Where a partition begins, what is read ahead, T, and what the service says of itself.

One worker on the model of Kafka and Redis, in virtual time.
"""

import asyncio
import logging
from bisect import bisect_left
from types import SimpleNamespace

import pytest
from default_events import ImpressionEvent
from model import Client, Group, Member, Server, Topic, virtual_time
from streams import to_json

from streameval.base.errors import RefusedError
from streameval.base.limits import FLUSH_STEP
from streameval.base.steps import drain
from streameval.core import checkpoint as checkpoint_module
from streameval.core.checkpoint import attachments_of
from streameval.core.definition import Definition
from streameval.core.events import EventDecoder, FeedbackEvent
from streameval.core.partition import Partition
from streameval.files.outcome_files import OutcomeFolder, dataset
from streameval.kafka.records import Records
from streameval.store.redis_store import RedisStateStore
from streameval.store.stored_values import Fenced
from streameval.web.status import BUCKETS
from streameval.worker import commits as commits_module
from streameval.worker import live_figures as live_figures_module
from streameval.worker import worker_loop as ingest_module
from streameval.worker.assigned_partition import AssignedPartition, Limits
from streameval.worker.live_figures import NEWS_SHARE, TICK_SHARE
from streameval.worker.worker_loop import POLL_RECORDS, Ingest

TS = 1_700_000_000_000
A_WHILE = 120.0


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def world(monkeypatch):
    """A topic of one partition, a store, and workers on them."""
    with virtual_time(0, monkeypatch) as (loop, rng):
        yield World(loop, rng)


class Reader(Member):
    """A member whose log may begin later, and that may not know the lag."""

    first = 0
    lag_known = True

    async def bounds(self, partition):
        _, end = await super().bounds(partition)
        return self.first, end

    def lag(self, partition, next_offset):
        return super().lag(partition, next_offset) if self.lag_known else None

    async def start_over(self):
        """What the reader does where the log does not hold the offset to read next."""
        await self._listener.revoked([0])
        await self._listener.assigned([0])


class Silent(Reader):
    """It reads nothing until its log begins later."""

    async def poll(self, seconds, max_records):
        if self.first:
            return await super().poll(seconds, max_records)
        await asyncio.sleep(seconds)
        return []


class World:
    def __init__(self, loop, rng):
        self.loop, self.rng = loop, rng
        self.topic, self.server = Topic(rng, 1), Server(rng)
        self.group = Group(rng, self.topic)
        self.ingest = self.member = None

    def produce(self, count, ts=TS):
        self.send(ImpressionEvent(ts + n, f"u{n % 5}", f"i{n}", "r") for n in range(count))

    def send(self, events, stamp=2 * TS):
        for event in events:
            self.topic.append(0, stamp, event.user_id.encode(), to_json(event))
        self.topic.log[0] = [(at, *rest) for at, (_, *rest) in enumerate(self.topic.log[0])]
        self.topic.ends[0] = len(self.topic.log[0])

    async def start(
        self, reader=Reader, *, first=0, lag_known=True, hold=None, outcomes=None, **settings
    ):
        """A worker, in place of the one before, which is killed; its commits wait for `hold`."""
        if self.member is not None:
            self.member.kill()
            await asyncio.sleep(30)
        self.member = reader(self.rng, self.topic, self.group)
        self.member.first, self.member.lag_known = first, lag_known
        store = RedisStateStore("redis://localhost", "g", "t", ("click", "like"))
        store._servers = Client(self.rng, self.server, self.member, 0.0)
        usual = {
            "batch_events": 50_000,
            "batch_users": 1_500,
            "batch_interval": 1_000,
            "tick": 0,
            "checkpoint_interval": 30_000,
            "start_from": "earliest",
            "read_memory": 1 << 28,
            "topic": "t",
            "group": "g",
        }
        defined = SimpleNamespace(
            definition=Definition, decoder=lambda: EventDecoder.of(Definition()), **usual | settings
        )
        self.ingest = Ingest(defined, self.member, store, outcomes=outcomes)
        if hold is not None:
            store.commit = self.held(store.commit, hold)
        self.running = asyncio.ensure_future(self.ingest.run())
        await asyncio.sleep(5)

    @staticmethod
    def held(commit, hold):
        async def wait_and_commit(what):
            await hold.wait()
            return await commit(what)

        return wait_and_commit

    def stored(self, field="offset"):
        fields = self.server.keys.get("streameval:{g:t:0}:partition", {})
        return int(fields[field.encode()]) if field.encode() in fields else None

    def run(self, scenario):
        self.loop.run_until_complete(scenario())


def test_events_after_the_first_start_are_not_lost_with_start_from_latest(world):
    """Also where the worker ends before it has committed any event."""

    async def scenario():
        world.produce(1_000)
        await world.start(start_from="latest")
        assert world.ingest.status().partitions[0].lag == 0
        world.produce(10)
        await world.start(start_from="latest")
        assert world.stored() == 1_010
        assert world.ingest.partitions[0].state.events["accepted"]["impression"] == 10

    world.run(scenario)


def test_a_kind_whose_values_count_anyway_is_warned_of_once(world, caplog):
    logging.disable(logging.NOTSET)

    async def scenario():
        world.produce(3)
        await world.start()
        for number in range(3):
            world.send([FeedbackEvent(TS + 5, f"u{number}", f"i{number}", "click", "r", -1.0)])
            await asyncio.sleep(5)
        assert world.ingest.partitions[0].state.events["accepted"]["feedback"] == 3

    world.run(scenario)
    warnings = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    (said,) = (text for text in warnings if "counts as positive" in text)
    assert said.startswith("feedback 'click' with a value of 0 or less counts as positive: write")


@pytest.mark.parametrize("where", ["tick", "turn"])
def test_what_a_bug_met_is_not_committed(world, monkeypatch, where):
    """A checkpoint of the state that raised it would end every next worker, for good."""

    flushing = Partition.flushing

    def broken(_):
        raise OverflowError("a bug")
        yield

    async def ticking():
        while True:
            await world.ingest.tick()
            await asyncio.sleep(0.1)

    async def scenario():
        world.produce(10)
        await world.start(tick=1_000 if where == "tick" else 0)
        assert world.stored() == 10
        monkeypatch.setattr(Partition, "flushing", broken)
        world.produce(10)
        if where == "tick":
            await asyncio.sleep(0.2)
            with pytest.raises(OverflowError):
                await ticking()
        else:
            with pytest.raises(OverflowError):
                await asyncio.wait_for(world.running, 60)
        monkeypatch.setattr(Partition, "flushing", flushing)
        assert not await world.ingest.stop(asyncio.get_running_loop().time() + 30)
        assert (world.stored(), world.stored("checkpoint_offset")) == (10, 10)

    world.run(scenario)


def test_what_is_read_ahead_is_bounded_also_where_reading_is_faster_than_applying(world):
    class Fast(Reader):
        async def poll(self, _seconds, max_records):
            await asyncio.sleep(0.1)
            if not self._positions.get(0, 0) or 0 in self._paused:
                return []
            at = self._positions[0]
            self._positions[0] = after = at + max_records
            nothing = [None] * max_records
            return [Records(0, range(at, after), [TS] * max_records, nothing, nothing, after)]

    async def scenario():
        world.topic.ends[0] = 10**9
        await world.start(Fast, start_from="latest")
        for _ in range(10):
            await asyncio.sleep(0.2)
            assert world.ingest.partitions[0].backlog.records < 2 * POLL_RECORDS
        assert world.ingest.partitions[0].state.events["rejected"]["malformed"] > 2 * POLL_RECORDS

    world.run(scenario)


@pytest.mark.parametrize("checkpoint_interval", [30_000, 3_600_000])
def test_a_window_that_time_has_emptied_stays_empty_after_a_restart(world, checkpoint_interval):
    """What a restore reads again is not of now, nor is a checkpoint while no events come: T goes
    on from the last events."""

    async def scenario():
        world.produce(10)
        await world.start(checkpoint_interval=checkpoint_interval)
        world.produce(10)
        await asyncio.sleep(10)
        assert world.stored("checkpoint_offset") < world.stored() == 20
        await asyncio.sleep(A_WHILE)
        await world.start()
        await world.ingest.tick()
        state = world.ingest.partitions[0].state
        assert state.reading_time - state.watermark >= A_WHILE * 1_000

    world.run(scenario)


def test_a_partition_without_new_events_gets_its_checkpoint_all_the_same(world):
    """What is stored is then all that a restart needs, whatever happens to the log before it."""

    async def scenario():
        world.produce(10)
        await world.start()
        world.produce(10)
        await asyncio.sleep(A_WHILE)
        assert world.stored("checkpoint_offset") == world.stored() == 20
        commits = world.ingest.counters.commits
        await asyncio.sleep(A_WHILE)
        assert world.ingest.counters.commits == commits, "there is nothing more to save"

    world.run(scenario)


def test_the_size_of_a_checkpoint_is_that_of_all_it_holds_in_the_store(world):
    """Also of what earlier checkpoints wrote, and after a restart."""

    def sizes():
        keys = world.server.keys
        held = [keys["streameval:{g:t:0}:partition"][b"header"]]
        held += [keys[key] for key in keys if ":chunk:" in key]
        return len(held), sum(map(len, held)), world.ingest.status().partitions[0].checkpoint_bytes

    async def scenario():
        await world.start(checkpoint_interval=1)
        for at in range(3):
            world.produce(10, TS + at * 1_000)
            await asyncio.sleep(10)
        await world.start()
        several, there, shown = sizes()
        assert several > 3
        assert there == shown
        world.produce(10, TS + 5_000)
        await asyncio.sleep(A_WHILE)
        more, there, shown = sizes()
        assert more > several
        assert there == shown

    world.run(scenario)


def test_a_checkpoint_is_made_in_pieces_between_which_nothing_is_applied(world, monkeypatch):
    """Records that come meanwhile wait: the checkpoint is of one offset."""
    monkeypatch.setattr(checkpoint_module, "CHUNK_RECORDS", 10)
    save, made = AssignedPartition.save, []

    def save_and_send(partition, pending):
        made.append((pending.end, steps := []))
        for _ in save(partition, pending):
            world.produce(1)
            steps.append(partition.next_offset)
            yield

    monkeypatch.setattr(AssignedPartition, "save", save_and_send)

    async def scenario():
        await world.start(checkpoint_interval=1)
        world.send(ImpressionEvent(TS, "u", "i", f"r{n}") for n in range(1_000))
        await asyncio.sleep(A_WHILE)
        end, steps = max(made, key=lambda pending: len(pending[1]))
        assert len(steps) >= 20
        assert set(steps) == {end}
        assert world.stored("checkpoint_offset") == world.stored() > 1_000
        await world.start()
        await asyncio.sleep(A_WHILE)  # it has many chunks to load
        events = world.ingest.partitions[0].state.events
        assert events["accepted"]["impression"] == world.topic.ends[0]

    world.run(scenario)


def test_segments_that_are_in_no_window_give_their_places_to_new_ones(world, monkeypatch):
    """In the state, on the page, and among the counters of the process."""
    small = Definition(max_segments=1)
    monkeypatch.setitem(globals(), "Definition", lambda: small)

    async def shown(ts, variant):
        world.send([ImpressionEvent(ts, "u", f"i{ts}", f"r{ts}", None, variant)])
        await asyncio.sleep(10)
        await world.ingest.tick()
        status = world.ingest.status()
        return {row["variant"] for row in status.figures["rates"]}, dict(
            status.counters.impressions
        )

    async def scenario():
        await world.start()
        later = TS + small.segment_span + 1
        assert await shown(TS, "A") == ({"A"}, {("A",): 1})
        assert (await shown(TS + 1, "B"))[0] == {"A", "__other__"}
        await shown(later, "B")
        await shown(later + 1, "B")
        figures, counts = await shown(later + 2, "B")
        assert figures == {"B"}
        assert counts[("B",)] >= 1
        assert ("A",) not in counts

    world.run(scenario)


def test_a_stop_leaves_a_checkpoint_of_everything(world):
    async def scenario():
        world.produce(10)
        await world.start()
        world.produce(10)
        await asyncio.sleep(10)
        assert world.stored("checkpoint_offset") < world.stored() == 20
        assert await world.ingest.stop(world.loop.time() + 12)
        assert world.stored("checkpoint_offset") == 20

    world.run(scenario)


def test_a_stop_that_lacks_only_a_checkpoint_has_left_nothing_over(world):
    """The store is away, and everything read is committed: nothing will be counted late."""

    async def scenario():
        world.produce(10)
        await world.start()
        world.produce(10)
        await asyncio.sleep(10)
        world.server.down = True
        assert await world.ingest.stop(world.loop.time() + 12)
        assert world.stored("checkpoint_offset") < world.stored() == 20

    world.run(scenario)


def test_t_stands_still_while_the_lag_is_not_known(world):
    """After a start nothing is known of the log's end: the partition may be far behind."""

    async def scenario():
        world.produce(10)
        await world.start(checkpoint_interval=1)
        await asyncio.sleep(A_WHILE)
        await world.start(lag_known=False)
        await world.ingest.tick()
        state = world.ingest.partitions[0].state
        assert state.reading_time == state.watermark

    world.run(scenario)


def test_a_state_kept_from_before_is_not_used_where_the_log_begins_later(world):
    """Retention overtakes a restore: what is gone is skipped, and reading goes on."""

    async def scenario():
        world.produce(10)
        await world.start()
        world.produce(10)
        await asyncio.sleep(10)
        await world.start(Silent)
        stuck = world.ingest.partitions[0]
        assert stuck.restoring
        world.member.first = 15
        await world.member.start_over()
        await asyncio.sleep(5)
        assert stuck.next_offset < 15
        assert world.ingest.partitions[0] is not stuck
        assert world.ingest.partitions[0].next_offset == 20
        assert not world.ingest.partitions[0].restoring

    world.run(scenario)


def test_a_log_that_ends_before_the_position_is_refused_while_running(world):
    """A topic made anew: the state kept from before is no reason to go on."""

    async def scenario():
        world.produce(20)
        await world.start()
        assert world.stored() == 20
        world.topic.log[0].clear()
        world.topic.ends[0] = 5
        await world.member.start_over()
        await asyncio.sleep(60)
        with pytest.raises(RefusedError, match="lies beyond the log's end 5"):
            await world.running

    world.run(scenario)


@pytest.mark.parametrize("assigned_anew", [False, True])
@pytest.mark.parametrize("what", ["cluster", "topic"])
def test_another_log_is_refused_while_running_however_long_it_is(world, what, assigned_anew):
    """Also where the state of the partition was kept from before."""

    async def scenario():
        world.produce(20)
        await world.start()
        setattr(world.member, f"{what}_id", "another")
        world.produce(1_000)
        if assigned_anew:
            await world.member.start_over()
        await asyncio.sleep(5)
        assert world.running.done()
        with pytest.raises(RefusedError, match=f"another Kafka {what}.*made anew"):
            await world.running

    world.run(scenario)


def test_events_that_the_log_lost_are_counted_once(world):
    """Also where the partition goes and comes back before the gap is committed."""

    async def scenario():
        world.produce(10)
        await world.start()
        assert world.stored() == 10
        world.produce(100)
        hold = asyncio.Event()
        await world.start(first=60, hold=hold)
        await world.member.start_over()
        hold.set()
        await asyncio.sleep(30)
        assert world.ingest.counters.events_lost == 50
        assert world.stored() == 110

    world.run(scenario)


@pytest.mark.parametrize("assigned_anew", [False, True])
def test_the_loop_has_its_turn_between_the_steps_of_a_flush(world, monkeypatch, assigned_anew):
    """However slow the machine is; a partition may go before its commit is made."""
    monkeypatch.setattr(commits_module, "AT_ONCE_SECONDS", 0.0)
    monkeypatch.setattr(commits_module, "STRETCH_SECONDS", 0.0)
    monkeypatch.setattr(ingest_module, "STRETCH_SECONDS", 0.0)
    advance, stretches, turns, began = commits_module._advance, [], [], asyncio.Event()

    def noted(steps, seconds):
        stretches.append(len(turns))
        world.loop.call_soon(turns.append, None)
        if len(stretches) > 5:
            began.set()
        return advance(steps, seconds)

    monkeypatch.setattr(commits_module, "_advance", noted)
    count = 5_000

    async def scenario():
        await world.start(batch_events=count, batch_interval=60_000)
        shown = [ImpressionEvent(TS + n, "u", "i") for n in range(count // 2)]
        world.send([*shown, *(FeedbackEvent(TS + n, "u", "i", "click") for n in range(count // 2))])
        await began.wait()
        if assigned_anew:
            await world.member.start_over()
        await asyncio.sleep(A_WHILE)
        assert len(stretches) >= count // FLUSH_STEP
        assert stretches == list(range(len(stretches))), "a turn before each"
        assert world.stored() == count
        user = world.server.keys["streameval:{g:t:0}:user:u"]
        assert (user[b"impressions"], user[b"positives:click"]) == (b"2500", b"2500")

    world.run(scenario)


def test_a_count_that_a_correction_lowers_does_not_drift(world):
    """The counter of the process never falls, and rises again only beyond where it was."""

    async def scenario():
        await world.start()
        for ts, event, duplicates in (
            (0, ImpressionEvent, 0),
            (10, FeedbackEvent, 0),
            (30, FeedbackEvent, 1),  # the same click again
            (20, ImpressionEvent, 0),  # no: it was of a later showing
            (30, FeedbackEvent, 1),
            (30, FeedbackEvent, 2),
        ):
            more = ("click",) if event is FeedbackEvent else ()
            world.send([event(TS + ts, "u", "i", *more)])
            await asyncio.sleep(5)
            counted = world.ingest.partitions[0].state.events["duplicates"]
            assert counted == duplicates
        assert world.ingest.counters.duplicates == 2

    world.run(scenario)


def test_a_stop_says_that_the_last_commit_failed(world):
    async def scenario():
        world.produce(10)
        await world.start(batch_interval=A_WHILE * 1_000)

        async def refuse(_commit):
            raise RefusedError("no")

        world.ingest.store.commit = refuse
        assert not await world.ingest.stop(world.loop.time() + 5)

    world.run(scenario)


def test_each_record_is_fresh_once_when_the_figures_hold_it(world):
    async def scenario():
        world.produce(10)
        await world.start()
        await asyncio.sleep(5)
        world.produce(15)
        await asyncio.sleep(5)
        await world.ingest.tick()
        await world.ingest.tick()
        histogram = world.ingest.counters.freshness_seconds
        assert sum(histogram.counts) == 25
        assert await world.ingest.stop(world.loop.time() + 12)

    world.run(scenario)


def test_freshness_is_the_time_from_the_append_to_the_figures(world):
    """A record of a clock that is ahead is fresh at once."""

    async def scenario():
        await world.start()
        clock = ingest_module.time.time
        sent = int(clock())
        world.send([ImpressionEvent(TS + n, "u", f"i{n}", "r") for n in range(4)], sent * 1000)
        await asyncio.sleep(3)
        before = clock()
        await world.ingest.tick()
        histogram = world.ingest.counters.freshness_seconds
        assert 3 <= before - sent <= histogram.total / 4 <= clock() - sent
        assert histogram.counts[bisect_left(BUCKETS, 3.0)] == 4
        total = histogram.total
        world.produce(6, TS + 10)
        await asyncio.sleep(3)
        await world.ingest.tick()
        assert (histogram.total, histogram.counts[0]) == (total, 6)
        assert await world.ingest.stop(world.loop.time() + 12)

    world.run(scenario)


def test_a_commit_that_went_through_unheard_keeps_its_span_when_it_is_refused(world, tmp_path):
    """Its reply was lost, and another worker's commit came before it was tried again."""
    folder = OutcomeFolder(str(tmp_path), {}, {}, ())

    async def scenario():
        await world.start(outcomes=folder)
        store = world.ingest.store
        commit, unheard = store.commit, []

        async def hear(what):
            answer = await commit(what)
            if what.checkpoint is None or unheard:
                return answer
            unheard.append(what)
            return Fenced(what.end)

        store.commit = hear
        world.produce(3)
        world.produce(1, TS + 2 * Definition().horizon)
        await asyncio.sleep(A_WHILE)
        assert unheard

    world.run(scenario)
    assert dataset(folder.root).to_table()["offset"].to_pylist() == [0, 1, 2]


def test_a_stop_says_that_the_last_commit_was_refused(world):
    """Redis went back to an older copy: what was read since is read again."""

    async def scenario():
        world.produce(10)
        await world.start(batch_interval=3_000)
        await asyncio.sleep(5)
        world.server.snapshot()
        world.produce(10)
        await asyncio.sleep(10)
        assert world.stored() == 20
        world.produce(10)
        await asyncio.sleep(1)
        world.server.keys = world.server._copies[0][0]
        assert not await world.ingest.stop(world.loop.time() + 12)
        assert world.stored() == 10

    world.run(scenario)


def test_a_checkpoint_names_the_spans_that_are_not_published_yet():
    """Whoever restores it publishes them: nobody else knows of them."""
    definition = Definition()
    state = Partition(definition, journal=True, keep_outcomes=True)
    limits = Limits(1, 1, 1.0, 1.0)
    partition = AssignedPartition(
        0, limits, state, EventDecoder.of(definition), next_offset=0, committed=0
    )
    commits = []
    for number in range(4):
        event = ImpressionEvent(TS + number * 2 * definition.horizon, "u", "i", f"r{number}")
        row = [number], [2 * TS], [b"u"], [to_json(event)]
        partition.take(Records(0, *row, next_offset=number + 1))
        assert list(partition.work(0.0)) == []
        commits.append(drain(partition.make_commit(0.0, with_checkpoint=True)))
        list(partition.save(commits[-1]))
        if number == 2:
            partition.published(commits[1])
    named = [attachments_of(pending.checkpoint.header) for pending in commits]
    spans = [pending.span.name for pending in commits[1:]]
    assert named == [[], spans[:1], spans[:2], spans[1:]]


def test_a_partition_that_went_to_another_worker_is_freed_and_one_that_came_back_goes_on(world):
    async def scenario():
        await world.start()
        for _ in range(2):
            world.produce(10)
            await asyncio.sleep(3)
            state = world.ingest.partitions[0].state
            assert state.slates.users
            await world.ingest.assignment.revoked([0])
            await world.ingest.assignment.assigned([0])
            await asyncio.sleep(3)
            assert world.ingest.partitions[0].state is state
        await world.ingest.assignment.revoked([0])
        assert state.slates.users
        await world.ingest.assignment.assigned([])
        await asyncio.sleep(1)
        assert not state.slates.users
        assert not world.ingest.assignment._parked
        await world.ingest.assignment.assigned([0])
        world.produce(10)
        await asyncio.sleep(3)
        assert world.stored() == 30
        assert await world.ingest.stop(world.loop.time() + 12)

    world.run(scenario)


def test_records_without_a_timestamp_have_no_part_in_the_freshness_of_figures():
    """A producer that stamps its records may leave that out (-1), for some records of a batch."""
    definition = Definition()
    partition = AssignedPartition(
        0,
        Limits(10, 10, 1.0, 1.0),
        Partition(definition, journal=True),
        EventDecoder.of(definition),
        next_offset=0,
        committed=0,
    )
    value = to_json(ImpressionEvent(TS, "u", "i", "r"))
    stamps = [-1, TS + 2, -1, TS + 1, -1]
    partition.take(Records(0, range(5), stamps, [b"u"] * 5, [value] * 5, next_offset=5))
    list(partition.work(0.0))
    assert partition.newest == TS + 1
    drain(partition.make_commit(0.0))
    assert partition.take_flushed() == [(TS + 1, 2)]


def test_a_large_batch_is_left_alone_after_two_workers_died_of_it(world):
    """A worker that unpacks it again, as after a pause, does not count; an orderly stop neither."""

    async def scenario():
        for deaths in range(2):
            await world.start()
            for _ in range(3):
                assert await world.ingest.assignment.unpacking(0, 5, 9) == "", deaths
        await world.start()
        assert "2 workers ended" in await world.ingest.assignment.unpacking(0, 5, 9)
        assert await world.ingest.assignment.unpacking(0, 10, 12) == "", "another batch"
        await world.ingest.stop(world.loop.time() + 10)
        assert "streameval:{g:t:0}:unpacking" not in world.server.keys

    world.run(scenario)


def test_a_note_that_is_written_after_its_partition_went_is_withdrawn(world):
    """The next owner would take its author for dead, though it only waited for Redis."""

    async def scenario():
        await world.start()
        await asyncio.sleep(A_WHILE)
        noting = asyncio.ensure_future(world.ingest.assignment.unpacking(0, 5, 9))
        await world.ingest.assignment.revoked([0])
        assert await noting == "it is another worker's by now"
        await asyncio.sleep(1)
        assert "streameval:{g:t:0}:unpacking" not in world.server.keys

    world.run(scenario)


def test_the_note_of_a_large_batch_goes_when_the_batch_is_committed(world):
    async def scenario():
        await world.start()
        assert await world.ingest.assignment.unpacking(0, 0, 9) == ""
        assert "streameval:{g:t:0}:unpacking" in world.server.keys
        world.produce(20)
        await asyncio.sleep(5)
        assert world.stored() == 20
        assert "streameval:{g:t:0}:unpacking" not in world.server.keys

    world.run(scenario)


@pytest.mark.parametrize(
    ("news_seconds", "wanted"),
    [
        pytest.param(-1e10, [NEWS_SHARE, TICK_SHARE, TICK_SHARE], id="old records"),
        pytest.param(5.0, [NEWS_SHARE, NEWS_SHARE, TICK_SHARE], id="new records"),
    ],
)
def test_figures_may_take_more_time_for_records_that_they_lack(
    world, monkeypatch, news_seconds, wanted
):
    """But not for old ones while a worker is behind: then reading comes first."""
    monkeypatch.setattr(live_figures_module, "NEWS_SECONDS", news_seconds)

    async def scenario():
        world.produce(10)
        await world.start()
        await asyncio.sleep(A_WHILE)
        shares = []
        monkeypatch.setattr(world.ingest.live._pace, "begins", shares.append)  # no turn begins
        await world.ingest.tick()
        with monkeypatch.context() as behind:
            behind.setattr(world.ingest.event_log, "lag", lambda *_: 1)  # nothing waits in memory
            await world.ingest.tick()
        world.ingest.partitions[0].take_flushed()
        await world.ingest.tick()
        assert shares == wanted

    world.run(scenario)


def test_figures_hold_what_was_applied_though_its_batch_is_not_due(world):
    async def scenario():
        await world.start(batch_interval=1_000_000)
        world.produce(10)
        await asyncio.sleep(5)
        assert not world.stored()
        await world.ingest.tick()
        live = [row for row in world.ingest.status().figures["rates"] if row["basis"] == "live"]
        assert {row["impressions"] for row in live} == {10}
        await asyncio.sleep(5)
        assert world.stored() == 10, "a flush is part of a commit"

    world.run(scenario)


def test_a_tick_begins_no_commit_of_a_partition_that_went_meanwhile(world):
    """It may go at a pause of the tick, half flushed, and come back as another object."""

    async def scenario():
        await world.start(batch_interval=1_000_000)
        world.produce(10)
        await asyncio.sleep(5)
        gone = world.ingest.partitions[0]
        assert gone.uncommitted
        world.ingest.assignment._begin_restore(0, 0.0)
        assert not world.ingest.commits.begin(gone)
        await asyncio.sleep(5)
        await world.ingest.tick()
        await asyncio.sleep(5)
        assert world.stored() == 10
        assert world.ingest.counters.fences == 0

    world.run(scenario)
