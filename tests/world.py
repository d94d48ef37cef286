"""A deployment in virtual time, everything that can go wrong with it, and what must hold meanwhile.

Workers are what `open_ingest` makes of settings: the real loop, restore, reader with aiokafka's
client, dead letters and store, above the brokers of `brokers` and the Redis of `model`. Each is a
process that can be stopped and killed at any await. Workers differ in settings that change no
figure, as in a rolling restart. In some worlds one of another version joins: it refuses what it
did not write, and writes nothing.

`History` looks while the faults go on, at every commit and at many moments:

* the counters of all users in Redis are exactly those of the log up to the stored offset;
* the stored offset goes back only where Redis does;
* every record rejected below the stored offset is a dead letter already, and no other is one;
* no slate stands in the visible outcome files twice;
* each commit counts the offsets that the log has lost within its batch, once.

At the end users, figures, a restart's figures and outcome rows equal the oracle, which parses the
log by itself (`plain_parser`). Then the log of some worlds is set back and grows on: it is refused.
"""

import asyncio
import copy
import dataclasses
import functools
import random
import zlib
from collections import Counter
from types import SimpleNamespace

import msgspec
import pytest
from brokers import NODES, Cluster
from model import Client, Process, Server, first_lists, virtual_time
from oracle.experiments import experiment_arms
from oracle.figures import oracle
from plain_parser import Rejected, parse
from pydantic import PrivateAttr
from redis import exceptions
from streams import hostile, to_json
from test_experiments import assert_extremes, assert_first_lists, exact, plain
from test_partition_properties import assert_same

from streameval.base.errors import RefusedError, UnreachableError
from streameval.base.limits import MAX_BATCH_USERS
from streameval.config.settings import Settings
from streameval.core import attribution, checkpoint, ledger, open_slates
from streameval.core.checkpoint import arm_sums_of, restore
from streameval.core.experiments.definition import Experiment
from streameval.core.oracle import history, users
from streameval.core.outcome import Span
from streameval.core.partition import Partition
from streameval.files import outcome_files
from streameval.kafka import unpacking
from streameval.store.stored_values import parse_arm_users
from streameval.worker import commits as commits_module
from streameval.worker import tallies
from streameval.worker import worker_loop as ingest_module

PARTITIONS = 3
SECONDS = 60.0
# After the last fault: the group has noticed who is silent.
NOTICED_SECONDS = 15.0
# Of a read that finds nothing: it is what most of a quiet simulation's time would go into.
POLL_SECONDS = 0.5
# Between readings of the figures, on average: with one each second, most time would go into them.
TICK_SECONDS = 15.0
MOST_WORKERS = 4
SET_BACK_SHARE = 0.25
STEPWISE_SHARE = 0.3
STRANGER_SHARE = 0.2
STUCK_SECONDS = 900.0
TORN_SHARE = 0.5
BROKEN = (b"", None, b"{", b"[]", b'{"type":"view"}', b"\xff", b'{"type":"slate","items":NaN}')
FAULTS = (
    *("kill", "kill", "stop", "stop", "leave", "join", "redis_down", "copy", "copy", "roll_back"),
    *("broker_dies", "broker_hangs", "elections", "connections", "retention", "disk", "corrupt"),
)


class WorldSettings(Settings):
    """Settings whose definition is of the hostile stream's making, outside what people may set."""

    _definition: object = PrivateAttr()

    def definition(self):
        # What people set is checked before the attribute is there.
        return getattr(self, "_definition", None) or super().definition()


class Line(Client):
    """A process' connection to Redis: what was sent arrives, whatever becomes of the sender."""

    def __init__(self, world, process):
        super().__init__(world.rng, world.server, process, world.lost)
        self._world = world

    async def _call(self, command):
        answer = asyncio.get_running_loop().create_future()
        after = self._world.cluster.after

        def deliver(result):
            if not answer.done():
                if isinstance(result, Exception):
                    answer.set_exception(result)
                    answer.exception()
                elif self.rng.random() < self.lost:
                    answer.set_exception(exceptions.ConnectionError("reply lost"))
                else:
                    answer.set_result(result)

        def arrive():
            if self.server.down or self.rng.random() < self.lost:
                result = exceptions.ConnectionError("request lost")
            else:
                result = command()
            after(self.rng.expovariate(20), deliver, result)

        after(self.rng.expovariate(20), arrive)
        return await answer


class StrangersLine(Line):
    """The connection of a worker that cannot use what is stored: it only reads.

    With `other_format` it sees headers of a checkpoint format that is not its own.
    """

    def __init__(self, world, process, *, other_format):
        super().__init__(world, process)
        self._other_format = other_format

    async def call(self, name, *words):
        forbidden = {"EVALSHA": "commits", "SET": "writes a chunk", "DEL": "deletes"}
        if name in forbidden:
            self._wrote(forbidden[name])
        answer = await super().call(name, *words)
        if self._other_format and isinstance(answer, dict) and answer.get(b"header"):
            answer[b"header"] = of_another_format(answer[b"header"])
        return answer

    def _wrote(self, what):
        failure = AssertionError(f"a worker of another version {what}")
        self._world.history.failure = self._world.history.failure or failure
        raise failure


