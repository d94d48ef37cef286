"""Every fault at once, seeded: kills, zombies, lost replies, a store that forgets, rebalances.

The real `Ingest` over the real `Store`, in virtual time, on a model of Kafka and Redis. Afterwards
the users' counters, the figures of the living workers, what a restart would restore, and the
dead-letter topic equal the oracle over the log.
"""

import asyncio
import logging
import random
import zlib
from types import SimpleNamespace

import pytest
import redis as redis_client
import servers
from comparison import rejections
from model import (
    COMMIT,
    REBALANCE_SECONDS,
    SESSION_SECONDS,
    Client,
    Group,
    Member,
    Server,
    Topic,
    virtual_time,
)
from msgspec.msgpack import encode as msgpack
from streams import hostile, to_json
from test_partition_properties import assert_same

from streameval.core.checkpoint import restore
from streameval.core.events import decode_batch
from streameval.core.limits import MAX_TS, MIN_TS
from streameval.core.oracle import oracle
from streameval.core.partition import Partition
from streameval.stream.ingest import Ingest
from streameval.stream.store import Store

SEEDS = 60
PARTITIONS = 3
SECONDS = 90.0
BROKEN = (b"", None, b"{", b"[]", b'{"type":"view"}')


@pytest.fixture(autouse=True)
def quiet():
    """What the service says of thousands of faults is of no interest."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_whatever_fails_the_counters_and_figures_equal_the_oracle(seed, monkeypatch):
    """Counters, figures, checkpoints and dead letters, after every fault of the model."""
    with virtual_time(seed, monkeypatch) as (loop, rng):
        world = World(rng, seed)
        loop.run_until_complete(world.live())
        loop.run_until_complete(world.verify())


@pytest.mark.servers
def test_the_model_of_the_store_answers_as_redis_does():
    """The same commits to the script on a real server and to the model: same answers, same keys."""
    rng = random.Random(24)
    model = Server(rng)
    prefix = f"streameval:{{{servers.unique('model')}:t:0}}:"
    answers = set()
    with redis_client.Redis.from_url(servers.shared_redis().url) as client:
        script = client.register_script(COMMIT)
        for number in range(400):
            arguments, chunks = random_commit(rng, model.keys.get(f"{prefix}partition", {}), number)
            for name in chunks:
                client.set(f"{prefix}chunk:{name}", b"x")
                model.keys[f"{prefix}chunk:{name}"] = b"x"
            answer = model.commit(f"{prefix}partition", arguments)
            assert script([f"{prefix}partition"], arguments) == answer
            assert keys_of(client, prefix) == model.keys
            answers.add(answer[0])
    assert answers == {b"applied", b"fenced", b"missing"}


def random_commit(rng, stored, number):
    """The script's arguments, mostly such as fit what is stored, and the chunks to write before."""
    offset = stored.get(b"offset", b"")
    start = offset if rng.random() < 0.8 else rng.choice((b"", 3, int(offset or 0) + 1))
    listed = stored.get(b"chunks", b"").decode().split()
    new = [f"c{number}-{index}" for index in range(rng.randrange(3))]
    keep = [name for name in listed if rng.random() < 0.7] + new
    if rng.random() < 0.1:
        keep.append("unheard-of")
    users = [(f"u{user}", *random_times(rng)) for user in rng.sample(range(6), rng.randrange(4))]
    ids, firsts, lasts = zip(*users, strict=True) if users else ((), (), ())
    columns = [ids, firsts, [str(last) for last in lasts]]
    for field in ("impressions", "slates", "positives:click", "positives:like"):
        if rng.random() < 0.8:
            columns += [field, [rng.choice((-2, 0, 0, 1, 7, 2**40)) for _ in users]]
    saved = rng.random() < 0.5
    arguments = [start, int(offset or 0) + rng.randrange(9), number, f"commit-{number}"]
    arguments += ["cluster", "topic", "f2" if rng.random() < 0.05 and stored else "f1", "{}", 0]
    arguments += [msgpack(columns), b"header" if saved else b""]
    arguments += [msgpack(keep if saved else []), msgpack(new if saved else [])]
    arguments += [f"{number}:0123abcd" if rng.random() < 0.8 else ""]
    return arguments, [name for name in new if saved and rng.random() < 0.9]