def of_another_format(header):
    decoded = msgspec.structs.replace(checkpoint._decode(header), format=checkpoint.FORMAT + 1)
    packed = checkpoint._pack(decoded)
    return checkpoint._checksum(packed) + packed


class Disk:
    """Outcome files in memory, with the steps of `OutcomeFolder`, on a disk that may fail.

    What fails may have happened not at all, in half, or whole.
    """

    def __init__(self, rng, time):
        self.rng, self.time = rng, time
        self.failing = 0.0
        self.pending, self.visible = {}, {}
        self.written_at = {}

    def check(self):
        """Nothing to make ours."""

    def _fails(self):
        return self.rng.random() < self.failing

    def write(self, span, rows):
        self.written_at[span.name] = self.time()
        if self._fails():
            self.pending[span.name] = list(rows)[: self.rng.randrange(len(rows) + 1)]
            raise UnreachableError("the disk is full")
        self.pending[span.name] = list(rows)
        if self._fails():
            raise UnreachableError("the disk did not answer")

    def publish(self, name):
        if self._fails():
            raise UnreachableError("the disk did not answer")
        if name in self.pending:
            self.visible[name] = self.pending.pop(name)
        if self._fails():
            raise UnreachableError("the disk did not answer")

    def discard(self, name):
        if self._fails():
            raise UnreachableError("the disk did not answer")
        self.pending.pop(name, None)

    def beyond(self, partition, offset, since):
        if self._fails():
            raise UnreachableError("the disk did not answer")
        spans = [Span.parse(name) for name in self.visible]
        return [one.name for one in spans if one.partition == partition and one.end > offset]

    def remove(self, partition, names, since):
        if self._fails():
            raise UnreachableError("the disk did not answer")
        return sum(self.visible.pop(name, None) is not None for name in names)

    def unpublished(self, partition):
        if self._fails():
            raise UnreachableError("the disk did not answer")
        old = self.time() - outcome_files.PENDING_SECONDS
        names = [name for name in self.pending if self.written_at[name] < old]
        return [name for name in names if Span.parse(name).partition == partition]

    def rows(self, partition):
        names = [name for name in self.visible if Span.parse(name).partition == partition]
        return [row for name in names for row in self.visible[name]]


class WatchedServer(Server):
    """Redis, with somebody who looks at every commit."""

    def __init__(self, rng, watch):
        super().__init__(rng)
        self._watch = watch
        self._later = []  # the first commit of each partition after each copy, and after nothing

    def snapshot(self):
        super().snapshot()
        self._later.append({})

    def commit(self, key, arguments):
        answer = super().commit(key, arguments)
        if answer == [b"applied"]:
            for commits in self._later:
                commits.setdefault(key, arguments)
            self._watch(int(key.split("}")[0].rpartition(":")[2]))
        return answer

    def roll_back(self):
        """Start again from an older file, or from nothing, if the log still has the rest."""
        begins = {number: log.start for number, log in self.world.cluster.logs.items()}
        pairs = list(zip(self._copies, self._later, strict=True))
        fit = [
            (one, later) for one, later in [(({}, set()), {}), *pairs] if _reaches(one[0], begins)
        ]
        if fit:
            chosen = self.rng.randrange(len(fit))
            (self.keys, self.volatile), later = copy.deepcopy(fit[chosen])
            if self.world.files is not None:  # no copy is from after the one it went back to
                kept = [pair for pair in fit[: chosen + 1] if pair in pairs]
                self._copies = [one for one, _ in kept]
                self._later = [commits for _, commits in kept]
            for key, arguments in later.items():
                if self.rng.random() < TORN_SHARE:
                    self._tear(key, arguments)
            self.world.history.rolled_back()

    def _tear(self, key, arguments):
        """Apply a part of a commit, as Redis does after a power cut."""
        whole = Server(self.rng)
        whole.keys = copy.deepcopy(self.keys)
        Server.commit(whole, key, arguments)
        prefix = key.removesuffix("partition")
        changed = [
            one
            for one, value in whole.keys.items()
            if one.startswith(f"{prefix}user:") and value != self.keys.get(one)
        ]
        part = self.rng.sample(changed, self.rng.randint(0, len(changed)))
        self.keys |= {one: whole.keys[one] for one in part}
        begun = int(self.keys.get(key, {}).get(b"begun", 0)) + 1
        self.keys[key] = self.keys.get(key, {}) | {b"begun": b"%d" % begun}


def _reaches(keys, begins):
    stored = [
        int(keys.get(_key(n, "partition"), {}).get(b"checkpoint_offset") or 0) for n in begins
    ]
    return all(at >= begin for at, begin in zip(stored, begins.values(), strict=True))


class History:
    """Looks at Redis, dead letters and files while everything goes wrong."""

    def __init__(self, world):
        self.world = world
        # Of its own: what is looked at must not change what happens.
        self.rng = random.Random(world.seed)
        self.offsets = {}
        self.looks = self.commits = 0
        self.failure = None

    def rolled_back(self):
        self.offsets.clear()
        self.all()

    def committed(self, number):
        """A commit was applied."""
        self.commits += 1
        offset = self.world.offset(number)
        if self._hold(lambda: self._goes_on(number, offset)) and self.rng.random() < 0.15:
            self.look(number)

    def settled(self, pending):
        """A worker counts a commit that went through."""
        self._hold(lambda: self._counts_gaps(pending))

    def _counts_gaps(self, pending):
        log = self.world.cluster.logs[pending.partition]
        told, start = pending.tally.gaps, pending.start
        begin = (start or 0) + pending.tally.lost - told
        read = set(range(begin, pending.end))
        # Without a commit before, reading begins where the log did then.
        surely = len([at for at in log.lost & read if start is not None or at >= log.start])
        # Between batches a marker of a transaction may have stood, once transactions were seen.
        most = len((log.lost | log.between) & read)
        assert surely <= told <= most, (
            f"partition {pending.partition} from {begin} to {pending.end}: {told} lost,"
            f" not {surely} to {most}"
        )

    def _goes_on(self, number, offset):
        before = self.offsets.get(number, 0)
        assert offset >= before, f"partition {number} went back from {before} to {offset}"
        end = self.world.cluster.logs[number].end
        assert offset <= end, f"partition {number} is at {offset}, the log ends at {end}"
        self.offsets[number] = offset

    def all(self):
        for number in self.world.cluster.logs:
            self.look(number)

    def look(self, number):
        self.looks += 1
        self._hold(lambda: self._exact(number))
        self._hold(lambda: self._in_dead_letters(number))
        self._hold(lambda: self._once(number))

    def _hold(self, claim):
        """Keep the first claim that does not hold; it is raised where the world can hear it."""
        if self.failure is None:
            try:
                claim()
            except AssertionError as error:
                self.failure = error
        return self.failure is None

    def _exact(self, number):
        world = self.world
        offset = world.offset(number)
        ahead = world.ahead(number, offset)
        events, _ = world.read(number, max([offset, *ahead.values()]))
        truth = self._true_users(number, offset)
        for user, end in ahead.items():
            truth[user] = self._true_users(number, end)[user]
        wanted = experiment_arms(world.definition, events)
        for experiment, arms in zip(world.definition.experiments, wanted, strict=True):
            beyond = world.visits(number, experiment.key) - _visits(arms)
            assert not beyond, f"partition {number} at {offset}: not final {beyond}"
        found = world.users(number)
        above = {
            user: (row, truth.get(user)) for user, row in found.items() if row != truth.get(user)
        }
        missing = truth.keys() - found.keys()
        assert not above, f"partition {number} at {offset}: (found, true) {above}"
        assert not missing, f"partition {number} at {offset}: missing {missing}"

    def _true_users(self, number, offset):
        events, _ = self.world.read(number, offset)
        return users(history(self.world.definition, events), self.world.definition.kinds)

    def _in_dead_letters(self, number):
        offset = self.world.offset(number)
        wanted = self.world.rejections(number, offset)
        letters = self.world.letters(number)
        missing = {at: why for at, why in wanted.items() if letters.get(at) != why}
        assert not missing, f"partition {number} at {offset}: no dead letters {missing}"

    def _once(self, number):
        if isinstance(self.world.files, Disk):
            keys = [
                (row.offset, row.user, row.request, row.time, tuple(row.items))
                for row in self.world.files.rows(number)
            ]
            assert len(keys) == len(set(keys)), f"partition {number}: a slate stands twice in files"