def random_times(rng):
    """First and last ts of a user; those before September 2001 have a digit less."""
    return sorted(rng.choice((10**12 - 1, 10**12, MIN_TS, MAX_TS - 1)) for _ in range(2))


def keys_of(client, prefix):
    """Every key under `prefix` with its value."""
    keys = [key.decode() for key in client.scan_iter(f"{prefix}*", count=1_000)]
    return {key: client.get(key) if ":chunk:" in key else client.hgetall(key) for key in keys}


class World:
    """A topic, a store, and workers that come and go; `files` take their outcomes."""

    files = None

    def __init__(self, rng, seed):
        self.rng = rng
        self.definition, events = hostile(seed)
        self.values = [(event.user_id.encode(), to_json(event)) for event in events]
        self.topic = Topic(rng, PARTITIONS)
        self.server = Server(rng)
        self.lost = rng.choice((0.0, 0.02, 0.2))
        self.settings = SimpleNamespace(
            definition=lambda: self.definition,
            batch_events=rng.choice((1, 5, 50, 50_000)),
            batch_users=rng.choice((1, 2_000)),
            batch_interval=rng.choice((10, 1_000)),
            checkpoint_interval=rng.choice((1_000, 5_000, 30_000)),
            start_from="earliest",
            topic="t",
            group="g",
        )
        self.workers = []

    # ------------------------------------------------------------------ the run

    async def live(self):
        self.group = Group(self.rng, self.topic)
        for _ in range(self.rng.randint(1, 3)):
            self.start_worker()
        loop = asyncio.get_running_loop()
        faults = sorted(self.rng.uniform(0, SECONDS) for _ in range(self.rng.randint(0, 12)))
        producing = asyncio.ensure_future(self.produce())
        waking = []
        for moment in faults:
            await asyncio.sleep(max(0.0, moment - loop.time()))
            waking.append(asyncio.ensure_future(self.fault()))
        await asyncio.gather(producing, *waking)
        if not any(worker.member.answers for worker in self.workers):
            self.start_worker()
        await asyncio.sleep(SESSION_SECONDS + REBALANCE_SECONDS)  # the group has noticed everything
        end = loop.time() + 600
        while not self.settled():
            assert loop.time() < end, f"stuck: {self.offsets()}, the log ends at {self.topic.ends}"
            await asyncio.sleep(1)

    async def produce(self):
        """Write the stream bit by bit: some records twice, some broken."""
        pause = SECONDS / len(self.values)
        for number, (key, value) in enumerate(self.values):
            partition = zlib.crc32(key) % PARTITIONS
            for _ in range(1 + (self.rng.random() < 0.1)):
                self.topic.append(partition, 4_000_000_000_000, key, value)
            if self.rng.random() < 0.05:
                self.topic.append(partition, 0, key, self.rng.choice((*BROKEN, value)))
            if number % 10 == 0:
                await asyncio.sleep(self.rng.uniform(0, 20) * pause)

    async def fault(self):
        """One thing goes wrong, and ends within its time."""
        rng = self.rng
        alive = [worker for worker in self.workers if worker.member.answers]
        what = rng.choice(("kill", "kill", "stop", "leave", "join", "down", "copy", "copy", "back"))
        if what in {"kill", "stop", "leave"} and alive:
            await getattr(self, what)(rng.choice(alive))
        elif what == "join":
            self.start_worker()
        elif what == "down":
            self.server.down = True
            await asyncio.sleep(rng.uniform(0, 30))
            self.server.down = False
        elif what == "copy":
            self.server.snapshot()
            self.server.lose_unlisted()
        elif what == "back":
            self.server.roll_back()

    def start_worker(self):
        member = Member(self.rng, self.topic, self.group)
        store = Store("redis://localhost", "g", "t", self.definition.kinds)
        store._redis = Client(self.rng, self.server, member, self.lost)
        ingest = Ingest(self.settings, member, store, outcomes=self.files)
        worker = SimpleNamespace(member=member, ingest=ingest)
        worker.running = asyncio.ensure_future(ingest.run())
        worker.ticking = asyncio.ensure_future(self.tick(worker))
        self.workers.append(worker)

    async def tick(self, worker):
        """Read the figures all the time: reading changes nothing."""
        while worker.member.answers:
            await worker.ingest.tick()
            worker.ingest.status()
            await asyncio.sleep(1)

    async def kill(self, worker):
        worker.member.kill()
        self.workers.remove(worker)
        if self.rng.random() < 0.8:
            self.start_worker()

    async def stop(self, worker):
        worker.member.stop()
        await asyncio.sleep(self.rng.uniform(0, 40))
        worker.member.wake()

    async def leave(self, worker):
        self.workers.remove(worker)
        await worker.ingest.stop(asyncio.get_running_loop().time() + self.rng.uniform(1, 12))
        if self.rng.random() < 0.8:
            self.start_worker()

    # ------------------------------------------------------------- what must hold

    def offsets(self):
        stored = (self.server.keys.get(_key(number, "partition"), {}) for number in self.topic.log)
        return [int(fields.get(b"offset", 0)) for fields in stored]

    def settled(self):
        """Whether everything is read and stored, and every partition has one owner."""
        for worker in self.workers:
            assert not worker.running.done(), worker.running.exception()
        owned = sorted(number for worker in self.workers for number in worker.ingest.owned)
        return owned == list(self.topic.log) and self.offsets() == list(self.topic.ends.values())

    async def verify(self):
        owners = {
            number: owned.state
            for worker in self.workers
            for number, owned in worker.ingest.owned.items()
        }
        for number, records in self.topic.log.items():
            expected = self.expected(records, owners[number].reading_time)
            users = self.users(number)
            assert_same(owners[number].document(None, users), expected)
            restored = self.restored(number, records)
            assert_same(restored.document(owners[number].reading_time, users), expected)
        assert self.topic.letters == rejections(self.definition, self.topic.log)

    def expected(self, records, at):
        events, rejected = self.decoded(records)
        reasons = {}
        for _, rejection in rejected:
            reasons[rejection.reason] = reasons.get(rejection.reason, 0) + 1
        return oracle(self.definition, events, at=at, rejected=reasons)

    def decoded(self, records):
        values = [value for _, _, _, value in records]
        timestamps = [timestamp for _, timestamp, _, _ in records]
        return decode_batch(values, timestamps, self.definition.max_clock_skew)

    def restored(self, number, records):
        """What a worker that begins now would make of checkpoint and log."""
        stored = self.server.keys.get(_key(number, "partition"), {})
        if b"header" not in stored:
            return Partition(self.definition)  # nothing ever came
        chunks = {
            name: self.server.keys[_key(number, f"chunk:{name}")]
            for name in stored[b"chunks"].decode().split()
        }
        state = restore(self.definition, stored[b"header"], chunks)
        begin = int(stored[b"checkpoint_offset"])
        events, rejected = self.decoded([record for record in records if record[0] >= begin])
        state.apply(events)
        for _, rejection in rejected:
            state.reject(rejection.reason)
        state.flush()
        return state

    def users(self, number):
        prefix = _key(number, "user:")
        return {
            key.removeprefix(prefix): self.counters(fields)
            for key, fields in self.server.keys.items()
            if key.startswith(prefix)
        }

    def counters(self, fields):
        row = {name.decode(): int(value) for name, value in fields.items()}
        names = ("impressions", "slates")
        return {name: row.get(name, 0) for name in names} | {
            "positives": {kind: row.get(f"positives:{kind}", 0) for kind in self.definition.kinds},
            "first_ts": row["first_ts"],
            "last_ts": row["last_ts"],
        }


def _key(number, rest):
    return f"streameval:{{g:t:{number}}}:{rest}"