class World:
    """Brokers, a store, and workers that come and go; `files` take their outcomes."""

    def __init__(self, loop, rng, seed):
        self.loop, self.rng, self.seed = loop, rng, seed
        self.definition, events = hostile(seed)
        self.definition = watched(self.definition, seed)
        self.values = [(event.user_id.encode(), to_json(event)) for event in events]
        self.history = History(self)
        self.server = WatchedServer(rng, self.history.committed)
        self.server.world = self
        self.cluster = Cluster(loop, rng, PARTITIONS)
        self.lost = rng.choice((0.0, 0.02, 0.2))
        self.gone = {number: [] for number in self.cluster.logs}  # offsets nobody could read
        self.parsed = {number: {} for number in self.cluster.logs}
        self.workers = []
        self.faults = {}
        self._producers = 0
        # Seconds after which a span that is not visible may go. At once is safe if Redis forgets
        # nothing: else the commit of a worker that hung could count after all.
        self.pending_seconds = random.Random(f"pending of {seed}").choice((0.0, 6 * 3600.0))
        self.pauses = random.Random(f"ticks of {seed}")
        self.strangers = 0  # at work now
        self.chance_of_stranger = random.Random(f"strangers of {seed}")
        self.files = self.folder()
        if self.files is not None:
            self.lost = min(self.lost, 0.05)  # one loss makes a restore read all chunks again
            slow = rng.choice((0.05, 0.5, 3.0))
            loop.thread_seconds = lambda: rng.expovariate(1 / slow)
        loop.set_exception_handler(self._noticed)

    def folder(self):
        """Where outcomes go; None: the workers write none."""
        return Disk(self.rng, self.loop.time) if self.rng.random() < 0.5 else None

    def files_of(self, number):
        """The rows of a partition that readers see."""
        return self.files.rows(number)

    def _noticed(self, _loop, context):
        if context["message"].startswith("Exception in callback"):
            self.history.failure = self.history.failure or context["exception"]

    # ------------------------------------------------------------------ the run

    async def live(self):
        for _ in range(self.rng.randint(1, 3)):
            self.start_worker()
        half = len(self.values) // 2 if self.rng.random() < 0.15 else 0
        if half:
            await self.weather(self.values[:half], SECONDS / 2)
            await self.outage()
        await self.weather(self.values[half:], SECONDS / (2 if half else 1))

    async def weather(self, values, seconds):
        """Events come and faults happen, until everything is read and stored."""
        rng, begin = self.rng, self.loop.time()
        moments = sorted(rng.uniform(0, seconds) for _ in range(rng.randint(0, 12)))
        producing = asyncio.ensure_future(self.produce(values, seconds))
        under_way = []
        if self.chance_of_stranger.random() < STRANGER_SHARE:
            under_way.append(asyncio.ensure_future(self.stranger(seconds)))
        for moment in moments:
            await asyncio.sleep(max(0.0, begin + moment - self.loop.time()))
            under_way.append(asyncio.ensure_future(self.fault()))
            self.history.all()
        await asyncio.gather(producing, *under_way)
        if not any(worker.process.answers for worker in self.workers):
            self.start_worker()
        await asyncio.sleep(NOTICED_SECONDS)
        end = self.loop.time() + STUCK_SECONDS
        while not self.settled():
            assert self.loop.time() < end, (
                f"stuck: stored {self.offsets()}, the log ends at {self.ends()}, owned"
                f" {[sorted(worker.ingest.partitions) for worker in self.workers]}"
            )
            await asyncio.sleep(1)
        self.history.all()

    async def outage(self):
        """All workers leave, the log moves on beyond them, and others come."""
        stopping = [self._stopped(worker, 60.0) for worker in self.workers]
        assert all(await asyncio.gather(*stopping)), "nothing was away"
        self.workers.clear()
        self.loop.processes.clear()
        for number, log in self.cluster.logs.items():
            end = log.end
            if self.rng.random() < 0.5:
                for key, value in self.rng.choices(self.values, k=self.rng.randint(1, 9)):
                    if zlib.crc32(key) % PARTITIONS == number:
                        log.append([(4_000_000_000_000, key, value)])
            log.truncate(self.rng.randint(log.start, log.end))
            if log.start > end:
                self.gone[number].append((end, log.start))
        self.server._copies.clear()
        self.server._later.clear()
        for _ in range(self.rng.randint(1, 3)):
            self.start_worker()

    async def produce(self, values, seconds):
        """Write the stream bit by bit, in batches: some records twice, some broken, and others in
        transactions."""
        rng = self.rng
        waiting = {number: [] for number in self.cluster.logs}
        pause = seconds / len(values)
        most = rng.choice((1, 4, 20))
        for number, (key, value) in enumerate(values):
            partition = zlib.crc32(key) % PARTITIONS
            rows = waiting[partition]
            rows += [(4_000_000_000_000, key, value)] * (1 + (rng.random() < 0.1))
            if rng.random() < 0.05:
                rows.append((0, key, rng.choice((*BROKEN, value))))
            if rng.random() < 1 / most:
                await self._write(partition, rows)
                waiting[partition] = []
            if number % 10 == 0:
                await asyncio.sleep(rng.uniform(0, 20) * pause)
        for partition, rows in waiting.items():
            if rows:
                await self._write(partition, rows)

    async def _write(self, partition, rows):
        rng, log = self.rng, self.cluster.logs[partition]
        chance = rng.random()
        if chance < 0.05:
            log.append_empty()
        if chance > 0.85:
            self._producers += 1
            name = self._producers
            log.append(rows, producer=name)
            if rng.random() < 0.5:  # something of somebody else in between, that never counts
                self._producers += 1
                log.append([(1, b"x", rng.choice(BROKEN))], producer=self._producers)
                log.finish(self._producers, commit=False)
            await asyncio.sleep(rng.uniform(0, 2))
            log.finish(name, commit=True)
        else:
            log.append(rows)
        self.cluster.poke()

    # ------------------------------------------------------------------- faults

    async def fault(self):
        """One thing goes wrong, and ends within its time."""
        what = self.rng.choice(FAULTS)
        self.faults[what] = self.faults.get(what, 0) + 1
        await getattr(self, what)()
        self.history.all()

    async def stranger(self, seconds):
        """A worker of another version joins once something is stored, is refused and goes.

        It looks before it joins the group. Or it began when nothing was stored yet: then it is
        refused at its first partition.
        """
        rng, end = self.chance_of_stranger, self.loop.time() + 2 * seconds
        other_format, looks = rng.random() < 0.5, rng.random() < 0.5
        await asyncio.sleep(rng.uniform(0, seconds))
        while not (any if looks else all)(self.has_checkpoint(n) for n in self.cluster.logs):
            if self.loop.time() > end:
                return
            await asyncio.sleep(1)
        window = self.definition.attribution_window + (not other_format)
        definition = dataclasses.replace(self.definition, attribution_window=window)
        line = functools.partial(StrangersLine, other_format=other_format)
        self.strangers += 1
        worker = self.start_process(definition, line)
        if not looks:
            worker.ingest.assignment.restorer.check_stored = _looks_at_nothing
        await asyncio.wait({worker.running}, timeout=STUCK_SECONDS)
        if worker.running.done():
            assert isinstance(worker.running.exception(), RefusedError), worker.running.exception()
        else:  # the others have all partitions, and it stands by
            assert not looks, "a worker of another version goes on"
            assert len(self.workers) >= PARTITIONS, "a worker of another version goes on"
            assert not worker.ingest.partitions, "a worker of another version goes on"
        self.strangers -= 1
        self.faults["stranger"] = self.faults.get("stranger", 0) + 1
        self.end(worker)

    def has_checkpoint(self, number):
        return bool(self.server.keys.get(_key(number, "partition"), {}).get(b"header"))

    def start_worker(self):
        worker = self.start_process(self.definition, Line)
        self.workers.append(worker)
        return worker

    def start_process(self, definition, line):
        rng = self.rng
        settings = WorldSettings(
            kafka="broker:1",
            topic="t",
            group="g",
            dead_letter_topic="t.dead-letter",
            batch_events=rng.choice((1, 5, 50, 50_000)),
            batch_users=rng.choice((1, MAX_BATCH_USERS)),
            batch_interval=rng.choice(("10ms", "1s")),
            checkpoint_interval=rng.choice(("1s", "5s", "30s")),
        )
        settings._definition = definition
        process = Process(self.loop)
        ingest = process.context.run(ingest_module.open_ingest, settings)
        ingest.store._servers = line(self, process)
        # Backlogs are dropped and read again beyond a bound that no seed's events would reach.
        ingest._most_bytes = rng.choice((ingest._most_bytes, 1_000))
        worker = SimpleNamespace(process=process, ingest=ingest)
        worker.running = process.start(ingest.run())
        worker.ticking = process.start(self.tick(worker))
        return worker

    async def tick(self, worker):
        """Read the figures now and then: reading changes nothing."""
        while not worker.running.done():
            await worker.ingest.tick()
            worker.ingest.status()
            await asyncio.sleep(self.pauses.uniform(1, 2 * TICK_SECONDS))

    def _any(self):
        alive = [worker for worker in self.workers if worker.process.answers]
        return self.rng.choice(alive) if alive else None

    async def kill(self):
        worker = self._any()
        if worker is not None:
            self.workers.remove(worker)
            self.end(worker)
            if self.rng.random() < 0.8:
                self.start_worker()

    def end(self, worker):
        worker.process.kill()
        connections = self.cluster.connections
        for connection in [one for one in connections if one.owner is worker.process]:
            del connections[connection]

    async def stop(self):
        """A process, or its loop, stands still: for moments, or longer than its session."""
        worker = self._any()
        if worker is not None:
            worker.process.stop()
            await asyncio.sleep(self.rng.choice((2.0, 12.0, 40.0)) * self.rng.random())
            worker.process.wake()

    async def leave(self):
        worker = self._any()
        if worker is not None:
            self.workers.remove(worker)
            await self._stopped(worker, self.rng.uniform(1, 12))
            if self.rng.random() < 0.8:
                self.start_worker()

    async def _stopped(self, worker, seconds):
        stopping = worker.process.start(worker.ingest.stop(self.loop.time() + seconds))
        await asyncio.wait({stopping}, timeout=seconds + 60)
        flushed = stopping.done() and stopping.result()
        worker.process.kill()
        return flushed

    async def join(self):
        if len(self.workers) < MOST_WORKERS:
            self.start_worker()

    async def redis_down(self):
        self.server.down = True
        await asyncio.sleep(self.rng.uniform(0, 30))
        self.server.down = False

    async def copy(self):
        self.server.snapshot()
        self.server.lose_unlisted()

    async def roll_back(self):
        """Not while a stranger is at work: it might find nothing, and begin to count."""
        if self.strangers:
            return
        if self.files is None or self.pending_seconds:
            self.server.roll_back()

    async def broker_dies(self):
        node = self.rng.choice(NODES)
        self.cluster.stop(node)
        await asyncio.sleep(self.rng.uniform(0, 30))
        self.cluster.start(node)

    async def broker_hangs(self):
        node = self.rng.choice(NODES)
        self.cluster.hang(node)
        await asyncio.sleep(self.rng.uniform(0, 60))
        self.cluster.go_on(node)

    async def elections(self):
        for _ in range(self.rng.randint(1, 5)):
            self.cluster.elect()
            await asyncio.sleep(self.rng.uniform(0, 3))

    async def connections(self):
        for connection in list(self.cluster.connections):
            if self.rng.random() < 0.5:
                connection.break_off()

    async def retention(self):
        """The log's beginning moves on, up to where every state that may come back begins."""
        states = [self.server.keys, *(keys for keys, _ in self.server._copies)]
        for number, log in self.cluster.logs.items():
            stored = [keys.get(_key(number, "partition"), {}) for keys in states]
            safe = min(int(fields.get(b"checkpoint_offset") or 0) for fields in stored)
            log.truncate(self.rng.randint(0, safe))

    async def disk(self):
        if isinstance(self.files, Disk):
            self.files.failing = self.rng.choice((0.2, 1.0))
            await asyncio.sleep(self.rng.uniform(0, 20))
            self.files.failing = 0.0

    async def corrupt(self):
        """Brokers answer with damaged batches for a while."""
        self.cluster.corrupt = 0.3
        await asyncio.sleep(self.rng.uniform(0, 10))
        self.cluster.corrupt = 0.0

    # ------------------------------------------------------------- what must hold

    def offset(self, number):
        return int(self.server.keys.get(_key(number, "partition"), {}).get(b"offset", 0))

    def offsets(self):
        return [self.offset(number) for number in self.cluster.logs]

    def ends(self):
        return [log.end for log in self.cluster.logs.values()]

    def settled(self):
        """Whether everything is read and stored, and every partition has one owner."""
        if self.history.failure is not None:
            raise self.history.failure
        for worker in self.workers:
            if worker.running.done():
                worker.running.result()
                raise AssertionError("a worker ended")
        assigned = sorted(number for worker in self.workers for number in worker.ingest.partitions)
        busy = any(worker.ingest.commits.under_way for worker in self.workers)
        all_read = self.offsets() == self.ends()
        # Whoever took over may still read again what lies between the checkpoint and the offset.
        # Or the end was stored by a commit from before the takeover, of this worker or another:
        # the owner has then applied the same records, not flushed them, and is fenced next.
        states = {
            number: one.next_offset
            for worker in self.workers
            for number, one in worker.ingest.partitions.items()
            if not (one.restoring or one.uncommitted or one.state.experiments.untaken)
        }
        return (
            not busy
            and assigned == list(self.cluster.logs)
            and all_read
            and states == dict(enumerate(self.ends()))
        )

    async def verify(self):
        if self.history.failure is not None:
            raise self.history.failure
        owners = {
            number: partition.state
            for worker in self.workers
            for number, partition in worker.ingest.partitions.items()
        }
        for number in self.cluster.logs:
            expected = self.expected(number, owners[number].reading_time)
            users = self.users(number)
            assert_same(owners[number].document(None, users), expected)
            restored = self.restored(number)
            assert_same(restored.document(owners[number].reading_time, users), expected)
            assert self.letters(number) == self.rejections(number)
            self.verify_experiments(number)
        if self.files is not None:
            self.verify_files()

    def verify_experiments(self, number):
        """Sums are those of the slates that were final at the checkpoint, and all users are stored.

        Users of slates that became final since may be stored too (`History` bounds them).
        """
        stored = self.server.keys.get(_key(number, "partition"), {})
        if not stored.get(b"header"):
            return
        events, _ = self.read_with_offsets(number, int(stored[b"checkpoint_offset"]))
        wanted = experiment_arms(self.definition, events)
        found = arm_sums_of(stored[b"header"], self.definition)
        for sums, arms in zip(found, wanted, strict=True):
            assert sums.sums.keys() == arms.sums.keys()
            for arm, by_name in arms.sums.items():
                assert exact(self.definition, sums.sums[arm]) == plain(by_name)
            assert not sums.begun, "all slates from the first record on are counted"
            assert_extremes(self.definition, sums, arms)
            stored = self.first_lists(number, sums.users_key)
            missing = _visits(arms) - stored.keys()
            assert not missing, f"partition {number}: missing {missing}"
            firsts = {key: first for key, first in stored.items() if key in _visits(arms)}
            assert firsts == arms.first_lists, f"partition {number}"
            hash_of = self.server.keys.get(_key(number, f"arms:{sums.users_key}"), {})
            users = parse_arm_users(hash_of)
            counted = {(arm, int(counts.sum())) for arm, counts in users.by_arm.items()}
            assert counted == set(Counter(arm for _, arm in stored).items())
            assert_first_lists(users, stored)

    def visits(self, number, experiment):
        """The (user, arm) that the store holds of an experiment.

        `experiment` is its key, where users of any time count, or that of the users of its sums.
        """
        return self.first_lists(number, experiment).keys()

    def first_lists(self, number, experiment):
        """The first list of each (user, arm) that the store holds of an experiment."""
        prefix, named = _key(number, "user:"), f"first:{experiment}".encode()
        return {
            (key.removeprefix(prefix), arm): (time, tuple(values))
            for key, fields in self.server.keys.items()
            if key.startswith(prefix)
            for field, arms in fields.items()
            if field == named or field.startswith(named + b"@")
            for arm, (time, *values) in first_lists(arms).items()
        }

    async def set_back(self):
        """The log loses its end and grows on: whoever owns it refuses, and nothing is counted.

        What nobody can see is left out: a log that holds no record where the last one was.
        """
        rng = self.rng
        number = rng.choice(list(self.cluster.logs))
        stored = self.server.keys.get(_key(number, "partition"), {})
        log = self.cluster.logs[number]
        last = int((stored.get(b"last_record") or b"-1:").split(b":")[0])
        below = [offset for offset, *_ in log.records if log.start <= offset <= last]
        if not below:
            return
        before = self.users(number), self.offset(number)
        # Without a restore it shows by the epoch of what was read: unknown from a batch of the
        # older format on, and behind a gap after the last record that was counted.
        known = all(batch.raw[16] == 2 for batch in log.batches) and before[1] == last + 1
        if not known or rng.random() < 0.5:
            for worker in self.workers:
                worker.process.kill()
            self.workers.clear()
            self.start_worker()
        log.set_back(rng.choice(below))
        while log.end <= before[1] + 2:
            log.append([(4_000_000_000_000, b"stranger", b'{"type":"view"}')])
        self.faults["set_back"] = 1
        self.cluster.poke()
        if all(offset != last for offset, *_ in log.records):
            return
        end = self.loop.time() + STUCK_SECONDS
        while not any(worker.running.done() for worker in self.workers):
            assert self.loop.time() < end, "a log that was set back is not refused"
            await asyncio.sleep(1)
        (ended, *_) = [worker for worker in self.workers if worker.running.done()]
        assert isinstance(ended.running.exception(), RefusedError), ended.running.exception()
        assert (self.users(number), self.offset(number)) == before, "something was counted"

    def verify_files(self):
        """The visible rows are the oracle's slates up to the checkpoint, each once."""
        from test_outcomes import expected, plain

        for number in self.cluster.logs:
            stored = self.server.keys.get(_key(number, "partition"), {})
            until = int(stored.get(b"checkpoint_offset") or 0)
            wanted = expected(self.definition, *self.read_with_offsets(number, until))
            found = sorted(plain(self.definition, row) for row in self.files_of(number))
            assert found == wanted, f"partition {number}"

    def read_with_offsets(self, number, end=None, begin=0):
        """Events and their offsets, of the records from `begin` to `end` without what is gone."""
        events, offsets = [], []
        for offset, event in self._parsed(number, begin, end):
            if not isinstance(event, Rejected):
                events.append(event)
                offsets.append(offset)
        return events, offsets

    def read(self, number, end=None, begin=0):
        """Events, and how many are rejected by reason."""
        events, reasons = [], {}
        for _, event in self._parsed(number, begin, end):
            if isinstance(event, Rejected):
                reasons[event.reason] = reasons.get(event.reason, 0) + 1
            else:
                events.append(event)
        return events, reasons

    def _parsed(self, number, begin=0, end=None):
        known = self.parsed[number]
        for offset, timestamp, _, value in self.cluster.logs[number].records:
            if end is not None and offset >= end:
                break
            if offset < begin or any(a <= offset < b for a, b in self.gone[number]):
                continue
            if offset not in known:
                known[offset] = parse(value, timestamp, self.definition.max_clock_skew)
            yield offset, known[offset]

    def expected(self, number, at):
        events, reasons = self.read(number)
        return oracle(self.definition, events, at=at, rejected=reasons)

    def rejections(self, number, end=None):
        """The reason of each record that is rejected, by offset."""
        found, watermark = {}, None
        for offset, event in self._parsed(number, end=end):
            if isinstance(event, Rejected):
                found[offset] = event.reason
            elif watermark is not None and event.ts < watermark - self.definition.allowed_lateness:
                found[offset] = "late"
            else:
                watermark = event.ts if watermark is None else max(watermark, event.ts)
        return found

    def letters(self, number):
        """The reason of each dead letter, by offset; they carry their records, or what fits."""
        found = {}
        records = self.cluster.logs[number].records
        values = {offset: (key, value or b"") for offset, _, key, value in records}
        for key, value, headers in self.cluster.letters:
            if int(headers["partition"]) == number:
                offset = int(headers["offset"])
                whole = values[offset]
                kept = self.cluster.largest_letters is None
                assert (key, value) == whole or not kept
                assert (whole[0] or b"").startswith(key or b"") and whole[1].startswith(value)
                assert found.setdefault(offset, headers["reason"]) == headers["reason"]
        return found

    def restored(self, number):
        """What a worker that begins now would make of checkpoint and log."""
        stored = self.server.keys.get(_key(number, "partition"), {})
        if not stored.get(b"header"):
            return Partition(self.definition)  # nothing ever came
        chunks = {
            name: self.server.keys[_key(number, f"chunk:{name}")]
            for name in stored[b"chunks"].decode().split()
        }
        state = restore(self.definition, stored[b"header"], chunks)
        events, reasons = self.read(number, begin=int(stored[b"checkpoint_offset"]))
        state.apply(events)
        for reason, count in reasons.items():
            state.reject(reason, count)
        state.flush()
        return state

    def users(self, number):
        prefix = _key(number, "user:")
        return {
            key.removeprefix(prefix): self.counters(fields)
            for key, fields in self.server.keys.items()
            if key.startswith(prefix) and b"first_ts" in fields
        }

    def ahead(self, number, offset):
        """Users of whom a part of a commit was applied, and up to where they count."""
        prefix = _key(number, "user:")
        return {
            key.removeprefix(prefix): int(fields[b"at"])
            for key, fields in self.server.keys.items()
            if key.startswith(prefix) and int(fields.get(b"at", 0)) > offset
        }

    def counters(self, fields):
        texts = {name.decode(): value for name, value in fields.items()}
        row = {name: int(text) for name, text in texts.items() if not name.startswith("first:")}
        names = ("impressions", "slates")
        return {name: row.get(name, 0) for name in names} | {
            "positives": {kind: row.get(f"positives:{kind}", 0) for kind in self.definition.kinds},
            "first_ts": row["first_ts"],
            "last_ts": row["last_ts"],
        }


def watched(definition, seed):
    """The definition with experiments over its dimensions, whose settings take chances."""
    rng = random.Random(f"experiments of {seed}")
    metric = f"positives_per_impression{{feedback={definition.kinds[0]}}}"
    experiments = tuple(
        Experiment(name, name, rng.choice("AB"), metric, split=rng.choice((None, {"A": 1, "B": 1})))
        for name in definition.dimensions
    )
    return dataclasses.replace(definition, experiments=experiments)


async def _looks_at_nothing(_partitions):
    """Stand for `check_stored` before anything was stored."""


def _visits(arms):
    return {(user, arm) for arm, users in arms.users.items() for user in users}


def _key(number, rest):
    return f"streameval:{{g:t:{number}}}:{rest}"


def cut_in_steps(monkeypatch):
    """Let the loop breathe while a commit is made, as many events do: no time passes here."""
    monkeypatch.setattr(commits_module, "AT_ONCE_SECONDS", 0.0)
    monkeypatch.setattr(commits_module, "STRETCH_SECONDS", 0.0)
    monkeypatch.setattr(ingest_module, "STRETCH_SECONDS", 0.0)
    for module in (attribution, ledger, open_slates):
        monkeypatch.setattr(module, "FLUSH_STEP", 3)


def simulate(seed, monkeypatch, kind=World):
    """Run one seed to its end; raises what does not hold. Answers the world."""
    holder = []

    async def connect(*arguments, **options):
        return await holder[0].cluster.connect(*arguments, **options)

    with virtual_time(seed, monkeypatch, connect) as (loop, rng):
        world = kind(loop, rng, seed)
        holder.append(world)
        monkeypatch.setattr(commits_module, "settle", watched_settle(world))
        monkeypatch.setattr(ingest_module, "open_files", lambda _: world.files)
        monkeypatch.setattr(ingest_module, "POLL_SECONDS", POLL_SECONDS)
        monkeypatch.setattr(ingest_module, "SCORECARD_SECONDS", TICK_SECONDS)
        monkeypatch.setattr(outcome_files, "PENDING_SECONDS", world.pending_seconds)
        # Batches of more records than this are split.
        monkeypatch.setattr(unpacking, "AT_ONCE", rng.choice((8_000, 3)))
        if random.Random(f"steps of {seed}").random() < STEPWISE_SHARE:
            cut_in_steps(monkeypatch)
        loop.run_until_complete(world.live())
        loop.run_until_complete(world.verify())
        if rng.random() < SET_BACK_SHARE:
            loop.run_until_complete(world.set_back())
    return world


def watched_settle(world):
    """Count a commit as workers do, under the eyes of the world's history."""

    def settle(pending, *arguments):
        world.history.settled(pending)
        tallies.settle(pending, *arguments)

    return settle


def run_seed(seed):
    """Run one seed outside pytest; raises what does not hold. Answers what happened in it."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        world = simulate(seed, monkeypatch)
    return {
        "events": len(world.values),
        "commits": world.history.commits,
        "looks": world.history.looks,
        "requests to brokers": world.cluster.requests,
        "dead letters": len(world.cluster.letters),
        **{f"fault {name}": count for name, count in world.faults.items()},
    }
